//! A recording: the frames and samples of one program.

use std::collections::HashSet;

use serde_json::{Value, json};

/// Name of the marker frame at which the agent stopped unwinding. The callers of this frame are unknown.
const UNWINDING_FAILED: &str = "[unwinding failed]";
/// Largest number of frames outside of the kernel in a truncated stack. A stack with the marker frame and more frames
/// counts as complete.
const CUT_FRAMES_MAX: usize = 4;
/// Number of phases of a recording. A phase consists of every tenth tick of a CPU. The sampling frequency of a
/// recording is the fleet's frequency times this number.
pub(crate) const PHASES: u64 = 10;

/// A mapped file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Mapping {
    pub(crate) file: String,
    /// Build ID in hexadecimal; empty if the file has none.
    pub(crate) build_id: String,
}

/// A function as the agent named it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) file: String,
    pub(crate) start_line: i64,
}

/// A location in a stack: an address, or named lines with the innermost first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Location {
    pub(crate) mapping: u32,
    pub(crate) address: u64,
    /// Value of the attribute `profile.frame.type`.
    pub(crate) frame_type: String,
    /// For each call at the location, innermost first: the index of its function, and its line number. Empty if the
    /// location is an address.
    pub(crate) lines: Vec<(u32, i64)>,
}

impl Location {
    /// Returns true if the location is in the kernel.
    pub(crate) fn is_kernel(&self) -> bool {
        self.frame_type == "kernel"
    }
}

/// A node of the tree of stacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Node {
    /// Index of the parent, which is less than the node's index. The root is node 0 and its own parent.
    pub(crate) parent: u32,
    pub(crate) location: u32,
}

/// Tree of all stacks, and the tables to which its nodes refer. The outermost frames are at the root. A stack is
/// identified by the index of the node of its leaf.
#[derive(Clone, Debug)]
pub(crate) struct Frames {
    pub(crate) mappings: Vec<Mapping>,
    pub(crate) functions: Vec<Function>,
    pub(crate) locations: Vec<Location>,
    /// Nodes of the tree, parents first.
    pub(crate) nodes: Vec<Node>,
}

impl Frames {
    /// Returns the locations of a stack, leaf first.
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

    /// Returns true if the agent stopped unwinding after a few frames of the program (see [`CUT_FRAMES_MAX`]). A stack
    /// counts as complete if unwinding stopped later, in the outermost frames of a runtime.
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
    /// Value of the attribute `process.executable.name`.
    pub(crate) executable: String,
}

/// One sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    /// Time since the first sample of the recording, in nanoseconds.
    pub(crate) time_ns: u64,
    pub(crate) cpu: u32,
    pub(crate) thread: u32,
    pub(crate) stack: u32,
}

/// All samples of one program.
#[derive(Clone, Debug)]
pub(crate) struct Recording {
    pub(crate) program: String,
    /// Sampling period of the agent on each CPU, in nanoseconds.
    pub(crate) period_ns: u64,
    pub(crate) frames: Frames,
    pub(crate) threads: Vec<Thread>,
    /// Samples, ordered by time.
    pub(crate) samples: Vec<Sample>,
}

/// Describes the size of a recording, and the share of samples that have complete stacks.
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
