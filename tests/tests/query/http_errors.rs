//! Tests of errors of the HTTP port: every error is JSON with a reason, and URLs are parsed like those of other
//! servers.

use serde_json::Value;
use tests::http::{encode, raw, request};
use tests::payload::otlp::{PERIOD_NS, Request, now_ns, stack};
use tests::payload::pprof;
use tests::server::{Processes, Setup, Varve};

/// Sends these bytes. Returns the status of the response, and the error in its body, which must be JSON.
fn error_of(address: &str, sent: &[u8]) -> (u16, String) {
    let (status, text) = raw(address, sent).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no response: {text:?}"));
    assert!(head.to_lowercase().contains("content-type: application/json"), "{text}");
    let json: Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("not JSON: {text}"));
    assert!(json["status"] == "error" && json["errorType"].is_string(), "{text}");
    (status, json["error"].as_str().unwrap().to_owned())
}

#[test]
fn every_error_of_the_http_port_is_json_that_says_what_is_wrong() {
    let varve = Varve::up();
    let get = |path: &str, headers: &str| format!("GET {path} HTTP/1.1\r\nconnection: close\r\n{headers}\r\n");
    let post = |path: &str, length: u64| {
        format!("POST {path} HTTP/1.1\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n")
    };
    for (sent, status, word) in [
        (get("/nothing", ""), 404, "docs/api.md"),
        (get("/assets/nothing.js", ""), 404, "/assets/nothing.js"),
        (get("/v1development/profiles", ""), 404, "4318"),
        (post("/metrics", 0), 405, "POST"),
        (post("/healthz", 0), 405, "POST"),
        (post("/-/ready", 0), 405, "POST"),
        (post("/", 0), 405, "POST"),
        (get("/api/v1/push", ""), 405, "GET"),
        (get("/api/v1/label/%ff/values", ""), 400, "UTF-8"),
        (get("/api/v1/query", ""), 400, "query"),
        (get("/api/v1/labels", "host: evil.example\r\n"), 403, "Host"),
        (get("/api/v1/labels", "host: localhost\r\norigin: http://evil.example\r\n"), 403, "origins"),
        (post("/api/v1/push?service_name=x", 33_554_433), 413, "33554432"),
        (get("/a b", ""), 400, "%20"),
        (get("/", "no header\r\n"), 400, "malformed"),
        ("nonsense\r\n\r\n".to_owned(), 400, "METHOD"),
        (get(&format!("/{}", "x".repeat(70_000)), ""), 414, "URL"),
        (get("/", &format!("x: {}\r\n", "y".repeat(200_000))), 431, "headers"),
    ] {
        let (got, text) = error_of(&varve.http, sent.as_bytes());
        let shown = sent.get(..80).unwrap_or(&sent);
        assert!(got == status && text.contains(word), "{shown:?}: {got} {text}");
    }
    // A form that is too large is refused in the same way.
    let form = "x".repeat(3 << 20);
    let url = format!("http://{}/api/v1/query", varve.http);
    let form_type = ("content-type", "application/x-www-form-urlencoded");
    let _refused = request("POST", &url, &[form_type], Some(form.as_bytes())).unwrap().refused_with(&[413]);
}

#[test]
fn ports_without_the_api_name_its_port() {
    let varve = Varve::start(Setup { processes: Processes::Three, ..Setup::default() });
    let ask = |address: &str| request("GET", &format!("http://{address}/api/v1/labels"), &[], None).unwrap();
    let of_otlp = ask(&varve.otlp).refused_by_otlp_with(&[404]).rpc_status().message;
    let of_node = ask(&varve.operations[0]).refused_with(&[404]).text();
    for text in [of_otlp, of_node] {
        assert!(text.contains("--http-listen") && text.contains("4040"), "{text}");
    }
    let (status, text) = error_of(&varve.operations[0], b"GET /a b HTTP/1.1\r\n\r\n");
    assert!(status == 400 && text.contains("%20"), "{status} {text}");
}

#[test]
fn clients_of_other_protocols_learn_what_is_supported_instead() {
    let varve = Varve::up();
    for path in [
        "/ingest?name=app",
        "/push.v1.PusherService/Push",
        "/querier.v1.QuerierService/SelectMergeStacktraces",
        "/pyroscope/render?query=x",
        "/buildid/abcdef0123456789/debuginfo",
        "/parca.profilestore.v1alpha1.ProfileStoreService/WriteRaw",
    ] {
        let reply = request("POST", &format!("http://{}{path}", varve.http), &[], Some(b"x")).unwrap();
        let text = reply.refused_with(&[404]).text();
        for word in ["not supported yet", "/api/v1/push", "4318", "docs/api.md"] {
            assert!(text.contains(word), "{path}: {text}");
        }
    }
}

#[test]
fn a_url_with_raw_quotes_is_accepted() {
    let varve = Varve::up();
    let now = now_ns();
    assert_eq!(
        varve.push_otlp(&Request::new("quotes").seen(stack(&["f", "main"]), vec![now]).bytes(), None).status,
        200
    );
    let time = format!("{:.9}", now as f64 / 1e9 + 1.0);
    let promql = "sum_over_time(process_cpu{service_name=\"quotes\"}[1m])>1";
    let ask = |query: &str| {
        let head = format!("GET /api/v1/query?{query}&time={time} HTTP/1.1\r\nconnection: close\r\n\r\n");
        raw(&varve.http, head.as_bytes()).unwrap()
    };
    let (status, as_it_is) = ask(&format!("query={promql}"));
    assert_eq!(status, 200, "{as_it_is}");
    assert!(as_it_is.contains(&format!("\"{PERIOD_NS}\"")), "{as_it_is}");
    let (_, encoded) = ask(&encode(&[("query", promql)]));
    assert_eq!(as_it_is.split_once("\r\n\r\n").unwrap().1, encoded.split_once("\r\n\r\n").unwrap().1);
}

// Regression test: the period type of Go's contention profiles is contentions/count, so a short name meant the number
// of waits, and not their time.
#[test]
fn short_names_of_contention_are_ambiguous() {
    let varve = Varve::up();
    let contentions = || ("contentions".to_owned(), "count".to_owned());
    for name in ["contention", "mutex", "block"] {
        for kind in [contentions(), ("delay".to_owned(), "nanoseconds".to_owned())] {
            let body = pprof::build(kind, Some((contentions(), 1)), &[(&["lock", "main"], 5)], now_ns());
            assert_eq!(varve.push_pprof(&body, &[("service_name", "go"), ("name", name)], None).status, 200);
        }
        for path in ["query", "flamegraph"] {
            let url = format!("http://{}/api/v1/{path}?query={name}", varve.http);
            let text = request("GET", &url, &[], None).unwrap().refused_with(&[422]).text();
            for kind in ["contentions:count", "delay:nanoseconds"] {
                assert!(text.contains(&format!("{name}:{kind}:contentions:count")), "{path}: {text}");
            }
        }
    }
}

#[test]
fn a_flame_graph_without_a_window_covers_the_last_hour() {
    let varve = Varve::up();
    let now = now_ns();
    let hour = 3_600_000_000_000;
    let times = vec![now - hour - hour / 2, now - hour / 2, now - 1_000_000];
    assert_eq!(varve.push_otlp(&Request::new("hour").seen(stack(&["f", "main"]), times).bytes(), None).status, 200);
    let total = |window: &[(&str, &str)]| {
        let parameters: Vec<_> = [("query", "process_cpu")].into_iter().chain(window.iter().copied()).collect();
        varve.get("/api/v1/flamegraph", &parameters).expect(200).json()["total"].as_u64().unwrap() / PERIOD_NS
    };
    assert_eq!(total(&[]), 2);
    assert_eq!(total(&[("start", "now-2h")]), 3);
    assert_eq!(total(&[("start", "now-2h"), ("end", "now-1h")]), 1);
    assert_eq!(total(&[("end", "now-20m")]), 1);
    // A deletion needs an explicit window.
    let url = format!("http://{}/api/v1/delete?query=process_cpu", varve.http);
    let _refused = request("POST", &url, &[], Some(b"")).unwrap().refused_with(&[400]);
}
