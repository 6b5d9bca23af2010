//! Stacks of a push: split into user and kernel part, cut where they are too deep, and defined where their shard may not hold them.

use proto::dictionary::stack_hash_with;
use proto::{Function, Line, Location, Samples, StackPair, limits};

use super::builder::{Builder, Rejection};
use crate::known_stacks::Knowledge;

/// What is known of a frame before it is defined.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    /// Of its location: see [`proto::identity`].
    pub(crate) hash: u128,
    pub(crate) is_kernel: bool,
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
    /// The pair of a source's stack, leaf first: kernel frames on the leaf side are its kernel part. Too deep a stack keeps its leaf
    /// side, below a frame that says so. Nothing of it is defined yet.
    pub(crate) fn pair(&mut self, frames: &[Frame], source: u32) -> u32 {
        let is_cut = frames.len() > limits::STACK_DEPTH_MAX;
        let kept = if is_cut {
            self.warn(format!("a stack of {} frames was cut to {}", frames.len(), limits::STACK_DEPTH_MAX));
            &frames[..limits::STACK_DEPTH_MAX - 1]
        } else {
            frames
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

    /// Defines what of these samples' stacks their shard may not hold. `locations_of`: adds the locations of a source, leaf first.
    pub(super) fn define(
        &mut self,
        service_name: &str,
        samples: &Samples,
        knowledge: &mut Knowledge<'_>,
        mut locations_of: impl FnMut(&mut Self, u32, &mut Vec<u32>) -> Result<(), Rejection>,
    ) -> Result<(), Rejection> {
        let mut places = knowledge.places(service_name);
        self.asked.resize(self.push.dictionary.pairs.len(), None);
        for (&time_ns, &pair) in samples.times_ns.iter().zip(&samples.pairs) {
            let place = places.at(time_ns);
            if self.asked[pair as usize].replace(place) == Some(place) {
                continue;
            }
            let StackPair { user, kernel } = self.push.dictionary.pairs[pair as usize];
            for id in [user, kernel].into_iter().filter(|&id| id != 0) {
                let is_new = knowledge.is_new(place, self.push.dictionary.stacks.hash(id));
                if !is_new || self.push.dictionary.stacks.get(id).is_some() {
                    continue;
                }
                let Part { source, start, end, is_cut } = self.parts[id as usize];
                let mut locations = std::mem::take(&mut self.locations);
                locations.clear();
                locations_of(self, source, &mut locations)?;
                locations.truncate(end as usize);
                locations.extend(is_cut.then(|| self.truncated_marker()));
                let hash = self.push.dictionary.stacks.hash(id);
                self.push.dictionary.intern_stack(hash, locations.get(start as usize..));
                self.locations = locations;
            }
        }
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
