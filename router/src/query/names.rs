//! Names that are kept between queries: of each tenant a book with the locations of its shards, and what they are called.
//!
//! A shard numbers a tenant's locations densely and says in answers only what the router does not have ([`proto::LocationSets`]).
//! A book has the locations of one generation of each shard; when a shard has begun another, it is let go for a new book, and
//! queries that still use it go on with it. Books that are not used go when there are too many bytes, and a tenant that is
//! too large for all of them is answered without one.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use proto::selection::Node;
use proto::{Answer, Dictionary, KnownLocations, Location, LocationPage, LocationSets, StackFilter, TenantId};

use crate::query::frame::{FrameFacts, FrameTable, Frames, NamedLocations};
use crate::query::limits::NAMES_BYTES_MAX;
use crate::query::namer::{Definitions, Namer};
use crate::query::stack_label::StackMatcher;

/// How often locations are named again that another query took the names of meanwhile, since there was a better table.
const NAMED_AGAIN_MAX: usize = 4;

/// All books. Cheap to clone; all clones are one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shelf(Arc<Mutex<Books>>);

#[derive(Debug, Default)]
struct Books {
    kept: HashMap<TenantId, Kept>,
    uses: u64,
}

#[derive(Debug, Default)]
struct Kept {
    book: Book,
    used: u64,
    bytes: usize,
    /// It was too large to be kept: what shards have more is asked for only where a query cannot do without.
    is_too_large: bool,
}

/// What is known of one tenant. Cheap to clone; all clones are one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Book(Arc<Inside>);

#[derive(Debug, Default)]
struct Inside {
    /// Held as long as something is named, merged and written: not for an async task.
    pages: RwLock<Pages>,
    /// How far the pages are. Taken behind them, if both are.
    progress: Mutex<BTreeMap<u32, Progress>>,
}

/// Of one shard.
#[derive(Clone, Copy, Debug, Default)]
struct Progress {
    known: KnownLocations,
    /// The shard has more.
    is_behind: bool,
}

#[derive(Debug, Default)]
struct Pages {
    table: FrameTable,
    shards: BTreeMap<u32, ShardPages>,
}

/// The locations of one shard by their numbers.
#[derive(Debug, Default)]
struct ShardPages {
    generation: u64,
    definitions: Definitions,
}

impl Shelf {
    /// The book of a tenant, new or old.
    pub(crate) fn book(&self, tenant: &TenantId) -> Book {
        let Books { kept, uses } = &mut *self.0.lock();
        *uses += 1;
        let kept = kept.entry(tenant.clone()).or_default();
        kept.used = *uses;
        kept.book.clone()
    }

    /// Whether the book of a tenant was too large to be kept.
    pub(crate) fn is_too_large(&self, tenant: &TenantId) -> bool {
        self.0.lock().kept.get(tenant).is_some_and(|kept| kept.is_too_large)
    }

    /// Begins a new book of a tenant, if this is still the one.
    pub(crate) fn renew(&self, tenant: &TenantId, book: &Book) {
        let kept = &mut self.0.lock().kept;
        if kept.get(tenant).is_some_and(|kept| Arc::ptr_eq(&kept.book.0, &book.0)) {
            kept.remove(tenant);
        }
    }

    /// Notes how large a book is, and lets it go if it is too large by itself; and those that were used the longest time ago while
    /// all are too large together.
    pub(crate) fn weigh(&self, tenant: &TenantId, book: &Book, bytes: usize) {
        let kept = &mut self.0.lock().kept;
        if let Some(known) = kept.get_mut(tenant).filter(|kept| Arc::ptr_eq(&kept.book.0, &book.0)) {
            if bytes > NAMES_BYTES_MAX {
                *known = Kept { used: known.used, is_too_large: true, ..Kept::default() };
            }
            let own = if known.is_too_large { 0 } else { bytes };
            known.bytes = own + size_of::<Kept>() + tenant.as_str().len();
        }
        while kept.values().map(|kept| kept.bytes).sum::<usize>() > NAMES_BYTES_MAX {
            let oldest = kept.iter().min_by_key(|(_, kept)| kept.used).map(|(tenant, _)| tenant.clone());
            let Some(oldest) = oldest else { break };
            kept.remove(&oldest);
        }
    }
}

impl Book {
    /// Which locations of a shard it has.
    pub(crate) fn known(&self, shard: u32) -> KnownLocations {
        self.0.progress.lock().get(&shard).map(|progress| progress.known).unwrap_or_default()
    }

    /// Whether a shard is known to have more, or nothing is known of it.
    pub(crate) fn is_behind(&self, shard: u32) -> Option<bool> {
        self.0.progress.lock().get(&shard).map(|progress| progress.is_behind)
    }

    /// Notes that a shard has more.
    pub(crate) fn fall_behind(&self, shard: u32) {
        self.0.progress.lock().entry(shard).or_default().is_behind = true;
    }

    /// Adds what a shard told of what it was not known to have; `None`: it has begun another generation. Not for an async task.
    pub(crate) fn add(&self, shard: u32, page: &LocationPage) -> Option<()> {
        let pages = &mut *self.0.pages.write();
        let pages = pages.shards.entry(shard).or_default();
        if pages.definitions.len() == 0 {
            pages.generation = page.generation;
        }
        if pages.generation != page.generation {
            return None;
        }
        // Else somebody else added it meanwhile.
        if page.first == pages.definitions.len() {
            pages.definitions.extend(&page.dictionary);
        }
        let known = KnownLocations { generation: pages.generation, count: pages.definitions.len() };
        self.0.progress.lock().insert(shard, Progress { known, is_behind: known.count < page.count });
        Some(())
    }

    /// The conditions on stacks as sets of the locations of a shard, all of which it names; and how large the book is then.
    pub(crate) fn sets(&self, shard: u32, matchers: &[StackMatcher], namer: &Namer) -> (LocationSets, usize) {
        let known = self.known(shard);
        let wanted: Vec<u32> = (0..known.count).collect();
        let pages = self.named(namer, &mut [], &[(shard, wanted)]);
        let nothing = Definitions::default();
        let definitions = pages.shards.get(&shard).map_or(&nothing, |pages| &pages.definitions);
        let filter = |matcher: &StackMatcher| {
            let mut test = matcher.test(&pages.table);
            let mut filter = StackFilter::new(matcher.label.place, matcher.negated, test.holds(None));
            for location in (0..known.count).filter(|&location| test.holds_of(definitions.lines(location))) {
                filter.insert(location);
            }
            filter
        };
        let filters = matchers.iter().map(filter).collect();
        (LocationSets { known, filters }, pages.memory_bytes())
    }

    /// Names all locations of the stacks of some answers.
    pub(crate) fn name(&self, mut answers: Vec<ShardAnswer>, namer: &Namer) -> Named<'_> {
        let mut own = Vec::with_capacity(answers.len());
        let mut wanted = Vec::with_capacity(answers.len());
        for ShardAnswer { shard, known, answer } in &mut answers {
            let used = number_anew(&mut answer.nodes, *known, answer.dictionary.locations.len());
            let in_book = used.partition_point(|location| location < known);
            own.push(Definitions::new(std::mem::take(&mut answer.dictionary)));
            wanted.push((*shard, used, in_book));
        }
        let in_book = |(shard, used, in_book): &(u32, Vec<u32>, usize)| (*shard, used[..*in_book].to_vec());
        let of_shards: Vec<_> = wanted.iter().map(in_book).collect();
        let pages = self.named(namer, &mut own, &of_shards);
        let mut facts = FrameFacts::new(&pages.table);
        let mut places = Vec::with_capacity(answers.len());
        let mut locations = Vec::with_capacity(answers.len());
        for (((shard, used, in_book), own), answer) in wanted.into_iter().zip(&own).zip(&answers) {
            let (mut named, mut of_answer) = (NamedLocations::default(), Vec::with_capacity(used.len()));
            for (i, location) in used.into_iter().enumerate() {
                let place = if i < in_book { Place::Book(location) } else { Place::Own(location - answer.known) };
                let lines = match place {
                    Place::Book(location) => {
                        pages.shards.get(&shard).map_or(&[][..], |of| of.definitions.lines(location))
                    }
                    Place::Own(location) => own.lines(location),
                };
                lines.iter().for_each(|line| facts.add(line, &pages.table));
                named.push(lines.iter().map(|line| line.line));
                of_answer.push(place);
            }
            places.push(of_answer);
            locations.push(named);
        }
        Named { answers, pages, own, places, locations, facts }
    }

    /// The pages, when locations of shards and of dictionaries beside them have names.
    fn named(&self, namer: &Namer, own: &mut [Definitions], wanted: &[(u32, Vec<u32>)]) -> RwLockReadGuard<'_, Pages> {
        let own_wanted: Vec<Vec<u32>> = own.iter().map(|own| (0..own.len()).collect()).collect();
        for _ in 0..NAMED_AGAIN_MAX {
            let pages = self.0.pages.read();
            let of_shard = |(shard, wanted): &(u32, Vec<u32>)| {
                pages.shards.get(shard).and_then(|pages| namer.questions(&pages.definitions, wanted))
            };
            let of_shards: Vec<_> = wanted.iter().map(of_shard).collect();
            let of_own: Vec<_> =
                own.iter().zip(&own_wanted).map(|(own, wanted)| namer.questions(own, wanted)).collect();
            if of_shards.iter().chain(&of_own).all(Option::is_none) {
                return pages;
            }
            drop(pages);
            let ask = |questions: Option<Vec<_>>| questions.map(|questions| namer.ask(questions));
            let of_shards: Vec<_> = of_shards.into_iter().map(ask).collect();
            let of_own: Vec<_> = of_own.into_iter().map(ask).collect();
            let mut pages = self.0.pages.write();
            let Pages { table, shards } = &mut *pages;
            for ((shard, wanted), told) in wanted.iter().zip(of_shards) {
                if let (Some(pages), Some(told)) = (shards.get_mut(shard), told) {
                    pages.definitions.take(wanted, told, table);
                }
            }
            for ((own, wanted), told) in own.iter_mut().zip(&own_wanted).zip(of_own) {
                if let Some(told) = told {
                    own.take(wanted, told, table);
                }
            }
            let is_named = |(shard, wanted): &(u32, Vec<u32>)| {
                shards.get(shard).is_none_or(|pages| wanted.iter().all(|&wanted| pages.definitions.is_named(wanted)))
            };
            if wanted.iter().all(is_named) {
                return RwLockWriteGuard::downgrade(pages);
            }
        }
        self.0.pages.read()
    }
}

impl Pages {
    fn memory_bytes(&self) -> usize {
        self.table.memory_bytes() + self.shards.values().map(|pages| pages.definitions.memory_bytes()).sum::<usize>()
    }
}

/// What one shard answered.
#[derive(Clone, Debug)]
pub(crate) struct ShardAnswer {
    pub(crate) shard: u32,
    /// How many of its locations the book had when it was asked.
    pub(crate) known: u32,
    pub(crate) answer: Answer,
}

/// Answers whose locations have names. The nodes of each have locations of its own numbers, densely.
#[derive(Debug)]
pub(crate) struct Named<'a> {
    answers: Vec<ShardAnswer>,
    pages: RwLockReadGuard<'a, Pages>,
    own: Vec<Definitions>,
    places: Vec<Vec<Place>>,
    locations: Vec<NamedLocations>,
    facts: FrameFacts,
}

/// Where a location of an answer is.
#[derive(Clone, Copy, Debug)]
enum Place {
    Book(u32),
    Own(u32),
}

/// One answer whose locations have names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NamedAnswer<'a> {
    pub(crate) answer: &'a Answer,
    /// The frames of its locations.
    pub(crate) locations: &'a NamedLocations,
    places: &'a [Place],
    book: Option<&'a Dictionary>,
    own: &'a Dictionary,
}

impl Named<'_> {
    /// The answers, one by one.
    pub(crate) fn answers(&self) -> impl Iterator<Item = NamedAnswer<'_>> {
        let parts = self.answers.iter().zip(&self.locations).zip(self.places.iter().zip(&self.own));
        parts.map(|((ShardAnswer { shard, answer, .. }, locations), (places, own))| {
            let book = self.pages.shards.get(shard).map(|pages| pages.definitions.dictionary());
            NamedAnswer { answer, locations, places, book, own: own.dictionary() }
        })
    }

    /// All frames of all answers.
    pub(crate) fn frames(&self) -> Frames<'_> {
        Frames { table: &self.pages.table, facts: &self.facts }
    }

    /// About how many bytes the book takes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.pages.memory_bytes()
    }
}

impl NamedAnswer<'_> {
    /// What its locations are, each with the dictionary that it refers to.
    pub(crate) fn definitions(&self) -> impl Iterator<Item = (&Dictionary, &Location)> {
        let of = |place: &Place| {
            let (dictionary, location) = match *place {
                Place::Book(location) => (self.book?, location),
                Place::Own(location) => (self.own, location),
            };
            let is_there = (location as usize) < dictionary.locations.len();
            is_there.then(|| (dictionary, &dictionary.locations[location as usize]))
        };
        self.places.iter().filter_map(of)
    }
}

/// Gives the locations of nodes new numbers, densely and in the order of the old ones; returns the old ones.
fn number_anew(nodes: &mut [Node], known: u32, own: usize) -> Vec<u32> {
    let mut seen = vec![0_u64; (known as usize + own).div_ceil(64)];
    for node in nodes.iter().skip(1) {
        if let Some(word) = seen.get_mut(node.location as usize / 64) {
            *word |= 1 << (node.location % 64);
        }
    }
    // Only those of what was seen are touched, and so are few pages of it.
    let (mut used, mut numbers) = (Vec::new(), vec![0; known as usize + own]);
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
        // What no dictionary has is no location, under any number.
        node.location = numbers.get(node.location as usize).copied().unwrap_or(u32::MAX);
    }
    used
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn books_go_when_there_are_too_many_bytes_and_one_that_is_too_large_is_not_kept() {
        let shelf = Shelf::default();
        let tenants = ["a", "b", "c"].map(|name| TenantId::new(name).unwrap());
        let same = |a: &Book, b: &Book| Arc::ptr_eq(&a.0, &b.0);
        let books = [0, 1, 2].map(|i| shelf.book(&tenants[i]));
        shelf.weigh(&tenants[0], &books[0], NAMES_BYTES_MAX / 2);
        shelf.weigh(&tenants[1], &books[1], NAMES_BYTES_MAX / 4);
        assert!(same(&shelf.book(&tenants[0]), &books[0]));
        // The second was used before the first was again.
        shelf.weigh(&tenants[2], &books[2], NAMES_BYTES_MAX / 2 - 1000);
        assert!(same(&shelf.book(&tenants[0]), &books[0]) && same(&shelf.book(&tenants[2]), &books[2]));
        assert!(!same(&shelf.book(&tenants[1]), &books[1]));
        shelf.weigh(&tenants[2], &books[2], NAMES_BYTES_MAX);
        assert!(!same(&shelf.book(&tenants[2]), &books[2]), "too large for all of them");
        // What is a tenant's book no more does not count.
        shelf.weigh(&tenants[2], &books[2], NAMES_BYTES_MAX * 2);
        let again = shelf.book(&tenants[0]);
        shelf.renew(&tenants[0], &books[1]);
        assert!(same(&shelf.book(&tenants[0]), &again), "it is another one's");
        shelf.renew(&tenants[0], &again);
        assert!(!same(&shelf.book(&tenants[0]), &again));
    }

    #[test]
    fn nodes_get_dense_numbers_in_the_order_of_the_old_ones() {
        let node = |location| Node { parent: 0, location };
        let mut nodes: Vec<Node> = [0, 130, 5, 64, 5, 63, 140].map(node).to_vec();
        assert_eq!(number_anew(&mut nodes, 100, 41), [5, 63, 64, 130, 140]);
        assert_eq!(nodes.iter().map(|node| node.location).collect::<Vec<_>>(), [0, 3, 0, 2, 0, 1, 4]);
    }
}
