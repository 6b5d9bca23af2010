//! Histogram of the totals of a tree's nodes. From it, pruning finds the weight that a node needs to be kept, without
//! sorting all nodes.

/// Number of bits after the highest bit of a weight that determine its class, together with the position of the highest
/// bit.
const FINE_BITS: u32 = 4;

const CLASSES: usize = 128 << FINE_BITS;

/// Number of nodes in each class of weights.
#[derive(Debug)]
pub(crate) struct Weights(Box<[u32; CLASSES]>);

impl Default for Weights {
    fn default() -> Self {
        Self(Box::new([0; CLASSES]))
    }
}

impl Weights {
    /// Counts a node with this weight. Ignores a weight of zero.
    #[inline]
    pub(crate) fn add(&mut self, weight: i128) {
        if weight > 0
            && let Some(count) = self.0.get_mut(class_of(weight))
        {
            *count += 1;
        }
    }

    /// Returns a weight that at least `nodes` nodes reach, close to the largest such weight. Returns 0 if there are
    /// fewer nodes.
    pub(crate) fn reached_by(&self, nodes: usize) -> i128 {
        let mut count = 0;
        let reaches = |&(_, of_class): &(usize, &u32)| {
            count += *of_class as usize;
            count >= nodes
        };
        self.0.iter().enumerate().rev().find(reaches).map_or(0, |(class, _)| least_of(class))
    }
}

/// Returns the class of a weight, from the position of its highest bit and the next [`FINE_BITS`] bits.
#[inline]
fn class_of(weight: i128) -> usize {
    // Nearly all weights fit in 64 bits, and this computation takes a fraction of the time in 64 bits.
    let (shift, first) = if let Ok(short) = u64::try_from(weight) {
        let shift = (short | 1).ilog2().saturating_sub(FINE_BITS);
        (shift, (short >> shift) as usize)
    } else {
        let shift = (weight | 1).ilog2().saturating_sub(FINE_BITS);
        (shift, (weight >> shift) as usize)
    };
    ((shift as usize) << FINE_BITS) + first
}

/// Returns the smallest weight of a class.
fn least_of(class: usize) -> i128 {
    let shift = (class >> FINE_BITS).saturating_sub(1);
    ((class - (shift << FINE_BITS)) as i128) << shift
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn weight() -> impl Strategy<Value = i128> {
        (0..127_u32, any::<i128>()).prop_map(|(shift, bits)| (bits & i128::MAX) >> shift)
    }

    proptest! {
        #[test]
        fn classes_ascend_and_begin_with_their_least_weight(weight in weight(), other in weight()) {
            let class = class_of(weight);
            prop_assert!(class < CLASSES && least_of(class) <= weight);
            prop_assert_eq!(class_of(least_of(class)), class);
            prop_assert!(weight - least_of(class) <= weight >> FINE_BITS, "within the precision of a class");
            prop_assert!((weight <= other) == (class <= class_of(other)) || class == class_of(other));
        }

        #[test]
        fn enough_nodes_reach_the_returned_weight(
            all in prop::collection::vec(weight(), 1..200),
            nodes in 1..250_usize,
        ) {
            let mut weights = Weights::default();
            all.iter().for_each(|&weight| weights.add(weight));
            let least = weights.reached_by(nodes);
            let weighing = all.iter().filter(|weight| **weight > 0).count();
            let reach = all.iter().filter(|weight| **weight > 0 && **weight >= least).count();
            prop_assert!(reach >= nodes.min(weighing));
        }
    }
}
