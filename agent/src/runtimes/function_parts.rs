//! Parts of a function that a compiler placed apart from its main part, found by the jumps between them.
//!
//! GCC places code that it takes for rare in a second part. In an interpreter's loop, this part can be most of the
//! code. Programs without `.symtab` have no symbol for it.

use std::fs::File;
use std::ops::Range;

use host_files::elf::{self, CallFrameSections, ElfImage};
use iced_x86::{Decoder, DecoderOptions, FlowControl};

use crate::unwind::call_frames::{Section, described_functions};

/// Largest size of a main part, in bytes. The largest known loop of an interpreter has 60 KB.
const MAIN_BYTES_MAX: u64 = 1 << 20;

/// Returns the virtual addresses of the other part of a function whose main part is at `main`; an empty range if there
/// is none, or if it cannot be found.
pub(crate) fn other_part(file: &File, image: &ElfImage, main: &Range<u64>) -> Range<u64> {
    find(file, image, main).unwrap_or_default()
}

fn find(file: &File, image: &ElfImage, main: &Range<u64>) -> Option<Range<u64>> {
    if MAIN_BYTES_MAX < main.end.checked_sub(main.start)? {
        return None;
    }
    let mut targets = jumps_out(&elf::loaded_bytes(file, image, main.clone())?, main);
    targets.sort_unstable();
    let sections = CallFrameSections::read(file).ok()?;
    let (address, bytes) = sections.eh_frame.as_ref()?;
    let functions = described_functions(Section { bytes, address: *address }, sections.text.start);
    // A jump to the start of a function may be its call, as the last thing that the main part does.
    let below = |address: u64| targets.partition_point(|target| *target < address);
    let entered = |part: &Range<u64>| below(part.end).saturating_sub(below(part.start.saturating_add(1)));
    let others = functions.into_iter().filter(|part| part.end <= main.start || main.end <= part.start);
    let (jumps, part) = others.map(|part| (entered(&part), part)).max_by_key(|(jumps, _)| *jumps)?;
    (0 < jumps).then_some(part)
}

/// Returns the targets of all jumps in `code` that lead out of it.
fn jumps_out(code: &[u8], at: &Range<u64>) -> Vec<u64> {
    let decoder = Decoder::with_ip(64, code, at.start, DecoderOptions::NONE);
    let jumps = decoder.into_iter().filter(|instruction| {
        let flow = instruction.flow_control();
        matches!(flow, FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch)
    });
    jumps.map(|jump| jump.near_branch_target()).filter(|target| !at.contains(target)).collect()
}
