//! Commands that the leader proposes, encoded and compressed once.

use std::sync::Arc;

use proto::{Batch, Command, Deletion, LabelDrops, Tier};

use crate::consensus::payload::{PROPOSED_AT_TAG, Payload, Untimed};

/// An encoded command without the time of its proposal.
#[derive(Debug)]
pub(crate) struct Proposal {
    bytes: Untimed,
    command: Command,
}

impl Proposal {
    pub(crate) fn append(batch: Arc<Batch>) -> Self {
        Self::encode(Command::Append(batch))
    }

    pub(crate) fn expire(tier: Tier, retention_class: u8, before_ns: i64) -> Self {
        Self::encode(Command::Expire { tier, retention_class, before_ns })
    }

    pub(crate) fn delete(deletion: Deletion) -> Self {
        Self::encode(Command::Delete(deletion))
    }

    pub(crate) fn drop_labels(drops: LabelDrops) -> Self {
        Self::encode(Command::DropLabels(drops))
    }

    fn encode(command: Command) -> Self {
        let mut bytes = vec![PROPOSED_AT_TAG];
        bytes.extend(0_u64.to_le_bytes());
        command.encode(&mut bytes);
        Self { bytes: Untimed::compress(bytes), command }
    }

    /// Returns the entry with the time of its proposal, in nanoseconds since 1970. The time is set only when the entry
    /// gets its index in the log, so that times never go back in the log.
    pub(crate) fn at(self, proposed_at_ns: u64) -> Payload {
        let entry =
            proto::Entry { proposed_at_ns: i64::try_from(proposed_at_ns).unwrap_or(i64::MAX), command: self.command };
        self.bytes.at(proposed_at_ns, entry)
    }
}
