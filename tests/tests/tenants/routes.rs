//! Tests of every route in the table of routes: with each token that it must refuse, and with two tenants that have
//! equal services and labels.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use proto::meta::Role;
use router::auth::{Needs, Port, ROUTES, Route};
use serde_json::Value;
use tests::cluster::administration::Administration;
use tests::grpc::{Sending, export};
use tests::http::{encode, request};
use tests::payload::otlp::{Request, now_ns, stack};
use tests::server::{Processes, Setup, Varve};
use tonic::Code;

const OTLP: (&str, &str) = ("content-type", "application/x-protobuf");
/// Text that only profiles of tenant a have, in a function, a service and a label.
const SECRET: &str = "secret_of_a";

/// A varve with the tenants a, b and default, and tokens of each.
struct Tenants {
    varve: Varve,
    /// Tokens by tenant and role.
    tokens: BTreeMap<(&'static str, &'static str), String>,
    /// Tokens that are not valid: unknown, expired and revoked.
    invalid: Vec<(&'static str, String)>,
}

const TENANTS: [&str; 3] = ["a", "b", "default"];
const ROLES: [(&str, Role); 3] = [("push", Role::Push), ("read", Role::Read), ("admin", Role::Admin)];

impl Tenants {
    fn start(processes: Processes) -> Self {
        let environment = vec![("VARVE_REQUIRE_TOKEN".to_owned(), "true".to_owned())];
        let varve = Varve::start(Setup { processes, environment, ..Setup::default() });
        let admin = Administration::of(&varve);
        let mut tokens = BTreeMap::new();
        for tenant in TENANTS {
            admin.create_tenant(tenant, &[]);
            for (role, _) in ROLES {
                tokens.insert((tenant, role), admin.create_token(tenant, role, &[]).0);
            }
        }
        let (expired, _) = admin.create_token("a", "admin", &["--expires", "1s"]);
        let (revoked, hash) = admin.create_token("a", "admin", &[]);
        let started = Self { varve, tokens, invalid: Vec::new() };
        let labels = |token: &str| started.get("/api/v1/labels", Some(token)).0;
        // The router knows each token within a second.
        let begun = Instant::now();
        while labels(&revoked) != 200 {
            assert!(begun.elapsed() < Duration::from_secs(10), "the router does not learn a token");
            std::thread::sleep(Duration::from_millis(10));
        }
        let _revoked = admin.text(&["token", "revoke", &hash]);
        while labels(&revoked) == 200 || labels(&expired) == 200 {
            assert!(begun.elapsed() < Duration::from_secs(10), "a token stays valid");
            std::thread::sleep(Duration::from_millis(10));
        }
        let unknown = "varve_0123456789abcdef0123456789abcdef".to_owned();
        let invalid = vec![("unknown", unknown), ("expired", expired), ("revoked", revoked)];
        Self { invalid, ..started }
    }

    fn token(&self, tenant: &'static str, role: &'static str) -> &str {
        &self.tokens[&(tenant, role)]
    }

    fn get(&self, path: &str, token: Option<&str>) -> (u16, String) {
        let authorization = token.map(|token| format!("Bearer {token}"));
        let headers: Vec<_> = authorization.iter().map(|value| ("authorization", value.as_str())).collect();
        let reply = request("GET", &format!("http://{}{path}", self.varve.http), &headers, None).unwrap();
        (reply.status, reply.text())
    }

    /// Sends the usual request to a route. Returns the status, which is the HTTP status that means the same for a call
    /// over gRPC, and the text of the response.
    fn ask(&self, route: &Route, token: Option<&str>) -> (u16, String) {
        let Example { path, content_type, body } = example(route);
        if route.port == Port::OtlpGrpc {
            return match export(&self.varve.grpc, &body.unwrap(), Sending { token, ..Sending::default() }) {
                Ok(_) => (200, String::new()),
                Err(status) if status.code() == Code::Unauthenticated => (401, status.message().to_owned()),
                Err(status) if status.code() == Code::PermissionDenied => (403, status.message().to_owned()),
                Err(status) => panic!("{status}"),
            };
        }
        let address = if route.port == Port::Http { &self.varve.http } else { &self.varve.otlp };
        let authorization = token.map(|token| format!("Bearer {token}"));
        let mut headers: Vec<_> = authorization.iter().map(|value| ("authorization", value.as_str())).collect();
        headers.extend(content_type.map(|kind| ("content-type", kind)));
        let url = format!("http://{address}{path}");
        // A server that refuses a request may close the connection before it has read the body.
        let reply = (0..5).find_map(|_| request(route.method, &url, &headers, body.as_deref()).ok());
        let reply = reply.unwrap_or_else(|| panic!("{url} does not respond"));
        (reply.status, reply.text())
    }

    /// Pushes a sample with the same service and labels for each tenant, and one that names the tenant.
    fn push(&self, tenant: &'static str) {
        let secret = format!("secret_of_{tenant}");
        let named = |service: &str, function: &str| {
            let mut push = Request::new(service).seen(stack(&[function, "main"]), vec![now_ns()]);
            push.attributes.push(("region".to_owned(), "eu".to_owned()));
            push
        };
        let equal = named("api", &secret);
        let mut own = named(&secret, &secret);
        own.attributes.push((secret.clone(), secret.clone()));
        let authorization = format!("Bearer {}", self.token(tenant, "push"));
        for push in [equal, own] {
            let url = format!("http://{}/v1development/profiles", self.varve.otlp);
            let reply = request("POST", &url, &[OTLP, ("authorization", &authorization)], Some(&push.bytes())).unwrap();
            assert_eq!(reply.status, 200, "{}", reply.text());
        }
    }

    /// Returns the number of samples of the service api that a tenant sees.
    fn api_samples(&self, tenant: &'static str) -> u64 {
        let query = "sum(sum_over_time(process_cpu{service_name=\"api\"}[1h]))";
        let at = format!("{}", now_ns() as f64 / 1e9 + 1.0);
        let path = format!("/api/v1/query?{}", encode(&[("query", query), ("time", &at)]));
        let (status, text) = self.get(&path, Some(self.token(tenant, "read")));
        assert_eq!(status, 200, "{text}");
        let reply: Value = serde_json::from_str(&text).unwrap();
        let value = reply["data"]["result"][0]["value"][1].as_str().map_or(0.0, |value| value.parse().unwrap());
        (value / tests::payload::otlp::PERIOD_NS as f64) as u64
    }
}

/// The usual request to a route.
struct Example {
    path: String,
    content_type: Option<&'static str>,
    body: Option<Vec<u8>>,
}

/// Returns the usual request to a route. A new route needs one, so that its rights are tested.
fn example(route: &Route) -> Example {
    let window = encode(&[("query", "process_cpu"), ("start", "now-1h"), ("end", "now"), ("step", "60")]);
    let otlp = || Request::new("refused").seen(stack(&["refused", "main"]), vec![now_ns()]).bytes();
    let empty = || Some(Vec::new());
    let (path, body) = match route.path {
        "/api/v1/push" => ("/api/v1/push?service_name=refused".to_owned(), Some(b"no pprof".to_vec())),
        "/v1development/profiles" => (route.path.to_owned(), Some(otlp())),
        path if route.port == Port::OtlpGrpc => (path.to_owned(), Some(otlp())),
        "/api/v1/query" => ("/api/v1/query?query=process_cpu".to_owned(), None),
        "/api/v1/query_range" | "/api/v1/flamegraph" => (format!("{}?{window}", route.path), None),
        "/api/v1/series" => ("/api/v1/series?match[]=process_cpu".to_owned(), None),
        "/api/v1/label/{name}/values" => ("/api/v1/label/service_name/values".to_owned(), None),
        "/api/v1/labels" | "/api/v1/metadata" | "/api/v1/status/buildinfo" => (route.path.to_owned(), None),
        "/api/v1/delete" => {
            let nothing = encode(&[("query", "{service_name=\"none\"}"), ("start", "now-1h"), ("end", "now")]);
            (format!("/api/v1/delete?{nothing}"), empty())
        }
        "/api/v1/debuginfo" if route.method == "DELETE" => ("/api/v1/debuginfo?build_id=gnu:00".to_owned(), None),
        "/api/v1/debuginfo" => (route.path.to_owned(), Some(b"no ELF file".to_vec())),
        "/api/v1/agent" | "/metrics" | "/api/v1/admin/stats" | "/api/v1/admin/clock" => (route.path.to_owned(), None),
        "/api/v1/admin/compact" | "/api/v1/admin/verify" | "/api/v1/admin/clock/accept" => {
            (route.path.to_owned(), empty())
        }
        "/healthz" | "/-/healthy" | "/ready" | "/-/ready" | "/" | "/favicon.svg" => (route.path.to_owned(), None),
        "/assets/{*path}" => ("/assets/none.js".to_owned(), None),
        other => panic!("{other} has no usual request: add one, so that its rights are tested"),
    };
    let content_type = (route.port == Port::OtlpHttp).then_some(OTLP.1);
    Example { path, content_type, body }
}

/// Returns true if a token of this tenant and role may use a route.
fn may(needs: Needs, tenant: &str, role: Role) -> bool {
    // Written out again, so that a fault of the router's own rule is found.
    match needs {
        Needs::Nothing => true,
        Needs::Tenant(needed) => role == needed || role == Role::Admin,
        Needs::Operator(needed) => tenant == "default" && (role == needed || role == Role::Admin),
    }
}

#[test]
fn every_route_refuses_every_token_that_has_no_right_to_it() {
    for processes in [Processes::One, Processes::Three] {
        let tenants = Tenants::start(processes);
        tenants.push("a");
        tenants.push("b");
        let mut refused = 0;
        for route in &ROUTES {
            let name = format!("{} {}", route.method, route.path);
            let (status, text) = tenants.ask(route, None);
            let is_public = route.needs == Needs::Nothing;
            assert_eq!(status == 401, !is_public, "{name} without a token: {status} {text}");
            for (what, token) in &tenants.invalid {
                let (invalid_status, invalid_text) = tenants.ask(route, Some(token));
                assert_eq!(invalid_status, status, "{name} with a token that is {what}: {invalid_text}");
                // One text for all, so that it tells nothing about the token.
                assert!(is_public || invalid_text == text, "{name} {what}: {invalid_text} is not {text}");
            }
            for tenant in TENANTS {
                for (role_name, role) in ROLES {
                    let (status, text) = tenants.ask(route, Some(tenants.token(tenant, role_name)));
                    if may(route.needs, tenant, role) {
                        assert!(
                            ![401, 403, 500, 503].contains(&status),
                            "{name} as {tenant}/{role_name}: {status} {text}"
                        );
                    } else {
                        assert_eq!(status, 403, "{name} as {tenant}/{role_name}: {text}");
                        refused += 1;
                    }
                    // The operator sees the sizes of all data, with the names of labels.
                    let is_operator = matches!(route.needs, Needs::Operator(_)) && status == 200;
                    assert!(
                        is_operator || (tenant == "a" && status != 403) || !text.contains(SECRET),
                        "{name} as {tenant}/{role_name}: {text}"
                    );
                }
            }
        }
        assert!(refused >= 100, "only {refused} requests were refused");
    }
}

#[test]
fn nothing_of_one_tenant_is_in_the_responses_to_another() {
    for processes in [Processes::One, Processes::Three] {
        let tenants = Tenants::start(processes);
        (0..3).for_each(|_| tenants.push("a"));
        tenants.push("b");
        let window = [("start", "now-1h"), ("end", "now")];
        let with = |path: &str, more: &[(&str, &str)]| format!("{path}?{}", encode(&[&window[..], more].concat()));
        let secret = format!("process_cpu{{service_name=\"{SECRET}\"}}");
        let paths = [
            with("/api/v1/labels", &[]),
            with("/api/v1/label/service_name/values", &[]),
            with("/api/v1/label/stack_function/values", &[("match[]", "process_cpu")]),
            with("/api/v1/label/region/values", &[]),
            with("/api/v1/series", &[("match[]", "process_cpu")]),
            with("/api/v1/metadata", &[]),
            with(
                "/api/v1/query_range",
                &[("query", "sum by (stack_function) (rate(process_cpu[5m]))"), ("step", "60")],
            ),
            with("/api/v1/query_range", &[("query", "topk(5, sum by (service_name) (process_cpu))"), ("step", "60")]),
            with("/api/v1/flamegraph", &[("query", "process_cpu")]),
            with("/api/v1/flamegraph", &[("query", "process_cpu"), ("format", "folded")]),
            with("/api/v1/flamegraph", &[("query", "{service_name=~\".*\"}")]),
            // Errors, and queries for what only the other tenant has.
            with("/api/v1/query_range", &[("query", "rate(process_cpu)"), ("step", "60")]),
            with("/api/v1/query_range", &[("query", "process_cpu + on(region) process_cpu"), ("step", "60")]),
        ];
        for path in &paths {
            let (_, of_a) = tenants.get(path, Some(tenants.token("a", "read")));
            let (_, of_b) = tenants.get(path, Some(tenants.token("b", "read")));
            assert!(!of_b.contains(SECRET), "{path}: {of_b}");
            assert!(!of_a.contains("secret_of_b"), "{path}: {of_a}");
        }
        // The test can find what it looks for.
        for path in &paths[1..3] {
            assert!(tenants.get(path, Some(tenants.token("a", "read"))).1.contains(SECRET), "{path}");
        }
        let flamegraph = with("/api/v1/flamegraph", &[("query", &secret)]);
        let none = with("/api/v1/flamegraph", &[("query", "process_cpu{service_name=\"nobody\"}")]);
        let as_b = |path: &str| tenants.get(path, Some(tenants.token("b", "read")));
        let total = |text: &str| serde_json::from_str::<Value>(text).unwrap()["data"]["total"].clone();
        assert_eq!(as_b(&flamegraph).0, as_b(&none).0);
        assert_eq!(total(&as_b(&flamegraph).1), total(&as_b(&none).1), "what only a has is as what nobody has");
        assert_eq!((tenants.api_samples("a"), tenants.api_samples("b")), (3, 1));
        // A deletion of one tenant leaves the equal series of the other.
        let delete = with("/api/v1/delete", &[("query", "{service_name=\"api\"}")]);
        let authorization = format!("Bearer {}", tenants.token("b", "admin"));
        let url = format!("http://{}{delete}", tenants.varve.http);
        let deleted = request("POST", &url, &[("authorization", &authorization)], Some(b"")).unwrap().expect(200);
        assert_eq!(deleted.json()["data"]["samples"], 1);
        assert_eq!((tenants.api_samples("a"), tenants.api_samples("b")), (3, 0));
    }
}
