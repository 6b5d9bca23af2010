//! The state machine of the meta group as the state of a Raft group.
//!
//! The state is in memory only. The meta group keeps its whole log, because its commands are few and small, and a start
//! applies the log again.

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use prost::Message as _;
use proto::meta::{Command, State};
use proto::wire;
use storage_engine::{Flushed, Position};
use tokio::sync::watch;

use crate::consensus::{GroupState, Outcome, Payload};
use crate::error::{RecordError, ReplicaError};
use crate::meta::{Applied, MetaState, Refusal};

/// The state of the meta group on this node.
#[derive(Debug)]
pub(crate) struct MetaGroupState {
    inner: Mutex<Inner>,
    /// Newest known state, for watchers. It survives a restart of the replica, and never goes back.
    published: watch::Sender<Arc<State>>,
}

#[derive(Debug, Default)]
struct Inner {
    state: MetaState,
    /// Position of the last applied entry, with the membership at this position.
    applied: Flushed,
}

impl MetaGroupState {
    /// Returns the empty state. States are published to `published` as soon as they are newer than the published one.
    pub(crate) fn new(published: watch::Sender<Arc<State>>) -> Self {
        Self { inner: Mutex::default(), published }
    }

    /// Returns what applying a command to the present state would do.
    ///
    /// # Errors
    /// Returns the [`Refusal`] of the command.
    pub(crate) fn check(&self, proposed_at_ns: i64, command: &Command) -> Result<Applied, Refusal> {
        let mut state = self.inner.lock().state.clone();
        // The state must have a later revision; which one changes nothing else.
        let index = state.state().revision.saturating_add(1);
        state.apply(index, proposed_at_ns, command)
    }

    fn publish(&self, state: &State) {
        self.published.send_if_modified(|published| {
            let is_newer = published.revision < state.revision;
            if is_newer {
                *published = Arc::new(state.clone());
            }
            is_newer
        });
    }
}

impl GroupState for MetaGroupState {
    fn applied(&self) -> Flushed {
        self.inner.lock().applied.clone()
    }

    // Nothing is ever flushed, so the log is never purged.
    fn flushed(&self) -> Flushed {
        Flushed::default()
    }

    fn purgeable(&self) -> Flushed {
        Flushed::default()
    }

    fn apply(&self, position: Position, payload: Payload) -> Result<Outcome, ReplicaError> {
        let (proposed_at_ns, command) = decode(&payload.encoded()?)?;
        let mut inner = self.inner.lock();
        let applied = inner.state.apply(position.index, proposed_at_ns, &command);
        inner.applied.position = Some(position);
        if matches!(applied, Ok(Applied::Changed)) {
            self.publish(inner.state.state());
        }
        let outcome = match applied {
            Ok(applied) => wire::MetaOutcome { is_changed: applied == Applied::Changed, refusal: String::new() },
            Err(refusal) => wire::MetaOutcome { is_changed: false, refusal: refusal.to_string() },
        };
        Ok(Outcome::Meta(outcome.encode_to_vec().into()))
    }

    fn skip(&self, position: Position, membership: Option<Bytes>) -> Result<(), ReplicaError> {
        let applied = &mut self.inner.lock().applied;
        applied.position = Some(position);
        if membership.is_some() {
            applied.membership = membership;
        }
        Ok(())
    }
}

/// Encodes a command and the time of its proposal, in nanoseconds since 1970, as an entry of the meta group's log.
pub(crate) fn encode(proposed_at_ns: i64, command: &Command) -> Payload {
    let command = Some(command.to_wire());
    let entry = wire::MetaEntry { proposed_at_ns: proposed_at_ns.unsigned_abs(), command };
    Payload::plain(entry.encode_to_vec().into())
}

/// Decodes an entry. An error means that software of another version, or broken software, proposed the entry. No member
/// may pass over it, because the members' states would differ afterwards.
fn decode(entry: &[u8]) -> Result<(i64, Command), RecordError> {
    let broken = || RecordError::Content { record: "entry's command to the meta group" };
    let Ok(wire::MetaEntry { proposed_at_ns, command: Some(command) }) = wire::MetaEntry::decode(entry) else {
        return Err(broken());
    };
    let command = Command::from_wire(command).map_err(|error| {
        tracing::error!(%error, "a command of the meta group contradicts itself");
        broken()
    })?;
    Ok((i64::try_from(proposed_at_ns).unwrap_or(i64::MAX), command))
}
