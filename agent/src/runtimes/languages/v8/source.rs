//! Lines of scripts.
//!
//! A process bounds neither the number of its scripts nor the length of a source. So the lines of one process have a
//! limit of memory, and the sources that one batch of reads goes through have a limit of length. What is beyond a limit
//! has no lines.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

use foldhash::fast::RandomState;
use parking_lot::Mutex;

use super::heap::{Heap, Object, Piece, object, small};

/// Largest length of all sources that one batch of reads goes through, in UTF-16 units. Functions of larger scripts
/// have no lines.
const UNITS_MAX: u32 = 32 << 20;
/// Largest memory of the lines of the scripts of one process, in bytes. When it is reached, all of them are forgotten.
const BYTES_MAX: usize = 8 << 20;
/// Largest number of lines of one script.
const LINES_MAX: usize = 1 << 20;

// In a script.
const SOURCE: u16 = 8;
const LINE_OFFSET: u16 = 24;
const ID: u16 = 64;

const LINE_FEED: u16 = 10;
const CARRIAGE_RETURN: u16 = 13;
const SEPARATORS: [u16; 2] = [0x2028, 0x2029];

/// Starts of the lines of a script.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Lines {
    /// Numbers of UTF-16 units before each line but the first.
    starts: Vec<u32>,
    /// Number that is added to lines. It is negative for functions that V8 wraps in lines of its own.
    offset: i32,
}

impl Lines {
    /// Returns the line of a position in the source, from 1 on.
    pub(crate) fn line(&self, position: u32) -> u32 {
        let line = self.starts.partition_point(|start| *start <= position);
        (line as u32 + 1).saturating_add_signed(self.offset)
    }

    fn bytes(&self) -> usize {
        size_of::<Self>() + self.starts.capacity() * size_of::<u32>()
    }
}

/// Finds the starts of lines in consecutive pieces of a text.
#[derive(Default)]
struct Scanner {
    starts: Vec<u32>,
    position: u32,
    /// True after a carriage return, which ends a line unless a line feed follows.
    is_after_return: bool,
}

impl Scanner {
    fn add(&mut self, piece: Piece<'_>) {
        match piece {
            // Most sources are narrow, and most of their lines end with a line feed alone.
            Piece::Narrow(bytes) if !self.is_after_return && !bytes.contains(&(CARRIAGE_RETURN as u8)) => {
                let ends = bytes.iter().zip(1_u32..).filter(|(byte, _)| **byte == LINE_FEED as u8);
                let first = self.position;
                let left = LINES_MAX.saturating_sub(self.starts.len());
                self.starts.extend(ends.map(|(_, after)| first + after).take(left));
                self.position += bytes.len() as u32;
            }
            Piece::Narrow(bytes) => bytes.iter().for_each(|byte| self.unit((*byte).into())),
            Piece::Wide(units) => units.iter().for_each(|unit| self.unit(u16::from_ne_bytes(*unit))),
        }
    }

    fn unit(&mut self, unit: u16) {
        if self.is_after_return && unit != LINE_FEED {
            self.start();
        }
        self.position += 1;
        self.is_after_return = unit == CARRIAGE_RETURN;
        if unit == LINE_FEED || SEPARATORS.contains(&unit) {
            self.start();
        }
    }

    /// Begins a line at the position.
    fn start(&mut self) {
        if self.starts.len() < LINES_MAX {
            self.starts.push(self.position);
        }
    }

    fn finish(mut self) -> Vec<u32> {
        if self.is_after_return {
            self.start();
        }
        self.starts.shrink_to_fit();
        self.starts
    }
}

/// A script, by its address, its number, and the length of its source. The number alone is that of another script in
/// another thread.
type Key = (u64, i32, u32);

#[derive(Debug, Default)]
struct Known {
    lines: HashMap<Key, Arc<Lines>, RandomState>,
    bytes: usize,
}

/// The lines of the scripts of one process, for one batch of reads.
#[derive(Debug)]
pub(crate) struct Sources {
    known: Arc<Mutex<Known>>,
    /// Number of UTF-16 units that the batch may still go through.
    units_left: Cell<u32>,
}

impl Default for Sources {
    fn default() -> Self {
        Self { known: Arc::default(), units_left: Cell::new(UNITS_MAX) }
    }
}

impl Sources {
    /// Returns the same lines for another batch of reads.
    pub(crate) fn for_batch(&self) -> Self {
        Self { known: Arc::clone(&self.known), ..Self::default() }
    }

    /// Returns the lines of a script, which are read if they are not known yet; none if they cannot be read. They last
    /// until all lines of the process are forgotten.
    pub(crate) fn lines(&self, heap: &Heap<'_>, script: Object) -> Weak<Lines> {
        self.find(heap, script).unwrap_or_default()
    }

    fn find(&self, heap: &Heap<'_>, script: Object) -> Option<Weak<Lines>> {
        let source = object(heap.field(script, SOURCE)?)?;
        let id = small(heap.field(script, ID)?)?;
        let units = heap.length(source)?;
        let key = (script.0, id, units);
        if let Some(lines) = self.known.lock().lines.get(&key) {
            return Some(Arc::downgrade(lines));
        }
        self.units_left.set(self.units_left.get().checked_sub(units)?);
        let mut scanner = Scanner::default();
        heap.pieces(source, 0, units, &mut |piece| scanner.add(piece))?;
        let offset = small(heap.field(script, LINE_OFFSET)?)?;
        let lines = Arc::new(Lines { starts: scanner.finish(), offset });
        let mut known = self.known.lock();
        if BYTES_MAX < known.bytes + lines.bytes() {
            *known = Known::default();
        }
        known.bytes += lines.bytes();
        known.lines.insert(key, Arc::clone(&lines));
        Some(Arc::downgrade(&lines))
    }

    /// Approximate memory, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.known.lock().bytes
    }
}

#[cfg(test)]
mod tests;
