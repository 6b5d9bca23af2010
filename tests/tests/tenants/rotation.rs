//! Test of replacing the token of a running sender: no push is dropped.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};
use std::time::Duration;

use tests::cluster::Cluster;
use tests::http::request;
use tests::payload::otlp::{PERIOD_NS, Request, now_ns, stack};
use tests::report::alone;

const CLIENTS: u64 = 4;
const ROTATIONS: usize = 4;
/// Time within which all routers know a token, as the help of `varve admin token create` says.
const LEARNED: Duration = Duration::from_secs(1);

#[test]
fn replacing_a_token_under_load_drops_no_push() {
    let _alone = alone();
    let cluster = &Cluster::up(3, 4);
    let admin = cluster.administration();
    admin.create_tenant("acme", &[]);
    let (first, first_hash) = admin.create_token("acme", "push", &[]);
    let (read, _) = admin.create_token("acme", "read", &[]);
    std::thread::sleep(LEARNED);
    let token = Arc::new(RwLock::new(first));
    let urls = cluster.routers("otlp_http");
    let stop = AtomicBool::new(false);
    let acknowledged = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let mut clients = Vec::new();
        for client in 0..CLIENTS {
            let (token, urls, stop, acknowledged) = (&token, &urls, &stop, &acknowledged);
            clients.push(scope.spawn(move || {
                for n in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    let service = format!("rotating-{client}");
                    let body = Request::new(&service).seen(stack(&["leaf", "main"]), vec![now_ns()]).bytes();
                    let authorization = format!("Bearer {}", token.read().unwrap());
                    let headers =
                        [("content-type", "application/x-protobuf"), ("authorization", authorization.as_str())];
                    let url = format!("{}/v1development/profiles", urls[n % urls.len()]);
                    let reply = request("POST", &url, &headers, Some(&body)).unwrap();
                    assert_eq!(reply.status, 200, "a push is dropped: {}", reply.text());
                    acknowledged.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(5));
                }
            }));
        }
        let mut old = first_hash;
        for _ in 0..ROTATIONS {
            let before = acknowledged.load(Ordering::Relaxed);
            let (new, hash) = admin.create_token("acme", "push", &[]);
            std::thread::sleep(LEARNED);
            *token.write().unwrap() = new;
            // A request with the old token may still be on its way.
            std::thread::sleep(LEARNED);
            let _revoked = admin.text(&["token", "revoke", &old]);
            std::thread::sleep(LEARNED);
            old = hash;
            if clients.iter().any(|client| client.is_finished()) {
                break;
            }
            assert!(acknowledged.load(Ordering::Relaxed) > before + 20, "the load does not run");
        }
        stop.store(true, Ordering::Relaxed);
    });
    let acknowledged = acknowledged.into_inner();
    let query = "sum(sum_over_time(process_cpu[1h]))";
    let found = cluster.try_query_as(&read, 0, query, now_ns() as f64 / 1e9 + 1.0).unwrap();
    assert_eq!(found, [(BTreeMap::new(), (acknowledged * PERIOD_NS) as f64)], "acknowledged {acknowledged}");
}
