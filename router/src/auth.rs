//! Who asks. The only place that makes a [`TenantId`] from a request.
//!
//! Without a token file there is one tenant and the server listens on loopback only; then `Host` must name loopback, so that
//! no web page can reach it by a name that resolves to 127.0.0.1 (DNS rebinding). In any case a browser's `Origin` must be the
//! page's own.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use proto::TenantId;

use crate::api::error::ApiError;

/// Shorter tokens can be guessed.
const TOKEN_BYTES_MIN: usize = 16;

/// How requests are told apart.
#[derive(Clone)]
pub enum Auth {
    /// No credential; the listeners are on loopback, and requests must name it.
    Loopback,
    /// No credential, by explicit wish (`--insecure-listen`).
    Open,
    /// One of these bearer tokens, for pushes and reads.
    Tokens(Arc<[Box<[u8]>]>),
}

impl std::fmt::Debug for Auth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Never the tokens: this ends up in logs.
        f.write_str(match self {
            Self::Loopback => "Loopback",
            Self::Open => "Open",
            Self::Tokens(_) => "Tokens",
        })
    }
}

/// A token file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenFileError {
    /// Nothing in it.
    #[error("the token file holds no token: write one token of at least {TOKEN_BYTES_MIN} characters per line")]
    Empty,
    /// A token that can be guessed.
    #[error(
        "line {line} of the token file is shorter than {TOKEN_BYTES_MIN} characters: use for example `openssl rand -hex 32`"
    )]
    TooShort {
        /// From 1.
        line: usize,
    },
}

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Denied {
    #[error("a bearer token is needed: send `Authorization: Bearer TOKEN` with a token of the server's token file")]
    NoToken,
    #[error("the bearer token is none of the server's token file")]
    WrongToken,
    #[error("the Host header must name loopback (127.0.0.1, [::1] or localhost): this server has no token file")]
    ForeignHost,
    #[error("requests of pages of other origins are refused")]
    ForeignOrigin,
}

impl Auth {
    /// Tokens of a token file: one per line, empty lines and lines that begin with # left out.
    ///
    /// # Errors
    /// [`TokenFileError`] where it holds no usable token.
    pub fn from_token_file(text: &str) -> Result<Self, TokenFileError> {
        let mut tokens: Vec<Box<[u8]>> = Vec::new();
        for (i, line) in text.lines().enumerate() {
            let token = line.trim();
            if token.is_empty() || token.starts_with('#') {
                continue;
            }
            if token.len() < TOKEN_BYTES_MIN {
                return Err(TokenFileError::TooShort { line: i + 1 });
            }
            tokens.push(token.as_bytes().into());
        }
        if tokens.is_empty() { Err(TokenFileError::Empty) } else { Ok(Self::Tokens(tokens.into())) }
    }

    /// The tenant of an HTTP request.
    pub(crate) fn tenant(&self, headers: &HeaderMap) -> Result<TenantId, Denied> {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let host = text(header::HOST);
        if matches!(self, Self::Loopback) && !host.is_none_or(is_loopback) {
            return Err(Denied::ForeignHost);
        }
        if let Some(origin) = text(header::ORIGIN) {
            let authority = origin.split_once("://").map(|(_, authority)| authority);
            if authority.is_none() || authority != host {
                return Err(Denied::ForeignOrigin);
            }
        }
        self.bearer(text(header::AUTHORIZATION))
    }

    /// The tenant of a gRPC request, from its `authorization` metadata.
    pub(crate) fn bearer(&self, authorization: Option<&str>) -> Result<TenantId, Denied> {
        let Self::Tokens(tokens) = self else { return Ok(TenantId::default_tenant()) };
        let token = authorization.and_then(|value| value.split_once(' '));
        let Some((scheme, token)) = token else { return Err(Denied::NoToken) };
        if !scheme.eq_ignore_ascii_case("bearer") {
            return Err(Denied::NoToken);
        }
        // All are compared, so that the time says nothing about which one is near.
        let matching = tokens.iter().filter(|known| equal_in_constant_time(known, token.trim().as_bytes())).count();
        if matching > 0 { Ok(TenantId::default_tenant()) } else { Err(Denied::WrongToken) }
    }
}

fn equal_in_constant_time(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
}

/// Whether the authority of a `Host` header is loopback.
fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(bracketed) => bracketed.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _port)| name),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Middleware: refuses, or leaves the [`TenantId`] in the request's extensions.
pub(crate) async fn authenticate(State(auth): State<Auth>, mut request: Request, next: Next) -> Response {
    // HTTP/2 has the authority in the URI.
    if let (None, Some(authority)) = (request.headers().get(header::HOST), request.uri().authority())
        && let Ok(host) = authority.as_str().parse()
    {
        request.headers_mut().insert(header::HOST, host);
    }
    match auth.tenant(request.headers()) {
        Ok(tenant) => {
            request.extensions_mut().insert(tenant);
            next.run(request).await
        }
        Err(denied) => {
            let status = match denied {
                Denied::NoToken | Denied::WrongToken => StatusCode::UNAUTHORIZED,
                Denied::ForeignHost | Denied::ForeignOrigin => StatusCode::FORBIDDEN,
            };
            ApiError::denied(status, denied.to_string()).into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|&(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn without_tokens_only_loopback_may_be_named_and_only_the_pages_own_origin() {
        let check = |pairs: &[(&'static str, &'static str)]| Auth::Loopback.tenant(&headers(pairs)).err();
        assert_eq!(check(&[("host", "127.0.0.1:4040")]), None);
        assert_eq!(check(&[("host", "localhost")]), None);
        assert_eq!(check(&[("host", "[::1]:4040")]), None);
        assert_eq!(check(&[("host", "evil.example:4040")]), Some(Denied::ForeignHost));
        assert_eq!(check(&[("host", "127.0.0.1.evil.example")]), Some(Denied::ForeignHost));
        assert_eq!(check(&[("host", "localhost:4040"), ("origin", "http://localhost:4040")]), None);
        for origin in ["http://evil.example", "null", "http://localhost:4041"] {
            assert_eq!(check(&[("host", "localhost:4040"), ("origin", origin)]), Some(Denied::ForeignOrigin));
        }
        assert_eq!(Auth::Open.tenant(&headers(&[("host", "varve.example")])).err(), None);
    }

    #[test]
    fn with_tokens_one_of_them_is_needed() {
        let auth = Auth::from_token_file("# two\n0123456789abcdef\n\n fedcba9876543210 \n").unwrap();
        assert_eq!(auth.bearer(None).err(), Some(Denied::NoToken));
        assert_eq!(auth.bearer(Some("Basic 0123456789abcdef")).err(), Some(Denied::NoToken));
        assert_eq!(auth.bearer(Some("Bearer 0123456789abcdeF")).err(), Some(Denied::WrongToken));
        assert_eq!(auth.bearer(Some("Bearer 0123456789abcde")).err(), Some(Denied::WrongToken));
        assert_eq!(auth.bearer(Some("bearer fedcba9876543210")).err(), None);
        assert_eq!(auth.tenant(&headers(&[("host", "x.example")])).err(), Some(Denied::NoToken));
    }

    #[test]
    fn a_token_file_without_usable_tokens_is_refused_and_tokens_are_never_printed() {
        assert!(matches!(Auth::from_token_file("# none\n"), Err(TokenFileError::Empty)));
        assert!(matches!(Auth::from_token_file("\nshort\n"), Err(TokenFileError::TooShort { line: 2 })));
        assert!(!format!("{:?}", Auth::from_token_file("0123456789abcdef").unwrap()).contains("0123"));
    }
}
