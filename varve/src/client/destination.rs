//! Destination of a command's result: stdout, or a file that appears only when it is complete.

use std::io::{self, IsTerminal as _};
use std::path::Path;

use anyhow::bail;

use super::output::print_bytes;
use crate::record::output::Output;

/// Stdout, or a file.
pub(super) enum Destination {
    Stdout,
    File(Output),
}

impl Destination {
    /// Opens the destination. Fails if it cannot be written, or if it is a terminal and the result is binary.
    pub(super) fn open(path: Option<&Path>, is_binary: bool) -> anyhow::Result<Self> {
        match path {
            Some(path) => Ok(Self::File(Output::create(path)?)),
            None if is_binary && io::stdout().is_terminal() => {
                bail!("pprof is no text for a terminal: name a file with --output profile.pb.gz, or redirect stdout")
            }
            None => Ok(Self::Stdout),
        }
    }

    /// Writes the whole result.
    pub(super) fn write(self, bytes: &[u8]) -> anyhow::Result<()> {
        match self {
            Self::Stdout => print_bytes(bytes),
            Self::File(file) => file.finish(bytes).map(drop),
        }
    }
}
