//! Random numbers that are the same everywhere and for ever: SplitMix64.

/// A sequence of random numbers.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// The sequence of a seed; `stream`: which of its independent ones.
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        let mut outer = Self(seed);
        let start = outer.next_u64() ^ stream.wrapping_mul(0xD6E8_FEB8_6659_FD93);
        Self(start)
    }

    pub(crate) fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
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

/// Indices of which the n-th has weight n^-exponent.
#[derive(Clone, Debug)]
pub(crate) struct Zipf {
    cumulative: Vec<f64>,
}

impl Zipf {
    pub(crate) fn new(count: usize, exponent: f64) -> Self {
        let weights = (1..=count).map(|rank| (rank as f64).powf(-exponent));
        let mut sum = 0.0;
        let mut cumulative: Vec<f64> = weights.map(|weight| (sum += weight, sum).1).collect();
        cumulative.iter_mut().for_each(|value| *value /= sum);
        Self { cumulative }
    }

    pub(crate) fn draw(&self, random: &mut Random) -> usize {
        let point = random.unit();
        self.cumulative.partition_point(|&end| end <= point).min(self.cumulative.len() - 1)
    }
}
