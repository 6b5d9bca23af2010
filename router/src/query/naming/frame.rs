//! Table of distinct frames. Naming a location converts it to frames.
//!
//! The identity of a frame is its name, source file, binary and frame type.

use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap};
use std::fmt;

use foldhash::fast::RandomState;
use proto::dictionary::Strings;
use symbol_store::Reason;

/// Code and text of a reason: the symbol store omitted inlined calls.
pub(crate) const INLINED_OMITTED: (&str, &str) =
    ("inlined_omitted", "this file has too many inlined calls for one response: repeat the query");

/// Identity of a frame, as IDs of strings in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FrameKey {
    pub(crate) name: u32,
    pub(crate) file: u32,
    /// ID of the path of the mapped file.
    pub(crate) binary: u32,
    pub(crate) frame_type: u32,
}

/// A frame, and the facts about it that come from the locations of one query.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame {
    pub(crate) key: FrameKey,
    /// Line number at which the function begins; 0 if unknown.
    pub(crate) start_line: i64,
    /// Index in [`FrameTable::unnamed`] of the reason why the frame has no name or lacks inlined calls; `None` if it
    /// lacks nothing.
    pub(crate) unnamed: Option<u32>,
}

/// One frame of a location, in the form in which it is kept between queries.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeptLine {
    pub(crate) line: NamedLine,
    /// Line number at which the function begins; 0 or less if unknown.
    pub(crate) start_line: i64,
    /// Index in [`FrameTable::unnamed`] of the reason why the frame has no name or lacks inlined calls; `None` if it
    /// lacks nothing.
    pub(crate) unnamed: Option<u32>,
}

/// A reason why frames of one binary have no names, or why calls that are inlined into them are missing.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Unnamed {
    /// Code of the reason, for programs. It never changes.
    pub(crate) code: &'static str,
    /// Text of the reason, for people.
    pub(crate) text: String,
    pub(crate) binary: String,
    /// Build ID of the binary in its displayed form, or "".
    pub(crate) build_id: String,
}

impl Unnamed {
    /// Returns whether the frame has a name, and only the calls that are inlined into it are missing.
    pub(crate) fn has_name(&self) -> bool {
        self.code == INLINED_OMITTED.0
    }

    /// Returns the file whose names are missing; `None` if the next response cannot have the names either.
    pub(crate) fn missing_names(&self) -> Option<MissingNames> {
        let is_pending = self.code == Reason::Converting.code();
        let missing = || MissingNames { binary: self.binary.clone(), text: self.text.clone(), is_pending };
        (is_pending || self.has_name()).then(missing)
    }
}

/// A file whose names are missing in a response, and the reason. The next response may have the names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct MissingNames {
    /// Path of the file.
    pub(crate) binary: String,
    /// Text of the reason, for people.
    pub(crate) text: String,
    /// True if the file's symbol table is being built.
    pub(crate) is_pending: bool,
}

impl fmt::Display for MissingNames {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:?}: {}", self.binary, self.text)
    }
}

/// One frame of a location, with its position in the source code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct NamedLine {
    /// Index of the frame in the table.
    pub(crate) frame: u32,
    /// Line number; 0 if unknown.
    pub(crate) line: i64,
    /// Column number; 0 if unknown.
    pub(crate) column: i64,
    /// ID of the mangled name in the table's strings; 0 if the line is an address without a function.
    pub(crate) system_name: u32,
}

/// Table of all frames of a tenant that were named.
#[derive(Debug, Default)]
pub(crate) struct FrameTable {
    pub(crate) strings: Strings,
    frames: Vec<FrameKey>,
    pub(crate) unnamed: Vec<Unnamed>,
    frame_ids: HashMap<FrameKey, u32, RandomState>,
    unnamed_ids: HashMap<Unnamed, u32, RandomState>,
}

/// The frames of each location of one response.
#[derive(Debug, Default)]
pub(crate) struct NamedLocations {
    /// End of each location's lines. Location i has the lines from `ends[i - 1]` (or 0) to `ends[i]`.
    ends: Vec<usize>,
    lines: Vec<NamedLine>,
    /// For each location, whether its lines were removed. Empty if none were.
    is_folded: Vec<bool>,
}

impl NamedLocations {
    /// Returns the frames of a location, innermost first.
    pub(crate) fn lines(&self, location: u32) -> &[NamedLine] {
        let i = location as usize;
        let start = i.checked_sub(1).and_then(|before| self.ends.get(before)).copied().unwrap_or(0);
        self.ends.get(i).and_then(|&end| self.lines.get(start..end)).unwrap_or_default()
    }

    /// Adds the frames of the next location.
    pub(crate) fn push(&mut self, innermost_first: impl IntoIterator<Item = NamedLine>) {
        self.lines.extend(innermost_first);
        self.ends.push(self.lines.len());
    }

    /// Removes the lines of each location whose outermost function is one of `folded`, a flag for each frame.
    pub(crate) fn fold(&mut self, folded: &[bool]) {
        let mut kept = Self::default();
        for location in 0..self.len() {
            let lines = self.lines(location);
            let is_folded = |line: &NamedLine| folded.get(line.frame as usize) == Some(&true);
            let folds = lines.last().is_some_and(is_folded);
            kept.push(lines.iter().filter(|_| !folds).copied());
            kept.is_folded.push(folds);
        }
        *self = kept;
    }

    /// Returns whether [`Self::fold`] removed the lines of a location.
    pub(crate) fn is_folded(&self, location: u32) -> bool {
        self.is_folded.get(location as usize) == Some(&true)
    }

    /// Number of locations.
    pub(crate) fn len(&self) -> u32 {
        u32::try_from(self.ends.len()).unwrap_or(u32::MAX)
    }
}

/// Facts about frames that come from the locations of one query, and from no other query. If a frame has several first
/// lines, the smallest known one is used. If it has several reasons, the first in their order is used.
#[derive(Debug, Default)]
pub(crate) struct FrameFacts {
    start_lines: Vec<i64>,
    /// For each frame, the index of the reason plus one; 0 if there is no reason.
    unnamed: Vec<u32>,
}

impl FrameFacts {
    /// Makes empty facts for the frames of a table.
    pub(crate) fn new(table: &FrameTable) -> Self {
        Self { start_lines: vec![0; table.frames.len()], unnamed: vec![0; table.frames.len()] }
    }

    /// Adds the facts that a line provides.
    pub(crate) fn add(&mut self, line: &KeptLine, table: &FrameTable) {
        let frame = line.line.frame as usize;
        if let Some(known) = self.start_lines.get_mut(frame)
            && line.start_line > 0
            && (*known == 0 || line.start_line < *known)
        {
            *known = line.start_line;
        }
        if let (Some(why), Some(known)) = (line.unnamed, self.unnamed.get_mut(frame))
            && *known != why + 1
        {
            let text = |why: u32| table.unnamed.get(why as usize);
            if *known == 0 || text(why) < text(*known - 1) {
                *known = why + 1;
            }
        }
    }
}

/// The frames of a query, and the facts about them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frames<'a> {
    pub(crate) table: &'a FrameTable,
    pub(crate) facts: &'a FrameFacts,
}

impl Frames<'_> {
    /// Returns the index of the reason why a frame has no name or lacks inlined calls; `None` if it lacks nothing.
    #[inline]
    pub(crate) fn unnamed(&self, frame: u32) -> Option<u32> {
        self.facts.unnamed.get(frame as usize).and_then(|why| why.checked_sub(1))
    }

    /// Returns the frame with this index.
    pub(crate) fn get(&self, frame: u32) -> Option<Frame> {
        let key = self.table.key(frame)?;
        let start_line = self.facts.start_lines.get(frame as usize).copied().unwrap_or(0);
        Some(Frame { key, start_line, unnamed: self.unnamed(frame) })
    }

    /// Returns the files whose names are missing now, and may be present in the next response.
    pub(crate) fn missing_names(&self) -> BTreeSet<MissingNames> {
        let mut is_used = vec![false; self.table.unnamed.len()];
        for why in self.facts.unnamed.iter().filter_map(|why| why.checked_sub(1)) {
            if let Some(is_used) = is_used.get_mut(why as usize) {
                *is_used = true;
            }
        }
        let used = self.table.unnamed.iter().zip(is_used).filter(|(_, is_used)| *is_used);
        used.filter_map(|(why, _)| why.missing_names()).collect()
    }
}

impl FrameTable {
    /// Returns the text with this ID.
    #[inline]
    pub(crate) fn text(&self, id: u32) -> &str {
        self.strings.get(id)
    }

    /// Returns the identity of a frame; `None` if the table has no such frame.
    pub(crate) fn key(&self, frame: u32) -> Option<FrameKey> {
        self.frames.get(frame as usize).copied()
    }

    /// Number of frames.
    pub(crate) fn len(&self) -> usize {
        self.frames.len()
    }

    /// Approximate size of the table, in bytes.
    pub(crate) fn memory_bytes(&self) -> usize {
        let unnamed =
            |why: &Unnamed| size_of::<Unnamed>() * 2 + 2 * (why.text.len() + why.binary.len() + why.build_id.len());
        // Each slot of a hash table takes one more byte, and some slots are empty.
        self.strings.memory_bytes()
            + self.frames.capacity() * (size_of::<FrameKey>() * 2 + 8)
            + self.unnamed.iter().map(unnamed).sum::<usize>()
    }

    /// Returns the identity of a frame as texts, whose order does not depend on IDs.
    pub(crate) fn texts(&self, key: FrameKey) -> [&str; 4] {
        [key.name, key.file, key.binary, key.frame_type].map(|id| self.strings.get(id))
    }

    /// Compares two frames by their texts.
    #[inline]
    pub(crate) fn order(&self, a: u32, b: u32) -> Ordering {
        let (Some(a), Some(b)) = (self.frames.get(a as usize), self.frames.get(b as usize)) else {
            return a.cmp(&b);
        };
        // The names are compared first, because they nearly always differ.
        self.text(a.name).cmp(self.text(b.name)).then_with(|| self.texts(*a).cmp(&self.texts(*b)))
    }

    /// Returns the index of a frame. Adds the frame if it is new.
    pub(crate) fn intern(&mut self, key: FrameKey) -> u32 {
        let next = u32::try_from(self.frames.len()).unwrap_or(u32::MAX);
        let id = *self.frame_ids.entry(key).or_insert(next);
        if id == next {
            self.frames.push(key);
        }
        id
    }

    pub(crate) fn intern_unnamed(&mut self, unnamed: Unnamed) -> u32 {
        let next = u32::try_from(self.unnamed.len()).unwrap_or(u32::MAX);
        let id = *self.unnamed_ids.entry(unnamed.clone()).or_insert(next);
        if id == next {
            self.unnamed.push(unnamed);
        }
        id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_has_the_smallest_known_first_line_and_the_first_reason() {
        let mut table = FrameTable::default();
        let key = FrameKey { name: table.strings.intern("f"), file: 0, binary: 0, frame_type: 0 };
        let frame = table.intern(key);
        assert_eq!((frame, table.intern(key), table.len()), (0, 0, 1));
        let why = |binary: &str| Unnamed {
            code: "c",
            text: String::new(),
            binary: binary.to_owned(),
            build_id: String::new(),
        };
        let reasons = ["b", "c", "a"].map(|binary| table.intern_unnamed(why(binary)));
        let mut facts = FrameFacts::new(&table);
        let line = NamedLine { frame, line: 1, column: 0, system_name: 0 };
        let [b, c, a] = reasons.map(Some);
        for (start_line, unnamed) in [(-1, None), (30, b), (0, c), (20, a), (25, b)] {
            facts.add(&KeptLine { line, start_line, unnamed }, &table);
        }
        let got = Frames { table: &table, facts: &facts }.get(frame).unwrap();
        assert_eq!((got.start_line, got.unnamed), (20, a));
    }

    #[test]
    fn frames_are_ordered_by_their_texts_and_not_by_their_ids() {
        let mut table = FrameTable::default();
        for (name, file) in [("b", "x"), ("a", "y"), ("a", "x")] {
            let name = table.strings.intern(name);
            let file = table.strings.intern(file);
            table.intern(FrameKey { name, file, binary: 0, frame_type: 0 });
        }
        let mut order = [0, 1, 2];
        order.sort_by(|&a, &b| table.order(a, b));
        assert_eq!(order, [2, 1, 0]);
    }
}
