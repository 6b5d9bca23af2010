//! Functions of a process that were read, by what BPF recorded of them.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;

use super::languages::Function;

/// Largest memory of the functions of one process, in bytes. When it is reached, all of them are forgotten.
const BYTES_MAX: usize = 4 << 20;
/// Largest number of gone functions that are remembered, so that they are not read again for each sample.
const GONE_MAX: usize = 4096;
/// Time for which a function counts as gone, in nanoseconds. A program that handles requests often makes the same
/// function at the same address for each of them.
const GONE_NS: u64 = 100_000_000;

/// A function, as BPF records it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct FunctionKey {
    /// Id of the runtime.
    pub(crate) runtime: u16,
    /// Address of the function's object.
    pub(crate) address: u64,
    pub(crate) identity: u32,
}

/// A function that was read, and the position for which it was read ([`Layout::read_position`]).
///
/// [`Layout::read_position`]: crate::runtimes::languages::Layout::read_position
type ReadKey = (FunctionKey, u32);

/// A function whose object the program copies, such as a closure: all copies have the same identity. The kind is
/// [`Layout::copied_kind`]. Without the address, two functions have the same key once in 2 billion pairs.
///
/// [`Layout::copied_kind`]: crate::runtimes::languages::Layout::copied_kind
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CopyKey {
    pub(crate) runtime: u16,
    pub(crate) kind: u64,
    pub(crate) identity: u32,
}

/// A function that was read, or the fact that it is gone.
#[derive(Clone, Debug)]
pub(crate) enum Known {
    Function(Arc<Function>),
    /// The function is gone, or cannot be read.
    Gone,
}

#[derive(Debug)]
enum Entry {
    Function(Arc<Function>),
    /// Time at which the function was found to be gone.
    GoneAt(u64),
}

/// The functions of one process. Times are in nanoseconds.
#[derive(Debug, Default)]
pub(crate) struct FunctionCache {
    known: HashMap<ReadKey, Entry, RandomState>,
    copied: HashMap<CopyKey, Arc<Function>, RandomState>,
    gone: usize,
    bytes: usize,
}

impl FunctionCache {
    /// Returns what is known of a function at a time; `None` if it is to be read.
    pub(crate) fn known(&self, key: ReadKey, now_ns: u64) -> Option<Known> {
        match self.known.get(&key)? {
            Entry::Function(function) => Some(Known::Function(Arc::clone(function))),
            Entry::GoneAt(at_ns) => (now_ns.saturating_sub(*at_ns) < GONE_NS).then_some(Known::Gone),
        }
    }

    /// Adds a function that was read at a time; `None` if it is gone or unreadable. If the function is gone, and a copy
    /// of it is known, that one takes its place: a program may free a closure right after its call.
    pub(crate) fn insert(
        &mut self,
        key: ReadKey,
        copy: Option<CopyKey>,
        function: Option<Function>,
        now_ns: u64,
    ) -> Known {
        if BYTES_MAX <= self.bytes || GONE_MAX <= self.gone {
            *self = Self::default();
        }
        let is_read = function.is_some();
        let known_copy = || self.copied.get(&copy?).map(Arc::clone);
        let (entry, known) = match function.map(Arc::new).or_else(known_copy) {
            Some(function) => {
                self.bytes += function.bytes();
                if let Some(copy) = copy.filter(|_| is_read && function.is_that_of_copies()) {
                    self.copied.insert(copy, Arc::clone(&function));
                }
                (Entry::Function(Arc::clone(&function)), Known::Function(function))
            }
            None => {
                self.gone += 1;
                (Entry::GoneAt(now_ns), Known::Gone)
            }
        };
        match self.known.insert(key, entry) {
            Some(Entry::Function(before)) => self.bytes -= before.bytes(),
            Some(Entry::GoneAt(_)) => self.gone -= 1,
            None => {}
        }
        known
    }

    /// Approximate memory of all functions, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes + (self.known.len() + self.copied.len()) * 48
    }
}
