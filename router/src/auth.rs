//! Authentication. Only this module makes a [`TenantId`] from a request.
//!
//! Without a token file, there is one tenant, and the server listens on loopback only. The `Host` header must then name
//! a loopback address, so that no web page can reach the server by a name that resolves to 127.0.0.1 (DNS rebinding). A
//! request with an `Origin` header, which browsers add for web pages, must come from this server's own web UI.

use std::net::IpAddr;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use proto::tokens::NoToken;
use proto::{TenantId, Tokens};

use crate::api::error::ApiError;

/// Method of authenticating requests.
#[derive(Clone, Debug)]
pub enum Auth {
    /// No credential. The server listens on loopback only, and the `Host` header must name loopback.
    Loopback,
    /// No credential, because the operator chose `--insecure-listen`.
    Open,
    /// Pushes and queries need one of these bearer tokens.
    Tokens(Tokens),
}

/// The error of a request that is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Denied {
    #[error(transparent)]
    Token(#[from] NoToken),
    #[error("the Host header must name loopback (127.0.0.1, [::1] or localhost): this server has no token file")]
    ForeignHost,
    #[error("requests from web pages of other origins are refused")]
    ForeignOrigin,
}

impl Auth {
    /// Returns the tenant of an HTTP request.
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

    /// Returns the tenant of a request. `authorization` is the value of the header or metadata key with this name;
    /// `None` if the request has none.
    pub(crate) fn bearer(&self, authorization: Option<&str>) -> Result<TenantId, Denied> {
        if let Self::Tokens(tokens) = self {
            tokens.check(authorization)?;
        }
        Ok(TenantId::default_tenant())
    }
}

/// Returns whether the value of a `Host` header names loopback.
fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(bracketed) => bracketed.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _port)| name),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Middleware that refuses a request, or puts its [`TenantId`] into the extensions of the request.
pub(crate) async fn authenticate(State(auth): State<Auth>, mut request: Request, next: Next) -> Response {
    // An HTTP/2 request names the host in its URI instead of a `Host` header.
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
                Denied::Token(_) => StatusCode::UNAUTHORIZED,
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
    fn without_tokens_host_must_be_loopback_and_origin_the_same() {
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
    fn with_tokens_one_of_them_is_needed_for_any_host() {
        let auth = Auth::Tokens(Tokens::parse("0123456789abcdef").unwrap());
        assert_eq!(auth.tenant(&headers(&[("host", "x.example")])).err(), Some(Denied::Token(NoToken::Missing)));
        let token = ("authorization", "Bearer 0123456789abcdef");
        assert_eq!(auth.tenant(&headers(&[("host", "x.example"), token])).err(), None);
    }
}
