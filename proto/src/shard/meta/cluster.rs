//! Nodes and shards of a cluster.

use std::fmt;

use bytes::Bytes;

use super::error::MetaError;
use crate::formats::wire;
use crate::limits::{NODE_ADDRESS_BYTES_MAX, SHARD_MEMBERS_MAX, ZONE_BYTES_MAX};
use crate::placement::FIRST_DATA_SHARD;

/// Key of the gRPC metadata in which a router names its cluster, as 32 hexadecimal digits. A node of another cluster
/// refuses the request.
pub const CLUSTER_METADATA: &str = "varve-cluster";

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
    /// Returns the ID as the bytes of a message.
    #[must_use]
    pub fn to_wire(self) -> Bytes {
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
    /// Identity of the node's replica of the shard. It is the identity of the data directory with which the node became
    /// a member, or a random one if the directory may have held another replica of the shard before.
    pub directory: DirectoryId,
}

impl Member {
    pub(super) fn to_wire(self) -> wire::ShardMember {
        wire::ShardMember { node: self.node, directory: self.directory.to_wire() }
    }

    pub(super) fn from_wire(from: &wire::ShardMember) -> Result<Self, MetaError> {
        Ok(Self { node: from.node, directory: DirectoryId::from_wire(&from.directory)? })
    }
}

pub(super) fn members_to_wire(members: &[Member]) -> Vec<wire::ShardMember> {
    members.iter().map(|member| member.to_wire()).collect()
}

pub(super) fn members_from_wire(from: Vec<wire::ShardMember>) -> Result<Vec<Member>, MetaError> {
    if from.len() > SHARD_MEMBERS_MAX {
        return Err(MetaError::Invalid("a shard must have 1 to 7 members"));
    }
    from.iter().map(Member::from_wire).collect()
}

/// A shard, and the members of its Raft group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Number of the shard, from [`FIRST_DATA_SHARD`] on.
    pub number: u32,
    /// Members of the group, ascending by node.
    pub members: Vec<Member>,
    /// Members that the group is to have instead, ascending by node; empty if the members stay as they are. The leader
    /// of the shard changes the Raft group step by step, and then reports that these are the members.
    pub target: Vec<Member>,
    /// Members of earlier targets, ascending by node. The Raft group may still need their votes, until the leader
    /// reports that it has the members of this target.
    pub leaving: Vec<Member>,
    /// ID of the node that creates the group. It never changes, so that no second group is ever created.
    pub creator: u64,
    /// True if the group exists. The creator then never creates it again, even with an empty data directory.
    pub is_created: bool,
}

impl Shard {
    /// Checks the fields.
    ///
    /// # Errors
    /// Returns [`MetaError::Invalid`] for a number of another group, and for members that are too many or unsorted. A
    /// target must differ from the members unless one is leaving, and a leaving member must be the only one of its
    /// node. The creator of a group that does not exist yet must be a member.
    pub fn check(&self) -> Result<(), MetaError> {
        if self.number < FIRST_DATA_SHARD {
            return Err(MetaError::Invalid("shards must have numbers from 1 on: 0 is the meta group"));
        }
        let lists = [&self.members, &self.target, &self.leaving];
        if self.members.is_empty() || lists.iter().any(|members| members.len() > SHARD_MEMBERS_MAX) {
            return Err(MetaError::Invalid("a shard must have 1 to 7 members"));
        }
        if !lists.iter().all(|members| members.is_sorted_by(|a, b| a.node < b.node)) {
            return Err(MetaError::Invalid("the members of a shard must be different nodes, ascending by ID"));
        }
        if self.leaving.is_empty() && self.members == self.target {
            return Err(MetaError::Invalid("the target of a shard must differ from its members"));
        }
        let is_here = |member: &Member| self.member(member.node).is_some() || self.is_wanted(member.node);
        if self.leaving.iter().any(|member| self.target.is_empty() || is_here(member)) {
            return Err(MetaError::Invalid("a leaving member of a shard must be on a node without another member"));
        }
        if !self.is_created && self.member(self.creator).is_none() {
            return Err(MetaError::Invalid("the creator of a shard must be one of its members"));
        }
        Ok(())
    }

    /// The member on a node; `None` if the node has no replica of the shard.
    #[must_use]
    pub fn member(&self, node: u64) -> Option<&Member> {
        self.members.iter().find(|member| member.node == node)
    }

    /// The members that the group is to have: the target if there is one, and otherwise the present members.
    #[must_use]
    pub fn wanted(&self) -> &[Member] {
        if self.target.is_empty() { &self.members } else { &self.target }
    }

    /// Returns true if the group is to have a member on a node.
    #[must_use]
    pub fn is_wanted(&self, node: u64) -> bool {
        self.wanted().iter().any(|member| member.node == node)
    }

    /// The replica that a node is to hold; `None` if it is to hold none. A member that is to leave holds its replica
    /// until the group has the members of the target.
    #[must_use]
    pub fn replica_on(&self, node: u64) -> Option<&Member> {
        [&self.target, &self.members, &self.leaving].into_iter().flatten().find(|member| member.node == node)
    }

    /// IDs of the nodes that may lead the group: the present members, then those of the target and of earlier targets.
    #[must_use]
    pub fn nodes(&self) -> Vec<u64> {
        let others = self.target.iter().chain(&self.leaving).filter(|member| self.member(member.node).is_none());
        self.members.iter().chain(others).map(|member| member.node).collect()
    }

    pub(super) fn to_wire(&self) -> wire::ShardGroup {
        let Self { number, members, target, leaving, creator, is_created } = self;
        wire::ShardGroup {
            number: *number,
            members: members_to_wire(members),
            creator: *creator,
            is_created: *is_created,
            target: members_to_wire(target),
            leaving: members_to_wire(leaving),
        }
    }

    pub(super) fn from_wire(from: wire::ShardGroup) -> Result<Self, MetaError> {
        let wire::ShardGroup { number, members, creator, is_created, target, leaving } = from;
        let [members, target, leaving] = [members, target, leaving].map(members_from_wire);
        let shard = Self { number, members: members?, target: target?, leaving: leaving?, creator, is_created };
        shard.check()?;
        Ok(shard)
    }
}
