//! The state machine of the meta group (shard 0): applies commands, in the order of the log.
//!
//! # Invariant
//! Applying is deterministic: it reads no clock, and uses no randomness. Members that applied the same commands have
//! equal states, with equal encodings, and gave equal refusals. A refused command changes nothing. After every command,
//! [`proto::meta::State::check`] holds.
//!
//! # Read in this order
//! `apply` (commands) → `refusal` → `members`, `slots` and `epochs` (proposals for new shards and epochs) → `record`
//! (encoding).

mod apply;
mod epochs;
mod group_state;
mod members;
mod record;
mod refusal;
mod replica;
mod slots;

use proto::meta::{Command, State};

pub use self::epochs::{SpreadChanges, propose_epoch};
#[cfg(test)]
pub(crate) use self::group_state::MetaGroupState;
pub use self::members::{REPLICAS, propose_shards};
pub use self::record::{decode_state, encode_state};
pub use self::refusal::Refusal;
#[cfg(test)]
pub(crate) use self::replica::propose;
pub(crate) use self::replica::{META_GROUP, MetaReplica, ProposeError};
pub use self::slots::divide_slots;

/// The result of a command that was not refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// The command changed the state, and the revision is now the index of the command.
    Changed,
    /// The state is already as the command wants it, for example because the command was sent again.
    Unchanged,
}

/// The state of the meta group as of one log index.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetaState(State);

impl From<State> for MetaState {
    fn from(state: State) -> Self {
        Self(state)
    }
}

impl MetaState {
    /// The state, for watchers.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.0
    }

    /// Applies the command at an index of the log. `proposed_at_ns` is the time at which the leader proposed the
    /// command, in nanoseconds since 1970.
    ///
    /// # Errors
    /// Returns a [`Refusal`], which names the fault and the remedy, if the command contradicts the state or exceeds a
    /// limit. The state is then as before.
    pub fn apply(&mut self, index: u64, proposed_at_ns: i64, command: &Command) -> Result<Applied, Refusal> {
        let mut next = self.0.clone();
        if apply::apply(&mut next, proposed_at_ns, command)? == Applied::Unchanged {
            return Ok(Applied::Unchanged);
        }
        next.revision = index;
        let bytes = next.encoded_len();
        if bytes > proto::limits::META_STATE_BYTES_MAX {
            return Err(Refusal::TooLarge { bytes });
        }
        self.0 = next;
        Ok(Applied::Changed)
    }
}

#[cfg(test)]
mod tests;
