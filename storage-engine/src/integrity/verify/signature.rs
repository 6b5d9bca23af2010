//! Signatures of windows: one number that stands for all sums of all series and stacks of a window. Signatures add up
//! if the sums do.
//!
//! A signature is the sum, modulo 2^128, of weight × sum over all series and stacks. A weight is a hash of the names of
//! the series and the stack, which are the same in every tier. If every sum of a coarser window is the total of its
//! finer windows, the same is true of the signatures. If one sum is wrong, the signatures still add up with a
//! probability of one in 2^64.

use std::hash::BuildHasher as _;
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use proto::{Fingerprint, Label, LabelSet, StackHash, TenantId};

use crate::encoding::sums::Row;
use crate::memory::partition::Partition;
use crate::memory::tenant_dictionary::{Pair, TenantDictionary};

/// Weights of the series and pairs of one partition.
pub(crate) struct Weights {
    hashes: FixedState,
    /// Hash of each pair, by number of the pair.
    pairs: Vec<u64>,
    /// Fingerprints of each series in this tier and in the next coarser one, by number of the series.
    series: Vec<(Fingerprint, Fingerprint)>,
}

/// Signature of one window of one series.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Signature {
    /// Signature with the series' fingerprint in this tier.
    pub(crate) here: u128,
    /// Signature with the series' fingerprint in the next coarser tier.
    pub(crate) coarser: u128,
}

impl Weights {
    /// Computes the weights of a partition. `dropped` holds the labels that the next coarser tier drops.
    pub(crate) fn new(partition: &Partition, shared: &TenantDictionary, tenant: &TenantId, dropped: &[String]) -> Self {
        let hashes = FixedState::default();
        let stacks: HashMap<u32, StackHash, FixedState> = shared.stacks().map(|(hash, node)| (node, hash)).collect();
        let stack = |node: u32| stacks.get(&node).copied().unwrap_or_default();
        let pair = |pair: &Pair| hashes.hash_one((stack(pair.user), stack(pair.kernel)));
        let pairs = partition.pairs.as_slice().iter().map(pair).collect();
        let kept = |(&own, labels): (&Fingerprint, &Arc<LabelSet>)| {
            let is_kept = |label: &&Label| !label.is_one_of(dropped);
            if labels.iter().all(|label| is_kept(&label)) {
                return (own, own);
            }
            (own, LabelSet::new(labels.iter().filter(is_kept).cloned().collect()).fingerprint(tenant))
        };
        Self { hashes, pairs, series: partition.series.iter().map(kept).collect() }
    }

    /// Returns the fingerprint of a series in this tier; `None` if the series is not defined.
    pub(crate) fn fingerprint(&self, series: u32) -> Option<Fingerprint> {
        self.series.get(series as usize).map(|series| series.0)
    }

    /// Returns the hash of a pair's stacktraces; `None` if the pair is not defined.
    pub(crate) fn pair(&self, pair: u32) -> Option<u64> {
        self.pairs.get(pair as usize).copied()
    }

    /// Returns the signature of a window of a series; `None` if the series or a pair is not defined. `samples` is the
    /// number of samples in the window.
    pub(crate) fn sign(&self, series: u32, samples: u64, rows: &[Row]) -> Option<Signature> {
        let &(own, kept) = self.series.get(series as usize)?;
        let here = self.sum(own, samples, rows)?;
        Some(Signature { here, coarser: if own == kept { here } else { self.sum(kept, samples, rows)? } })
    }

    fn sum(&self, series: Fingerprint, samples: u64, rows: &[Row]) -> Option<u128> {
        let weigh = |weight: u64, sum: i128| u128::from(weight).wrapping_mul(sum.cast_unsigned());
        let mut signature = weigh(self.hashes.hash_one(series.0), samples.into());
        for &(pair, sum) in rows {
            let weight = self.hashes.hash_one((series.0, *self.pairs.get(pair as usize)?));
            signature = signature.wrapping_add(weigh(weight, sum));
        }
        Some(signature)
    }
}
