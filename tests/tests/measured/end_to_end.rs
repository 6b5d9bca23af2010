//! Tests of the path of a sample from the kernel's timer to the flame graph, for `varve up` and for node, router and
//! agent as three processes.
//!
//! A program spends its CPU time 70 : 30 in two functions. The flame graph shows these shares, with the functions'
//! names, files and lines. The total of all processes equals the CPU time that the kernel counted.

use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tests::program::{HOT_AND_COLD, Program, bpf_obstacle};
use tests::report::{alone, bpf_test_ran, figure, skipped};
use tests::server::{Processes, Setup, Varve};
use tests::shared::varve_binary;

const FREQUENCY_HZ: u32 = 97;
const WINDOW: Duration = Duration::from_secs(20);
/// Time after the window in which its last samples arrive. Agents send every 5 s, and a busy machine may need longer.
const ARRIVAL: Duration = Duration::from_secs(8);

fn now_s() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

/// Returns the time since boot in which CPUs were not idle, added up over all CPUs, in seconds. User time includes the
/// time of guests. Stolen time is excluded, because no process of this host used it.
fn busy_s() -> f64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap();
    let fields: Vec<f64> =
        text.lines().next().unwrap().split_whitespace().skip(1).map(|field| field.parse().unwrap()).collect();
    let [user, nice, system, _idle, _iowait, irq, softirq] = fields[..7].try_into().unwrap();
    (user + nice + system + irq + softirq) / 100.0
}

/// Returns the sum of the totals of a function's outermost frames, and the entry of `frames` that describes the
/// function.
fn of_function(graph: &Value, name: &str) -> (f64, Value) {
    let names = graph["names"].as_array().unwrap();
    let nodes = graph["nodes"].as_array().unwrap();
    let number = |node: &Value, i: usize| usize::try_from(node[i].as_i64().unwrap()).unwrap_or(usize::MAX);
    let is_it = |node: &Value| names[number(node, 1)] == name;
    let mut weight = 0.0;
    let mut frame = Value::Null;
    for node in nodes.iter().filter(|node| is_it(node)) {
        let mut above = nodes.get(number(node, 0));
        while above.is_some_and(|node| !is_it(node)) {
            above = above.and_then(|node| nodes.get(number(node, 0)));
        }
        if above.is_none() {
            weight += node[3].as_f64().unwrap();
            frame = graph["frames"][number(node, 1)].clone();
        }
    }
    (weight, frame)
}

/// Returns the line number of a function's definition.
fn line_of(function: &str) -> u64 {
    let at = HOT_AND_COLD.lines().position(|line| line.contains(&format!("void {function}("))).unwrap();
    at as u64 + 1
}

fn shares_and_weights(test: &str, processes: Processes) {
    let _alone = alone();
    if let Some(obstacle) = bpf_obstacle() {
        return skipped(test, format!("BPF: {obstacle}"));
    }
    let name = format!("shares_{}", std::process::id());
    let program = Program::compile(&name, HOT_AND_COLD, &[]);
    let varve = Varve::start(Setup { processes, agent_hz: Some(FREQUENCY_HZ), ..Setup::default() });
    if processes == Processes::Three {
        // A separate router reads no files of its host.
        let mut upload = Command::new(varve_binary());
        upload.arg("upload").arg(&program.path).args(["--endpoint", &format!("http://{}", varve.http)]);
        assert!(upload.output().unwrap().status.success());
    }
    let running = program.start(&[]);
    // The window begins after the agent has attached and has seen the process.
    std::thread::sleep(Duration::from_secs(3));
    let began = Instant::now();
    let start = now_s();
    let busy_before = busy_s();
    std::thread::sleep(WINDOW);
    let busy = busy_s() - busy_before;
    let end = now_s();
    let window_s = began.elapsed().as_secs_f64();
    std::thread::sleep(ARRIVAL);
    let graph = varve.flamegraph(&format!("process_cpu{{service_name=\"{name}\"}}"), (start, end), "json", 1 << 20);
    let graph = graph.expect(200).json();
    drop(running);

    let total = graph["total"].as_f64().unwrap();
    // On a busy host, the program gets less CPU time. With too few samples, the shares would be wrong by chance.
    assert!(total > 0.1 * window_s * 1e9, "the program has {} s of {window_s} s", total / 1e9);
    let samples = total / 1e9 * f64::from(FREQUENCY_HZ);
    let off_max = f64::max(5.0, 3.0 * 100.0 * (0.7 * 0.3 / samples).sqrt());
    let mut shares = Vec::new();
    for (function, want) in [("hot70", 70.0), ("cold30", 30.0)] {
        let (weight, frame) = of_function(&graph, function);
        let share = 100.0 * weight / total;
        shares.push(share);
        assert!((share - want).abs() < off_max, "{function} has {share:.1} %, want {want} %");
        assert!(frame["file"].as_str().unwrap_or_default().ends_with(&format!("{name}.c")), "{function}: {frame}");
        assert_eq!(frame["line"].as_u64(), Some(line_of(function)), "{function}: {frame}");
        assert_eq!(frame["binary"].as_str(), program.path.to_str(), "{function}: {frame}");
    }
    // The total of all processes of the host.
    let all = varve.flamegraph("process_cpu", (start, end), "json", 1 << 20).expect(200).json();
    let sampled = all["total"].as_f64().unwrap() / 1e9;
    let off = 100.0 * (sampled / busy - 1.0);
    figure(&json!({"suite": "end_to_end", "test": test, "hot70_percent": shares[0], "cold30_percent": shares[1],
        "window_s": window_s, "proc_stat_busy_s": busy, "sampled_s": sampled, "off_percent": off}));
    assert!(off.abs() < 5.0, "{sampled:.2} s sampled, /proc/stat says {busy:.2} s busy: {off:+.1} %");
    bpf_test_ran(test);
}

#[test]
fn varve_up_shows_the_shares_of_a_program_and_the_host() {
    shares_and_weights("varve_up_shows_the_shares_of_a_program_and_the_host", Processes::One);
}

#[test]
fn node_router_and_agent_show_the_shares_of_a_program_and_the_host() {
    let test = "node_router_and_agent_show_the_shares_of_a_program_and_the_host";
    shares_and_weights(test, Processes::Three);
}

#[test]
fn separate_node_and_router_respond_like_varve_up() {
    use tests::payload::otlp::{Request, now_ns, stack};
    let now = now_ns();
    let request = Request::new("apart").seen(stack(&["leaf", "main"]), vec![now, now + 1]).bytes();
    let mut answers = Vec::new();
    for processes in [Processes::One, Processes::Three] {
        let mut varve = Varve::start(Setup { processes, ..Setup::default() });
        assert_eq!(varve.push_otlp(&request, None).status, 200);
        let window = (now as f64 / 1e9 - 10.0, now as f64 / 1e9 + 10.0);
        answers.push(varve.flamegraph("process_cpu{service_name=\"apart\"}", window, "json", 1000).expect(200).text());
        for address in [&varve.http, if processes == Processes::Three { &varve.operations[0] } else { &varve.http }] {
            for path in ["/healthz", "/ready", "/metrics"] {
                let reply = tests::http::request("GET", &format!("http://{address}{path}"), &[], None).unwrap();
                assert_eq!(reply.status, 200, "{address}{path}");
            }
            assert!(varve.metric(address, "process_resident_memory_bytes").unwrap() > 1e6);
        }
        assert!(varve.terminate().success(), "{}", varve.said());
    }
    assert_eq!(answers[0], answers[1]);
}
