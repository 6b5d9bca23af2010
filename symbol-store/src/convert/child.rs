//! The part of a conversion that runs in the child.

use std::fs::File;
use std::io::{self, BufWriter, Write as _};
use std::process::ExitCode;

use host_files::elf::ElfImage;
use symbolic_common::ByteView;

use super::{Exit, build, confine, rights};
use crate::source::Source;

/// The main function of the converter: drops privileges, converts, and returns the exit code.
///
/// `arguments` are the arguments of the process that follow [`Converter::arguments`](super::Converter::arguments). The
/// process must call this function before it starts a thread or opens a file, because the function drops the privileges
/// of the process and owns the inherited descriptors.
#[must_use]
pub fn run_child(arguments: impl IntoIterator<Item = impl AsRef<str>>) -> ExitCode {
    confine::raise_oom_score();
    match rights::give_up().map_err(|_kept| Exit::Rights).and_then(|()| run(arguments)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(exit) => ExitCode::from(exit as u8),
    }
}

fn run(arguments: impl IntoIterator<Item = impl AsRef<str>>) -> Result<(), Exit> {
    let mut arguments = arguments.into_iter();
    let mut next = || arguments.next().ok_or(Exit::Usage);
    let file = confine::inherited(next()?.as_ref()).ok_or(Exit::Usage)?;
    let debug_file = match next()?.as_ref() {
        "-" => None,
        descriptor => Some(confine::inherited(descriptor).ok_or(Exit::Usage)?),
    };
    let output = confine::inherited(next()?.as_ref()).ok_or(Exit::Usage)?;

    let image = ElfImage::read(&file).map_err(|_not_elf| Exit::Malformed)?;
    let bytes = map(&file)?;
    let debug_bytes = debug_file.as_ref().map(map).transpose()?;
    let inputs = build::Inputs { file: &bytes, debug_file: debug_bytes.as_deref(), base: image.base() };
    let (converter, summary) = build::build(&inputs).ok_or(Exit::Malformed)?;
    if summary.functions == 0 && summary.source != Source::CallFrames {
        return Err(Exit::Stripped);
    }
    let mut output = BufWriter::new(output);
    converter.serialize(&mut output).and_then(|()| output.flush()).map_err(|_unwritable| Exit::Output)?;
    let report = format!("{} {}\n", summary.functions, summary.source.code());
    io::stdout().write_all(report.as_bytes()).map_err(|_unwritable| Exit::Output)
}

fn map(file: &File) -> Result<ByteView<'static>, Exit> {
    ByteView::map_file_ref(file).map_err(|_unmappable| Exit::Malformed)
}
