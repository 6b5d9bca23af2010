//! Runs many seeds, some of them twice, and bugs that the rules must detect.
//!
//! `VARVE_SIMULATION_SEEDS` is the number of seeds, and `VARVE_SIMULATION_SEED` replays one seed with its trace.

use std::env;
use std::ops::Range;

use super::planted::Planted;
use super::world::{Verdict, run};

/// Number of seeds of one run of the tests.
const SEEDS: u64 = 200;
/// Of this many seeds, one is run twice.
const TWICE: u64 = 12;

fn number(variable: &str) -> Option<u64> {
    env::var(variable).ok()?.parse().ok()
}

/// Runs seeds on all CPUs, in order.
fn run_all(seeds: Range<u64>, planted: Option<Planted>) -> Vec<Verdict> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let mut verdicts: Vec<Verdict> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|thread| {
                let seeds = seeds.clone();
                scope.spawn(move || {
                    let own = seeds.filter(|seed| seed % threads == thread);
                    own.map(|seed| without_trace(run(seed, planted))).collect::<Vec<_>>()
                })
            })
            .collect();
        running.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    verdicts.sort_by_key(|verdict| verdict.seed);
    verdicts
}

/// Drops the trace, because many traces take much memory. A failed seed is replayed for its trace.
fn without_trace(mut verdict: Verdict) -> Verdict {
    verdict.trace.clear();
    verdict
}

fn report(verdict: &Verdict) -> String {
    let Verdict { seed, violations, counts, .. } = verdict;
    format!("seed {seed}: {violations:#?}\n{counts:?}\nreplay it: VARVE_SIMULATION_SEED={seed}")
}

#[test]
fn every_seed_keeps_the_rules_and_recovers() {
    if let Some(seed) = number("VARVE_SIMULATION_SEED") {
        let verdict = run(seed, None);
        println!("{}", verdict.trace.join("\n"));
        assert!(verdict.violations.is_empty(), "{}", report(&verdict));
        println!("{verdict:?}", verdict = (verdict.counts, verdict.carried, verdict.digest, verdict.recovery));
        return;
    }
    let seeds = number("VARVE_SIMULATION_SEEDS").unwrap_or(SEEDS);
    let verdicts = run_all(0..seeds, None);
    let failed: Vec<String> = verdicts.iter().filter(|verdict| !verdict.violations.is_empty()).map(report).collect();
    let slowest = verdicts.iter().map(|verdict| verdict.recovery).max();
    let total = |of: fn(&Verdict) -> u64| verdicts.iter().map(of).sum::<u64>();
    println!(
        "{{\"seeds\":{seeds},\"failed\":{},\"slowest_recovery_ms\":{},\"events\":{},\"arrived\":{},\"lost\":{},\
         \"doubled\":{},\"acknowledged\":{},\"duplicates\":{},\"unknown\":{},\"misplaced\":{},\"freshness_checks\":{},\
         \"leaders\":{},\"crashes\":{},\"lost_writes\":{},\"installed\":{},\"moves\":{},\"replaced_disks\":{},\
         \"epochs\":{}}}",
        failed.len(),
        slowest.unwrap_or_default().as_millis(),
        total(|verdict| verdict.digest.0),
        total(|verdict| verdict.carried.arrived),
        total(|verdict| verdict.carried.lost),
        total(|verdict| verdict.carried.duplicated),
        total(|verdict| verdict.counts.acknowledged),
        total(|verdict| verdict.counts.duplicates),
        total(|verdict| verdict.counts.unknown),
        total(|verdict| verdict.counts.misplaced),
        total(|verdict| verdict.counts.freshness_checks),
        total(|verdict| verdict.counts.leaders),
        total(|verdict| verdict.counts.crashes),
        total(|verdict| verdict.counts.lost_writes),
        total(|verdict| verdict.counts.installed),
        total(|verdict| verdict.counts.moves),
        total(|verdict| verdict.counts.replaced_disks),
        total(|verdict| verdict.counts.epochs),
    );
    assert!(failed.is_empty(), "{} of {seeds} seeds failed\n{}", failed.len(), failed.join("\n"));
    for verdict in verdicts.iter().filter(|verdict| verdict.seed % TWICE == 0) {
        let again = run(verdict.seed, None);
        assert_eq!(again.digest, verdict.digest, "seed {} has another trace", verdict.seed);
    }
    let exercised = [
        total(|verdict| verdict.counts.duplicates),
        total(|verdict| verdict.counts.misplaced),
        total(|verdict| verdict.counts.freshness_checks),
        total(|verdict| verdict.counts.lost_writes),
        total(|verdict| verdict.counts.installed),
        total(|verdict| verdict.counts.epochs),
        total(|verdict| verdict.counts.replaced_disks),
        total(|verdict| verdict.carried.duplicated),
        total(|verdict| verdict.carried.lost),
        total(|verdict| verdict.counts.moves),
        total(|verdict| verdict.counts.partitions),
        total(|verdict| verdict.counts.unknown),
    ];
    assert!(seeds < SEEDS || exercised.iter().all(|&count| count > 0), "{exercised:?}");
}

/// Checks that one of `seeds` breaks a rule with a planted bug. `rule` is in the text of the violation.
fn detects(planted: Planted, seeds: u64, rule: &str) {
    for seed in 0..seeds {
        let verdict = run(seed, Some(planted));
        if let Some(violation) = verdict.violations.iter().find(|violation| violation.contains(rule)) {
            println!("{planted:?} is detected by seed {seed}: {violation}");
            return;
        }
    }
    panic!("{planted:?} is not detected by {seeds} seeds");
}

#[test]
fn a_vote_that_is_not_on_disk_is_detected() {
    // Openraft stops when its vote is older than its log.
    detects(Planted::VoteNotPersisted, 60, "not recovered");
}

#[test]
fn an_acknowledgement_before_the_sync_is_detected() {
    detects(Planted::AckBeforeSync, 120, "applies another entry");
}

#[test]
fn a_retry_that_is_applied_again_is_detected() {
    detects(Planted::DoubleApply, 5, " 2 times in shard");
}

#[test]
fn a_retry_without_its_id_is_detected() {
    detects(Planted::RetryWithoutId, 10, " 2 times in shard");
}

#[test]
fn a_missing_check_of_the_epoch_is_detected() {
    detects(Planted::NoEpochCheck, 60, "is in the shards");
}

#[test]
fn a_second_cluster_of_an_empty_directory_is_detected() {
    detects(Planted::InitializeOnEmpty, 30, "applies another entry");
}

#[test]
fn freshness_by_the_wall_clock_is_detected() {
    detects(Planted::LeaseByWallClock, 30, "is not as fresh as it says");
}

#[test]
fn a_purge_of_entries_that_a_member_needs_is_detected() {
    detects(Planted::PurgeIgnoresLagging, 30, "has purged shard");
}
