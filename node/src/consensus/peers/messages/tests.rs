//! Tests that messages keep their content on the way, and that hostile messages are refused.

use openraft::entry::RaftEntry as _;
use proptest::prelude::*;
use prost::Message as _;

use super::*;
use crate::consensus::member::Member;
use crate::consensus::payload::{Form, Payload};
use crate::consensus::types::Membership;

const SHARD: u32 = 3;

fn log_id(term: u64, node: u64, index: u64) -> LogId {
    LogId::new(LeaderId::new(term, node), index)
}

fn positions() -> impl Strategy<Value = Option<LogId>> {
    prop::option::of(
        (0..=NUMBER_MAX, any::<u64>(), 0..=NUMBER_MAX).prop_map(|(term, node, index)| log_id(term, node, index)),
    )
}

fn votes(committed: bool) -> impl Strategy<Value = Vote> {
    (0..=NUMBER_MAX, any::<u64>())
        .prop_map(move |(term, node)| Vote { leader_id: LeaderId::new(term, node), committed })
}

fn payloads() -> impl Strategy<Value = EntryPayload<Payload, u64, Member>> {
    let membership =
        prop::collection::btree_map(any::<u64>(), (".{0,20}", any::<[u8; 16]>()), 1..4).prop_map(|nodes| {
            let voters = nodes.keys().copied().collect();
            let member = |(node, (address, directory))| (node, Member { address, directory });
            Membership::new(vec![voters], nodes.into_iter().map(member).collect::<std::collections::BTreeMap<_, _>>())
                .unwrap()
        });
    prop_oneof![
        Just(EntryPayload::Blank),
        (prop_oneof![Just(Form::Plain), Just(Form::Compressed)], prop::collection::vec(any::<u8>(), 0..100))
            .prop_map(|(form, bytes)| EntryPayload::Normal(Payload::proposed(form, bytes.into(), "decoded"))),
        membership.prop_map(EntryPayload::Membership),
    ]
}

fn appends() -> impl Strategy<Value = AppendEntriesRequest<Types>> {
    let entries = prop::collection::vec((payloads(), 0..3_u64), 0..8);
    (positions(), entries, positions(), 0..9_u64, any::<u64>()).prop_map(
        |(previous, parts, leader_commit, more, node)| {
            let mut term = previous.map_or(0, |previous| previous.leader_id.term);
            let first = previous.map_or(0, |previous| previous.index + 1);
            let mut entries = Vec::new();
            for (index, (payload, terms)) in (first..).zip(parts) {
                term = NUMBER_MAX.min(term + terms);
                entries.push(LogEntry::new(log_id(term, node, index), payload));
            }
            let leader_id = LeaderId::new(NUMBER_MAX.min(term + more), node);
            AppendEntriesRequest {
                vote: Vote { leader_id, committed: true },
                prev_log_id: previous,
                entries,
                leader_commit,
            }
        },
    )
}

/// Returns a request after its way over the network.
fn sent(request: &Request) -> Result<Request, MessageError> {
    let request = wire::PeerRequest { message: Some(request.to_wire(SHARD)), ..wire::PeerRequest::default() };
    let received = wire::PeerRequest::decode(Bytes::from(request.encode_to_vec())).unwrap();
    Request::from_wire(SHARD, received.message.unwrap())
}

/// Returns a reply after its way over the network.
fn replied(reply: WireReply) -> Option<WireReply> {
    let reply = wire::PeerReply { number: 1, reply: Some(reply) };
    wire::PeerReply::decode(Bytes::from(reply.encode_to_vec())).unwrap().reply
}

proptest! {
    #[test]
    fn every_append_arrives_as_it_was_sent(request in appends()) {
        let Ok(Request::Append(received)) = sent(&Request::Append(request.clone())) else { panic!("refused") };
        prop_assert_eq!(received.vote, request.vote);
        prop_assert_eq!(received.prev_log_id, request.prev_log_id);
        prop_assert_eq!(received.leader_commit, request.leader_commit);
        prop_assert_eq!(received.entries, request.entries);
    }

    #[test]
    fn every_request_for_a_vote_arrives_as_it_was_sent(
        vote in votes(false), last in positions(), leadership_transfer in any::<bool>()
    ) {
        let request = VoteRequest { vote, last_log_id: last, leadership_transfer };
        let Ok(Request::Vote(received)) = sent(&Request::Vote(request.clone())) else { panic!("refused") };
        prop_assert_eq!(&received, &request);
        let Ok(Request::PreVote(received)) = sent(&Request::PreVote(request.clone())) else { panic!("refused") };
        prop_assert_eq!(&received, &request);
    }

    #[test]
    fn every_transfer_of_leadership_arrives_as_it_was_sent(
        leader in votes(true), to in any::<u64>(), last in positions(), other in votes(false)
    ) {
        let request = TransferLeaderRequest::new(leader, to, last);
        let Ok(Request::TransferLeader(received)) = sent(&Request::TransferLeader(request.clone())) else {
            panic!("refused")
        };
        prop_assert_eq!(&received, &request);
        let replies = [
            Ok(()),
            Err(TransferLeaderError::VoteChanged { expected: leader, actual: other }),
            Err(TransferLeaderError::LogNotFlushed { expected: last, actual: None }),
        ];
        for reply in replies {
            let received = transfer_reply_from_wire(replied(transfer_reply(reply.clone())), &request);
            prop_assert_eq!(received.unwrap(), reply);
        }
    }

    #[test]
    fn every_reply_arrives_as_it_was_sent(vote in votes(true), last in positions(), granted in any::<bool>()) {
        let reply = VoteResponse::<Types>::new(vote, last, granted);
        prop_assert_eq!(vote_reply_from_wire(replied(vote_reply(&reply))).unwrap(), reply);
        let previous = log_id(1, 1, 1);
        let replies =
            [AppendEntriesResponse::Success, AppendEntriesResponse::Conflict, AppendEntriesResponse::HigherVote(vote)];
        for reply in replies {
            let received = append_reply_from_wire(replied(append_reply(reply.clone())), Some(&previous));
            prop_assert_eq!(received.unwrap(), reply);
        }
    }

    #[test]
    fn a_damaged_request_is_refused_or_valid(request in appends(), at in any::<prop::sample::Index>(), bit in 0..8_u8) {
        let request = wire::PeerRequest {
            message: Some(Request::Append(request).to_wire(SHARD)),
            ..wire::PeerRequest::default()
        };
        let mut bytes = request.encode_to_vec();
        let at = at.index(bytes.len());
        bytes[at] ^= 1_u8 << bit;
        let Ok(damaged) = wire::PeerRequest::decode(Bytes::from(bytes)) else { return Ok(()) };
        if let Some(Ok(Request::Append(append))) = damaged.message.map(|message| Request::from_wire(SHARD, message)) {
            let first = append.prev_log_id.map_or(0, |previous| previous.index + 1);
            for (index, entry) in (first..).zip(&append.entries) {
                prop_assert_eq!(entry.log_id.index, index);
                prop_assert!(entry.log_id.leader_id.term <= append.vote.leader_id.term);
            }
        }
    }
}

/// Returns an append of one entry of term 5 after an entry of term 4, with a vote of term 6.
fn append() -> wire::AppendEntries {
    let entry = LogEntry::new(log_id(5, 1, 8), EntryPayload::Blank);
    let vote = Vote { leader_id: LeaderId::new(6, 1), committed: true };
    let request =
        AppendEntriesRequest { vote, prev_log_id: Some(log_id(4, 1, 7)), entries: vec![entry], leader_commit: None };
    match Request::Append(request).to_wire(SHARD) {
        WireMessage::Append(append) => append,
        other => panic!("{other:?}"),
    }
}

#[test]
fn appends_that_openraft_does_not_expect_are_refused() {
    let refused = |change: &dyn Fn(&mut wire::AppendEntries)| {
        let mut message = append();
        change(&mut message);
        append_from_wire(SHARD, message).unwrap_err().to_string()
    };
    append_from_wire(SHARD, append()).unwrap();
    let position = |term, index| Some(wire::LogPosition { term, node: 1, index });
    let vote = |term, committed| Some(wire::Vote { term, node: 1, committed });
    assert_eq!(refused(&|message| message.vote = None), "the message has no vote");
    assert!(refused(&|message| message.vote = vote(6, false)).contains("must be committed"));
    assert!(refused(&|message| message.vote = vote(4, true)).contains("not in the range from 4 to 4"));
    assert!(refused(&|message| message.vote = vote(u64::MAX, true)).contains("a term is 18446744073709551615"));
    assert!(refused(&|message| message.previous = position(6, 7)).contains("not in the range from 6 to 6"));
    assert!(refused(&|message| message.previous = position(4, u64::MAX)).contains("an index is"));
    assert!(refused(&|message| message.previous = position(4, 8)).contains("entry 9: entry: its checksum is wrong"));
    assert!(refused(&|message| message.previous = None).contains("entry 0"));
    assert!(refused(&|message| message.entries.push(message.entries[0].clone())).contains("entry 9"));
    assert!(refused(&|message| message.entries[0] = Bytes::new()).contains("its length is wrong"));
    let no_voters = LogEntry::new(log_id(5, 1, 8), EntryPayload::Membership(Membership::default()));
    let no_voters = entry_to_wire(SHARD, &no_voters);
    assert!(refused(&|message| message.entries[0] = no_voters.clone()).contains("without voters"));
    assert!(append_from_wire(SHARD + 1, append()).is_err(), "the entry is of another shard");
}

#[test]
fn replies_that_openraft_does_not_expect_are_refused() {
    let conflict = || Some(append_reply(AppendEntriesResponse::Conflict));
    append_reply_from_wire(conflict(), Some(&log_id(1, 1, 1))).unwrap();
    let error = append_reply_from_wire(conflict(), None).unwrap_err();
    assert!(matches!(error, MessageError::Conflict), "{error}");
    let error = vote_reply_from_wire(conflict()).unwrap_err();
    assert!(error.to_string().contains("reply of the kind"), "{error}");
    assert!(vote_reply_from_wire(None).is_err());
    assert!(append_reply_from_wire(Some(WireReply::Append(wire::AppendReply { result: None })), None).is_err());
    let error = append_reply_from_wire(Some(refusal(&"no")), None).unwrap_err();
    assert_eq!(error.to_string(), "no");
}

#[test]
fn a_candidate_must_not_claim_a_committed_vote() {
    let vote = Some(wire::Vote { term: 1, node: 1, committed: true });
    let message = WireMessage::Vote(wire::RequestVote { vote, ..wire::RequestVote::default() });
    assert!(matches!(Request::from_wire(SHARD, message), Err(MessageError::Committed)));
}
