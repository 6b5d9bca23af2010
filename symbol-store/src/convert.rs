//! Conversion of a program or debug file to a symbol table, in a child process.
//!
//! The child writes a symcache, a format of the crate symbolic that maps addresses to names. The store adds a header,
//! and the result is a symbol table.
//!
//! Debug files are untrusted, and no parser of DWARF survives all of them: some make a parser use terabytes of memory,
//! others make it run forever. So only the child parses. The child inherits descriptors of its input and output and
//! nothing else, and drops all privileges before it reads (`rights`). The kernel limits its memory, CPU time and
//! output. If a file breaks the child, the parent only sees an exit status.
//!
//! Command line of the child: the converter's own arguments, then `<file> <debug file or -> <output>` as numbers of
//! inherited descriptors. The child writes the symcache to the output file, at the position of its descriptor. To
//! standard output it writes `<functions> <source>`, the two fields of [`Summary`]. The exit code of the child is 0,
//! one of [`Exit`], or that of a panic.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use thiserror::Error;

use crate::limits::Limits;
use crate::reason::Unusable;
use crate::source::Source;

mod build;
mod call_frames;
mod child;
mod confine;
mod coverage;
mod names;
mod rights;
mod start_lines;
mod symbols;
mod system_calls;

pub use child::run_child;

/// The program that runs [`run_child`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Converter {
    /// Absolute path of the program. `/proc/self/exe` is the binary of this process, even if it was replaced on disk.
    pub program: PathBuf,
    /// Arguments that precede the arguments of [`run_child`], such as the name of a subcommand.
    pub arguments: Vec<String>,
}

/// The result of a conversion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Summary {
    /// Number of functions that have names and are not inlined calls; 0 only for [`Source::CallFrames`].
    pub(crate) functions: u64,
    pub(crate) source: Source,
}

/// The reason why a file was not converted to a symbol table.
#[derive(Debug, Error)]
pub(crate) enum ConvertError {
    /// The file has no functions, with or without names.
    #[error("the file has no symbols")]
    Stripped,
    /// The file cannot be converted, now or later.
    #[error("the file cannot be converted")]
    Unusable(#[from] Unusable),
    /// The child could not be started, could not drop its privileges, or could not write its output.
    #[error("cannot run the converter or write its output")]
    Io(#[from] io::Error),
}

/// Exit codes with which the child reports a failure. A panic ends the child with an exit code that is not listed here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Exit {
    /// The command line does not have the form that the parent uses.
    Usage = 64,
    /// The file is not valid ELF.
    Malformed = 65,
    /// The file has no functions, with or without names.
    Stripped = 66,
    /// The output could not be written.
    Output = 67,
    /// A privilege could not be dropped.
    Rights = 68,
}

/// Converts `file` to a symcache, and writes it to `output` at the file's current position. Symbols that are missing in
/// `file` are taken from `debug_file`.
///
/// Blocks until the child has ended, for at most [`Limits::conversion_time_max`].
pub(crate) fn convert(
    converter: &Converter,
    limits: &Limits,
    file: &File,
    debug_file: Option<&File>,
    output: &File,
) -> Result<Summary, ConvertError> {
    let mut input_bytes = 0_u64;
    for input in [Some(file), debug_file].into_iter().flatten() {
        let bytes = input.metadata()?.len();
        let bytes_max = limits.input_bytes_max;
        if bytes > bytes_max {
            return Err(Unusable::TooLarge { bytes, bytes_max }.into());
        }
        input_bytes = input_bytes.saturating_add(bytes);
    }
    let mut command = Command::new(&converter.program);
    command.args(&converter.arguments).arg(file.as_raw_fd().to_string());
    command.arg(debug_file.map_or_else(|| "-".to_owned(), |file| file.as_raw_fd().to_string()));
    command.arg(output.as_raw_fd().to_string());
    command.env_clear().current_dir("/").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let inherited = [Some(file), debug_file, Some(output)].map(|file| file.map_or(-1, |file| file.as_raw_fd()));
    confine::before_exec(&mut command, limits, input_bytes, inherited);

    let mut child = command.spawn()?;
    let status = match wait(&mut child, Instant::now() + limits.conversion_time_max) {
        Ok(Some(status)) => status,
        Ok(None) => return Err(time_exceeded(limits).into()),
        Err(error) => {
            kill(&mut child);
            return Err(error.into());
        }
    };
    check_status(status, limits)?;
    let mut report = String::new();
    if let Some(stdout) = child.stdout.take() {
        // The buffer of a pipe holds more than 256 bytes, so the child never waits for the parent to read.
        stdout.take(256).read_to_string(&mut report)?;
    }
    let summary = report.trim_end().split_once(' ').and_then(|(functions, source)| {
        Some(Summary { functions: functions.parse().ok()?, source: Source::from_code(source)? })
    });
    Ok(summary.ok_or(Unusable::GaveUp { exit_code: 0 })?)
}

/// Waits until the child has ended. If it has not ended at the deadline, kills it and returns `None`.
fn wait(child: &mut Child, deadline: Instant) -> io::Result<Option<ExitStatus>> {
    let mut pause = Duration::from_millis(1);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= deadline {
            kill(child);
            return Ok(None);
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// Kills the child and waits for it, so that no zombie stays.
fn kill(child: &mut Child) {
    let killed = child.kill().and_then(|()| child.wait());
    if let Err(error) = killed {
        tracing::warn!(%error, "the converter cannot be killed");
    }
}

fn check_status(status: ExitStatus, limits: &Limits) -> Result<(), ConvertError> {
    match (status.code(), status.signal()) {
        (Some(0), _) => Ok(()),
        (Some(code), _) if code == Exit::Stripped as i32 => Err(ConvertError::Stripped),
        (Some(code), _) if code == Exit::Malformed as i32 => Err(Unusable::Malformed.into()),
        (Some(code), _) if code == Exit::Output as i32 => {
            Err(io::Error::other("the converter cannot write its output").into())
        }
        (Some(code), _) if code == Exit::Rights as i32 => {
            Err(io::Error::other("the converter cannot drop its privileges, so it read nothing").into())
        }
        (Some(exit_code), _) => Err(Unusable::GaveUp { exit_code }.into()),
        // A failed allocation aborts the process, and so does a stack overflow.
        (None, Some(libc::SIGABRT | libc::SIGSEGV)) => {
            Err(Unusable::MemoryExceeded { bytes_max: limits.conversion_memory_bytes_max }.into())
        }
        (None, Some(libc::SIGXCPU)) => Err(time_exceeded(limits).into()),
        (None, Some(libc::SIGXFSZ)) => Err(Unusable::TableTooLarge { bytes_max: limits.table_bytes_max }.into()),
        // SIGBUS: an input file became shorter while it was mapped.
        (None, Some(libc::SIGBUS)) => Err(Unusable::Changed.into()),
        (None, signal) => Err(Unusable::Killed { signal: signal.unwrap_or_default() }.into()),
    }
}

fn time_exceeded(limits: &Limits) -> Unusable {
    Unusable::TimeExceeded { cpu_max: limits.conversion_cpu_max, time_max: limits.conversion_time_max }
}
