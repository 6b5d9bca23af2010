//! Files that change while calls are made.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use transport::Dialer;

use crate::certificates::{Ca, Leaf, Pem, Process, credentials, router};
use crate::service::{call, call_once, channel, serve};

/// Longer than the interval at which files are checked.
const NOTICED: Duration = Duration::from_millis(1500);

/// Calls that are made all the time: half of them over one connection, and half over new connections.
struct Load {
    stop: Arc<AtomicBool>,
    calls: Arc<AtomicU64>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
}

impl Load {
    fn start(dialer: &Dialer, address: &str) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let calls = Arc::new(AtomicU64::new(0));
        let task = |lasting: bool| {
            let (dialer, address) = (dialer.clone(), address.to_owned());
            let (stop, calls) = (Arc::clone(&stop), Arc::clone(&calls));
            tokio::spawn(async move {
                let kept = channel(&dialer, &address);
                while !stop.load(Ordering::Relaxed) {
                    let called = match lasting {
                        true => call(&kept, "role").await,
                        false => call_once(&dialer, &address, "role").await,
                    };
                    assert_eq!(called.expect("no call is dropped"), "router a");
                    calls.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            })
        };
        let tasks = [true, true, false, false].map(task).into();
        Self { stop, calls, tasks }
    }

    /// Ends the calls, none of which may have failed. Returns their number.
    async fn finish(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            task.await.unwrap();
        }
        self.calls.load(Ordering::Relaxed)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_and_cas_rotate_under_load_without_a_dropped_call() {
    let old = Ca::new("old");
    let new = Ca::new("new");
    let both = format!("{}{}", old.pem, new.pem);
    let node = Process::new(&Leaf::default().of(&old));
    let client = Process::new(&router().of(&old));
    let address = serve(Some(node.load().unwrap())).await;
    let dialer = Dialer::tls(client.load().unwrap());
    let stale = Dialer::tls(credentials(&router().of(&old)));
    let load = Load::start(&dialer, &address);
    // First, new certificates of the same CA. Then the new CA is accepted everywhere, before it is used anywhere.
    for _ in 0..3 {
        node.write(&Leaf::default().of(&old));
        client.write(&router().of(&old));
        tokio::time::sleep(NOTICED).await;
    }
    let trusting = |pem: Pem| Pem { ca: both.clone(), ..pem };
    node.write(&trusting(Leaf::default().of(&old)));
    client.write(&trusting(router().of(&old)));
    tokio::time::sleep(NOTICED).await;
    assert_eq!(call_once(&stale, &address, "role").await.unwrap(), "router a", "the old CA is still accepted");
    node.write(&trusting(Leaf::default().of(&new)));
    client.write(&trusting(router().of(&new)));
    tokio::time::sleep(NOTICED).await;
    node.write(&Leaf::default().of(&new));
    client.write(&router().of(&new));
    tokio::time::sleep(NOTICED).await;
    let calls = load.finish().await;
    assert!(calls > 500, "only {calls} calls were made");
    call_once(&stale, &address, "role").await.expect_err("the old CA is not accepted any more");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_files_are_ignored_until_they_are_valid_again() {
    let ca = Ca::new("ca");
    let pem = Leaf::default().of(&ca);
    let node = Process::new(&pem);
    let address = serve(Some(node.load().unwrap())).await;
    let dialer = Dialer::tls(credentials(&router().of(&ca)));
    let load = Load::start(&dialer, &address);
    let of_node_2 = Leaf { uris: &["varve://node/2"], ..Leaf::default() }.of(&ca);
    for bad in [
        Pem { cert: pem.cert[..pem.cert.len() / 2].to_owned(), ..pem.clone() },
        Pem { key: of_node_2.key.clone(), ..pem.clone() },
        of_node_2,
        Leaf::default().of(&Ca::new("another")).with_ca(&ca),
    ] {
        node.write(&bad);
        tokio::time::sleep(NOTICED).await;
    }
    std::fs::remove_file(node.files().cert).unwrap();
    tokio::time::sleep(NOTICED).await;
    let other = Ca::new("other");
    node.write(&Pem { ca: format!("{}{}", ca.pem, other.pem), ..Leaf::default().of(&ca) });
    tokio::time::sleep(NOTICED).await;
    let mut of_other = router().of(&other);
    of_other.ca = ca.pem.clone() + &other.pem;
    assert_eq!(call_once(&Dialer::tls(credentials(&of_other)), &address, "role").await.unwrap(), "router a");
    assert!(load.finish().await > 500);
}
