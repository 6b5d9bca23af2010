//! The unwind table of one file, from all descriptions of its code.

use std::fs::File;

use host_files::elf::{self, CallFrameSections};
use host_files::{debug_file, open::Root};

use super::call_frames::{CallFrames, Section};
use super::table::{TableBuilder, UnwindTable};
use crate::names::go::GoTable;
use crate::process::file::FileOrigin;

/// Builds the unwind table of `file`. `origin` is the location near which a separate debug file may be.
///
/// Returns `None` if nothing describes the file's code, or if its table would be too large.
pub(super) fn table_of(file: &File, origin: Option<&FileOrigin>) -> Option<UnwindTable> {
    let sections = CallFrameSections::read(file).ok()?;
    // If the Go table cannot be read, the code that names Go functions logs the reason.
    let go = GoTable::open(file).ok().flatten();
    let frames = CallFrames {
        eh_frame: sections.eh_frame.as_ref().map(|(address, bytes)| Section { bytes, address: *address }),
        debug_frame: sections.debug_frame.as_deref(),
        text: sections.text.clone(),
        entry: sections.entry,
        go: go.as_ref(),
        has_v8: has_v8(file),
    };
    let mut builder = TableBuilder::default();
    let code = |part| sections.code(file, part);
    if let Err(error) = frames.add_to(&mut builder, || separate_debug_frame(file, origin), code) {
        tracing::warn!("a file has no unwind table: {error}");
        return None;
    }
    // The sections take megabytes. They are freed before the table is encoded, which takes megabytes, too.
    drop(sections);
    builder.finish()
}

/// Returns the file's `.debug_frame` if it is compressed, in `.gnu_debugdata`, or in a separate debug file, tried in
/// this order.
fn separate_debug_frame(file: &File, origin: Option<&FileOrigin>) -> Option<Vec<u8>> {
    let in_debug_file = || {
        let FileOrigin { pid, path } = origin?;
        debug_file::debug_frame(&Root::of_process(*pid).ok()?, file, path)
    };
    elf::debug_frame(file).or_else(|| elf::debug_frame(&elf::debug_data(file)?)).or_else(in_debug_file)
}

#[cfg(target_arch = "x86_64")]
fn has_v8(file: &File) -> bool {
    crate::runtimes::languages::v8::recognise::is_v8(file)
}

/// Returns false: the rules of V8's builtin functions are made on x86-64 only.
#[cfg(not(target_arch = "x86_64"))]
fn has_v8(_: &File) -> bool {
    false
}
