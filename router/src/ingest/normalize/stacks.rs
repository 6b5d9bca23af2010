//! Stacks of a push: split into user and kernel part, cut where they are too deep, and defined where their shard may not hold them.

use proto::dictionary::stack_hash_with;
use proto::{Function, Line, Location, Samples, StackPair, limits};

use crate::ingest::known_stacks::Knowledge;
use crate::ingest::normalize::builder::{Builder, Rejection};

/// What is known of a frame before it is defined.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    /// Of its location: see [`proto::identity`].
    pub(crate) hash: u128,
    pub(crate) is_kernel: bool,
}

/// The frames of one stack, leaf first; of one that is too deep, as many as are kept.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    kept: Vec<Frame>,
    depth: usize,
}

impl Frames {
    pub(crate) fn clear(&mut self) {
        self.kept.clear();
        self.depth = 0;
    }

    #[inline]
    pub(crate) fn push(&mut self, frame: Frame) {
        self.depth += 1;
        if self.kept.len() < limits::STACK_DEPTH_MAX {
            self.kept.push(frame);
        }
    }
}

/// A stack is the frames `[start, end)` of a source, leaf first: of what a format counts its stacks by.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Part {
    source: u32,
    start: u32,
    end: u32,
    /// There were more; a frame says so.
    is_cut: bool,
}

impl Builder {
    /// The pair of a source's stack: kernel frames on the leaf side are its kernel part. Too deep a stack keeps its leaf side, below
    /// a frame that says so. Nothing of it is defined yet.
    pub(crate) fn pair(&mut self, frames: &Frames, source: u32) -> u32 {
        let is_cut = frames.depth > limits::STACK_DEPTH_MAX;
        let kept = if is_cut {
            self.warn(format!("a stack of {} frames was cut to {}", frames.depth, limits::STACK_DEPTH_MAX));
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
            if id as usize == self.parts.len() {
                // Both are at most `STACK_DEPTH_MAX`.
                self.parts.push(Part { source, start: start as u32, end: end as u32, is_cut: marker.is_some() });
            }
            id
        };
        let pair = StackPair { user: stack(kernel, kept.len(), marker), kernel: stack(0, kernel, None) };
        self.push.dictionary.intern_pair(pair)
    }

    /// Defines the stacks of these samples that their shard may not hold. `locations_of` adds the first so many locations of a
    /// source, leaf first.
    ///
    /// # Errors
    /// A stack cannot be defined. The profile is refused then, and none of its stacks counts as defined for it.
    pub(super) fn define(
        &mut self,
        service_name: &str,
        samples: &Samples,
        knowledge: &mut Knowledge<'_>,
        locations_of: impl FnMut(&mut Self, u32, usize, &mut Vec<u32>) -> Result<(), Rejection>,
    ) -> Result<(), Rejection> {
        let told = knowledge.told_count();
        let defined = self.define_each(service_name, samples, knowledge, locations_of);
        if defined.is_err() {
            knowledge.keep_told(told);
            // A later profile with the same stacks notes them again.
            samples.pairs.iter().for_each(|&pair| self.asked[pair as usize] = None);
        }
        defined
    }

    fn define_each(
        &mut self,
        service_name: &str,
        samples: &Samples,
        knowledge: &mut Knowledge<'_>,
        mut locations_of: impl FnMut(&mut Self, u32, usize, &mut Vec<u32>) -> Result<(), Rejection>,
    ) -> Result<(), Rejection> {
        let mut places = knowledge.places(service_name);
        self.asked.resize(self.push.dictionary.pairs.len(), None);
        for (&time_ns, &pair) in samples.times_ns.iter().zip(&samples.pairs) {
            let place = places.at(time_ns, knowledge);
            if self.asked[pair as usize] == Some(place) {
                continue;
            }
            let StackPair { user, kernel } = self.push.dictionary.pairs[pair as usize];
            for id in [user, kernel].into_iter().filter(|&id| id != 0) {
                let Some(key) = knowledge.unknown(place, self.push.dictionary.stacks.hash(id)) else { continue };
                if self.push.dictionary.stacks.get(id).is_none() {
                    self.define_stack(id, &mut locations_of)?;
                }
                knowledge.tell(key);
            }
            self.asked[pair as usize] = Some(place);
        }
        Ok(())
    }

    /// Once, also where it cannot be defined: else a request costs the product of its profiles and their stacks.
    fn define_stack(
        &mut self,
        id: u32,
        locations_of: &mut impl FnMut(&mut Self, u32, usize, &mut Vec<u32>) -> Result<(), Rejection>,
    ) -> Result<(), Rejection> {
        if let Some(rejection) = self.undefinable.get(&id) {
            return Err(rejection.clone());
        }
        let Part { source, start, end, is_cut } = self.parts[id as usize];
        let mut locations = std::mem::take(&mut self.locations);
        locations.clear();
        if let Err(rejection) = locations_of(self, source, end as usize, &mut locations) {
            self.undefinable.insert(id, rejection.clone());
            return Err(rejection);
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

#[cfg(test)]
mod tests {
    use super::*;

    // Found by review: a few KB of compressed body said a stack of sixty million frames, which took 2 GB.
    #[test]
    fn of_a_stack_that_is_too_deep_no_more_is_held_than_is_kept() {
        let mut frames = Frames::default();
        (0..limits::STACK_DEPTH_MAX * 3).for_each(|_| frames.push(Frame { hash: 1, is_kernel: false }));
        assert_eq!((frames.kept.len(), frames.depth), (limits::STACK_DEPTH_MAX, 3 * limits::STACK_DEPTH_MAX));
    }
}
