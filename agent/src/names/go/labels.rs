//! Offsets by which BPF finds the labels of a Go program's goroutines.
//!
//! The runtime's structures differ between versions of Go. The offsets here are from the DWARF of programs of each
//! version. Programs of other versions have no labels. The pointer to the goroutine that a thread runs is in the
//! thread's local storage, directly below the address that the thread's base register holds. Go's linker puts it there.
//! A C linker puts it there, too, if nothing else in the program uses thread-local storage.

use std::fs::File;

use ebpf::GoLabels;
use host_files::elf::GoLayout;

use super::FileReader;
use super::reader::READ_BYTES_MAX;

/// First bytes of `.go.buildinfo`.
const MAGIC: &[u8] = b"\xff Go buildinf:";
/// Offset of the flags in `.go.buildinfo`.
const FLAGS: usize = 15;
/// Flag that is set if the version is in the section itself, as it is since Go 1.18.
const IS_INLINE: u8 = 2;
/// Offset of the version in `.go.buildinfo`.
const VERSION: usize = 32;
const VERSION_BYTES_MAX: usize = 64;
/// Size of the thread-local storage if it holds only the pointer to the goroutine, in bytes.
const THREAD_LOCAL_BYTES: u64 = 8;

/// Returns the offsets of the labels of a program; `None` if the program is not a Go program, or if its version of Go
/// is not known.
pub(crate) fn of(file: &File) -> Option<GoLabels> {
    let layout = GoLayout::read(file).ok()??;
    if !cfg!(target_arch = "x86_64") || ![0, THREAD_LOCAL_BYTES].contains(&layout.thread_local_bytes) {
        return None;
    }
    of_minor(minor(file, &layout)?)
}

fn of_minor(minor: u32) -> Option<GoLabels> {
    let (current, labels) = match minor {
        18..=20 => (192, 360),
        21 | 22 => (192, 344),
        23 | 24 => (192, 352),
        25 => (184, 344),
        26 => (184, 352),
        _ => return None,
    };
    Some(GoLabels { current, labels, are_map: minor < 24 })
}

/// Returns the minor version of Go that built the program.
fn minor(file: &File, layout: &GoLayout) -> Option<u32> {
    let mut reader = FileReader::new(file, READ_BYTES_MAX);
    let info = reader.bytes(layout.build_info?.offset, VERSION + VERSION_BYTES_MAX).ok()?;
    let flags = info.strip_prefix(MAGIC).and(info.get(FLAGS))?;
    if flags & IS_INLINE == 0 {
        return None;
    }
    // The length takes one byte, because versions are short.
    let (&length, text) = info.get(VERSION..)?.split_first()?;
    let text = std::str::from_utf8(text.get(..usize::from(length))?).ok()?;
    minor_of(text)
}

/// Returns the minor version of Go in a text such as go1.26.8, go1.27rc1, devel go1.28-4f1ac9d and go1.26.8 X:nodwarf5.
fn minor_of(version: &str) -> Option<u32> {
    let (_, rest) = version.split_once("go1.")?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    rest[..digits].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::go::test_program;

    #[test]
    fn the_version_is_read_in_all_its_forms() {
        for (text, minor) in [
            ("go1.26.8", Some(26)),
            ("go1.27rc1", Some(27)),
            ("devel go1.28-4f1ac9d Mon", Some(28)),
            ("go1.26.8 X:nodwarf5", Some(26)),
            ("go2.1", None),
            ("go1.", None),
            ("", None),
        ] {
            assert_eq!(minor_of(text), minor, "{text}");
        }
    }

    #[test]
    fn the_labels_of_every_kind_of_program_are_found() {
        let test = "the_labels_of_every_kind_of_program_are_found";
        let folder = tempfile::tempdir().unwrap();
        for (name, program) in test_program::build_all(test, folder.path()) {
            let file = File::open(program).unwrap();
            let layout = GoLayout::read(&file).unwrap().unwrap();
            let minor = minor(&file, &layout).unwrap_or_else(|| panic!("{name} has no version"));
            assert_eq!(of(&file), of_minor(minor), "{name}");
        }
        let this = File::open(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(of(&this), None);
    }
}
