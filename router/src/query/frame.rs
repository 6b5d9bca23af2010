//! Frames with names: what locations become, each distinct frame once in all answers of a query.
//!
//! A frame's identity is its name, source file, binary and frame type. Frames of a location are innermost first, as lines are.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use proto::dictionary::Strings;
use proto::{Address, BuildId, Dictionary, Location, MappingIdentity};
use symbol_store::{ObjectKey, Reason, SymbolStore};

/// What a frame is called where the sender gave lines without any name.
const NAMELESS: &str = "[unknown]";

/// A frame's identity; ids of the table's strings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FrameKey {
    pub(crate) name: u32,
    pub(crate) file: u32,
    /// Path of the mapped file.
    pub(crate) binary: u32,
    pub(crate) frame_type: u32,
}

/// A frame, and what is told of it besides.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    pub(crate) key: FrameKey,
    /// First line of the function; 0 if unknown.
    pub(crate) start_line: i64,
    /// Index of the reason why the name is none.
    pub(crate) unnamed: Option<u32>,
}

/// Why frames of one binary have no names.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Unnamed {
    /// Stable, for programs.
    pub(crate) code: &'static str,
    /// For people.
    pub(crate) text: String,
    pub(crate) binary: String,
    /// As build IDs are displayed, or "".
    pub(crate) build_id: String,
}

/// One frame of a location.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct NamedLine {
    /// Index of the frame.
    pub(crate) frame: u32,
    /// 0 if unknown.
    pub(crate) line: i64,
    /// 0 if unknown.
    pub(crate) column: i64,
    /// Id of the mangled name in the table's strings.
    pub(crate) system_name: u32,
}

/// All frames of a query.
#[derive(Debug, Default)]
pub(crate) struct FrameTable {
    pub(crate) strings: Strings,
    pub(crate) frames: Vec<Frame>,
    pub(crate) unnamed: Vec<Unnamed>,
    frame_ids: HashMap<FrameKey, u32>,
    unnamed_ids: HashMap<Unnamed, u32>,
}

/// The frames of each location of one answer.
#[derive(Debug, Default)]
pub(crate) struct NamedLocations {
    /// Location i has the lines from `ends[i - 1]` (or 0) to `ends[i]`.
    ends: Vec<usize>,
    lines: Vec<NamedLine>,
}

impl NamedLocations {
    /// The frames of a location, innermost first; at least one.
    pub(crate) fn lines(&self, location: u32) -> &[NamedLine] {
        let i = location as usize;
        let start = i.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        self.ends.get(i).and_then(|&end| self.lines.get(start..end)).unwrap_or_default()
    }

    /// How many locations there are.
    pub(crate) fn len(&self) -> u32 {
        u32::try_from(self.ends.len()).unwrap_or(u32::MAX)
    }
}

impl FrameTable {
    /// The text of one of its ids.
    pub(crate) fn text(&self, id: u32) -> &str {
        self.strings.get(id)
    }

    /// What tells a frame from others, as text: an order that does not depend on ids.
    pub(crate) fn texts(&self, key: FrameKey) -> [&str; 4] {
        [key.name, key.file, key.binary, key.frame_type].map(|id| self.strings.get(id))
    }

    /// The place of every frame in the order of their texts.
    pub(crate) fn ranks(&self) -> Vec<u32> {
        let mut order: Vec<usize> = (0..self.frames.len()).collect();
        order.sort_by_key(|&i| self.frames.get(i).map(|frame| self.texts(frame.key)));
        let mut ranks = vec![0; order.len()];
        for (rank, frame) in (0..).zip(order) {
            if let Some(place) = ranks.get_mut(frame) {
                *place = rank;
            }
        }
        ranks
    }

    /// The index of a frame, new or old. Of several first lines the smallest known one stays, of several reasons the first.
    fn intern(&mut self, key: FrameKey, start_line: i64, unnamed: Option<u32>) -> u32 {
        let next = u32::try_from(self.frames.len()).unwrap_or(u32::MAX);
        let id = *self.frame_ids.entry(key).or_insert(next);
        match self.frames.get_mut(id as usize) {
            Some(known) if start_line > 0 && (known.start_line == 0 || start_line < known.start_line) => {
                known.start_line = start_line;
            }
            Some(_) => {}
            None => self.frames.push(Frame { key, start_line, unnamed }),
        }
        id
    }

    fn intern_unnamed(&mut self, unnamed: Unnamed) -> u32 {
        let next = u32::try_from(self.unnamed.len()).unwrap_or(u32::MAX);
        let id = *self.unnamed_ids.entry(unnamed.clone()).or_insert(next);
        if id == next {
            self.unnamed.push(unnamed);
        }
        id
    }
}

/// What the symbol store says of one address.
type Symbolized = Result<Vec<symbol_store::Frame>, Reason>;

/// Gives names to the locations of a query's answers.
pub(crate) struct Namer<'a> {
    symbols: &'a SymbolStore,
    deadline: Instant,
    pub(crate) table: FrameTable,
}

impl<'a> Namer<'a> {
    /// `deadline`: until when it waits for symbol tables that must be made first.
    pub(crate) fn new(symbols: &'a SymbolStore, deadline: Instant) -> Self {
        Self { symbols, deadline, table: FrameTable::default() }
    }

    /// The frames of all locations of a dictionary; blocks while symbol tables are read or made.
    pub(crate) fn name(&mut self, dictionary: &Dictionary) -> NamedLocations {
        let mut symbolized = self.symbolize(dictionary);
        let mut named = NamedLocations::default();
        for (i, location) in dictionary.locations.iter().enumerate() {
            match location {
                Location::Lines { mapping_file, frame_type, lines } => {
                    let binary = self.table.strings.intern(dictionary.strings.get(*mapping_file));
                    let frame_type = self.table.strings.intern(dictionary.strings.get(*frame_type));
                    for line in lines {
                        named.lines.push(self.sent_line(dictionary, *line, binary, frame_type));
                    }
                }
                Location::Address { mapping, address, frame_type } => {
                    let frame_type = self.table.strings.intern(dictionary.strings.get(*frame_type));
                    let (identity, file) = dictionary.mapping(*mapping);
                    match symbolized.get_mut(i).and_then(Option::take).unwrap_or(Err(Reason::NoBuildId)) {
                        Ok(frames) => {
                            let binary = self.table.strings.intern(file);
                            named.lines.extend(frames.iter().map(|frame| self.found_line(frame, binary, frame_type)));
                        }
                        Err(reason) => {
                            named.lines.push(self.unnamed_line(identity, file, *address, frame_type, &reason));
                        }
                    }
                }
            }
            named.ends.push(named.lines.len());
        }
        named
    }

    /// What the symbol store says of each address location: one question for each object.
    fn symbolize(&self, dictionary: &Dictionary) -> Vec<Option<Symbolized>> {
        let mut by_mapping: BTreeMap<u32, (Vec<usize>, Vec<symbol_store::Address>)> = BTreeMap::new();
        for (i, location) in dictionary.locations.iter().enumerate() {
            if let Location::Address { mapping, address, .. } = location {
                let (places, addresses) = by_mapping.entry(*mapping).or_default();
                places.push(i);
                addresses.push(match *address {
                    Address::Virtual(address) => symbol_store::Address::Virtual(address),
                    Address::FileOffset(offset) => symbol_store::Address::FileOffset(offset),
                });
            }
        }
        let object = |mapping| {
            let (identity, file) = dictionary.mapping(mapping);
            ObjectKey { build_id: build_id(identity), file }
        };
        // Without addresses and without waiting first: so all tables that are missing are made at once, and the time until
        // the deadline is not spent on the first of them alone.
        for &mapping in by_mapping.keys() {
            let _none_asked: Vec<Symbolized> = self.symbols.symbolize(&object(mapping), &[], Duration::ZERO);
        }
        let mut symbolized = vec![None; dictionary.locations.len()];
        for (mapping, (places, addresses)) in by_mapping {
            let object = object(mapping);
            let wait = self.deadline.saturating_duration_since(Instant::now());
            for (place, answer) in places.into_iter().zip(self.symbols.symbolize(&object, &addresses, wait)) {
                if let Some(symbolized) = symbolized.get_mut(place) {
                    *symbolized = Some(answer);
                }
            }
        }
        symbolized
    }

    /// A line as the sender gave it.
    fn sent_line(&mut self, dictionary: &Dictionary, line: proto::Line, binary: u32, frame_type: u32) -> NamedLine {
        let function = dictionary.functions.get_index(line.function as usize).copied().unwrap_or_default();
        let [name, system_name, file] =
            [function.name, function.system_name, function.file].map(|id| dictionary.strings.get(id));
        let (shown, unnamed) = match (name, system_name) {
            ("", "") => {
                let text = "the sender gave no name for this function".to_owned();
                let binary = self.table.text(binary).to_owned();
                let unnamed = Unnamed { code: "no_name_sent", text, binary, build_id: String::new() };
                (NAMELESS, Some(self.table.intern_unnamed(unnamed)))
            }
            ("", system_name) => (system_name, None),
            (name, _) => (name, None),
        };
        let strings = &mut self.table.strings;
        let key = FrameKey { name: strings.intern(shown), file: strings.intern(file), binary, frame_type };
        let system_name = strings.intern(system_name);
        let frame = self.table.intern(key, function.start_line, unnamed);
        NamedLine { frame, line: line.line, column: line.column, system_name }
    }

    /// A frame that the symbol store found.
    fn found_line(&mut self, found: &symbol_store::Frame, binary: u32, frame_type: u32) -> NamedLine {
        let strings = &mut self.table.strings;
        let key =
            FrameKey { name: strings.intern(&found.function), file: strings.intern(&found.file), binary, frame_type };
        let system_name = strings.intern(&found.system_name);
        let frame = self.table.intern(key, i64::from(found.start_line), None);
        NamedLine { frame, line: i64::from(found.line), column: 0, system_name }
    }

    /// An address without a name keeps its weight under `binary+0xaddress`.
    fn unnamed_line(
        &mut self,
        identity: &MappingIdentity,
        file: &str,
        address: Address,
        frame_type: u32,
        reason: &Reason,
    ) -> NamedLine {
        let build_id = build_id(identity).map(BuildId::to_string).unwrap_or_default();
        let base = match file.rsplit('/').next() {
            Some(base) if !base.is_empty() => base,
            _ if !build_id.is_empty() => build_id.as_str(),
            _ => NAMELESS,
        };
        let (Address::Virtual(number) | Address::FileOffset(number)) = address;
        let name = self.table.strings.intern(&format!("{base}+{number:#x}"));
        let (code, text) = (reason.code(), reason.to_string());
        let unnamed = self.table.intern_unnamed(Unnamed { code, text, binary: file.to_owned(), build_id });
        let binary = self.table.strings.intern(file);
        let frame = self.table.intern(FrameKey { name, file: 0, binary, frame_type }, 0, Some(unnamed));
        NamedLine { frame, line: 0, column: 0, system_name: 0 }
    }
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

    #[test]
    fn a_frame_has_the_smallest_first_line_that_is_known() {
        let mut table = FrameTable::default();
        let key = FrameKey { name: table.strings.intern("f"), file: 0, binary: 0, frame_type: 0 };
        let ids: Vec<u32> = [0, 30, 0, 20, 25].map(|line| table.intern(key, line, None)).to_vec();
        assert_eq!(ids, [0; 5]);
        assert_eq!(table.frames[0].start_line, 20);
    }

    #[test]
    fn ranks_follow_the_texts_and_not_the_order_of_coming() {
        let mut table = FrameTable::default();
        for (name, file) in [("b", "x"), ("a", "y"), ("a", "x")] {
            let (name, file) = (table.strings.intern(name), table.strings.intern(file));
            table.intern(FrameKey { name, file, binary: 0, frame_type: 0 }, 0, None);
        }
        assert_eq!(table.ranks(), [2, 1, 0]);
    }
}
