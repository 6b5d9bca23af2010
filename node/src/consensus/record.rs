//! The records that consensus stores on disk: entries, votes, log ids, memberships, the sync mark, accepted time, the
//! number of shards and the identity of the data directory.
//!
//! ```text
//! entry       | version u8 | kind u8 | term u64 | node u64 | payload_len u32 | crc u32 | payload |
//! vote        | version u8 | term u64 | node u64 | committed u8 | crc u32 |
//! log id      | version u8 | term u64 | node u64 | index u64 | crc u32 |
//! mark        | version u8 | last synced write u64 | crc u32 |
//! time        | version u8 | accepted time i64, ns since 1970 | crc u32 |
//! shards      | version u8 | number of shards u16 | crc u32 |
//! membership  | version u8 | is_logged u8 | term u64 | node u64 | index u64 | config | crc u32 |
//! config      | sets u16 | ( voters u16 | node u64 … ) … | nodes u16 | member … |
//! member      | node u64 | directory 16 bytes | address_len u16 | address |
//! directory   | version u8 | identity of the data directory, 16 bytes | crc u32 |
//! ```
//!
//! Integers are big-endian. `crc` is the CRC-32C of the other bytes of the record. The `crc` of an entry also covers
//! the entry's key, so that a value under a wrong key is found. The payload of an entry depends on its kind: 0 nothing,
//! 1 a command of the group, 2 a config, 3 a compressed command of the group ([`payload`](super::payload)). A config
//! lists the sets of voters, several during a change of members, and then all nodes with their addresses and the
//! identities of their data directories. `is_logged` is 0 if no entry set the membership; its term, node and index are
//! then 0, too.
//!
//! Invariant: decoding returns a record exactly as it was written, or an error. No field is used before the checksum is
//! checked.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU16;

use bytes::{Buf as _, BufMut as _, Bytes, TryGetError};
use openraft::EntryPayload;
use openraft::entry::RaftEntry as _;
use openraft::vote::RaftLeaderId as _;

use crate::consensus::member::{DirectoryId, Member, ReplicaRecord};
use crate::consensus::payload::{Form, Payload};
use crate::consensus::types::{LeaderId, LogEntry, LogId, Membership, StoredMembership, Vote};
use crate::error::RecordError;

/// Version of every record in this file.
const VERSION: u8 = 1;
const ENTRY_HEADER_BYTES: usize = 26;
const CRC_BYTES: usize = 4;

/// Key of an entry: its shard and its index, big-endian, so that keys have the order of the log.
pub(super) type EntryKey = [u8; 12];

/// Returns the key of the entry at an index of a shard's log.
pub(super) fn entry_key(shard: u32, index: u64) -> EntryKey {
    let mut key = [0; 12];
    key[..4].copy_from_slice(&shard.to_be_bytes());
    key[4..].copy_from_slice(&index.to_be_bytes());
    key
}

/// Encodes the record of an entry, to be stored under `key`.
pub(super) fn encode_entry(key: &EntryKey, entry: &LogEntry) -> Vec<u8> {
    let (kind, payload) = match &entry.payload {
        EntryPayload::Blank => (0, Bytes::new()),
        EntryPayload::Normal(payload) => match payload.form() {
            Form::Plain => (1, payload.bytes().clone()),
            Form::Compressed => (3, payload.bytes().clone()),
        },
        EntryPayload::Membership(membership) => {
            let mut config = Vec::new();
            put_config(&mut config, membership);
            (2, Bytes::from(config))
        }
    };
    let leader = entry.log_id.leader_id;
    let mut out = Vec::with_capacity(ENTRY_HEADER_BYTES + payload.len());
    out.put_u8(VERSION);
    out.put_u8(kind);
    out.put_u64(leader.term);
    out.put_u64(leader.node_id);
    // Entries are bounded far below 4 GiB when they are proposed; a longer one would not read back.
    out.put_u32(u32::try_from(payload.len()).unwrap_or(u32::MAX));
    out.put_u32(entry_crc(key, &out, &payload));
    out.put_slice(&payload);
    out
}

fn entry_crc(key: &EntryKey, header: &[u8], payload: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c_append(crc32c::crc32c(key), header), payload)
}

/// Decodes the entry that was stored under `key`.
pub(super) fn decode_entry(key: &EntryKey, value: Bytes) -> Result<LogEntry, RecordError> {
    let record = "entry";
    let short = |_short: TryGetError| RecordError::Length { record };
    check_version(record, &value)?;
    let mut header = &value[..value.len().min(ENTRY_HEADER_BYTES)];
    let _version = header.try_get_u8().map_err(short)?;
    let kind = header.try_get_u8().map_err(short)?;
    let term = header.try_get_u64().map_err(short)?;
    let node = header.try_get_u64().map_err(short)?;
    let payload_len = header.try_get_u32().map_err(short)?;
    let crc = header.try_get_u32().map_err(short)?;
    let payload = value.slice(ENTRY_HEADER_BYTES..);
    if payload.len() != payload_len as usize {
        return Err(RecordError::Length { record });
    }
    if entry_crc(key, &value[..ENTRY_HEADER_BYTES - CRC_BYTES], &payload) != crc {
        return Err(RecordError::Checksum { record });
    }
    let payload = match kind {
        0 if payload.is_empty() => EntryPayload::Blank,
        1 => EntryPayload::Normal(Payload::read(Form::Plain, payload)),
        3 => EntryPayload::Normal(Payload::read(Form::Compressed, payload)),
        2 => EntryPayload::Membership(get_config(&mut &payload[..])?),
        _ => return Err(RecordError::Content { record }),
    };
    let mut index = &key[4..];
    let index = index.try_get_u64().map_err(short)?;
    Ok(LogEntry::new(LogId::new(LeaderId::new(term, node), index), payload))
}

pub(super) fn encode_vote(vote: &Vote) -> Vec<u8> {
    let mut out = vec![VERSION];
    out.put_u64(vote.leader_id.term);
    out.put_u64(vote.leader_id.node_id);
    out.put_u8(u8::from(vote.committed));
    seal(out)
}

pub(super) fn decode_vote(value: &[u8]) -> Result<Vote, RecordError> {
    let record = "vote";
    let short = |_short: TryGetError| RecordError::Length { record };
    let mut rest = unseal(record, value)?;
    let leader_id = LeaderId::new(rest.try_get_u64().map_err(short)?, rest.try_get_u64().map_err(short)?);
    let committed = rest.try_get_u8().map_err(short)?;
    if committed > 1 || !rest.is_empty() {
        return Err(RecordError::Content { record });
    }
    Ok(Vote { leader_id, committed: committed == 1 })
}

pub(super) fn encode_log_id(log_id: &LogId) -> Vec<u8> {
    let mut out = vec![VERSION];
    put_log_id(&mut out, log_id);
    seal(out)
}

pub(super) fn decode_log_id(value: &[u8]) -> Result<LogId, RecordError> {
    let record = "log id";
    let mut rest = unseal(record, value)?;
    let log_id = get_log_id(record, &mut rest)?;
    if rest.is_empty() { Ok(log_id) } else { Err(RecordError::Length { record }) }
}

pub(super) fn encode_mark(synced: u64) -> Vec<u8> {
    let mut out = vec![VERSION];
    out.put_u64(synced);
    seal(out)
}

pub(super) fn decode_mark(value: &[u8]) -> Result<u64, RecordError> {
    let record = "raft/SYNCED";
    let rest = unseal(record, value)?;
    Ok(u64::from_be_bytes(rest.try_into().map_err(|_length| RecordError::Length { record })?))
}

pub(super) fn encode_time(accepted_ns: i64) -> Vec<u8> {
    let mut out = vec![VERSION];
    out.put_i64(accepted_ns);
    seal(out)
}

pub(super) fn decode_time(value: &[u8]) -> Result<i64, RecordError> {
    let record = "accepted time";
    let mut rest = unseal(record, value)?;
    match rest.try_get_i64() {
        Ok(accepted_ns) if rest.is_empty() => Ok(accepted_ns),
        _ => Err(RecordError::Length { record }),
    }
}

pub(super) fn encode_shards(shards: NonZeroU16) -> Vec<u8> {
    let mut out = vec![VERSION];
    out.put_u16(shards.get());
    seal(out)
}

pub(super) fn decode_shards(value: &[u8]) -> Result<NonZeroU16, RecordError> {
    let record = "number of shards";
    let rest = unseal(record, value)?;
    let shards = u16::from_be_bytes(rest.try_into().map_err(|_length| RecordError::Length { record })?);
    NonZeroU16::new(shards).ok_or(RecordError::Content { record })
}

pub(super) fn encode_directory(directory: &DirectoryId) -> Vec<u8> {
    let mut out = vec![VERSION];
    out.put_slice(directory);
    seal(out)
}

pub(super) fn decode_directory(value: &[u8]) -> Result<DirectoryId, RecordError> {
    let record = "identity of the data directory";
    unseal(record, value)?.try_into().map_err(|_length| RecordError::Length { record })
}

pub(super) fn encode_replica(replica: &ReplicaRecord) -> Vec<u8> {
    let mut out = vec![VERSION];
    out.put_u8(u8::from(replica.identity.is_some()));
    out.put_slice(&replica.identity.unwrap_or_default());
    out.put_u64(replica.revision);
    seal(out)
}

pub(super) fn decode_replica(value: &[u8]) -> Result<ReplicaRecord, RecordError> {
    let record = "identity of a replica";
    let short = |_short: TryGetError| RecordError::Length { record };
    let mut rest = unseal(record, value)?;
    let is_held = rest.try_get_u8().map_err(short)?;
    let mut identity = DirectoryId::default();
    rest.try_copy_to_slice(&mut identity).map_err(short)?;
    let revision = rest.try_get_u64().map_err(short)?;
    match (is_held, rest.is_empty()) {
        (0, true) if identity == DirectoryId::default() => Ok(ReplicaRecord { identity: None, revision }),
        (1, true) => Ok(ReplicaRecord { identity: Some(identity), revision }),
        _ => Err(RecordError::Content { record }),
    }
}

/// Encodes a membership and the log id of the entry that set it.
pub(super) fn encode_membership(membership: &StoredMembership) -> Vec<u8> {
    let mut out = vec![VERSION];
    out.put_u8(u8::from(membership.log_id().is_some()));
    put_log_id(&mut out, &membership.log_id().unwrap_or_else(|| LogId::new(LeaderId::new(0, 0), 0)));
    put_config(&mut out, membership.membership());
    seal(out)
}

pub(super) fn decode_membership(value: &[u8]) -> Result<StoredMembership, RecordError> {
    let record = "membership";
    let mut rest = unseal(record, value)?;
    let is_logged = rest.try_get_u8().map_err(|_short| RecordError::Length { record })?;
    let log_id = get_log_id(record, &mut rest)?;
    let membership = get_config(&mut rest)?;
    match is_logged {
        0 => Ok(StoredMembership::new(None, membership)),
        1 => Ok(StoredMembership::new(Some(log_id), membership)),
        _ => Err(RecordError::Content { record }),
    }
}

fn put_log_id(out: &mut Vec<u8>, log_id: &LogId) {
    out.put_u64(log_id.leader_id.term);
    out.put_u64(log_id.leader_id.node_id);
    out.put_u64(log_id.index);
}

fn get_log_id(record: &'static str, rest: &mut &[u8]) -> Result<LogId, RecordError> {
    let short = |_short: TryGetError| RecordError::Length { record };
    let leader = LeaderId::new(rest.try_get_u64().map_err(short)?, rest.try_get_u64().map_err(short)?);
    Ok(LogId::new(leader, rest.try_get_u64().map_err(short)?))
}

fn put_config(out: &mut Vec<u8>, membership: &Membership) {
    // An administrator proposes members one by one, so there are never 65,536 of them. No address has 64 KiB.
    let length = |length: usize| u16::try_from(length).unwrap_or(u16::MAX);
    let sets = membership.get_joint_config();
    out.put_u16(length(sets.len()));
    for set in sets {
        out.put_u16(length(set.len()));
        set.iter().for_each(|&node| out.put_u64(node));
    }
    out.put_u16(length(membership.nodes().count()));
    for (&node, Member { address, directory }) in membership.nodes() {
        out.put_u64(node);
        out.put_slice(directory);
        out.put_u16(length(address.len()));
        out.put_slice(address.as_bytes());
    }
}

fn get_config(rest: &mut &[u8]) -> Result<Membership, RecordError> {
    let record = "membership";
    let short = |_short: TryGetError| RecordError::Length { record };
    let mut sets = Vec::new();
    for _ in 0..rest.try_get_u16().map_err(short)? {
        let mut set = BTreeSet::new();
        for _ in 0..rest.try_get_u16().map_err(short)? {
            set.insert(rest.try_get_u64().map_err(short)?);
        }
        sets.push(set);
    }
    let mut nodes = BTreeMap::new();
    for _ in 0..rest.try_get_u16().map_err(short)? {
        let node = rest.try_get_u64().map_err(short)?;
        let (&directory, remaining) = rest.split_first_chunk().ok_or(RecordError::Length { record })?;
        *rest = remaining;
        let address_len = usize::from(rest.try_get_u16().map_err(short)?);
        let (address, remaining) = rest.split_at_checked(address_len).ok_or(RecordError::Length { record })?;
        *rest = remaining;
        let address = std::str::from_utf8(address).map_err(|_not_utf8| RecordError::Content { record })?;
        nodes.insert(node, Member { address: address.to_owned(), directory });
    }
    if !rest.is_empty() {
        return Err(RecordError::Length { record });
    }
    Membership::new(sets, nodes).map_err(|_inconsistent| RecordError::Content { record })
}

/// Appends the checksum to a record.
fn seal(mut out: Vec<u8>) -> Vec<u8> {
    let crc = crc32c::crc32c(&out);
    out.put_u32(crc);
    out
}

/// Checks the version and the checksum of a record. Returns the bytes between them.
fn unseal<'a>(record: &'static str, value: &'a [u8]) -> Result<&'a [u8], RecordError> {
    check_version(record, value)?;
    let (body, crc) = value.split_last_chunk::<CRC_BYTES>().ok_or(RecordError::Length { record })?;
    if crc32c::crc32c(body) != u32::from_be_bytes(*crc) {
        return Err(RecordError::Checksum { record });
    }
    body.get(1..).ok_or(RecordError::Length { record })
}

fn check_version(record: &'static str, value: &[u8]) -> Result<(), RecordError> {
    match value.first() {
        Some(&VERSION) => Ok(()),
        Some(&found) => Err(RecordError::Version { record, found, expected: VERSION }),
        None => Err(RecordError::Length { record }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log_id(index: u64) -> LogId {
        LogId::new(LeaderId::new(7, 3), index)
    }

    fn membership() -> Membership {
        let member = |address: &str, byte: u8| Member { address: address.to_owned(), directory: [byte; 16] };
        let nodes = BTreeMap::from([(1, member("a:1", 7)), (2, member("", 0)), (9, member("learner:4041", 255))]);
        Membership::new(vec![BTreeSet::from([1, 2]), BTreeSet::from([2])], nodes).unwrap()
    }

    fn entries() -> Vec<LogEntry> {
        let payloads = [
            EntryPayload::Blank,
            EntryPayload::Normal(Payload::read(Form::Plain, Bytes::from_static(b"some bytes"))),
            EntryPayload::Normal(Payload::read(Form::Compressed, Bytes::from_static(b"some bytes"))),
            EntryPayload::Membership(membership()),
        ];
        payloads.into_iter().map(|payload| LogEntry::new(log_id(u64::MAX - 1), payload)).collect()
    }

    /// Returns every value that differs from `value` in one bit, and every shorter prefix of `value`.
    fn damaged(value: &[u8]) -> impl Iterator<Item = Vec<u8>> {
        let flipped = (0..value.len() * 8).map(|bit| {
            let mut damaged = value.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            damaged
        });
        flipped.chain((0..value.len()).map(|length| value[..length].to_vec()))
    }

    #[test]
    fn every_entry_reads_back_as_it_was_written() {
        let key = entry_key(1, u64::MAX - 1);
        for entry in entries() {
            assert_eq!(decode_entry(&key, encode_entry(&key, &entry).into()).unwrap(), entry);
        }
    }

    #[test]
    fn every_flipped_bit_and_every_prefix_of_an_entry_is_detected() {
        let key = entry_key(1, u64::MAX - 1);
        for entry in entries() {
            for damaged in damaged(&encode_entry(&key, &entry)) {
                assert!(decode_entry(&key, damaged.clone().into()).is_err(), "{entry:?} {damaged:?}");
            }
        }
    }

    #[test]
    fn an_entry_under_another_key_is_detected() {
        let key = entry_key(1, u64::MAX - 1);
        let value = Bytes::from(encode_entry(&key, &entries()[1]));
        for other in [entry_key(1, 5), entry_key(2, u64::MAX - 1)] {
            assert!(matches!(decode_entry(&other, value.clone()), Err(RecordError::Checksum { .. })));
        }
    }

    #[test]
    fn other_records_read_back_and_every_damage_is_detected() {
        assert_eq!(decode_time(&encode_time(-7)).unwrap(), -7);
        assert!(damaged(&encode_time(i64::MAX)).all(|value| decode_time(&value).is_err()));
        let shards = NonZeroU16::new(64).unwrap();
        assert_eq!(decode_shards(&encode_shards(shards)).unwrap(), shards);
        assert!(damaged(&encode_shards(shards)).all(|value| decode_shards(&value).is_err()));
        assert_eq!(decode_directory(&encode_directory(&[7; 16])).unwrap(), [7; 16]);
        assert!(damaged(&encode_directory(&[7; 16])).all(|value| decode_directory(&value).is_err()));
        for identity in [None, Some([7; 16])] {
            let replica = ReplicaRecord { identity, revision: u64::MAX };
            assert_eq!(decode_replica(&encode_replica(&replica)).unwrap(), replica);
            assert!(damaged(&encode_replica(&replica)).all(|value| decode_replica(&value).is_err()));
        }
        assert_eq!(decode_mark(&encode_mark(9)).unwrap(), 9);
        assert!(damaged(&encode_mark(9)).all(|value| decode_mark(&value).is_err()));
        let vote = Vote::new_committed(u64::MAX, 5);
        assert_eq!(decode_vote(&encode_vote(&vote)).unwrap(), vote);
        assert!(damaged(&encode_vote(&vote)).all(|value| decode_vote(&value).is_err()));
        assert_eq!(decode_log_id(&encode_log_id(&log_id(4))).unwrap(), log_id(4));
        assert!(damaged(&encode_log_id(&log_id(4))).all(|value| decode_log_id(&value).is_err()));
        for logged_at in [None, Some(log_id(11))] {
            let stored = StoredMembership::new(logged_at, membership());
            assert_eq!(decode_membership(&encode_membership(&stored)).unwrap(), stored);
            assert!(damaged(&encode_membership(&stored)).all(|value| decode_membership(&value).is_err()));
        }
    }
}
