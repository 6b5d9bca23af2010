//! A recording: the frames and samples of one program.

use std::collections::HashSet;

use serde_json::{Value, json};

/// Name of the frame at which the agent gave up: what lies below it is not known.
const UNWINDING_FAILED: &str = "[unwinding failed]";
/// Most frames of a truncated stack, the marker included. A stack with more frames counts as unwound.
const CUT_FRAMES_MAX: usize = 4;
/// Recordings at the fleet's frequency that one recording holds: it is sampled this many times as often.
pub(crate) const PHASES: u64 = 10;

/// A mapped file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Mapping {
    pub(crate) file: String,
    /// Hex; empty: there is none.
    pub(crate) build_id: String,
}

/// A function as the agent named it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) file: String,
    pub(crate) start_line: i64,
}

/// A location of a stack: an address, or named lines, innermost first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Location {
    pub(crate) mapping: u32,
    pub(crate) address: u64,
    /// `profile.frame.type`.
    pub(crate) frame_type: String,
    /// Function and line.
    pub(crate) lines: Vec<(u32, i64)>,
}

impl Location {
    /// Returns whether the location is in the kernel.
    pub(crate) fn is_kernel(&self) -> bool {
        self.frame_type == "kernel"
    }
}

/// A place in the tree of stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Node {
    /// Stands before it; the root is node 0 and its own parent.
    pub(crate) parent: u32,
    pub(crate) location: u32,
}

/// The tree of all stacks, outermost frames at its root, and what its nodes refer to. A stack is the number of the
/// node of its leaf.
#[derive(Clone, Debug)]
pub(crate) struct Frames {
    pub(crate) mappings: Vec<Mapping>,
    pub(crate) functions: Vec<Function>,
    pub(crate) locations: Vec<Location>,
    /// Parents first.
    pub(crate) nodes: Vec<Node>,
}

impl Frames {
    /// Locations of a stack, leaf first.
    pub(crate) fn leaf_first(&self, stack: u32) -> impl Iterator<Item = u32> {
        let mut at = stack;
        std::iter::from_fn(move || {
            let node = self.nodes[at as usize];
            (at != 0).then(|| {
                at = node.parent;
                node.location
            })
        })
    }

    /// Returns whether the agent gave up after a few frames of the program. Where it gave up at the far end, behind the
    /// frames of a runtime, the stack is as good as whole.
    pub(crate) fn is_cut(&self, stack: u32) -> bool {
        let locations = || self.leaf_first(stack).map(|location| &self.locations[location as usize]);
        let name = |&(function, _): &(u32, i64)| self.functions[function as usize].name.as_str();
        locations().filter(|location| !location.is_kernel()).count() <= CUT_FRAMES_MAX
            && locations().any(|location| location.lines.first().map(name) == Some(UNWINDING_FAILED))
    }
}

/// A thread of the program.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Thread {
    pub(crate) pid: u32,
    pub(crate) tid: u32,
    pub(crate) name: String,
    /// `process.executable.name`.
    pub(crate) executable: String,
}

/// One sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    /// Since the first sample of the recording.
    pub(crate) time_ns: u64,
    pub(crate) cpu: u32,
    pub(crate) thread: u32,
    pub(crate) stack: u32,
}

/// All samples of one program.
#[derive(Clone, Debug)]
pub(crate) struct Recording {
    pub(crate) program: String,
    /// The agent's, on each CPU.
    pub(crate) period_ns: u64,
    pub(crate) frames: Frames,
    pub(crate) threads: Vec<Thread>,
    /// By time.
    pub(crate) samples: Vec<Sample>,
}

/// Size of a recording, and the part of it that was unwound.
pub(crate) fn describe(recording: &Recording, file_bytes: u64) -> Value {
    let stacks: HashSet<u32> = recording.samples.iter().map(|sample| sample.stack).collect();
    let frames = &recording.frames;
    let failed = recording.samples.iter().filter(|sample| frames.is_cut(sample.stack)).count();
    let depths: usize = stacks.iter().map(|&stack| frames.leaf_first(stack).count()).sum();
    json!({
        "program": recording.program,
        "file_bytes": file_bytes,
        "samples": recording.samples.len(),
        "seconds": recording.samples.last().map_or(0, |sample| sample.time_ns / 1_000_000_000),
        "unique_stacks": stacks.len(),
        "mean_depth": depths as f64 / stacks.len() as f64,
        "nodes": frames.nodes.len() - 1,
        "locations": frames.locations.len(),
        "threads": recording.threads.len(),
        "cut_share": failed as f64 / recording.samples.len() as f64,
    })
}
