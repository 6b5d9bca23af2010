//! Gives names to locations: those that came with lines have them, the others' are the symbol store's.
//!
//! Names are kept beside the dictionary whose locations they belong to. So naming has three steps: what is there to ask
//! ([`Definitions::questions`]), asking, which may wait for symbol tables that must be made first and holds nothing meanwhile
//! ([`Namer::ask`]), and taking what was told ([`Definitions::take`]).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use proto::{Address, BuildId, Dictionary, Location, MappingIdentity};
use symbol_store::{Frame as Found, ObjectKey, Reason, SymbolStore};

use crate::query::frame::{FrameTable, KeptLine};
use crate::query::naming::{Naming, Object};

/// How long the symbol store is believed to have what it had: it looks for files on this host when it is asked.
const FRESH: Duration = Duration::from_secs(1);

/// What the symbol store says of one address.
type Symbolized = Result<Arc<[Found]>, Reason>;

/// What a mapping's addresses were named with: the number of a table, or why there was none.
type Source = Result<u64, Reason>;

/// Locations of one dictionary, and the names of those that were named.
#[derive(Debug, Default)]
pub(crate) struct Definitions {
    dictionary: Dictionary,
    /// Where each location's lines are, innermost first.
    spans: Vec<Span>,
    lines: Vec<KeptLine>,
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
    locations: Vec<u32>,
    addresses: Vec<symbol_store::Address>,
    /// Where all of them have names: from where.
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
    locations: Vec<u32>,
    /// None where the names that are known hold.
    symbolized: Vec<Symbolized>,
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
            let holds = question.known.as_ref() == Some(&source);
            let symbolized =
                if holds { Vec::new() } else { self.symbols.symbolize(&question.key(), &question.addresses, wait()) };
            let locations = if holds { Vec::new() } else { question.locations };
            let now = Mapping { source, changes, asked: Instant::now() };
            Told { mapping: question.mapping, locations, symbolized, now }
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
            let is_settled = mapping.source != Err(Reason::Converting);
            is_settled && mapping.changes == changes && mapping.asked.elapsed() < FRESH
        })
    }

    fn questions(&self, wanted: &[u32], changes: u64) -> Option<Vec<Question>> {
        let mut all_named = true;
        let mut fresh: Vec<Option<bool>> = vec![None; self.mappings.len()];
        let mut by_mapping: HashMap<u32, Question, RandomState> = HashMap::default();
        for &wanted in wanted {
            let is_named = self.is_named(wanted);
            all_named &= is_named;
            let Some(Location::Address { mapping, address, .. }) = self.location(wanted) else { continue };
            let Some(fresh) = fresh.get_mut(*mapping as usize) else { continue };
            if is_named && *fresh.get_or_insert_with(|| self.is_fresh(*mapping, changes)) {
                continue;
            }
            let question = by_mapping.entry(*mapping).or_insert_with(|| self.question(*mapping));
            question.locations.push(wanted);
            question.addresses.push(match *address {
                Address::Virtual(address) => symbol_store::Address::Virtual(address),
                Address::FileOffset(offset) => symbol_store::Address::FileOffset(offset),
            });
            if !is_named {
                question.known = None;
            }
        }
        let mut questions: Vec<Question> = by_mapping.into_values().collect();
        questions.sort_unstable_by_key(|question| question.mapping);
        (!all_named || !questions.is_empty()).then_some(questions)
    }

    fn question(&self, mapping: u32) -> Question {
        let (identity, file) = self.dictionary.mapping(mapping);
        let known = self.mappings.get(mapping as usize).and_then(Option::as_ref).map(|known| known.source.clone());
        let (build_id, file) = (build_id(identity).cloned(), file.to_owned());
        Question { mapping, build_id, file, locations: Vec::new(), addresses: Vec::new(), known }
    }

    fn location(&self, location: u32) -> Option<&Location> {
        ((location as usize) < self.dictionary.locations.len()).then(|| &self.dictionary.locations[location as usize])
    }

    /// Names what was told, and all that needs no telling.
    pub(crate) fn take(&mut self, wanted: &[u32], told: Vec<Told>, table: &mut FrameTable) {
        for Told { mapping, locations, symbolized, now } in told {
            let Some(known) = self.mappings.get_mut(mapping as usize) else { continue };
            let changed = known.as_ref().is_some_and(|known| known.source != now.source);
            *known = Some(now);
            if changed {
                self.forget(mapping);
            }
            let (identity, file) = self.dictionary.mapping(mapping);
            let mut object = Object::new(build_id(identity), file);
            let mut naming = Naming::new(&self.dictionary, &mut self.texts, table);
            for (location, symbolized) in locations.into_iter().zip(symbolized) {
                let Some(place) = self.spans.get_mut(location as usize) else { continue };
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
