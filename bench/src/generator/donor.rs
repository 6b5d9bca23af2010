//! Complete stacks, which replace stacks that the agent could not unwind.
//!
//! If a program has no frame pointers, its recording has leaves, times and threads, but few callers. A donor is another
//! source of stacks. The n-th most frequent truncated stack is replaced by the n-th most frequent complete stack of the
//! donor. Times, frequencies and the number of distinct stacks stay as recorded.
//!
//! Donors are the payloads in `shared/data`, which may exist beside a checkout and are never committed. Otherwise the
//! donor is another committed recording with complete stacks, whose files and build IDs are renamed.

use std::collections::HashMap;

use xxhash_rust::xxh3::xxh3_64;

use super::random::Random;
use crate::corpus::{Frames, Recording};

/// Complete stacks that may replace truncated stacks.
#[derive(Debug)]
pub(crate) struct Donor {
    pub(crate) name: String,
    pub(crate) frames: Frames,
    /// Distinct stacks, the most frequent first.
    pub(crate) stacks: Vec<u32>,
}

impl Donor {
    /// Returns the complete stacks of a recording. Files are renamed for `program`, so that `program` and the recorded
    /// program have no stack in common.
    pub(crate) fn of_recording(recording: &Recording, program: &str) -> Self {
        let stacks = by_frequency(recording.samples.iter().map(|sample| (sample.stack, 1)));
        let mut frames = recording.frames.clone();
        let stacks = stacks.into_iter().filter(|&stack| !frames.is_cut(stack)).collect();
        for mapping in frames.mappings.iter_mut().filter(|mapping| !mapping.build_id.is_empty()) {
            let mut random = Random::of([xxh3_64(program.as_bytes()), xxh3_64(mapping.build_id.as_bytes())]);
            mapping.build_id = format!("{:016x}{:016x}", random.next_u64(), random.next_u64());
            mapping.file = format!("{program}/{}", mapping.file.rsplit('/').next().unwrap_or_default());
        }
        Self { name: recording.program.clone(), frames, stacks }
    }
}

/// Adds up the values of equal stacks. Returns the distinct stacks, the largest sum first. Stacks with equal sums stay
/// in the order in which they first occurred.
pub(crate) fn by_frequency(samples: impl Iterator<Item = (u32, i64)>) -> Vec<u32> {
    let mut sums: HashMap<u32, (i64, usize)> = HashMap::new();
    for (number, (stack, value)) in samples.enumerate() {
        sums.entry(stack).or_insert((0, number)).0 += value;
    }
    let mut stacks: Vec<(u32, (i64, usize))> = sums.into_iter().collect();
    stacks.sort_by_key(|&(_, (sum, first))| (-sum, first));
    stacks.into_iter().map(|(stack, _)| stack).collect()
}
