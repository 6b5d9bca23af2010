//! The token file, which is read while the command line is parsed, with the user's own privileges.

use proto::Tokens;

/// Reads a token file. Clap calls this function as the parser of the option.
pub(crate) fn read(path: &str) -> anyhow::Result<Tokens> {
    Ok(Tokens::parse(&std::fs::read_to_string(path)?)?)
}
