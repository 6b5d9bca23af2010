//! Bins of samples by time, and their encoding as a timeline.

use proto::Samples;

use crate::encoding::packed::{BLOCK, Block, put_block};
use crate::encoding::sums::unit_of;
use crate::encoding::timeline::{NARROW, SAME_VALUE, WIDE};
use crate::encoding::varint::{put, put_sum, zigzag};

/// Number and sum of the samples in each bin, from the first bin with samples to the last.
pub(super) struct Bins {
    pub(super) first: usize,
    pub(super) samples: Vec<u32>,
    pub(super) sums: Vec<i128>,
    value: Option<i64>,
}

impl Bins {
    /// Returns the bins of samples, which are sorted by time; `None` if there are no samples.
    pub(super) fn of(samples: &Samples, start_ns: i64, width_ns: i64) -> Option<Self> {
        let (&first_ns, &value) = samples.times_ns.first().zip(samples.values.first())?;
        // A timeline stores the number of samples in 32 bits.
        u32::try_from(samples.len()).ok()?;
        let mut bins = Self {
            first: bin_of(first_ns - start_ns, width_ns)?,
            samples: Vec::new(),
            sums: Vec::new(),
            value: Some(value),
        };
        let mut end_ns = i64::MIN;
        for (&time_ns, &sample) in samples.times_ns.iter().zip(&samples.values) {
            if time_ns > end_ns {
                let bin = bin_of(time_ns - start_ns, width_ns)?;
                bins.samples.resize(bin - bins.first + 1, 0);
                bins.sums.resize(bins.samples.len(), 0);
                end_ns = start_ns + (bin as i64 + 1) * width_ns;
            }
            let (count, sum) = bins.samples.last_mut().zip(bins.sums.last_mut())?;
            *count += 1;
            *sum += i128::from(sample);
            bins.value = bins.value.filter(|&same| same == sample);
        }
        Some(bins)
    }

    /// Encodes the bins as a timeline. `width` is the index of the bin width in the list of widths.
    pub(super) fn encode(&self, width: u8) -> Vec<u8> {
        let mut out = vec![width];
        put(&mut out, self.first as u64);
        put(&mut out, self.samples.len() as u64);
        put_blocks(&mut out, &self.samples);
        if let Some(value) = self.value {
            out.push(SAME_VALUE);
            put(&mut out, zigzag(value));
            return out;
        }
        let sums = || self.samples.iter().zip(&self.sums).filter(|(samples, _)| **samples > 0).map(|(_, &sum)| sum);
        let unit = unit_of(sums());
        let in_units = || sums().map(|sum| sum / i128::from(unit));
        let narrow: Option<Vec<u32>> = in_units().map(|sum| u32::try_from(sum).ok()).collect();
        out.push(if narrow.is_some() { NARROW } else { WIDE });
        put(&mut out, unit);
        match narrow {
            Some(narrow) => put_blocks(&mut out, &narrow),
            None => in_units().for_each(|sum| put_sum(&mut out, sum)),
        }
        out
    }
}

fn put_blocks(out: &mut Vec<u8>, numbers: &[u32]) {
    for block in numbers.chunks(BLOCK) {
        let minimum = block.iter().copied().min().unwrap_or_default();
        let mut above: Block = [0; BLOCK];
        above.iter_mut().zip(block).for_each(|(above, number)| *above = number - minimum);
        put(out, minimum.into());
        put_block(out, &above[..block.len()]);
    }
}

/// Returns the number of the bin of a time, both counted from the window's start; `None` before the window.
fn bin_of(since_ns: i64, width_ns: i64) -> Option<usize> {
    usize::try_from((since_ns - 1).div_euclid(width_ns)).ok()
}
