//! R9: slow syncs, and syncs that stall. A node whose disk stalls must not stop the cluster, and serves again unaided.

use std::time::{Duration, Instant};

use crate::members::some_leader;
use crate::run::Run;
use crate::strace::Injection;

const SYNCS: &str = "fsync,fdatasync";

pub(super) fn inject(run: &mut Run, faults: usize) {
    for fault in 0..faults {
        run.sleep_below(Duration::from_secs(1));
        let choice = run.random.below(1 << 20);
        let node = some_leader(&run.cluster, choice);
        let pid = run.cluster.pid(node);
        let long = Duration::from_secs(if run.is_ci { 10 } else { 30 });
        let (kind, delay, duration) = match fault % 3 {
            0 => ("slow_500_ms", "delay_enter=500000".to_owned(), Duration::from_secs(5)),
            1 => ("stalled", "delay_enter=60000000".to_owned(), long),
            _ => ("slow_50_ms", "delay_enter=50000".to_owned(), Duration::from_secs(5)),
        };
        let began = Instant::now();
        let injection = Injection::attach(pid, SYNCS, &delay, &[]);
        run.await_failover(kind);
        std::thread::sleep(duration.saturating_sub(began.elapsed()));
        // A stalled sync has begun, and strace marks it only when it ends.
        if injection.injected() + injection.begun() > 0 {
            run.faults += 1;
            run.add(kind, 1);
        }
        drop(injection);
        run.await_service(kind);
        run.await_ready(node);
    }
}
