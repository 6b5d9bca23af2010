//! Functions of a process that were read, by what BPF recorded of them.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;

use super::languages::Function;

/// Largest memory of the functions of one process, in bytes. When it is reached, all of them are forgotten.
const BYTES_MAX: usize = 4 << 20;
/// Largest number of unreadable functions that are remembered, so that they are not read again for each sample.
const UNREADABLE_MAX: usize = 4096;

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

/// The functions of one process.
#[derive(Debug, Default)]
pub(crate) struct FunctionCache {
    known: HashMap<ReadKey, Option<Arc<Function>>, RandomState>,
    unreadable: usize,
    bytes: usize,
}

impl FunctionCache {
    /// Returns a function, or `None` in its place if it is gone or unreadable. `None` if it was not read yet.
    pub(crate) fn known(&self, key: ReadKey) -> Option<Option<Arc<Function>>> {
        self.known.get(&key).cloned()
    }

    /// Adds a function that was read; `None` if it is gone or unreadable.
    pub(crate) fn insert(&mut self, key: ReadKey, function: Option<Function>) -> Option<Arc<Function>> {
        if BYTES_MAX <= self.bytes || UNREADABLE_MAX <= self.unreadable {
            *self = Self::default();
        }
        let function = function.map(Arc::new);
        self.bytes += function.as_ref().map_or(0, |function| function.bytes());
        self.unreadable += usize::from(function.is_none());
        if let Some(Some(before)) = self.known.insert(key, function.clone()) {
            self.bytes -= before.bytes();
        }
        function
    }

    /// Approximate memory of all functions, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes + self.known.len() * 48
    }
}
