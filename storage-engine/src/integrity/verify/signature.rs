//! Signatures of windows: all sums of all series and stacks of a window in one number, which adds up as they do.
//!
//! A signature is the sum of weight × sum over series and stacks, modulo 2^128; a weight is a hash of what names series and stack
//! in every tier. So finer windows' signatures add up to the coarser one's where every single sum does; where any does not, they
//! do so by a chance of one in 2^64.

use std::hash::BuildHasher as _;
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use proto::{Fingerprint, Label, LabelSet, StackHash, TenantId};

use crate::encoding::sums::Row;
use crate::memory::partition::{Pair, Partition};
use crate::memory::tenant_dictionary::TenantDictionary;

/// Weights of what one partition has.
pub(crate) struct Weights {
    hashes: FixedState,
    /// By number of the pair.
    pairs: Vec<u64>,
    /// By number of the series: as it is called here, and as it is in the next coarser tier.
    series: Vec<(Fingerprint, Fingerprint)>,
}

/// Of one window of one series.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Signature {
    /// As the series is called in its own tier.
    pub(crate) here: u128,
    /// As it is called in the next coarser one.
    pub(crate) coarser: u128,
}

impl Weights {
    /// `dropped`: labels that the next coarser tier has not.
    pub(crate) fn new(
        partition: &Partition,
        vocabulary: &TenantDictionary,
        tenant: &TenantId,
        dropped: &[String],
    ) -> Self {
        let hashes = FixedState::default();
        let stacks: HashMap<u32, StackHash, FixedState> =
            vocabulary.stacks().map(|(hash, node)| (node, hash)).collect();
        let stack = |node: u32| stacks.get(&node).copied().unwrap_or_default();
        let pair = |pair: &Pair| hashes.hash_one((stack(pair.user), stack(pair.kernel)));
        let pairs = partition.pairs.as_slice().iter().map(pair).collect();
        let kept = |(&own, labels): (&Fingerprint, &Arc<LabelSet>)| {
            let is_kept = |label: &&Label| !dropped.contains(&label.name);
            if labels.iter().all(|label| is_kept(&label)) {
                return (own, own);
            }
            (own, LabelSet::new(labels.iter().filter(is_kept).cloned().collect()).fingerprint(tenant))
        };
        Self { hashes, pairs, series: partition.series.iter().map(kept).collect() }
    }

    /// The signature of a window of a series that has so many samples; `None` if it refers to what is not there.
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
