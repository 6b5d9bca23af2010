//! Where a Go program has the labels of its goroutines.
//!
//! The runtime's structures change between versions: offsets are those that debuggers are told (DWARF) of programs of each version, and a
//! version that is not among them has no labels. The goroutine of a thread is found in the thread's local storage, right before where the
//! thread's register points: Go's own linker puts it there, and a C linker does where nothing else has storage of its own.

use std::fs::File;

use ebpf::GoLabels;
use symbol_store::elf::GoLayout;

use super::Window;
use super::window::ASK_BYTES_MAX;

/// What `.go.buildinfo` begins with.
const MAGIC: &[u8] = b"\xff Go buildinf:";
/// Its flags, of which this says that the version stands in it, and where it does: since Go 1.18.
const FLAGS: usize = 15;
const IS_INLINE: u8 = 2;
const VERSION: usize = 32;
const VERSION_BYTES_MAX: usize = 64;
/// The goroutine is all that a thread has.
const THREAD_LOCAL_BYTES: u64 = 8;

/// Where the labels are; `None`: not known here.
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

/// The second number of the version of Go that made the program.
fn minor(file: &File, layout: &GoLayout) -> Option<u32> {
    let mut window = Window::new(file, ASK_BYTES_MAX);
    let info = window.bytes(layout.build_info?.offset, VERSION + VERSION_BYTES_MAX).ok()?;
    let flags = info.strip_prefix(MAGIC).and(info.get(FLAGS))?;
    if flags & IS_INLINE == 0 {
        return None;
    }
    // One byte of length suffices.
    let (&length, text) = info.get(VERSION..)?.split_first()?;
    let text = std::str::from_utf8(text.get(..usize::from(length))?).ok()?;
    minor_of(text)
}

/// Of go1.26.8, go1.27rc1, devel go1.28-4f1ac9d and go1.26.8 X:nodwarf5.
fn minor_of(version: &str) -> Option<u32> {
    let (_, rest) = version.split_once("go1.")?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    rest[..digits].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::go::test_program;

    #[test]
    fn the_version_is_read_as_go_writes_it() {
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
    fn programs_of_every_kind_say_where_their_labels_are() {
        let test = "programs_of_every_kind_say_where_their_labels_are";
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
