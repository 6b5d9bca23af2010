//! The table of all routes, with the right that each needs. Every port checks requests against this table only.
//!
//! Invariant: a route without an entry is refused, so nothing is served by mistake.

use proto::meta::Role;

/// Path of the gRPC method of OTLP.
pub(crate) const OTLP_EXPORT: &str = "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export";

/// Port of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// `--http-listen`.
    Http,
    /// `--otlp-http-listen`.
    OtlpHttp,
    /// `--otlp-grpc-listen`.
    OtlpGrpc,
}

/// Right that a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// No right, because the route holds nothing of any tenant.
    Nothing,
    /// A role in the tenant whose profiles the route reads or changes.
    Tenant(Role),
    /// A role in the tenant `default`, which is that of the operator, because the route is about all tenants.
    Operator(Role),
}

impl Needs {
    /// Returns true if a role is enough. An admin may also read and push.
    #[must_use]
    pub fn allows(self, role: Role) -> bool {
        match self {
            Self::Nothing => true,
            Self::Tenant(needed) | Self::Operator(needed) => role == Role::Admin || role == needed,
        }
    }
}

/// A route, and the right that it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// Port on which the route is.
    pub port: Port,
    /// Method of the request. A method of the path that has no entry needs the right of the path's first entry.
    pub method: &'static str,
    /// Path, in which `{name}` stands for one segment and `{*name}` for the rest.
    pub path: &'static str,
    /// Right that a request needs.
    pub needs: Needs,
}

const fn http(method: &'static str, path: &'static str, needs: Needs) -> Route {
    Route { port: Port::Http, method, path, needs }
}

const PUSH: Needs = Needs::Tenant(Role::Push);
const READ: Needs = Needs::Tenant(Role::Read);
const OPERATOR: Needs = Needs::Operator(Role::Admin);

/// All routes.
pub const ROUTES: [Route; 28] = [
    http("POST", "/api/v1/push", PUSH),
    Route { port: Port::OtlpHttp, method: "POST", path: "/v1development/profiles", needs: PUSH },
    Route { port: Port::OtlpGrpc, method: "POST", path: OTLP_EXPORT, needs: PUSH },
    http("GET", "/api/v1/query", READ),
    http("GET", "/api/v1/query_range", READ),
    http("GET", "/api/v1/series", READ),
    http("GET", "/api/v1/labels", READ),
    http("GET", "/api/v1/label/{name}/values", READ),
    http("GET", "/api/v1/metadata", READ),
    http("GET", "/api/v1/status/buildinfo", READ),
    http("GET", "/api/v1/flamegraph", READ),
    http("POST", "/api/v1/delete", Needs::Tenant(Role::Admin)),
    http("POST", "/api/v1/debuginfo", PUSH),
    http("DELETE", "/api/v1/debuginfo", Needs::Tenant(Role::Admin)),
    // The agent in this process pushes as the operator's tenant.
    http("GET", "/api/v1/agent", Needs::Operator(Role::Read)),
    // The metrics count the requests of all tenants.
    http("GET", "/metrics", Needs::Operator(Role::Read)),
    http("POST", "/api/v1/admin/compact", OPERATOR),
    http("GET", "/api/v1/admin/stats", OPERATOR),
    http("POST", "/api/v1/admin/verify", OPERATOR),
    http("GET", "/api/v1/admin/clock", OPERATOR),
    http("POST", "/api/v1/admin/clock/accept", OPERATOR),
    http("GET", "/healthz", Needs::Nothing),
    http("GET", "/-/healthy", Needs::Nothing),
    http("GET", "/ready", Needs::Nothing),
    http("GET", "/-/ready", Needs::Nothing),
    http("GET", "/", Needs::Nothing),
    http("GET", "/assets/{*path}", Needs::Nothing),
    http("GET", "/favicon.svg", Needs::Nothing),
];

/// Returns the right that a request needs; `None` if its path has no entry.
pub(crate) fn needs(method: &str, path: &str) -> Option<Needs> {
    let mut routes = ROUTES.iter().filter(|route| route.path == path);
    let first = routes.clone().next();
    routes.find(|route| route.method == method).or(first).map(|route| route.needs)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};

    use super::*;

    /// Returns the paths of all calls of `route` in the sources below a folder, without tests. A path that is no
    /// literal is not found here, and refused at run time.
    fn served(folder: &Path, paths: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                served(&path, paths);
            } else if path.extension().is_some_and(|extension| extension == "rs") && !path.ends_with("tests.rs") {
                let text: String = std::fs::read_to_string(&path).unwrap().split_whitespace().collect();
                // The text is in two parts, so that this line is not found.
                let parts = text.split(concat!(".route", "(\"")).skip(1);
                paths.extend(parts.filter_map(|part| part.split('"').next()).map(str::to_owned));
            }
        }
    }

    #[test]
    fn exactly_the_routes_that_are_served_have_an_entry() {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut paths = BTreeSet::from([OTLP_EXPORT.to_owned()]);
        served(&root.join("router/src"), &mut paths);
        served(&root.join("varve/src"), &mut paths);
        let entries: BTreeSet<String> = ROUTES.iter().map(|route| route.path.to_owned()).collect();
        assert_eq!(paths, entries);
        let requests: BTreeSet<_> = ROUTES.iter().map(|route| (route.path, route.method)).collect();
        assert_eq!(requests.len(), ROUTES.len(), "each request has one entry");
    }

    #[test]
    fn a_method_without_an_entry_needs_the_right_of_the_path() {
        assert_eq!(needs("DELETE", "/api/v1/debuginfo"), Some(Needs::Tenant(Role::Admin)));
        assert_eq!(needs("POST", "/api/v1/debuginfo"), Some(PUSH));
        assert_eq!(needs("PUT", "/api/v1/debuginfo"), Some(PUSH));
        assert_eq!(needs("POST", "/api/v1/query"), Some(READ));
        assert_eq!(needs("GET", "/api/v1/none"), None);
    }

    #[test]
    fn an_admin_may_read_and_push_and_nobody_else_more_than_one_of_them() {
        let roles = [Role::Push, Role::Read, Role::Admin];
        for needed in roles {
            for role in roles {
                let is_allowed = role == needed || role == Role::Admin;
                assert_eq!(Needs::Tenant(needed).allows(role), is_allowed, "{role:?} on {needed:?}");
                assert_eq!(Needs::Operator(needed).allows(role), is_allowed, "{role:?} on {needed:?}");
            }
        }
    }
}
