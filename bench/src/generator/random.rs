//! Random numbers that are the same everywhere and for ever: SplitMix64.

/// A sequence of random numbers.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// The sequence that these numbers name; any other numbers name an independent one.
    pub(crate) fn of<const N: usize>(names: [u64; N]) -> Self {
        let mut state = 0;
        for name in names {
            state = mixed(state ^ name.wrapping_mul(0xD6E8_FEB8_6659_FD93)).wrapping_add(0x9E37_79B9_7F4A_7C15);
        }
        Self(state)
    }

    pub(crate) fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mixed(self.0)
    }

    /// Below `end`, which is above 0.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        // The high half of the product: no bias that matters for sizes here.
        ((u128::from(self.next_u64()) * end as u128) >> 64) as usize
    }

    /// From 0 to 1, without 1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

fn mixed(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}
