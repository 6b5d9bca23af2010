//! A dictionary of locations, with the names that are known so far.
//!
//! Naming has three steps. [`NamedDictionary::requests`] lists the addresses to symbolize.
//! [`Namer`](super::namer::Namer) sends them to the symbol store without holding a lock. [`NamedDictionary::apply`]
//! stores the names.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use proto::{Address, BuildId, Dictionary, Location, TenantId};
use symbol_store::{Frame as Found, Nameless, ObjectKey, Reason};

use crate::query::naming::frame::{FrameTable, KeptLine};
use crate::query::naming::line::{LineBuilder, MappedFile};

/// Time for which the response "no symbol table" stays valid. A new request makes the store search for files on this
/// host.
const NO_TABLE_VALID: Duration = Duration::from_secs(1);

/// Time for which a symbol table counts as the best one, unless the store has reported a change. A new request makes
/// the store search for better files, which may happen less often.
const TABLE_VALID: Duration = Duration::from_secs(60);

/// Response of the symbol store for one address.
pub(super) type Symbolized = Result<Arc<[Found]>, Nameless>;

/// Source of the names of a mapping's addresses: the number of a symbol table, or the reason why there was none.
pub(super) type TableSource = Result<u64, Reason>;

/// Locations of one dictionary, with the names that are known so far.
#[derive(Debug, Default)]
pub(crate) struct NamedDictionary {
    dictionary: Dictionary,
    /// Range of each location's lines in `lines`. The lines of a location are innermost first.
    spans: Vec<Span>,
    lines: Vec<KeptLine>,
    /// Locations for which the symbol store omitted inlined calls. The next request has fewer locations beside these,
    /// so that the calls can fit.
    incomplete: HashSet<u32, RandomState>,
    /// For each text of the dictionary, the ID of the text in the frame table; [`UNKNOWN`] until the ID is needed.
    texts: Vec<u32>,
    /// For each mapping, the source of its names; `None` before the first response of the symbol store.
    mappings: Vec<Option<MappingSource>>,
}

/// Range of a location's lines in the list of all lines.
#[derive(Clone, Copy, Debug)]
struct Span {
    /// Index of the first line; [`UNKNOWN`] if the location has no name yet.
    start: u32,
    count: u32,
}

const UNKNOWN: u32 = u32::MAX;

const UNNAMED: Span = Span { start: UNKNOWN, count: 0 };

/// Source of the names of one mapping, and the time of the last request.
#[derive(Debug)]
pub(super) struct MappingSource {
    pub(super) table: TableSource,
    /// Value of `SymbolStore::changes` before the request.
    pub(super) changes: u64,
    pub(super) requested: Instant,
}

/// A request to symbolize addresses of one mapping.
#[derive(Debug)]
pub(crate) struct SymbolRequest {
    pub(super) mapping: u32,
    build_id: Option<BuildId>,
    file: String,
    /// Wanted locations of the mapping, and their addresses.
    pub(super) wanted: Vec<(u32, Address)>,
    /// Wanted locations whose names are missing or incomplete, and their addresses.
    pub(super) unnamed: Vec<(u32, Address)>,
    /// Source of the names of the other wanted locations.
    pub(super) known: Option<TableSource>,
}

impl SymbolRequest {
    pub(super) fn key<'a>(&'a self, tenant: &'a TenantId) -> ObjectKey<'a> {
        ObjectKey { tenant, build_id: self.build_id.as_ref(), file: &self.file }
    }
}

/// The response of the symbol store for one mapping.
#[derive(Debug)]
pub(crate) struct SymbolResponse {
    pub(super) mapping: u32,
    /// Names of the unnamed locations, or of all wanted locations if the table has changed.
    pub(super) symbolized: Vec<(u32, Symbolized)>,
    pub(super) now: MappingSource,
}

impl NamedDictionary {
    /// Makes a named dictionary in which no location has a name yet.
    pub(crate) fn new(dictionary: Dictionary) -> Self {
        let mut definitions = Self { dictionary, ..Self::default() };
        definitions.grew();
        definitions
    }

    pub(crate) fn dictionary(&self) -> &Dictionary {
        &self.dictionary
    }

    /// Appends the locations of another dictionary.
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

    /// Returns the numbers of all locations.
    pub(crate) fn all(&self) -> Vec<u32> {
        (0..self.len()).collect()
    }

    /// Number of locations.
    pub(crate) fn len(&self) -> u32 {
        u32::try_from(self.spans.len()).unwrap_or(u32::MAX)
    }

    /// Returns the lines of a location, innermost first. Empty if the location has no name yet.
    pub(crate) fn lines(&self, location: u32) -> &[KeptLine] {
        let Some(&Span { start, count }) = self.spans.get(location as usize) else { return &[] };
        self.lines.get(start as usize..).and_then(|lines| lines.get(..count as usize)).unwrap_or_default()
    }

    /// Approximate size in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.dictionary.memory_bytes()
            + self.spans.capacity() * size_of::<Span>()
            + self.lines.capacity() * size_of::<KeptLine>()
            + self.texts.capacity() * size_of::<u32>()
            + self.mappings.capacity() * size_of::<Option<MappingSource>>()
    }

    /// Returns whether a location has a name.
    pub(crate) fn is_named(&self, location: u32) -> bool {
        self.spans.get(location as usize).is_some_and(|span| span.start != UNKNOWN)
    }

    fn is_fresh(&self, mapping: u32, changes: u64) -> bool {
        self.mappings.get(mapping as usize).and_then(Option::as_ref).is_some_and(|mapping| {
            let valid = match mapping.table {
                Ok(_) => TABLE_VALID,
                Err(Reason::Converting) => Duration::ZERO,
                Err(_) => NO_TABLE_VALID,
            };
            mapping.changes == changes && mapping.requested.elapsed() < valid
        })
    }

    /// Returns the requests for the wanted locations. A mapping needs a request if a wanted location in it has no name
    /// or lacks inlined calls, or if there may be another symbol table by now. Returns `None` if nothing is left to do.
    /// The list is empty if only locations that were sent with lines have no names.
    pub(super) fn requests(&self, wanted: &[u32], changes: u64) -> Option<Vec<SymbolRequest>> {
        // For each mapping with wanted locations, true if it needs a request. Nearly always, none does.
        let mut needs: Vec<Option<bool>> = vec![None; self.mappings.len()];
        let mut all_named = true;
        for &wanted in wanted {
            let is_named = self.is_named(wanted);
            all_named &= is_named;
            let Some(Location::Address { mapping, .. }) = self.location(wanted) else { continue };
            let Some(needs) = needs.get_mut(*mapping as usize) else { continue };
            if !is_named || self.incomplete.contains(&wanted) {
                *needs = Some(true);
            } else if needs.is_none() {
                *needs = Some(!self.is_fresh(*mapping, changes));
            }
        }
        let mut requests: Vec<SymbolRequest> = Vec::new();
        let mut indices: Vec<Option<usize>> = vec![None; self.mappings.len()];
        for mapping in (0..).zip(&needs).filter(|(_, needs)| **needs == Some(true)).map(|(mapping, _)| mapping) {
            indices[mapping as usize] = Some(requests.len());
            requests.push(self.request(mapping));
        }
        if requests.is_empty() {
            return (!all_named).then_some(requests);
        }
        for &wanted in wanted {
            let Some(Location::Address { mapping, address, .. }) = self.location(wanted) else { continue };
            let index = indices.get(*mapping as usize).copied().flatten();
            let Some(request) = index.and_then(|index| requests.get_mut(index)) else { continue };
            request.wanted.push((wanted, *address));
            let is_whole = self.is_named(wanted) && !self.incomplete.contains(&wanted);
            request.unnamed.extend((!is_whole).then_some((wanted, *address)));
        }
        Some(requests)
    }

    fn request(&self, mapping: u32) -> SymbolRequest {
        let (build_id, file) = self.dictionary.mapping(mapping);
        let known = self.mappings.get(mapping as usize).and_then(Option::as_ref).map(|known| known.table.clone());
        let build_id = build_id.cloned();
        SymbolRequest { mapping, build_id, file: file.to_owned(), wanted: Vec::new(), unnamed: Vec::new(), known }
    }

    fn location(&self, location: u32) -> Option<&Location> {
        ((location as usize) < self.dictionary.locations.len()).then(|| &self.dictionary.locations[location as usize])
    }

    /// Stores the names in the responses. Also names those wanted locations that were sent with lines.
    pub(crate) fn apply(&mut self, wanted: &[u32], responses: Vec<SymbolResponse>, table: &mut FrameTable) {
        for SymbolResponse { mapping, symbolized, now } in responses {
            let Some(known) = self.mappings.get_mut(mapping as usize) else { continue };
            let changed = known.as_ref().is_some_and(|known| known.table != now.table);
            *known = Some(now);
            if changed {
                self.forget(mapping);
            }
            let (build_id, path) = self.dictionary.mapping(mapping);
            let mut file = MappedFile::new(build_id, path);
            let mut builder = LineBuilder::new(&self.dictionary, &mut self.texts, table);
            for (location, symbolized) in symbolized {
                let Some(slot) = self.spans.get_mut(location as usize) else { continue };
                if symbolized.as_ref().is_ok_and(|frames| frames.iter().any(|frame| frame.is_cut)) {
                    self.incomplete.insert(location);
                } else {
                    self.incomplete.remove(&location);
                }
                let start = self.lines.len();
                builder.address(&mut file, location, symbolized, &mut self.lines);
                *slot = span(start, self.lines.len());
            }
        }
        let mut builder = LineBuilder::new(&self.dictionary, &mut self.texts, table);
        for &wanted in wanted {
            let Some(slot) = self.spans.get_mut(wanted as usize).filter(|span| span.start == UNKNOWN) else {
                continue;
            };
            let start = self.lines.len();
            if builder.sent(wanted, &mut self.lines) {
                *slot = span(start, self.lines.len());
            }
        }
    }

    /// Drops the names of all addresses of a mapping, because they come from another symbol table.
    fn forget(&mut self, forgotten: u32) {
        for (span, location) in self.spans.iter_mut().zip(&self.dictionary.locations) {
            if matches!(location, Location::Address { mapping, .. } if *mapping == forgotten) {
                *span = UNNAMED;
            }
        }
    }
}

fn span(start: usize, end: usize) -> Span {
    let number = |index: usize| u32::try_from(index).unwrap_or(UNKNOWN);
    Span { start: number(start), count: number(end - start) }
}

#[cfg(test)]
pub(in crate::query::naming) mod tests {
    use super::*;

    /// Returns a dictionary of `count` addresses in one file that has no symbol table.
    pub(in crate::query::naming) fn addresses(count: u64) -> NamedDictionary {
        let mut dictionary = Dictionary::default();
        let file = dictionary.strings.intern("/usr/bin/app");
        let frame_type = dictionary.strings.intern("native");
        let build_id = BuildId::parse("gnu:0102030405060708").unwrap();
        let mapping = dictionary.intern_mapping(proto::Mapping { build_id: Some(build_id), file });
        for address in 0..count {
            let address = Address::Virtual(address);
            dictionary.intern_location(Location::Address { mapping, address, frame_type });
        }
        NamedDictionary::new(dictionary)
    }

    pub(in crate::query::naming) fn named_by(table: TableSource, changes: u64, ago: Duration) -> MappingSource {
        MappingSource { table, changes, requested: Instant::now().checked_sub(ago).unwrap() }
    }

    #[test]
    fn a_table_stays_valid_until_the_store_reports_a_change() {
        let mut definitions = addresses(1);
        let mut is_fresh = |source, ago| {
            definitions.mappings[0] = Some(named_by(source, 5, ago));
            (definitions.is_fresh(0, 5), definitions.is_fresh(0, 6))
        };
        assert_eq!(is_fresh(Ok(1), Duration::from_secs(20)), (true, false));
        assert_eq!(is_fresh(Ok(1), TABLE_VALID), (false, false), "there may be a better file");
        assert_eq!(is_fresh(Err(Reason::NoDebugFile), Duration::ZERO), (true, false));
        assert_eq!(is_fresh(Err(Reason::NoDebugFile), NO_TABLE_VALID), (false, false));
        assert_eq!(is_fresh(Err(Reason::Converting), Duration::ZERO), (false, false));
    }
}
