//! Tests that everything acknowledged is on disk. A child process runs a node. The tests kill the child, or run it
//! under strace, which lists syncs or makes them fail.
//!
//! With the feature `planted-faults` and `VARVE_PLANTED=skip-sync`, the tests under strace must fail. This shows that
//! these tests detect a missing sync.

use std::io::{BufRead as _, BufReader, Write as _};
use std::num::NonZeroU16;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use proto::placement::FIRST_DATA_SHARD;

use crate::support::{self, append, batch, open, times_of};

/// Environment variable that gives the child its data directory.
const DATA_DIR: &str = "VARVE_TEST_DATA_DIR";
const FIRST_SERIAL: &str = "VARVE_TEST_FIRST_SERIAL";

/// Writes one line to stdout in one write, so that strace shows the whole line.
fn say(line: &str) {
    std::io::stdout().write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// Runs in the child: appends samples one by one, and prints each acknowledged serial number. Finally prints the node's
/// error.
#[tokio::test]
#[ignore = "run by the other tests, in a process of its own"]
async fn child_appends_until_the_node_fails() {
    let Some(data_dir) = std::env::var_os(DATA_DIR) else { return };
    let opened = open(Path::new(&data_dir)).await;
    say("ready");
    for serial in 0..300 {
        match append(&opened.node, &batch(Some(serial as u128), [serial])).await {
            Ok(_) => say(&format!("acked {serial}")),
            Err(status) => {
                say(&format!("refused {serial}: {status}"));
                let failed = tokio::time::timeout(Duration::from_secs(5), opened.node.failed()).await;
                say(&format!("failed: {}", failed.map_or_else(|_| "never".to_owned(), |error| error.to_string())));
                let again = append(&opened.node, &batch(None, [1000])).await.unwrap_err();
                say(&format!("append again: {:?}", again.code()));
                let read = support::times(&opened.node).await.unwrap_err();
                say(&format!("read again: {:?}", read.code()));
                return;
            }
        }
    }
    say("done");
}

/// Runs the child under strace. Returns the lines that strace and the child printed, in the order of time.
fn trace(data_dir: &Path, arguments: &[&str]) -> Option<Vec<String>> {
    if Command::new("strace").arg("-V").stdout(Stdio::null()).stderr(Stdio::null()).status().is_err() {
        eprintln!("SKIPPED durability: strace is not installed (apt-get install strace): no sync was made to fail");
        return None;
    }
    let output: PathBuf = data_dir.with_extension("strace");
    let mut command = Command::new("strace");
    command
        .args(["-f", "-s", "300", "-e", "trace=write,fsync,fdatasync,/^mkdir", "-y", "-o"])
        .arg(&output)
        .args(arguments);
    command.arg(std::env::current_exe().unwrap());
    command.args([
        "--exact",
        "durability::child_appends_until_the_node_fails",
        "--ignored",
        "--nocapture",
        "--test-threads=1",
    ]);
    let child = command.env(DATA_DIR, data_dir).stdout(Stdio::null()).output().unwrap();
    let lines = std::fs::read_to_string(&output).unwrap();
    assert!(lines.contains("ready"), "the child did not get ready: {}", String::from_utf8_lossy(&child.stderr));
    std::fs::remove_file(output).unwrap();
    Some(lines.lines().map(str::to_owned).collect())
}

/// Returns a line that the child printed, without strace's text around it.
fn said(line: &str) -> Option<&str> {
    let (_, text) = line.split_once("write(1<")?.1.split_once(">, \"")?;
    Some(text.split("\\n").next().unwrap_or(text))
}

/// Returns the line with the end of the call in a line; `None` if the call failed. If another thread makes a call
/// meanwhile, strace splits the call into two lines. Each line begins with the number of its thread.
fn end_of_success(lines: &[String], at: usize) -> Option<usize> {
    let thread_of = |line: &String| line.split_whitespace().next().map(str::to_owned);
    let line = &lines[at];
    let end = if line.ends_with("<unfinished ...>") {
        (at + 1..lines.len()).find(|later| thread_of(&lines[*later]) == thread_of(line))?
    } else {
        at
    };
    lines[end].ends_with("= 0").then_some(end)
}

fn acked(lines: &[String]) -> Vec<i64> {
    lines.iter().filter_map(|line| said(line)?.strip_prefix("acked ")?.parse().ok()).collect()
}

#[tokio::test]
async fn after_a_failed_sync_nothing_is_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    let data_dir = folder.path().join("data");
    // Opening a node syncs some 40 times. From the 100th sync on, every sync fails.
    let Some(lines) = trace(&data_dir, &["-e", "inject=fsync,fdatasync:error=EIO:when=100+"]) else { return };
    let Some(failed_at) = lines.iter().position(|line| line.contains("(INJECTED)")) else {
        panic!("{} syncs in all, and none was made to fail: {:?}", syncs(&lines), said_last(&lines))
    };
    let (before, after) = lines.split_at(failed_at);
    let acknowledged = acked(before);
    assert!(!acknowledged.is_empty(), "no append before the failure");
    assert_eq!(acked(after), [] as [i64; 0], "acknowledged after the failure");
    let after: Vec<_> = after.iter().filter_map(|line| said(line)).collect();
    let said = |start: &str| after.iter().find(|line| line.starts_with(start)).copied().unwrap_or_default();
    assert!(said("refused").contains("could not be synced"), "{after:?}");
    assert!(said("failed").contains("check the disk"), "{after:?}");
    assert_eq!(said("append again"), "append again: Unavailable");
    assert_eq!(said("read again"), "read again: Unavailable");
    // The disk works again. Every acknowledged sample is there once. The sample of the refused append may be there,
    // too.
    let opened = open(&data_dir).await;
    let count = acknowledged.len() as i64;
    let times = opened.times().await;
    assert!(
        times == times_of(0..count) || times == times_of(0..count + 1),
        "{count} acknowledged, {} there",
        times.len()
    );
    opened.node.shutdown().await;
}

#[tokio::test]
async fn a_failed_sync_is_not_tried_again() {
    let folder = tempfile::tempdir().unwrap();
    // Only one sync fails: a second attempt would wrongly succeed.
    let arguments = ["-e", "inject=fsync,fdatasync:error=EIO:when=100"];
    let Some(lines) = trace(&folder.path().join("data"), &arguments) else { return };
    let failed_at = lines.iter().position(|line| line.contains("(INJECTED)")).expect("no sync was made to fail");
    assert_eq!(acked(&lines[failed_at..]), [] as [i64; 0]);
    assert!(!acked(&lines[..failed_at]).is_empty());
}

#[tokio::test]
async fn every_acknowledgement_comes_after_a_sync() {
    let folder = tempfile::tempdir().unwrap();
    let Some(lines) = trace(&folder.path().join("data"), &[]) else { return };
    let acknowledged = acked(&lines);
    assert_eq!(acknowledged, (0..300).collect::<Vec<_>>());
    let mut synced = false;
    for line in &lines {
        // strace ends the line of a successful call with "= 0", also if calls of other threads split it into two lines.
        synced |= line.contains("sync") && line.ends_with("= 0");
        if said(line).is_some_and(|text| text.starts_with("acked")) {
            assert!(synced, "acknowledged without a sync: {line}");
            synced = false;
        }
    }
}

#[tokio::test]
async fn new_folders_are_synced_before_the_first_acknowledgement() {
    let folder = tempfile::tempdir().unwrap();
    let data_dir = folder.path().join("data");
    let Some(lines) = trace(&data_dir, &[]) else { return };
    let first = lines.iter().position(|line| said(line).is_some_and(|text| text.starts_with("acked"))).unwrap();
    let before = &lines[..first];
    let shard = data_dir.join("shard-0001");
    for folder in [data_dir.join("raft"), shard.join("state-1"), shard, data_dir.clone()] {
        let made = format!("\"{}\"", folder.display());
        let made_at = |at: usize| {
            let line = &before[at];
            (line.contains("mkdir") && line.contains(&made)).then(|| end_of_success(before, at))?
        };
        let made = (0..before.len()).rev().find_map(made_at);
        let made = made.unwrap_or_else(|| panic!("{} was not made", folder.display()));
        let synced = format!("<{}>", folder.parent().unwrap().display());
        let is_synced = before[made..].iter().any(|line| line.contains("fsync(") && line.contains(&synced));
        assert!(is_synced, "that {} is there was not synced", folder.display());
    }
}

/// Number of shards of the node that is killed.
const SHARDS: u16 = 3;

/// Returns the shard that gets the sample with a serial number.
fn shard_of(serial: i64) -> u32 {
    FIRST_DATA_SHARD + (serial % i64::from(SHARDS)) as u32
}

/// Runs in the child: appends samples from 16 tasks until the child is killed, and prints the acknowledged serial
/// numbers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by the other tests, in a process of its own"]
async fn child_appends_until_it_is_killed() {
    let Some(data_dir) = std::env::var_os(DATA_DIR) else { return };
    let mut config = support::config(Path::new(&data_dir));
    config.flush_interval = Duration::from_millis(200);
    config.shards = NonZeroU16::new(SHARDS);
    let start = Instant::now();
    let opened = support::open_with(config).await;
    opened.node.ready().await;
    say(&format!("ready after {:?}", start.elapsed()));
    let next = Arc::new(AtomicI64::new(std::env::var(FIRST_SERIAL).unwrap().parse().unwrap()));
    let tasks: Vec<tokio::task::JoinHandle<()>> = (0..16)
        .map(|_| {
            let node = Arc::clone(&opened.node);
            let next = Arc::clone(&next);
            tokio::spawn(async move {
                loop {
                    let serial = next.fetch_add(1, Ordering::Relaxed);
                    support::answer_of(&node, shard_of(serial), &batch(Some(serial as u128), [serial])).await.unwrap();
                    say(&format!("acked {serial}"));
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test]
async fn a_killed_node_has_every_acknowledged_sample_once() {
    let folder = tempfile::tempdir().unwrap();
    let data_dir = folder.path().join("data");
    let mut acknowledged = Vec::new();
    let mut first = 0;
    for round in 0_i64..10 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "durability::child_appends_until_it_is_killed", "--ignored", "--nocapture"])
            .env(DATA_DIR, &data_dir)
            .env(FIRST_SERIAL, first.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let acked = |line: &String| line.strip_prefix("acked ").and_then(|serial| serial.parse::<i64>().ok());
        // The child is killed after a different number of appends in each round.
        acknowledged.extend(lines.by_ref().filter_map(|line| acked(&line)).take(100 + 37 * round as usize));
        child.kill().unwrap();
        child.wait().unwrap();
        acknowledged.extend(lines.filter_map(|line| acked(&line)));
        first = acknowledged.iter().max().unwrap() + 100;
    }
    let opened = open(&data_dir).await;
    for shard in (0..i64::from(SHARDS)).map(shard_of) {
        let times = support::times_in(&opened.node, shard).await.unwrap();
        let distinct: std::collections::BTreeSet<_> = times.iter().copied().collect();
        assert_eq!(distinct.len(), times.len(), "a sample counts twice in shard {shard}");
        let of_shard = times_of(acknowledged.iter().copied().filter(|&serial| shard_of(serial) == shard));
        let lost: Vec<_> = of_shard.iter().filter(|time| !distinct.contains(time)).collect();
        assert!(lost.is_empty(), "acknowledged and not in shard {shard}: {lost:?}");
        println!("10 kills, shard {shard}: {} acknowledged, {} there", of_shard.len(), times.len());
    }
    opened.node.shutdown().await;
}

fn syncs(lines: &[String]) -> usize {
    lines.iter().filter(|line| line.contains("sync") && line.ends_with("= 0")).count()
}

fn said_last(lines: &[String]) -> Option<&str> {
    lines.iter().rev().find_map(|line| said(line))
}
