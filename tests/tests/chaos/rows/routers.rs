//! R18: kills of routers. Clients retry through the other router, and also send acknowledged requests again, some time
//! later and through any router.

use std::time::Duration;

use tests::program::{is_running, signal};

use crate::run::Run;

pub(super) fn inject(run: &mut Run, faults: usize) {
    for fault in 0..faults {
        run.sleep_below(Duration::from_secs(2));
        let router = run.random.below(run.cluster.shape().routers);
        let pid = run.cluster.router_pid(router);
        let duplicates = run.workload.duplicates();
        if is_running(pid) {
            run.faults += 1;
        }
        signal(pid, libc::SIGKILL);
        run.await_failover("a kill of a router");
        run.sleep_below(Duration::from_secs(2));
        run.cluster.start_router(router);
        run.await_service("the restart of a router");
        if run.workload.duplicates() == duplicates {
            run.violations.push(format!("no request was sent again after kill {fault}"));
        }
    }
}
