//! Names that are kept between queries: of each tenant a book with the locations of its shards, and what they are called.
//!
//! A shard numbers a tenant's locations densely and says in answers only what the router does not have ([`proto::LocationSets`]).
//! A book has the locations of one generation of each shard; when a shard has begun another, it is let go for a new book, and
//! queries that still use it go on with it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use proto::answer::Node;
use proto::{Answer, Dictionary, KnownLocations, Location, LocationPage, LocationSets, StackFilter};

use crate::query::naming::frame::{FrameFacts, FrameTable, Frames, LackingNames, NamedLocations};
use crate::query::naming::named_dictionary::{Definitions, Question, Told};
use crate::query::naming::namer::Namer;
use crate::query::naming::stack_label::StackMatcher;

/// How often locations are named beside other queries, each of which may take their names since there is a better table; then once
/// more while all others wait.
const NAMED_BESIDE_OTHERS_MAX: usize = 4;

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

impl Book {
    /// Whether both are one.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

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

    /// The conditions on stacks as sets of the locations of a shard, all of which it names.
    pub(crate) fn sets(&self, shard: u32, matchers: &[StackMatcher], namer: &Namer) -> NamedSets {
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
        let mut facts = FrameFacts::new(&pages.table);
        (0..known.count)
            .flat_map(|location| definitions.lines(location))
            .for_each(|line| facts.add(line, &pages.table));
        let lacking = Frames { table: &pages.table, facts: &facts }.lacking();
        NamedSets { sets: LocationSets { known, filters }, lacking, book_bytes: pages.memory_bytes() }
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
        for _ in 0..NAMED_BESIDE_OTHERS_MAX {
            let pages = self.0.pages.read();
            let Some(questions) = pages.questions(namer, own, wanted) else { return pages };
            drop(pages);
            let told = questions.ask(namer);
            let mut pages = self.0.pages.write();
            pages.take(told, own, wanted);
            if pages.have_names(wanted) {
                return RwLockWriteGuard::downgrade(pages);
            }
        }
        self.named_alone(namer, own, wanted)
    }

    /// As [`Book::named`]: nobody else names anything meanwhile, so what is asked once is named.
    fn named_alone(
        &self,
        namer: &Namer,
        own: &mut [Definitions],
        wanted: &[(u32, Vec<u32>)],
    ) -> RwLockReadGuard<'_, Pages> {
        let mut pages = self.0.pages.write();
        if let Some(questions) = pages.questions(namer, own, wanted) {
            pages.take(questions.ask(namer), own, wanted);
        }
        RwLockWriteGuard::downgrade(pages)
    }
}

/// What is to be asked, or was told, of the locations of shards and of dictionaries beside them; `None` of those that have names.
struct Each<T> {
    of_shards: Vec<Option<Vec<T>>>,
    of_own: Vec<Option<Vec<T>>>,
}

impl Each<Question> {
    fn ask(self, namer: &Namer) -> Each<Told> {
        let ask = |questions: Option<Vec<Question>>| questions.map(|questions| namer.ask(questions));
        Each {
            of_shards: self.of_shards.into_iter().map(ask).collect(),
            of_own: self.of_own.into_iter().map(ask).collect(),
        }
    }
}

impl Pages {
    /// `None`: all have names.
    fn questions(&self, namer: &Namer, own: &[Definitions], wanted: &[(u32, Vec<u32>)]) -> Option<Each<Question>> {
        let of_shard = |(shard, wanted): &(u32, Vec<u32>)| {
            self.shards.get(shard).and_then(|pages| namer.questions(&pages.definitions, wanted))
        };
        let of_shards: Vec<_> = wanted.iter().map(of_shard).collect();
        let of_own: Vec<_> = own.iter().map(|own| namer.questions(own, &own.all())).collect();
        let is_any = of_shards.iter().chain(&of_own).any(Option::is_some);
        is_any.then_some(Each { of_shards, of_own })
    }

    fn take(&mut self, told: Each<Told>, own: &mut [Definitions], wanted: &[(u32, Vec<u32>)]) {
        let Self { table, shards } = self;
        for ((shard, wanted), told) in wanted.iter().zip(told.of_shards) {
            if let (Some(pages), Some(told)) = (shards.get_mut(shard), told) {
                pages.definitions.take(wanted, told, table);
            }
        }
        for (own, told) in own.iter_mut().zip(told.of_own) {
            if let Some(told) = told {
                own.take(&own.all(), told, table);
            }
        }
    }

    fn have_names(&self, wanted: &[(u32, Vec<u32>)]) -> bool {
        let is_named = |(shard, wanted): &(u32, Vec<u32>)| {
            self.shards.get(shard).is_none_or(|pages| wanted.iter().all(|&wanted| pages.definitions.is_named(wanted)))
        };
        wanted.iter().all(is_named)
    }

    fn memory_bytes(&self) -> usize {
        self.table.memory_bytes() + self.shards.values().map(|pages| pages.definitions.memory_bytes()).sum::<usize>()
    }
}

/// Conditions on stacks, by the names that locations have now.
#[derive(Debug)]
pub(crate) struct NamedSets {
    pub(crate) sets: LocationSets,
    /// Whose names are lacking, and why.
    pub(crate) lacking: BTreeSet<LackingNames>,
    /// About how many bytes the book takes.
    pub(crate) book_bytes: usize,
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

    // Found by review: after some rounds beside others, frames were left without names.
    #[test]
    fn who_names_alone_has_all_names_at_once() {
        let (_directory, symbols) = crate::query::tests::symbols::symbols();
        let namer = Namer::new(symbols, std::time::Instant::now());
        let mut dictionary = Dictionary::default();
        let (file, frame_type) = (dictionary.strings.intern("/usr/bin/app"), dictionary.strings.intern("native"));
        let mapping = dictionary.intern_mapping(proto::MappingIdentity::File(file), file);
        for address in (0..10).map(proto::Address::Virtual) {
            dictionary.intern_location(Location::Address { mapping, address, frame_type });
        }
        let book = Book::default();
        let count = dictionary.locations.len() as u32;
        book.add(1, &LocationPage { generation: 3, first: 0, count, dictionary: dictionary.clone() }).unwrap();
        let (mut own, wanted) = ([Definitions::new(dictionary)], [(1, (0..count).collect::<Vec<u32>>())]);
        let pages = book.named_alone(&namer, &mut own, &wanted);
        assert!(pages.have_names(&wanted) && own[0].all().iter().all(|&one| own[0].is_named(one)));
        assert_eq!(pages.shards[&1].definitions.lines(0).len(), 1);
    }

    #[test]
    fn nodes_get_dense_numbers_in_the_order_of_the_old_ones() {
        let node = |location| Node { parent: 0, location };
        let mut nodes: Vec<Node> = [0, 130, 5, 64, 5, 63, 140].map(node).to_vec();
        assert_eq!(number_anew(&mut nodes, 100, 41), [5, 63, 64, 130, 140]);
        assert_eq!(nodes.iter().map(|node| node.location).collect::<Vec<_>>(), [0, 3, 0, 2, 0, 1, 4]);
    }
}
