//! The leaders of a group as a script wants them, for tests of one real member: what they send, and what the member has
//! promised them.
//!
//! The member has node id 1. Leaders are the nodes 2 and 3 in turn. The script decides what the majority has: with each
//! message, a leader may commit entries that the member has not synced.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use openraft::EntryPayload;
use openraft::entry::RaftEntry as _;
use openraft::raft::{AppendEntriesRequest, VoteRequest};
use openraft::vote::RaftLeaderId as _;
use proto::wire::append_reply::Result as AppendResult;
use proto::wire::peer_reply::Reply;
use proto::wire::{AppendReply, PeerRequest};

use crate::consensus::log::LogDatabase;
use crate::consensus::member::{DirectoryId, Member};
use crate::consensus::payload::Payload;
use crate::consensus::peers::Peers;
use crate::consensus::peers::messages::Request;
use crate::consensus::state::GroupState;
use crate::consensus::state_machine::StateMachine;
use crate::consensus::types::{LeaderId, LogEntry, LogId, Membership, Vote};
use crate::failure::Failure;

/// Leaders of a group, and the log of the one that leads now.
#[derive(Debug)]
pub(crate) struct Leaders {
    shard: u32,
    term: u64,
    log: Vec<LogEntry>,
}

/// Promises of the member, which a later restart of the member must keep.
#[derive(Clone, Debug, Default)]
pub(crate) struct Promises {
    /// Log ids of the entries that the member has acknowledged, from index 0 on.
    acknowledged: Arc<Vec<LogId>>,
    /// Term and candidate of the last vote.
    vote: Option<(u64, u64)>,
}

impl Promises {
    /// Number of entries that the member has acknowledged.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged.len() as u64
    }

    /// Returns the promises without those about entries from `end` on, which a new leader does not have.
    pub(crate) fn first(&self, end: u64) -> Self {
        let acknowledged = self.acknowledged.iter().take(end as usize).copied().collect();
        Self { acknowledged: Arc::new(acknowledged), vote: self.vote }
    }

    /// Returns the promises with a vote for the leader that leads now.
    pub(crate) fn with_vote(&self, leaders: &Leaders) -> Self {
        let LeaderId { term, node_id } = leader(leaders.term);
        Self { acknowledged: Arc::clone(&self.acknowledged), vote: Some((term, node_id)) }
    }
}

/// Entries of a member's log: the last purged index, and the last index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept {
    pub(crate) purged: Option<u64>,
    pub(crate) last: Option<u64>,
}

impl Kept {
    /// Reads the ends of the log of a shard.
    pub(crate) fn of(log: &LogDatabase, shard: u32) -> Self {
        let purged = log.last_purged(shard).unwrap().map(|purged| purged.index);
        let last = log.last(shard).unwrap().map(|entry| entry.log_id.index).max(purged);
        Self { purged, last }
    }
}

fn leader(term: u64) -> LeaderId {
    LeaderId::new(term, 2 + term % 2)
}

impl Leaders {
    /// Returns leaders whose log begins with the members of the group. The member to test has this directory.
    pub(crate) fn new(shard: u32, directory: DirectoryId) -> Self {
        // Nobody listens at these addresses.
        let member = |node: u64| {
            let directory = if node == 1 { directory } else { [node as u8; 16] };
            (node, Member { address: format!("127.0.0.1:{node}"), directory })
        };
        let members = [1, 2, 3].map(member).into_iter().collect::<BTreeMap<_, _>>();
        let voters = BTreeSet::from([1, 2, 3]);
        let membership = EntryPayload::Membership(Membership::new(vec![voters], members).unwrap());
        let first = LogEntry::new(LogId::new(LeaderId::new(0, 0), 0), membership);
        Self { shard, term: 1, log: vec![first] }
    }

    /// Number of entries in the log.
    pub(crate) fn end(&self) -> u64 {
        self.log.len() as u64
    }

    /// Adds an entry with this command, or without one.
    pub(crate) fn propose(&mut self, command: Option<Payload>) {
        let payload = command.map_or(EntryPayload::Blank, |command| EntryPayload::Normal(command.without_decoded()));
        self.log.push(LogEntry::new(LogId::new(leader(self.term), self.end()), payload));
    }

    /// Lets the other leader lead from now on. It has only the first `kept` entries.
    pub(crate) fn change(&mut self, kept: u64) {
        self.term += 1;
        self.log.truncate(kept as usize);
    }

    /// Applies an entry to a state, as a member does.
    pub(crate) fn apply_to(&self, state: &Arc<impl GroupState>, index: u64) {
        let machine = StateMachine::new(Arc::clone(state) as Arc<dyn GroupState>, Failure::of_log()).unwrap();
        machine.apply_entry(self.log[index as usize].clone()).unwrap();
    }

    /// Returns what the member promises when it acknowledges the first `end` entries.
    pub(crate) fn promises(&self, end: u64) -> Promises {
        let acknowledged = self.log[..end as usize].iter().map(|entry| entry.log_id).collect::<Vec<_>>();
        let LeaderId { term, node_id } = leader(self.term);
        Promises { acknowledged: Arc::new(acknowledged), vote: Some((term, node_id)) }
    }

    /// Sends entries. All entries up to `committed` are committed. Returns true if the member has acknowledged, and
    /// false if it does not have the entry before. An error is another reply.
    pub(crate) fn append(
        &self,
        peers: &Peers,
        directory: DirectoryId,
        entries: Range<u64>,
        committed: u64,
    ) -> impl Future<Output = Result<bool, String>> + Send + use<> {
        let log_id = |index: u64| self.log[index as usize].log_id;
        let request = Request::Append(AppendEntriesRequest {
            vote: Vote { leader_id: leader(self.term), committed: true },
            prev_log_id: entries.start.checked_sub(1).map(log_id),
            entries: self.log[entries.start as usize..entries.end as usize].to_vec(),
            leader_commit: Some(log_id(committed)),
        });
        let reply = self.send(peers, directory, &request);
        async move {
            match reply.await {
                Reply::Append(AppendReply { result: Some(AppendResult::Success(_)) }) => Ok(true),
                Reply::Append(AppendReply { result: Some(AppendResult::Conflict(_)) }) => Ok(false),
                other => Err(format!("the member does not append: {other:?}")),
            }
        }
    }

    /// Asks the member for its vote for the leader that leads now. Returns true if the vote was granted.
    pub(crate) fn ask_vote(&self, peers: &Peers, directory: DirectoryId) -> impl Future<Output = bool> + Send + use<> {
        let vote = Vote { leader_id: leader(self.term), committed: false };
        let request = VoteRequest::new(vote, self.log.last().map(|entry| entry.log_id));
        let request = Request::Vote(VoteRequest { leadership_transfer: true, ..request });
        let reply = self.send(peers, directory, &request);
        async move {
            match reply.await {
                Reply::Vote(reply) => reply.granted,
                other => panic!("{other:?}"),
            }
        }
    }

    /// Passes a request to the member, as the service of its node does.
    fn send(
        &self,
        peers: &Peers,
        directory: DirectoryId,
        request: &Request,
    ) -> impl Future<Output = Reply> + Send + use<> {
        let receiver = peers.receiver(None);
        let request = PeerRequest {
            number: 1,
            shard: self.shard,
            sender: request.node(),
            directory: Bytes::copy_from_slice(&directory),
            replied: 0,
            message: Some(request.to_wire(self.shard)),
        };
        async move { receiver.reply(&[], request, None).await }
    }
}

impl Promises {
    /// Checks that the log of a member keeps them. The error describes the first one that is broken.
    pub(crate) fn check(&self, log: &LogDatabase, shard: u32) -> Result<(), String> {
        let vote = log.vote(shard).map_err(|error| error.to_string())?;
        let voted = vote.map(|vote| (vote.leader_id.term, vote.leader_id.node_id));
        let is_kept =
            self.vote.is_none_or(|(term, node)| voted.is_some_and(|voted| voted.0 > term || voted == (term, node)));
        if !is_kept {
            return Err(format!("the member has voted for {:?}, and its log has the vote {voted:?}", self.vote));
        }
        let start = log.last_purged(shard).map_err(|error| error.to_string())?.map_or(0, |purged| purged.index + 1);
        let kept = log.read(shard, start, self.acknowledged(), usize::MAX).map_err(|error| error.to_string())?;
        let kept: Vec<_> = kept.iter().map(|entry| entry.log_id).collect();
        let promised = self.acknowledged.get(start as usize..).unwrap_or_default();
        if kept == promised {
            return Ok(());
        }
        Err(format!("the log has {} entries from {start} on, and {} were acknowledged", kept.len(), promised.len()))
    }
}
