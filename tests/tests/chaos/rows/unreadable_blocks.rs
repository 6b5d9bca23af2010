//! R11: a block of a table becomes unreadable while its node runs. It must be found, never be served, and be repaired.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::members;
use crate::rows::damaged_files::{is_damaged, largest, length, repairs, states, verify};
use crate::run::{RECOVERY_MAX, Run};

/// Size of a piece that is overwritten. It exceeds a block of a table, so it damages one or two of them.
const PIECE: usize = 20 << 10;

pub(super) fn inject(run: &mut Run, faults: usize) {
    let mut repairs_s = Vec::new();
    let first = run.random.below(3);
    let first_shard = run.random.below(run.cluster.shape().shards);
    let mut fault = 0;
    while fault < faults {
        run.sleep_below(Duration::from_secs(2));
        // Each replica of each node is damaged in turn: a replica that is damaged again and again waits longer each
        // time before it is repaired.
        let (nodes, shards) = (run.cluster.shape().nodes, run.cluster.shape().shards);
        let node = (first + fault) % nodes + 1;
        let shard = u32::try_from((first_shard + fault / nodes) % shards).unwrap() + 1;
        // A flush writes the newest samples to tables.
        drop(members::compact(&run.cluster, node, shard));
        let data = run.cluster.data_dir(node);
        let folder = data.join(format!("shard-{shard:04}"));
        let of_shard = states(&data).into_iter().filter(|state| state.starts_with(&folder));
        let Some(path) = largest(of_shard.collect(), "sst") else {
            run.violations.push(format!("shard {shard} of node {node} has no table"));
            return;
        };
        let repaired = repairs(run, node);
        let began = Instant::now();
        overwrite(run, &path);
        if !verify(run, node, &path, repaired) {
            continue;
        }
        fault += 1;
        while repairs(run, node) <= repaired || is_damaged(run, node) {
            if began.elapsed() > RECOVERY_MAX {
                let path = path.strip_prefix(&data).unwrap().display();
                run.violations.push(format!("node {node} does not repair {path} within {RECOVERY_MAX:?}"));
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        run.faults += 1;
        repairs_s.push(began.elapsed().as_secs_f64());
        run.await_ready(node);
        run.await_service("the repair of a block");
    }
    repairs_s.sort_by(f64::total_cmp);
    let rounded = |seconds: Option<&f64>| json!(seconds.map(|seconds| (seconds * 1e3).round() / 1e3));
    run.figures.insert("repair_p50_s".to_owned(), rounded(repairs_s.get(repairs_s.len() / 2)));
    run.figures.insert("repair_max_s".to_owned(), rounded(repairs_s.last()));
}

/// Overwrites a random piece of the first half of a table, which has its values.
fn overwrite(run: &mut Run, path: &Path) {
    let length = length(path);
    let bytes = PIECE.min(length / 2);
    let at = run.random.below((length / 2).saturating_sub(bytes) + 1);
    let noise: Vec<u8> = (0..bytes).map(|_| u8::try_from(run.random.below(256)).unwrap()).collect();
    File::options().write(true).open(path).unwrap().write_all_at(&noise, at as u64).unwrap();
}
