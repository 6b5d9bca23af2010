//! R7: damage at rest, in files of one node. It must be detected, never be served, and be repaired unaided.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::json;
use tests::program::{is_running, signal};

use crate::members;
use crate::run::{RECOVERY_MAX, Run};

/// A kind of file, and the function that finds one in a data directory. A table is in the state of a shard, `pointer`
/// names the present state of a shard, and `manifest` and `list` are RocksDB's names for two of its files.
type Find = fn(&Path) -> Option<PathBuf>;

const FILES: [(&str, Find); 5] = [
    ("table", |data| largest(states(data), "sst")),
    ("log", |data| largest(vec![data.join("raft")], "log")),
    ("pointer", |data| Some(states(data).first()?.parent()?.join("CURRENT"))),
    ("manifest", |data| {
        // An older one may be left.
        let state = states(data).into_iter().next()?;
        Some(state.join(fs::read_to_string(state.join("CURRENT")).ok()?.trim_end()))
    }),
    ("list", |data| Some(states(data).first()?.join("CURRENT"))),
];

/// Damages a file.
type Damage = fn(&mut Run, &Path);

const WAYS: [(&str, Damage); 4] = [
    ("flip", |run, path| {
        // The second half of a small table may hold no values.
        let at = run.random.below(length(path).div_ceil(2)) as u64;
        let file = File::options().read(true).write(true).open(path).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        byte[0] ^= 1 << run.random.below(8);
        file.write_all_at(&byte, at).unwrap();
    }),
    ("zero", |run, path| {
        let at = run.random.below(length(path).div_ceil(2));
        let bytes = 4096.min(length(path) - at);
        File::options().write(true).open(path).unwrap().write_all_at(&vec![0; bytes], at as u64).unwrap();
    }),
    ("truncate", |run, path| {
        let length = length(path);
        let shorter = length / 2 + run.random.below(length.div_ceil(4));
        File::options().write(true).open(path).unwrap().set_len(shorter as u64 / 2).unwrap();
    }),
    ("delete", |_run, path| fs::remove_file(path).unwrap()),
];

pub(super) fn length(path: &Path) -> usize {
    usize::try_from(fs::metadata(path).unwrap().len()).unwrap()
}

fn in_folder(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(folder).into_iter().flatten().flatten().map(|file| file.path()).collect();
    files.sort();
    files
}

fn is_named(path: &Path, prefix: &str) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix))
}

/// Returns the folders of the states of a node's shards.
pub(super) fn states(data: &Path) -> Vec<PathBuf> {
    let shards = in_folder(data).into_iter().filter(|path| is_named(path, "shard-"));
    shards.flat_map(|shard| in_folder(&shard)).filter(|path| is_named(path, "state-")).collect()
}

pub(super) fn largest(folders: Vec<PathBuf>, extension: &str) -> Option<PathBuf> {
    let files = folders.iter().flat_map(|folder| in_folder(folder));
    files.filter(|file| file.extension().is_some_and(|is| is == extension)).max_by_key(|file| length(file))
}

pub(super) fn inject(run: &mut Run, faults: usize) {
    let mut repairs_s = Vec::new();
    let first = run.random.below(3);
    let mut fault = 0;
    // After a violation, a second replica might be damaged before the first one is repaired.
    while fault < faults && run.violations.is_empty() {
        run.sleep_below(Duration::from_secs(2));
        // Each node is damaged in turn, so that no replica is damaged twice within a short time.
        let node = (first + fault) % run.cluster.shape().nodes + 1;
        let (kind, find) = FILES[fault % FILES.len()];
        let (way, damage) = WAYS[(fault / FILES.len() + fault) % WAYS.len()];
        stop(run, node);
        let data = run.cluster.data_dir(node);
        let Some(path) = find(&data) else {
            run.violations.push(format!("node {node} has no file of the kind {kind}"));
            break;
        };
        damage(run, &path);
        run.await_failover("the stop of a node");
        let repaired = repairs(run, node);
        run.cluster.start(node);
        let began = Instant::now();
        if kind == "table" && !verify(run, node, &path, repaired) {
            continue;
        }
        fault += 1;
        let what = format!("{way} of {kind} {}", path.strip_prefix(&data).unwrap().display());
        run.await_ready(node);
        while repairs(run, node) <= repaired || is_damaged(run, node) {
            if began.elapsed() > RECOVERY_MAX {
                run.violations.push(format!("node {node} is not repaired after {RECOVERY_MAX:?}: {what}"));
                break;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        if repairs(run, node) > repaired {
            run.faults += 1;
            run.add(kind, 1);
            run.add(way, 1);
            repairs_s.push(began.elapsed().as_secs_f64());
        }
        run.await_ready(node);
        run.await_service("the repair of damage");
    }
    repairs_s.sort_by(f64::total_cmp);
    let rounded = |seconds: Option<&f64>| json!(seconds.map(|seconds| (seconds * 1e3).round() / 1e3));
    run.figures.insert("repair_p50_s".to_owned(), rounded(repairs_s.get(repairs_s.len() / 2)));
    run.figures.insert("repair_max_s".to_owned(), rounded(repairs_s.last()));
}

/// Stops a node in order, so that its states are flushed to tables.
fn stop(run: &Run, node: usize) {
    let pid = run.cluster.pid(node);
    signal(pid, libc::SIGTERM);
    while is_running(pid) {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the number of repairs that a node has logged.
pub(super) fn repairs(run: &Run, node: usize) -> usize {
    run.cluster.log(node).lines().filter(|line| line.contains("repaired: ")).count()
}

/// Returns true if a node that responds names damage in one of its replicas.
pub(super) fn is_damaged(run: &Run, node: usize) -> bool {
    members::damages(&run.cluster, node).is_ok_and(|damages| !damages.is_empty())
}

/// Verifies the shard that has a file, until the node has found damage, or has logged more than `repaired` repairs.
/// Returns false if a compaction has removed the file before.
pub(super) fn verify(run: &mut Run, node: usize, path: &Path, repaired: usize) -> bool {
    let name = path.ancestors().find(|above| is_named(above, "shard-")).unwrap().file_name().unwrap();
    let shard = name.to_string_lossy().trim_start_matches("shard-").parse().unwrap();
    let began = Instant::now();
    while !is_damaged(run, node) && repairs(run, node) <= repaired {
        // A repair removes the file, too.
        if !path.exists() && !is_damaged(run, node) && repairs(run, node) <= repaired {
            return false;
        }
        if began.elapsed() > RECOVERY_MAX {
            run.violations.push(format!("node {node} does not find the damage of {}", path.display()));
            return true;
        }
        // The replica may be closed or opened at present.
        let _report = members::verify(&run.cluster, node, shard).is_ok();
        std::thread::sleep(Duration::from_millis(50));
    }
    true
}
