//! Functions of a process that were named, by the address and the identity of their code objects.

use std::collections::HashMap;
use std::sync::Arc;

use foldhash::fast::RandomState;

use super::code::Code;

/// Largest memory of the named functions of one process, in bytes. When it is reached, all of them are forgotten.
const BYTES_MAX: usize = 4 << 20;
/// Largest number of unreadable code objects that are remembered, so that they are not read again for each sample.
const UNREADABLE_MAX: usize = 4096;

/// The named functions of one process.
#[derive(Debug, Default)]
pub(crate) struct Functions {
    known: HashMap<(u64, u32), Option<Arc<Code>>, RandomState>,
    unreadable: usize,
    bytes: usize,
}

impl Functions {
    /// Returns the function of a code object, or `None` in its place if it is gone or unreadable. `None` if it was not
    /// read yet.
    pub(crate) fn known(&self, address: u64, identity: u32) -> Option<Option<Arc<Code>>> {
        self.known.get(&(address, identity)).cloned()
    }

    /// Adds the function of a code object that was read; `None` if it is gone or unreadable.
    pub(crate) fn insert(&mut self, address: u64, identity: u32, code: Option<Code>) -> Option<Arc<Code>> {
        if BYTES_MAX <= self.bytes || UNREADABLE_MAX <= self.unreadable {
            *self = Self::default();
        }
        let code = code.map(Arc::new);
        self.bytes += code.as_ref().map_or(0, |code| code.bytes());
        self.unreadable += usize::from(code.is_none());
        self.known.insert((address, identity), code.clone());
        code
    }

    /// Approximate memory of all functions, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes + self.known.len() * 48
    }
}
