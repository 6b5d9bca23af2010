//! Tests of `kill -9` under load, up to twenty times. All acknowledged samples must be visible. All visible samples
//! must be acknowledged or of unknown outcome, and stored once.

use std::time::{Duration, Instant};

use serde_json::json;
use tests::load::{Behaviour, Load, visible};
use tests::report::{alone, figure};
use tests::server::{Processes, Setup, Varve};

/// Longest time that varve may take after a restart to acknowledge a push.
const ACKNOWLEDGEMENT_MAX: Duration = Duration::from_secs(10);

/// Kills varve under load several times. Every acknowledged sample must be stored once, also after one more clean
/// restart.
fn survives_kills(processes: Processes, kills: u32, behaviour: Behaviour) {
    let _alone = alone();
    let mut varve = Varve::start(Setup { processes, ..Setup::default() });
    let load = Load::start(&varve, behaviour);
    let run = load.run.clone();
    let mut ready_ms = Vec::new();
    for kill in 0..kills {
        let before = load.acknowledged();
        // Each kill comes at a different phase of varve's periodic work.
        std::thread::sleep(Duration::from_millis(300 + u64::from(kill * 137 % 900)));
        let start = Instant::now();
        // On a busy machine, the first acknowledgement may take longer than this sleep.
        while load.acknowledged() == before {
            assert!(start.elapsed() < ACKNOWLEDGEMENT_MAX, "no push was acknowledged between two kills");
            std::thread::sleep(Duration::from_millis(10));
        }
        varve.kill();
        ready_ms.push(varve.launch().as_millis());
    }
    std::thread::sleep(Duration::from_millis(500));
    let outcomes = load.stop();
    assert_eq!(outcomes.violations(&visible(&varve, &run)), Vec::<String>::new());
    assert!(varve.terminate().success(), "{}", varve.said());
    varve.launch();
    assert_eq!(outcomes.violations(&visible(&varve, &run)), Vec::<String>::new(), "after a clean restart");
    ready_ms.sort_unstable();
    figure(&json!({"suite": "crash", "processes": format!("{processes:?}"), "kills": kills,
        "acknowledged": outcomes.acknowledged.len(), "refused": outcomes.refused.len(),
        "unknown": outcomes.unknown.len(),
        "lost": 0, "ready_ms_p50": ready_ms[ready_ms.len() / 2], "ready_ms_max": ready_ms.last()}));
    assert!(
        outcomes.acknowledged.len() > 200,
        "only {} were acknowledged: too few to mean anything",
        outcomes.acknowledged.len()
    );
    assert!(*ready_ms.last().unwrap() < 5000, "ready only after {ready_ms:?} ms");
}

const RETRYING: Behaviour = Behaviour { clients: 4, retries: true, pause: Duration::ZERO };

#[test]
fn twenty_kills_under_load_lose_and_duplicate_nothing_acknowledged() {
    survives_kills(Processes::One, 20, RETRYING);
}

#[test]
fn kills_of_node_and_router_lose_and_double_nothing_acknowledged() {
    survives_kills(Processes::Three, 5, RETRYING);
}

#[test]
fn clients_that_never_retry_lose_nothing_acknowledged() {
    survives_kills(Processes::One, 5, Behaviour { retries: false, pause: Duration::from_millis(2), ..RETRYING });
}
