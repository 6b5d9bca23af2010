//! Layout of Perl's structures, in bytes, by version. They are those of builds with threads on x86-64.

use ebpf::RUNTIME_OFFSETS;

/// Offsets that differ between versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Minor version: 36 for Perl 5.36.
    pub(crate) minor: u8,
    /// In an interpreter: the statement that runs, and the innermost level of its stack of contexts.
    statement: u16,
    level: u16,
    /// In a level: the index of its innermost context, or of its innermost sub or eval.
    level_context: u16,
    level_type: u16,
    context_bytes: u16,
    /// In the context of a sub: the sub.
    context_cv: u16,
    /// In a context: the index of the next outer sub or eval. `None` if each context must be looked at.
    context_outer: Option<u16>,
    /// True if the name of a package is in the body of its hash. It follows the hash's array in older versions.
    pub(crate) is_name_in_body: bool,
}

impl Layout {
    /// Returns the offsets for BPF, in the order of `enum perl_offset` in `ebpf/bpf/runtimes/perl.h`.
    pub(crate) fn to_bpf(self) -> [u16; RUNTIME_OFFSETS] {
        let mut offsets = [0; RUNTIME_OFFSETS];
        offsets[..7].copy_from_slice(&[
            self.statement,
            self.level,
            self.level_context,
            self.level_type,
            self.context_bytes,
            self.context_cv,
            self.context_outer.unwrap_or_default(),
        ]);
        offsets
    }
}

/// Returns the layout of Perl 5.`minor`; `None` for other versions. Odd numbers are those of development versions.
pub(crate) fn layout_of(minor: u8) -> Option<Layout> {
    let v26 = Layout {
        minor,
        statement: 0xe0,
        level: 0xf0,
        level_context: 0x20,
        level_type: 0x28,
        context_bytes: 0x60,
        context_cv: 0x40,
        context_outer: None,
        is_name_in_body: false,
    };
    let v32 = Layout {
        level_context: 0x28,
        level_type: 0x2c,
        context_bytes: 0x68,
        context_cv: 0x48,
        context_outer: Some(0x38),
        ..v26
    };
    let v34 = Layout { statement: 0xd0, level: 0xe0, ..v32 };
    match minor {
        26 | 28 | 30 => Some(v26),
        32 => Some(v32),
        34 => Some(v34),
        36 | 38 | 40 | 42 => Some(Layout { is_name_in_body: true, ..v34 }),
        _ => None,
    }
}
