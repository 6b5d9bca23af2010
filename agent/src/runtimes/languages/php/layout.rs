//! Layout of PHP's structures, in bytes, by the version. The offsets are those of the sources of each version, for
//! x86-64 and release builds.

use ebpf::RUNTIME_OFFSETS;

/// A version of PHP, such as 8.4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version {
    pub(crate) major: u32,
    pub(crate) minor: u32,
}

/// Offsets in the structures of one version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    pub(crate) version: Version,
    /// In the globals of a thread: the frame that runs.
    pub(crate) current: u16,
    /// Size of the function object of a function that is written in C.
    pub(crate) internal_bytes: u16,
    /// In a function object: the number of its instructions, and their address.
    pub(crate) count: u16,
    pub(crate) instructions: u16,
    /// In a function object: the name of its file, followed by the numbers of its first and its last line.
    pub(crate) file: u16,
    /// In the function object of a function that is written in C: the address of its code.
    pub(crate) handler: u16,
    pub(crate) generator: GeneratorLayout,
    /// True if PHP can compile code in memory.
    pub(crate) has_compiler: bool,
}

/// The frame of the interpreter's loop, in one file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LoopFrame {
    /// Offset in the loop's code of an instruction at which the frame is complete.
    pub(crate) body: u16,
    /// Size with the return address; 0 if it is not known.
    pub(crate) bytes: u16,
}

/// Offsets in the object of a generator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GeneratorLayout {
    /// The frame of the generator's function.
    pub(crate) frame: u16,
    /// The generator to which this one delegates.
    pub(crate) parent: u16,
    /// The frame without a function that stands for the generator while another one runs for it.
    pub(crate) placeholder: u16,
}

impl Layout {
    /// Returns the offsets for BPF, in the order of `enum php_offset` in `ebpf/bpf/runtimes/php.h`.
    pub(crate) fn to_bpf(self, loop_frame: LoopFrame) -> [u16; RUNTIME_OFFSETS] {
        let Self { generator, .. } = self;
        let mut offsets = [0; RUNTIME_OFFSETS];
        offsets[..10].copy_from_slice(&[
            self.current,
            self.instructions,
            self.count,
            self.file,
            self.handler,
            generator.frame,
            generator.parent,
            generator.placeholder,
            loop_frame.body,
            loop_frame.bytes,
        ]);
        offsets
    }
}

/// Returns the layout of a version; `None` if it is not known.
pub(crate) fn layout_of(version: Version) -> Option<Layout> {
    let number = match version {
        Version { major: 7, minor: minor @ 3..=4 } => 70 + minor,
        Version { major: 8, minor: minor @ 0..=5 } => 80 + minor,
        _ => return None,
    };
    let (internal_bytes, count, instructions, file, handler) = match number {
        73 => (112, 60, 64, 128, 48),
        74 => (112, 60, 64, 136, 48),
        80 | 81 => (120, 68, 72, 144, 56),
        82 => (136, 80, 88, 152, 72),
        83 => (136, 76, 80, 144, 72),
        _ => (160, 96, 104, 168, 88),
    };
    let (frame, parent, placeholder) = match number {
        73 | 74 => (64, 160, 200),
        80 => (56, 152, 192),
        _ => (56, 152, 184),
    };
    let current = if number == 85 { 512 } else { 488 };
    let generator = GeneratorLayout { frame, parent, placeholder };
    Some(Layout {
        version,
        current,
        internal_bytes,
        count,
        instructions,
        file,
        handler,
        generator,
        has_compiler: 80 <= number,
    })
}
