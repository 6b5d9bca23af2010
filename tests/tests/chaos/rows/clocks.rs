//! R15: jumps of the system clocks of single nodes, ahead and back, while they run.

use std::time::Duration;

use tests::payload::otlp::now_ns;

use crate::members::system_time_s;
use crate::run::Run;

/// Jumps of a clock, in seconds.
const JUMPS_S: [i64; 6] = [3600, -3600, 60, -60, 86_400, 0];
/// Longest time of a call that reads a clock, in seconds.
const TOLERANCE_S: f64 = 20.0;

pub(super) fn inject(run: &mut Run, faults: usize) {
    for fault in 0..faults {
        run.sleep_below(Duration::from_secs(1));
        let node = run.random.below(run.clocks.len());
        let jump_s = JUMPS_S[fault % JUMPS_S.len()];
        run.clocks[node].set(jump_s);
        run.await_service("a jump of a clock");
        std::thread::sleep(Duration::from_secs(1));
        match system_time_s(&run.cluster, node + 1) {
            Ok(time_s) if (time_s - now_ns() as f64 / 1e9 - jump_s as f64).abs() < TOLERANCE_S => run.faults += 1,
            other => run.violations.push(format!("the clock of node {} did not jump: {other:?}", node + 1)),
        }
        run.add(if jump_s > 0 { "jumps_ahead" } else { "jumps_back" }, 1);
    }
}
