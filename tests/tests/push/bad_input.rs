//! Tests of invalid pushes over HTTP and gRPC. Invalid parts are refused with a reason, valid parts are stored, and
//! memory is bounded.

use tests::grpc::{Sending, export, rejected};
use tests::payload::damaged::{self, with_dictionary, with_sample};
use tests::payload::otlp::{PERIOD_NS, Request, now_ns, stack};
use tests::payload::pprof::{self, gzip};
use tests::payload::wire::{Message, Value, decode, encode, packed};
use tests::server::Varve;
use tonic::Code;
use tonic::codec::CompressionEncoding;

#[test]
fn malformed_pushes_are_refused_with_a_reason_and_never_count() {
    let mut varve = Varve::up();
    let before = varve.peak_mib();
    let mut accepted = Vec::new();
    for (name, request) in damaged::requests("damaged") {
        let reply = varve.push_otlp(&request, None);
        let status = reply.rpc_status();
        if (reply.status, status.code) != (400, 3) || status.message.len() <= 10 {
            accepted.push(format!("{name}: HTTP {} {}", reply.status, reply.text()));
        }
        match export(&varve.grpc, &request, Sending::default()) {
            Err(status) if status.code() == Code::InvalidArgument && status.message().len() > 10 => {}
            other => accepted.push(format!("{name}: gRPC {other:?}")),
        }
        assert!(varve.is_running(), "{name} took the server down");
    }
    assert!(accepted.is_empty(), "{accepted:#?}");
    let stored = varve.query("sum_over_time({service_name=\"damaged\"}[1h])", now_ns() as f64 / 1e9 + 1.0);
    assert_eq!(stored, []);
    assert!(varve.peak_mib() - before < 256, "memory grew from {before} to {} MiB", varve.peak_mib());
}

#[test]
fn valid_profiles_are_kept_and_the_others_counted_with_reasons() {
    let varve = Varve::up();
    let good = damaged::good("partial");
    let bad = with_sample(&good, |sample| damaged::set(sample, 1, Value::Varint(1_000_000)));
    let resource = |request: &[u8]| decode(request)[0].clone();
    let both = encode(&vec![resource(&good), resource(&bad), resource(&bad), decode(&good)[1].clone()]);
    let total = || varve.total("sum_over_time(process_cpu{service_name=\"partial\"}[1h])", now_ns() as f64 / 1e9 + 1.0);

    let reply = varve.push_otlp(&both, Some("http")).expect(200);
    let (count, reason) = rejected(&decode(&reply.body));
    assert!(count == 2 && reason.contains("1000000") && reason.contains("stack_table"), "{count} {reason}");
    assert_eq!(total(), PERIOD_NS as f64);

    let response = export(&varve.grpc, &both, Sending { key: Some("grpc"), ..Sending::default() }).unwrap();
    let (count, reason) = rejected(&response);
    assert!(count == 2 && reason.contains("stack_table"), "{count} {reason}");
    assert_eq!(total(), 2.0 * PERIOD_NS as f64);
    assert_eq!(varve.metric(&varve.http, "varve_router_rejected_profiles_total"), Some(4.0));
}

#[test]
fn truncated_deep_stacks_keep_their_weight_below_a_marker_frame() {
    let varve = Varve::up();
    for depth in [10_000, 100_000] {
        let now = now_ns();
        let service = format!("deep-{depth}");
        let names: Vec<String> = (0..depth).map(|i| format!("f{}", i % 5000)).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let request = Request::new(&service).seen(stack(&names), vec![now, now + 1]).bytes();
        let reply = varve.push_otlp(&request, None).expect(200);
        let (count, reason) = rejected(&decode(&reply.body));
        assert!(count == 0 && reason.contains(&depth.to_string()) && reason.contains("truncated"), "{reason}");
        let window = (now as f64 / 1e9 - 10.0, now as f64 / 1e9 + 10.0);
        let folded = varve.folded(&format!("process_cpu{{service_name=\"{service}\"}}"), window);
        let (kept, weight) = folded.first_key_value().unwrap();
        assert_eq!((folded.len(), *weight), (1, i128::from(2 * PERIOD_NS)));
        assert_eq!(kept[0], "[truncated stack]");
        assert_eq!(kept.last().unwrap(), "f0", "the leaf side is kept");
        assert!(kept.len() <= 2048, "{}", kept.len());
    }
}

/// Returns 1 GiB of zeros for each supported compression, in compressed form.
fn bombs() -> [(CompressionEncoding, &'static str, Vec<u8>); 2] {
    let zeros = || std::io::Read::take(std::io::repeat(0), 1 << 30);
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    std::io::copy(&mut zeros(), &mut gzip).unwrap();
    let zstd = zstd::encode_all(zeros(), 1).unwrap();
    [(CompressionEncoding::Gzip, "gzip", gzip.finish().unwrap()), (CompressionEncoding::Zstd, "zstd", zstd)]
}

/// Sends a gRPC message that is already compressed, which a usual client cannot do. Returns `grpc-status` and
/// `grpc-message`.
fn grpc_bomb(varve: &Varve, encoding: &str, bomb: &[u8]) -> (String, String) {
    use tests::grpc::{block_on, raw_call};
    let mut framed = vec![1];
    framed.extend(u32::try_from(bomb.len()).unwrap().to_be_bytes());
    framed.extend(bomb);
    block_on(raw_call(&varve.grpc, encoding, framed))
}

#[test]
fn decompression_bombs_are_refused_at_the_limit() {
    let mut varve = Varve::up();
    let before = varve.peak_mib();
    for (_, name, bomb) in bombs() {
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let reply =
                        varve.push_otlp_as("application/x-protobuf", &[("content-encoding", name)], &bomb).unwrap();
                    assert!([413, 429].contains(&reply.status), "{name}: {} {}", reply.status, reply.text());
                });
            }
        });
        let (code, message) = grpc_bomb(&varve, name, &bomb);
        // Code 8 is RESOURCE_EXHAUSTED.
        assert!(code == "8" && message.len() > 10, "{name} over gRPC: {code} {message}");
        let reply = varve.push_pprof(&bomb, &[("service_name", "bomb")], None);
        assert_eq!(reply.status, 413, "{name} as pprof: {}", reply.text());
        assert!(varve.is_running());
    }
    let grown = varve.peak_mib() - before;
    assert!(grown < 512, "memory grew by {grown} MiB");
    assert_eq!(varve.push_otlp(&damaged::good("after"), None).status, 200);
}

#[test]
fn unknown_encodings_are_415_and_broken_ones_400() {
    let varve = Varve::up();
    let body = damaged::good("types");
    let send = |kind: &str, headers: &[(&str, &str)], body: &[u8]| varve.push_otlp_as(kind, headers, body).unwrap();
    for kind in ["text/plain", "application/grpc", "application/octet-stream"] {
        let reply = send(kind, &[], &body).refused_by_otlp_with(&[415]);
        assert!(reply.text().contains("application/x-protobuf"), "{}", reply.text());
    }
    let reply = send("application/x-protobuf", &[("content-encoding", "br")], &body).refused_by_otlp_with(&[415]);
    assert!(reply.text().contains("gzip"), "{}", reply.text());
    for encoding in ["gzip", "zstd"] {
        let _refused =
            send("application/x-protobuf", &[("content-encoding", encoding)], &body).refused_by_otlp_with(&[400]);
        let cut = if encoding == "gzip" { gzip(&body) } else { zstd::encode_all(&body[..], 1).unwrap() };
        let _refused = send("application/x-protobuf", &[("content-encoding", encoding)], &cut[..cut.len() / 2])
            .refused_by_otlp_with(&[400]);
    }
    let deep = "[".repeat(100_000);
    for json in [
        "",
        "{",
        "[]",
        "null",
        "{\"resourceProfiles\": 5}",
        "{\"resourceProfiles\": [{\"scopeProfiles\": [{\"profiles\": [{\"samples\": [{\"values\": [\"x\"]}]}]}]}]}",
        &deep,
    ] {
        let _refused = send("application/json", &[], json.as_bytes()).refused_by_otlp_with(&[400]);
    }
    // A push with too large a `content-length` is refused before its body is read.
    let refused = || varve.metric(&varve.http, "varve_router_pushes_refused_total").unwrap_or_default();
    let before = refused();
    let (status, text) = announced(&varve, "content-length: 33554433\r\n");
    assert!(status == 413 && text.contains("33554432"), "{text}");
    assert_eq!(refused(), before + 1.0, "it is not counted");
    for (kind, body) in [("application/x-protobuf", &body[..]), ("application/x-protobuf; charset=utf-8", &body)] {
        assert_eq!(send(kind, &[], body).status, 200);
    }
}

#[test]
fn input_that_is_not_pprof_is_refused_with_a_reason() {
    let varve = Varve::up();
    let now = now_ns();
    let cpu = || ("cpu".to_owned(), "nanoseconds".to_owned());
    let good = pprof::build(cpu(), None, &[(&["leaf", "main"], 5)], now);
    let changed = |change: &dyn Fn(&mut Message)| {
        let mut message = decode(&good);
        change(&mut message);
        encode(&message)
    };
    let replaced = |field: u32, value: Value| changed(&|message| damaged::set(message, field, value.clone()));
    let sample = |values: &[u64]| Value::from(&vec![(1, packed([1, 2])), (2, packed(values.iter().copied()))]);
    let mut bad: Vec<(&str, Vec<u8>)> = vec![
        ("empty", Vec::new()),
        ("text", b"not a profile".to_vec()),
        ("gzipped text", gzip(b"neither")),
        ("zeros", gzip(&[0; 1 << 20])),
        ("truncated", good[..good.len() / 2].to_vec()),
        ("no sample type", changed(&|message| message.retain(|(field, _)| *field != 1))),
        ("two values for one type", replaced(2, sample(&[1, 2]))),
        ("no values", replaced(2, sample(&[]))),
        ("location that is not there", replaced(2, Value::from(&vec![(1, packed([99])), (2, packed([1]))]))),
        ("location 0", replaced(2, Value::from(&vec![(1, packed([0])), (2, packed([1]))]))),
        ("string that is not there", replaced(1, Value::from(&vec![(1, 999.into()), (2, 1.into())]))),
        ("negative string", replaced(1, Value::from(&vec![(1, u64::MAX.into())]))),
        ("time 1970", replaced(9, 5.into())),
        ("time in an hour", replaced(9, (now + 3_600_000_000_000).into())),
        ("negative time", replaced(9, u64::MAX.into())),
    ];
    let first_string = changed(&|message| {
        let at = message.iter().position(|(field, _)| *field == 6).unwrap();
        message.remove(at);
    });
    bad.push(("no empty string first", first_string));
    for (name, body) in bad {
        let reply = varve.push_pprof(&body, &[("service_name", "bad")], None);
        let explained = reply.json()["error"].as_str().is_some_and(|error| error.len() > 10);
        assert!(reply.status == 400 && explained, "{name}: {} {}", reply.status, reply.text());
    }
    for parameters in [
        &[][..],
        &[("name", "x")],
        &[("service_name", "")],
        &[("service_name", "x"), ("label", "novalue")],
        &[("service_name", "x"), ("colour", "red")],
    ] {
        let _refused = varve.push_pprof(&good, parameters, None).refused_with(&[400]);
    }
    assert_eq!(varve.push_pprof(&good, &[("service_name", "good")], None).status, 200);
    assert_eq!(varve.query("sum_over_time({service_name=\"bad\"}[1h])", now as f64 / 1e9 + 1.0), []);
}

#[test]
fn bodies_in_other_formats_are_refused_by_name() {
    let varve = Varve::up();
    let elf = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let good =
        gzip(&pprof::build(("cpu".to_owned(), "nanoseconds".to_owned()), None, &[(&["leaf", "main"], 5)], now_ns()));
    let multipart = [b"--b\r\nContent-Disposition: form-data; name=\"profile\"\r\n\r\n", good.as_slice()].concat();
    for (name, body) in [
        ("empty", &b""[..]),
        ("JFR", b"FLR\0\0\x02\0\0\0\0\0\0"),
        ("perf.data", b"PERFILE2\x68\0\0\0\0\0\0\0"),
        ("JSON", b"{\"hello\": 1}"),
        ("speedscope", b"{\"$schema\":\"https://www.speedscope.app/file-format-schema.json\"}"),
        (".cpuprofile", b"{\"nodes\":[{\"id\":1,\"callFrame\":{\"functionName\":\"(root)\"}}]}"),
        ("folded stacks", b"main;work;leaf 12\nmain;idle 3\n"),
        ("multipart form", &multipart),
        ("web page", b"<!DOCTYPE html><html><body>404</body></html>"),
        ("zip archive", b"PK\x03\x04\x14\0\0\0"),
        ("ELF", &elf[..1 << 16]),
    ] {
        for body in [body.to_vec(), gzip(body)] {
            let reply = varve.push_pprof(&body, &[("service_name", "foreign")], None).refused_with(&[400]);
            assert!(reply.text().contains(name), "{name}: {}", reply.text());
        }
    }
    let reply = varve.push_pprof(&good[..good.len() / 2], &[("service_name", "foreign")], None).refused_with(&[400]);
    assert!(reply.text().contains("truncated"), "{}", reply.text());
    let json = varve.push_otlp_as("application/x-protobuf", &[], b"{\"resourceProfiles\": []}").unwrap();
    assert!(json.refused_by_otlp_with(&[400]).text().contains("OTLP request in JSON"));
}

#[test]
fn a_push_to_the_other_endpoint_names_its_format_and_endpoint() {
    let varve = Varve::up();
    let cpu = ("cpu".to_owned(), "nanoseconds".to_owned());
    let pprof = pprof::build(cpu, None, &[(&["leaf", "main"], 5)], now_ns());
    let over_http = varve.push_otlp(&pprof, None).refused_by_otlp_with(&[400]).rpc_status().message;
    let over_grpc = export(&varve.grpc, &pprof, Sending::default()).unwrap_err().message().to_owned();
    for text in [over_http, over_grpc] {
        assert!(text.contains("the body is a pprof profile") && text.contains("/api/v1/push?service_name"), "{text}");
    }
    let otlp = damaged::good("elsewhere");
    for body in [gzip(&otlp), otlp] {
        let text = varve.push_pprof(&body, &[("service_name", "elsewhere")], None).refused_with(&[400]).text();
        assert!(text.contains("the body is an OTLP request") && text.contains("/v1development/profiles"), "{text}");
    }
    for (name, request) in damaged::requests("damaged") {
        let text = varve.push_otlp(&request, None).refused_by_otlp_with(&[400]).rpc_status().message;
        assert!(!text.contains("pprof"), "{name} is damaged OTLP: {text}");
    }
}

#[test]
fn above_a_limit_only_the_excess_is_refused_and_the_limit_named() {
    let varve = Varve::up();
    let total = |service: &str| {
        varve.total(
            &format!("sum_over_time(process_cpu{{service_name=\"{service}\"}}[1h])"),
            now_ns() as f64 / 1e9 + 1.0,
        )
    };
    let mut many_labels = Request::new("labels").seen(stack(&["f"]), vec![now_ns()]);
    many_labels.attributes.extend((0..100).map(|i| (format!("label{i}"), "x".to_owned())));
    let long_value = Request::new("value").with("long", &"x".repeat(10_000)).seen(stack(&["f"]), vec![now_ns()]);
    for (request, service, word) in [(many_labels, "labels", "labels"), (long_value, "value", "label's value")] {
        let reply = varve.push_otlp(&request.bytes(), None).refused_by_otlp_with(&[400, 413]);
        assert!(reply.text().contains(word), "{}", reply.text());
        assert_eq!(total(service), 0.0);
    }
    // A function name, such as that of a C++ template, is kept whole up to 64 KiB. A longer name is cut, and its sample
    // is kept.
    let long = "n".repeat(60_000);
    let longer = "n".repeat(100_000);
    for (name, kept) in [(&long, 60_000), (&longer, 64 << 10)] {
        let service = format!("name-{}", name.len());
        let now = now_ns();
        assert_eq!(
            varve.push_otlp(&Request::new(&service).seen(stack(&[name, "main"]), vec![now]).bytes(), None).status,
            200
        );
        let window = (now as f64 / 1e9 - 10.0, now as f64 / 1e9 + 10.0);
        let folded = varve.folded(&format!("process_cpu{{service_name=\"{service}\"}}"), window);
        assert_eq!(folded.keys().next().unwrap()[1].len(), kept);
    }
}

/// Sends only the head of a push. `length` is the header line that announces the length of the body. Returns the
/// response.
fn announced(varve: &Varve, length: &str) -> (u16, String) {
    let head = format!(
        "POST /v1development/profiles HTTP/1.1\r\nhost: localhost\r\n\
         content-type: application/x-protobuf\r\n{length}\r\n"
    );
    tests::http::raw(&varve.otlp, head.as_bytes()).unwrap()
}

#[test]
fn pushes_beyond_the_budget_are_429_with_a_retry_time() {
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;
    use std::time::Duration;
    let varve = Varve::up();
    // Each client sends 30 MB of the 33 MB that it announces. Twelve clients send more than the 256 MiB that may be in
    // flight.
    let unfinished = || {
        let mut stream = TcpStream::connect(&varve.otlp).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        let head = "POST /v1development/profiles HTTP/1.1\r\nhost: localhost\r\n\
                    content-type: application/x-protobuf\r\ncontent-length: 33000000\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        // A client that is refused early cannot write the rest.
        let _refused_midway = stream.write_all(&vec![0; 30_000_000]);
        stream
    };
    let mut streams: Vec<TcpStream> = (0..12).map(|_| unfinished()).collect();
    let answer = |stream: &mut TcpStream| {
        let mut answer = [0; 1000];
        let length = stream.read(&mut answer).unwrap_or(0);
        answer[..length].to_vec()
    };
    let refused: Vec<Vec<u8>> =
        streams.iter_mut().map(answer).filter(|bytes| bytes.starts_with(b"HTTP/1.1 429 ")).collect();
    assert!(!refused.is_empty());
    for bytes in refused {
        let text = String::from_utf8_lossy(&bytes).to_lowercase();
        assert!(text.contains("retry-after: 1") && text.contains("content-type: application/x-protobuf"), "{text}");
        let body = bytes.windows(4).position(|end| end == b"\r\n\r\n").unwrap() + 4;
        let status = decode(&bytes[body..]);
        assert_eq!(tests::payload::wire::number(&status, 1), u64::from(Code::ResourceExhausted as u8), "{text}");
        assert_eq!(tests::payload::wire::all(&status, 3).count(), 1, "when to retry");
    }
    assert_eq!(varve.push_otlp(&damaged::good("small"), None).status, 200, "a small push has room beside them");
    drop(streams);
    std::thread::sleep(Duration::from_millis(500));
    let large = Request::new("429").seen(stack(&["f"]), vec![now_ns(); 1_000_000]).bytes();
    let reply = varve.push_otlp_as("application/x-protobuf", &[], &large).unwrap();
    assert_eq!(reply.status, 200, "{}", reply.text());
}

#[test]
fn bodies_that_never_arrive_do_not_block_other_pushes() {
    use std::io::Write as _;
    use std::net::TcpStream;
    use std::time::{Duration, Instant};
    let varve = Varve::up();
    let announce = |_| {
        let mut stream = TcpStream::connect(&varve.otlp).unwrap();
        let head =
            "POST /v1development/profiles HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/x-protobuf\r\n";
        stream.write_all(format!("{head}content-length: 33554432\r\n\r\n").as_bytes()).unwrap();
        stream
    };
    let _stalled: Vec<TcpStream> = (0..64).map(announce).collect();
    std::thread::sleep(Duration::from_millis(500));
    let began = Instant::now();
    loop {
        let reply = varve.push_otlp(&damaged::good("beside"), None);
        if reply.status == 200 {
            break;
        }
        assert_eq!(reply.status, 429, "{}", reply.text());
        assert!(
            began.elapsed() < Duration::from_secs(35),
            "nobody could push for {:?}: {}",
            began.elapsed(),
            reply.text()
        );
        std::thread::sleep(Duration::from_millis(500));
    }
}

#[test]
fn text_that_is_not_utf_8_is_kept_readable() {
    let varve = Varve::up();
    let now = now_ns();
    let request = Request::new("utf8").seen(stack(&["marker", "main"]), vec![now]).bytes();
    let request = with_dictionary(&request, |dictionary| {
        for (field, value) in dictionary {
            if *field == 5 && *value == Value::from("marker") {
                *value = Value::Bytes(b"a\xc3\x28\xff".to_vec());
            }
        }
    });
    assert_eq!(varve.push_otlp(&request, None).status, 200);
    let window = (now as f64 / 1e9 - 10.0, now as f64 / 1e9 + 10.0);
    let folded = varve.folded("process_cpu{service_name=\"utf8\"}", window);
    assert_eq!(folded.keys().next().unwrap()[1], "a\u{fffd}(\u{fffd}");
}
