//! The states of groups in a simulation: a model of a shard, and an observer of all that is applied.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::Mutex;
use storage_engine::{Flushed, Position};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::consensus::{GroupState, Outcome, Payload};
use crate::error::ReplicaError;
use crate::node::cluster::simulation::oracle::Observed;
use crate::node::cluster::simulation::push::{Push, Sample};
use crate::shard::{KeepLimits, KeptLog};

/// Limits on the part of the log that is kept for members that lag. They are small, so that members need snapshots.
const KEEP: KeepLimits = KeepLimits { time: Duration::from_secs(3600), bytes: 8 };

/// The batches and samples of a shard.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Contents {
    ids: BTreeSet<u64>,
    samples: BTreeMap<Sample, u32>,
    digest: u64,
}

impl Contents {
    pub(super) fn has(&self, id: u64) -> bool {
        self.ids.contains(&id)
    }

    /// Returns the samples, each with the number of times that it was stored.
    pub(super) fn samples(&self) -> impl Iterator<Item = (Sample, u32)> {
        self.samples.iter().map(|(sample, times)| (*sample, *times))
    }
}

/// A state on disk.
#[derive(Clone, Debug, Default)]
pub(super) struct Saved {
    pub(super) at: Flushed,
    pub(super) contents: Arc<Contents>,
}

impl Saved {
    pub(super) fn index(&self) -> u64 {
        self.at.position.as_ref().map_or(0, |position| position.index)
    }
}

/// The model of a shard's state: it applies each batch once.
#[derive(Debug)]
pub(super) struct Model {
    inner: Mutex<Inner>,
    applies_twice: bool,
}

#[derive(Debug)]
struct Inner {
    applied: Flushed,
    contents: Contents,
    saved: Saved,
    kept_log: KeptLog,
    unflushed: u64,
}

impl Model {
    /// Opens a state whose log was purged up to `purged`.
    pub(super) fn open(saved: Saved, purged: Flushed, applies_twice: bool) -> Self {
        let mut kept_log = KeptLog::default();
        kept_log.add(Instant::now(), saved.at.clone(), 0);
        kept_log.begin(purged, 0);
        let (applied, contents) = (saved.at.clone(), Contents::clone(&saved.contents));
        Self { inner: Mutex::new(Inner { applied, contents, saved, kept_log, unflushed: 0 }), applies_twice }
    }

    pub(super) fn contents(&self) -> Contents {
        self.inner.lock().contents.clone()
    }

    pub(super) fn applied_index(&self) -> u64 {
        self.inner.lock().applied.position.as_ref().map_or(0, |position| position.index)
    }

    /// Flushes the state, and returns it for the disk.
    pub(super) fn flush(&self) -> Saved {
        let inner = &mut *self.inner.lock();
        inner.saved = Saved { at: inner.applied.clone(), contents: Arc::new(inner.contents.clone()) };
        let bytes = std::mem::take(&mut inner.unflushed);
        inner.kept_log.add(Instant::now(), inner.saved.at.clone(), bytes);
        inner.saved.clone()
    }

    /// Releases the log beyond the limits, as a real shard does, but not after `kept_index`.
    pub(super) fn release_log(&self, kept_index: Option<u64>) {
        self.inner.lock().kept_log.release(Instant::now(), Some(KEEP), kept_index);
    }
}

impl GroupState for Model {
    fn applied(&self) -> Flushed {
        self.inner.lock().applied.clone()
    }

    fn flushed(&self) -> Flushed {
        self.inner.lock().saved.at.clone()
    }

    fn purgeable(&self) -> Flushed {
        self.inner.lock().kept_log.purgeable()
    }

    fn apply(&self, position: Position, command: Payload) -> Result<Outcome, ReplicaError> {
        let bytes = command.encoded()?;
        let push = Push::decode(bytes.clone());
        let inner = &mut *self.inner.lock();
        inner.unflushed += 1;
        let contents = &mut inner.contents;
        contents.digest = xxh3_64_with_seed(&bytes, contents.digest ^ position.index);
        inner.applied.position = Some(position);
        let is_new = contents.ids.insert(push.id);
        if !is_new && !self.applies_twice {
            return Ok(Outcome::Shard(storage_engine::Outcome::Duplicate));
        }
        push.samples.into_iter().for_each(|sample| *contents.samples.entry(sample).or_default() += 1);
        Ok(Outcome::Shard(storage_engine::Outcome::Applied))
    }

    fn skip(&self, position: Position, membership: Option<Bytes>) -> Result<(), ReplicaError> {
        let inner = &mut *self.inner.lock();
        inner.unflushed += 1;
        inner.applied.position = Some(position);
        if membership.is_some() {
            inner.applied.membership = membership;
        }
        Ok(())
    }
}

impl<S: GroupState> Observed<S> {
    fn note(&self, position: &Position, digest: u64) {
        if self.down.is_cancelled() {
            return;
        }
        let Self { sim, node, shard, .. } = self;
        let digest = xxh3_64_with_seed(&position.log_id, digest);
        sim.oracle.applied(*node, *shard, position.index, digest);
        sim.trace.event(format_args!("{node} applies {shard}/{} {digest:x}", position.index));
    }
}

impl<S: GroupState> GroupState for Observed<S> {
    fn applied(&self) -> Flushed {
        self.inner.applied()
    }

    fn flushed(&self) -> Flushed {
        self.inner.flushed()
    }

    fn purgeable(&self) -> Flushed {
        self.inner.purgeable()
    }

    fn apply(&self, position: Position, command: Payload) -> Result<Outcome, ReplicaError> {
        self.note(&position, xxh3_64_with_seed(&command.encoded()?, 1));
        self.inner.apply(position, command)
    }

    fn skip(&self, position: Position, membership: Option<Bytes>) -> Result<(), ReplicaError> {
        self.note(&position, membership.as_ref().map_or(0, |bytes| xxh3_64_with_seed(bytes, 2)));
        self.inner.skip(position, membership)
    }
}
