//! Recognises PHP in a file, and describes it to BPF.

use std::fs::File;
use std::ops::Range;

use ebpf::{Runtime, RuntimeKind, ThreadPointer};
use host_files::elf::{self, ElfImage};
use iced_x86::{Decoder, DecoderOptions, Mnemonic, Register};
use memchr::memmem;

use super::LOOP;
use super::layout::{Layout, LoopFrame, Version, layout_of};
use crate::runtimes::code::{Branch, Code, LocalFunction};
use crate::runtimes::function_parts::other_part;
use crate::runtimes::languages::pcre;
use crate::runtimes::thread_getter::{self, returned_pointer};

/// Text that precedes the version, in a header of HTTP.
const VERSION_PREFIX: &[u8] = b"X-Powered-By: PHP/";
/// Number of bytes in which the version is searched, and the number that is read at once. The text is in the first
/// megabyte of the constants of all known builds.
const SEARCHED_BYTES_MAX: u64 = 64 << 20;
const PIECE_BYTES: u64 = 1 << 20;
/// Number of bytes that a version such as `8.2.32` takes.
const VERSION_BYTES: usize = 8;

/// Number of bytes at the start of the loop in which its frame is looked for.
const LOOP_START_BYTES: u64 = 256;
const WORD_BYTES: u16 = 8;

/// Returns the description of the interpreter in a file, and its layout; `None` if the file has no interpreter of a
/// known version.
pub(crate) fn recognise(file: &File) -> Option<(Runtime, Layout)> {
    let names = [
        LOOP,
        "zend_flf_functions",
        "zend_pass_function",
        "executor_globals",
        "executor_globals_offset",
        "tsrm_get_ls_cache",
    ];
    let [main, frameless, internal, globals, globals_offset, getter] =
        elf::exported(file, names).ok()?.map(|symbol| symbol.filter(|symbol| !symbol.is_empty()));
    let (main, internal) = (main?, internal?);
    let image = ElfImage::read(file).ok()?;
    let layout = layout_of(find_version(file, &image)?)?;
    // A debug build has larger structures.
    if internal.end - internal.start != u64::from(layout.internal_bytes) {
        return None;
    }
    let (thread, extra) = match globals {
        Some(globals) => (ThreadPointer::Global(globals.start.checked_add(layout.current.into())?), 0),
        None => (thread_block(file, &image, &getter?)?, globals_offset?.start),
    };
    let frameless = frameless.map(|functions| ThreadPointer::Global(functions.start));
    let loops = [main.clone(), other_part(file, &image, &main)];
    let loop_frame = layout.has_compiler.then(|| loop_frame(file, &image, main.start)).flatten();
    let offsets = layout.to_bpf(loop_frame.unwrap_or_default());
    let (threads, callers) = ([Some(thread), frameless], pcre::caller_in_php(file));
    Some((Runtime { kind: RuntimeKind::Php, loops, threads, callers, extra, offsets }, layout))
}

/// Returns the local function of PHP that is on most stacks of its command line: that which executes the script.
pub(crate) fn local_functions(file: &File) -> Vec<LocalFunction> {
    let find = || {
        let [execute] = elf::exported(file, ["php_execute_script"]).ok()?;
        let (execute, code) = (execute?, Code::read(file)?);
        let called =
            code.functions_called(&code.main_function()?).into_iter().filter_map(|start| code.function_at(start));
        let mut executing = called.filter(|function| code.branches(function, Branch::Call).contains(&execute.start));
        executing.next().filter(|function| *function != execute)
    };
    find().map(|addresses| LocalFunction { addresses, name: "do_cli" }).into_iter().collect()
}

/// Returns the place of the block of a thread's globals, which the function `getter` returns.
fn thread_block(file: &File, image: &ElfImage, getter: &Range<u64>) -> Option<ThreadPointer> {
    let end = getter.start.checked_add(thread_getter::CODE_BYTES)?;
    returned_pointer(&elf::loaded_bytes(file, image, getter.start..end)?, getter.start)
}

/// Finds the frame of the loop that is at an address; `None` if the loop is not one that can jump to compiled code.
fn loop_frame(file: &File, image: &ElfImage, start: u64) -> Option<LoopFrame> {
    loop_frame_of(&elf::loaded_bytes(file, image, start..start.checked_add(LOOP_START_BYTES)?)?)
}

/// Returns the frame that the code of a loop makes before it jumps to the code of a function's first instruction.
fn loop_frame_of(code: &[u8]) -> Option<LoopFrame> {
    let mut bytes = WORD_BYTES;
    for instruction in Decoder::new(64, code, DecoderOptions::NONE) {
        match instruction.mnemonic() {
            Mnemonic::Push => bytes += WORD_BYTES,
            Mnemonic::Sub if instruction.op0_register() == Register::RSP => {
                bytes = bytes.checked_add(u16::try_from(instruction.immediate(1)).ok()?)?;
            }
            Mnemonic::Jmp if instruction.memory_base() == Register::R15 => {
                return Some(LoopFrame { body: u16::try_from(instruction.ip()).ok()?, bytes });
            }
            Mnemonic::Pop | Mnemonic::Ret | Mnemonic::INVALID => return None,
            _ => {}
        }
    }
    None
}

/// Finds the version among the constants of a file.
fn find_version(file: &File, image: &ElfImage) -> Option<Version> {
    let mut left = SEARCHED_BYTES_MAX;
    for segment in image.segments.iter().filter(|segment| !segment.executable) {
        let mut start = 0;
        while start < segment.file_size && 0 < left {
            // Pieces overlap, so that no version is cut.
            let overlap = (VERSION_PREFIX.len() + VERSION_BYTES) as u64;
            let bytes = (PIECE_BYTES + overlap).min(segment.file_size - start);
            let address = segment.address.checked_add(start)?;
            let piece = elf::loaded_bytes(file, image, address..address.checked_add(bytes)?)?;
            if let Some(version) = version_in(&piece) {
                return Some(version);
            }
            start += PIECE_BYTES;
            left = left.saturating_sub(PIECE_BYTES);
        }
    }
    None
}

/// Returns the version that follows its prefix, which begins in the first [`PIECE_BYTES`] bytes.
fn version_in(bytes: &[u8]) -> Option<Version> {
    let at = memmem::find(bytes, VERSION_PREFIX).filter(|at| (*at as u64) < PIECE_BYTES)?;
    let mut numbers = bytes[at + VERSION_PREFIX.len()..].split(|byte| *byte == b'.');
    let mut number = || str::from_utf8(numbers.next()?).ok()?.parse().ok();
    Some(Version { major: number()?, minor: number()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_after_their_prefix() {
        let version = |text: &str| version_in(text.as_bytes()).map(|version| (version.major, version.minor));
        assert_eq!(version("\0X-Powered-By: PHP/8.2.32\0\0"), Some((8, 2)));
        assert_eq!(version("X-Powered-By: PHP/7.4.33-1+deb11u5"), Some((7, 4)));
        assert_eq!(version("X-Powered-By: PHP/8.15.0-dev"), Some((8, 15)));
        for other in ["X-Powered-By: PHP/", "X-Powered-By: PHP/8", "X-Powered-By: PHP/x.2.3", "PHP/8.2.32"] {
            assert_eq!(version(other), None, "{other}");
        }
    }

    #[test]
    fn the_frame_of_the_loop_is_read_from_its_code() {
        // push %r13; push %r12; push %rbp; push %rbx; sub $0x78, %rsp; mov %rdi, %r14; mov (%rdi), %r15; jmp *(%r15)
        let old = b"\x41\x55\x41\x54\x55\x53\x48\x83\xec\x78\x49\x89\xfe\x4c\x8b\x3f\x41\xff\x27";
        assert_eq!(loop_frame_of(old), Some(LoopFrame { body: 16, bytes: 160 }));
        // push %rbp; mov %rsp, %rbp; push %rbx; sub $0xa8, %rsp; jmp *(%r15)
        let new = b"\x55\x48\x89\xe5\x53\x48\x81\xec\xa8\x00\x00\x00\x41\xff\x27";
        assert_eq!(loop_frame_of(new), Some(LoopFrame { body: 12, bytes: 8 + 16 + 0xa8 }));
        // A loop that calls a function for each instruction: push %rbx; sub $16, %rsp; call *(%r15); pop %rbx; ret
        assert_eq!(loop_frame_of(b"\x53\x48\x83\xec\x10\x41\xff\x17\x5b\xc3"), None);
        assert_eq!(loop_frame_of(b""), None);
    }

    #[test]
    fn the_function_that_executes_scripts_is_found_in_stripped_phps() {
        // Those for musl are not stripped.
        for php in testkit::interpreters::phps().into_iter().filter(|php| !php.is_for_musl()) {
            let file = File::open(php.to_string()).unwrap();
            let functions = local_functions(&file);
            assert!(matches!(&functions[..], [LocalFunction { name: "do_cli", .. }]), "{php}: {functions:x?}");
        }
    }
}
