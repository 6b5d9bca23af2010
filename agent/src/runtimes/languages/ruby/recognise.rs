//! Recognises Ruby in a file, and describes it to BPF.

use std::fs::File;
use std::ops::Range;

use ebpf::{Runtime, RuntimeKind, ThreadPointer};
use host_files::elf::{self, CallFrameSections, ElfImage};
use iced_x86::{Decoder, DecoderOptions, FlowControl};

use super::LOOP;
use super::layout::{Layout, layout_of};
use crate::runtimes::function_parts::other_part;
use crate::runtimes::thread_getter::{self, returned_pointer};
use crate::unwind::call_frames::{Section, described_functions};

/// Largest size of a function that calls the loop, in bytes.
const CALLER_BYTES_MAX: u64 = 4096;
/// Number of bytes of a version, such as `3.3.8`, that are read.
const VERSION_BYTES: u64 = 6;

/// Returns the description of the interpreter in a file, and its layout; `None` if the file has no interpreter of a
/// known version.
pub(crate) fn recognise(file: &File) -> Option<(Runtime, Layout)> {
    let names = [
        "ruby_version",
        "rb_iseq_eval",
        "rb_iseq_eval_main",
        "rb_thread_current",
        "ruby_current_execution_context_ptr",
        LOOP,
    ];
    let [version, eval, eval_main, getter, context, exec] = elf::exported(file, names).ok()?;
    let image = ElfImage::read(file).ok()?;
    let read = |range: Range<u64>| elf::loaded_bytes(file, &image, range);
    let at = |address: u64, bytes: u64| read(address..address.checked_add(bytes)?);
    let (major, minor) = version_of(&at(version?.start, VERSION_BYTES)?)?;
    let layout = layout_of(major, minor)?;
    let thread = if layout.has_global_context() {
        ThreadPointer::Global(context?.start)
    } else {
        let start = getter?.start;
        returned_pointer(&at(start, thread_getter::CODE_BYTES)?, start)?
    };
    let main = match exec.filter(|exec| !exec.is_empty()) {
        Some(exec) => exec,
        // Both functions end with a jump to the loop.
        None => {
            let jumps = |of: Range<u64>| {
                let code = read(of.clone()).filter(|_| of.end - of.start <= CALLER_BYTES_MAX)?;
                Some(jumps_out(&code, &of))
            };
            function_at(file, common(&jumps(eval?)?, &jumps(eval_main?)?)?)?
        }
    };
    let loops = [main.clone(), other_part(file, &image, &main)];
    let threads = [Some(thread), None];
    Some((Runtime { kind: RuntimeKind::Ruby, loops, threads, extra: 0, offsets: layout.to_bpf() }, layout))
}

/// Returns the major and minor version in a text such as `3.3.8`.
fn version_of(text: &[u8]) -> Option<(u32, u32)> {
    let text = text.split(|byte| *byte == 0).next()?;
    let mut numbers = std::str::from_utf8(text).ok()?.split('.').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

/// Returns the targets of the unconditional jumps in `code` that lead out of it.
fn jumps_out(code: &[u8], at: &Range<u64>) -> Vec<u64> {
    let decoder = Decoder::with_ip(64, code, at.start, DecoderOptions::NONE);
    let jumps =
        decoder.into_iter().filter(|instruction| instruction.flow_control() == FlowControl::UnconditionalBranch);
    jumps.map(|jump| jump.near_branch_target()).filter(|target| !at.contains(target)).collect()
}

/// Returns the one number that both lists have.
fn common(one: &[u64], other: &[u64]) -> Option<u64> {
    let mut both = one.iter().filter(|target| other.contains(target));
    let first = both.next()?;
    both.all(|target| target == first).then_some(*first)
}

/// Returns the addresses of the function that begins at an address.
fn function_at(file: &File, address: u64) -> Option<Range<u64>> {
    let sections = CallFrameSections::read(file).ok()?;
    let (section, bytes) = sections.eh_frame.as_ref()?;
    let functions = described_functions(Section { bytes, address: *section }, sections.text.start);
    functions.into_iter().find(|function| function.start == address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        assert_eq!(version_of(b"3.3.8\0"), Some((3, 3)));
        assert_eq!(version_of(b"2.5.10"), Some((2, 5)));
        assert_eq!(version_of(b"3\0....."), None);
        assert_eq!(version_of(b"\xff\xff"), None);
    }

    #[test]
    fn the_jump_that_two_functions_share_is_found() {
        // jmp 0x2000; jmp 0x1002 (within); je 0x3000; call 0x4000
        let code = b"\xe9\xfb\x0f\x00\x00\xeb\xfb\x0f\x84\xf3\x1f\x00\x00\xe8\xee\x2f\x00\x00";
        assert_eq!(jumps_out(code, &(0x1000..0x1012)), [0x2000]);
        assert_eq!(common(&[1, 2, 2], &[2, 3]), Some(2));
        assert_eq!((common(&[1], &[2]), common(&[1, 2], &[2, 1])), (None, None));
    }
}
