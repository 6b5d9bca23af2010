//! Names of one tenant's locations, kept between queries.
//!
//! A shard numbers a tenant's locations densely, and a response defines only the locations that the router does not
//! know ([`proto::LocationSets`]). When a shard gives its locations new numbers, it begins another generation. Each
//! [`ShardNames`] belongs to one generation of one shard. After a change, new queries start with empty names of this
//! shard, and running queries finish with the old names. The names of other shards stay.
//!
//! All shards share one table of frames, so that equal frames of different shards have the same number.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Weak};

use foldhash::fast::RandomState;
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use proto::{KnownLocations, LocationPage, LocationSets, StackFilter};

use crate::query::naming::frame::{FrameFacts, FrameTable, Frames, MissingNames};
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
    generations: Mutex<Generations>,
}

/// The newest generation of each shard.
#[derive(Debug, Default)]
struct Generations {
    newest: BTreeMap<u32, ShardNames>,
    /// Number of generations so far, which is the ID of the next one.
    count: u64,
    /// Number of locations of older generations. The table still has their frames.
    dropped: u64,
}

/// Names of the locations of one shard, in one generation of their numbers. Cheap to clone. The names are kept while
/// there is a clone.
#[derive(Clone, Debug)]
pub(crate) struct ShardNames(Arc<Generation>);

#[derive(Debug)]
struct Generation {
    shard: u32,
    id: u64,
    progress: Mutex<Option<Progress>>,
}

/// The locations of one shard that the router knows.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    known: KnownLocations,
    /// True if the shard has locations that the router does not know.
    is_missing_some: bool,
}

#[derive(Debug, Default)]
pub(super) struct Contents {
    pub(super) table: FrameTable,
    /// Names by the ID of their generation.
    shards: HashMap<u64, KnownNames, RandomState>,
}

/// Known locations of one shard, by their numbers.
#[derive(Debug)]
struct KnownNames {
    /// The names are dropped after all queries have finished that use this generation.
    of: Weak<Generation>,
    generation: u64,
    dictionary: NamedDictionary,
}

/// Tells whether a shard still uses the known numbers of its locations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Numbers {
    Same,
    New,
}

/// Numbers of some locations of one shard.
#[derive(Debug)]
pub(super) struct ShardLocations {
    pub(super) names: ShardNames,
    pub(super) locations: Vec<u32>,
}

impl ShardNames {
    /// Number of the shard.
    pub(crate) fn shard(&self) -> u32 {
        self.0.shard
    }

    /// Returns the locations of the shard that the router knows.
    pub(crate) fn known(&self) -> KnownLocations {
        self.0.progress.lock().map(|progress| progress.known).unwrap_or_default()
    }

    /// Returns whether the shard has locations that the router does not know; `None` if nothing is known about the
    /// shard.
    pub(crate) fn is_missing_some(&self) -> Option<bool> {
        self.0.progress.lock().map(|progress| progress.is_missing_some)
    }

    /// Records that the shard has locations that the router does not know.
    pub(crate) fn note_missing(&self) {
        self.0.progress.lock().get_or_insert_default().is_missing_some = true;
    }
}

impl Generations {
    fn begin(&mut self, shard: u32) -> ShardNames {
        let names = ShardNames(Arc::new(Generation { shard, id: self.count, progress: Mutex::default() }));
        self.count += 1;
        self.newest.insert(shard, names.clone());
        names
    }
}

impl TenantNames {
    /// Returns whether both handles share the same names.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns the names of a shard's locations, in the newest generation.
    pub(crate) fn of(&self, shard: u32) -> ShardNames {
        let generations = &mut *self.0.generations.lock();
        generations.newest.get(&shard).cloned().unwrap_or_else(|| generations.begin(shard))
    }

    /// Begins a new generation of the names of a shard, which has given its locations new numbers. Returns `false` if
    /// another query has begun it already.
    pub(crate) fn replace(&self, old: &ShardNames) -> bool {
        let generations = &mut *self.0.generations.lock();
        let is_newest = generations.newest.get(&old.shard()).is_some_and(|newest| newest.0.id == old.0.id);
        if is_newest {
            generations.dropped += u64::from(old.known().count);
            generations.begin(old.shard());
        }
        is_newest
    }

    /// Returns whether most locations that the table of frames was made for are of older generations.
    pub(crate) fn is_mostly_dropped(&self) -> bool {
        let generations = self.0.generations.lock();
        let kept: u64 = generations.newest.values().map(|names| u64::from(names.known().count)).sum();
        generations.dropped > kept
    }

    /// Adds a page of a shard's locations. Returns [`Numbers::New`], and adds nothing, if the page belongs to another
    /// generation. Blocks, so it must not be called from an async task.
    pub(crate) fn add(&self, to: &ShardNames, page: &LocationPage) -> Numbers {
        let contents = &mut *self.0.contents.write();
        if !contents.shards.contains_key(&to.0.id) {
            contents.shards.retain(|_, names| names.of.strong_count() > 0);
        }
        let names = contents.shards.entry(to.0.id).or_insert_with(|| KnownNames {
            of: Arc::downgrade(&to.0),
            generation: page.generation,
            dictionary: NamedDictionary::default(),
        });
        if names.dictionary.len() == 0 {
            names.generation = page.generation;
        }
        if names.generation != page.generation {
            return Numbers::New;
        }
        // A page that does not begin here was added by another query already.
        if page.first == names.dictionary.len() {
            names.dictionary.extend(&page.dictionary);
        }
        let known = KnownLocations { generation: names.generation, count: names.dictionary.len() };
        *to.0.progress.lock() = Some(Progress { known, is_missing_some: known.count < page.count });
        Numbers::Same
    }

    /// Names all locations of some shards, and converts matchers on stacks to sets of locations, for each shard.
    pub(crate) fn sets(&self, shards: &[ShardNames], matchers: &[StackMatcher], namer: &Namer) -> NamedSets {
        let unfiltered = |names: &ShardNames| LocationSets { known: names.known(), filters: Vec::new() };
        let mut sets: Vec<LocationSets> = shards.iter().map(unfiltered).collect();
        let all = |(names, sets): (&ShardNames, &LocationSets)| ShardLocations {
            names: names.clone(),
            locations: (0..sets.known.count).collect(),
        };
        let wanted: Vec<ShardLocations> = shards.iter().zip(&sets).map(all).collect();
        let contents = self.named(namer, &mut [], &wanted);
        for matcher in matchers {
            // One test for all shards, because it remembers the results for values.
            let mut test = matcher.test(&contents.table);
            for (of, sets) in wanted.iter().zip(&mut sets) {
                let mut filter = StackFilter::new(matcher.label.place, matcher.negated, test.holds(None));
                if let Some(dictionary) = contents.dictionary(&of.names) {
                    let inside = |&location: &u32| test.holds_for(dictionary.lines(location));
                    of.locations.iter().copied().filter(inside).for_each(|location| filter.insert(location));
                }
                sets.filters.push(filter);
            }
        }
        let mut facts = FrameFacts::new(&contents.table);
        for of in &wanted {
            let Some(dictionary) = contents.dictionary(&of.names) else { continue };
            let lines = of.locations.iter().flat_map(|&location| dictionary.lines(location));
            lines.for_each(|line| facts.add(line, &contents.table));
        }
        let missing_names = Frames { table: &contents.table, facts: &facts }.missing_names();
        NamedSets { sets, missing_names, names_bytes: contents.memory_bytes() }
    }

    /// Returns the contents once all `wanted` locations of shards and all locations of `own` have names.
    pub(super) fn named(
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
    /// Returns the known locations of a shard; `None` if there are none.
    pub(super) fn dictionary(&self, of: &ShardNames) -> Option<&NamedDictionary> {
        self.shards.get(&of.0.id).map(|names| &names.dictionary)
    }

    /// Returns the requests for locations without names; `None` if all locations have names.
    fn requests(
        &self,
        namer: &Namer,
        own: &[NamedDictionary],
        wanted: &[ShardLocations],
    ) -> Option<PerDictionary<SymbolRequest>> {
        let of_shard = |wanted: &ShardLocations| namer.requests(self.dictionary(&wanted.names)?, &wanted.locations);
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
            if let (Some(names), Some(responses)) = (shards.get_mut(&wanted.names.0.id), responses) {
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
        wanted.iter().all(|ShardLocations { names, locations }| {
            let are_named = |names: &NamedDictionary| locations.iter().all(|&location| names.is_named(location));
            self.dictionary(names).is_none_or(are_named)
        })
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.table.memory_bytes() + self.shards.values().map(|names| names.dictionary.memory_bytes()).sum::<usize>()
    }
}

/// Matchers on stacks as sets of locations, based on the names that the locations have now.
#[derive(Debug)]
pub(crate) struct NamedSets {
    /// Sets of each shard.
    pub(crate) sets: Vec<LocationSets>,
    pub(crate) missing_names: BTreeSet<MissingNames>,
    /// Approximate size of the tenant's names, in bytes.
    pub(crate) names_bytes: usize,
}

#[cfg(test)]
pub(in crate::query::naming) mod tests {
    use proto::{Dictionary, Location};

    use super::*;

    // Once, frames had no names if other queries ran during several rounds.
    #[test]
    fn a_query_that_holds_the_lock_names_all_locations_in_one_round() {
        let (_directory, symbols) = crate::query::tests::symbols::symbols();
        let namer = Namer::new(symbols, &proto::TenantId::default_tenant(), std::time::Instant::now());
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
        let of_shard = names.of(1);
        assert_eq!(names.add(&of_shard, &page), Numbers::Same);
        let mut own = [NamedDictionary::new(dictionary)];
        let wanted = [ShardLocations { names: of_shard.clone(), locations: (0..count).collect() }];
        let contents = names.named_alone(&namer, &mut own, &wanted);
        assert!(contents.are_named(&wanted) && own[0].all().iter().all(|&location| own[0].is_named(location)));
        assert_eq!(contents.dictionary(&of_shard).unwrap().lines(0).len(), 1);
    }

    /// Returns a page with all locations of a shard.
    pub(in crate::query::naming) fn page(generation: u64, count: u32) -> LocationPage {
        let mut dictionary = Dictionary::default();
        dictionary.intern_function(proto::Function::default());
        for line in 0..i64::from(count) {
            let lines = [proto::Line { function: 0, line, column: 0 }].into();
            dictionary.intern_location(Location::Lines { mapping_file: 0, frame_type: 0, lines });
        }
        LocationPage { generation, first: 0, count, dictionary }
    }

    #[test]
    fn a_renumbered_shard_drops_only_its_own_names_after_its_last_query() {
        let tenant = TenantNames::default();
        let shards = [1, 2, 3].map(|shard| tenant.of(shard));
        shards.iter().for_each(|names| assert_eq!(tenant.add(names, &page(5, 10)), Numbers::Same));
        assert_eq!(tenant.add(&shards[1], &page(6, 10)), Numbers::New);
        assert!(
            tenant.replace(&shards[1]) && !tenant.replace(&shards[1]),
            "the first of several queries replaces them"
        );
        assert_eq!([1, 2, 3].map(|shard| tenant.of(shard).known().count), [10, 0, 10]);
        assert_eq!(shards[1].known().count, 10, "a running query goes on with the old names");
        assert_eq!(tenant.add(&tenant.of(2), &page(6, 4)), Numbers::Same);
        let kept = || tenant.0.contents.read().shards.len();
        assert_eq!((tenant.of(2).known().count, kept()), (4, 4));
        drop(shards);
        tenant.add(&tenant.of(4), &page(1, 1));
        assert_eq!(kept(), 4, "one is new, and one was not used any more");
        assert!(!tenant.is_mostly_dropped());
        tenant.replace(&tenant.of(1));
        assert!(tenant.is_mostly_dropped(), "20 locations of 35");
    }
}
