//! Refusals of commands to the meta group.

use proto::TenantId;
use proto::limits::{
    CLUSTER_NODES_MAX, CLUSTER_SHARDS_MAX, DELETED_TENANTS_MAX, EPOCH_LEAD_MIN_NS, META_STATE_BYTES_MAX,
    NODE_SHARDS_MAX, PLACEMENT_EPOCHS_MAX, RETENTION_CLASSES_MAX, TENANTS_MAX, TOKENS_MAX,
};
use proto::meta::{ClusterId, DirectoryId, MetaError, TokenHash};

/// The reason why a command is refused, and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// A part of the command is invalid in itself.
    #[error(transparent)]
    Invalid(#[from] MetaError),
    /// The cluster does not exist yet.
    #[error("the cluster is not initialized: initialize it first")]
    NotInitialized,
    /// The cluster exists, with another ID.
    #[error("the cluster is already initialized, with the ID {known}: use it, or start with empty data directories")]
    Initialized {
        /// ID of the cluster.
        known: ClusterId,
    },
    /// A new cluster has no node, or lists a node twice.
    #[error("a cluster needs 1 to {CLUSTER_NODES_MAX} nodes with different IDs: list each node once")]
    NodesOfCluster,
    /// There are too many nodes.
    #[error("the cluster has {CLUSTER_NODES_MAX} nodes, the most that it can have: use fewer and larger nodes")]
    TooManyNodes,
    /// The node is not registered.
    #[error("node {node} is unknown: name a node of the cluster, or start the node with --join")]
    UnknownNode {
        /// ID of the node.
        node: u64,
    },
    /// The node has another data directory than before.
    #[error(
        "node {node} is known with another data directory ({known}, and not {given}): start it with that directory, \
         which must be the original and not a backup; if that directory is lost, run `varve admin cluster accept \
         --node {node}`, and the node's replicas are built again from the other members"
    )]
    OtherDirectory {
        /// ID of the node.
        node: u64,
        /// Identity of the directory that the cluster knows.
        known: DirectoryId,
        /// Identity of the directory in the command.
        given: DirectoryId,
    },
    /// Another node has the same data directory.
    #[error("the data directory {directory} belongs to node {owner}: start this node with an empty directory")]
    DirectoryTaken {
        /// Identity of the directory.
        directory: DirectoryId,
        /// Node that has the directory.
        owner: u64,
    },
    /// The shards of the command do not have the next numbers.
    #[error("shard {found} is not the next one, {expected}: read the state again, and propose the shards anew")]
    ShardNumber {
        /// Number of the next shard.
        expected: u32,
        /// Number in the command.
        found: u32,
    },
    /// There are too many shards.
    #[error("a cluster has at most {CLUSTER_SHARDS_MAX} shards: add fewer")]
    TooManyShards,
    /// A node would hold too many replicas.
    #[error("node {node} would hold more than {NODE_SHARDS_MAX} replicas, the most that a node may hold: add nodes")]
    TooManyReplicas {
        /// Number of the node.
        node: u64,
    },
    /// A new shard counts as created, although no command has said so, or it has a target.
    #[error("shard {shard} is new, and cannot be created already: propose it as not created, and without a target")]
    CreatedTooEarly {
        /// Number of the shard.
        shard: u32,
    },
    /// A member of a new shard has another data directory than its node.
    #[error("shard {shard} has a member with another data directory than node {node}: propose the shard anew")]
    MemberDirectory {
        /// Number of the shard.
        shard: u32,
        /// ID of the node.
        node: u64,
    },
    /// The shard does not exist.
    #[error("shard {shard} is unknown: read the state again")]
    UnknownShard {
        /// Number of the shard.
        shard: u32,
    },
    /// The Raft group of the shard does not exist yet, as far as the meta group knows.
    #[error("shard {shard} is being created: try again when the cluster serves")]
    NotCreatedYet {
        /// Number of the shard.
        shard: u32,
    },
    /// Another change of the shard's members is not complete.
    #[error("shard {shard} is changing its members already: wait until that is complete")]
    MembersChanging {
        /// Number of the shard.
        shard: u32,
    },
    /// The node has no replica of the shard.
    #[error("node {node} is no member of shard {shard}: name one of its members")]
    NoMember {
        /// Number of the shard.
        shard: u32,
        /// ID of the node.
        node: u64,
    },
    /// The node has a replica of the shard.
    #[error("node {node} is a member of shard {shard} already: name another node")]
    AlreadyMember {
        /// Number of the shard.
        shard: u32,
        /// ID of the node.
        node: u64,
    },
    /// The members in the report are not those that the shard is to have.
    #[error("shard {shard} is to have other members: read the state again")]
    OtherTarget {
        /// Number of the shard.
        shard: u32,
    },
    /// The epoch does not have the next number.
    #[error("epoch {found} is not the next one, {expected}: read the state again, and propose the epoch anew")]
    EpochNumber {
        /// Number of the next epoch.
        expected: u64,
        /// Number in the command.
        found: u64,
    },
    /// There are too many epochs.
    #[error("the placement has {PLACEMENT_EPOCHS_MAX} epochs, the most that it can have")]
    TooManyEpochs,
    /// The first epoch has a begin.
    #[error("the first epoch has all times: propose it without a begin")]
    FirstEpochBegins,
    /// The epoch begins no later than the newest one.
    #[error("an epoch must begin after the newest one, which begins at {newest_ns} ns: choose a later begin")]
    EpochOrder {
        /// Begin of the newest epoch.
        newest_ns: i64,
    },
    /// The epoch begins before all routers can know it.
    #[error(
        "an epoch must begin at least {} s after it is proposed, at {proposed_at_ns} ns: choose a later begin",
        EPOCH_LEAD_MIN_NS / 1_000_000_000
    )]
    EpochTooEarly {
        /// Time at which the command was proposed.
        proposed_at_ns: i64,
    },
    /// A shard of the epoch does not exist yet.
    #[error("the epoch places slots on shard {shard}, which does not exist yet: wait until it is created")]
    ShardNotCreated {
        /// Number of the shard.
        shard: u32,
    },
    /// There is another tenant of this name.
    #[error(
        "tenant {tenant} exists with another policy: change it with `varve admin tenant update {tenant}`, or choose \
         another name"
    )]
    TenantExists {
        /// Name of the tenant.
        tenant: TenantId,
    },
    /// The tenant does not exist.
    #[error("tenant {tenant} is unknown: create it with `varve admin tenant create {tenant}`")]
    UnknownTenant {
        /// Name of the tenant.
        tenant: TenantId,
    },
    /// A tenant with this name was deleted, and its profiles may still be there.
    #[error("a tenant {tenant} was deleted, and its profiles may still be there: choose another name")]
    DeletedTenant {
        /// Name of the tenant.
        tenant: TenantId,
    },
    /// The cluster remembers too many deleted tenants.
    #[error(
        "{DELETED_TENANTS_MAX} tenants were deleted, the most that there can be: revoke the tokens of tenant {tenant} \
         instead"
    )]
    TooManyDeleted {
        /// Name of the tenant.
        tenant: TenantId,
    },
    /// There are too many tenants.
    #[error("the cluster has {TENANTS_MAX} tenants, the most that it can have: use `varve admin tenant delete`")]
    TooManyTenants,
    /// The retention of the tenant `default` follows from its policy.
    #[error("the tenant default has a policy: use `varve admin tenant update default`")]
    DefaultPolicy,
    /// There are too many different retentions.
    #[error(
        "the tenants have had {RETENTION_CLASSES_MAX} different retentions, the most that there can be: use a \
         retention of another tenant"
    )]
    TooManyRetentions,
    /// A token with this hash exists.
    #[error("the token {hash} exists already: create another one with `varve admin token create`")]
    TokenExists {
        /// Hash of the token.
        hash: TokenHash,
    },
    /// The tenant does not have the token.
    #[error("tenant {tenant} has no token with the hash {hash}: `varve admin token list` lists its tokens")]
    UnknownToken {
        /// Name of the tenant.
        tenant: TenantId,
        /// Hash of the token.
        hash: TokenHash,
    },
    /// There are too many tokens.
    #[error("the cluster has {TOKENS_MAX} tokens, the most that it can have: use `varve admin token revoke`")]
    TooManyTokens,
    /// The format version would decrease, or be zero.
    #[error("the format version is {current}, and cannot become {given}: it only grows")]
    FormatVersion {
        /// Current version.
        current: u32,
        /// Version in the command.
        given: u32,
    },
    /// The state would be too large.
    #[error(
        "the state of the cluster would have {bytes} bytes, and can have {META_STATE_BYTES_MAX}: use \
         `varve admin tenant delete` or `varve admin token revoke` first"
    )]
    TooLarge {
        /// Size of the state after the command.
        bytes: usize,
    },
}
