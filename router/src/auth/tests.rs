//! Tests of authentication and authorization.

use std::sync::Arc;

use proto::meta::{Limits, State, Token};
use tokio::sync::watch;

use super::*;
use crate::auth::tenants::tests::state;

const READ: &str = "/api/v1/query";
const PUSH: &str = "/api/v1/push";
const DELETE: &str = "/api/v1/delete";
const METRICS: &str = "/metrics";
const FILE_TOKEN: &str = "0123456789abcdef";

fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
    pairs.iter().map(|&(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
}

/// Returns the answer to a request with this token, from a host that is not loopback.
async fn ask(auth: &Auth, path: &str, token: Option<&str>) -> Result<String, Denied> {
    let bearer = token.map(|token| format!("Bearer {token}"));
    let mut pairs = vec![("host", "varve.example")];
    pairs.extend(bearer.iter().map(|bearer| ("authorization", bearer.as_str())));
    auth.http(&Method::GET, Some(path), &headers(&pairs)).await.map(|tenant| tenant.as_str().to_owned())
}

fn token(role: Role) -> Token {
    Token { role, expires_ns: None }
}

fn two_tenants() -> Arc<State> {
    let expired = Token { role: Role::Admin, expires_ns: Some(1) };
    let of_a = [("a-push", token(Role::Push)), ("a-read", token(Role::Read)), ("a-admin", token(Role::Admin))];
    let of_b = [("b-read", token(Role::Read)), ("b-expired", expired)];
    let of_default = [("d-read", token(Role::Read)), ("d-admin", token(Role::Admin))];
    let none = Limits::default();
    state(&[("a", none, &of_a), ("b", none, &of_b), ("default", none, &of_default)])
}

fn with(auth: Auth, state: Arc<State>) -> (watch::Sender<Arc<State>>, Auth) {
    let (states, receiver) = watch::channel(state);
    (states, auth.with_tenants(Tenants::of_node(receiver)))
}

#[tokio::test]
async fn without_tokens_host_must_be_loopback_and_origin_the_same() {
    async fn check(auth: &Auth, pairs: &[(&'static str, &str)]) -> Option<Denied> {
        auth.http(&Method::GET, Some(READ), &headers(pairs)).await.err()
    }
    let auth = Auth::loopback();
    assert_eq!(check(&auth, &[("host", "127.0.0.1:4040")]).await, None);
    assert_eq!(check(&auth, &[("host", "localhost")]).await, None);
    assert_eq!(check(&auth, &[("host", "[::1]:4040")]).await, None);
    assert_eq!(check(&auth, &[("host", "evil.example:4040")]).await, Some(Denied::ForeignHost));
    assert_eq!(check(&auth, &[("host", "127.0.0.1.evil.example")]).await, Some(Denied::ForeignHost));
    let own = [("host", "localhost:4040"), ("origin", "http://localhost:4040")];
    assert_eq!(check(&auth, &own).await, None);
    for origin in ["http://evil.example", "null", "http://localhost:4041"] {
        let foreign = [("host", "localhost:4040"), ("origin", origin)];
        assert_eq!(check(&auth, &foreign).await, Some(Denied::ForeignOrigin));
    }
    assert_eq!(check(&Auth::open(), &[("host", "varve.example")]).await, None);
}

#[tokio::test]
async fn tokens_of_a_file_have_all_rights_of_the_default_tenant() {
    let (_states, auth) = with(Auth::tokens(Tokens::parse(FILE_TOKEN).unwrap()), two_tenants());
    for path in [READ, PUSH, DELETE, METRICS, "/api/v1/admin/stats", "/api/v1/debuginfo"] {
        assert_eq!(ask(&auth, path, None).await, Err(Denied::Unauthenticated));
        assert_eq!(ask(&auth, path, Some("0123456789abcdeF")).await, Err(Denied::Unauthenticated));
        assert_eq!(ask(&auth, path, Some(FILE_TOKEN)).await, Ok("default".to_owned()));
    }
    // Tokens of the meta group work beside them.
    assert_eq!(ask(&auth, READ, Some("a-read")).await, Ok("a".to_owned()));
}

#[tokio::test]
async fn a_token_of_the_meta_group_has_its_role_in_its_tenant() {
    let (_states, auth) = with(Auth::required(), two_tenants());
    let role = |role| Err(Denied::Role(role));
    let of_a = || Ok("a".to_owned());
    assert_eq!(ask(&auth, PUSH, Some("a-push")).await, of_a());
    assert_eq!(ask(&auth, READ, Some("a-push")).await, role(Role::Read));
    assert_eq!(ask(&auth, READ, Some("a-read")).await, of_a());
    assert_eq!(ask(&auth, PUSH, Some("a-read")).await, role(Role::Push));
    assert_eq!(ask(&auth, DELETE, Some("a-read")).await, role(Role::Admin));
    for path in [PUSH, READ, DELETE] {
        assert_eq!(ask(&auth, path, Some("a-admin")).await, of_a());
    }
    assert_eq!(ask(&auth, READ, Some("b-read")).await, Ok("b".to_owned()));
    // What is about all tenants is only for the operator.
    assert_eq!(ask(&auth, METRICS, Some("a-admin")).await, Err(Denied::NotOperator(Role::Read)));
    assert_eq!(ask(&auth, METRICS, Some("d-read")).await, Ok("default".to_owned()));
    assert_eq!(ask(&auth, "/api/v1/admin/stats", Some("d-read")).await, role(Role::Admin));
    assert_eq!(ask(&auth, "/api/v1/admin/stats", Some("d-admin")).await, Ok("default".to_owned()));
    // The same rules hold over gRPC.
    let grpc = |token: &'static str| auth.grpc(OTLP_EXPORT, Some(token));
    assert_eq!(grpc("Bearer a-read").await, Err(Denied::Role(Role::Push)));
    assert_eq!(grpc("Bearer a-push").await.unwrap().as_str(), "a");
}

#[tokio::test]
async fn all_tokens_that_are_not_valid_are_refused_with_one_text() {
    let (states, auth) = with(Auth::required(), two_tenants());
    let mut texts = Vec::new();
    for token in [None, Some(""), Some("unknown"), Some("b-expired"), Some("a-reaD"), Some("a-read,a-admin")] {
        texts.push(ask(&auth, READ, token).await.unwrap_err().to_string());
    }
    assert!(ask(&auth, READ, Some("a-read")).await.is_ok());
    // Revoked.
    states.send_replace(state(&[]));
    texts.push(ask(&auth, READ, Some("a-read")).await.unwrap_err().to_string());
    texts.dedup();
    assert_eq!(texts.len(), 1, "{texts:?}");
    let basic = headers(&[("authorization", "Basic a-read")]);
    assert_eq!(auth.http(&Method::GET, Some(READ), &basic).await, Err(Denied::Unauthenticated));
}

#[tokio::test]
async fn the_first_token_of_the_meta_group_ends_anonymous_access() {
    for auth in [Auth::loopback(), Auth::open()] {
        let (states, auth) = with(auth, state(&[("a", Limits::default(), &[])]));
        let local = headers(&[("host", "localhost")]);
        assert_eq!(auth.http(&Method::GET, Some(READ), &local).await.unwrap().as_str(), "default");
        states.send_replace(two_tenants());
        assert_eq!(auth.http(&Method::GET, Some(READ), &local).await, Err(Denied::Unauthenticated));
        assert_eq!(ask(&auth, READ, Some("a-read")).await, Ok("a".to_owned()));
        // After the last token is revoked, nobody gets in with it.
        states.send_replace(state(&[("a", Limits::default(), &[])]));
        assert_eq!(ask(&auth, READ, Some("a-read")).await, Err(Denied::Unauthenticated));
        states.send_replace(two_tenants());
        // The agent in this process still pushes, and does nothing else.
        let own = Tokens::parse("varve_fedcba9876543210").unwrap();
        let auth = auth.with_own_agent(own);
        assert_eq!(ask(&auth, PUSH, Some("varve_fedcba9876543210")).await, Ok("default".to_owned()));
        assert_eq!(ask(&auth, READ, Some("varve_fedcba9876543210")).await, Err(Denied::Role(Role::Read)));
    }
    // With a required token, a cluster without any token serves nobody.
    let (_states, auth) = with(Auth::required(), state(&[]));
    assert_eq!(ask(&auth, READ, None).await, Err(Denied::Unauthenticated));
    assert_eq!(ask(&auth, READ, Some("a-read")).await, Err(Denied::Unauthenticated));
}

#[tokio::test]
async fn nobody_is_let_in_before_the_tokens_are_known() {
    let early = [Auth::loopback(), Auth::open(), Auth::required()].map(|auth| async {
        let (_states, auth) = with(auth, Arc::default());
        let local = headers(&[("host", "localhost"), ("authorization", "Bearer a-read")]);
        auth.http(&Method::GET, Some(PUSH), &local).await
    });
    for denied in futures::future::join_all(early).await {
        // Not a refusal after which senders drop the push.
        assert!(matches!(denied, Err(Denied::Unknown(_))), "{denied:?}");
    }
    let (_states, auth) = with(Auth::tokens(Tokens::parse(FILE_TOKEN).unwrap()), Arc::default());
    assert_eq!(ask(&auth, READ, Some(FILE_TOKEN)).await, Ok("default".to_owned()));
}

#[tokio::test]
async fn routes_without_an_entry_serve_nobody() {
    let auth = Auth::open();
    assert_eq!(ask(&auth, "/api/v1/forgotten", None).await, Err(Denied::NoEntry));
    // A path without a route is answered with its own error, but only to those who have a token.
    assert!(auth.http(&Method::GET, None, &HeaderMap::new()).await.is_ok());
    assert_eq!(Auth::required().http(&Method::GET, None, &HeaderMap::new()).await, Err(Denied::Unauthenticated));
}
