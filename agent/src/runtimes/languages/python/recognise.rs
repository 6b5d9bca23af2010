//! Recognises CPython in a file, and describes it to BPF.

use std::fs::File;
use std::ops::Range;

use ebpf::{Libc, Runtime, RuntimeKind, ThreadPointer};
use host_files::elf::{self, ElfImage};

use super::debug_offsets;
use super::layout::{Layout, layout_of, lock_holder, thread_key};
use super::{LOOP, RuntimeAndLayout};
use crate::runtimes::function_parts::other_part;
use crate::runtimes::thread_getter::{self, returned_pointer};

/// Offset of the key in a `Py_tss_t`.
const KEY: u64 = 4;

/// Addresses of exported symbols.
struct Symbols {
    state: Option<Range<u64>>,
    version: Option<Range<u64>>,
    getter: Option<Range<u64>>,
    first_getter: Option<Range<u64>>,
    lock_holder: Option<Range<u64>>,
}

/// Returns the description of the interpreter in a file, and its layout; `None` if the file has no interpreter of a
/// known version. `path` is the path of the file.
pub(crate) fn recognise(file: &File, path: &str) -> Option<RuntimeAndLayout> {
    let names = [
        LOOP,
        "_PyRuntime",
        "Py_Version",
        "_PyThreadState_GetCurrent",
        "PyGILState_GetThisThreadState",
        "_PyThreadState_Current",
    ];
    let [main, state, version, getter, first_getter, lock_holder] = elf::exported(file, names).ok()?;
    let main = main.filter(|main| !main.is_empty())?;
    let symbols = Symbols { state, version, getter, first_getter, lock_holder };
    let image = ElfImage::read(file).ok()?;
    let read = |address: u64, bytes: u64| elf::loaded_bytes(file, &image, address..address.checked_add(bytes)?);
    let layout = describe(&symbols, path, read)?;
    let threads = threads(&symbols, &layout, read);
    if threads.iter().all(Option::is_none) {
        return None;
    }
    let loops = [main.clone(), other_part(file, &image, &main)];
    Some((
        Runtime { kind: RuntimeKind::Python, loops, threads, callers: 0..0, extra: 0, offsets: layout.to_bpf()? },
        layout,
    ))
}

/// Returns the layout of the interpreter. `read` reads bytes of the file by their virtual address.
fn describe(symbols: &Symbols, path: &str, read: impl Fn(u64, u64) -> Option<Vec<u8>>) -> Option<Layout> {
    let list = symbols.state.as_ref().and_then(|state| read(state.start, debug_offsets::BYTES));
    if let Some(described) = list.and_then(|list| debug_offsets::read(&list)) {
        return Some(described);
    }
    let version = symbols.version.as_ref().and_then(|version| read(version.start, 4)?.first_chunk().copied());
    let minor = match version {
        Some(version) => minor_of_version(u32::from_ne_bytes(version))?,
        None => minor_of_path(path)?,
    };
    layout_of(minor)
}

/// Returns where the interpreter keeps the description of a thread: first that of the interpreter that the thread runs,
/// then the one that the thread has even if it does not hold the interpreter's lock.
fn threads(
    symbols: &Symbols,
    layout: &Layout,
    read: impl Fn(u64, u64) -> Option<Vec<u8>>,
) -> [Option<ThreadPointer>; 2] {
    let minor = layout.minor;
    let in_state = |offset: Option<u16>| symbols.state.as_ref()?.start.checked_add(offset?.into());
    let returned = |getter: &Option<Range<u64>>| {
        let start = getter.as_ref()?.start;
        returned_pointer(&read(start, thread_getter::CODE_BYTES)?, start)
    };
    let holder = in_state(lock_holder(minor)).or_else(|| Some(symbols.lock_holder.as_ref()?.start));
    let current = holder.map(ThreadPointer::Global).or_else(|| returned(&symbols.getter));
    let key = in_state(thread_key(minor)).and_then(|key| key.checked_add(KEY));
    [current, key.map(|key| ThreadPointer::Key(key, Libc::Glibc)).or_else(|| returned(&symbols.first_getter))]
}

/// Returns the minor version in the number that Python 3.11 and later have in a variable, such as 0x030b_07f0.
fn minor_of_version(version: u32) -> Option<u32> {
    (version >> 24 == 3).then_some(version >> 16 & 0xff)
}

/// Returns the minor version in a path such as `/usr/lib/libpython3.8.so.1.0` or `/usr/bin/python3.9d`.
fn minor_of_path(path: &str) -> Option<u32> {
    let name = path.rsplit('/').next()?;
    let (_, rest) = name.split_once("python3.")?;
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    rest[..digits].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_from_numbers_and_paths() {
        assert_eq!((minor_of_version(0x030b_07f0), minor_of_version(0x0407_0000)), (Some(11), None));
        for (path, minor) in [
            ("/usr/lib/libpython3.8.so.1.0", Some(8)),
            ("/usr/bin/python3.10", Some(10)),
            ("/opt/python3.6m", Some(6)),
            ("/usr/bin/python3", None),
            ("/opt/python3.9/bin/uwsgi", None),
        ] {
            assert_eq!(minor_of_path(path), minor, "{path}");
        }
    }
}
