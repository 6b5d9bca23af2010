//! PCRE2, a library that compiles regular expressions. PHP, Git and many others use it.
//!
//! No functions of a language run in it. BPF only steps from a compiled expression to the library, which called it.

use std::fs::File;

use ebpf::{Runtime, RuntimeKind};
use host_files::elf;

/// Functions that call compiled expressions, for characters of 8, 16 and 32 bits.
const CALLERS: [&str; 3] = ["pcre2_jit_match_8", "pcre2_jit_match_16", "pcre2_jit_match_32"];

/// Returns the description of the library; `None` if the file is another one.
pub(crate) fn recognise(file: &File) -> Option<Runtime> {
    let callers = elf::exported(file, CALLERS).ok()?;
    callers.iter().any(Option::is_some).then_some(Runtime {
        kind: RuntimeKind::Pcre,
        loops: [0..0, 0..0],
        threads: [None, None],
        extra: 0,
        offsets: [0; _],
    })
}
