//! Parts of a file from which the functions of a symbol table come: from call frame information to DWARF.

/// Part of a file from which the functions of a symbol table come. The order is from the worst source to the best.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Source {
    /// Call frame information: starts of functions, without names.
    CallFrames,
    /// `.dynsym`: only exported functions.
    Dynsym,
    /// `.gnu_debugdata`: all functions, without lines.
    GnuDebugdata,
    /// `.symtab`: all functions, without lines.
    Symtab,
    /// DWARF: functions, lines and inlined calls. ELF symbols add names that are missing in DWARF.
    Dwarf,
}

impl Source {
    pub(crate) const ALL: [Self; 5] = [Self::CallFrames, Self::Dynsym, Self::GnuDebugdata, Self::Symtab, Self::Dwarf];

    /// Stable name of the source in snake case, for APIs.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Self::CallFrames => "call_frames",
            Self::Dynsym => "dynsym",
            Self::GnuDebugdata => "gnu_debugdata",
            Self::Symtab => "symtab",
            Self::Dwarf => "dwarf",
        }
    }

    pub(crate) fn from_code(code: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|source| source.code() == code)
    }

    pub(crate) fn sentence(self) -> &'static str {
        match self {
            Self::CallFrames => "the call frame information of this file, which has no names",
            Self::Dynsym => {
                "the exported symbols of this file, and no others are known: \
                 install its debug package, or run `varve upload` with its debug file"
            }
            Self::GnuDebugdata => "the symbols of this file's .gnu_debugdata",
            Self::Symtab => "the .symtab of this file",
            Self::Dwarf => "the debug information or symbols of this file",
        }
    }
}
