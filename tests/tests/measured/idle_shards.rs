//! Test of the cost of a node with the largest number of shards and no load.

use std::time::Duration;

use serde_json::json;
use tests::report::{alone, figure};
use tests::server::{Setup, Varve};

const SHARDS: u16 = 64;
/// Time after which nothing is left to do from the start.
const SETTLED: Duration = Duration::from_secs(5);
const MEASURED: Duration = Duration::from_secs(20);
const MEMORY_MIB_MAX: f64 = 300.0;
const CPU_PART_MAX: f64 = 0.05;

#[test]
fn idle_shards_cost_little() {
    let _alone = alone();
    let mut varve = Varve::prepare(Setup { shards: SHARDS, ..Setup::default() });
    let ready = varve.launch();
    std::thread::sleep(SETTLED);
    let metric = |name: &str| varve.metric(&varve.http, name).unwrap();
    let cpu_s = metric("process_cpu_seconds_total");
    std::thread::sleep(MEASURED);
    let cpu_part = (metric("process_cpu_seconds_total") - cpu_s) / MEASURED.as_secs_f64();
    let memory_mib = metric("process_resident_memory_bytes") / f64::from(1 << 20);
    figure(&json!({"suite": "idle_shards", "shards": SHARDS, "ready_ms": ready.as_millis(), "memory_mib": memory_mib,
        "cpu_part": cpu_part, "open_files": metric("process_open_fds")}));
    assert!(memory_mib <= MEMORY_MIB_MAX, "{memory_mib} MiB");
    assert!(cpu_part <= CPU_PART_MAX, "{cpu_part} of a core");
}
