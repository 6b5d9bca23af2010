//! Tests of access control, listen addresses, and options.

use std::net::TcpListener;
use std::process::Command;

use proto::wire;
use proto::wire::node_client::NodeClient;
use tests::grpc::{Sending, export};
use tests::http::{Reply, raw, request};
use tests::payload::otlp::{Request, now_ns, stack};
use tests::server::{Processes, Setup, Varve};
use tests::shared::varve_binary;
use tonic::Code;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

fn push() -> Vec<u8> {
    Request::new("access").seen(stack(&["f", "main"]), vec![now_ns()]).bytes()
}

/// Methods and paths of the requests to the HTTP port that need the right to read or to write.
const CALLS: [(&str, &str); 12] = [
    ("GET", "/metrics"),
    ("GET", "/api/v1/query?query=process_cpu"),
    ("GET", "/api/v1/query_range?query=process_cpu&start=1&end=2&step=1"),
    ("GET", "/api/v1/labels"),
    ("GET", "/api/v1/label/service_name/values"),
    ("GET", "/api/v1/series?match[]=process_cpu"),
    ("GET", "/api/v1/metadata"),
    ("GET", "/api/v1/flamegraph?query=process_cpu&start=1&end=2"),
    ("GET", "/api/v1/agent"),
    ("POST", "/api/v1/push?service_name=x"),
    ("POST", "/api/v1/debuginfo"),
    ("DELETE", "/api/v1/debuginfo?build_id=gnu:00"),
];

#[test]
fn without_a_token_only_loopback_and_the_own_origin_are_answered() {
    let varve = Varve::up();
    let port = varve.http.rsplit(':').next().unwrap();
    let ask = |address: &str, method: &str, path: &str, headers: &str| {
        let text = format!("{method} {path} HTTP/1.1\r\n{headers}content-length: 0\r\nconnection: close\r\n\r\n");
        raw(address, text.as_bytes()).unwrap()
    };
    for (method, path) in CALLS {
        for host in [
            "evil.example".to_owned(),
            format!("evil.example:{port}"),
            "127.0.0.1.evil.example".to_owned(),
            "localhost.evil.example:4040".to_owned(),
        ] {
            let (status, text) = ask(&varve.http, method, path, &format!("host: {host}\r\n"));
            assert_eq!(status, 403, "{method} {path} as {host}: {text}");
        }
        for origin in ["http://evil.example".to_owned(), "null".to_owned(), "http://localhost:1".to_owned()] {
            let (status, text) =
                ask(&varve.http, method, path, &format!("host: localhost:{port}\r\norigin: {origin}\r\n"));
            assert_eq!(status, 403, "{method} {path} from {origin}: {text}");
        }
    }
    for host in [format!("localhost:{port}"), format!("127.0.0.1:{port}"), format!("[::1]:{port}")] {
        let (status, text) =
            ask(&varve.http, "GET", "/api/v1/labels", &format!("host: {host}\r\norigin: http://{host}\r\n"));
        assert_eq!(status, 200, "{host}: {text}");
    }
    // The same rules hold for pushes over OTLP/HTTP.
    let (status, text) = ask(
        &varve.otlp,
        "POST",
        "/v1development/profiles",
        "host: evil.example\r\ncontent-type: application/x-protobuf\r\n",
    );
    assert_eq!(status, 403, "{text}");
    let (status, text) = ask(
        &varve.otlp,
        "POST",
        "/v1development/profiles",
        "host: localhost\r\norigin: http://evil.example\r\ncontent-type: application/x-protobuf\r\n",
    );
    assert_eq!(status, 403, "{text}");
}

/// Sends a request that must be refused. After a refusal, the server may close the connection without reading the body.
/// The next request on that connection then fails, and is sent again on another.
fn refusal(method: &str, url: &str, headers: &[(&str, &str)], body: Option<&[u8]>) -> Reply {
    (0..5).find_map(|_| request(method, url, headers, body).ok()).expect("a response")
}

#[test]
fn with_a_token_file_every_request_needs_one_of_its_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokens");
    std::fs::write(&file, format!("# first\nanother-token-of-enough-length\n{TOKEN}\n")).unwrap();
    let file = file.to_str().unwrap();
    let varve =
        Varve::start(Setup { token: Some(TOKEN.to_owned()), ..Setup::default().flags(&["--token-file", file]) });
    let url = |path: &str| format!("http://{}{path}", varve.http);
    for authorization in [
        None,
        Some("Bearer wrong-token-of-enough-length"),
        Some(&format!("Basic {TOKEN}")),
        Some(&TOKEN[1..]),
        Some("Bearer "),
    ] {
        let headers: Vec<_> = authorization.map(|value| ("authorization", value)).into_iter().collect();
        for (method, path) in CALLS {
            let body = (method == "POST").then_some(&b"x"[..]);
            let reply = refusal(method, &url(path), &headers, body);
            assert_eq!(reply.status, 401, "{method} {path} {authorization:?}: {}", reply.text());
            assert!(reply.text().contains("token") && !reply.text().contains(TOKEN), "{}", reply.text());
        }
        let otlp = format!("http://{}/v1development/profiles", varve.otlp);
        let headers: Vec<_> = headers.into_iter().chain([("content-type", "application/x-protobuf")]).collect();
        assert_eq!(refusal("POST", &otlp, &headers, Some(&push())).status, 401);
    }
    for token in [None, Some("wrong-token-of-enough-length")] {
        let error = export(&varve.grpc, &push(), Sending { token, ..Sending::default() }).unwrap_err();
        assert_eq!(error.code(), Code::Unauthenticated, "{error}");
    }
    for path in ["/healthz", "/ready", "/"] {
        assert_eq!(request("GET", &url(path), &[], None).unwrap().status, 200, "{path} holds nothing of anybody's");
    }
    assert_eq!(varve.push_otlp(&push(), None).status, 200);
    for token in [TOKEN, "another-token-of-enough-length"] {
        export(&varve.grpc, &push(), Sending { token: Some(token), ..Sending::default() }).unwrap();
    }
    assert_eq!(varve.get("/api/v1/labels", &[]).status, 200);
    // Commands send the first token of the file.
    let endpoint = format!("http://{}", varve.http);
    let without =
        Command::new(varve_binary()).args(["query", "process_cpu", "--endpoint", &endpoint]).output().unwrap();
    assert!(!without.status.success() && String::from_utf8_lossy(&without.stderr).contains("401"));
    let with = Command::new(varve_binary())
        .args(["query", "process_cpu", "--endpoint", &endpoint, "--token-file", file])
        .output()
        .unwrap();
    assert!(with.status.success(), "{}", String::from_utf8_lossy(&with.stderr));
    assert!(!varve.said().contains(TOKEN), "tokens are never logged");
}

#[test]
fn a_node_requires_a_token_and_its_router_sends_one() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokens");
    std::fs::write(&file, TOKEN).unwrap();
    for processes in [Processes::One, Processes::Three] {
        let token_file = Some(file.clone());
        let varve = Varve::start(Setup { processes, token: Some(TOKEN.to_owned()), token_file, ..Setup::default() });
        let status = tokio::runtime::Runtime::new().unwrap().block_on(async {
            let mut node = NodeClient::connect(format!("http://{}", varve.node)).await.unwrap();
            let request = wire::SeriesRequest { shard: 1, tenant: "default".to_owned(), ..Default::default() };
            node.series(request).await.unwrap_err()
        });
        assert_eq!(status.code(), Code::Unauthenticated, "{status}");
        assert_eq!(varve.push_otlp(&push(), None).status, 200);
        let labels = varve.get("/api/v1/label/service_name/values", &[]);
        assert!(labels.text().contains("access"), "{}", labels.text());
    }
}

/// Runs varve with arguments that it must refuse, and returns the error.
fn refused(arguments: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(varve_binary()).args(arguments).current_dir(folder.path()).output().unwrap();
    assert!(!output.status.success(), "{arguments:?} was accepted");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn an_address_beyond_loopback_needs_a_token_file_or_the_explicit_flag() {
    let ports = ["--http-listen", "--otlp-grpc-listen", "--otlp-http-listen", "--node-listen"];
    for flag in ports {
        let mut arguments = vec!["up", "--no-agent"];
        for port in ports {
            arguments.extend([port, if port == flag { "0.0.0.0:0" } else { "127.0.0.1:0" }]);
        }
        let said = refused(&arguments);
        assert!(said.contains("0.0.0.0:0") && said.contains("--insecure-listen"), "{flag}: {said}");
    }
    for (role, flag) in [
        ("router", "--http-listen"),
        ("router", "--otlp-grpc-listen"),
        ("node", "--node-listen"),
        ("node", "--http-listen"),
    ] {
        assert!(refused(&[role, flag, "0.0.0.0:0"]).contains("--insecure-listen"), "{role} {flag}");
    }
    let mut varve = Varve::prepare(Setup::default().flags(&["--insecure-listen"]));
    varve.http = varve.http.replace("127.0.0.1", "0.0.0.0");
    varve.launch();
    let (status, text) =
        raw(&varve.http, b"GET /api/v1/labels HTTP/1.1\r\nhost: varve.example\r\nconnection: close\r\n\r\n").unwrap();
    assert_eq!(status, 200, "{text}");
}

#[test]
fn token_files_without_a_token_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tokens");
    for (text, word) in [("", "no token"), ("# only a comment\n", "no token"), ("short\n", "line 1")] {
        std::fs::write(&file, text).unwrap();
        let said = refused(&["up", "--no-agent", "--token-file", file.to_str().unwrap()]);
        assert!(said.contains(word), "{text:?}: {said}");
    }
    assert!(refused(&["up", "--token-file", "/does/not/exist"]).contains("/does/not/exist"));
}

#[test]
fn a_busy_port_names_its_holder_and_the_flag_that_moves_it() {
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = held.local_addr().unwrap().to_string();
    let others = ["--http-listen", "--otlp-grpc-listen", "--otlp-http-listen", "--node-listen"];
    for flag in others {
        let mut arguments = vec!["up", "--no-agent"];
        for other in others {
            arguments.extend([other, if other == flag { &address } else { "127.0.0.1:0" }]);
        }
        let said = refused(&arguments);
        assert!(said.contains(&address) && said.contains(flag), "{said}");
        assert!(said.contains(&format!("pid {}", std::process::id())), "{said}");
    }
    for (role, flag) in
        [("node", "--node-listen"), ("node", "--http-listen"), ("router", "--http-listen"), ("agent", "--http-listen")]
    {
        let said = refused(&[role, flag, &address]);
        assert!(said.contains(&address) && said.contains(flag), "{role}: {said}");
    }
}

/// Returns the value of the option `name` that `varve config` prints.
fn effective(arguments: &[&str], environment: &[(&str, &str)], name: &str) -> toml::Value {
    let mut command = Command::new(varve_binary());
    let output = command.arg("config").args(arguments).env_clear().envs(environment.iter().copied()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let table: toml::Table = String::from_utf8(output.stdout).unwrap().parse().unwrap();
    table[name].clone()
}

#[test]
fn flags_win_over_environment_over_file_over_default() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("varve.toml");
    std::fs::write(&file, "frequency-hz = 41\nhttp-listen = \"127.0.0.1:1111\"\nretention = \"3d\"\n").unwrap();
    let file = ["--config", file.to_str().unwrap()];
    let environment = [("VARVE_FREQUENCY_HZ", "42"), ("VARVE_RETENTION", "4d")];
    let flags = [file[0], file[1], "--frequency-hz", "43"];
    let number = |value: i64| toml::Value::Integer(value);
    assert_eq!(effective(&[], &[], "frequency-hz"), number(20));
    assert_eq!(effective(&file, &[], "frequency-hz"), number(41));
    assert_eq!(effective(&file, &environment, "frequency-hz"), number(42));
    assert_eq!(effective(&flags, &environment, "frequency-hz"), number(43));
    assert_eq!(effective(&flags, &environment, "retention").as_str(), Some("4d"));
    assert_eq!(effective(&flags, &environment, "http-listen").as_str(), Some("127.0.0.1:1111"));
    assert_eq!(effective(&flags, &environment, "data-dir").as_str(), Some("./varve-data"));
    assert_eq!(effective(&[], &[("VARVE_CONFIG", file[1])], "frequency-hz"), number(41));
    for (text, word) in
        [("colour = 1\n", "colour"), ("frequency-hz = \"many\"\n", "frequency-hz"), ("= 1", "varve.toml")]
    {
        std::fs::write(file[1], text).unwrap();
        assert!(refused(&["config", file[0], file[1]]).contains(word), "{text}");
    }
}

#[test]
fn the_output_of_varve_config_is_a_config_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("varve.toml");
    let tokens = folder.path().join("tokens");
    std::fs::write(&tokens, TOKEN).unwrap();
    let print =
        |arguments: &[&str]| Command::new(varve_binary()).arg("config").args(arguments).env_clear().output().unwrap();
    let first =
        print(&["--frequency-hz", "97", "--no-agent", "--disk-max", "3GiB", "--token-file", tokens.to_str().unwrap()]);
    assert!(first.status.success() && !String::from_utf8_lossy(&first.stdout).contains(TOKEN));
    std::fs::write(&file, &first.stdout).unwrap();
    let second = print(&["--config", file.to_str().unwrap()]);
    assert_eq!(String::from_utf8_lossy(&second.stdout), String::from_utf8_lossy(&first.stdout));
}

#[test]
fn a_router_reports_a_missing_node_and_recovers_with_it() {
    let mut varve = Varve::start(Setup { processes: Processes::Three, ..Setup::default() });
    assert_eq!(varve.push_otlp(&push(), None).status, 200);
    varve.kill_first();
    let body = push();
    let reply = varve.push_otlp(&body, Some("later")).refused_by_otlp_with(&[503]);
    assert!(reply.text().contains(&varve.node), "{}", reply.text());
    assert!(!reply.header("retry-after").is_empty());
    let _refused = varve.get("/api/v1/query", &[("query", "process_cpu")]).refused_with(&[503]);
    let error = export(&varve.grpc, &body, Sending::default()).unwrap_err();
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    varve.start_first();
    assert_eq!(varve.push_otlp(&body, Some("later")).status, 200);
    assert_eq!(
        varve
            .query("count(count by (service_name) (sum_over_time(process_cpu[1h])))", now_ns() as f64 / 1e9 + 1.0)
            .len(),
        1
    );
}
