//! The messages of Raft, converted to and from `varve.v1`.
//!
//! Invariant: a decoded message satisfies what openraft requires of a message, for example that entries have
//! consecutive indexes. Openraft panics on some messages that it does not expect.

use bytes::Bytes;
use openraft::EntryPayload;
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, TransferLeaderError, TransferLeaderRequest, TransferLeaderResponse,
    VoteRequest, VoteResponse,
};
use openraft::vote::RaftLeaderId as _;
use proto::wire;
use proto::wire::append_reply::Result as AppendResult;
use proto::wire::peer_reply::Reply as WireReply;
use proto::wire::peer_request::Message as WireMessage;
use proto::wire::transfer_reply::Result as TransferResult;

use crate::consensus::record::{self, entry_key};
use crate::consensus::types::{LeaderId, LogEntry, LogId, Types, Vote};
use crate::error::RecordError;

/// Largest term and largest index of a message. No group comes near: a new term every microsecond would take more than
/// two thousand years. Larger numbers would overflow when they are increased.
const NUMBER_MAX: u64 = 1 << 56;

/// A message that no peer sends in this version.
#[derive(Debug, thiserror::Error)]
pub(super) enum MessageError {
    #[error("the message has no {0}")]
    Missing(&'static str),
    #[error("{what} is {value}, which is more than {NUMBER_MAX}")]
    TooLarge { what: &'static str, value: u64 },
    #[error("the vote of a leader must be committed, and the vote of a candidate must not")]
    Committed,
    #[error("the term {found} of an entry is not in the range from {min} to {max}")]
    Term { found: u64, min: u64, max: u64 },
    #[error("an entry sets a membership without voters")]
    NoVoters,
    #[error("entry {index}: {source}")]
    Entry { index: u64, source: RecordError },
    #[error("the first entry of the log cannot be in conflict with the previous one")]
    Conflict,
    /// The peer did not process the request.
    #[error("{0}")]
    Refused(String),
}

/// A request to a member of a group.
#[derive(Clone, Debug)]
pub(super) enum Request {
    Append(AppendEntriesRequest<Types>),
    Vote(VoteRequest<Types>),
    PreVote(VoteRequest<Types>),
    TransferLeader(TransferLeaderRequest<Types>),
}

impl Request {
    /// Returns the node whose vote the message has: the leader or the candidate that sends it.
    pub(super) fn node(&self) -> u64 {
        let vote = match self {
            Self::Append(request) => &request.vote,
            Self::Vote(request) | Self::PreVote(request) => &request.vote,
            Self::TransferLeader(request) => request.from_leader(),
        };
        vote.leader_id.node_id
    }

    /// Encodes the message. Entries keep the bytes that the leader encoded.
    pub(super) fn to_wire(&self, shard: u32) -> WireMessage {
        match self {
            Self::Append(request) => WireMessage::Append(wire::AppendEntries {
                vote: Some(vote_to_wire(&request.vote)),
                previous: request.prev_log_id.as_ref().map(position_to_wire),
                committed: request.leader_commit.as_ref().map(position_to_wire),
                entries: request.entries.iter().map(|entry| entry_to_wire(shard, entry)).collect(),
            }),
            Self::Vote(request) => WireMessage::Vote(vote_request_to_wire(request)),
            Self::PreVote(request) => WireMessage::PreVote(vote_request_to_wire(request)),
            Self::TransferLeader(request) => WireMessage::TransferLeader(wire::TransferLeader {
                leader: Some(vote_to_wire(request.from_leader())),
                to: *request.to_node_id(),
                last: request.last_log_id().map(position_to_wire),
            }),
        }
    }

    /// Decodes and checks a message.
    pub(super) fn from_wire(shard: u32, message: WireMessage) -> Result<Self, MessageError> {
        Ok(match message {
            WireMessage::Append(message) => Self::Append(append_from_wire(shard, message)?),
            WireMessage::Vote(message) => Self::Vote(vote_request_from_wire(message)?),
            WireMessage::PreVote(message) => Self::PreVote(vote_request_from_wire(message)?),
            WireMessage::TransferLeader(wire::TransferLeader { leader, to, last }) => {
                let leader = vote(leader, true)?;
                Self::TransferLeader(TransferLeaderRequest::new(leader, to, optional_position(last)?))
            }
        })
    }
}

fn entry_to_wire(shard: u32, entry: &LogEntry) -> Bytes {
    record::encode_entry(&entry_key(shard, entry.log_id.index), entry).into()
}

fn append_from_wire(shard: u32, message: wire::AppendEntries) -> Result<AppendEntriesRequest<Types>, MessageError> {
    let vote = vote(message.vote, true)?;
    let prev_log_id = optional_position(message.previous)?;
    let leader_commit = optional_position(message.committed)?;
    let mut term_min = prev_log_id.as_ref().map_or(0, |previous| previous.leader_id.term);
    let first = prev_log_id.as_ref().map_or(0, |previous| previous.index + 1);
    // Grows with the entries that can be decoded: an empty entry takes two bytes in the message.
    let mut entries = Vec::new();
    for (index, record) in (first..).zip(message.entries) {
        let entry = record::decode_entry(&entry_key(shard, index), record)
            .map_err(|source| MessageError::Entry { index, source })?;
        let found = entry.log_id.leader_id.term;
        if found < term_min || found > vote.leader_id.term {
            return Err(MessageError::Term { found, min: term_min, max: vote.leader_id.term });
        }
        if matches!(&entry.payload, EntryPayload::Membership(members) if members.get_joint_config().is_empty()) {
            return Err(MessageError::NoVoters);
        }
        term_min = found;
        entries.push(entry);
    }
    Ok(AppendEntriesRequest { vote, prev_log_id, entries, leader_commit })
}

/// Encodes the reply to an append.
pub(super) fn append_reply(reply: AppendEntriesResponse<Types>) -> WireReply {
    let result = match reply {
        AppendEntriesResponse::Success => AppendResult::Success(wire::Done {}),
        AppendEntriesResponse::Conflict => AppendResult::Conflict(wire::Done {}),
        AppendEntriesResponse::HigherVote(vote) => AppendResult::HigherVote(vote_to_wire(&vote)),
        // Only a transport may return this, and this transport sends a request whole or not at all.
        AppendEntriesResponse::PartialSuccess(_) => return refusal(&"only a part of the entries was appended"),
    };
    WireReply::Append(wire::AppendReply { result: Some(result) })
}

/// Decodes the reply to an append whose entries follow `previous`.
pub(super) fn append_reply_from_wire(
    reply: Option<WireReply>,
    previous: Option<&LogId>,
) -> Result<AppendEntriesResponse<Types>, MessageError> {
    let reply = match reply {
        Some(WireReply::Append(reply)) => reply,
        other => return Err(unexpected(other)),
    };
    match reply.result.ok_or(MessageError::Missing("result"))? {
        AppendResult::Success(wire::Done {}) => Ok(AppendEntriesResponse::Success),
        AppendResult::Conflict(wire::Done {}) if previous.is_none() => Err(MessageError::Conflict),
        AppendResult::Conflict(wire::Done {}) => Ok(AppendEntriesResponse::Conflict),
        AppendResult::HigherVote(vote) => Ok(AppendEntriesResponse::HigherVote(any_vote(Some(vote))?)),
    }
}

/// Encodes the reply to a request for a vote.
pub(super) fn vote_reply(reply: &VoteResponse<Types>) -> WireReply {
    WireReply::Vote(wire::VoteReply {
        vote: Some(vote_to_wire(&reply.vote)),
        granted: reply.vote_granted,
        last: reply.last_log_id.as_ref().map(position_to_wire),
    })
}

/// Decodes the reply to a request for a vote.
pub(super) fn vote_reply_from_wire(reply: Option<WireReply>) -> Result<VoteResponse<Types>, MessageError> {
    match reply {
        Some(WireReply::Vote(wire::VoteReply { vote, granted, last })) => {
            Ok(VoteResponse::new(any_vote(vote)?, optional_position(last)?, granted))
        }
        other => Err(unexpected(other)),
    }
}

/// Encodes the reply to a transfer of leadership.
pub(super) fn transfer_reply(reply: TransferLeaderResponse<Types>) -> WireReply {
    let result = match reply {
        Ok(()) => TransferResult::Accepted(wire::Done {}),
        Err(TransferLeaderError::VoteChanged { actual, .. }) => TransferResult::OtherVote(vote_to_wire(&actual)),
        Err(TransferLeaderError::LogNotFlushed { actual, .. }) => {
            TransferResult::LogNotSynced(wire::LogNotSynced { last: actual.as_ref().map(position_to_wire) })
        }
    };
    WireReply::TransferLeader(wire::TransferReply { result: Some(result) })
}

/// Decodes the reply to a transfer of leadership.
pub(super) fn transfer_reply_from_wire(
    reply: Option<WireReply>,
    request: &TransferLeaderRequest<Types>,
) -> Result<TransferLeaderResponse<Types>, MessageError> {
    let reply = match reply {
        Some(WireReply::TransferLeader(reply)) => reply,
        other => return Err(unexpected(other)),
    };
    Ok(match reply.result.ok_or(MessageError::Missing("result"))? {
        TransferResult::Accepted(wire::Done {}) => Ok(()),
        TransferResult::OtherVote(vote) => {
            let actual = any_vote(Some(vote))?;
            Err(TransferLeaderError::VoteChanged { expected: *request.from_leader(), actual })
        }
        TransferResult::LogNotSynced(wire::LogNotSynced { last }) => {
            let expected = request.last_log_id().copied();
            Err(TransferLeaderError::LogNotFlushed { expected, actual: optional_position(last)? })
        }
    })
}

/// Encodes a refusal: the request was not processed.
pub(super) fn refusal(text: &dyn std::fmt::Display) -> WireReply {
    WireReply::Refusal(wire::PeerRefusal { text: text.to_string() })
}

fn unexpected(reply: Option<WireReply>) -> MessageError {
    match reply {
        Some(WireReply::Refusal(wire::PeerRefusal { text })) => MessageError::Refused(text),
        _ => MessageError::Missing("reply of the kind that was requested"),
    }
}

fn vote_request_to_wire(request: &VoteRequest<Types>) -> wire::RequestVote {
    wire::RequestVote {
        vote: Some(vote_to_wire(&request.vote)),
        last: request.last_log_id.as_ref().map(position_to_wire),
        leadership_transfer: request.leadership_transfer,
    }
}

fn vote_request_from_wire(message: wire::RequestVote) -> Result<VoteRequest<Types>, MessageError> {
    let wire::RequestVote { vote: wire, last, leadership_transfer } = message;
    let request = VoteRequest::new(vote(wire, false)?, optional_position(last)?);
    Ok(VoteRequest { leadership_transfer, ..request })
}

fn vote_to_wire(vote: &Vote) -> wire::Vote {
    wire::Vote { term: vote.leader_id.term, node: vote.leader_id.node_id, committed: vote.committed }
}

fn vote(vote: Option<wire::Vote>, committed: bool) -> Result<Vote, MessageError> {
    let vote = any_vote(vote)?;
    if vote.committed == committed { Ok(vote) } else { Err(MessageError::Committed) }
}

fn any_vote(vote: Option<wire::Vote>) -> Result<Vote, MessageError> {
    let wire::Vote { term, node, committed } = vote.ok_or(MessageError::Missing("vote"))?;
    Ok(Vote { leader_id: leader(term, node)?, committed })
}

fn leader(term: u64, node: u64) -> Result<LeaderId, MessageError> {
    Ok(LeaderId::new(within("a term", term)?, node))
}

fn within(what: &'static str, value: u64) -> Result<u64, MessageError> {
    if value > NUMBER_MAX { Err(MessageError::TooLarge { what, value }) } else { Ok(value) }
}

fn position_to_wire(position: &LogId) -> wire::LogPosition {
    wire::LogPosition { term: position.leader_id.term, node: position.leader_id.node_id, index: position.index }
}

fn optional_position(position: Option<wire::LogPosition>) -> Result<Option<LogId>, MessageError> {
    let from_wire =
        |wire::LogPosition { term, node, index }| Ok(LogId::new(leader(term, node)?, within("an index", index)?));
    position.map(from_wire).transpose()
}

#[cfg(test)]
mod tests;
