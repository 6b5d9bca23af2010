//! Flushing: everything applied so far becomes durable; windows whose time is over become chunks.
//!
//! 1. Freeze, under the state's lock: which samples, definitions and ids there are, and as of which position.
//! 2. Encode, without locks: entries are applied meanwhile, behind that position.
//! 3. Write, under the state's lock, in one batch: no selection sees samples both in the database and in the head.
//! 4. Sum up windows of coarser tiers, see `roll_up`; let RocksDB flush.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use foldhash::fast::FixedState;
use hashbrown::HashMap;
use parking_lot::RwLock;
use proto::{BatchId, Samples, TenantId, Tier};
use rocksdb::WriteBatch;

use crate::batch_ids;
use crate::chunk::{self, Chunk, Scratch};
use crate::database::{self, unlogged};
use crate::encoding::frame;
use crate::engine::Engine;
use crate::error::{Corruption, CorruptionCheck, EngineError};
use crate::head::Frozen;
use crate::head_block;
use crate::key::{self, PartitionKey, Section, StaleKey};
use crate::partition::{Lengths, Partition};
use crate::vocabulary::Vocabulary;
use crate::windows::{self, Minutes, WindowRows};
use crate::{Flushed, Position};

/// How long behind a window's end samples for it are waited for, by the state's clock: agents send every 5 s and try again.
pub(crate) const GRACE_NS: i64 = 60 * 1_000_000_000;
/// How long samples for a window that is sealed already are collected, before it is sealed again.
const LATE_NS: i64 = 600 * 1_000_000_000;

/// The samples of one window of a series that are brought together take at most this part of the head's budget: while they are sorted
/// and encoded they take that a few times.
const SEALED_PART: usize = 4;

/// What a flush seals, beside windows whose time is over, and everything, if the head is over its budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sealing {
    /// Nothing.
    Due,
    /// Windows that end at or before this time.
    Before(i64),
}

impl Sealing {
    fn takes(self, window: u32) -> bool {
        matches!(self, Self::Before(end_ns) if Tier::Raw.window_end_ns(window) <= end_ns)
    }
}

/// Everything in memory as of one moment.
struct FrozenState {
    position: Position,
    membership: Option<Bytes>,
    clock_ns: i64,
    tenants: BTreeMap<u32, TenantId>,
    batch_ids: Arc<HashMap<BatchId, u32, FixedState>>,
    partitions: Vec<FrozenPartition>,
    is_over_budget: bool,
}

struct FrozenPartition {
    key: PartitionKey,
    partition: Arc<RwLock<Partition>>,
    vocabulary: Arc<RwLock<Vocabulary>>,
    lengths: Lengths,
    chunks: Vec<Frozen>,
}

/// What becomes of a head chunk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// Its window is over: one chunk, with its minutes.
    Sealed,
    /// There is no room for it: a chunk, to which others will come.
    Evicted,
    /// It stays, and what is new of it is written.
    Kept,
}

/// What step 2 made.
#[derive(Default)]
struct Encoded {
    batch: WriteBatch,
    /// By place in the frozen partitions, and chunk.
    fates: Vec<Vec<Fate>>,
    stale: Vec<StaleKey>,
    no_longer_stale: Vec<StaleKey>,
}

impl Engine {
    /// Whether the head is over its budget, or holds a window that is to be sealed.
    pub fn wants_flush(&self) -> bool {
        let state = self.state.read();
        if state.head_bytes() >= self.config.head_bytes_max {
            return true;
        }
        state.loaded.values().any(|partition| {
            let partition = partition.read();
            let mut arrivals = partition.head.arrivals();
            arrivals.any(|(window, since_ns)| is_due(window, since_ns, state.clock_ns))
        })
    }

    /// Whether the head is so far over its budget that entries should wait for a flush.
    pub fn is_overfull(&self) -> bool {
        self.state.read().head_bytes() >= self.config.head_bytes_max / 8 * 9
    }

    /// Makes everything applied so far durable; returns up to where.
    ///
    /// # Errors
    /// [`EngineError`]; where the disk is full nothing is lost, and flushing may be tried again when there is space.
    pub fn flush(&self) -> Result<Flushed, EngineError> {
        let _writing = self.writing.lock();
        self.write_all(WriteBatch::default(), Sealing::Due)?;
        let clock_ns = self.state.read().clock_ns;
        self.roll_up(clock_ns.saturating_sub(GRACE_NS))?;
        self.make_durable()
    }

    /// Lets RocksDB flush; returns up to where the state is durable then.
    pub(crate) fn make_durable(&self) -> Result<Flushed, EngineError> {
        // Both were written at once.
        let position = database::read_position(&self.database)?;
        let written = Flushed { position, membership: database::read_membership(&self.database)? };
        self.database.flush()?;
        self.flushed.lock().clone_from(&written.position);
        Ok(written)
    }

    /// Moves everything from memory into the database, in one write behind what `batch` holds; the caller holds `writing`.
    pub(crate) fn write_all(&self, batch: WriteBatch, sealing: Sealing) -> Result<(), EngineError> {
        let Some(frozen) = self.freeze() else { return Ok(()) };
        let encoded = self.encode(&frozen, batch, sealing)?;
        // Exclusive: no selection may see samples both in the database and in the head.
        let mut state = self.state.write();
        self.database.write_opt(encoded.batch, &unlogged())?;
        let mut gone = 0;
        for (partition, fates) in frozen.partitions.iter().zip(&encoded.fates) {
            let mut inner = partition.partition.write();
            inner.wrote(partition.lengths);
            let before = inner.head.samples();
            for (chunk, fate) in partition.chunks.iter().zip(fates) {
                match fate {
                    Fate::Kept => inner.head.wrote(chunk, frozen.position.index),
                    Fate::Sealed | Fate::Evicted => inner.head.remove(chunk),
                }
            }
            gone += before - inner.head.samples();
        }
        state.head_samples -= gone;
        state.stale.extend(encoded.stale);
        encoded.no_longer_stale.iter().for_each(|key| {
            state.stale.remove(key);
        });
        state.batch_ids.wrote();
        for tenant in frozen.tenants.keys() {
            state.unwritten_tenants.remove(tenant);
        }
        drop(frozen);
        state.let_go(self.config.dictionary_bytes_max / 2);
        Ok(())
    }

    fn freeze(&self) -> Option<FrozenState> {
        let mut state = self.state.write();
        let position = state.applied.clone()?;
        let mut partitions = Vec::new();
        let loaded: Vec<_> = state.loaded.iter().map(|(key, partition)| (*key, Arc::clone(partition))).collect();
        for (key, partition) in loaded {
            let mut inner = partition.write();
            if inner.head.is_empty() && !inner.has_unwritten() {
                continue;
            }
            let (lengths, chunks) = (inner.lengths(), inner.head.freeze());
            drop(inner);
            let vocabulary = state.vocabulary(key.tenant);
            partitions.push(FrozenPartition { key, partition, vocabulary, lengths, chunks });
        }
        Some(FrozenState {
            position,
            membership: state.membership.clone(),
            clock_ns: state.clock_ns,
            tenants: state.unwritten_tenants.clone(),
            batch_ids: state.batch_ids.freeze(),
            partitions,
            is_over_budget: state.head_bytes() >= self.config.head_bytes_max,
        })
    }

    fn encode(&self, frozen: &FrozenState, batch: WriteBatch, sealing: Sealing) -> Result<Encoded, EngineError> {
        let mut out = Encoded { batch, ..Encoded::default() };
        let mut scratch = Scratch::default();
        for partition in &frozen.partitions {
            let FrozenPartition { key, lengths, chunks, .. } = partition;
            {
                let vocabulary = partition.vocabulary.read();
                partition.partition.read().write_definitions(lengths, &vocabulary, &mut out.batch)?;
            }
            let mut fates = Vec::with_capacity(chunks.len());
            for chunk in chunks {
                let is_due = is_due(chunk.window, chunk.since_ns, frozen.clock_ns) || sealing.takes(chunk.window);
                let fate = match (is_due, frozen.is_over_budget) {
                    (true, _) => Fate::Sealed,
                    (false, true) => Fate::Evicted,
                    (false, false) => Fate::Kept,
                };
                let is_gauge = partition.partition.read().is_gauge(chunk.series);
                let raw = key.in_tier(Tier::Raw);
                match fate {
                    Fate::Kept => write_head(raw, chunk, frozen.position.index, &mut out.batch)?,
                    Fate::Evicted => self.evict(raw, chunk, frozen.position.index, &mut scratch, &mut out)?,
                    Fate::Sealed => {
                        self.seal(
                            raw,
                            (chunk.window, chunk.series),
                            is_gauge,
                            Some(chunk),
                            frozen.position.index,
                            &mut scratch,
                            &mut out,
                        )?;
                    }
                }
                fates.push(fate);
            }
            out.fates.push(fates);
        }
        self.seal_evicted(frozen, sealing, &mut scratch, &mut out)?;
        batch_ids::write(&frozen.batch_ids, frozen.clock_ns, &mut out.batch);
        for (id, tenant) in &frozen.tenants {
            database::put(&mut out.batch, &key::tenant(*id), tenant.as_str().as_bytes());
        }
        if let Some(membership) = &frozen.membership {
            database::put(&mut out.batch, key::MEMBERSHIP, membership);
        }
        database::put(&mut out.batch, key::CLOCK, &frozen.clock_ns.to_be_bytes());
        database::put_position(&mut out.batch, &frozen.position);
        Ok(out)
    }

    /// A chunk of what is in the head, beside those that its window has already.
    fn evict(
        &self,
        raw: PartitionKey,
        chunk: &Frozen,
        log_index: u64,
        scratch: &mut Scratch,
        out: &mut Encoded,
    ) -> Result<(), EngineError> {
        let samples = head_block::joined(&chunk.runs);
        write_chunk(raw, (chunk.window, chunk.series), log_index, &samples, scratch, &mut out.batch)?;
        chunk.written_at.iter().for_each(|&at| out.batch.delete(raw.head(chunk.window, chunk.series, at)));
        let stale = stale_key(raw, Tier::Minute, chunk.window, chunk.series);
        database::put(&mut out.batch, &stale.bytes(), &[]);
        out.stale.push(stale);
        Ok(())
    }

    /// Windows whose chunks were evicted, that have nothing in the head now, and whose time is over.
    fn seal_evicted(
        &self,
        frozen: &FrozenState,
        sealing: Sealing,
        scratch: &mut Scratch,
        out: &mut Encoded,
    ) -> Result<(), EngineError> {
        let minutes: Vec<StaleKey> = {
            let state = self.state.read();
            state.stale.iter().take_while(|key| key.tier == Tier::Minute).copied().collect()
        };
        let done: BTreeSet<StaleKey> = out.no_longer_stale.iter().copied().collect();
        for stale in minutes {
            let end_ns = Tier::Raw.window_end_ns(stale.window);
            let is_due = end_ns.saturating_add(GRACE_NS) <= frozen.clock_ns || sealing.takes(stale.window);
            let raw = PartitionKey::of(Tier::Raw, stale.class, stale.tenant, end_ns);
            let in_head =
                frozen.partitions.iter().filter(|partition| partition.key.in_tier(Tier::Raw) == raw).any(|partition| {
                    partition.chunks.iter().any(|chunk| (chunk.window, chunk.series) == (stale.window, stale.series))
                });
            if !is_due || in_head || done.contains(&stale) {
                continue;
            }
            let Some(partition) = self.partition(raw.in_tier(Tier::Minute))? else { continue };
            let is_gauge = partition.read().is_gauge(stale.series);
            self.seal(raw, (stale.window, stale.series), is_gauge, None, frozen.position.index, scratch, out)?;
        }
        Ok(())
    }

    /// One chunk of everything in a window of a series, unless it is too much, and its minutes; the hour must be summed up again.
    #[allow(clippy::too_many_arguments, reason = "what a window is made of, and where it goes")]
    fn seal(
        &self,
        raw: PartitionKey,
        (window, series): (u32, u32),
        is_gauge: bool,
        head: Option<&Frozen>,
        log_index: u64,
        scratch: &mut Scratch,
        out: &mut Encoded,
    ) -> Result<(), EngineError> {
        let mut samples = head.map(|chunk| head_block::joined(&chunk.runs)).unwrap_or_default();
        let before = self.chunks_of(raw, window, series)?;
        let sealed = before.iter().map(|(_, count)| count).sum::<u64>();
        if samples.is_empty() && sealed == 0 {
            return Ok(());
        }
        // What is too much to hold at once stays in the chunks that it has.
        let most = self.config.head_bytes_max / SEALED_PART / crate::head::SAMPLE_BYTES;
        let stays = sealed + samples.len() as u64 > most as u64;
        let mut minutes = Minutes::default();
        for (key, _) in before {
            let of_chunk = self.samples_of(&key, window)?;
            if stays {
                minutes.add(windows::minutes_of(&of_chunk, window, is_gauge, scratch), is_gauge);
            } else {
                samples.append(of_chunk);
                out.batch.delete(&key);
                out.batch.delete(events_key(&key));
            }
        }
        if !samples.is_empty() {
            crate::head::sort_by_time(&mut samples);
            write_chunk(raw, (window, series), log_index, &samples, scratch, &mut out.batch)?;
            minutes.add(windows::minutes_of(&samples, window, is_gauge, scratch), is_gauge);
        }
        write_minutes(raw, (window, series), is_gauge, &minutes.into_windows(), &mut out.batch);
        for &at in head.map_or(&[][..], |chunk| &chunk.written_at) {
            out.batch.delete(raw.head(window, series, at));
        }
        let stale = stale_key(raw, Tier::Minute, window, series);
        out.batch.delete(stale.bytes());
        out.no_longer_stale.push(stale);
        let hour = window / Tier::Raw.windows_in(Tier::Hour);
        let stale = stale_key(raw, Tier::Hour, hour, series);
        database::put(&mut out.batch, &stale.bytes(), &[]);
        out.stale.push(stale);
        Ok(())
    }

    /// The chunks of a window of a series: their keys, and how many samples each has.
    pub(crate) fn chunks_of(
        &self,
        raw: PartitionKey,
        window: u32,
        series: u32,
    ) -> Result<Vec<(Vec<u8>, u64)>, EngineError> {
        let mut chunks = Vec::new();
        for item in database::scan(&self.database, &raw.series_window(Section::Chunks, series, window)) {
            let (key, value) = item?;
            let chunk = Chunk::read(frame::open(&key, &value)?, window).ok_or_else(|| corrupt(&key))?;
            chunks.push((key.to_vec(), chunk.samples));
        }
        Ok(chunks)
    }

    /// All samples of a chunk, sorted by time.
    pub(crate) fn samples_of(&self, key: &[u8], window: u32) -> Result<Samples, EngineError> {
        let value = self.database.get_pinned(key)?.ok_or_else(|| corrupt(key))?;
        let chunk = Chunk::read(frame::open(key, &value)?, window).ok_or_else(|| corrupt(key))?;
        let own = self.own_events(key, &chunk)?;
        Ok(chunk.samples(own.as_deref()).ok_or_else(|| corrupt(key))?)
    }

    fn own_events(&self, key: &[u8], chunk: &Chunk<'_>) -> Result<Option<Vec<u8>>, EngineError> {
        if !chunk.has_own_events() {
            return Ok(None);
        }
        let key = events_key(key);
        let missing = || Corruption { key: key.clone(), check: CorruptionCheck::Length };
        let value = self.database.get(&key)?.ok_or_else(missing)?;
        Ok(Some(frame::open(&key, &value)?.to_vec()))
    }
}

/// Whether the time of a window is over: no more samples are waited for.
fn is_due(window: u32, since_ns: i64, clock_ns: i64) -> bool {
    let over_ns = Tier::Raw.window_end_ns(window).saturating_add(GRACE_NS);
    let is_late = since_ns > over_ns;
    clock_ns >= if is_late { since_ns.saturating_add(LATE_NS) } else { over_ns }
}

/// The key of a chunk's own events.
pub(crate) fn events_key(chunk_key: &[u8]) -> Vec<u8> {
    let numbers = PartitionKey::of_key(chunk_key).zip(PartitionKey::section_of(chunk_key));
    numbers.map_or_else(Vec::new, |(raw, (_, rest))| [raw.section(Section::Events).as_slice(), rest].concat())
}

pub(crate) fn stale_key(of: PartitionKey, tier: Tier, window: u32, series: u32) -> StaleKey {
    StaleKey { tier, class: of.class, window, tenant: of.tenant, series }
}

fn write_head(raw: PartitionKey, chunk: &Frozen, log_index: u64, batch: &mut WriteBatch) -> Result<(), EngineError> {
    let new = chunk.runs.get(chunk.written..).unwrap_or_default();
    if !new.is_empty() {
        let key = raw.head(chunk.window, chunk.series, log_index);
        batch.put(&key, head_block::encode(&key, new)?);
    }
    Ok(())
}

pub(crate) fn write_chunk(
    raw: PartitionKey,
    (window, series): (u32, u32),
    log_index: u64,
    samples: &Samples,
    scratch: &mut Scratch,
    batch: &mut WriteBatch,
) -> Result<(), EngineError> {
    let sealed = chunk::seal(samples, window, scratch)?;
    let key = raw.chunk(Section::Chunks, series, window, log_index);
    batch.put(&key, frame::seal(&key, &sealed.chunk));
    if let Some(events) = sealed.events {
        let key = raw.chunk(Section::Events, series, window, log_index);
        batch.put(&key, frame::seal(&key, &events));
    }
    Ok(())
}

pub(crate) fn write_minutes(
    raw: PartitionKey,
    (window, series): (u32, u32),
    is_gauge: bool,
    minutes: &[WindowRows],
    batch: &mut WriteBatch,
) {
    let key = raw.in_tier(Tier::Minute).series_window(Section::Windows, series, window);
    let value = windows::encode(minutes, is_gauge, Tier::Raw.window_start_ns(window));
    batch.put(&key, frame::seal(&key, &value));
}

fn corrupt(key: &[u8]) -> Corruption {
    Corruption { key: key.to_vec(), check: CorruptionCheck::Content }
}
