//! The state of the meta group, which routers and nodes watch.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use prost::Message as _;

use super::cluster::{ClusterId, Node, Shard};
use super::command::{nodes_from_wire, shards_from_wire};
use super::error::MetaError;
use super::tenant::{Policy, Retention, Role, Tenant, Token, TokenHash};
use crate::formats::wire;
use crate::limits::{
    CLUSTER_NODES_MAX, CLUSTER_SHARDS_MAX, DELETED_TENANTS_MAX, META_STATE_BYTES_MAX, PLACEMENT_EPOCHS_MAX,
    RETENTION_CLASSES_MAX, TENANTS_MAX, TOKENS_MAX,
};
use crate::placement::{Epoch, FIRST_DATA_SHARD, Placement};
use crate::tenant::TenantId;
use crate::tokens::equal_in_constant_time;

/// The state of the meta group.
///
/// [`State::check`] lists the invariants. Its fields are public for the meta group, which changes the state by
/// commands. Routers and nodes only read it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// ID of the cluster; `None` before the cluster is initialized.
    pub cluster: Option<ClusterId>,
    /// Version of the formats that all nodes may write.
    pub format_version: u32,
    /// Index of the last command that changed the state. A watcher asks for states with a larger revision.
    pub revision: u64,
    /// Nodes by ID.
    pub nodes: BTreeMap<u64, Node>,
    /// Shards by number.
    pub shards: BTreeMap<u32, Shard>,
    /// Epochs of the placement, ascending.
    pub epochs: Vec<Arc<Epoch>>,
    /// Tenants by name.
    pub tenants: BTreeMap<TenantId, Tenant>,
    /// Retention of each retention class. The number of a class is its index, and never changes, because shards store
    /// the number. Class [`DEFAULT_CLASS`] is that of the tenant `default`, and exists in every initialized cluster.
    pub retention_classes: Vec<Retention>,
    /// Names of deleted tenants. Their profiles and debug files may still be there, so no other tenant gets such a
    /// name.
    pub deleted_tenants: BTreeSet<TenantId>,
}

/// Number of the retention class of the tenant `default`, with or without a policy. No other tenant has this class.
pub const DEFAULT_CLASS: u8 = 0;

/// The tenant of a valid token, and the role of the token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access<'a> {
    /// Owner of the token.
    pub tenant: &'a Tenant,
    /// Requests for which the token may be used.
    pub role: Role,
}

/// The reason why a token is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// No tenant has the token.
    #[error("the bearer token is unknown or revoked: create one with `varve admin token create`")]
    Unknown,
    /// The token has expired.
    #[error("the bearer token has expired: create a new one with `varve admin token create`")]
    Expired,
}

impl State {
    /// The placement; `None` before the first epoch is added.
    #[must_use]
    pub fn placement(&self) -> Option<Placement> {
        // The epochs ascend, so the only possible error is that there is none.
        Placement::new(self.epochs.iter().cloned()).ok()
    }

    /// Finds the tenant of a token.
    ///
    /// The hash is compared with those of all tokens, so the duration tells nothing about other tokens.
    ///
    /// # Errors
    /// Returns a [`TokenError`] if no tenant has the token, or if the token has expired at `now_ns`.
    pub fn access(&self, token: &str, now_ns: i64) -> Result<Access<'_>, TokenError> {
        let hash = TokenHash::of(token);
        let mut found = None;
        for (tenant, (known, token)) in
            self.tenants.values().flat_map(|of| of.tokens.iter().map(move |token| (of, token)))
        {
            // No hash is there twice. The search goes on after a match.
            if equal_in_constant_time(&known.0, &hash.0) {
                found = Some((tenant, *token));
            }
        }
        let (tenant, Token { role, expires_ns }) = found.ok_or(TokenError::Unknown)?;
        if expires_ns.is_some_and(|expires_ns| expires_ns <= now_ns) {
            return Err(TokenError::Expired);
        }
        Ok(Access { tenant, role })
    }

    /// Checks the invariants.
    ///
    /// # Errors
    /// Returns [`MetaError::Invalid`] for the first invariant that does not hold.
    pub fn check(&self) -> Result<(), MetaError> {
        self.check_cluster()?;
        self.check_shards()?;
        self.check_epochs()?;
        self.check_tenants()?;
        if self.encoded_len() > META_STATE_BYTES_MAX {
            return Err(MetaError::Invalid("the state of the meta group must have at most 4 MiB"));
        }
        Ok(())
    }

    fn check_cluster(&self) -> Result<(), MetaError> {
        let Some(_) = self.cluster else {
            if *self == Self::default() {
                return Ok(());
            }
            return Err(MetaError::Invalid("a cluster that is not initialized must be empty"));
        };
        if self.format_version == 0 || self.revision == 0 {
            return Err(MetaError::Invalid("a cluster must have a format version and a revision"));
        }
        if self.nodes.is_empty() || self.nodes.len() > CLUSTER_NODES_MAX {
            return Err(MetaError::Invalid("a cluster must have 1 to 1024 nodes"));
        }
        let is_own = |(&id, node): (&u64, &Node)| if node.id == id { node.check() } else { Err(WRONG_KEY) };
        self.nodes.iter().try_for_each(is_own)?;
        if self.nodes.values().map(|node| node.directory).collect::<BTreeSet<_>>().len() != self.nodes.len() {
            return Err(MetaError::Invalid("each node must have its own data directory"));
        }
        Ok(())
    }

    fn check_shards(&self) -> Result<(), MetaError> {
        if self.shards.len() > CLUSTER_SHARDS_MAX as usize {
            return Err(MetaError::Invalid("a cluster must have at most 4096 shards"));
        }
        for (expected, (&number, shard)) in (FIRST_DATA_SHARD..).zip(&self.shards) {
            if number != expected || shard.number != number {
                return Err(MetaError::Invalid("the shards must have consecutive numbers from 1 on"));
            }
            shard.check()?;
            if shard.members.iter().chain(&shard.target).any(|member| !self.nodes.contains_key(&member.node)) {
                return Err(MetaError::Invalid("each member of a shard must be on a known node"));
            }
        }
        Ok(())
    }

    fn check_epochs(&self) -> Result<(), MetaError> {
        let Some(first) = self.epochs.first() else { return Ok(()) };
        Placement::new(self.epochs.iter().cloned())?;
        let numbers = self.epochs.iter().map(|epoch| epoch.number());
        if first.begins_ns() != i64::MIN || !numbers.eq(1..=self.epochs.len() as u64) {
            return Err(MetaError::Invalid("the epochs must be numbered from 1 on, and the first has no begin"));
        }
        let is_created = |shard: &u32| self.shards.get(shard).is_some_and(|shard| shard.is_created);
        if !self.epochs.iter().flat_map(|epoch| epoch.shards()).all(is_created) {
            return Err(MetaError::Invalid("each slot must be in a created shard"));
        }
        Ok(())
    }

    fn check_tenants(&self) -> Result<(), MetaError> {
        if self.tenants.len() > TENANTS_MAX {
            return Err(MetaError::Invalid("a cluster must have at most 4096 tenants"));
        }
        if self.deleted_tenants.len() > DELETED_TENANTS_MAX {
            return Err(MetaError::Invalid("a cluster must remember at most 16384 deleted tenants"));
        }
        let is_usable = |name: &TenantId| *name != TenantId::default_tenant() && !self.tenants.contains_key(name);
        if !self.deleted_tenants.iter().all(is_usable) {
            return Err(MetaError::Invalid("a deleted tenant must not be a tenant, nor the tenant default"));
        }
        if self.retention_classes.len() > RETENTION_CLASSES_MAX {
            return Err(MetaError::Invalid("a cluster must have at most 256 different retentions"));
        }
        if self.cluster.is_some() && self.retention_classes.is_empty() {
            return Err(MetaError::Invalid("a cluster must have a retention"));
        }
        self.retention_classes.iter().try_for_each(|retention| retention.check())?;
        let mut tokens = BTreeSet::new();
        let mut owned = BTreeMap::new();
        for (name, tenant) in &self.tenants {
            if tenant.name != *name {
                return Err(WRONG_KEY);
            }
            tenant.policy.check()?;
            let class = self.retention_classes.get(usize::from(tenant.retention_class));
            if class != Some(&tenant.policy.retention) {
                return Err(MetaError::Invalid("the retention class of a tenant must have the tenant's retention"));
            }
            if (tenant.retention_class == DEFAULT_CLASS) != (*name == TenantId::default_tenant()) {
                return Err(MetaError::Invalid("only the tenant default has, and must have, the first class"));
            }
            if let Some(is_other_owner) = owned.insert(tenant.retention_class, tenant.owns_class)
                && (is_other_owner || tenant.owns_class)
            {
                return Err(MetaError::Invalid("a retention class with an owner must have no other tenant"));
            }
            if !tenant.tokens.keys().all(|hash| tokens.insert(hash)) {
                return Err(MetaError::Invalid("each token must belong to one tenant"));
            }
        }
        if tokens.len() > TOKENS_MAX {
            return Err(MetaError::Invalid("a cluster must have at most 4096 tokens"));
        }
        Ok(())
    }

    /// Converts the state to a protobuf message. Equal states have equal messages.
    #[must_use]
    pub fn to_wire(&self) -> wire::MetaState {
        let tenant = |tenant: &Tenant| wire::Tenant {
            name: tenant.name.as_str().to_owned(),
            policy: Some(tenant.policy.to_wire()),
            retention_class: tenant.retention_class.into(),
            tokens: tenant.tokens.iter().map(|(&hash, token)| token.to_wire(hash)).collect(),
            owns_class: tenant.owns_class,
        };
        wire::MetaState {
            cluster: self.cluster.map(ClusterId::to_wire).unwrap_or_default(),
            format_version: self.format_version,
            revision: self.revision,
            nodes: self.nodes.values().map(Node::to_wire).collect(),
            shards: self.shards.values().map(Shard::to_wire).collect(),
            epochs: self.epochs.iter().map(|epoch| epoch.to_wire()).collect(),
            tenants: self.tenants.values().map(tenant).collect(),
            retention_classes: self.retention_classes.iter().map(|retention| retention.to_wire()).collect(),
            deleted_tenants: self.deleted_tenants.iter().map(|name| name.as_str().to_owned()).collect(),
        }
    }

    /// Converts a protobuf message to a state.
    ///
    /// # Errors
    /// Returns a [`MetaError`] if an invariant does not hold, or if a list is not sorted.
    pub fn from_wire(from: wire::MetaState) -> Result<Self, MetaError> {
        let wire::MetaState {
            cluster,
            format_version,
            revision,
            nodes,
            shards,
            epochs,
            tenants,
            retention_classes,
            deleted_tenants,
        } = from;
        if epochs.len() > PLACEMENT_EPOCHS_MAX || tenants.len() > TENANTS_MAX {
            return Err(MetaError::Invalid("a cluster must have at most 256 epochs and 4096 tenants"));
        }
        let deleted = deleted_tenants.iter().map(|name| TenantId::new(name)).collect::<Result<Vec<_>, _>>()?;
        let retention = |retention| Retention::from_wire(Some(retention));
        let state = Self {
            cluster: if cluster.is_empty() { None } else { Some(ClusterId::from_wire(&cluster)?) },
            format_version,
            revision,
            nodes: ascending(nodes_from_wire(nodes)?, |node| node.id)?,
            shards: ascending(shards_from_wire(shards)?, |shard| shard.number)?,
            epochs: epochs
                .into_iter()
                .map(|epoch| Ok(Arc::new(Epoch::from_wire(epoch)?)))
                .collect::<Result<_, MetaError>>()?,
            tenants: ascending(
                tenants.into_iter().map(tenant_from_wire).collect::<Result<_, _>>()?,
                |tenant: &Tenant| tenant.name.clone(),
            )?,
            retention_classes: retention_classes.into_iter().map(retention).collect::<Result<_, _>>()?,
            deleted_tenants: ascending(deleted, TenantId::clone)?.into_keys().collect(),
        };
        state.check()?;
        Ok(state)
    }

    /// Size of the encoded state, in bytes.
    #[must_use]
    pub fn encoded_len(&self) -> usize {
        self.to_wire().encoded_len()
    }

    /// Encodes the state as protobuf.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        self.to_wire().encode_to_vec()
    }

    /// Decodes a state.
    ///
    /// # Errors
    /// Returns a [`MetaError`] if the bytes are more than [`META_STATE_BYTES_MAX`], or not a valid state.
    pub fn decode(from: &[u8]) -> Result<Self, MetaError> {
        if from.len() > META_STATE_BYTES_MAX {
            return Err(MetaError::Invalid("the state of the meta group must have at most 4 MiB"));
        }
        Self::from_wire(wire::MetaState::decode(from)?)
    }
}

const WRONG_KEY: MetaError = MetaError::Invalid("a node or a tenant is listed under another name than its own");

fn tenant_from_wire(from: wire::Tenant) -> Result<Tenant, MetaError> {
    let wire::Tenant { name, policy, retention_class, tokens, owns_class } = from;
    let class = u8::try_from(retention_class);
    if tokens.len() > TOKENS_MAX {
        return Err(MetaError::Invalid("a cluster must have at most 4096 tokens"));
    }
    let tokens = tokens.into_iter().map(Token::from_wire).collect::<Result<Vec<_>, _>>()?;
    Ok(Tenant {
        name: TenantId::new(&name)?,
        policy: Policy::from_wire(policy)?,
        retention_class: class.map_err(|_large| MetaError::Invalid("a retention class must be below 256"))?,
        owns_class,
        tokens: ascending(tokens, |(hash, _)| *hash)?.into_values().collect(),
    })
}

/// Returns the items by their keys.
///
/// # Errors
/// Returns [`MetaError::Invalid`] unless the keys ascend. So a state has only one encoding.
fn ascending<K: Ord, T>(items: Vec<T>, key: impl Fn(&T) -> K) -> Result<BTreeMap<K, T>, MetaError> {
    if !items.is_sorted_by(|a, b| key(a) < key(b)) {
        return Err(MetaError::Invalid("the lists of a state must be sorted, and name each item once"));
    }
    Ok(items.into_iter().map(|item| (key(&item), item)).collect())
}
