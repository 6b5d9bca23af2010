//! One entry of a shard's Raft log: what `apply` gets, on every replica, in log order.

use std::sync::Arc;

use crate::batch::{Batch, BatchError};
use crate::encoder::Encoder;
use crate::wire;

/// See the module.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The leader's clock when it proposed, nanoseconds since 1970; the only clock that `apply` knows.
    pub proposed_at_ns: i64,
    /// What to do.
    pub command: Command,
}

/// What an entry does.
#[derive(Clone, Debug)]
pub enum Command {
    /// Stores samples.
    Append(Arc<Batch>),
    /// Drops every partition that ends at or before this time, nanoseconds since 1970.
    Expire {
        /// See there.
        before_ns: i64,
    },
}

impl Command {
    /// As it is logged.
    #[must_use]
    pub fn to_wire(&self) -> wire::entry::Command {
        match self {
            Self::Append(batch) => wire::entry::Command::Append(batch.to_wire()),
            Self::Expire { before_ns } => wire::entry::Command::Expire(wire::Expire { before_ns: *before_ns }),
        }
    }
}

impl Command {
    /// Appends the bytes of [`Command::to_wire`], a field of a [`wire::Entry`].
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Append(batch) => Encoder::new(out).message(2, |to| to.batch(batch)),
            Self::Expire { .. } => self.to_wire().encode(out),
        }
    }
}

impl Entry {
    /// As it is logged.
    #[must_use]
    pub fn to_wire(&self) -> wire::Entry {
        let proposed_at_ns = u64::try_from(self.proposed_at_ns).unwrap_or_default();
        wire::Entry { proposed_at_ns, command: Some(self.command.to_wire()) }
    }

    /// What was logged.
    ///
    /// # Errors
    /// [`BatchError`]: the log is not what was proposed; the replica must stop.
    pub fn from_wire(from: wire::Entry) -> Result<Self, BatchError> {
        let command = match from.command {
            Some(wire::entry::Command::Append(batch)) => Command::Append(Arc::new(Batch::from_wire(batch)?)),
            Some(wire::entry::Command::Expire(expire)) => Command::Expire { before_ns: expire.before_ns },
            None => return Err(BatchError::Inconsistent("an entry has no command")),
        };
        let proposed_at_ns = i64::try_from(from.proposed_at_ns)
            .map_err(|_overflow| BatchError::Inconsistent("an entry was proposed after the year 2262"))?;
        Ok(Self { proposed_at_ns, command })
    }
}
