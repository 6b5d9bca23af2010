//! Frames with names: what locations become, each distinct frame once in all answers of a query.
//!
//! A frame's identity is its name, source file, binary and frame type. `namer` makes them.

use std::cmp::Ordering;
use std::collections::HashMap;

use foldhash::fast::RandomState;
use proto::dictionary::Strings;

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
    frame_ids: HashMap<FrameKey, u32, RandomState>,
    unnamed_ids: HashMap<Unnamed, u32, RandomState>,
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

    /// Adds the next location's.
    pub(crate) fn push(&mut self, innermost_first: impl IntoIterator<Item = NamedLine>) {
        self.lines.extend(innermost_first);
        self.ends.push(self.lines.len());
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

    /// The order of two frames by their texts.
    pub(crate) fn order(&self, a: u32, b: u32) -> Ordering {
        let (Some(a), Some(b)) = (self.frames.get(a as usize), self.frames.get(b as usize)) else {
            return a.cmp(&b);
        };
        // Nearly always their names differ.
        self.text(a.key.name).cmp(self.text(b.key.name)).then_with(|| self.texts(a.key).cmp(&self.texts(b.key)))
    }

    /// The index of a frame, new or old. Of several first lines the smallest known one stays, of several reasons the first.
    pub(crate) fn intern(&mut self, key: FrameKey, start_line: i64, unnamed: Option<u32>) -> u32 {
        let next = u32::try_from(self.frames.len()).unwrap_or(u32::MAX);
        let id = *self.frame_ids.entry(key).or_insert(next);
        match self.frames.get_mut(id as usize) {
            Some(known) if start_line > 0 && (known.start_line == 0 || start_line < known.start_line) => {
                known.start_line = start_line;
            }
            Some(_) => {}
            None => self.frames.push(Frame { key, start_line: start_line.max(0), unnamed }),
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
    fn a_frame_has_the_smallest_first_line_that_is_known() {
        let mut table = FrameTable::default();
        let key = FrameKey { name: table.strings.intern("f"), file: 0, binary: 0, frame_type: 0 };
        let ids: Vec<u32> = [-1, 30, 0, 20, 25].map(|line| table.intern(key, line, None)).to_vec();
        assert_eq!(ids, [0; 5]);
        assert_eq!(table.frames[0].start_line, 20);
    }

    #[test]
    fn the_order_follows_the_texts_and_not_the_order_of_coming() {
        let mut table = FrameTable::default();
        for (name, file) in [("b", "x"), ("a", "y"), ("a", "x")] {
            let (name, file) = (table.strings.intern(name), table.strings.intern(file));
            table.intern(FrameKey { name, file, binary: 0, frame_type: 0 }, 0, None);
        }
        let mut order = [0, 1, 2];
        order.sort_by(|&a, &b| table.order(a, b));
        assert_eq!(order, [2, 1, 0]);
    }
}
