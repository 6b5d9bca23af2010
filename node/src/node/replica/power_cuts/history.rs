//! A script that ran on a follower: its file operations, and what the follower had promised and applied meanwhile.

use std::sync::Arc;
use std::time::{Duration, Instant};

use proto::selection::Operation as Matching;
use proto::{Deletion, Matcher, TenantId, Tier, Window};
use storage_engine::Content;
use testkit::batches::{batch_of, time_of};
use testkit::power_cut::disk::{EntryName, Operation, assert_is_whole, draw_cut};
use testkit::power_cut::recorder;
use testkit::random::Random;

use super::folder;
use super::member::{Member, Reference, SHARD};
use crate::consensus::scripted::{Leaders, Promises};
use crate::consensus::{Payload, Proposal};
use crate::shard::snapshot::receiver::receive;

/// Number of steps of a script.
const STEPS: usize = 40;
/// Longest time for which a sync of the log is held until its entries are applied. Entries that delete wait for it.
const APPLY_PATIENCE: Duration = Duration::from_millis(30);
/// Time for which a sync of the log is held while the state is being flushed. The flush waits for it.
const FLUSH_PATIENCE: Duration = Duration::from_millis(100);
/// Time between the samples of two entries, in milliseconds. A window ends between any two of them.
const ENTRY_MS: i64 = 1_800_000;
/// Percentage of the power cuts that come between the apply and the sync of entries.
const UNSYNCED_PERCENT: usize = 60;
/// Percentage of the power cuts that come during the installation of a snapshot.
const INSTALLING_PERCENT: usize = 15;

/// Facts about the follower at a moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Facts {
    pub(super) promises: Promises,
    /// Index of the last applied entry.
    pub(super) applied: Option<u64>,
    /// True while a snapshot is being installed: the state may then have more entries than the log.
    pub(super) is_installing: bool,
}

impl Facts {
    /// Returns true if entries were applied whose sync was not reported.
    pub(super) fn is_unsynced(&self) -> bool {
        self.applied.is_some_and(|applied| applied >= self.promises.acknowledged())
    }
}

/// A script that ran, with the recorded file operations.
pub(super) struct History {
    pub(super) operations: Vec<Operation>,
    /// The data directory.
    pub(super) root: EntryName,
    /// Facts, each with the number of operations before it.
    facts: Vec<(usize, Facts)>,
    pub(super) leaders: Leaders,
    /// Content at each index, on a member that nothing happens to.
    pub(super) contents: Vec<Content>,
}

impl History {
    /// Runs the script of a seed, and records it.
    pub(super) async fn record(seed: u64) -> Self {
        let folder = folder();
        let path = folder.path().join("node");
        recorder::start(folder.path(), Some(&path.join("raft")));
        let parent = recorder::directory(folder.path());
        let inode = recorder::directory(&path);
        let mut member = Member::start(&path).await.unwrap();
        member.open(None).await.unwrap();
        let leaders = Leaders::new(SHARD, member.directory());
        let facts = vec![(0, Facts::default())];
        let mut script =
            Script { random: Random::new(seed), member, leaders, reference: Reference::open(), facts, received: 0 };
        script.append(0, false).await;
        for _ in 0..STEPS {
            script.step().await;
        }
        let Script { member, leaders, reference, facts, .. } = script;
        member.close().await;
        let operations = recorder::stop();
        assert_is_whole(&operations, inode, &path);
        Self { operations, root: (parent, "node".into()), facts, leaders, contents: reference.contents.clone() }
    }

    /// Returns the facts before a power cut after `at` operations.
    pub(super) fn facts(&self, at: usize) -> &Facts {
        &self.facts[self.facts.partition_point(|(before, _)| *before <= at) - 1].1
    }

    /// Draws the number of operations before a power cut.
    pub(super) fn draw(&self, random: &mut Random) -> usize {
        let kind = random.below(100);
        let is_drawn = |facts: &Facts| match kind {
            0..UNSYNCED_PERCENT => facts.is_unsynced(),
            _ => kind < UNSYNCED_PERCENT + INSTALLING_PERCENT && facts.is_installing,
        };
        let drawn: Vec<_> = self.facts.windows(2).filter(|pair| is_drawn(&pair[0].1)).collect();
        if drawn.is_empty() {
            return draw_cut(&self.operations, random);
        }
        let [(start, facts), (end, _)] = drawn[random.below(drawn.len())] else { unreachable!("it is a pair") };
        if facts.is_unsynced() && random.chance(50) { *start } else { start + random.below((end - start).max(1)) }
    }
}

/// A script that is running.
struct Script {
    random: Random,
    member: Member,
    leaders: Leaders,
    reference: Reference,
    facts: Vec<(usize, Facts)>,
    /// Number of entries that the follower has: in its log, or in a snapshot.
    received: u64,
}

impl Script {
    fn note(&mut self, change: impl FnOnce(&mut Facts)) {
        let mut facts = self.facts.last().unwrap().1.clone();
        change(&mut facts);
        self.facts.push((recorder::count(), facts));
    }

    async fn step(&mut self) {
        match self.random.below(20) {
            0..=7 => self.append(3, false).await,
            8..=12 => self.append(2, true).await,
            13 => self.member.replica().compact().await.unwrap(),
            14 => {
                // The present leader is replaced by one that this member has voted for.
                self.leaders.change(self.leaders.end());
                assert!(self.leaders.ask_vote(self.member.peers(), self.member.directory()).await, "no vote");
                let voted = self.facts.last().unwrap().1.promises.with_vote(&self.leaders);
                self.note(|facts| facts.promises = voted);
                self.append(1, false).await;
            }
            15..=16 => self.replace().await,
            17..=18 => self.install().await,
            _ => {
                self.member.open(None).await.unwrap();
                let applied = self.member.applied();
                self.note(|facts| facts.applied = applied);
            }
        }
    }

    fn propose(&mut self, entries_max: usize) {
        for _ in 0..=self.random.below(entries_max + 1) {
            let index = self.leaders.end() as i64;
            let command = self.command(index);
            self.leaders.propose(command);
        }
    }

    fn command(&mut self, index: i64) -> Option<Payload> {
        let now = index * ENTRY_MS;
        let proposal = match self.random.below(12) {
            0 => return None,
            1 => Proposal::expire(Tier::Raw, 0, time_of(now - 20 * ENTRY_MS)),
            2 => {
                let start = now - self.random.below(30) as i64 * ENTRY_MS;
                let window = Window { start_ns: time_of(start), end_ns: time_of(start + 3 * ENTRY_MS) };
                let (name, value) = ("service_name".to_owned(), "test".to_owned());
                let matchers = vec![Matcher { name, operation: Matching::Equal, value }];
                Proposal::delete(Deletion { tenant: TenantId::default_tenant(), matchers, window })
            }
            _ => {
                let serials = (0..20).map(|serial| now + serial * ENTRY_MS / 20);
                let name = |serial: i64| format!("function {}", serial / 1000 % 7);
                Proposal::append(Arc::new(batch_of(Some(index.unsigned_abs().into()), serials, name)))
            }
        };
        Some(proposal.at(time_of(now).unsigned_abs()))
    }

    /// Sends new entries, which a majority has already, so that they are applied before they are synced here. With
    /// `flushes`, the state is flushed meanwhile.
    async fn append(&mut self, entries_max: usize, flushes: bool) {
        self.propose(entries_max);
        let end = self.leaders.end();
        self.reference.apply(&self.leaders, end - 1);
        let entries = self.received..end;
        let acknowledged = self.leaders.append(self.member.peers(), self.member.directory(), entries, end - 1);
        recorder::hold_syncs(true);
        let acknowledged = tokio::spawn(acknowledged);
        let is_applied = tokio::time::timeout(APPLY_PATIENCE, self.member.applies(end - 1)).await.is_ok();
        if is_applied {
            self.note(|facts| facts.applied = Some(end - 1));
        }
        let replica = Arc::clone(self.member.replica());
        let flush = flushes.then(|| tokio::spawn(async move { replica.flush().await }));
        let start = Instant::now();
        while flush.as_ref().is_some_and(|flush| !flush.is_finished()) && start.elapsed() < FLUSH_PATIENCE {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        recorder::hold_syncs(false);
        assert!(acknowledged.await.unwrap().unwrap(), "entries from {} on do not follow the log", self.received);
        self.received = end;
        let promises = self.leaders.promises(end);
        self.note(|facts| (facts.promises, facts.applied) = (promises, Some(end - 1)));
        self.member.applies(end - 1).await.unwrap();
        if let Some(flush) = flush {
            flush.await.unwrap().unwrap();
        }
    }

    /// Sends entries that are never committed, and then those of a leader that does not have them.
    async fn replace(&mut self) {
        let start = self.leaders.end();
        if self.received < start {
            return self.append(0, false).await;
        }
        self.propose(3);
        let end = self.leaders.end();
        let sent = self.leaders.append(self.member.peers(), self.member.directory(), start..end, start - 1);
        assert!(sent.await.unwrap(), "entries from {start} on do not follow the log");
        let promises = self.leaders.promises(end);
        self.note(|facts| facts.promises = promises);
        self.leaders.change(start);
        self.note(|facts| facts.promises = facts.promises.first(start));
        self.append(2, false).await;
    }

    /// Installs a snapshot that is ahead of the log.
    async fn install(&mut self) {
        self.propose(2);
        let last = self.leaders.end() - 1;
        self.reference.apply(&self.leaders, last);
        let channel = self.reference.serve().await;
        let staged = receive(channel, SHARD, self.member.replica().shard().directory()).await.unwrap();
        assert_eq!(staged.manifest().position.index, last);
        self.note(|facts| facts.is_installing = true);
        self.member.open(Some(staged)).await.unwrap();
        assert_eq!(self.member.applied(), Some(last), "the snapshot was not installed");
        self.received = last + 1;
        self.note(|facts| (facts.is_installing, facts.applied) = (false, None));
    }
}
