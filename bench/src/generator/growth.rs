//! Growth of the number of distinct stacks.
//!
//! A service has two kinds of stacks. *Common* stacks, the most frequent of the recording, never change. All other
//! samples have stacks of a *pool* that grows by Heaps' law: pool(t) = pool_15m x (t / 15 min)^b, with t since the
//! start of the fleet. The exponent b comes from the recording: over its second half, the number of distinct stacks
//! grew by the factor 2^b. The size at 15 minutes gives the mix its number of distinct stacks, and is found by playing
//! 15 minutes.
//!
//! Growth is extrapolated under three assumptions. The exponent b holds beyond the recorded minutes. The number of a
//! service's stacks grows with time as the number of one program's stacks grows with samples. There is no deployment.
//!
//! The mixes have as many distinct stacks as the workloads with which other databases were measured. Five recordings
//! have more, as [`super::service::Service::describe`] shows, so only a part of their rare stacks is used.
//!
//! While the pool is smaller than the set of rare recorded stacks, rare stacks that are neighbours in order of
//! appearance share one stack. Later each rare stack has several variants, which [`super::tree`] makes.

/// Time to which [`Growth::pool_15m`] refers, in nanoseconds.
pub(crate) const REFERENCE_NS: f64 = 900e9;

/// Identity of a stack of a service: its rank and the number of its variant. Variant 0 is the recorded stack. The
/// common stacks have the first ranks, in the order of frequency. The rare stacks follow, in the order of appearance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct StackKey {
    pub(crate) rank: u32,
    pub(crate) variant: u32,
}

/// Growth of the number of distinct stacks of a service.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Growth {
    /// Number of common stacks.
    pub(crate) common: u32,
    /// Number of rare stacks in the recording.
    pub(crate) rare: u32,
    /// Size of the pool after 15 minutes.
    pub(crate) pool_15m: f64,
    /// Exponent b of Heaps' law.
    pub(crate) exponent: f64,
}

impl Growth {
    /// Returns the mean number of variants of a rare recorded stack at a time after the fleet's start: the size of the
    /// pool, divided by the number of rare recorded stacks.
    pub(crate) fn variants(&self, since_start_ns: u64) -> f64 {
        let pool = self.pool_15m * (since_start_ns as f64 / REFERENCE_NS).powf(self.exponent);
        (pool / f64::from(self.rare.max(1))).max(1.0 / f64::from(self.rare.max(1)))
    }

    /// Returns the stack of a sample whose recorded stack has this rank. `variants` is the result of
    /// [`Growth::variants`], and `unit` is a random number from 0 to 1.
    pub(crate) fn draw(&self, rank: u32, variants: f64, unit: f64) -> StackKey {
        if rank < self.common {
            return StackKey { rank, variant: 0 };
        }
        let rare = rank - self.common;
        if variants < 1.0 {
            let rare = (f64::from(rare) * variants) as u32;
            return StackKey { rank: self.common + rare, variant: 0 };
        }
        // Some stacks have one variant more than others, so that the pool grows one stack at a time.
        let has_more = f64::from(rare.wrapping_mul(0x9E37_79B9)) < variants.fract() * f64::from(u32::MAX);
        let count = variants.trunc() + f64::from(u8::from(has_more));
        StackKey { rank, variant: (unit * count) as u32 }
    }
}

/// Returns the exponent b of Heaps' law: over the second half of the sequence, the number of distinct items grew by the
/// factor 2^b.
pub(crate) fn exponent(sequence: &[u32]) -> f64 {
    let unique = |part: &[u32]| part.iter().collect::<std::collections::HashSet<_>>().len().max(1) as f64;
    (unique(sequence) / unique(&sequence[..sequence.len() / 2])).log2().clamp(0.0, 1.0)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_pool_grows_as_the_law_says() {
        let growth = Growth { common: 10, rare: 100, pool_15m: 50.0, exponent: 0.5 };
        for (quarters, pool) in [(1, 50), (4, 100), (16, 200), (36, 300)] {
            let variants = growth.variants(quarters * 900_000_000_000);
            let drawn: HashSet<StackKey> =
                (0..100_000).map(|i: u32| growth.draw(10 + i % 100, variants, f64::from(i / 100) / 1000.0)).collect();
            assert_eq!(drawn.len(), pool, "{quarters}");
        }
        assert_eq!(growth.draw(3, 9.0, 0.9), StackKey { rank: 3, variant: 0 });
    }

    #[test]
    fn the_exponent_is_1_where_all_differ_and_0_where_nothing_new_comes() {
        let all: Vec<u32> = (0..1000).collect();
        assert_eq!(exponent(&all), 1.0);
        assert_eq!(exponent(&[1, 2, 1, 2]), 0.0);
    }
}
