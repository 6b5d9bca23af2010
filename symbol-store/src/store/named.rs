//! Cache of frames by address. Queries repeat the same addresses, and a lookup in a table takes about a microsecond.
//!
//! Invariant: an entry holds all frames that one table has for an address. Each table has its own entries, even if two
//! tables have the same build ID. So a response never depends on earlier responses.

use std::collections::HashMap;
use std::sync::Arc;

use proto::Address;

use crate::frame::Frame;
use crate::limits::NAMED_BYTES_MAX;
use crate::table::Table;

/// Frames by table and address.
#[derive(Debug, Default)]
pub(crate) struct Named {
    /// Frames by the number of the table, then by address.
    tables: HashMap<u64, HashMap<Address, Arc<[Frame]>>>,
    /// Approximate size of all entries, in bytes.
    bytes: usize,
}

impl Named {
    /// Returns the cached frames of each address; `None` for an address that is not cached.
    pub(crate) fn of(&self, table: &Table, addresses: &[Address]) -> Vec<Option<Arc<[Frame]>>> {
        match self.tables.get(&table.number()) {
            Some(known) => addresses.iter().map(|address| known.get(address).map(Arc::clone)).collect(),
            None => vec![None; addresses.len()],
        }
    }

    /// Adds the frames of addresses. Clears the cache if it would exceed [`NAMED_BYTES_MAX`].
    pub(crate) fn keep(&mut self, table: &Table, found: Vec<(Address, Arc<[Frame]>)>) {
        for (address, frames) in found {
            let bytes = memory_bytes(&frames);
            if self.bytes + bytes > NAMED_BYTES_MAX {
                // An empty cache makes requests slower, but never wrong.
                *self = Self::default();
            }
            // One request may repeat an address, and concurrent requests may have the same one.
            if self.tables.entry(table.number()).or_default().insert(address, frames).is_none() {
                self.bytes += bytes;
            }
        }
    }
}

/// Approximate size of one entry, in bytes. The text of a name is counted in each frame that has it, although the
/// frames of one request share it.
fn memory_bytes(frames: &[Frame]) -> usize {
    let texts = |frame: &Frame| frame.function.len() + frame.system_name.len() + frame.file.len();
    64 + frames.iter().map(|frame| size_of::<Frame>() + texts(frame)).sum::<usize>()
}
