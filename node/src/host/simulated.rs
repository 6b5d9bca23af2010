//! Two things that a simulation of a cluster replaces: randomness, and work on other threads.
//!
//! A simulation runs on one thread with a simulated clock. With the same seed, it must take the same steps.

use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::time::Duration;

/// Returns a random part of a duration.
pub(crate) fn random_part(of: Duration) -> Duration {
    of * u32::try_from(random() % 1024).unwrap_or_default() / 1024
}

/// Returns a random number.
fn random() -> u64 {
    #[cfg(test)]
    if let Some(simulated) = seed::next() {
        return simulated;
    }
    // The keys of each hasher are random.
    RandomState::new().hash_one(())
}

/// Does work that blocks on a thread for such work.
pub(crate) async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    #[cfg(test)]
    if seed::is_set() {
        return Ok(work());
    }
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)
}

#[cfg(test)]
pub(crate) mod seed {
    //! The seed of the simulation that runs on this thread.

    use std::cell::RefCell;

    use testkit::random::Random;

    thread_local! {
        static RANDOM: RefCell<Option<Random>> = const { RefCell::new(None) };
    }

    /// Simulates on this thread from now on; with `None`, no more.
    pub(crate) fn set(seed: Option<u64>) {
        RANDOM.with_borrow_mut(|random| *random = seed.map(Random::new));
    }

    pub(super) fn is_set() -> bool {
        RANDOM.with_borrow(Option::is_some)
    }

    pub(super) fn next() -> Option<u64> {
        RANDOM.with_borrow_mut(|random| random.as_mut().map(Random::next_u64))
    }
}
