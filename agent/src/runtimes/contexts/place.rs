//! The place of a thread-local variable in a process.

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;

use ebpf::{Libc, ThreadPointer};
use host_files::elf::{ElfImage, ThreadLocal};

use crate::process::maps::{Maps, ProcessMapping};
use crate::runtimes::memory::ProcessMemory;

/// Largest number of a module. glibc numbers the files with thread-local variables that are loaded at the same time.
const MODULES_MAX: u64 = 1 << 16;
/// Largest distance of a variable from the thread's base, in bytes.
const DISTANCE_MAX: u64 = 1 << 31;
/// Beginnings of the names of glibc's file. Other C libraries have other tables of blocks.
const GLIBC: [&str; 2] = ["libc.so.6", "libc-2."];
/// Beginning of the name of musl's file, which is its dynamic linker, and another name of it.
const MUSL: [&str; 2] = ["ld-musl-", "libc.so"];

/// Returns where the process `pid` keeps the variable that the file of `mapping` exports. `None` if the place is not
/// known, or not yet. Addresses of the result are those of the process.
pub(super) fn place(
    memory: &ProcessMemory,
    pid: u32,
    maps: &Maps,
    mapping: &ProcessMapping,
    file: &File,
    variable: ThreadLocal,
) -> Option<ThreadPointer> {
    let address = ElfImage::read(file).ok()?.virtual_address(mapping.offset)?;
    let bias = mapping.start.wrapping_sub(address);
    let pointer = match variable {
        ThreadLocal::InProgram(offset) => is_program(pid, file).then(|| fixed(offset.cast_unsigned()))??,
        _ => in_memory(memory, bias, variable)?,
    };
    match pointer {
        ThreadPointer::Dynamic { .. } => Some(pointer.with_libc(libc(maps)?)),
        _ => Some(pointer),
    }
}

/// Returns the C library of a process; `None` if it is not a known one.
fn libc(maps: &Maps) -> Option<Libc> {
    if GLIBC.iter().any(|name| maps.has_file(name)) {
        return Some(Libc::Glibc);
    }
    (maps.has_file(MUSL[0]) || maps.find_file(MUSL[1]).is_some()).then_some(Libc::Musl)
}

/// Returns where a variable is, by what the dynamic linker has written for the file's code.
fn in_memory(memory: &ProcessMemory, bias: u64, variable: ThreadLocal) -> Option<ThreadPointer> {
    let word = |address: u64| memory.array(address).map(u64::from_le_bytes);
    match variable {
        ThreadLocal::InProgram(_) => None,
        ThreadLocal::Slot(slot) => fixed(word(bias.wrapping_add(slot))?),
        ThreadLocal::Pair(pair) => dynamic(memory, bias.wrapping_add(pair)),
        ThreadLocal::Descriptor(descriptor) => {
            // The argument is the offset from the base, or the address of a pair.
            let argument = word(bias.wrapping_add(descriptor).wrapping_add(8))?;
            fixed(argument).or_else(|| dynamic(memory, argument))
        }
    }
}

/// Returns the place at an offset from the thread's base, below which all variables are on x86-64.
fn fixed(offset: u64) -> Option<ThreadPointer> {
    let is_offset = 0 < offset.wrapping_neg() && offset.wrapping_neg() <= DISTANCE_MAX;
    is_offset.then(|| ThreadPointer::Fixed(offset.cast_signed()))
}

/// Returns the place that a pair in memory describes, in a process with glibc: the number of a module, and an offset in
/// its block.
fn dynamic(memory: &ProcessMemory, pair: u64) -> Option<ThreadPointer> {
    let module = memory.array(pair).map(u64::from_le_bytes)?;
    (1..=MODULES_MAX).contains(&module).then_some(ThreadPointer::Dynamic { pair, displacement: 0, libc: Libc::Glibc })
}

/// True if the process runs this file as its program.
fn is_program(pid: u32, file: &File) -> bool {
    let identity = |metadata: std::fs::Metadata| (metadata.dev(), metadata.ino());
    let program = std::fs::metadata(format!("/proc/{pid}/exe")).ok().map(identity);
    program.is_some() && program == file.metadata().ok().map(identity)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// Returns where a variable is, in a process whose memory begins with these words.
    fn with_words(words: &[u64], variable: ThreadLocal) -> Option<ThreadPointer> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>().as_slice()).unwrap();
        in_memory(&ProcessMemory::of_file(file), 0x1000_u64.wrapping_neg(), variable)
    }

    /// Address of a function, which is no number of a module.
    const FUNCTION: u64 = 0x5555_0000_7777;
    const MINUS_64: u64 = 64_u64.wrapping_neg();

    #[test]
    fn each_kind_of_variable_has_its_place() {
        let pair = Some(ThreadPointer::Dynamic { pair: 16, displacement: 0, libc: Libc::Glibc });
        let fixed = Some(ThreadPointer::Fixed(-64));
        assert_eq!(with_words(&[0, MINUS_64], ThreadLocal::Slot(0x1008)), fixed);
        assert_eq!(with_words(&[0, 0, 3, 0x40], ThreadLocal::Pair(0x1010)), pair);
        assert_eq!(with_words(&[FUNCTION, MINUS_64], ThreadLocal::Descriptor(0x1000)), fixed);
        assert_eq!(with_words(&[FUNCTION, 16, 3, 0x40], ThreadLocal::Descriptor(0x1000)), pair);
    }

    #[test]
    fn the_c_library_of_a_process_is_known_by_its_file() {
        for (file, expected) in [
            ("/usr/lib/x86_64-linux-gnu/libc.so.6", Some(Libc::Glibc)),
            ("/lib/x86_64-linux-gnu/libc-2.31.so", Some(Libc::Glibc)),
            ("/lib/ld-musl-x86_64.so.1", Some(Libc::Musl)),
            ("/usr/lib/x86_64-linux-musl/libc.so", Some(Libc::Musl)),
            ("/opt/libc.so.5", None),
            ("/usr/bin/program", None),
        ] {
            let maps = Maps::read(format!("1000-2000 r-xp 0 08:01 7 {file}\n").as_bytes()).unwrap();
            assert_eq!(libc(&maps), expected, "{file}");
        }
    }

    #[test]
    fn words_that_are_not_set_or_not_plausible_have_no_place() {
        for word in [0, 64, 1 << 63, u64::MAX << 32] {
            assert_eq!(with_words(&[word], ThreadLocal::Slot(0x1000)), None, "{word:#x}");
            assert_eq!(with_words(&[FUNCTION, word, 0], ThreadLocal::Descriptor(0x1000)), None, "{word:#x}");
        }
        // The library is not loaded yet, or the descriptor is not used yet and has the address of its relocation.
        for module in [0, MODULES_MAX + 1, u64::MAX] {
            assert_eq!(with_words(&[module, 0x40], ThreadLocal::Pair(0x1000)), None, "{module}");
            assert_eq!(with_words(&[FUNCTION, 16, module, 0x40], ThreadLocal::Descriptor(0x1000)), None, "{module}");
        }
        // The memory ends.
        assert_eq!(with_words(&[FUNCTION], ThreadLocal::Descriptor(0x1000)), None);
        assert_eq!(with_words(&[], ThreadLocal::Pair(0x1000)), None);
        assert_eq!(with_words(&[MINUS_64], ThreadLocal::Slot(0)), None);
    }
}
