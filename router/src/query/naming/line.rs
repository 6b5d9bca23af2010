//! From what senders and the symbol store say of a location to frames of the table. What a dictionary has once is looked at once:
//! a text, and of each mapping the reason why it has no names.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;

use foldhash::fast::RandomState;
use proto::{Address, BuildId, Dictionary, Line, Location};
use symbol_store::{Frame as Found, Nameless, Reason};

use crate::query::naming::abort_marker::{ABORT_MARKER, AbortCode, UNWINDING_STOPPED};
use crate::query::naming::frame::{FrameKey, FrameTable, INLINED_LEFT_OUT, KeptLine, NamedLine, Unnamed};

/// What a frame is called where the sender gave lines without any name.
const NAMELESS: &str = "[unknown]";

/// A text of which no id is known.
const UNKNOWN: u32 = u32::MAX;

/// A mapping whose addresses are named.
pub(crate) struct Object<'a> {
    build_id: Option<&'a BuildId>,
    file: &'a str,
    /// Lines by the function, the file and the frame type, the first two by where their texts are: what is symbolized stays
    /// there, and shares them.
    found: HashMap<(*const u8, *const u8, u32), KeptLine, RandomState>,
    /// Id of the file's name in the table.
    binary: Option<u32>,
    /// The last reason of an address, and its index.
    unnamed: Option<(Reason, u32)>,
    /// What was symbolized, so that its texts stay where they are.
    held: Vec<Arc<[Found]>>,
}

impl<'a> Object<'a> {
    pub(crate) fn new(build_id: Option<&'a BuildId>, file: &'a str) -> Self {
        Self { build_id, file, found: HashMap::default(), binary: None, unnamed: None, held: Vec::new() }
    }

    /// As build IDs are displayed, or "".
    fn build_id(&self) -> String {
        self.build_id.map(BuildId::to_string).unwrap_or_default()
    }
}

/// Locations of one dictionary being named.
pub(crate) struct Naming<'a> {
    dictionary: &'a Dictionary,
    /// The ids in the table of the dictionary's texts, where they are known.
    texts: &'a mut [u32],
    table: &'a mut FrameTable,
    name: String,
}

impl<'a> Naming<'a> {
    pub(crate) fn new(dictionary: &'a Dictionary, texts: &'a mut [u32], table: &'a mut FrameTable) -> Self {
        Self { dictionary, texts, table, name: String::new() }
    }

    /// Appends the lines of a location that came with lines; `false`: it did not.
    pub(crate) fn sent(&mut self, location: u32, to: &mut Vec<KeptLine>) -> bool {
        let Location::Lines { mapping_file, frame_type, lines } = &self.dictionary.locations[location as usize] else {
            return false;
        };
        let (binary, frame_type) = (self.text(*mapping_file), self.text(*frame_type));
        to.extend(lines.iter().map(|line| self.sent_line(*line, binary, frame_type)));
        true
    }

    /// Appends what the symbol store said of the address of a location.
    pub(crate) fn address(
        &mut self,
        object: &mut Object<'_>,
        location: u32,
        symbolized: Result<Arc<[Found]>, Nameless>,
        to: &mut Vec<KeptLine>,
    ) {
        let Location::Address { address, frame_type, .. } = &self.dictionary.locations[location as usize] else {
            return;
        };
        let frame_type = self.text(*frame_type);
        if self.table.text(frame_type) == ABORT_MARKER {
            return to.push(self.abort_line(object, AbortCode::of(*address), frame_type));
        }
        match symbolized {
            Ok(frames) => {
                to.extend(frames.iter().map(|frame| self.found_line(object, frame, frame_type)));
                object.held.push(frames);
            }
            Err(nameless) => to.push(self.unnamed_line(object, *address, frame_type, nameless)),
        }
    }

    /// The id in the table of a text of the dictionary.
    fn text(&mut self, id: u32) -> u32 {
        match self.texts.get(id as usize) {
            Some(&known) if known != UNKNOWN => known,
            _ => {
                let known = self.table.strings.intern(self.dictionary.strings.get(id));
                if let Some(place) = self.texts.get_mut(id as usize) {
                    *place = known;
                }
                known
            }
        }
    }

    fn binary(&mut self, object: &mut Object<'_>) -> u32 {
        *object.binary.get_or_insert_with(|| self.table.strings.intern(object.file))
    }

    /// A line as the sender gave it.
    fn sent_line(&mut self, line: Line, binary: u32, frame_type: u32) -> KeptLine {
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
        let frame = self.table.intern(FrameKey { name, file, binary, frame_type });
        let line = NamedLine { frame, line: line.line, column: line.column, system_name };
        KeptLine { line, start_line: function.start_line, unnamed }
    }

    /// A frame that the symbol store found.
    fn found_line(&mut self, object: &mut Object<'_>, found: &Found, frame_type: u32) -> KeptLine {
        let place = (found.function.as_ptr(), found.file.as_ptr(), frame_type);
        let start_line = i64::from(found.start_line);
        let unnamed = found.is_cut.then(|| {
            let ((code, text), binary) = (INLINED_LEFT_OUT, object.file.to_owned());
            self.table.intern_unnamed(Unnamed { code, text: text.to_owned(), binary, build_id: object.build_id() })
        });
        if let Some(known) = object.found.get(&place) {
            let line = NamedLine { line: i64::from(found.line), ..known.line };
            return KeptLine { line, start_line, unnamed };
        }
        let binary = self.binary(object);
        let strings = &mut self.table.strings;
        let [name, file, system_name] =
            [&found.function, &found.file, &found.system_name].map(|text| strings.intern(text));
        let frame = self.table.intern(FrameKey { name, file, binary, frame_type });
        let line = NamedLine { frame, line: i64::from(found.line), column: 0, system_name };
        let line = KeptLine { line, start_line, unnamed };
        object.found.insert(place, line);
        line
    }

    /// A frame at which the sender's unwinder gave up says so, and why.
    fn abort_line(&mut self, object: &mut Object<'_>, code: AbortCode, frame_type: u32) -> KeptLine {
        let name = self.table.strings.intern(&format!("[unwinding stopped here: {code}]"));
        let text = format!("the sender's unwinder stopped here, so callers are missing: {code}");
        let why =
            Unnamed { code: UNWINDING_STOPPED, text, binary: object.file.to_owned(), build_id: object.build_id() };
        let unnamed = Some(self.table.intern_unnamed(why));
        let binary = self.binary(object);
        let frame = self.table.intern(FrameKey { name, file: 0, binary, frame_type });
        KeptLine { line: NamedLine { frame, line: 0, column: 0, system_name: name }, start_line: 0, unnamed }
    }

    /// An address without a name has its weight under `binary+0xaddress`: all addresses of one function under that of its
    /// start, where that is known.
    fn unnamed_line(
        &mut self,
        object: &mut Object<'_>,
        address: Address,
        frame_type: u32,
        nameless: Nameless,
    ) -> KeptLine {
        let Nameless { reason, function_start } = nameless;
        self.name.clear();
        match object.file.rsplit('/').next() {
            Some(base) if !base.is_empty() => self.name.push_str(base),
            _ if object.build_id.is_some() => self.name.push_str(&object.build_id()),
            _ => self.name.push_str(NAMELESS),
        }
        let (Address::Virtual(number) | Address::FileOffset(number)) = address;
        let number = function_start.unwrap_or(number);
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
        let frame = self.table.intern(FrameKey { name, file: 0, binary, frame_type });
        // What is no function has none.
        let system_name = if function_start.is_some() { name } else { 0 };
        let line = NamedLine { frame, line: 0, column: 0, system_name };
        KeptLine { line, start_line: 0, unnamed: Some(unnamed) }
    }
}
