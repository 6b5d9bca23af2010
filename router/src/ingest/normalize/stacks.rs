//! Stacks of a push. Splits each stack into a user stack and a kernel stack, truncates them, and defines the ones that
//! a shard might not have yet.

use proto::dictionary::stack_hash_with;
use proto::{Function, LabelSet, Line, Location, Samples, StackPair, limits};

use crate::ingest::error::ProfileError;
use crate::ingest::known_stacks::DefinitionPlan;
use crate::ingest::normalize::builder::Builder;
use crate::ingest::normalize::frames::{Frames, StackSource};

impl Builder {
    /// Splits the stack of a source into a user stack and a kernel stack, and returns the ID of this pair. Kernel
    /// frames on the leaf side become the kernel stack. A stack that is too deep keeps its leaf side, and a marker
    /// frame replaces the rest. Neither stack is defined yet.
    pub(crate) fn pair(&mut self, frames: &Frames, source: u32) -> u32 {
        let is_cut = frames.depth > limits::STACK_DEPTH_MAX;
        let kept = if is_cut {
            self.warn(format!("a stack of {} frames was truncated to {}", frames.depth, limits::STACK_DEPTH_MAX));
            &frames.kept[..limits::STACK_DEPTH_MAX - 1]
        } else {
            frames.kept.as_slice()
        };
        let marker = is_cut.then(|| self.truncated_marker()).map(|id| self.push.dictionary.location_hash(id));
        let kernel = kept.iter().take_while(|frame| frame.is_kernel).count();
        let mut stack = |start: usize, end: usize, marker: Option<u128>| {
            let hashes = kept[start..end].iter().map(|frame| frame.hash);
            let hash = stack_hash_with(hashes, marker, &mut self.hashed);
            let id = self.push.dictionary.intern_stack(hash, None);
            if id as usize == self.sources.len() {
                // `start` and `end` are at most `STACK_DEPTH_MAX`.
                self.sources.push(StackSource {
                    source,
                    start: start as u32,
                    end: end as u32,
                    is_cut: marker.is_some(),
                });
            }
            id
        };
        let pair = StackPair { user: stack(kernel, kept.len(), marker), kernel: stack(0, kernel, None) };
        self.push.dictionary.intern_pair(pair)
    }

    /// Defines the stacks of these samples of a series, except stacks that the shard is known to hold.
    ///
    /// `locations_of` appends the first `count` locations of a source, leaf first. Its arguments are the builder, the
    /// source, `count` and the list.
    ///
    /// # Errors
    /// Returns the [`ProfileError`] of a stack that cannot be defined. The profile is then refused, and none of its
    /// stacks counts as defined.
    pub(super) fn define(
        &mut self,
        series: &LabelSet,
        samples: &Samples,
        plan: &mut DefinitionPlan<'_>,
        locations_of: impl FnMut(&mut Self, u32, usize, &mut Vec<u32>) -> Result<(), ProfileError>,
    ) -> Result<(), ProfileError> {
        let defined_before = plan.defined_count();
        let defined = self.define_each(series, samples, plan, locations_of);
        if defined.is_err() {
            plan.truncate(defined_before);
            // These pairs count as unchecked again, so that a later profile with the same stacks defines the stacks.
            samples.pairs.iter().for_each(|&pair| self.checked[pair as usize] = None);
        }
        defined
    }

    fn define_each(
        &mut self,
        series: &LabelSet,
        samples: &Samples,
        plan: &mut DefinitionPlan<'_>,
        mut locations_of: impl FnMut(&mut Self, u32, usize, &mut Vec<u32>) -> Result<(), ProfileError>,
    ) -> Result<(), ProfileError> {
        let mut partitions = plan.partitions(series);
        self.checked.resize(self.push.dictionary.pairs.len(), None);
        for (&time_ns, &pair) in samples.times_ns.iter().zip(&samples.pairs) {
            let partition = partitions.at(time_ns, plan);
            if self.checked[pair as usize] == Some(partition) {
                continue;
            }
            let StackPair { user, kernel } = self.push.dictionary.pairs[pair as usize];
            for id in [user, kernel].into_iter().filter(|&id| id != 0) {
                let Some(key) = plan.key_of_unknown(partition, self.push.dictionary.stacks.hash(id)) else { continue };
                if self.push.dictionary.stacks.get(id).is_none() {
                    self.define_stack(id, &mut locations_of)?;
                }
                plan.define(key);
            }
            self.checked[pair as usize] = Some(partition);
        }
        Ok(())
    }

    /// Defines a stack. If that fails, stores the error, so that the stack is not tried again. Otherwise the cost of a
    /// request would be the product of its profiles and their stacks.
    fn define_stack(
        &mut self,
        id: u32,
        locations_of: &mut impl FnMut(&mut Self, u32, usize, &mut Vec<u32>) -> Result<(), ProfileError>,
    ) -> Result<(), ProfileError> {
        if let Some(error) = self.undefinable.get(&id) {
            return Err(error.clone());
        }
        let StackSource { source, start, end, is_cut } = self.sources[id as usize];
        let mut locations = std::mem::take(&mut self.locations);
        locations.clear();
        if let Err(error) = locations_of(self, source, end as usize, &mut locations) {
            self.undefinable.insert(id, error.clone());
            return Err(error);
        }
        locations.extend(is_cut.then(|| self.truncated_marker()));
        let hash = self.push.dictionary.stacks.hash(id);
        self.push.dictionary.intern_stack(hash, locations.get(start as usize..));
        self.locations = locations;
        Ok(())
    }

    fn truncated_marker(&mut self) -> u32 {
        if let Some(marker) = self.truncated {
            return marker;
        }
        let name = self.push.dictionary.strings.intern("[truncated stack]");
        let function = self.push.dictionary.intern_function(Function { name, ..Function::default() });
        let lines = [Line { function, line: 0, column: 0 }].into();
        let marker = self.push.dictionary.intern_location(Location::Lines { mapping_file: 0, frame_type: 0, lines });
        self.truncated = Some(marker);
        marker
    }
}
