//! Gives names to locations: those that came with lines have them, the others' are the symbol store's.
//!
//! Names are kept beside the dictionary whose locations they belong to. So naming has three steps: what is there to ask
//! ([`Definitions::questions`]), asking, which may wait for symbol tables that must be made first and holds nothing meanwhile, but
//! where names were taken again and again before it was their turn ([`Namer::ask`]), and taking what was told ([`Definitions::take`]).

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use proto::{Address, BuildId, Dictionary, Location, MappingIdentity};
use symbol_store::{Frame as Found, Nameless, ObjectKey, Reason, SymbolStore};

use crate::query::frame::{FrameTable, KeptLine};
use crate::query::naming::{Naming, Object};

/// How long the symbol store is believed to have no table still: it looks for files on this host when it is asked.
const NO_TABLE_BELIEVED: Duration = Duration::from_secs(1);

/// How long a table is believed to be the best still, where the store has told of no other: it looks for better files when it is
/// asked, which it does less often than this.
const TABLE_BELIEVED: Duration = Duration::from_secs(60);

/// What the symbol store says of one address.
type Symbolized = Result<Arc<[Found]>, Nameless>;

/// What a mapping's addresses were named with: the number of a table, or why there was none.
type Source = Result<u64, Reason>;

/// Locations of one dictionary, and the names of those that were named.
#[derive(Debug, Default)]
pub(crate) struct Definitions {
    dictionary: Dictionary,
    /// Where each location's lines are, innermost first.
    spans: Vec<Span>,
    lines: Vec<KeptLine>,
    /// Locations of which the symbol store left out inlined calls: they are asked for again, beside fewer others.
    cut: HashSet<u32, RandomState>,
    /// Ids in the table of frames of the dictionary's texts, [`UNKNOWN`] before they are needed.
    texts: Vec<u32>,
    mappings: Vec<Option<Mapping>>,
}

#[derive(Clone, Copy, Debug)]
struct Span {
    /// [`UNKNOWN`]: it has no name yet.
    start: u32,
    count: u32,
}

const UNKNOWN: u32 = u32::MAX;

const UNNAMED: Span = Span { start: UNKNOWN, count: 0 };

#[derive(Debug)]
struct Mapping {
    source: Source,
    /// [`SymbolStore::changes`] before it was asked, and when that was.
    changes: u64,
    asked: Instant,
}

/// What is to be asked of the addresses of one mapping.
#[derive(Debug)]
pub(crate) struct Question {
    mapping: u32,
    build_id: Option<BuildId>,
    file: String,
    /// All that are wanted, and those of them that have no name, or not all.
    wanted: Vec<(u32, Address)>,
    unnamed: Vec<(u32, Address)>,
    /// Where the others have their names from.
    known: Option<Source>,
}

impl Question {
    fn key(&self) -> ObjectKey<'_> {
        ObjectKey { build_id: self.build_id.as_ref(), file: &self.file }
    }
}

/// What was told of one mapping.
#[derive(Debug)]
pub(crate) struct Told {
    mapping: u32,
    /// Those without a name, where the names that are known hold.
    symbolized: Vec<(u32, Symbolized)>,
    now: Mapping,
}

/// Asks the symbol store.
#[derive(Debug)]
pub(crate) struct Namer {
    symbols: SymbolStore,
    deadline: Instant,
}

impl Namer {
    /// `deadline`: until when it waits for symbol tables that must be made first.
    pub(crate) fn new(symbols: SymbolStore, deadline: Instant) -> Self {
        Self { symbols, deadline }
    }

    /// What must be asked so that these locations of a dictionary have names; `None`: they have.
    pub(crate) fn questions(&self, definitions: &Definitions, wanted: &[u32]) -> Option<Vec<Question>> {
        definitions.questions(wanted, self.symbols.changes())
    }

    /// Asks; blocks while symbol tables are read or made.
    pub(crate) fn ask(&self, questions: Vec<Question>) -> Vec<Told> {
        // Before what is told: what comes meanwhile is asked for again.
        let changes = self.symbols.changes();
        // Without addresses and without waiting first: so all tables that are missing are made at once, and the time until
        // the deadline is not spent on the first of them alone.
        for question in &questions {
            let _none_asked: Vec<Symbolized> = self.symbols.symbolize(&question.key(), &[], Duration::ZERO);
        }
        let wait = || self.deadline.saturating_duration_since(Instant::now());
        let ask = |question: Question| {
            let source = self.symbols.table_number(&question.key(), wait());
            // Of another table, names are those of all or of none.
            let holds = question.known.as_ref() == Some(&source);
            let asked = if holds { &question.unnamed } else { &question.wanted };
            let (locations, addresses): (Vec<u32>, Vec<_>) = asked.iter().copied().unzip();
            let told = match addresses.is_empty() {
                true => Vec::new(),
                false => self.symbols.symbolize(&question.key(), &addresses, wait()),
            };
            let now = Mapping { source, changes, asked: Instant::now() };
            Told { mapping: question.mapping, symbolized: locations.into_iter().zip(told).collect(), now }
        };
        questions.into_iter().map(ask).collect()
    }
}

impl Definitions {
    /// A dictionary none of whose locations has a name yet.
    pub(crate) fn new(dictionary: Dictionary) -> Self {
        let mut definitions = Self { dictionary, ..Self::default() };
        definitions.grew();
        definitions
    }

    pub(crate) fn dictionary(&self) -> &Dictionary {
        &self.dictionary
    }

    /// Adds locations of another dictionary, which come behind those that are here.
    pub(crate) fn extend(&mut self, from: &Dictionary) {
        let mut importer = proto::Importer::new(from);
        for location in (0..).take(from.locations.len()) {
            importer.location(&mut self.dictionary, location);
        }
        self.grew();
    }

    fn grew(&mut self) {
        self.spans.resize(self.dictionary.locations.len(), UNNAMED);
        self.texts.resize(self.dictionary.strings.len() as usize, UNKNOWN);
        self.mappings.resize_with(self.dictionary.mappings.len(), || None);
    }

    /// The numbers of all locations.
    pub(crate) fn all(&self) -> Vec<u32> {
        (0..self.len()).collect()
    }

    /// How many locations there are.
    pub(crate) fn len(&self) -> u32 {
        u32::try_from(self.spans.len()).unwrap_or(u32::MAX)
    }

    /// The lines of a location that has a name, innermost first.
    pub(crate) fn lines(&self, location: u32) -> &[KeptLine] {
        let Some(&Span { start, count }) = self.spans.get(location as usize) else { return &[] };
        self.lines.get(start as usize..).and_then(|lines| lines.get(..count as usize)).unwrap_or_default()
    }

    /// About how many bytes it takes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.dictionary.memory_bytes()
            + self.spans.capacity() * size_of::<Span>()
            + self.lines.capacity() * size_of::<KeptLine>()
            + self.texts.capacity() * size_of::<u32>()
            + self.mappings.capacity() * size_of::<Option<Mapping>>()
    }

    /// Whether a location has a name.
    pub(crate) fn is_named(&self, location: u32) -> bool {
        self.spans.get(location as usize).is_some_and(|span| span.start != UNKNOWN)
    }

    fn is_fresh(&self, mapping: u32, changes: u64) -> bool {
        self.mappings.get(mapping as usize).and_then(Option::as_ref).is_some_and(|mapping| {
            let believed = match mapping.source {
                Ok(_) => TABLE_BELIEVED,
                Err(Reason::Converting) => Duration::ZERO,
                Err(_) => NO_TABLE_BELIEVED,
            };
            mapping.changes == changes && mapping.asked.elapsed() < believed
        })
    }

    /// Questions about all wanted locations of each mapping of which any has no name, or names that may be another table's by now.
    fn questions(&self, wanted: &[u32], changes: u64) -> Option<Vec<Question>> {
        // Whether there is anything to ask of each mapping: mostly there is not.
        let mut asks: Vec<Option<bool>> = vec![None; self.mappings.len()];
        let mut all_named = true;
        for &wanted in wanted {
            let is_named = self.is_named(wanted);
            all_named &= is_named;
            let Some(Location::Address { mapping, .. }) = self.location(wanted) else { continue };
            let Some(asks) = asks.get_mut(*mapping as usize) else { continue };
            if !is_named || self.cut.contains(&wanted) {
                *asks = Some(true);
            } else if asks.is_none() {
                *asks = Some(!self.is_fresh(*mapping, changes));
            }
        }
        let mut questions: Vec<Question> = Vec::new();
        let mut places: Vec<Option<usize>> = vec![None; self.mappings.len()];
        for mapping in (0..).zip(&asks).filter(|(_, asks)| **asks == Some(true)).map(|(mapping, _)| mapping) {
            places[mapping as usize] = Some(questions.len());
            questions.push(self.question(mapping));
        }
        if questions.is_empty() {
            return (!all_named).then_some(questions);
        }
        for &wanted in wanted {
            let Some(Location::Address { mapping, address, .. }) = self.location(wanted) else { continue };
            let place = places.get(*mapping as usize).copied().flatten();
            let Some(question) = place.and_then(|place| questions.get_mut(place)) else { continue };
            question.wanted.push((wanted, *address));
            let is_whole = self.is_named(wanted) && !self.cut.contains(&wanted);
            question.unnamed.extend((!is_whole).then_some((wanted, *address)));
        }
        Some(questions)
    }

    fn question(&self, mapping: u32) -> Question {
        let (identity, file) = self.dictionary.mapping(mapping);
        let known = self.mappings.get(mapping as usize).and_then(Option::as_ref).map(|known| known.source.clone());
        let (build_id, file) = (build_id(identity).cloned(), file.to_owned());
        Question { mapping, build_id, file, wanted: Vec::new(), unnamed: Vec::new(), known }
    }

    fn location(&self, location: u32) -> Option<&Location> {
        ((location as usize) < self.dictionary.locations.len()).then(|| &self.dictionary.locations[location as usize])
    }

    /// Names what was told, and all that needs no telling.
    pub(crate) fn take(&mut self, wanted: &[u32], told: Vec<Told>, table: &mut FrameTable) {
        for Told { mapping, symbolized, now } in told {
            let Some(known) = self.mappings.get_mut(mapping as usize) else { continue };
            let changed = known.as_ref().is_some_and(|known| known.source != now.source);
            *known = Some(now);
            if changed {
                self.forget(mapping);
            }
            let (identity, file) = self.dictionary.mapping(mapping);
            let mut object = Object::new(build_id(identity), file);
            let mut naming = Naming::new(&self.dictionary, &mut self.texts, table);
            for (location, symbolized) in symbolized {
                let Some(place) = self.spans.get_mut(location as usize) else { continue };
                if symbolized.as_ref().is_ok_and(|frames| frames.iter().any(|frame| frame.is_cut)) {
                    self.cut.insert(location);
                } else {
                    self.cut.remove(&location);
                }
                let start = self.lines.len();
                naming.address(&mut object, location, symbolized, &mut self.lines);
                *place = span(start, self.lines.len());
            }
        }
        let mut naming = Naming::new(&self.dictionary, &mut self.texts, table);
        for &wanted in wanted {
            let Some(place) = self.spans.get_mut(wanted as usize).filter(|span| span.start == UNKNOWN) else {
                continue;
            };
            let start = self.lines.len();
            if naming.sent(wanted, &mut self.lines) {
                *place = span(start, self.lines.len());
            }
        }
    }

    /// Takes the names of all addresses of a mapping: they are another table's.
    fn forget(&mut self, forgotten: u32) {
        for (span, location) in self.spans.iter_mut().zip(&self.dictionary.locations) {
            if matches!(location, Location::Address { mapping, .. } if *mapping == forgotten) {
                *span = UNNAMED;
            }
        }
    }
}

fn span(start: usize, end: usize) -> Span {
    let number = |place: usize| u32::try_from(place).unwrap_or(UNKNOWN);
    Span { start: number(start), count: number(end - start) }
}

/// The build ID of a mapping that has one.
pub(crate) fn build_id(identity: &MappingIdentity) -> Option<&BuildId> {
    match identity {
        MappingIdentity::BuildId(build_id) => Some(build_id),
        MappingIdentity::File(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::tests::oracle::symbols;

    /// Some addresses of one file, of which no table is known.
    fn addresses(count: u64) -> Definitions {
        let mut dictionary = Dictionary::default();
        let (file, frame_type) = (dictionary.strings.intern("/usr/bin/app"), dictionary.strings.intern("native"));
        let build_id = BuildId::parse("gnu:0102030405060708").unwrap();
        let mapping = dictionary.intern_mapping(MappingIdentity::BuildId(build_id), file);
        for address in 0..count {
            let address = Address::Virtual(address);
            dictionary.intern_location(Location::Address { mapping, address, frame_type });
        }
        Definitions::new(dictionary)
    }

    fn named_by(source: Source, changes: u64, ago: Duration) -> Mapping {
        Mapping { source, changes, asked: Instant::now().checked_sub(ago).unwrap() }
    }

    #[test]
    fn a_table_is_believed_until_the_store_has_another_and_what_has_none_is_asked_for_soon_again() {
        let mut definitions = addresses(1);
        let mut is_fresh = |source, ago| {
            definitions.mappings[0] = Some(named_by(source, 5, ago));
            (definitions.is_fresh(0, 5), definitions.is_fresh(0, 6))
        };
        assert_eq!(is_fresh(Ok(1), Duration::from_secs(20)), (true, false));
        assert_eq!(is_fresh(Ok(1), TABLE_BELIEVED), (false, false), "there may be a better file");
        assert_eq!(is_fresh(Err(Reason::NoDebugFile), Duration::ZERO), (true, false));
        assert_eq!(is_fresh(Err(Reason::NoDebugFile), NO_TABLE_BELIEVED), (false, false));
        assert_eq!(is_fresh(Err(Reason::Converting), Duration::ZERO), (false, false));
    }

    // Found by review: those that had names of the old table were left without any.
    #[test]
    fn names_of_another_table_are_those_of_all_that_are_wanted() {
        let (_directory, symbols) = symbols();
        let namer = Namer::new(symbols, Instant::now());
        let (mut definitions, mut table) = (addresses(3), FrameTable::default());
        let old: Arc<[Found]> = Arc::from([Found {
            function: Arc::from("old"),
            system_name: Arc::from("old"),
            file: Arc::from(""),
            line: 1,
            start_line: 1,
            is_cut: false,
        }]);
        let symbolized = [0, 1].map(|location| (location, Ok(Arc::clone(&old)))).to_vec();
        let told = Told { mapping: 0, symbolized, now: named_by(Ok(7), 0, Duration::ZERO) };
        definitions.take(&[0, 1], vec![told], &mut table);
        assert!(definitions.is_named(1) && !definitions.is_named(2));
        assert!(namer.questions(&definitions, &[0, 1]).is_none(), "they have names");
        let all = definitions.all();
        let told = namer.ask(namer.questions(&definitions, &all).unwrap());
        definitions.take(&all, told, &mut table);
        for location in all {
            let why = definitions.lines(location)[0].unnamed.unwrap();
            assert_eq!(table.unnamed[why as usize].code, "no_debug_file", "location {location}");
        }
    }
    // Found by review: names that the store had cut were kept as if whole.
    #[test]
    fn a_frame_whose_inlined_calls_are_left_out_has_its_name_and_says_so_and_is_asked_for_again() {
        let (_directory, symbols) = symbols();
        let namer = Namer::new(symbols, Instant::now());
        let (mut definitions, mut table) = (addresses(2), FrameTable::default());
        let frame = |is_cut| -> Symbolized {
            let (function, file) = (Arc::from("outer"), Arc::from(""));
            Ok(Arc::from([Found {
                system_name: Arc::clone(&function),
                function,
                file,
                line: 1,
                start_line: 1,
                is_cut,
            }]))
        };
        let told = vec![(0, frame(false)), (1, frame(true))];
        let told = Told { mapping: 0, symbolized: told, now: named_by(Ok(7), 0, Duration::ZERO) };
        definitions.take(&[0, 1], vec![told], &mut table);
        let lacking = |location: u32| {
            let line = definitions.lines(location)[0];
            assert_eq!(table.text(table.key(line.line.frame).unwrap().name), "outer");
            line.unnamed.and_then(|why| table.unnamed[why as usize].lacking())
        };
        assert_eq!(lacking(0), None);
        assert!(
            lacking(1).unwrap().to_string().starts_with("\"/usr/bin/app\": so many calls are inlined"),
            "{:?}",
            lacking(1)
        );
        let again = namer.questions(&definitions, &[0, 1]).unwrap();
        assert_eq!(again[0].unnamed.iter().map(|of| of.0).collect::<Vec<_>>(), [1], "alone, so that there is room");
        let told = Told { mapping: 0, symbolized: vec![(1, frame(false))], now: named_by(Ok(7), 0, Duration::ZERO) };
        definitions.take(&[0, 1], vec![told], &mut table);
        assert!(namer.questions(&definitions, &[0, 1]).is_none());
    }
}
