//! Tests of a cluster as its users see it: the web UI of its routers while nodes die, and the samples of its agent.

use std::time::{Duration, Instant};

use proto::placement::FIRST_DATA_SHARD;
use serde_json::{Value, json};
use tests::cluster::{Cluster, Shape, members};
use tests::payload::otlp::now_ns;
use tests::program::{HOT_AND_COLD, Program, bpf_obstacle};
use tests::report::{alone, bpf_test_ran, figure, skipped};
use tests::shared::{tool, workspace};

use crate::browser::{Switch, browser_tests, ran, run};

/// The size that `make cluster` has.
const NODES: usize = 3;
const ROUTERS: usize = 2;
const SHARDS: usize = 8;
/// Longest time until `make cluster` serves, after the build.
const UP_MAX: Duration = Duration::from_secs(60);
/// Longest time until samples of the agent are found. It sends every five seconds.
const FOUND_MAX: Duration = Duration::from_secs(20);

/// The nodes that a browser test kills.
struct Victims<'a> {
    cluster: &'a Cluster,
    dead: Vec<usize>,
}

impl Victims<'_> {
    /// Returns the members of the first data shard, its leader first.
    fn members(&self) -> Vec<usize> {
        let shards = self.cluster.admin(&[])["shards"].clone();
        let is_first = |shard: &&Value| shard["shard"] == FIRST_DATA_SHARD;
        let shard = shards.as_array().unwrap().iter().find(is_first).unwrap();
        let members = shard["members"].as_array().unwrap().iter();
        let mut members: Vec<usize> = members.map(|id| usize::try_from(id.as_u64().unwrap()).unwrap()).collect();
        let leader = members::leader(self.cluster, FIRST_DATA_SHARD).unwrap();
        members.sort_by_key(|id| *id != leader);
        assert_eq!(members[0], leader);
        members
    }

    /// Kills the leader of the first data shard, and with the second call, the next leader. Or starts both again.
    fn act(&mut self, request: &str) {
        if request == "kill" {
            let leader = self.members()[0];
            self.cluster.kill(leader);
            self.dead.push(leader);
            return;
        }
        self.dead.iter().for_each(|id| self.cluster.start(*id));
        self.dead.drain(..).for_each(|id| self.cluster.wait_until_ready(id));
    }
}

/// Runs the browser test of a cluster. Returns its figures.
fn browse(test: &str, nodes: usize) -> Option<Value> {
    let mut command = match browser_tests() {
        Ok(command) => command,
        Err(missing) => {
            skipped(test, missing);
            return None;
        }
    };
    let cluster = Cluster::up(nodes, SHARDS);
    let switch = Switch::new();
    command.args(["--", "cluster.test.ts"]).env("VARVE_CLUSTER_DIR", cluster.folder());
    command.env("VARVE_CLUSTER_KILL_CMD", switch.command("kill"));
    command.env("VARVE_CLUSTER_START_CMD", switch.command("start"));
    let mut victims = Victims { cluster: &cluster, dead: Vec::new() };
    let output = run(&mut command, || switch.serve(|request| victims.act(request)));
    assert_eq!(ran(&output).len(), 1, "{}", output.join("\n"));
    let figures = output.iter().find(|line| line.starts_with(r#"{"suite":"cluster_ui""#)).unwrap();
    let mut figures: Value = serde_json::from_str(figures).unwrap();
    figures["nodes"] = nodes.into();
    figure(&figures);
    Some(figures)
}

#[test]
fn the_web_ui_shows_an_error_if_all_shards_lose_their_majority() {
    let _alone = alone();
    if let Some(figures) = browse("the_web_ui_shows_an_error_if_all_shards_lose_their_majority", NODES) {
        assert_eq!(figures["partial"], json!([false, false]));
    }
}

#[test]
fn the_web_ui_shows_a_partial_response_if_some_shards_lose_it() {
    let _alone = alone();
    // Each shard has three members, so two dead nodes of five are the majority of some shards only.
    if let Some(figures) = browse("the_web_ui_shows_a_partial_response_if_some_shards_lose_it", 5) {
        assert_eq!(figures["partial"], json!([true, true]));
    }
}

/// Makes the folder of a cluster of the size that `make cluster` has.
fn like_make_cluster() -> Cluster {
    let environment = Vec::new();
    Cluster::new(Shape { nodes: NODES, routers: ROUTERS, shards: SHARDS, is_proxied: false, binary: None, environment })
}

/// Starts a cluster with an agent, in the time that `make cluster` may take. Returns the output of the script.
fn launch_in_time(cluster: &Cluster, wrapper: &[&str]) -> String {
    let began = Instant::now();
    let said = cluster.launch_with_agent(wrapper);
    let up = began.elapsed();
    let is_sampled = !cluster.description()["agent"].is_null();
    figure(&json!({"suite": "make_cluster", "is_sampled": is_sampled, "up_s": up.as_secs_f64()}));
    assert!(up <= UP_MAX, "the cluster serves only after {up:?}: {said}");
    said
}

#[test]
fn the_agent_of_make_cluster_samples_this_host() {
    let test = "the_agent_of_make_cluster_samples_this_host";
    let _alone = alone();
    if let Some(obstacle) = bpf_obstacle() {
        return skipped(test, format!("BPF: {obstacle}"));
    }
    let name = format!("clu_{}", std::process::id());
    let program = Program::compile(&name, HOT_AND_COLD, &[]);
    let _running = program.start(&[]);
    let cluster = like_make_cluster();
    let said = launch_in_time(&cluster, &[]);
    let up_at = Instant::now();
    assert!(!said.contains("not sampled"), "{said}");
    let promql = format!("sum(sum_over_time(process_cpu{{service_name=\"{name}\"}}[5m]))");
    let found_s: Vec<f64> = (0..ROUTERS)
        .map(|router| {
            loop {
                let series = cluster.try_query(router, &promql, now_ns() as f64 / 1e9).unwrap();
                if series.iter().any(|(_, cpu_ns)| *cpu_ns > 0.0) {
                    return up_at.elapsed().as_secs_f64();
                }
                assert!(up_at.elapsed() < FOUND_MAX, "router {router} finds no sample of {name}: {said}");
                std::thread::sleep(Duration::from_millis(50));
            }
        })
        .collect();
    figure(&json!({"suite": "make_cluster", "samples_found_s": found_s}));
    bpf_test_ran(test);
}

#[test]
fn make_cluster_serves_in_time_and_says_why_it_does_not_sample() {
    let _alone = alone();
    let all_dropped = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"];
    // A process that may not sample anyway needs no wrapper, which might refuse it.
    let wrapper = if bpf_obstacle().is_some() { &[][..] } else { &all_dropped };
    if !wrapper.is_empty() && tool(wrapper[0]).is_none() {
        return skipped("make_cluster_serves_in_time_and_says_why_it_does_not_sample", "no setpriv");
    }
    let cluster = like_make_cluster();
    let said = launch_in_time(&cluster, wrapper);
    assert_eq!(cluster.description()["agent"], Value::Null, "{said}");
    let about_it: Vec<&str> = said.lines().filter(|line| line.contains("This machine is not sampled")).collect();
    let run_script = std::fs::read_to_string(workspace().join("scripts/run")).unwrap();
    let capabilities = run_script.lines().find_map(|line| line.strip_prefix("capabilities=")).unwrap();
    let remedy = format!("sudo setcap {capabilities} ");
    assert!(matches!(about_it[..], [line] if line.contains(&remedy) && line.contains("agent doctor")), "{said}");
    for router in 0..ROUTERS {
        assert_eq!(cluster.try_query(router, "count(process_cpu)", now_ns() as f64 / 1e9).unwrap(), []);
    }
}
