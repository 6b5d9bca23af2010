//! How a caller's registers follow from those of the function that it called, as BPF reads it. 16 bytes, in the machine's order:
//!
//! ```text
//! | kind u8 | base u8 | saved u8 | 0 u8 | fp i16 | bx i16 | ra i16 | after i16 | cfa i32 |
//! ```
//!
//! The CFA (canonical frame address) is the stack pointer of the caller once the call has returned. `base` is the register that it
//! is found by, in DWARF's numbering of the machine; `saved` says by two bits each where the frame pointer and the callee-saved
//! register BX are, `fp` and `bx` at how many words from there; `ra` the same of the return address, from the CFA, and 0 where it is in
//! the link register. ebpf/bpf/unwind.h reads this.

/// A rule's bytes.
pub(crate) const RULE_BYTES: usize = 16;

/// A register by DWARF's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Register(pub(crate) u8);

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Nothing describes the code: a frame pointer may still lead on.
    Unknown,
    /// What describes it is broken, or says what cannot be followed: the walk ends, and not at a root.
    Invalid,
    /// The outermost function: it has no caller.
    Root,
    /// Called by Go's functions when the stack of their goroutine has to grow, and goes on on the runtime's: the goroutine has saved where it was.
    Grows,
    /// Code that a signal handler returns to: the registers are in the frame that the kernel made.
    Signal,
    Frame {
        cfa: Cfa,
        fp: Saved,
        bx: Saved,
        return_address: i16,
    },
}

/// Where the caller's stack begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cfa {
    /// A register, and this many bytes more.
    Register { base: Register, offset: i32 },
    /// What is in memory at a register and this many bytes more, and `after` bytes more than that.
    Memory { base: Register, offset: i32, after: i16 },
    /// An entry of a procedure linkage table, by GCC's expression for all of them: a word above the stack pointer, and one more from
    /// byte `from` of each 16 on, where the entry has pushed its number.
    LinkageTable { from: u8 },
}

/// Where a register of the caller is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Saved {
    /// Where it was.
    InPlace,
    /// In memory, so many words from the CFA.
    AtCfa(i16),
    /// In memory, so many words from the frame pointer.
    AtFp(i16),
    /// It cannot be known.
    Lost,
}

impl Rule {
    /// As BPF reads it.
    pub(crate) fn to_bytes(self) -> [u8; RULE_BYTES] {
        let (kind, base, saved, offsets, cfa) = match self {
            Self::Unknown => (0, 0, 0, [0; 4], 0),
            Self::Root => (1, 0, 0, [0; 4], 0),
            Self::Signal => (2, 0, 0, [0; 4], 0),
            Self::Invalid => (6, 0, 0, [0; 4], 0),
            Self::Grows => (7, 0, 0, [0; 4], 0),
            Self::Frame { cfa, fp, bx, return_address } => {
                let (kind, base, after, cfa) = match cfa {
                    Cfa::Register { base, offset } => (3, base.0, 0, offset),
                    Cfa::Memory { base, offset, after } => (4, base.0, after, offset),
                    Cfa::LinkageTable { from } => (5, 0, 0, i32::from(from)),
                };
                let ((fp_place, fp), (bx_place, bx)) = (fp.parts(), bx.parts());
                (kind, base, fp_place | bx_place << 2, [fp, bx, return_address, after], cfa)
            }
        };
        let mut bytes = [0; RULE_BYTES];
        bytes[..3].copy_from_slice(&[kind, base, saved]);
        for (to, from) in bytes[4..12].chunks_exact_mut(2).zip(offsets) {
            to.copy_from_slice(&from.to_ne_bytes());
        }
        bytes[12..].copy_from_slice(&cfa.to_ne_bytes());
        bytes
    }
}

impl Saved {
    fn parts(self) -> (u8, i16) {
        match self {
            Self::InPlace => (0, 0),
            Self::AtCfa(words) => (1, words),
            Self::AtFp(words) => (2, words),
            Self::Lost => (3, 0),
        }
    }
}
