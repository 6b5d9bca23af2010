//! Tests of deletions: deleted samples never return, and all other samples stay, across sealing, restarts and retries.

use tests::http::{encode, request};
use tests::payload::otlp::{PERIOD_NS, Request, now_ns, stack};
use tests::server::Varve;

const MINUTE_NS: u64 = 60_000_000_000;

fn delete(varve: &Varve, query: &str, start_ns: u64, end_ns: u64) -> tests::http::Reply {
    let seconds = |time_ns: u64| format!("{}.{:09}", time_ns / 1_000_000_000, time_ns % 1_000_000_000);
    let form = encode(&[("query", query), ("start", &seconds(start_ns)), ("end", &seconds(end_ns))]);
    let url = format!("http://{}/api/v1/delete?{form}", varve.http);
    request("POST", &url, &[], Some(b"")).unwrap()
}

fn samples(varve: &Varve, service: &str) -> u64 {
    let promql = format!("sum(sum_over_time(process_cpu{{service_name=\"{service}\"}}[2d]))");
    (varve.total(&promql, now_ns() as f64 / 1e9 + 60.0) / PERIOD_NS as f64) as u64
}

#[test]
fn deleted_samples_never_return_and_all_others_stay() {
    let mut varve = Varve::up();
    let now = now_ns();
    // One sample a minute, for three hours up to now.
    let times: Vec<u64> = (0..180).map(|i| now - i * MINUTE_NS).collect();
    let push = |service: &str| Request::new(service).seen(stack(&["f", "main"]), times.clone()).bytes();
    for service in ["leaks", "stays"] {
        assert_eq!(varve.push_otlp(&push(service), None).status, 200);
    }
    assert_eq!((samples(&varve, "leaks"), samples(&varve, "stays")), (180, 180));
    // Deletes two hours of samples. The edges of the deleted time are inside of windows.
    let deleted = delete(&varve, "process_cpu{service_name=\"leaks\"}", now - 150 * MINUTE_NS, now - 30 * MINUTE_NS);
    assert_eq!(deleted.expect(200).json()["data"]["samples"], 120);
    let both = |varve: &Varve| (samples(varve, "leaks"), samples(varve, "stays"));
    assert_eq!(both(&varve), (60, 180));
    // The push is retried. varve recognizes the retry by its content.
    assert_eq!(varve.push_otlp(&push("leaks"), None).status, 200);
    assert_eq!(both(&varve), (60, 180), "a retry brought them back");
    varve.kill();
    varve.launch();
    assert_eq!(both(&varve), (60, 180), "after the log was applied again");
    let compacted = request("POST", &format!("http://{}/api/v1/admin/compact", varve.http), &[], Some(b"")).unwrap();
    assert_eq!(compacted.status, 200, "{}", compacted.text());
    assert_eq!(both(&varve), (60, 180), "after everything was compacted");
    assert_eq!(varve.push_otlp(&push("leaks"), None).status, 200);
    varve.kill();
    varve.launch();
    assert_eq!(both(&varve), (60, 180), "from what was compacted");
    let all = delete(&varve, "{service_name=\"leaks\"}", now - 1000 * MINUTE_NS, now + MINUTE_NS).expect(200);
    assert_eq!((all.json()["data"]["samples"].as_u64(), both(&varve)), (Some(60), (0, 180)));
}

#[test]
fn a_selector_that_selects_no_series_deletes_nothing() {
    let varve = Varve::up();
    let now = now_ns();
    let body = Request::new("api").seen(stack(&["f"]), vec![now]).bytes();
    assert_eq!(varve.push_otlp(&body, None).status, 200);
    let refusals = [
        ("process_cpu{stack_function=\"f\"}", "is a stack label"),
        ("rate(process_cpu[5m])", "expected a selector"),
        ("{service_name=~\"(\"}", "illegal regex"),
        ("", "query"),
    ];
    for (selector, why) in refusals {
        let refused = delete(&varve, selector, now - MINUTE_NS, now + MINUTE_NS).refused_with(&[400]);
        assert!(refused.text().contains(why), "{selector}: {}", refused.text());
    }
    let backwards = delete(&varve, "{service_name=\"api\"}", now, now - MINUTE_NS).refused_with(&[400]);
    assert!(backwards.text().contains("after"), "{}", backwards.text());
    let none = delete(&varve, "{service_name=\"other\"}", now - MINUTE_NS, now + MINUTE_NS).expect(200);
    assert_eq!((none.json()["data"]["samples"].as_u64(), samples(&varve, "api")), (Some(0), 1));
}
