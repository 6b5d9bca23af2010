//! Flush: makes all applied entries durable, and turns windows that are over into chunks.
//!
//! 1. Freeze, under the state's lock: record the samples, definitions and IDs in memory, and their position.
//! 2. Encode, without locks. Later entries are applied meanwhile.
//! 3. Wait until the log has synced the position.
//! 4. Write, under the state's lock, in one batch, so that no query finds samples both in the database and in the
//!    head.
//! 5. Merge the chunks of evicted windows that are over (`seal`). An evicted window was written as chunks before its
//!    end, because the head was over its budget.
//! 6. Sum up windows of coarser tiers (`roll_up`), then flush RocksDB.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use proto::{TenantId, Tier};
use rocksdb::WriteBatch;

use crate::database;
use crate::database::key::{self, PartitionKey};
use crate::encoding::head_block;
use crate::engine::state::partitions::{SharedDictionary, SharedPartition};
use crate::engine::store::Store;
use crate::engine::store::write_lock::Writing;
use crate::engine::upkeep::roll_up::roll_up;
use crate::engine::upkeep::seal::{GRACE_NS, SealBatch, Sealing, SeriesWindow, is_due, seal, seal_evicted};
use crate::error::EngineError;
use crate::integrity::quarantine::damage::records::UnwrittenDamage;
use crate::memory::batch_ids::{self, FrozenIds};
use crate::memory::head::Frozen;
use crate::memory::partition::Lengths;
use crate::memory::run::joined;
use crate::{Flushed, Position};

/// Copy of everything that is only in memory, as of one moment.
struct FrozenState {
    position: Position,
    membership: Option<Bytes>,
    clock_ns: i64,
    oldest_ns: Option<i64>,
    sealing_clock_ns: i64,
    tenants: BTreeMap<u32, TenantId>,
    label_drops: BTreeMap<Vec<u8>, Vec<u8>>,
    batch_ids: FrozenIds,
    partitions: Vec<FrozenPartition>,
    is_over_budget: bool,
}

struct FrozenPartition {
    key: PartitionKey,
    partition: SharedPartition,
    shared: SharedDictionary,
    lengths: Lengths,
    chunks: Vec<Frozen>,
}

/// Result of a flush for one head chunk: the head's samples of one series in one window.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// The window is over, and its samples were written as a chunk, together with the sums of its minutes.
    Sealed,
    /// The heads are over their budget, so the samples were written as a chunk. More chunks of the window may follow.
    Evicted,
    /// The samples stay in the head, and those that were not on disk were written as a head value.
    Kept,
}

/// Values that step 2 of a flush encodes.
struct Encoded {
    sealed: SealBatch,
    /// Result for each chunk of the frozen heads: by index of the frozen partition, then by index of its chunk.
    fates: Vec<Vec<Fate>>,
    damage: UnwrittenDamage,
}

/// Returns whether all heads exceed their budget and this engine's is the largest, or a window is due to be sealed or
/// summed up.
pub(crate) fn wants_flush(store: &Store) -> bool {
    let state = store.state();
    let clock_ns = state.clock.sealing_ns();
    let holds_due = |(_, partition): (&PartitionKey, &SharedPartition)| {
        let partition = partition.read();
        let mut arrivals = partition.head.arrivals();
        arrivals.any(|(window, since_ns)| is_due(window, since_ns, clock_ns))
    };
    store.shares().heads.is_largest_at_limit()
        || state.partitions.all_loaded().any(holds_due)
        || state.evicted(Sealing::Due).next().is_some()
        || state.stale.is_due(clock_ns.saturating_sub(GRACE_NS))
}

/// Returns whether all heads are so far over their budget, and this engine's head so large, that its entries should
/// wait for a flush of this engine. They never wait for another engine's flush.
pub(crate) fn is_overfull(store: &Store) -> bool {
    let heads = &store.shares().heads;
    heads.reaches(heads.bytes_max() / 8 * 9)
}

/// Makes all applied entries durable. Returns the position up to which the state is durable.
pub(crate) fn flush(writing: &Writing<'_>) -> Result<Flushed, EngineError> {
    write_all(writing, WriteBatch::default(), Sealing::Due)?;
    let clock_ns = writing.state().clock.sealing_ns();
    roll_up(writing, clock_ns.saturating_sub(GRACE_NS))?;
    writing.make_durable()
}

/// Moves everything from memory into the database in one write, which begins with the changes of `batch`. Then seals
/// the windows that earlier flushes evicted and that are over.
pub(crate) fn write_all(writing: &Writing<'_>, batch: WriteBatch, sealing: Sealing) -> Result<(), EngineError> {
    let Some(frozen) = freeze(writing) else { return Ok(()) };
    let encoded = encode(writing, &frozen, batch, sealing)?;
    writing.config().barrier.wait(frozen.position.index)?;
    write(writing, &frozen, encoded)?;
    let log_index = frozen.position.index;
    drop(frozen);
    seal_evicted(writing, sealing, log_index)?;
    writing.state_mut().partitions.evict(writing.idle_dictionary_bytes_max());
    Ok(())
}

fn write(writing: &Writing<'_>, frozen: &FrozenState, encoded: Encoded) -> Result<(), EngineError> {
    // The lock is exclusive, so that no query finds samples both in the database and in the head.
    let mut state = writing.state_mut();
    writing.write(encoded.sealed.batch)?;
    let flushes = state.partitions.count_flush();
    for (partition, fates) in frozen.partitions.iter().zip(&encoded.fates) {
        let mut inner = partition.partition.write();
        inner.wrote(partition.lengths);
        let as_chunks = partition.chunks.iter().zip(fates).filter(|(_, fate)| **fate != Fate::Kept);
        let (series, times) = (inner.series.len(), as_chunks.map(|(chunk, _)| (chunk.series, chunk.times_ns)));
        inner.sample_times.add(series, flushes, times);
        state.partitions.change_head(&mut inner, |head| {
            for (chunk, fate) in partition.chunks.iter().zip(fates) {
                match fate {
                    Fate::Kept => head.wrote(chunk, frozen.position.index),
                    Fate::Sealed | Fate::Evicted => head.remove(chunk),
                }
            }
        });
    }
    encoded.sealed.marks.apply(&mut state);
    state.batch_ids.wrote();
    state.damage.wrote(&encoded.damage);
    state.tenants.wrote(&frozen.tenants);
    state.label_drops.wrote(&frozen.label_drops);
    Ok(())
}

fn freeze(store: &Store) -> Option<FrozenState> {
    let mut state = store.state_mut();
    let position = state.applied()?.clone();
    let heads = &store.shares().heads;
    let mut partitions = Vec::new();
    let loaded = state.partitions.all_loaded();
    let loaded: Vec<_> = loaded.map(|(key, partition)| (*key, Arc::clone(partition))).collect();
    for (key, partition) in loaded {
        let mut inner = partition.write();
        if inner.head.is_empty() && !inner.has_unwritten() {
            continue;
        }
        let lengths = inner.lengths();
        let chunks = inner.head.freeze();
        drop(inner);
        let shared = state.partitions.dictionary(key.tenant);
        partitions.push(FrozenPartition { key, partition, shared, lengths, chunks });
    }
    Some(FrozenState {
        position,
        membership: state.membership().cloned(),
        clock_ns: state.clock.entries_ns(),
        oldest_ns: state.partitions.oldest_ns(),
        sealing_clock_ns: state.clock.sealing_ns(),
        tenants: state.tenants.unwritten(),
        label_drops: state.label_drops.unwritten(),
        batch_ids: state.batch_ids.freeze(),
        partitions,
        is_over_budget: heads.reaches(heads.bytes_max()),
    })
}

fn encode(
    writing: &Writing<'_>,
    frozen: &FrozenState,
    batch: WriteBatch,
    sealing: Sealing,
) -> Result<Encoded, EngineError> {
    let mut out = Encoded { sealed: SealBatch::after(batch), fates: Vec::new(), damage: UnwrittenDamage::default() };
    for partition in &frozen.partitions {
        let FrozenPartition { key, lengths, chunks, .. } = partition;
        let unwritten = {
            let shared = partition.shared.read();
            partition.partition.read().unwritten(lengths, &shared)
        };
        unwritten.write(&mut out.sealed.batch)?;
        let mut fates = Vec::with_capacity(chunks.len());
        for chunk in chunks {
            let is_due = is_due(chunk.window, chunk.since_ns, frozen.sealing_clock_ns) || sealing.takes(chunk.window);
            let fate = match (is_due, frozen.is_over_budget) {
                (true, _) => Fate::Sealed,
                (false, true) => Fate::Evicted,
                (false, false) => Fate::Kept,
            };
            let is_gauge = partition.partition.read().is_gauge(chunk.series);
            let at = SeriesWindow { raw: key.in_tier(Tier::Raw), window: chunk.window, series: chunk.series, is_gauge };
            match fate {
                Fate::Kept => write_head(at.raw, chunk, frozen.position.index, &mut out.sealed.batch)?,
                Fate::Evicted => out.sealed.evict(at, chunk, frozen.position.index)?,
                Fate::Sealed => seal(writing, at, Some(chunk), frozen.position.index, &mut out.sealed)?,
            }
            fates.push(fate);
        }
        out.fates.push(fates);
    }
    batch_ids::write(&frozen.batch_ids, &mut out.sealed.batch);
    // This includes damage that sealing found.
    out.damage = writing.state().damage.unwritten();
    out.damage.write(&mut out.sealed.batch);
    out.sealed.marks.delete_marks(&mut out.sealed.batch);
    for (id, tenant) in &frozen.tenants {
        database::put(&mut out.sealed.batch, &key::tenant(*id), tenant.as_str().as_bytes());
    }
    for (key, value) in &frozen.label_drops {
        database::put(&mut out.sealed.batch, key, value);
    }
    if let Some(membership) = &frozen.membership {
        database::put(&mut out.sealed.batch, key::MEMBERSHIP, membership);
    }
    database::put(&mut out.sealed.batch, key::CLOCK, &frozen.clock_ns.to_be_bytes());
    if let Some(oldest_ns) = frozen.oldest_ns {
        database::put(&mut out.sealed.batch, key::OLDEST, &oldest_ns.to_be_bytes());
    }
    database::put_position(&mut out.sealed.batch, &frozen.position);
    Ok(out)
}

fn write_head(raw: PartitionKey, chunk: &Frozen, log_index: u64, batch: &mut WriteBatch) -> Result<(), EngineError> {
    let new = chunk.runs.get(chunk.written..).unwrap_or_default();
    if !new.is_empty() {
        let key = raw.head(chunk.window, chunk.series, log_index);
        batch.put(&key, head_block::encode(&key, &joined(new))?);
    }
    Ok(())
}
