//! Functions that were read, and those that were gone, by what BPF recorded of them.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;

use super::languages::Function;

/// Largest memory of the functions of a family of processes, in bytes. When it is reached, all are forgotten.
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

/// The functions of a family of processes.
#[derive(Debug, Default)]
pub(crate) struct FunctionCache {
    known: HashMap<ReadKey, Arc<Function>, RandomState>,
    copied: HashMap<CopyKey, Arc<Function>, RandomState>,
    /// Copies that were read before all functions were forgotten. They count until that happens again.
    earlier: HashMap<CopyKey, Arc<Function>, RandomState>,
    bytes: usize,
}

impl FunctionCache {
    /// Returns a function; `None` if it is not known.
    pub(crate) fn get(&self, key: ReadKey) -> Option<Arc<Function>> {
        self.known.get(&key).map(Arc::clone)
    }

    /// Adds a function that was read; `None` if it is gone or unreadable. If the function is gone, and a copy of it is
    /// known, that one takes its place: a program may free a closure right after its call. Returns what is known now.
    pub(crate) fn insert(
        &mut self,
        key: ReadKey,
        copy: Option<CopyKey>,
        function: Option<Function>,
    ) -> Option<Arc<Function>> {
        if BYTES_MAX <= self.bytes() {
            self.forget();
        }
        let is_read = function.is_some();
        let function = function.map(Arc::new).or_else(|| self.copied.get(&copy?).map(Arc::clone))?;
        self.bytes += function.bytes();
        if let Some(copy) = copy.filter(|_| is_read && function.is_that_of_copies()) {
            self.copied.insert(copy, Arc::clone(&function));
        }
        if let Some(before) = self.known.insert(key, Arc::clone(&function)) {
            self.bytes -= before.bytes();
        }
        Some(function)
    }

    /// Returns a copy of a function that was read before [`FunctionCache::forget`]; `None` if there was none.
    pub(crate) fn earlier(&self, copy: CopyKey) -> Option<Arc<Function>> {
        self.earlier.get(&copy).map(Arc::clone)
    }

    /// Forgets all functions, except one of each that has copies: closures may all be gone when they are read, for as
    /// long as the host is busy.
    pub(crate) fn forget(&mut self) {
        let earlier: HashMap<_, _, _> = std::mem::take(&mut self.copied);
        let bytes = earlier.values().map(|function| function.bytes()).sum();
        *self = Self { bytes, earlier, ..Self::default() };
        if BYTES_MAX / 2 <= self.bytes() {
            *self = Self::default();
        }
    }

    /// Approximate memory of all functions, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes + (self.known.len() + self.copied.len() + self.earlier.len()) * 48
    }
}

/// Functions of one process that were gone when they were read, with the time of the read in nanoseconds.
#[derive(Debug, Default)]
pub(crate) struct GoneFunctions(HashMap<ReadKey, u64, RandomState>);

impl GoneFunctions {
    /// True if a function is not to be read again yet.
    pub(crate) fn has(&self, key: ReadKey, now_ns: u64) -> bool {
        self.0.get(&key).is_some_and(|at_ns| now_ns.saturating_sub(*at_ns) < GONE_NS)
    }

    pub(crate) fn insert(&mut self, key: ReadKey, now_ns: u64) {
        if GONE_MAX <= self.0.len() {
            self.0 = HashMap::default();
        }
        self.0.insert(key, now_ns);
    }

    /// Approximate memory, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.0.len() * 40
    }
}
