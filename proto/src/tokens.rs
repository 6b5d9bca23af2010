//! Bearer tokens from a token file. Routers and nodes require a token; agents, clients and routers send one.

use std::fmt;
use std::sync::Arc;

/// Minimum length of a token, in bytes. Shorter tokens can be guessed.
const TOKEN_BYTES_MIN: usize = 16;

/// The tokens of one file, at least one. `Debug` does not print the tokens, because its output ends up in logs.
#[derive(Clone)]
pub struct Tokens(Arc<[Box<str>]>);

impl fmt::Debug for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} tokens", self.0.len())
    }
}

/// The error of a token file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenFileError {
    /// The file contains no token.
    #[error("the token file holds no token: write one token of at least {TOKEN_BYTES_MIN} characters per line")]
    Empty,
    /// A token is shorter than the minimum.
    #[error("line {line} of the token file is shorter than {TOKEN_BYTES_MIN} characters: try `openssl rand -hex 32`")]
    TooShort {
        /// Number of the token's line, from 1 for the first line of the file.
        line: usize,
    },
}

/// The reason why a request without a valid token is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoToken {
    /// The request has no bearer token.
    #[error("a bearer token is required: send `Authorization: Bearer TOKEN` with a token of the server's token file")]
    Missing,
    /// The token file does not list the token of the request.
    #[error("the bearer token is not in the server's token file")]
    Wrong,
}

impl Tokens {
    /// Parses a token file: one token per line. Empty lines and lines that begin with `#` are skipped.
    ///
    /// # Errors
    /// Returns a [`TokenFileError`] if the file contains no token, or one that is too short.
    pub fn parse(text: &str) -> Result<Self, TokenFileError> {
        let lines = text.lines().map(str::trim).zip(1..);
        let tokens: Vec<_> = lines.filter(|(token, _)| !token.is_empty() && !token.starts_with('#')).collect();
        if let Some(&(_, line)) = tokens.iter().find(|(token, _)| token.len() < TOKEN_BYTES_MIN) {
            return Err(TokenFileError::TooShort { line });
        }
        if tokens.is_empty() {
            return Err(TokenFileError::Empty);
        }
        Ok(Self(tokens.into_iter().map(|(token, _)| token.into()).collect()))
    }

    /// The first token of the file, which clients send.
    #[must_use]
    pub fn first(&self) -> &str {
        &self.0[0]
    }

    /// Checks the value of an `Authorization` header of HTTP, or of `authorization` in gRPC metadata.
    ///
    /// # Errors
    /// Returns [`NoToken`] if the value holds none of the file's tokens.
    pub fn check(&self, authorization: Option<&str>) -> Result<(), NoToken> {
        let Some((scheme, token)) = authorization.and_then(|value| value.split_once(' ')) else {
            return Err(NoToken::Missing);
        };
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(NoToken::Missing);
        }
        // Every token is compared, so that the duration does not reveal which one is close.
        let token = token.trim().as_bytes();
        let matching = self.0.iter().filter(|known| equal_in_constant_time(known.as_bytes(), token)).count();
        if matching > 0 { Ok(()) } else { Err(NoToken::Wrong) }
    }
}

/// Compares two byte strings. The duration depends only on their lengths.
pub(crate) fn equal_in_constant_time(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_must_carry_a_token_of_the_file() {
        let tokens = Tokens::parse("# two\n0123456789abcdef\n\n fedcba9876543210 \n").unwrap();
        assert_eq!(tokens.first(), "0123456789abcdef");
        assert_eq!(tokens.check(None), Err(NoToken::Missing));
        assert_eq!(tokens.check(Some("Basic 0123456789abcdef")), Err(NoToken::Missing));
        assert_eq!(tokens.check(Some("Bearer 0123456789abcdeF")), Err(NoToken::Wrong));
        assert_eq!(tokens.check(Some("Bearer 0123456789abcde")), Err(NoToken::Wrong));
        assert_eq!(tokens.check(Some("bearer fedcba9876543210")), Ok(()));
    }

    #[test]
    fn unusable_token_files_are_refused_and_tokens_are_never_printed() {
        assert!(matches!(Tokens::parse("# none\n"), Err(TokenFileError::Empty)));
        assert!(matches!(Tokens::parse("\nshort\n"), Err(TokenFileError::TooShort { line: 2 })));
        assert!(!format!("{:?}", Tokens::parse("0123456789abcdef").unwrap()).contains("0123"));
    }
}
