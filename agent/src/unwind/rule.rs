//! The rule by which the registers of a caller follow from those of the function that it called.
//!
//! BPF (ebpf/bpf/step.h) reads a rule as 16 bytes, in the machine's byte order:
//!
//! ```text
//! | kind u8 | base u8 | saved u8 | 0 u8 | fp i16 | bx i16 | ra i16 | after i16 | cfa i32 |
//! ```
//!
//! - The CFA (canonical frame address) is the stack pointer of the caller after the call has returned. `base` is the
//!   DWARF number of the register that it is computed from.
//! - `saved` has two bits for the location of the caller's frame pointer, and two for that of the callee-saved register
//!   BX. If a location is in memory, `fp` or `bx` is its offset, in words, from the CFA or from the frame pointer.
//! - `ra` is the offset of the return address from the CFA, in words; 0 if it is in the link register.

/// Number of bytes from the entry point on that count as the outermost function if nothing describes them. The function
/// `_start` of musl and of Go is shorter.
pub(crate) const ENTRY_BYTES: u64 = 64;
/// Size of an encoded rule, in bytes.
pub(crate) const RULE_BYTES: usize = 16;

/// A register, by its DWARF number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Register(pub(crate) u8);

/// A rule that leads from a frame to its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Nothing describes the code. A frame pointer may still lead to the caller.
    Unknown,
    /// The description of the code is malformed or not supported. The walk ends here, and the stack counts as
    /// incomplete.
    Invalid,
    /// The outermost function: it has no caller.
    Root,
    /// The function that makes the stack of a goroutine larger. It runs on a stack of Go's runtime. The walk continues
    /// at the position that the runtime has saved for the goroutine.
    Grows,
    /// Code that a signal handler returns to. The registers of the interrupted code are in the frame that the kernel
    /// made.
    Signal,
    /// A frame, with the locations of the caller's registers.
    Frame { cfa: Cfa, fp: Saved, bx: Saved, return_address: i16 },
}

/// Computation of the CFA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cfa {
    /// The value of a register plus `offset` bytes.
    Register { base: Register, offset: i32 },
    /// The word in memory at the value of a register plus `offset` bytes. The CFA is that word plus `after` bytes.
    Memory { base: Register, offset: i32, after: i16 },
    /// An entry of a PLT, which has 16 bytes of code. The CFA is one word above the stack pointer. From byte `from` of
    /// the entry on, it is two words above, because the entry has pushed its number. GCC describes all entries so.
    Plt { from: u8 },
}

/// Location of a register of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Saved {
    /// The register itself, which still holds the caller's value.
    InPlace,
    /// In memory, at this offset from the CFA, in words.
    AtCfa(i16),
    /// In memory, at this offset from the frame pointer, in words.
    AtFp(i16),
    /// No known location.
    Lost,
}

impl Rule {
    /// Encodes the rule for BPF.
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
                    Cfa::Plt { from } => (5, 0, 0, i32::from(from)),
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
