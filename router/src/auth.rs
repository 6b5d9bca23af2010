//! Authentication and authorization. Only this module makes a [`TenantId`] from a request.
//!
//! A token of the token file has all rights of the tenant `default`. A token of the meta group has a role in a tenant.
//! All tokens that are not valid are refused with the same text. [`route`] is the table of the right that each route
//! needs; [`tenants`] holds the tokens and limits that the meta group knows.
//!
//! Without any token, there is one tenant, and the server listens on loopback only. The `Host` header must then name
//! a loopback address, so that no web page can reach the server by a name that resolves to 127.0.0.1 (DNS rebinding). A
//! request with an `Origin` header, which browsers add for web pages, must come from this server's own web UI.

mod route;
pub(crate) mod tenants;

use std::net::IpAddr;

use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use proto::meta::Role;
use proto::{TenantId, Tokens};

pub(crate) use self::route::OTLP_EXPORT;
pub use self::route::{Needs, Port, ROUTES, Route};
pub use self::tenants::Tenants;
use crate::api::error::ApiError;
use crate::api::time::now_ns;

/// Method of authenticating requests. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Auth {
    anonymous: Anonymous,
    /// Tokens with all rights of the tenant `default`.
    file: Option<Tokens>,
    /// Token of the agent in this process, which may push for the tenant `default`.
    own: Option<Tokens>,
    tenants: Tenants,
}

/// Treatment of requests without a valid token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Anonymous {
    /// Accepted while neither a file nor the meta group has a token. The server listens on loopback only, and the
    /// `Host` header must name loopback.
    Loopback,
    /// The same for any host, because the operator chose `--insecure-listen`.
    Open,
    /// Refused.
    Refused,
}

/// The tenant of a request, and what it may do.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Access {
    tenant: TenantId,
    role: Role,
}

/// The error of a request that is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Denied {
    /// The token is missing, unknown, expired or revoked. One text for all, so that it tells nothing about tokens.
    #[error(
        "a valid bearer token is required: send `Authorization: Bearer TOKEN` with a token of `varve admin token \
         create`, or of the server's token file"
    )]
    Unauthenticated,
    #[error("the token is not for this: it needs the role {} of its tenant", name(*.0))]
    Role(Role),
    #[error("this is about all tenants, and needs a token of the tenant `default` with the role {}", name(*.0))]
    NotOperator(Role),
    #[error("without a token, the Host header must name loopback: 127.0.0.1, [::1] or localhost")]
    ForeignHost,
    #[error("requests from web pages of other origins are refused")]
    ForeignOrigin,
    /// The tokens of the meta group are not known yet. The text says why, if the client may know.
    #[error("{0}")]
    Unknown(String),
    /// The route has no entry in the table, which is a fault of varve.
    #[error("this route serves nobody, which is a fault of varve: report it")]
    NoEntry,
}

fn name(role: Role) -> &'static str {
    match role {
        Role::Push => "push or admin",
        Role::Read => "read or admin",
        Role::Admin => "admin",
    }
}

impl Auth {
    fn new(anonymous: Anonymous) -> Self {
        Self { anonymous, file: None, own: None, tenants: Tenants::default() }
    }

    /// Accepts requests to loopback addresses without a token.
    #[must_use]
    pub fn loopback() -> Self {
        Self::new(Anonymous::Loopback)
    }

    /// Accepts requests without a token.
    #[must_use]
    pub fn open() -> Self {
        Self::new(Anonymous::Open)
    }

    /// Requires a token of the meta group.
    #[must_use]
    pub fn required() -> Self {
        Self::new(Anonymous::Refused)
    }

    /// Requires a token of the file, or one of the meta group.
    #[must_use]
    pub fn tokens(file: Tokens) -> Self {
        Self { file: Some(file), ..Self::required() }
    }

    /// Accepts the tokens of these tenants. Requires a token as soon as there is one.
    #[must_use]
    pub fn with_tenants(self, tenants: Tenants) -> Self {
        Self { tenants, ..self }
    }

    /// Accepts a token of the agent in this process.
    #[must_use]
    pub fn with_own_agent(self, token: Tokens) -> Self {
        Self { own: Some(token), ..self }
    }

    /// Returns the tenant of an HTTP request. `path` is that of the matched route; `None` if there is no such route.
    pub(crate) async fn http(
        &self,
        method: &Method,
        path: Option<&str>,
        headers: &HeaderMap,
    ) -> Result<TenantId, Denied> {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let host = text(header::HOST);
        if let Some(origin) = text(header::ORIGIN) {
            let authority = origin.split_once("://").map(|(_, authority)| authority);
            if authority.is_none() || authority != host {
                return Err(Denied::ForeignOrigin);
            }
        }
        let is_local = host.is_none_or(is_loopback);
        self.permit(path.map(|path| (method.as_str(), path)), text(header::AUTHORIZATION), is_local).await
    }

    /// Returns the tenant of a call over gRPC. `authorization` is the value of the metadata key with this name.
    pub(crate) async fn grpc(&self, path: &str, authorization: Option<&str>) -> Result<TenantId, Denied> {
        self.permit(Some(("POST", path)), authorization, true).await
    }

    async fn permit(
        &self,
        request: Option<(&str, &str)>,
        authorization: Option<&str>,
        is_local: bool,
    ) -> Result<TenantId, Denied> {
        let Access { tenant, role } = self.access(authorization, is_local).await?;
        // A path without a route gets the error of a missing path, but only for those who have a token.
        let Some((method, path)) = request else { return Ok(tenant) };
        let needs = route::needs(method, path).ok_or(Denied::NoEntry)?;
        match needs {
            Needs::Operator(needed) if tenant != TenantId::default_tenant() => Err(Denied::NotOperator(needed)),
            Needs::Tenant(needed) | Needs::Operator(needed) if !needs.allows(role) => Err(Denied::Role(needed)),
            _ => Ok(tenant),
        }
    }

    async fn access(&self, authorization: Option<&str>, is_local: bool) -> Result<Access, Denied> {
        let of_default = |role| Access { tenant: TenantId::default_tenant(), role };
        let has = |tokens: &Option<Tokens>| tokens.as_ref().is_some_and(|tokens| tokens.check(authorization).is_ok());
        if has(&self.file) {
            return Ok(of_default(Role::Admin));
        }
        if has(&self.own) {
            return Ok(of_default(Role::Push));
        }
        let token = authorization.and_then(bearer);
        let is_required = self.anonymous == Anonymous::Refused;
        match self.anonymous {
            Anonymous::Refused if token.is_none() => return Err(Denied::Unauthenticated),
            Anonymous::Loopback if token.is_none() && !is_local => return Err(Denied::ForeignHost),
            _ => {}
        }
        let state = self.tenants.known_state(!is_required).await.map_err(|unknown| Denied::Unknown(unknown.0))?;
        if let Some((state, token)) = state.as_ref().zip(token)
            && let Ok(access) = state.access(token, now_ns())
        {
            return Ok(Access { tenant: access.tenant.name.clone(), role: access.role });
        }
        let has_tokens = state.is_some_and(|state| state.tenants.values().any(|tenant| !tenant.tokens.is_empty()));
        match self.anonymous {
            Anonymous::Refused => Err(Denied::Unauthenticated),
            // A token that was revoked, even if it was the last one, gives no right at all.
            _ if token.is_some() => Err(Denied::Unauthenticated),
            _ if has_tokens => Err(Denied::Unauthenticated),
            Anonymous::Loopback if !is_local => Err(Denied::ForeignHost),
            Anonymous::Loopback | Anonymous::Open => Ok(of_default(Role::Admin)),
        }
    }
}

/// Returns the token in the value of an `Authorization` header.
fn bearer(authorization: &str) -> Option<&str> {
    let (scheme, token) = authorization.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
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
    let path = request.extensions().get::<MatchedPath>().cloned();
    match auth.http(request.method(), path.as_ref().map(MatchedPath::as_str), request.headers()).await {
        Ok(tenant) => {
            request.extensions_mut().insert(tenant);
            next.run(request).await
        }
        Err(denied) => {
            let text = denied.to_string();
            let error = match denied {
                Denied::Unauthenticated => ApiError::denied(StatusCode::UNAUTHORIZED, text),
                Denied::Role(_) | Denied::NotOperator(_) | Denied::ForeignHost | Denied::ForeignOrigin => {
                    ApiError::denied(StatusCode::FORBIDDEN, text)
                }
                Denied::Unknown(_) => ApiError::unavailable(text),
                Denied::NoEntry => ApiError::internal(text),
            };
            error.into_response()
        }
    }
}

#[cfg(test)]
mod tests;
