//! The token file. It is read while the command line is parsed, before the process raises its capabilities.

use proto::Tokens;

/// Reads a token file. Clap calls this function as the parser of the option.
pub(crate) fn read(path: &str) -> anyhow::Result<Tokens> {
    Ok(Tokens::parse(&std::fs::read_to_string(path)?)?)
}
