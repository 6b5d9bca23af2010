//! Frames of addresses that were asked for before: queries ask for the same ones again and again, and looking one up in a
//! table takes about a microsecond.
//!
//! Invariant: what is remembered is all that one table says of an address. A better table for the same build ID is another
//! table, of which nothing is remembered yet; so what is told never depends on what was told before.

use std::collections::HashMap;
use std::sync::Arc;

use crate::frame::{Address, Frame};
use crate::limits::NAMED_BYTES_MAX;
use crate::table::Table;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Named {
    /// By the table's number.
    tables: HashMap<u64, HashMap<Address, Arc<[Frame]>>>,
    /// About what all of it takes.
    bytes: usize,
}

impl Named {
    /// What is remembered of each of the addresses.
    pub(crate) fn of(&self, table: &Table, addresses: &[Address]) -> Vec<Option<Arc<[Frame]>>> {
        match self.tables.get(&table.number()) {
            Some(known) => addresses.iter().map(|address| known.get(address).map(Arc::clone)).collect(),
            None => vec![None; addresses.len()],
        }
    }

    /// Remembers what was found.
    pub(crate) fn keep(&mut self, table: &Table, found: Vec<(Address, Arc<[Frame]>)>) {
        for (address, frames) in found {
            let bytes = memory_bytes(&frames);
            if self.bytes + bytes > NAMED_BYTES_MAX {
                // Slower, never wrong.
                *self = Self::default();
            }
            // The same address may have been asked for twice, or by two at the same time.
            if self.tables.entry(table.number()).or_default().insert(address, frames).is_none() {
                self.bytes += bytes;
            }
        }
    }
}

/// About what one address takes. Texts count in each frame: those of one call are shared, those of different calls are not.
fn memory_bytes(frames: &[Frame]) -> usize {
    let texts = |frame: &Frame| frame.function.len() + frame.system_name.len() + frame.file.len();
    64 + frames.iter().map(|frame| size_of::<Frame>() + texts(frame)).sum::<usize>()
}
