//! Layout of Ruby's structures on x86-64, in bytes, by version.

use ebpf::RUNTIME_OFFSETS;

/// Offsets that differ between versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Major and minor version.
    pub(crate) version: (u32, u32),
    walk: Walk,
    pub(super) body: BodyLayout,
    /// ELF virtual address of the table of symbols; `None` if it is not known.
    pub(super) symbols: Option<u64>,
    /// True if a short string has its length in its flags.
    pub(super) is_length_in_flags: bool,
}

/// Offsets by which BPF walks control frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Walk {
    frame_bytes: u16,
    /// In a control frame: where compiled code goes on.
    jit_return: Option<u16>,
    /// In an execution context: its thread; and in a thread: what `pthread_self` returns in it. `None` if each thread
    /// has its own context.
    thread: Option<(u16, u16)>,
}

/// Offsets in the body of an iseq.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BodyLayout {
    /// True if the first line is an object of Ruby, which is an odd number.
    pub(super) is_line_object: bool,
    /// Entries of the line table, and their number.
    pub(super) entries: u64,
    pub(super) entry_count: u64,
    pub(super) entry_bytes: u64,
    /// Index of the entries by position. `None` if each entry begins with its position.
    pub(super) index: Option<u64>,
    /// The iseq around it.
    pub(super) parent: u64,
}

impl Layout {
    /// True if all threads have one pointer to the context of the thread that runs.
    pub(super) fn has_global_context(&self) -> bool {
        self.walk.thread.is_some()
    }

    /// Returns the layout with another address of the table of symbols.
    pub(super) fn with_symbols(self, symbols: Option<u64>) -> Self {
        Self { symbols, ..self }
    }

    /// Returns the offsets for BPF, in the order of `enum ruby_offset` in `ebpf/bpf/runtimes/ruby.h`.
    pub(crate) fn to_bpf(self) -> [u16; RUNTIME_OFFSETS] {
        let Walk { frame_bytes, jit_return, thread } = self.walk;
        let (thread, thread_id) = thread.unwrap_or_default();
        let mut offsets = [0; RUNTIME_OFFSETS];
        offsets[..4].copy_from_slice(&[frame_bytes, jit_return.unwrap_or_default(), thread, thread_id]);
        offsets
    }
}

/// Returns the layout of a version; `None` if it is not known.
pub(crate) fn layout_of(major: u32, minor: u32) -> Option<Layout> {
    let v25 = Layout {
        version: (major, minor),
        walk: Walk { frame_bytes: 48, jit_return: None, thread: Some((72, 72)) },
        body: BodyLayout {
            is_line_object: true,
            entries: 112,
            entry_count: 200,
            entry_bytes: 12,
            index: None,
            parent: 136,
        },
        symbols: None,
        is_length_in_flags: true,
    };
    let v26 = Layout {
        walk: Walk { frame_bytes: 56, jit_return: None, thread: Some((56, 72)) },
        body: BodyLayout { entries: 120, entry_count: 136, entry_bytes: 8, index: Some(144), parent: 168, ..v25.body },
        ..v25
    };
    let v30 = Layout { walk: Walk { thread: None, ..v26.walk }, ..v26 };
    let v31 = Layout {
        walk: Walk { frame_bytes: 64, jit_return: Some(56), thread: None },
        body: BodyLayout { entry_bytes: 12, ..v30.body },
        ..v30
    };
    let body = BodyLayout {
        is_line_object: false,
        entries: 112,
        entry_count: 128,
        entry_bytes: 12,
        index: Some(136),
        parent: 160,
    };
    let v32 = Layout { body, is_length_in_flags: false, ..v31 };
    let v33 = Layout { walk: Walk { frame_bytes: 56, jit_return: Some(48), thread: None }, ..v32 };
    match (major, minor) {
        (2, 5) => Some(v25),
        (2, 6 | 7) => Some(v26),
        (3, 0) => Some(v30),
        (3, 1) => Some(v31),
        (3, 2) => Some(v32),
        (3, 3 | 4) => Some(v33),
        _ => None,
    }
}
