//! Names of one tenant's locations, kept between queries.
//!
//! A shard numbers a tenant's locations densely, and a response defines only the locations that the router does not
//! know ([`proto::LocationSets`]). When a shard gives its locations new numbers, it begins another generation. The
//! names here belong to one generation of each shard. After a change, new queries start with empty names, and running
//! queries finish with the old names.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use proto::answer::Node;
use proto::{Answer, Dictionary, KnownLocations, Location, LocationPage, LocationSets, StackFilter};

use crate::query::naming::frame::{FrameFacts, FrameTable, Frames, MissingNames, NamedLocations};
use crate::query::naming::named_dictionary::{NamedDictionary, SymbolRequest, SymbolResponse};
use crate::query::naming::namer::Namer;
use crate::query::naming::stack_label::StackMatcher;

/// Maximum number of rounds in which a query names locations while other queries do the same. Another query may drop
/// names meanwhile, because there is a better symbol table. One more round follows, during which all other queries of
/// the tenant wait.
const SHARED_ROUNDS_MAX: usize = 4;

/// Names of one tenant's locations. Cheap to clone; all clones share the names.
#[derive(Clone, Debug, Default)]
pub(crate) struct TenantNames(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Names and frames. The lock is held while locations are named, merged and written, so no async task may take it.
    contents: RwLock<Contents>,
    /// Known locations of each shard. If both locks are needed, `contents` is locked first.
    progress: Mutex<BTreeMap<u32, Progress>>,
}

/// The locations of one shard that the router knows.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    known: KnownLocations,
    /// True if the shard has locations that the router does not know.
    is_missing_some: bool,
}

#[derive(Debug, Default)]
struct Contents {
    table: FrameTable,
    shards: BTreeMap<u32, ShardNames>,
}

/// Known locations of one shard, by their numbers.
#[derive(Debug, Default)]
struct ShardNames {
    generation: u64,
    dictionary: NamedDictionary,
}

/// Tells whether a shard still uses the known numbers of its locations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Generation {
    Same,
    New,
}

/// Numbers of some locations of one shard.
#[derive(Debug)]
struct ShardLocations {
    shard: u32,
    locations: Vec<u32>,
}

impl TenantNames {
    /// Returns whether both handles share the same names.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns the locations of a shard that the router knows.
    pub(crate) fn known(&self, shard: u32) -> KnownLocations {
        self.0.progress.lock().get(&shard).map(|progress| progress.known).unwrap_or_default()
    }

    /// Returns whether a shard has locations that the router does not know; `None` if nothing is known about the shard.
    pub(crate) fn is_missing_some(&self, shard: u32) -> Option<bool> {
        self.0.progress.lock().get(&shard).map(|progress| progress.is_missing_some)
    }

    /// Records that a shard has locations that the router does not know.
    pub(crate) fn note_missing(&self, shard: u32) {
        self.0.progress.lock().entry(shard).or_default().is_missing_some = true;
    }

    /// Adds a page of a shard's locations. Returns [`Generation::New`], and adds nothing, if the page belongs to
    /// another generation. Blocks, so it must not be called from an async task.
    pub(crate) fn add(&self, shard: u32, page: &LocationPage) -> Generation {
        let contents = &mut *self.0.contents.write();
        let names = contents.shards.entry(shard).or_default();
        if names.dictionary.len() == 0 {
            names.generation = page.generation;
        }
        if names.generation != page.generation {
            return Generation::New;
        }
        // A page that does not begin here was added by another query already.
        if page.first == names.dictionary.len() {
            names.dictionary.extend(&page.dictionary);
        }
        let known = KnownLocations { generation: names.generation, count: names.dictionary.len() };
        self.0.progress.lock().insert(shard, Progress { known, is_missing_some: known.count < page.count });
        Generation::Same
    }

    /// Names all locations of a shard, and converts matchers on stacks to sets of locations.
    pub(crate) fn sets(&self, shard: u32, matchers: &[StackMatcher], namer: &Namer) -> NamedSets {
        let known = self.known(shard);
        let wanted = ShardLocations { shard, locations: (0..known.count).collect() };
        let contents = self.named(namer, &mut [], &[wanted]);
        let nothing = NamedDictionary::default();
        let dictionary = contents.shards.get(&shard).map_or(&nothing, |names| &names.dictionary);
        let filter = |matcher: &StackMatcher| {
            let mut test = matcher.test(&contents.table);
            let mut filter = StackFilter::new(matcher.label.place, matcher.negated, test.holds(None));
            for location in (0..known.count).filter(|&location| test.holds_for(dictionary.lines(location))) {
                filter.insert(location);
            }
            filter
        };
        let filters = matchers.iter().map(filter).collect();
        let mut facts = FrameFacts::new(&contents.table);
        (0..known.count)
            .flat_map(|location| dictionary.lines(location))
            .for_each(|line| facts.add(line, &contents.table));
        let missing_names = Frames { table: &contents.table, facts: &facts }.missing_names();
        NamedSets { sets: LocationSets { known, filters }, missing_names, names_bytes: contents.memory_bytes() }
    }

    /// Names all locations of the stacks in some responses.
    pub(crate) fn name(&self, mut answers: Vec<ShardAnswer>, namer: &Namer) -> Named<'_> {
        let mut own = Vec::with_capacity(answers.len());
        let mut used_by_answer = Vec::with_capacity(answers.len());
        let mut wanted = Vec::with_capacity(answers.len());
        for ShardAnswer { shard, known, answer } in &mut answers {
            let used = renumber(&mut answer.nodes, *known, answer.dictionary.locations.len());
            let cached = used.partition_point(|location| location < known);
            own.push(NamedDictionary::new(std::mem::take(&mut answer.dictionary)));
            wanted.push(ShardLocations { shard: *shard, locations: used[..cached].to_vec() });
            used_by_answer.push(used);
        }
        let contents = self.named(namer, &mut own, &wanted);
        let mut facts = FrameFacts::new(&contents.table);
        let mut sources = Vec::with_capacity(answers.len());
        let mut locations = Vec::with_capacity(answers.len());
        for ((used, own), ShardAnswer { shard, known, .. }) in used_by_answer.into_iter().zip(&own).zip(&answers) {
            let mut named = NamedLocations::default();
            let mut sources_of_answer = Vec::with_capacity(used.len());
            for location in used {
                let source = match location.checked_sub(*known) {
                    None => LocationSource::Cached(location),
                    Some(own) => LocationSource::Own(own),
                };
                let lines = match source {
                    LocationSource::Cached(location) => {
                        contents.shards.get(shard).map_or(&[][..], |names| names.dictionary.lines(location))
                    }
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

    /// Returns the contents once all `wanted` locations of shards and all locations of `own` have names.
    fn named(
        &self,
        namer: &Namer,
        own: &mut [NamedDictionary],
        wanted: &[ShardLocations],
    ) -> RwLockReadGuard<'_, Contents> {
        for _ in 0..SHARED_ROUNDS_MAX {
            let contents = self.0.contents.read();
            let Some(requests) = contents.requests(namer, own, wanted) else { return contents };
            drop(contents);
            let responses = requests.symbolize(namer);
            let mut contents = self.0.contents.write();
            contents.apply(responses, own, wanted);
            if contents.are_named(wanted) {
                return RwLockWriteGuard::downgrade(contents);
            }
        }
        self.named_alone(namer, own, wanted)
    }

    /// Like [`TenantNames::named`], but all other queries of the tenant wait. So one round is enough to name
    /// everything.
    fn named_alone(
        &self,
        namer: &Namer,
        own: &mut [NamedDictionary],
        wanted: &[ShardLocations],
    ) -> RwLockReadGuard<'_, Contents> {
        let mut contents = self.0.contents.write();
        if let Some(requests) = contents.requests(namer, own, wanted) {
            contents.apply(requests.symbolize(namer), own, wanted);
        }
        RwLockWriteGuard::downgrade(contents)
    }
}

/// For each dictionary, the requests to the symbol store or its responses. `None` if all locations of the dictionary
/// have names.
struct PerDictionary<T> {
    of_shards: Vec<Option<Vec<T>>>,
    of_own: Vec<Option<Vec<T>>>,
}

impl PerDictionary<SymbolRequest> {
    fn symbolize(self, namer: &Namer) -> PerDictionary<SymbolResponse> {
        let symbolize = |requests: Option<Vec<SymbolRequest>>| requests.map(|requests| namer.symbolize(requests));
        PerDictionary {
            of_shards: self.of_shards.into_iter().map(symbolize).collect(),
            of_own: self.of_own.into_iter().map(symbolize).collect(),
        }
    }
}

impl Contents {
    /// Returns the requests for locations without names; `None` if all locations have names.
    fn requests(
        &self,
        namer: &Namer,
        own: &[NamedDictionary],
        wanted: &[ShardLocations],
    ) -> Option<PerDictionary<SymbolRequest>> {
        let of_shard = |wanted: &ShardLocations| {
            let names = self.shards.get(&wanted.shard)?;
            namer.requests(&names.dictionary, &wanted.locations)
        };
        let of_shards: Vec<_> = wanted.iter().map(of_shard).collect();
        let of_own: Vec<_> = own.iter().map(|own| namer.requests(own, &own.all())).collect();
        let is_any = of_shards.iter().chain(&of_own).any(Option::is_some);
        is_any.then_some(PerDictionary { of_shards, of_own })
    }

    fn apply(
        &mut self,
        responses: PerDictionary<SymbolResponse>,
        own: &mut [NamedDictionary],
        wanted: &[ShardLocations],
    ) {
        let Self { table, shards } = self;
        for (wanted, responses) in wanted.iter().zip(responses.of_shards) {
            if let (Some(names), Some(responses)) = (shards.get_mut(&wanted.shard), responses) {
                names.dictionary.apply(&wanted.locations, responses, table);
            }
        }
        for (own, responses) in own.iter_mut().zip(responses.of_own) {
            if let Some(responses) = responses {
                own.apply(&own.all(), responses, table);
            }
        }
    }

    fn are_named(&self, wanted: &[ShardLocations]) -> bool {
        wanted.iter().all(|ShardLocations { shard, locations }| {
            let names = self.shards.get(shard);
            names.is_none_or(|names| locations.iter().all(|&location| names.dictionary.is_named(location)))
        })
    }

    fn memory_bytes(&self) -> usize {
        self.table.memory_bytes() + self.shards.values().map(|names| names.dictionary.memory_bytes()).sum::<usize>()
    }
}

/// Matchers on stacks as sets of locations, based on the names that the locations have now.
#[derive(Debug)]
pub(crate) struct NamedSets {
    pub(crate) sets: LocationSets,
    pub(crate) missing_names: BTreeSet<MissingNames>,
    /// Approximate size of the tenant's names, in bytes.
    pub(crate) names_bytes: usize,
}

/// The response of one shard.
#[derive(Clone, Debug)]
pub(crate) struct ShardAnswer {
    pub(crate) shard: u32,
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

impl Named<'_> {
    /// Iterates over the responses.
    pub(crate) fn answers(&self) -> impl Iterator<Item = NamedAnswer<'_>> {
        let parts = self.answers.iter().zip(&self.locations).zip(self.sources.iter().zip(&self.own));
        parts.map(|((ShardAnswer { shard, answer, .. }, locations), (sources, own))| {
            let cached = self.contents.shards.get(shard).map(|names| names.dictionary.dictionary());
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

    // Once, frames had no names if other queries ran during several rounds.
    #[test]
    fn a_query_that_holds_the_lock_names_all_locations_in_one_round() {
        let (_directory, symbols) = crate::query::tests::symbols::symbols();
        let namer = Namer::new(symbols, std::time::Instant::now());
        let mut dictionary = Dictionary::default();
        let file = dictionary.strings.intern("/usr/bin/app");
        let frame_type = dictionary.strings.intern("native");
        let mapping = dictionary.intern_mapping(proto::Mapping { build_id: None, file });
        for address in (0..10).map(proto::Address::Virtual) {
            dictionary.intern_location(Location::Address { mapping, address, frame_type });
        }
        let names = TenantNames::default();
        let count = dictionary.locations.len() as u32;
        let page = LocationPage { generation: 3, first: 0, count, dictionary: dictionary.clone() };
        assert_eq!(names.add(1, &page), Generation::Same);
        let mut own = [NamedDictionary::new(dictionary)];
        let wanted = [ShardLocations { shard: 1, locations: (0..count).collect() }];
        let contents = names.named_alone(&namer, &mut own, &wanted);
        assert!(contents.are_named(&wanted) && own[0].all().iter().all(|&location| own[0].is_named(location)));
        assert_eq!(contents.shards[&1].dictionary.lines(0).len(), 1);
    }

    #[test]
    fn nodes_get_dense_numbers_in_the_order_of_the_old_ones() {
        let node = |location| Node { parent: 0, location };
        let mut nodes: Vec<Node> = [0, 130, 5, 64, 5, 63, 140].map(node).to_vec();
        assert_eq!(renumber(&mut nodes, 100, 41), [5, 63, 64, 130, 140]);
        assert_eq!(nodes.iter().map(|node| node.location).collect::<Vec<_>>(), [0, 3, 0, 2, 0, 1, 4]);
    }
}
