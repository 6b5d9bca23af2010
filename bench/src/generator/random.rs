//! Sequences of random numbers from SplitMix64. A sequence depends only on its name, which is a list of numbers.

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{RngCore as _, SeedableRng as _};

/// A sequence of random numbers.
#[derive(Clone, Debug)]
pub(crate) struct Random(SplitMix64);

impl Random {
    /// Returns the sequence with this name. Sequences with different names are independent.
    pub(crate) fn of<const N: usize>(name: [u64; N]) -> Self {
        let mut state = 0;
        for part in name {
            state = mixed(state ^ part.wrapping_mul(0xD6E8_FEB8_6659_FD93)).wrapping_add(0x9E37_79B9_7F4A_7C15);
        }
        Self(SplitMix64::seed_from_u64(state))
    }

    pub(crate) fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a number below `end`. `end` must be above 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        // The result is the high half of a product. Its bias is negligible, because `end` is far below 2^64.
        ((u128::from(self.next_u64()) * end as u128) >> 64) as usize
    }

    /// Returns a number from 0 to 1, 1 excluded.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Computes the output function of SplitMix64.
fn mixed(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_the_same_numbers_in_every_version() {
        let mut random = Random::of([1, 2]);
        let mut state = 0;
        for part in [1_u64, 2] {
            state = mixed(state ^ part.wrapping_mul(0xD6E8_FEB8_6659_FD93)).wrapping_add(0x9E37_79B9_7F4A_7C15);
        }
        for _ in 0..10 {
            state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            assert_eq!(random.next_u64(), mixed(state));
        }
    }
}
