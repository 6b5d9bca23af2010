//! The token file: read as the command line is parsed, with the rights of who wrote that and no others.

use std::fmt;
use std::sync::Arc;

use anyhow::Context as _;
use router::auth::Auth;

/// One bearer token per line; empty lines and those that begin with # are left out.
#[derive(Clone)]
pub(crate) struct TokenFile {
    path: Arc<str>,
    text: Arc<str>,
}

impl fmt::Debug for TokenFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Never the tokens: this ends up in logs.
        self.path.fmt(f)
    }
}

impl TokenFile {
    /// Reads the file; for the parser of the command line.
    pub(crate) fn read(path: &str) -> Result<Self, std::io::Error> {
        Ok(Self { path: path.into(), text: std::fs::read_to_string(path)?.into() })
    }

    /// Who may, on the server's side.
    pub(crate) fn auth(&self) -> anyhow::Result<Auth> {
        Auth::from_token_file(&self.text).with_context(|| format!("token file {}", self.path))
    }

    /// The token that a client sends.
    pub(crate) fn first(&self) -> anyhow::Result<String> {
        let token = self.text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'));
        Ok(token.with_context(|| format!("token file {} holds no token", self.path))?.to_owned())
    }
}
