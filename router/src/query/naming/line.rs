//! Conversion of locations to frames of the table. The lines come from the sender or from the symbol store.
//!
//! Each text of a dictionary, and each reason why a mapping has no names, is interned once.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;

use foldhash::fast::RandomState;
use proto::{Address, BuildId, Dictionary, Line, Location};
use symbol_store::{Frame as Found, Nameless, Reason};

use crate::query::naming::abort_marker::{ABORT_MARKER, AbortCode, UNWINDING_STOPPED};
use crate::query::naming::frame::{FrameKey, FrameTable, INLINED_OMITTED, KeptLine, NamedLine, Unnamed};

/// Name of frames for which the sender gave no name.
const NAMELESS: &str = "[unknown]";

/// Placeholder for the ID of a text that is not in the table yet.
const UNKNOWN: u32 = u32::MAX;

/// A mapped file whose addresses are being named.
pub(crate) struct MappedFile<'a> {
    build_id: Option<&'a BuildId>,
    path: &'a str,
    /// Lines by function, source file and frame type. The keys of function and source file are the memory addresses of
    /// their texts. Frames of the symbol store share these texts, and `held` keeps them in place.
    found: HashMap<(*const u8, *const u8, u32), KeptLine, RandomState>,
    /// ID of the file's path in the table; `None` if it is not interned yet.
    binary: Option<u32>,
    /// Last reason why an address had no name, and the index of this reason.
    unnamed: Option<(Reason, u32)>,
    /// Frames of the symbol store, held so that their texts stay at the same memory addresses.
    held: Vec<Arc<[Found]>>,
}

impl<'a> MappedFile<'a> {
    pub(crate) fn new(build_id: Option<&'a BuildId>, path: &'a str) -> Self {
        Self { build_id, path, found: HashMap::default(), binary: None, unnamed: None, held: Vec::new() }
    }

    /// Returns the build ID in its displayed form, or "".
    fn build_id(&self) -> String {
        self.build_id.map(BuildId::to_string).unwrap_or_default()
    }
}

/// Converts the locations of one dictionary to lines.
pub(crate) struct LineBuilder<'a> {
    dictionary: &'a Dictionary,
    /// For each text of the dictionary, the ID of the text in the table, or [`UNKNOWN`].
    texts: &'a mut [u32],
    table: &'a mut FrameTable,
    name: String,
}

impl<'a> LineBuilder<'a> {
    pub(crate) fn new(dictionary: &'a Dictionary, texts: &'a mut [u32], table: &'a mut FrameTable) -> Self {
        Self { dictionary, texts, table, name: String::new() }
    }

    /// Appends the lines of a location that was sent with lines. Returns `false` for any other location.
    pub(crate) fn sent(&mut self, location: u32, to: &mut Vec<KeptLine>) -> bool {
        let Location::Lines { mapping_file, frame_type, lines } = &self.dictionary.locations[location as usize] else {
            return false;
        };
        let binary = self.text(*mapping_file);
        let frame_type = self.text(*frame_type);
        to.extend(lines.iter().map(|line| self.sent_line(*line, binary, frame_type)));
        true
    }

    /// Appends the lines of a location without lines, given the response of the symbol store for its address.
    pub(crate) fn address(
        &mut self,
        file: &mut MappedFile<'_>,
        location: u32,
        symbolized: Result<Arc<[Found]>, Nameless>,
        to: &mut Vec<KeptLine>,
    ) {
        let Location::Address { address, frame_type, .. } = &self.dictionary.locations[location as usize] else {
            return;
        };
        let frame_type = self.text(*frame_type);
        if self.table.text(frame_type) == ABORT_MARKER {
            return to.push(self.abort_line(file, AbortCode::of(*address), frame_type));
        }
        match symbolized {
            Ok(frames) => {
                to.extend(frames.iter().map(|frame| self.found_line(file, frame, frame_type)));
                file.held.push(frames);
            }
            Err(nameless) => to.push(self.unnamed_line(file, *address, frame_type, nameless)),
        }
    }

    /// Returns the ID that a text of the dictionary has in the table.
    fn text(&mut self, id: u32) -> u32 {
        match self.texts.get(id as usize) {
            Some(&known) if known != UNKNOWN => known,
            _ => {
                let known = self.table.strings.intern(self.dictionary.strings.get(id));
                if let Some(slot) = self.texts.get_mut(id as usize) {
                    *slot = known;
                }
                known
            }
        }
    }

    fn binary(&mut self, file: &mut MappedFile<'_>) -> u32 {
        *file.binary.get_or_insert_with(|| self.table.strings.intern(file.path))
    }

    /// Converts a line that the sender gave.
    fn sent_line(&mut self, line: Line, binary: u32, frame_type: u32) -> KeptLine {
        let function = self.dictionary.functions.get_index(line.function as usize).copied().unwrap_or_default();
        let [mut name, system_name, file] =
            [function.name, function.system_name, function.file].map(|id| self.text(id));
        let mut unnamed = None;
        // ID 0 is that of the empty text, which means that no name was sent.
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

    /// Converts a line that the symbol store found.
    fn found_line(&mut self, file: &mut MappedFile<'_>, found: &Found, frame_type: u32) -> KeptLine {
        let key = (found.function.as_ptr(), found.file.as_ptr(), frame_type);
        let start_line = i64::from(found.start_line);
        let unnamed = found.is_cut.then(|| {
            let (code, text) = INLINED_OMITTED;
            let binary = file.path.to_owned();
            self.table.intern_unnamed(Unnamed { code, text: text.to_owned(), binary, build_id: file.build_id() })
        });
        if let Some(known) = file.found.get(&key) {
            let line = NamedLine { line: i64::from(found.line), ..known.line };
            return KeptLine { line, start_line, unnamed };
        }
        let binary = self.binary(file);
        let strings = &mut self.table.strings;
        let [name, source_file, system_name] =
            [&found.function, &found.file, &found.system_name].map(|text| strings.intern(text));
        let frame = self.table.intern(FrameKey { name, file: source_file, binary, frame_type });
        let line = NamedLine { frame, line: i64::from(found.line), column: 0, system_name };
        let line = KeptLine { line, start_line, unnamed };
        file.found.insert(key, line);
        line
    }

    /// Makes the line of a frame at which the sender's unwinder stopped. Its name is the error.
    fn abort_line(&mut self, file: &mut MappedFile<'_>, code: AbortCode, frame_type: u32) -> KeptLine {
        let name = self.table.strings.intern(&format!("[unwinding stopped here: {code}]"));
        let text = format!("the sender's unwinder stopped here, so callers are missing: {code}");
        let why = Unnamed { code: UNWINDING_STOPPED, text, binary: file.path.to_owned(), build_id: file.build_id() };
        let unnamed = Some(self.table.intern_unnamed(why));
        let binary = self.binary(file);
        let frame = self.table.intern(FrameKey { name, file: 0, binary, frame_type });
        KeptLine { line: NamedLine { frame, line: 0, column: 0, system_name: name }, start_line: 0, unnamed }
    }

    /// Makes the line of an address without a name: `binary+0xaddress`. The number is the virtual address at which the
    /// function begins, or else the virtual address itself. It is a file offset only if no segments of the file are
    /// known.
    fn unnamed_line(
        &mut self,
        file: &mut MappedFile<'_>,
        address: Address,
        frame_type: u32,
        nameless: Nameless,
    ) -> KeptLine {
        let Nameless { reason, virtual_address, function_start } = nameless;
        self.name.clear();
        match file.path.rsplit('/').next() {
            Some(base) if !base.is_empty() => self.name.push_str(base),
            _ if file.build_id.is_some() => self.name.push_str(&file.build_id()),
            _ => self.name.push_str(NAMELESS),
        }
        let (Address::Virtual(number) | Address::FileOffset(number)) = address;
        let number = function_start.or(virtual_address).unwrap_or(number);
        // Writing to a String cannot fail.
        let _infallible = write!(self.name, "+{number:#x}");
        let unnamed = match &file.unnamed {
            Some((known, unnamed)) if *known == reason => *unnamed,
            _ => {
                let code = reason.code();
                let text = reason.to_string();
                let why = Unnamed { code, text, binary: file.path.to_owned(), build_id: file.build_id() };
                let unnamed = self.table.intern_unnamed(why);
                file.unnamed = Some((reason, unnamed));
                unnamed
            }
        };
        let binary = self.binary(file);
        let name = self.table.strings.intern(&self.name);
        let frame = self.table.intern(FrameKey { name, file: 0, binary, frame_type });
        // An address in no known function has no system name.
        let system_name = if function_start.is_some() { name } else { 0 };
        let line = NamedLine { frame, line: 0, column: 0, system_name };
        KeptLine { line, start_line: 0, unnamed: Some(unnamed) }
    }
}
