//! PCRE2, a library that compiles regular expressions. PHP, Git and many others use it.
//!
//! No functions of a language run in it. BPF only steps from a compiled expression to the library, which called it.

use std::fs::File;
use std::ops::Range;

use ebpf::{Runtime, RuntimeKind};
use host_files::elf;

/// Functions of the library that call compiled expressions, for characters of 8, 16 and 32 bits.
const CALLERS: [&str; 3] = ["pcre2_jit_match_8", "pcre2_jit_match_16", "pcre2_jit_match_32"];
/// The function of a PHP that contains PCRE2.
const CALLER_IN_PHP: &str = "php_pcre2_jit_match";

/// Returns the function that calls compiled expressions in a PHP that contains PCRE2; empty in others. PHP gives each
/// expression a stack of its own, so PCRE2's other way to call one is not used.
pub(super) fn caller_in_php(file: &File) -> Range<u64> {
    elf::exported(file, [CALLER_IN_PHP]).ok().and_then(|[caller]| caller).unwrap_or_default()
}

/// Returns the description of the library; `None` if the file is another one.
pub(crate) fn recognise(file: &File) -> Option<Runtime> {
    let callers = elf::exported(file, CALLERS).ok()?;
    callers.iter().any(Option::is_some).then_some(Runtime {
        kind: RuntimeKind::Pcre,
        loops: [0..0, 0..0],
        threads: [None, None],
        callers: 0..u64::MAX,
        extra: 0,
        offsets: [0; _],
    })
}
