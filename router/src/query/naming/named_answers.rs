//! Responses of shards whose locations have names.

use parking_lot::RwLockReadGuard;
use proto::answer::Node;
use proto::{Answer, Dictionary, Location};

use crate::query::naming::frame::{FrameFacts, Frames, NamedLocations};
use crate::query::naming::interpreter::is_interpreter;
use crate::query::naming::named_dictionary::NamedDictionary;
use crate::query::naming::namer::Namer;
use crate::query::naming::tenant_names::{Contents, ShardLocations, ShardNames, TenantNames};

/// The response of one shard.
#[derive(Clone, Debug)]
pub(crate) struct ShardAnswer {
    pub(crate) names: ShardNames,
    /// Number of the shard's locations that were known when the request was sent.
    pub(crate) known: u32,
    pub(crate) answer: Answer,
}

/// Responses whose locations have names. Each response has its own dense numbers of locations.
#[derive(Debug)]
pub(crate) struct Named<'a> {
    answers: Vec<ShardAnswer>,
    contents: RwLockReadGuard<'a, Contents>,
    own: Vec<NamedDictionary>,
    sources: Vec<Vec<LocationSource>>,
    locations: Vec<NamedLocations>,
    facts: FrameFacts,
}

/// Source of the definition of a response's location, with the location's number there.
#[derive(Clone, Copy, Debug)]
enum LocationSource {
    /// The cached names of the tenant.
    Cached(u32),
    /// The dictionary of the response.
    Own(u32),
}

/// One response whose locations have names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NamedAnswer<'a> {
    pub(crate) answer: &'a Answer,
    /// Frames of the response's locations.
    pub(crate) locations: &'a NamedLocations,
    sources: &'a [LocationSource],
    cached: Option<&'a Dictionary>,
    own: &'a Dictionary,
}

impl TenantNames {
    /// Names all locations of the stacks in some responses.
    pub(crate) fn name(&self, mut answers: Vec<ShardAnswer>, namer: &Namer) -> Named<'_> {
        let mut own = Vec::with_capacity(answers.len());
        let mut used_by_answer = Vec::with_capacity(answers.len());
        let mut wanted = Vec::with_capacity(answers.len());
        for ShardAnswer { names, known, answer } in &mut answers {
            let used = renumber(&mut answer.nodes, *known, answer.dictionary.locations.len());
            let cached = used.partition_point(|location| location < known);
            own.push(NamedDictionary::new(std::mem::take(&mut answer.dictionary)));
            wanted.push(ShardLocations { names: names.clone(), locations: used[..cached].to_vec() });
            used_by_answer.push(used);
        }
        let contents = self.named(namer, &mut own, &wanted);
        let mut facts = FrameFacts::new(&contents.table);
        let mut sources = Vec::with_capacity(answers.len());
        let mut locations = Vec::with_capacity(answers.len());
        for ((used, own), ShardAnswer { names, known, .. }) in used_by_answer.into_iter().zip(&own).zip(&answers) {
            let cached = contents.dictionary(names);
            let mut named = NamedLocations::default();
            let mut sources_of_answer = Vec::with_capacity(used.len());
            for location in used {
                let source = match location.checked_sub(*known) {
                    None => LocationSource::Cached(location),
                    Some(own) => LocationSource::Own(own),
                };
                let lines = match source {
                    LocationSource::Cached(location) => cached.map_or(&[][..], |names| names.lines(location)),
                    LocationSource::Own(location) => own.lines(location),
                };
                lines.iter().for_each(|line| facts.add(line, &contents.table));
                named.push(lines.iter().map(|line| line.line));
                sources_of_answer.push(source);
            }
            sources.push(sources_of_answer);
            locations.push(named);
        }
        Named { answers, contents, own, sources, locations, facts }
    }
}

impl Named<'_> {
    /// Removes the frames of interpreters from all responses.
    pub(crate) fn fold_interpreters(&mut self) {
        let folded = is_interpreter(&self.contents.table);
        self.locations.iter_mut().for_each(|locations| locations.fold(&folded));
    }

    /// Iterates over the responses.
    pub(crate) fn answers(&self) -> impl Iterator<Item = NamedAnswer<'_>> {
        let parts = self.answers.iter().zip(&self.locations).zip(self.sources.iter().zip(&self.own));
        parts.map(|((ShardAnswer { names, answer, .. }, locations), (sources, own))| {
            let cached = self.contents.dictionary(names).map(NamedDictionary::dictionary);
            NamedAnswer { answer, locations, sources, cached, own: own.dictionary() }
        })
    }

    /// Returns all frames of all responses.
    pub(crate) fn frames(&self) -> Frames<'_> {
        Frames { table: &self.contents.table, facts: &self.facts }
    }

    /// Approximate size of the tenant's names, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.contents.memory_bytes()
    }
}

impl NamedAnswer<'_> {
    /// Iterates over the locations of the response, each with the dictionary that holds its definitions.
    pub(crate) fn definitions(&self) -> impl Iterator<Item = (&Dictionary, &Location)> {
        self.sources.iter().filter_map(|source| {
            let (dictionary, location) = match *source {
                LocationSource::Cached(location) => (self.cached?, location),
                LocationSource::Own(location) => (self.own, location),
            };
            let is_there = (location as usize) < dictionary.locations.len();
            is_there.then(|| (dictionary, &dictionary.locations[location as usize]))
        })
    }
}

/// Renumbers the locations of nodes densely, in the order of the old numbers. Returns the old numbers.
fn renumber(nodes: &mut [Node], known: u32, own: usize) -> Vec<u32> {
    let mut seen = vec![0_u64; (known as usize + own).div_ceil(64)];
    for node in nodes.iter().skip(1) {
        if let Some(word) = seen.get_mut(node.location as usize / 64) {
            *word |= 1 << (node.location % 64);
        }
    }
    let mut used = Vec::new();
    // Only the entries of used locations are written, so the kernel provides few pages of this memory.
    let mut numbers = vec![0; known as usize + own];
    for (i, &word) in (0..).zip(&seen) {
        let mut bits = word;
        while bits != 0 {
            let location = i * 64 + bits.trailing_zeros();
            if let Some(number) = numbers.get_mut(location as usize) {
                *number = u32::try_from(used.len()).unwrap_or(u32::MAX);
                used.push(location);
            }
            bits &= bits - 1;
        }
    }
    for node in nodes.iter_mut().skip(1) {
        // A location that no dictionary defines gets a number that no location has.
        node.location = numbers.get(node.location as usize).copied().unwrap_or(u32::MAX);
    }
    used
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_get_dense_numbers_in_the_order_of_the_old_ones() {
        let node = |location| Node { parent: 0, location };
        let mut nodes: Vec<Node> = [0, 130, 5, 64, 5, 63, 140].map(node).to_vec();
        assert_eq!(renumber(&mut nodes, 100, 41), [5, 63, 64, 130, 140]);
        assert_eq!(nodes.iter().map(|node| node.location).collect::<Vec<_>>(), [0, 3, 0, 2, 0, 1, 4]);
    }
}
