//! Keys of the column family `meta`.

pub(super) const NODE_KEY: &[u8] = b"node";
pub(super) const DIRECTORY_KEY: &[u8] = b"directory";
pub(super) const TIME_KEY: &[u8] = b"time";
pub(super) const SHARDS_KEY: &[u8] = b"shards";

/// Tag of a shard's last vote.
pub(super) const VOTE: u8 = b'v';
/// Tag of the last purged entry of a shard's log.
pub(super) const PURGED: u8 = b'p';

/// Tag of the record of a shard's replica.
pub(super) const REPLICA: u8 = b'r';

/// Returns the key of a shard's record.
pub(super) fn meta_key(shard: u32, tag: u8) -> [u8; 5] {
    let mut key = [tag; 5];
    key[..4].copy_from_slice(&shard.to_be_bytes());
    key
}
