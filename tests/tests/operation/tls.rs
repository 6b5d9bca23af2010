//! Tests of TLS between router and node, with the files that `varve admin certs` makes.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use proto::wire;
use proto::wire::node_client::NodeClient;
use serde_json::Value;
use tests::grpc::block_on;
use tests::http::{Reply, request};
use tests::payload::otlp::{Request, now_ns, stack};
use tests::server::{Processes, Setup, Varve, free_addresses};
use tests::shared::varve_binary;

fn push() -> Vec<u8> {
    Request::new("tls").seen(stack(&["f", "main"]), vec![now_ns()]).bytes()
}

fn run(arguments: &[&str]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    Command::new(varve_binary()).args(arguments).current_dir(folder.path()).output().unwrap()
}

/// Runs `varve admin certs` for node 1 and router a, which must succeed, and returns its output.
fn certs(dir: &Path, more: &[&str]) -> String {
    let dir = dir.to_str().unwrap();
    let arguments = ["admin", "certs", "--dir", dir, "--node", "1=127.0.0.1,localhost", "--router", "a"];
    let output = run(&[&arguments, more].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs varve with arguments that it must refuse, and returns the error.
fn refused(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert!(!output.status.success(), "{arguments:?} was accepted");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn with_certificates(dir: &Path) -> Setup {
    Setup { processes: Processes::Three, certificates: Some(dir.to_owned()), ..Setup::default() }
}

#[test]
fn pushes_and_queries_cross_tls_and_certificates_are_renewed() {
    let folder = tempfile::tempdir().unwrap();
    let said = certs(folder.path(), &[]);
    assert!(said.contains("node-1.pem") && said.contains("--tls-ca") && said.contains("ca.key secret"), "{said}");
    let mut varve = Varve::start(with_certificates(folder.path()));
    assert_eq!(varve.push_otlp(&push(), None).status, 200);
    let services = |varve: &Varve| varve.get("/api/v1/label/service_name/values", &[]).text();
    assert!(services(&varve).contains("tls"));
    // The node does not serve clients without a certificate.
    let plaintext = block_on(async {
        let mut node =
            NodeClient::connect(format!("http://{}", varve.node)).await.map_err(|error| format!("{error:?}"))?;
        let request = wire::PlacementRequest {};
        node.placement(request).await.map(|_| ()).map_err(|status| format!("{status:?}"))
    });
    assert!(plaintext.unwrap_err().contains("requires TLS"));
    // Both processes run on while their certificates are renewed. The connection to the restarted node uses the new
    // ones.
    let renewed = certs(folder.path(), &[]);
    assert!(renewed.contains("uses the CA") && renewed.contains("renewed"), "{renewed}");
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(varve.push_otlp(&push(), None).status, 200);
    varve.kill_first();
    varve.start_first();
    assert_eq!(varve.push_otlp(&push(), None).status, 200);
    assert!(services(&varve).contains("tls"));
    assert!(varve.terminate().success());
}

/// Starts a router with these options, and returns its response to a query.
fn response_of_router(options: &[&str]) -> Reply {
    let folder = tempfile::tempdir().unwrap();
    let [http, grpc, otlp] = free_addresses();
    let mut command = Command::new(varve_binary());
    command.args(["router", "--http-listen", &http, "--otlp-grpc-listen", &grpc, "--otlp-http-listen", &otlp]);
    command.args(options).current_dir(folder.path()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut router = command.spawn().unwrap();
    let began = Instant::now();
    let responses = std::iter::repeat_with(|| {
        std::thread::sleep(Duration::from_millis(10));
        request("GET", &format!("http://{http}/api/v1/labels"), &[], None).ok()
    });
    let first = responses.take_while(|_| began.elapsed() < Duration::from_secs(60)).find_map(|response| response);
    router.kill().unwrap();
    router.wait().unwrap();
    first.expect("the router responds")
}

#[test]
fn a_router_that_a_node_refuses_reports_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let own = folder.path().join("own");
    let other = folder.path().join("other");
    certs(&own, &[]);
    certs(&other, &[]);
    let varve = Varve::start(with_certificates(&own));
    // This router accepts both CAs, and the node only its own.
    let both = [own.join("ca.pem"), other.join("ca.pem")].map(|path| std::fs::read_to_string(path).unwrap()).concat();
    std::fs::write(other.join("ca.pem"), both).unwrap();
    let path = |name: &str| other.join(name).to_str().unwrap().to_owned();
    let tls = ["--tls-ca", &path("ca.pem"), "--tls-cert", &path("router-a.pem"), "--tls-key", &path("router-a.key")];
    let url = format!("https://{}", varve.node);
    let reply = response_of_router(&[&tls[..], &["--node-endpoint", &url]].concat());
    let text = reply.text();
    assert_eq!(reply.status, 503, "{text}");
    assert!(text.contains("--tls-cert") && text.contains("another CA") && text.contains(&varve.node), "{text}");
    let reply = response_of_router(&["--node-endpoint", &format!("http://{}", varve.node)]);
    let text = reply.text();
    assert_eq!(reply.status, 503, "{text}");
    assert!(text.contains("requires TLS") && text.contains(&varve.node), "{text}");
    assert!(varve.said().contains("to the node's port was refused"), "{}", varve.said());
}

#[test]
fn tls_options_that_do_not_fit_are_refused_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    certs(folder.path(), &[]);
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let ca = path("ca.pem");
    let of = |role: &str, name: &str, more: &[&str]| {
        let cert = path(&format!("{name}.pem"));
        let key = path(&format!("{name}.key"));
        refused(&[&[role, "--tls-ca", &ca, "--tls-cert", &cert, "--tls-key", &key], more].concat())
    };
    assert!(refused(&["node", "--tls-ca", &ca]).contains("needed together"));
    assert!(refused(&["router", "--node-endpoint", "https://127.0.0.1:4041"]).contains("needs --tls-ca"));
    assert!(refused(&["router", "--node-endpoint", "127.0.0.1:4041"]).contains("http://HOST:PORT"));
    assert!(of("node", "router-a", &[]).contains("--node-id is 1: they must agree"));
    assert!(of("router", "router-a", &["--node-endpoint", "http://127.0.0.1:4041"]).contains("must be https://"));
    // Certificates control the access to the node's port, and not that to the port of its metrics.
    let said = of("node", "node-1", &["--node-listen", "0.0.0.0:0", "--http-listen", "0.0.0.0:1"]);
    assert!(said.contains("0.0.0.0:1 can be reached from other hosts"), "{said}");
    std::fs::write(path("node-1.key"), "").unwrap();
    assert!(of("node", "node-1", &[]).contains("--tls-key"));
}

#[test]
fn the_report_of_certificates_is_json_on_request() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("certs");
    let planned: Value = serde_json::from_str(&certs(&dir, &["--json", "--dry-run"])).unwrap();
    assert!(!dir.exists());
    let made: Value = serde_json::from_str(&certs(&dir, &["--json"])).unwrap();
    for (report, dry_run) in [(&planned, true), (&made, false)] {
        assert_eq!(report["dry_run"], dry_run);
        assert_eq!(report["ca"]["action"], "make");
        assert_eq!(report["certificates"][0]["uri"], "varve://node/1");
        assert_eq!(report["certificates"][1]["role"], "router a");
    }
    for report in [&made["ca"], &made["certificates"][0], &made["certificates"][1]] {
        for file in ["certificate", "key"] {
            assert!(Path::new(report[file].as_str().unwrap()).is_file(), "{report}");
        }
    }
    let other = folder.path().join("other");
    std::fs::create_dir(&other).unwrap();
    std::fs::copy(dir.join("node-1.pem"), other.join("node-2.pem")).unwrap();
    let said = refused(&["admin", "certs", "--dir", other.to_str().unwrap(), "--node", "2=localhost"]);
    assert!(said.contains("certificate of node 1, and not of node 2"), "{said}");
    assert!(refused(&["admin", "certs", "--dir", "x", "--node", "1"]).contains("ID=HOST"));
}
