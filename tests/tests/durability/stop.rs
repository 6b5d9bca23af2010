//! Tests of SIGTERM under load: varve exits with status 0 each time, and the next start has everything that was
//! acknowledged.
//!
//! A process may abort if it runs its exit handlers while a thread still uses a database.

use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::json;
use tests::http::{encode, request};
use tests::load::{Behaviour, Load, bulk, visible};
use tests::payload::otlp::{PERIOD_NS, now_ns};
use tests::program::{Program, STUCK_READS};
use tests::report::{alone, figure};
use tests::server::{Processes, Setup, Varve};

/// Number of rounds of a test. With `VARVE_SOAK=1`, there are ten times as many rounds.
const ROUNDS: u64 = 20;
/// Longest time that varve may take to exit after SIGTERM. Supervisors kill a process that takes longer.
const PATIENCE: Duration = Duration::from_secs(30);

fn rounds() -> u64 {
    let is_soak = std::env::var("VARVE_SOAK").is_ok_and(|value| value == "1");
    if is_soak { 10 * ROUNDS } else { ROUNDS }
}

/// Gives an ELF file another build ID, so that the server does not know the file. Other bytes stay as they are.
fn set_build_id(file: &mut [u8], number: u64) {
    // Header of the ELF note with the build ID: a name of 4 bytes, a value of 20 bytes, type 3, name `GNU`.
    let note = b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0";
    if let Some(at) = file.windows(note.len()).position(|bytes| bytes == note) {
        file[at + note.len()..][..8].copy_from_slice(&number.to_le_bytes());
    }
}

/// Threads that send requests until they are stopped. They only count the responses with status 200.
struct Requests {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Requests {
    fn start(varve: &Varve, debug_file: Vec<u8>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let answered = Arc::new(AtomicU64::new(0));
        let base = format!("http://{}", varve.http);
        let query = |promql: &str, extra: &[(&str, &str)]| {
            let parameters = [&[("query", promql)], extra].concat();
            encode(&parameters)
        };
        let start = format!("{}", now_ns() / 1_000_000_000 - 3600);
        let end = format!("{}", now_ns() / 1_000_000_000);
        let sums = query("sum by (stack_function) (sum_over_time(process_cpu{service_name=\"bulk\"}[1h]))", &[]);
        let graph = query("process_cpu{service_name=\"bulk\"}", &[("start", &start), ("end", &end)]);
        let calls: Vec<(&'static str, String, Option<Vec<u8>>)> = vec![
            ("GET", format!("{base}/api/v1/query?{sums}"), None),
            ("GET", format!("{base}/api/v1/flamegraph?{graph}"), None),
            ("POST", format!("{base}/api/v1/debuginfo"), Some(debug_file)),
            ("POST", format!("{base}/api/v1/admin/compact"), Some(Vec::new())),
            ("POST", format!("{base}/api/v1/admin/verify"), Some(Vec::new())),
            ("GET", format!("{base}/metrics"), None),
        ];
        let thread = |(method, url, mut body): (&'static str, String, Option<Vec<u8>>)| {
            let stop = Arc::clone(&stop);
            let answered = Arc::clone(&answered);
            std::thread::spawn(move || {
                for number in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        return;
                    }
                    if let Some(body) = &mut body {
                        set_build_id(body, number);
                    }
                    if request(method, &url, &[], body.as_deref()).is_ok_and(|reply| reply.status == 200) {
                        answered.fetch_add(1, Ordering::Relaxed);
                    }
                    std::thread::sleep(Duration::from_millis(10));
                }
            })
        };
        Self { threads: calls.into_iter().map(thread).collect(), stop, answered }
    }

    fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().for_each(|thread| thread.join().unwrap());
        self.answered.load(Ordering::Relaxed)
    }
}

fn survives_sigterm(processes: Processes, rounds: u64) {
    let _alone = alone();
    let mut varve = Varve::start(Setup { processes, ..Setup::default() });
    // With so many samples, queries, compactions and verifications take some time.
    let times: Vec<u64> = (0..2000).map(|i| now_ns() - 1_800_000_000_000 + i * 900_000_001).collect();
    assert_eq!(varve.push_otlp(&bulk("bulk", 200, &times), None).status, 200);
    let program = Program::compile("uploaded", "int main(void) { return 0; }", &[]);
    let requests = Requests::start(&varve, std::fs::read(&program.path).unwrap());
    let load = Load::start(&varve, Behaviour { clients: 3, retries: true, pause: Duration::from_millis(3) });
    let run = load.run.clone();
    let mut longest = Duration::ZERO;
    for round in 0..rounds {
        // Each SIGTERM comes at a different phase of varve's periodic work.
        std::thread::sleep(Duration::from_millis(50 + round * 137 % 900));
        let began = Instant::now();
        let status = varve.terminate();
        longest = longest.max(began.elapsed());
        let code = status.code();
        let signal = status.signal();
        assert_eq!((code, signal), (Some(0), None), "round {round}: it said last:\n{}", varve.said());
        assert!(began.elapsed() < PATIENCE, "round {round}: it took {:?} to end", began.elapsed());
        varve.launch();
    }
    std::thread::sleep(Duration::from_millis(500));
    let outcomes = load.stop();
    let answered = requests.stop();
    assert_eq!(outcomes.violations(&visible(&varve, &run)), Vec::<String>::new());
    assert_eq!(bulk_total(&varve), (200 * 2000 * PERIOD_NS) as f64);
    figure(&json!({"suite": "stop", "processes": format!("{processes:?}"), "rounds": rounds,
        "acknowledged": outcomes.acknowledged.len(), "answered": answered, "longest_ms": longest.as_millis()}));
    assert!(answered > rounds && outcomes.acknowledged.len() as u64 > rounds, "too few to mean anything");
}

#[test]
fn sigterm_under_load_exits_with_status_0_and_loses_nothing() {
    survives_sigterm(Processes::One, rounds());
}

#[test]
fn sigterm_of_a_node_with_a_router_exits_with_status_0() {
    survives_sigterm(Processes::Three, rounds() / 4);
}

/// Returns the sum of the values of the service `bulk`.
fn bulk_total(varve: &Varve) -> f64 {
    varve.total("sum(sum_over_time(process_cpu{service_name=\"bulk\"}[2h]))", now_ns() as f64 / 1e9 + 1.0)
}

/// A stopped varve with a compacted state. Its reads of the state do not return while the file `stuck` exists.
struct StuckReads {
    varve: Varve,
    stuck: PathBuf,
    /// File that the exit handlers of varve create.
    handlers: PathBuf,
    library: Program,
}

impl StuckReads {
    fn stopped() -> Self {
        let library = Program::compile("stuck_reads.so", STUCK_READS, &["-shared", "-fPIC"]);
        let [stuck, handlers] = ["stuck", "handlers"].map(|name| library.folder().join(name));
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let environment = [("LD_PRELOAD", &library.path), ("STUCK_READS", &stuck), ("EXIT_HANDLERS", &handlers)];
        let environment = environment.map(|(name, path)| (name.to_owned(), text(path)));
        let mut varve = Varve::start(Setup { environment: environment.to_vec(), ..Setup::default() });
        // The samples take more space than a database reads when it is opened.
        let times: Vec<u64> = (0..2000).map(|i| now_ns() - 1_800_000_000_000 + i * 900_000_001).collect();
        assert_eq!(varve.push_otlp(&bulk("bulk", 200, &times), None).status, 200);
        // Compacted data is in files, and no longer in memory.
        let url = format!("http://{}/api/v1/admin/compact", varve.http);
        assert_eq!(request("POST", &url, &[], Some(b"")).unwrap().status, 200);
        assert!(varve.terminate().success(), "{}", varve.said());
        assert!(handlers.exists(), "a usual end runs exit handlers");
        std::fs::remove_file(&handlers).unwrap();
        Self { varve, stuck, handlers, library }
    }
}

/// The process exits although one of its threads is stuck in a read. It does not destroy RocksDB's static objects
/// before.
#[test]
fn a_process_with_stuck_threads_exits_without_exit_handlers() {
    let StuckReads { mut varve, stuck, handlers, library: _library } = StuckReads::stopped();
    varve.launch();
    std::fs::write(&stuck, "").unwrap();
    let url = varve.http.clone();
    let verifying = std::thread::spawn(move || {
        request("POST", &format!("http://{url}/api/v1/admin/verify"), &[], Some(b"")).map(|reply| reply.status)
    });
    std::thread::sleep(Duration::from_secs(1));
    if verifying.is_finished() {
        panic!("verifying needs no reads: {:?}", verifying.join().unwrap());
    }
    let began = Instant::now();
    let status = varve.terminate();
    let took = began.elapsed();
    assert_eq!((status.code(), status.signal()), (Some(0), None), "{}", varve.said());
    assert!(took < PATIENCE, "it took {took:?} to end");
    assert!(!handlers.exists(), "exit handlers ran while a thread used the database");
    assert!(varve.said().contains("waiting for queries"), "it does not say why it waits: {}", varve.said());
    assert!(verifying.join().unwrap().is_err(), "verifying came to an end");
    std::fs::remove_file(&stuck).unwrap();
    varve.launch();
    assert_eq!(bulk_total(&varve), (200 * 2000 * PERIOD_NS) as f64);
}

/// A process exits on SIGTERM even while its state is being opened. Opening may take long, for example because files
/// are damaged.
#[test]
fn sigterm_while_the_state_is_opened_exits_with_status_0() {
    let StuckReads { mut varve, stuck, handlers: _, library: _library } = StuckReads::stopped();
    std::fs::write(&stuck, "").unwrap();
    let log = varve.folder().join("log");
    let starts = || std::fs::read_to_string(&log).unwrap().matches("opening the state").count();
    let before = starts();
    varve.spawn();
    let began = Instant::now();
    while starts() == before {
        assert!(began.elapsed() < PATIENCE, "it does not open the state: {}", varve.said());
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(500));
    assert!(varve.is_running(), "{}", varve.said());
    let began = Instant::now();
    let status = varve.terminate();
    let took = began.elapsed();
    assert_eq!((status.code(), status.signal()), (Some(0), None), "{}", varve.said());
    assert!(took < PATIENCE, "it took {took:?} to end");
    std::fs::remove_file(&stuck).unwrap();
    varve.launch();
    assert_eq!(bulk_total(&varve), (200 * 2000 * PERIOD_NS) as f64);
}
