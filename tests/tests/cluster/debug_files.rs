//! Tests of names at several routers: a debug file that was uploaded at one router names frames at all of them.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testkit::ports::free_addresses;
use tests::cluster::Cluster;
use tests::http::{self, encode};
use tests::payload::otlp::{Frame, Request, now_ns};
use tests::program::Program;
use tests::report::{alone, figure, skipped};
use tests::shared::varve_binary;

const SOURCE: &str = "__attribute__((noinline, noipa)) int uploaded_function(int x) { return x * 3; }\n\
                      int main(int count, char **all) { return uploaded_function(count); }\n";

/// Longest time after an upload until another router has the names. The routers look for changes every second, and the
/// machine of a test may be slow.
const NAMED_WITHIN: Duration = Duration::from_secs(10);

/// Pushes one sample, whose leaf is this address of a file.
fn push(cluster: &Cluster, service: &str, file: &str, build_id: &str, address: u64) {
    let leaf = Frame::Native { build_id: build_id.to_owned(), file: file.to_owned(), address };
    let body = Request::new(service).seen(vec![leaf, "caller".into()], vec![now_ns()]).bytes();
    let token = format!("Bearer {}", cluster.token("push"));
    let headers = [("content-type", "application/x-protobuf"), ("authorization", token.as_str())];
    let url = format!("{}/v1development/profiles", cluster.routers("otlp_http")[0]);
    assert_eq!(http::request("POST", &url, &headers, Some(&body)).unwrap().status, 200);
}

/// Returns the flame graph of a service at a router.
fn graph(cluster: &Cluster, router: usize, service: &str) -> Value {
    let now_s = now_ns() / 1_000_000_000;
    let query = format!("process_cpu{{service_name=\"{service}\"}}");
    let (start, end) = ((now_s - 600).to_string(), (now_s + 10).to_string());
    let parameters = encode(&[("query", &query), ("start", &start), ("end", &end), ("format", "json")]);
    let url = format!("{}/api/v1/flamegraph?{parameters}", cluster.routers("http")[router]);
    let token = format!("Bearer {}", cluster.token("read"));
    http::request("GET", &url, &[("authorization", &token)], None).unwrap().expect(200).json()
}

fn has_name(graph: &Value, name: &str) -> bool {
    graph["names"].as_array().unwrap().iter().any(|known| known == name)
}

fn upload(cluster: &Cluster, router: usize, program: &Program) {
    let mut command = Command::new(varve_binary());
    command.arg("upload").arg(&program.path).args(["--endpoint", &cluster.routers("http")[router]]);
    let output = command.env("VARVE_TOKEN_FILE", cluster.folder().join("token-push")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Uploads a file at one router of a cluster, and expects its names at both: also after the other router has lost its
/// directory, and no longer after a removal.
fn check_names_at_both_routers(cluster: &Cluster) {
    let program = Program::compile("shared", SOURCE, &["-O2"]);
    let build_id = Program::build_id(&program.path);
    let (address, _) = Program::symbol(&program.path, "uploaded_function");
    // The path exists on this host. A router must not read the file there.
    push(cluster, "shared", program.path.to_str().unwrap(), &build_id, address);
    for router in [0, 1] {
        let graph = graph(cluster, router, "shared");
        assert!(!has_name(&graph, "uploaded_function"), "router {router} read its host's file: {graph}");
        assert_eq!(graph["symbolization"]["unnamed"][0]["reason"], "no_debug_file", "{graph}");
    }
    upload(cluster, 0, &program);
    assert!(has_name(&graph(cluster, 0, "shared"), "uploaded_function"), "the router that received it");
    let start = Instant::now();
    while !has_name(&graph(cluster, 1, "shared"), "uploaded_function") {
        assert!(start.elapsed() < NAMED_WITHIN, "{}", graph(cluster, 1, "shared"));
        std::thread::sleep(Duration::from_millis(50));
    }
    let named_s = start.elapsed().as_secs_f64();
    figure(&json!({"figure": "debug_file_at_other_router", "named_after_s": named_s}));
    cluster.replace_router(1);
    assert!(has_name(&graph(cluster, 1, "shared"), "uploaded_function"), "{}", graph(cluster, 1, "shared"));
    let url = format!("{}/api/v1/debuginfo?build_id=gnu:{build_id}", cluster.routers("http")[1]);
    let token = format!("Bearer {}", cluster.token("admin"));
    let removed = http::request("DELETE", &url, &[("authorization", &token)], None).unwrap().expect(200).json();
    assert_eq!(removed["data"]["tables"], 1);
    let start = Instant::now();
    while [0, 1].iter().any(|&router| has_name(&graph(cluster, router, "shared"), "uploaded_function")) {
        assert!(start.elapsed() < NAMED_WITHIN, "the names stay");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn an_upload_at_one_router_names_frames_at_both_also_after_a_kill() {
    let _alone = alone();
    check_names_at_both_routers(&Cluster::up(1, 2));
}

/// A server that responds like S3, which is killed when this value is dropped.
struct S3 {
    server: Child,
    url: String,
}

impl S3 {
    /// Starts a server with an empty bucket `names`. `None` if the server is not installed.
    fn start() -> Option<Self> {
        let tools = std::env::var("VARVE_TOOLS").unwrap_or(format!("{}/.cache/varve", std::env::var("HOME").ok()?));
        let program = format!("{tools}/moto/bin/moto_server");
        let [address] = free_addresses();
        let port = address.rsplit(':').next()?;
        let command = Command::new(program).args(["-p", port]).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let s3 = Self { server: command.ok()?, url: format!("http://127.0.0.1:{port}") };
        let start = Instant::now();
        while !http::request("PUT", &format!("{}/names", s3.url), &[], None).is_ok_and(|reply| reply.status == 200) {
            assert!(start.elapsed() < Duration::from_secs(60), "the server does not respond");
            std::thread::sleep(Duration::from_millis(100));
        }
        Some(s3)
    }
}

impl Drop for S3 {
    fn drop(&mut self) {
        let _killed = self.server.kill().is_ok() && self.server.wait().is_ok();
    }
}

#[test]
fn routers_share_uploads_through_s3_and_say_when_it_is_away() {
    let _alone = alone();
    let Some(s3) = S3::start() else {
        return skipped("routers_share_uploads_through_s3", "moto is missing: run scripts/install-build-tools --test");
    };
    let environment = [
        ("VARVE_DEBUG_FILES", "s3://names/fleet/one"),
        ("AWS_ENDPOINT_URL", s3.url.as_str()),
        ("AWS_ALLOW_HTTP", "true"),
        ("AWS_REGION", "us-east-1"),
        ("AWS_ACCESS_KEY_ID", "any"),
        ("AWS_SECRET_ACCESS_KEY", "any"),
    ];
    let cluster = Cluster::up_with(1, 2, &environment);
    check_names_at_both_routers(&cluster);
    drop(s3);
    // Queries go on without names. A router that knows no names yet says why.
    cluster.replace_router(1);
    let start = Instant::now();
    let graph = graph(&cluster, 1, "shared");
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    let reason = &graph["symbolization"]["unnamed"][0]["reason"];
    assert!(reason == "store_unavailable", "{graph}");
}
