//! The token file: read as the command line is parsed, with the rights of who wrote that and no others.

use proto::Tokens;

/// Reads a token file; for the parser of the command line.
pub(crate) fn read(path: &str) -> anyhow::Result<Tokens> {
    Ok(Tokens::parse(&std::fs::read_to_string(path)?)?)
}
