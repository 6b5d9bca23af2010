//! Commands to the meta group.

use prost::Message as _;

use super::cluster::{ClusterId, DirectoryId, Member, Node, Shard, members_from_wire, members_to_wire};
use super::error::MetaError;
use super::tenant::{Policy, Retention, Token, TokenHash};
use crate::formats::wire;
use crate::formats::wire::meta_command::Command as Wire;
use crate::limits::{CLUSTER_NODES_MAX, CLUSTER_SHARDS_MAX, META_COMMAND_BYTES_MAX};
use crate::placement::Epoch;
use crate::tenant::TenantId;

/// A command to the meta group. Random values, such as IDs, are chosen by the proposer, because all members must apply
/// a command in the same way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Makes a cluster of these nodes and shards. Only the first command can be of this kind.
    Initialize {
        /// ID of the cluster.
        cluster: ClusterId,
        /// Version of the formats that all nodes may write.
        format_version: u32,
        /// Retention of the first retention class: that of the tenant `default` until it has a policy.
        retention: Retention,
        /// Nodes of the cluster.
        nodes: Vec<Node>,
        /// Shards, with numbers from 1 on.
        shards: Vec<Shard>,
    },
    /// Adds a node, or changes the address and the zone of a node with the same data directory.
    RegisterNode(Node),
    /// Accepts that a node has lost its data directory and has a new one. The node's replicas are built again from the
    /// other members.
    AcceptDirectory {
        /// ID of the node.
        node: u64,
        /// Identity of the new directory.
        directory: DirectoryId,
    },
    /// Adds shards, with the next numbers.
    AddShards(Vec<Shard>),
    /// Records that the Raft group of a shard exists.
    ShardCreated(u32),
    /// Adds an epoch to the placement.
    AddEpoch(Epoch),
    /// Adds a tenant without tokens.
    CreateTenant(TenantId, Policy),
    /// Replaces the policy of a tenant.
    UpdateTenant(TenantId, Policy),
    /// Sets the retention of the tenant `default`, which has no policy.
    SetDefaultRetention(Retention),
    /// Removes a tenant and its tokens. Its samples stay where they are, so no other tenant can have its name.
    DeleteTenant(TenantId),
    /// Adds a token to a tenant.
    CreateToken(TenantId, TokenHash, Token),
    /// Removes a token.
    RevokeToken(TenantId, TokenHash),
    /// Raises the version of the formats that all nodes may write.
    SetFormatVersion(u32),
    /// Moves the replica of a shard from one node to another.
    MoveMember {
        /// Number of the shard.
        shard: u32,
        /// ID of the node that gives up its replica.
        from: u64,
        /// The new member. Its identity is random, because the node may have held another replica of the shard before.
        to: Member,
    },
    /// Records that the Raft group of a shard has the members of the target.
    MembersChanged {
        /// Number of the shard.
        shard: u32,
        /// Members of the Raft group, ascending by node.
        members: Vec<Member>,
    },
}

impl Command {
    /// Encodes the command as protobuf.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        self.to_wire().encode_to_vec()
    }

    /// Decodes a command.
    ///
    /// # Errors
    /// Returns a [`MetaError`] if the command is larger than [`META_COMMAND_BYTES_MAX`], or invalid in itself.
    pub fn decode(from: &[u8]) -> Result<Self, MetaError> {
        if from.len() > META_COMMAND_BYTES_MAX {
            return Err(MetaError::Invalid("a command must have at most 1 MiB"));
        }
        Self::from_wire(wire::MetaCommand::decode(from)?)
    }

    /// Converts the command to a protobuf message.
    #[must_use]
    pub fn to_wire(&self) -> wire::MetaCommand {
        let tenant = |name: &TenantId, policy: &Policy| wire::Tenant {
            name: name.as_str().to_owned(),
            policy: Some(policy.to_wire()),
            ..wire::Tenant::default()
        };
        let shards_to_wire = |shards: &[Shard]| shards.iter().map(Shard::to_wire).collect();
        let command = match self {
            Self::Initialize { cluster, format_version, retention, nodes, shards } => {
                Wire::Initialize(wire::InitializeCluster {
                    cluster: cluster.to_wire(),
                    format_version: *format_version,
                    nodes: nodes.iter().map(Node::to_wire).collect(),
                    shards: shards_to_wire(shards),
                    retention: Some(retention.to_wire()),
                })
            }
            Self::RegisterNode(node) => Wire::RegisterNode(node.to_wire()),
            Self::AcceptDirectory { node, directory } => {
                Wire::AcceptDirectory(wire::AcceptDirectory { node: *node, directory: directory.to_wire() })
            }
            Self::AddShards(shards) => Wire::AddShards(wire::AddShards { shards: shards_to_wire(shards) }),
            Self::ShardCreated(shard) => Wire::ShardCreated(*shard),
            Self::AddEpoch(epoch) => Wire::AddEpoch(epoch.to_wire()),
            Self::CreateTenant(name, policy) => Wire::CreateTenant(tenant(name, policy)),
            Self::UpdateTenant(name, policy) => Wire::UpdateTenant(tenant(name, policy)),
            Self::SetDefaultRetention(retention) => Wire::SetDefaultRetention(retention.to_wire()),
            Self::DeleteTenant(name) => Wire::DeleteTenant(name.as_str().to_owned()),
            Self::CreateToken(name, hash, token) => Wire::CreateToken(wire::CreateToken {
                tenant: name.as_str().to_owned(),
                token: Some(token.to_wire(*hash)),
            }),
            Self::RevokeToken(name, hash) => {
                Wire::RevokeToken(wire::RevokeToken { tenant: name.as_str().to_owned(), hash: hash.to_wire() })
            }
            Self::SetFormatVersion(version) => Wire::SetFormatVersion(*version),
            Self::MoveMember { shard, from, to } => {
                Wire::MoveMember(wire::MoveMember { shard: *shard, from: *from, to: Some(to.to_wire()) })
            }
            Self::MembersChanged { shard, members } => {
                Wire::MembersChanged(wire::MembersChanged { shard: *shard, members: members_to_wire(members) })
            }
        };
        wire::MetaCommand { command: Some(command) }
    }

    /// Converts a protobuf message to a command.
    ///
    /// # Errors
    /// Returns a [`MetaError`] if the message has no command of this version, or if a part of it is invalid.
    pub fn from_wire(from: wire::MetaCommand) -> Result<Self, MetaError> {
        let unknown = MetaError::Invalid("a command of another version: run the same version on all nodes");
        Ok(match from.command.ok_or(unknown)? {
            Wire::Initialize(wire::InitializeCluster { cluster, format_version, nodes, shards, retention }) => {
                Self::Initialize {
                    cluster: ClusterId::from_wire(&cluster)?,
                    format_version,
                    // A log of an earlier build has no retention.
                    retention: retention.map_or(Ok(Retention::DEFAULT), |given| Retention::from_wire(Some(given)))?,
                    nodes: nodes_from_wire(nodes)?,
                    shards: shards_from_wire(shards)?,
                }
            }
            Wire::RegisterNode(node) => Self::RegisterNode(Node::from_wire(node)?),
            Wire::AcceptDirectory(wire::AcceptDirectory { node, directory }) => {
                Self::AcceptDirectory { node, directory: DirectoryId::from_wire(&directory)? }
            }
            Wire::AddShards(wire::AddShards { shards }) => Self::AddShards(shards_from_wire(shards)?),
            Wire::ShardCreated(shard) => Self::ShardCreated(shard),
            Wire::AddEpoch(epoch) => Self::AddEpoch(Epoch::from_wire(epoch)?),
            Wire::CreateTenant(tenant) => {
                Self::CreateTenant(TenantId::new(&tenant.name)?, Policy::from_wire(tenant.policy)?)
            }
            Wire::UpdateTenant(tenant) => {
                Self::UpdateTenant(TenantId::new(&tenant.name)?, Policy::from_wire(tenant.policy)?)
            }
            Wire::SetDefaultRetention(retention) => Self::SetDefaultRetention(Retention::from_wire(Some(retention))?),
            Wire::DeleteTenant(name) => Self::DeleteTenant(TenantId::new(&name)?),
            Wire::CreateToken(wire::CreateToken { tenant, token }) => {
                let (hash, token) = Token::from_wire(token.unwrap_or_default())?;
                Self::CreateToken(TenantId::new(&tenant)?, hash, token)
            }
            Wire::RevokeToken(wire::RevokeToken { tenant, hash }) => {
                Self::RevokeToken(TenantId::new(&tenant)?, TokenHash::from_wire(&hash)?)
            }
            Wire::SetFormatVersion(version) => Self::SetFormatVersion(version),
            Wire::MoveMember(wire::MoveMember { shard, from, to }) => {
                Self::MoveMember { shard, from, to: Member::from_wire(&to.unwrap_or_default())? }
            }
            Wire::MembersChanged(wire::MembersChanged { shard, members }) => {
                Self::MembersChanged { shard, members: members_from_wire(members)? }
            }
        })
    }
}

/// Decodes nodes.
pub(super) fn nodes_from_wire(from: Vec<wire::ClusterNode>) -> Result<Vec<Node>, MetaError> {
    if from.len() > CLUSTER_NODES_MAX {
        return Err(MetaError::Invalid("a cluster must have at most 1024 nodes"));
    }
    from.into_iter().map(Node::from_wire).collect()
}

/// Decodes shards.
pub(super) fn shards_from_wire(from: Vec<wire::ShardGroup>) -> Result<Vec<Shard>, MetaError> {
    if from.len() > CLUSTER_SHARDS_MAX as usize {
        return Err(MetaError::Invalid("a cluster must have at most 4096 shards"));
    }
    from.into_iter().map(Shard::from_wire).collect()
}
