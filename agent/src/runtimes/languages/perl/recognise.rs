//! Recognises Perl in a file, and describes it to BPF.

use std::fs::File;
use std::ops::Range;

use ebpf::{Libc, Runtime, RuntimeKind, ThreadPointer};
use host_files::elf::{self, ElfImage};

use super::LOOPS;
use super::layout::{Layout, layout_of};

/// Largest length of the list of options with which Perl was built, in bytes.
const OPTIONS_BYTES_MAX: u64 = 4096;

/// Returns the description of the interpreter in a file, and its layout; `None` if the file has no interpreter of a
/// known version and build.
pub(crate) fn recognise(file: &File) -> Option<(Runtime, Layout)> {
    let names = [LOOPS[0], LOOPS[1], "PL_thr_key", "PL_revision", "PL_version", "PL_bincompat_options"];
    let [main, around, key, revision, version, options] = elf::exported(file, names).ok()?;
    let main = main.filter(|main| !main.is_empty())?;
    let image = ElfImage::read(file).ok()?;
    let read = |range: Range<u64>| elf::loaded_bytes(file, &image, range);
    let byte = |symbol: Range<u64>| read(symbol.start..symbol.start.checked_add(1)?)?.first().copied();
    let options = options.filter(|options| options.end - options.start <= OPTIONS_BYTES_MAX)?;
    if byte(revision?)? != 5 || !is_known_build(&read(options)?) {
        return None;
    }
    let layout = layout_of(byte(version?)?)?;
    let runtime = Runtime {
        kind: RuntimeKind::Perl,
        loops: [main, around.unwrap_or_default()],
        threads: [Some(ThreadPointer::Key(key?.start, Libc::Glibc)), None],
        callers: 0..0,
        extra: 0,
        offsets: layout.to_bpf(),
    };
    Some((runtime, layout))
}

/// True if the structures of a build with these options have the known layout.
fn is_known_build(options: &[u8]) -> bool {
    let has = |name: &str| options.split(|byte| *byte == b' ' || *byte == 0).any(|option| option == name.as_bytes());
    has("USE_ITHREADS") && has("MULTIPLICITY") && !has("DEBUG_LEAKING_SCALARS")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builds_without_threads_or_with_larger_scalars_are_refused() {
        assert!(is_known_build(b" HAS_TIMES MULTIPLICITY USE_64_BIT_ALL USE_ITHREADS USE_PERLIO\0"));
        assert!(!is_known_build(b" HAS_TIMES USE_64_BIT_ALL USE_PERLIO\0"));
        assert!(!is_known_build(b" MULTIPLICITY NO_USE_ITHREADS\0"));
        assert!(!is_known_build(b" DEBUG_LEAKING_SCALARS MULTIPLICITY USE_ITHREADS\0"));
        assert!(!is_known_build(b""));
    }
}
