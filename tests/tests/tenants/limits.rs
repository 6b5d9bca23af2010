//! Tests of the limits of a tenant: it gets 429 and may retry, and nobody else is affected.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use proto::rpc_status::retry_delay;
use tests::cluster::administration::Administration;
use tests::grpc::{Sending, export};
use tests::http::{Reply, encode, request};
use tests::payload::otlp::{Request, now_ns, stack};
use tests::server::{Setup, Varve};
use tonic::Code;

/// A varve with the tenants a and b.
struct Limited {
    varve: Varve,
    admin: Administration,
    tokens: [String; 2],
}

const A: usize = 0;
const B: usize = 1;

impl Limited {
    fn start() -> Self {
        let varve = Varve::start(Setup::default().flags(&["--require-token"]));
        let admin = Administration::of(&varve);
        let tokens = ["a", "b"].map(|tenant| {
            admin.create_tenant(tenant, &[]);
            admin.create_token(tenant, "admin", &[]).0
        });
        let limited = Self { varve, admin, tokens };
        [A, B].iter().for_each(|&tenant| limited.until(tenant, "/api/v1/labels", 200));
        limited
    }

    fn set(&self, options: &[&str]) {
        let updated = self.admin.json(&[&["tenant", "update", "a"], options].concat());
        assert_eq!(updated["changed"], true, "{updated}");
    }

    fn get(&self, tenant: usize, path: &str) -> Reply {
        let authorization = format!("Bearer {}", self.tokens[tenant]);
        let url = format!("http://{}{path}", self.varve.http);
        request("GET", &url, &[("authorization", &authorization)], None).unwrap()
    }

    /// Repeats a request until it gets this status: the router learns a change within a second.
    fn until(&self, tenant: usize, path: &str, status: u16) {
        let begun = Instant::now();
        while self.get(tenant, path).status != status {
            assert!(begun.elapsed() < Duration::from_secs(10), "{path} does not get {status}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Pushes `samples` samples, each with a time of its own.
    fn push(&self, tenant: usize, samples: u64) -> Reply {
        self.push_of("api", tenant, samples)
    }

    fn push_of(&self, service: &str, tenant: usize, samples: u64) -> Reply {
        let times = (0..samples).map(|n| now_ns() - n * 1_000_000).collect();
        let body = Request::new(service).seen(stack(&["leaf", "main"]), times).bytes();
        let authorization = format!("Bearer {}", self.tokens[tenant]);
        let headers = [("content-type", "application/x-protobuf"), ("authorization", &*authorization)];
        let url = format!("http://{}/v1development/profiles", self.varve.otlp);
        request("POST", &url, &headers, Some(&body)).unwrap()
    }

    /// Pushes until a push is refused. Returns the refusal.
    fn push_until_refused(&self, tenant: usize) -> Reply {
        let begun = Instant::now();
        loop {
            let reply = self.push(tenant, 500);
            if reply.status != 200 {
                return reply.refused_by_otlp_with(&[429]);
            }
            assert!(begun.elapsed() < Duration::from_secs(10), "no push is refused");
        }
    }
}

#[test]
fn pushes_over_the_rate_get_429_until_the_rate_allows_them_again() {
    let limited = Limited::start();
    assert_eq!(limited.push(A, 1000).status, 200);
    for (option, limit, text) in
        [("--samples-per-second", "50", "50 samples a second"), ("--bytes-per-second", "1KiB", "1024 bytes a second")]
    {
        limited.set(&[option, limit]);
        let refused = limited.push_until_refused(A);
        assert!(refused.text().contains(text), "{}", refused.text());
        assert!(refused.header("retry-after").parse::<u64>().unwrap() >= 1);
        // The same over gRPC, where senders retry because of the details.
        let body = Request::new("api").seen(stack(&["leaf", "main"]), vec![now_ns()]).bytes();
        let sending = Sending { token: Some(&limited.tokens[A]), ..Sending::default() };
        let status = export(&limited.varve.grpc, &body, sending).unwrap_err();
        assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
        assert!(retry_delay(status.details()).is_some());
        // Nobody else is limited.
        assert_eq!(limited.push(B, 1000).status, 200);
        assert_eq!(limited.get(A, "/api/v1/labels").status, 200, "queries have limits of their own");
        // 500 samples are paid off after ten seconds.
        let begun = Instant::now();
        while limited.push(A, 1).status != 200 {
            assert!(begun.elapsed() < Duration::from_secs(60), "the rate does not allow a push again");
            std::thread::sleep(Duration::from_millis(100));
        }
        limited.set(&[option, "none"]);
    }
}

#[test]
fn queries_over_the_limit_get_429_and_nobody_else_does() {
    let limited = &Limited::start();
    for tenant in [A, B] {
        assert_eq!(limited.push(tenant, 5000).status, 200);
    }
    limited.set(&["--queries-at-once", "1"]);
    let query = encode(&[("query", "sum by (stack_function) (rate(process_cpu[5m]))"), ("start", "now-1h")]);
    let path = format!("/api/v1/query_range?{query}&{}", encode(&[("end", "now"), ("step", "1")]));
    let refused = AtomicUsize::new(0);
    let is_over = AtomicBool::new(false);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let reply = limited.get(A, &path);
                    if reply.status == 429 {
                        assert!(reply.text().contains("1 queries at one time"), "{}", reply.text());
                        assert_eq!(reply.header("retry-after"), "1");
                        refused.fetch_add(1, Ordering::Relaxed);
                    } else {
                        assert_eq!(reply.status, 200, "{}", reply.text());
                    }
                }
            });
        }
        let mut of_b = 0;
        while (refused.load(Ordering::Relaxed) < 20 || of_b < 20) && begun.elapsed() < Duration::from_secs(30) {
            assert_eq!(limited.get(B, &path).status, 200);
            of_b += 1;
        }
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(refused.load(Ordering::Relaxed) >= 20, "only {refused:?} queries were refused");
    // No refused query has left a share taken.
    limited.until(A, &path, 200);
}

#[test]
fn a_query_that_reads_more_than_its_tenant_may_says_so() {
    let limited = Limited::start();
    for tenant in [A, B] {
        assert_eq!(limited.push(tenant, 5000).status, 200);
    }
    let query = encode(&[("query", "sum(rate(process_cpu[1m]))"), ("start", "now-5m"), ("end", "now"), ("step", "1")]);
    let path = format!("/api/v1/query_range?{query}");
    assert_eq!(limited.get(A, &path).status, 200);
    limited.set(&["--query-cells", "1"]);
    limited.until(A, &path, 422);
    let reply = limited.get(A, &path);
    assert!(reply.text().contains("more than 1 "), "{}", reply.text());
    assert_eq!(limited.get(B, &path).status, 200);
}

#[test]
fn new_series_over_the_limit_are_refused_and_known_ones_are_stored() {
    let limited = Limited::start();
    assert_eq!(limited.push_of("api", A, 1).status, 200);
    limited.set(&["--series", "1"]);
    let begun = Instant::now();
    let refused = loop {
        // Another name each time, because services from before the limit are known.
        let reply = limited.push_of(&format!("web{}", begun.elapsed().as_micros()), A, 1);
        if reply.status != 200 {
            break reply.refused_by_otlp_with(&[429]);
        }
        assert!(begun.elapsed() < Duration::from_secs(10), "no push is refused");
    };
    assert!(refused.text().contains("at most 1 are allowed: label \"service_name\""), "{}", refused.text());
    assert!(refused.header("retry-after").parse::<u64>().unwrap() >= 1);
    assert_eq!(limited.push_of("api", A, 1).status, 200);
    assert_eq!(limited.push_of("web", B, 1).status, 200);
    limited.set(&["--series", "none"]);
    while limited.push_of("web", A, 1).status != 200 {
        assert!(begun.elapsed() < Duration::from_secs(20), "the limit does not end");
    }
}
