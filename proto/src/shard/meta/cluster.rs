//! Nodes and shards of a cluster.

use std::fmt;

use bytes::Bytes;

use super::error::MetaError;
use crate::formats::wire;
use crate::limits::{NODE_ADDRESS_BYTES_MAX, SHARD_MEMBERS_MAX, ZONE_BYTES_MAX};
use crate::placement::FIRST_DATA_SHARD;

/// ID of a cluster: 16 random bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClusterId(pub u128);

/// Identity of a data directory: 16 random bytes, which are written when the directory is created. A node that lost its
/// data has another identity, although it has the same node ID.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DirectoryId(pub u128);

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Display for DirectoryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl ClusterId {
    pub(super) fn to_wire(self) -> Bytes {
        Bytes::copy_from_slice(&self.0.to_be_bytes())
    }

    pub(super) fn from_wire(from: &[u8]) -> Result<Self, MetaError> {
        let bytes = from.try_into().map_err(|_length| MetaError::Invalid("the ID of a cluster must have 16 bytes"))?;
        Ok(Self(u128::from_be_bytes(bytes)))
    }
}

impl DirectoryId {
    pub(super) fn to_wire(self) -> Bytes {
        Bytes::copy_from_slice(&self.0.to_be_bytes())
    }

    pub(super) fn from_wire(from: &[u8]) -> Result<Self, MetaError> {
        let wrong = |_length| MetaError::Invalid("the identity of a data directory must have 16 bytes");
        Ok(Self(u128::from_be_bytes(from.try_into().map_err(wrong)?)))
    }
}

/// A node of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Number of the node, which is not zero.
    pub id: u64,
    /// Address, `host:port`, at which other nodes and routers reach the node.
    pub address: String,
    /// Name of the zone, such as a rack or a data center; "" if zones are not used.
    pub zone: String,
    /// Identity of the node's data directory.
    pub directory: DirectoryId,
}

impl Node {
    /// Checks the fields.
    ///
    /// # Errors
    /// Returns [`MetaError::Invalid`] for a zero ID, or for an address or a zone that is too long or unprintable.
    pub fn check(&self) -> Result<(), MetaError> {
        let is_printable = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        if self.id == 0 {
            return Err(MetaError::Invalid("the ID of a node must be at least 1"));
        }
        if self.address.is_empty() || self.address.len() > NODE_ADDRESS_BYTES_MAX || !is_printable(&self.address) {
            return Err(MetaError::Invalid(
                "the address of a node must have 1 to 260 printable ASCII characters without spaces: use host:port",
            ));
        }
        if self.zone.len() > ZONE_BYTES_MAX || !is_printable(&self.zone) {
            return Err(MetaError::Invalid(
                "a zone must have at most 64 printable ASCII characters without spaces: use a shorter name",
            ));
        }
        Ok(())
    }

    pub(super) fn to_wire(&self) -> wire::ClusterNode {
        let Self { id, address, zone, directory } = self;
        wire::ClusterNode { id: *id, address: address.clone(), zone: zone.clone(), directory: directory.to_wire() }
    }

    pub(super) fn from_wire(from: wire::ClusterNode) -> Result<Self, MetaError> {
        let wire::ClusterNode { id, address, zone, directory } = from;
        let node = Self { id, address, zone, directory: DirectoryId::from_wire(&directory)? };
        node.check()?;
        Ok(node)
    }
}

/// A member of a shard's Raft group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Member {
    /// ID of the node.
    pub node: u64,
    /// Identity of the data directory with which the node became a member. If the node has another directory now, its
    /// replica of the shard is lost, and must be built again from the other members.
    pub directory: DirectoryId,
}

/// A shard, and the members of its Raft group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Number of the shard, from [`FIRST_DATA_SHARD`] on.
    pub number: u32,
    /// Members of the group, ascending by node.
    pub members: Vec<Member>,
    /// ID of the node that creates the group. It never changes, so that no second group is ever created.
    pub creator: u64,
    /// True if the group exists. The creator then never creates it again, even with an empty data directory.
    pub is_created: bool,
}

impl Shard {
    /// Checks the fields.
    ///
    /// # Errors
    /// Returns [`MetaError::Invalid`] for a number of another group, or for members that are too many, unsorted or
    /// without the creator.
    pub fn check(&self) -> Result<(), MetaError> {
        if self.number < FIRST_DATA_SHARD {
            return Err(MetaError::Invalid("shards must have numbers from 1 on: 0 is the meta group"));
        }
        if self.members.is_empty() || self.members.len() > SHARD_MEMBERS_MAX {
            return Err(MetaError::Invalid("a shard must have 1 to 7 members"));
        }
        if !self.members.is_sorted_by(|a, b| a.node < b.node) {
            return Err(MetaError::Invalid("the members of a shard must be different nodes, ascending by ID"));
        }
        if self.member(self.creator).is_none() {
            return Err(MetaError::Invalid("the creator of a shard must be one of its members"));
        }
        Ok(())
    }

    /// The member on a node; `None` if the node has no replica of the shard.
    #[must_use]
    pub fn member(&self, node: u64) -> Option<&Member> {
        self.members.iter().find(|member| member.node == node)
    }

    pub(super) fn to_wire(&self) -> wire::ShardGroup {
        let Self { number, members, creator, is_created } = self;
        let member = |member: &Member| wire::ShardMember { node: member.node, directory: member.directory.to_wire() };
        wire::ShardGroup {
            number: *number,
            members: members.iter().map(member).collect(),
            creator: *creator,
            is_created: *is_created,
        }
    }

    pub(super) fn from_wire(from: wire::ShardGroup) -> Result<Self, MetaError> {
        let wire::ShardGroup { number, members, creator, is_created } = from;
        let member = |member: wire::ShardMember| {
            Ok(Member { node: member.node, directory: DirectoryId::from_wire(&member.directory)? })
        };
        let members = members.into_iter().map(member).collect::<Result<_, MetaError>>()?;
        let shard = Self { number, members, creator, is_created };
        shard.check()?;
        Ok(shard)
    }
}
