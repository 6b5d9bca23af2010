//! Gives names to the locations of answers: those that came with lines have them, the others' are the symbol store's.
//!
//! What the dictionary has once is looked at once: a text, a mapping and, of each mapping, the reason why it has no names.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;
use proto::{Address, BuildId, Dictionary, Line, Location, MappingIdentity};
use symbol_store::{Frame as Found, ObjectKey, Reason, SymbolStore};

use crate::query::frame::{FrameKey, FrameTable, NamedLine, NamedLocations, Unnamed};

/// What a frame is called where the sender gave lines without any name.
const NAMELESS: &str = "[unknown]";

/// What the symbol store says of one address.
type Symbolized = Result<Arc<[Found]>, Reason>;

/// See the module.
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
        let mut objects = self.symbolize(dictionary);
        let mut naming = Naming::new(dictionary, &mut self.table);
        let mut named = NamedLocations::default();
        for location in &dictionary.locations {
            match location {
                Location::Lines { mapping_file, frame_type, lines } => {
                    let (binary, frame_type) = (naming.text(*mapping_file), naming.text(*frame_type));
                    named.push(lines.iter().map(|line| naming.sent_line(*line, binary, frame_type)));
                }
                Location::Address { mapping, address, frame_type } => {
                    let frame_type = naming.text(*frame_type);
                    let Some(object) = objects.get_mut(*mapping as usize) else {
                        named.push([]);
                        continue;
                    };
                    let symbolized = object.symbolized.get(object.next).cloned();
                    object.next += 1;
                    match symbolized.unwrap_or(Err(Reason::NoBuildId)) {
                        Ok(frames) => {
                            named.push(frames.iter().map(|frame| naming.found_line(object, frame, frame_type)));
                        }
                        Err(reason) => named.push([naming.unnamed_line(object, *address, frame_type, reason)]),
                    }
                }
            }
        }
        named
    }

    /// What the symbol store says of the addresses of each mapping: one question for each.
    fn symbolize<'d>(&self, dictionary: &'d Dictionary) -> Vec<Object<'d>> {
        let mut addresses: Vec<Vec<symbol_store::Address>> = vec![Vec::new(); dictionary.mappings.len()];
        for location in &dictionary.locations {
            if let Location::Address { mapping, address, .. } = location
                && let Some(addresses) = addresses.get_mut(*mapping as usize)
            {
                addresses.push(match *address {
                    Address::Virtual(address) => symbol_store::Address::Virtual(address),
                    Address::FileOffset(offset) => symbol_store::Address::FileOffset(offset),
                });
            }
        }
        let mut objects: Vec<Object<'d>> =
            (0..).zip(&addresses).map(|(mapping, _)| Object::new(dictionary.mapping(mapping))).collect();
        // Without addresses and without waiting first: so all tables that are missing are made at once, and the time until
        // the deadline is not spent on the first of them alone.
        for (object, _) in objects.iter().zip(&addresses).filter(|(_, addresses)| !addresses.is_empty()) {
            let _none_asked: Vec<Symbolized> = self.symbols.symbolize(&object.key(), &[], Duration::ZERO);
        }
        for (object, addresses) in objects.iter_mut().zip(&addresses).filter(|(_, addresses)| !addresses.is_empty()) {
            let wait = self.deadline.saturating_duration_since(Instant::now());
            object.symbolized = self.symbols.symbolize(&object.key(), addresses, wait);
        }
        objects
    }
}

/// A mapping whose addresses are named.
struct Object<'a> {
    build_id: Option<&'a BuildId>,
    file: &'a str,
    /// Of its addresses, in the order of the locations.
    symbolized: Vec<Symbolized>,
    /// The first that was not looked at yet.
    next: usize,
    /// Lines by the function, the file and the frame type, the first two by where their texts are: what is symbolized stays
    /// there, and shares them.
    found: HashMap<(*const u8, *const u8, u32), NamedLine, RandomState>,
    /// Id of the file's name in the table.
    binary: Option<u32>,
    /// The last reason of an address, and its index.
    unnamed: Option<(Reason, u32)>,
}

impl<'a> Object<'a> {
    fn new((identity, file): (&'a MappingIdentity, &'a str)) -> Self {
        let (symbolized, found, binary, unnamed) = (Vec::new(), HashMap::default(), None, None);
        Self { build_id: build_id(identity), file, symbolized, next: 0, found, binary, unnamed }
    }

    fn key(&self) -> ObjectKey<'a> {
        ObjectKey { build_id: self.build_id, file: self.file }
    }

    /// As build IDs are displayed, or "".
    fn build_id(&self) -> String {
        self.build_id.map(BuildId::to_string).unwrap_or_default()
    }
}

/// One dictionary being named.
struct Naming<'a> {
    dictionary: &'a Dictionary,
    table: &'a mut FrameTable,
    /// The ids in the table of the dictionary's texts, where they are known.
    texts: Vec<Option<u32>>,
    name: String,
}

impl<'a> Naming<'a> {
    fn new(dictionary: &'a Dictionary, table: &'a mut FrameTable) -> Self {
        let texts = vec![None; dictionary.strings.len() as usize];
        Self { dictionary, table, texts, name: String::new() }
    }

    /// The id in the table of a text of the dictionary.
    fn text(&mut self, id: u32) -> u32 {
        match self.texts.get(id as usize) {
            Some(&Some(known)) => known,
            _ => {
                let known = self.table.strings.intern(self.dictionary.strings.get(id));
                if let Some(place) = self.texts.get_mut(id as usize) {
                    *place = Some(known);
                }
                known
            }
        }
    }

    fn binary(&mut self, object: &mut Object<'_>) -> u32 {
        *object.binary.get_or_insert_with(|| self.table.strings.intern(object.file))
    }

    /// A line as the sender gave it.
    fn sent_line(&mut self, line: Line, binary: u32, frame_type: u32) -> NamedLine {
        let function = self.dictionary.functions.get_index(line.function as usize).copied().unwrap_or_default();
        let [mut name, system_name, file] =
            [function.name, function.system_name, function.file].map(|id| self.text(id));
        let mut unnamed = None;
        // "" has the id 0.
        if name == 0 {
            name = system_name;
        }
        if name == 0 {
            name = self.table.strings.intern(NAMELESS);
            let text = "the sender gave no name for this function".to_owned();
            let binary = self.table.text(binary).to_owned();
            let why = Unnamed { code: "no_name_sent", text, binary, build_id: String::new() };
            unnamed = Some(self.table.intern_unnamed(why));
        }
        let frame = self.table.intern(FrameKey { name, file, binary, frame_type }, function.start_line, unnamed);
        NamedLine { frame, line: line.line, column: line.column, system_name }
    }

    /// A frame that the symbol store found.
    fn found_line(&mut self, object: &mut Object<'_>, found: &Found, frame_type: u32) -> NamedLine {
        let place = (found.function.as_ptr(), found.file.as_ptr(), frame_type);
        if let Some(known) = object.found.get(&place) {
            return NamedLine { line: i64::from(found.line), ..*known };
        }
        let binary = self.binary(object);
        let strings = &mut self.table.strings;
        let [name, file, system_name] =
            [&found.function, &found.file, &found.system_name].map(|text| strings.intern(text));
        let key = FrameKey { name, file, binary, frame_type };
        let frame = self.table.intern(key, i64::from(found.start_line), None);
        let line = NamedLine { frame, line: i64::from(found.line), column: 0, system_name };
        object.found.insert(place, line);
        line
    }

    /// An address without a name keeps its weight under `binary+0xaddress`.
    fn unnamed_line(
        &mut self,
        object: &mut Object<'_>,
        address: Address,
        frame_type: u32,
        reason: Reason,
    ) -> NamedLine {
        self.name.clear();
        match object.file.rsplit('/').next() {
            Some(base) if !base.is_empty() => self.name.push_str(base),
            _ if object.build_id.is_some() => self.name.push_str(&object.build_id()),
            _ => self.name.push_str(NAMELESS),
        }
        let (Address::Virtual(number) | Address::FileOffset(number)) = address;
        // Writing to a String cannot fail.
        let _infallible = write!(self.name, "+{number:#x}");
        let unnamed = match &object.unnamed {
            Some((known, unnamed)) if *known == reason => *unnamed,
            _ => {
                let (code, text) = (reason.code(), reason.to_string());
                let why = Unnamed { code, text, binary: object.file.to_owned(), build_id: object.build_id() };
                let unnamed = self.table.intern_unnamed(why);
                object.unnamed = Some((reason, unnamed));
                unnamed
            }
        };
        let binary = self.binary(object);
        let name = self.table.strings.intern(&self.name);
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
