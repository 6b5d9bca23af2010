//! Generated cases of a test, on all CPUs.

use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};

/// Generates `cases` cases and runs each. Fails with the smallest case that fails. Returns the number of cases.
///
/// Environment variables: `VARVE_MODEL_CASES` sets the number of cases, and `VARVE_MODEL_SEED` repeats a test run.
pub(crate) fn check_all<S: Strategy>(
    cases: u64,
    case: impl Fn() -> S + Sync,
    run: impl Fn(&S::Value) -> Result<(), TestCaseError> + Sync,
) -> u64 {
    let number = |name: &str| std::env::var(name).ok().and_then(|number| number.parse::<u64>().ok());
    let cases = number("VARVE_MODEL_CASES").unwrap_or(cases);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seed = number("VARVE_MODEL_SEED").unwrap_or(now.as_nanos() as u64);
    println!("{cases} cases; again with VARVE_MODEL_SEED={seed} VARVE_MODEL_CASES={cases}");
    let workers = std::thread::available_parallelism().map_or(1, |workers| workers.get() as u64);
    let work = |worker: u64| {
        let config = ProptestConfig {
            cases: cases.div_ceil(workers) as u32,
            max_shrink_iters: 2000,
            failure_persistence: None,
            ..ProptestConfig::default()
        };
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&(seed.wrapping_add(worker)).to_le_bytes());
        let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes));
        runner.run(&case(), |case| run(&case)).map_err(|error| error.to_string())
    };
    let failed: Vec<String> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..workers).map(|worker| scope.spawn(move || work(worker))).collect();
        threads.into_iter().filter_map(|thread| thread.join().unwrap().err()).collect()
    });
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    cases
}
