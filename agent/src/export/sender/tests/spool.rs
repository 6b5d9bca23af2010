//! The sender with a spool, while the endpoint is unreachable and when it is reachable again.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use testkit::sink::{ANY_PORT, Sink};
use tokio::net::TcpListener;
use tonic::Status as GrpcStatus;

use super::{Exporter, request};
use crate::config::{Compression, SpoolConfig};
use crate::export::sender::{SHUTDOWN_TIMEOUT, SLOW};

const MIB: u64 = 1 << 20;

fn start(address: std::net::SocketAddr, dir: &Path, bytes_max: u64) -> Exporter {
    let spool = Some(SpoolConfig { dir: dir.to_owned(), bytes_max });
    Exporter::with_spool(address, Compression::Gzip, None, spool)
}

/// Returns a port that was free a moment ago, on which nothing listens.
async fn closed_port() -> std::net::SocketAddr {
    TcpListener::bind(ANY_PORT).await.unwrap().local_addr().unwrap()
}

fn files(dir: &Path) -> usize {
    let names = std::fs::read_dir(dir).into_iter().flatten().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_str().unwrap().ends_with(".export")).count()
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < Duration::from_secs(30), "waited in vain until {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

fn numbered(numbers: impl Iterator<Item = u64>) -> Vec<String> {
    numbers.map(|number| number.to_string()).collect()
}

#[tokio::test]
async fn spooled_requests_are_sent_once_by_the_next_run() {
    let folder = TempDir::new().unwrap();
    let address = closed_port().await;
    let first = start(address, folder.path(), MIB);
    for number in 1..=20 {
        first.queue.push(request(&number.to_string(), number));
        if number % 7 == 0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
    until("all are on disk", || files(folder.path()) == 20).await;
    // The first run ends without a shutdown, as with kill -9.
    first.running.abort();
    let _aborted = first.running.await;
    assert_eq!(first.status.snapshot().dropped, 0);

    let server = Sink::default();
    server.listen(address).await;
    let second = start(address, folder.path(), MIB);
    let (status, metrics) = second.finish().await;
    assert_eq!(server.texts(), numbered(1..=20));
    assert_eq!((status.snapshot().dropped, files(folder.path())), (0, 0));
    assert!(metrics.contains("exports_total{outcome=\"ok\"} 20"), "{metrics}");
}

#[tokio::test]
async fn new_requests_do_not_wait_for_spooled_ones() {
    let folder = TempDir::new().unwrap();
    let address = closed_port().await;
    let exporter = start(address, folder.path(), MIB);
    for number in 1..=200 {
        exporter.queue.push(request(&number.to_string(), 1));
    }
    until("all are on disk", || files(folder.path()) == 200).await;
    let server = Sink::default();
    server.listen(address).await;
    until("the first arrived", || !server.arrivals().is_empty()).await;
    for number in 201..=205 {
        exporter.queue.push(request(&number.to_string(), 1));
    }
    let (status, _) = exporter.finish().await;
    let arrived: Vec<u64> = server.texts().iter().map(|text| text.parse().unwrap()).collect();
    let (old, new): (Vec<_>, Vec<_>) = arrived.iter().partition(|number| **number <= 200);
    assert_eq!((old, new), ((1..=200).collect(), (201..=205).collect()), "each once, and in order");
    let place = |wanted| arrived.iter().position(|number| *number == wanted).unwrap();
    assert!(place(205) - place(201) <= 2 * 4 + 1, "new requests wait: {arrived:?}");
    assert_eq!((status.snapshot().dropped, files(folder.path())), (0, 0));
}

#[tokio::test]
async fn a_request_whose_response_was_lost_keeps_its_key_over_a_restart() {
    let folder = TempDir::new().unwrap();
    let server = Sink::responding(vec![Err(GrpcStatus::unavailable("arrived all the same"))]);
    let address = server.listen(ANY_PORT).await;
    let first = start(address, folder.path(), MIB);
    first.queue.push(request("x", 3));
    until("it is on disk", || files(folder.path()) == 1).await;
    first.running.abort();
    let _aborted = first.running.await;
    start(address, folder.path(), MIB).finish().await;
    let arrivals = server.arrivals();
    let keys: Vec<_> = arrivals.iter().map(|it| it.metadata.get("idempotency-key").unwrap().clone()).collect();
    assert!(keys.len() == 2 && keys[0] == keys[1], "{keys:?}");
    assert_eq!(arrivals[0].request, arrivals[1].request);
}

#[tokio::test]
async fn requests_to_a_slow_endpoint_are_spooled() {
    // The endpoint accepts connections and never responds.
    let folder = TempDir::new().unwrap();
    let listener = TcpListener::bind(ANY_PORT).await.unwrap();
    let exporter = start(listener.local_addr().unwrap(), folder.path(), MIB);
    for number in 1..=3 {
        exporter.queue.push(request(&number.to_string(), 1));
    }
    let started = Instant::now();
    until("all are on disk", || files(folder.path()) == 3).await;
    assert!(started.elapsed() < SLOW + Duration::from_secs(2), "{:?}", started.elapsed());
    exporter.queue.push(request("4", 1));
    until("the next is, too", || files(folder.path()) == 4).await;
    assert!(started.elapsed() < SLOW + Duration::from_secs(4), "{:?}", started.elapsed());
    assert_eq!(exporter.status.snapshot().dropped, 0);
}

#[tokio::test]
async fn a_shutdown_spools_unsent_requests_at_once() {
    let folder = TempDir::new().unwrap();
    let address = closed_port().await;
    let exporter = start(address, folder.path(), MIB);
    exporter.queue.push(request("1", 3));
    until("it is on disk", || files(folder.path()) == 1).await;
    let started = Instant::now();
    exporter.shutdown.cancel();
    exporter.queue.push(request("2", 4));
    let (status, _) = exporter.finish().await;
    assert!(started.elapsed() < Duration::from_secs(2), "{:?}", started.elapsed());
    assert_eq!((status.snapshot().dropped, files(folder.path())), (0, 2));
}

#[tokio::test]
async fn a_shutdown_spools_the_request_being_sent_and_the_queue() {
    let folder = TempDir::new().unwrap();
    let listener = TcpListener::bind(ANY_PORT).await.unwrap();
    let exporter = start(listener.local_addr().unwrap(), folder.path(), MIB);
    for number in 1..=3 {
        exporter.queue.push(request(&number.to_string(), 1));
    }
    let (_connection, _) = listener.accept().await.unwrap();
    let started = Instant::now();
    exporter.shutdown.cancel();
    let (status, _) = exporter.finish().await;
    assert!(started.elapsed() < SHUTDOWN_TIMEOUT + Duration::from_secs(1), "{:?}", started.elapsed());
    assert_eq!((status.snapshot().dropped, files(folder.path())), (0, 3));
}

#[tokio::test]
async fn beyond_the_limit_the_oldest_requests_are_dropped_and_counted() {
    let folder = TempDir::new().unwrap();
    let address = closed_port().await;
    // Ten files of a block each.
    let exporter = start(address, folder.path(), 10 * 4096);
    for number in 1..=25 {
        exporter.queue.push(request(&number.to_string(), 1));
        tokio::task::yield_now().await;
    }
    until("15 are dropped", || exporter.status.snapshot().dropped == 15).await;
    assert_eq!(files(folder.path()), 10);
    let server = Sink::default();
    server.listen(address).await;
    until("the rest arrived", || server.texts().len() == 10).await;
    let (status, metrics) = exporter.finish().await;
    assert!(metrics.contains("samples_dropped_total{reason=\"spool_full\"} 15"), "{metrics}");
    assert_eq!((status.snapshot().dropped, server.texts().len()), (15, 10));
    // The request that was being tried may have been kept instead of the next.
    assert_eq!(server.texts()[1..], numbered(17..=25));
}

#[tokio::test]
async fn requests_wait_in_memory_if_the_spool_cannot_be_written() {
    let folder = TempDir::new().unwrap();
    let address = closed_port().await;
    let dir = folder.path().join("spool");
    let exporter = start(address, &dir, MIB);
    exporter.queue.push(request("1", 1));
    until("it is on disk", || files(&dir) == 1).await;
    // As on a full disk: nothing can be written, and existing files can be read.
    let moved = folder.path().join("moved");
    std::fs::rename(&dir, &moved).unwrap();
    for number in 2..=5 {
        exporter.queue.push(request(&number.to_string(), 1));
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    std::fs::rename(&moved, &dir).unwrap();
    let server = Sink::default();
    server.listen(address).await;
    until("all arrived", || server.texts().len() == 5).await;
    let (status, metrics) = exporter.finish().await;
    let mut arrived = server.texts();
    arrived.sort();
    assert_eq!(arrived, numbered(1..=5));
    assert_eq!((status.snapshot().dropped, files(&dir)), (0, 0));
    assert!(!metrics.contains("spool_errors_total 0"), "{metrics}");
}

#[tokio::test]
async fn a_request_that_is_never_accepted_does_not_block_the_others() {
    let folder = TempDir::new().unwrap();
    let server = Sink::never_accepting("poison");
    let exporter = start(server.listen(ANY_PORT).await, folder.path(), MIB);
    exporter.queue.push(request("poison", 1));
    until("it is on disk", || files(folder.path()) == 1).await;
    for number in 1..=4 {
        exporter.queue.push(request(&number.to_string(), 1));
    }
    let others = || server.texts().into_iter().filter(|text| text != "poison").collect::<Vec<_>>();
    until("the others arrived", || others().len() == 4).await;
    until("it waits alone", || files(folder.path()) == 1).await;
    assert_eq!(exporter.status.snapshot().dropped, 0);
}

#[tokio::test]
async fn a_refused_request_is_removed_from_disk_and_counted_once() {
    let folder = TempDir::new().unwrap();
    let answers = vec![Err(GrpcStatus::unavailable("later")), Err(GrpcStatus::invalid_argument("no"))];
    let server = Sink::responding(answers);
    let exporter = start(server.listen(ANY_PORT).await, folder.path(), MIB);
    exporter.queue.push(request("x", 3));
    let (status, metrics) = exporter.finish().await;
    assert_eq!((status.snapshot().dropped, files(folder.path())), (0, 1), "a closed queue ends the sender");
    assert!(metrics.contains("outcome=\"retried\"} 1"), "{metrics}");
    let (status, _) = start(server.listen(ANY_PORT).await, folder.path(), MIB).finish().await;
    assert_eq!((status.snapshot().dropped, files(folder.path())), (3, 0));
    assert_eq!(server.arrivals().len(), 2);
}

const CHILD: &str = "VARVE_TEST_SPOOL_CHILD";

/// Child process that exports to a closed port until it is killed.
#[tokio::test]
async fn child_that_exports_to_a_closed_port() {
    let Some(dir) = std::env::var_os(CHILD) else { return };
    let exporter = start(closed_port().await, Path::new(&dir), 16 * MIB);
    for number in 1..=100_000_u64 {
        exporter.queue.push(request(&number.to_string(), 1));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn kill_9_neither_loses_nor_duplicates_spooled_requests() {
    let folder = TempDir::new().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "export::sender::tests::spool::child_that_exports_to_a_closed_port"])
        .env(CHILD, folder.path())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    until("much is on disk", || 500 <= files(folder.path())).await;
    let spooled = files(folder.path());
    child.kill().unwrap();
    child.wait().unwrap();
    let server = Sink::default();
    let (status, _) = start(server.listen(ANY_PORT).await, folder.path(), 16 * MIB).finish().await;
    let arrived = server.texts();
    assert!(spooled <= arrived.len());
    assert_eq!(arrived, numbered(1..=arrived.len() as u64));
    assert_eq!((status.snapshot().dropped, files(folder.path())), (0, 0));
}
