//! Descriptions of language runtimes. `bpf/runtimes.h` and `bpf/thread_pointer.h` define their layout.

use std::ops::Range;

/// Size of a description, in bytes.
pub const RUNTIME_BYTES: usize = 160;
/// Number of parts of an interpreter's loop.
pub const LOOP_PARTS: usize = 2;
/// Number of offsets of a runtime.
pub const RUNTIME_OFFSETS: usize = 24;
/// Number of places of the description of a thread.
pub const THREAD_POINTERS: usize = 2;
/// Number of slots for runtimes. Slot 0 stands for no runtime.
pub const RUNTIMES_MAX: u16 = 256;
/// Number of descriptions that a slot can have before their ids repeat.
pub const RUNTIME_GENERATIONS: u16 = 64;

/// A language runtime whose frames BPF walks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RuntimeKind {
    /// CPython 3.6 or later.
    Python,
    /// Perl 5.26 or later.
    Perl,
    /// Ruby (MRI) 2.5 or later.
    Ruby,
    /// PHP 7.3 or later.
    Php,
    /// V8, the engine of Node.js.
    V8,
    /// HotSpot of Java 8 or later.
    HotSpot,
    /// PCRE2, which compiles regular expressions. It runs no functions of a language.
    Pcre,
}

/// Place in which a program keeps a pointer of each thread. Addresses are ELF virtual addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ThreadPointer {
    /// All threads have the same pointer, at this address.
    Global(u64),
    /// The pointer is at this offset from the thread's base.
    Fixed(i64),
    /// The word at this address is the offset from the thread's base.
    Slot(u64),
    /// The pointer is in the thread's block of a library.
    Dynamic {
        /// Address of two words: the number of the library, and an offset in the block.
        pair: u64,
        /// Number that is added to the offset.
        displacement: i64,
        /// The C library, which has the table of the blocks.
        libc: Libc,
    },
    /// The int at this address is a key of `pthread_getspecific` of this C library.
    Key(u64, Libc),
}

/// C library of a program, which decides the layout of a thread's control block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Libc {
    /// The GNU C library.
    Glibc,
    /// musl 1.2.2 or later.
    Musl,
}

/// A runtime, in the file that has its code.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Runtime {
    /// Kind of the runtime, which decides the meaning of `offsets`.
    pub kind: RuntimeKind,
    /// ELF virtual addresses of the interpreter's loop. A part that is not used is empty.
    pub loops: [Range<u64>; LOOP_PARTS],
    /// Places of the runtime's description of a thread, in the order in which they are tried.
    pub threads: [Option<ThreadPointer>; THREAD_POINTERS],
    /// ELF virtual addresses of the code that calls code compiled in memory. Empty if there is none.
    pub callers: Range<u64>,
    /// Another ELF virtual address in the file. The header of the kind gives its meaning.
    pub extra: u64,
    /// Offsets in the runtime's structures, in bytes.
    pub offsets: [u16; RUNTIME_OFFSETS],
}

impl Runtime {
    /// Encodes the description for the map of runtimes. `id` is the slot, plus [`RUNTIMES_MAX`] times a generation.
    #[must_use]
    pub fn to_bytes(&self, id: u16) -> [u8; RUNTIME_BYTES] {
        let kind = match self.kind {
            RuntimeKind::Python => 1_u64,
            RuntimeKind::Perl => 2,
            RuntimeKind::Ruby => 3,
            RuntimeKind::Php => 4,
            RuntimeKind::V8 => 5,
            RuntimeKind::HotSpot => 6,
            RuntimeKind::Pcre => 7,
        };
        let [a, b] = &self.loops;
        let head = [u64::from(id) << 32 | kind, a.start, a.end, b.start, b.end];
        let threads = self.threads.iter().flat_map(|thread| thread.map_or([0; 3], ThreadPointer::to_words));
        let mut bytes = [0; RUNTIME_BYTES];
        let tail = [self.callers.start, self.callers.end, self.extra];
        for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(head.into_iter().chain(threads).chain(tail)) {
            *to = word.to_le_bytes();
        }
        for (to, offset) in bytes[112..].as_chunks_mut::<2>().0.iter_mut().zip(self.offsets) {
            *to = offset.to_le_bytes();
        }
        bytes
    }
}

impl ThreadPointer {
    /// Returns the place in a program with this C library.
    #[must_use]
    pub fn with_libc(self, libc: Libc) -> Self {
        match self {
            Self::Dynamic { pair, displacement, .. } => Self::Dynamic { pair, displacement, libc },
            Self::Key(address, _) => Self::Key(address, libc),
            Self::Global(_) | Self::Fixed(_) | Self::Slot(_) => self,
        }
    }

    /// Encodes the place in the layout of `struct thread_pointer` in C.
    #[must_use]
    pub fn to_words(self) -> [u64; 3] {
        let is_musl = |libc: Libc| u64::from(libc == Libc::Musl) << 32;
        let (how, address, offset) = match self {
            Self::Global(address) => (1, address, 0),
            Self::Fixed(offset) => (2, 0, offset),
            Self::Slot(address) => (3, address, 0),
            Self::Dynamic { pair, displacement, libc } => (4 | is_musl(libc), pair, displacement),
            Self::Key(address, libc) => (5 | is_musl(libc), address, 0),
        };
        [address, offset.cast_unsigned(), how]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUNTIMES_H: &str = include_str!("../bpf/runtimes.h");
    const THREAD_POINTER_H: &str = include_str!("../bpf/thread_pointer.h");

    #[test]
    fn layouts_and_numbers_are_those_of_the_c_headers() {
        assert!(RUNTIMES_H.contains(&format!("_Static_assert(sizeof(struct runtime) == {RUNTIME_BYTES}, \"\");")));
        for (name, value) in [
            ("LOOP_PARTS", LOOP_PARTS),
            ("THREAD_POINTERS", THREAD_POINTERS),
            ("RUNTIME_OFFSETS", RUNTIME_OFFSETS),
            ("RUNTIMES_MAX", RUNTIMES_MAX.into()),
        ] {
            assert!(RUNTIMES_H.contains(&format!("#define {name} {value}\n")), "{name}");
        }
        let kinds = [("PYTHON", 1), ("PERL", 2), ("RUBY", 3), ("PHP", 4), ("V8", 5), ("HOTSPOT", 6), ("PCRE", 7)];
        for (name, value) in kinds {
            assert!(RUNTIMES_H.contains(&format!("RUNTIME_{name} = {value},")), "{name}");
        }
        for (name, value) in [("GLOBAL", 1), ("FIXED", 2), ("SLOT", 3), ("DYNAMIC", 4), ("KEY", 5)] {
            assert!(THREAD_POINTER_H.contains(&format!("THREAD_{name} = {value},")), "{name}");
        }
        let runtime = Runtime {
            kind: RuntimeKind::Python,
            loops: [1..2, 3..4],
            threads: [Some(ThreadPointer::Fixed(-8)), None],
            callers: 5..6,
            extra: 7,
            offsets: std::array::from_fn(|index| index as u16),
        };
        let bytes = runtime.to_bytes(3 * RUNTIMES_MAX + 7);
        let word = |at: usize| i64::from_le_bytes(std::array::from_fn(|index| bytes[at + index]));
        let head = [0, 8, 16, 24, 32].map(word);
        assert_eq!(head, [(3 * i64::from(RUNTIMES_MAX) + 7) << 32 | 1, 1, 2, 3, 4]);
        assert_eq!([40, 48, 56, 64, 72, 80].map(word), [0, -8, 2, 0, 0, 0]);
        assert_eq!([88, 96, 104].map(word), [5, 6, 7]);
        assert_eq!((bytes[114], bytes[158]), (1, 23));
        let key = ThreadPointer::Key(9, Libc::Glibc);
        assert_eq!((key.to_words(), key.with_libc(Libc::Musl).to_words()), ([9, 0, 5], [9, 0, 1 << 32 | 5]));
        // The id has 14 bits in a frame.
        assert_eq!(u32::from(RUNTIMES_MAX) * u32::from(RUNTIME_GENERATIONS), 1 << 14);
    }
}
