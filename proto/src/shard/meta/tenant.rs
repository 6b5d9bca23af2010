//! Tenants: policies, and the hashes of tokens.

use std::collections::BTreeMap;
use std::fmt;
use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

use bytes::Bytes;
use sha2::{Digest as _, Sha256};

use super::error::MetaError;
use crate::formats::wire;
pub use crate::formats::wire::TimeResolution;
pub use crate::formats::wire::TokenRole as Role;
use crate::label::{PROFILE_TYPE_LABEL, SERVICE_NAME_LABEL, sanitize_label_name};
use crate::limits::{DROPPED_LABELS_MAX, LABEL_NAME_BYTES_MAX, RETENTION_SECONDS_MAX};
use crate::tenant::TenantId;
use crate::tier::Tier;

impl TimeResolution {
    /// Rounds a time, in nanoseconds since 1970, up to the resolution. The time stays in its minute, so sums over whole
    /// minutes and the epoch of the placement do not change.
    #[must_use]
    pub fn round(self, time_ns: i64) -> i64 {
        let unit_ns = match self {
            Self::Nanoseconds => return time_ns,
            Self::Milliseconds => 1_000_000,
            Self::Window => Tier::Minute.window_ns(),
        };
        time_ns.saturating_sub(1).div_euclid(unit_ns).saturating_add(1).saturating_mul(unit_ns)
    }
}

/// A tenant, its policy and its tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// Name of the tenant.
    pub name: TenantId,
    /// Retention, resolution and limits.
    pub policy: Policy,
    /// Number of the retention class of new samples. The class has the retention of the policy.
    pub retention_class: u8,
    /// True if no other tenant has ever had samples of the class, so that the retention of the class may change.
    pub owns_class: bool,
    /// Tokens by their hashes.
    pub tokens: BTreeMap<TokenHash, Token>,
}

/// The policy of a tenant: the parts that change what shards store, and the limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Retention of each tier.
    pub retention: Retention,
    /// Precision with which the times of samples are stored.
    pub time_resolution: TimeResolution,
    /// Names of labels that are removed from series before their samples are stored. The list is sorted.
    pub removed_labels: Vec<String>,
    /// Names of labels that sums drop: first those that hours drop, then those that days drop as well. Each list is
    /// sorted.
    pub dropped_labels: [Vec<String>; 2],
    /// Limits on pushes and queries.
    pub limits: Limits,
}

/// Retention of each tier, in seconds, finest tier first. A coarser tier is kept at least as long as every finer tier,
/// even if the retention of the coarser tier is shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Retention(pub [u64; 4]);

impl Retention {
    /// Retention of a tenant or a cluster that names no other: 30 days, 90 days, one year and five years.
    pub const DEFAULT: Self = Self([30 * 86_400, 90 * 86_400, 365 * 86_400, 5 * 365 * 86_400]);

    /// Retention of a tier.
    #[must_use]
    pub fn of(self, tier: Tier) -> Duration {
        let finer = self.0.into_iter().take(usize::from(tier.number()) + 1);
        Duration::from_secs(finer.max().unwrap_or_default())
    }

    pub(super) fn to_wire(self) -> wire::Retention {
        let [raw_seconds, minutes_seconds, hours_seconds, days_seconds] = self.0;
        wire::Retention { raw_seconds, minutes_seconds, hours_seconds, days_seconds }
    }

    pub(super) fn from_wire(from: Option<wire::Retention>) -> Result<Self, MetaError> {
        let from = from.ok_or(MetaError::Invalid("a retention is absent"))?;
        let retention = Self([from.raw_seconds, from.minutes_seconds, from.hours_seconds, from.days_seconds]);
        retention.check()?;
        Ok(retention)
    }

    /// Checks that each retention is at least a second.
    ///
    /// # Errors
    /// Returns [`MetaError::Invalid`] if a retention is zero, or longer than 100 years.
    pub fn check(self) -> Result<(), MetaError> {
        if self.0.iter().all(|seconds| (1..=RETENTION_SECONDS_MAX).contains(seconds)) {
            return Ok(());
        }
        Err(MetaError::Invalid("each retention must be at least one second and at most 100 years"))
    }
}

/// Limits of one tenant. `None` means that only the limits of nodes and routers apply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of pushed samples per second.
    pub samples_per_second_max: Option<NonZeroU64>,
    /// Maximum size of pushes per second, in bytes after decompression.
    pub bytes_per_second_max: Option<NonZeroU64>,
    /// Maximum number of series in six hours of a shard. Pushes of further ones are refused.
    pub series_max: Option<NonZeroU64>,
    /// Maximum number of queries that run at one time on one router.
    pub queries_at_once_max: Option<NonZeroU32>,
    /// Maximum number of cells (group x bucket x stack) in the responses to one selection.
    pub query_cells_max: Option<NonZeroU64>,
}

impl Policy {
    /// Checks the retention and the dropped labels.
    ///
    /// # Errors
    /// Returns [`MetaError::Invalid`] for a retention out of range, and for labels that are unsorted, too many, invalid
    /// or necessary.
    pub fn check(&self) -> Result<(), MetaError> {
        self.retention.check()?;
        self.dropped_labels.iter().chain([&self.removed_labels]).try_for_each(|names| check_dropped_labels(names))
    }

    pub(super) fn to_wire(&self) -> wire::TenantPolicy {
        let Self { retention, time_resolution, removed_labels, dropped_labels: [hours, days], limits } = self;
        wire::TenantPolicy {
            retention: Some(retention.to_wire()),
            time_resolution: (*time_resolution).into(),
            dropped_by_hours: hours.clone(),
            dropped_by_days: days.clone(),
            samples_per_second_max: limits.samples_per_second_max.map(NonZeroU64::get),
            bytes_per_second_max: limits.bytes_per_second_max.map(NonZeroU64::get),
            series_max: limits.series_max.map(NonZeroU64::get),
            queries_at_once_max: limits.queries_at_once_max.map(NonZeroU32::get),
            query_cells_max: limits.query_cells_max.map(NonZeroU64::get),
            removed_labels: removed_labels.clone(),
        }
    }

    pub(super) fn from_wire(from: Option<wire::TenantPolicy>) -> Result<Self, MetaError> {
        let zero = || MetaError::Invalid("a limit must be at least 1: omit it for no limit");
        let limit = |limit: Option<u64>| limit.map(|limit| NonZeroU64::new(limit).ok_or_else(zero)).transpose();
        let from = from.ok_or(MetaError::Invalid("a tenant must have a policy"))?;
        let time_resolution = TimeResolution::try_from(from.time_resolution)
            .map_err(|_unknown| MetaError::Invalid("unknown resolution of times"))?;
        let queries = from.queries_at_once_max.map(|limit| NonZeroU32::new(limit).ok_or_else(zero));
        let limits = Limits {
            samples_per_second_max: limit(from.samples_per_second_max)?,
            bytes_per_second_max: limit(from.bytes_per_second_max)?,
            series_max: limit(from.series_max)?,
            queries_at_once_max: queries.transpose()?,
            query_cells_max: limit(from.query_cells_max)?,
        };
        let dropped_labels = [from.dropped_by_hours, from.dropped_by_days];
        let retention = Retention::from_wire(from.retention)?;
        let policy = Self { retention, time_resolution, removed_labels: from.removed_labels, dropped_labels, limits };
        policy.check()?;
        Ok(policy)
    }
}

/// Checks the names of labels that are removed from series, or that a tier drops.
pub(crate) fn check_dropped_labels(names: &[String]) -> Result<(), MetaError> {
    if names.len() > DROPPED_LABELS_MAX {
        return Err(MetaError::Invalid("at most 64 labels may be removed, and each tier may drop at most 64"));
    }
    if !names.is_sorted_by(|a, b| a < b) {
        return Err(MetaError::Invalid("the removed and the dropped labels must be sorted, each once"));
    }
    let is_valid = |name: &String| name.len() <= LABEL_NAME_BYTES_MAX && sanitize_label_name(name) == *name;
    if !names.iter().all(is_valid) {
        return Err(MetaError::Invalid(
            "the name of a removed or dropped label must have 1 to 1024 characters of a-z A-Z 0-9 _, and no leading \
             digit",
        ));
    }
    if names.iter().any(|name| name == SERVICE_NAME_LABEL || name == PROFILE_TYPE_LABEL) {
        return Err(MetaError::Invalid("service_name and __profile_type__ cannot be removed or dropped"));
    }
    Ok(())
}

/// SHA-256 of a token. The cluster stores no token, and a token of 256 random bits cannot be found from its hash.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TokenHash(pub [u8; 32]);

impl TokenHash {
    /// Returns the hash of a token, as a client sends it.
    #[must_use]
    pub fn of(token: &str) -> Self {
        Self(Sha256::digest(token.as_bytes()).into())
    }

    pub(super) fn to_wire(self) -> Bytes {
        Bytes::copy_from_slice(&self.0)
    }

    pub(super) fn from_wire(from: &[u8]) -> Result<Self, MetaError> {
        let wrong = |_length| MetaError::Invalid("the hash of a token must have 32 bytes");
        Ok(Self(from.try_into().map_err(wrong)?))
    }
}

impl fmt::Display for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A token of a tenant, without its hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    /// Requests for which the token may be used.
    pub role: Role,
    /// Time, in nanoseconds since 1970, from which the token is refused; `None` if it does not expire.
    pub expires_ns: Option<i64>,
}

impl Token {
    pub(super) fn to_wire(self, hash: TokenHash) -> wire::TenantToken {
        wire::TenantToken { hash: hash.to_wire(), role: self.role.into(), expires_ns: self.expires_ns }
    }

    pub(super) fn from_wire(from: wire::TenantToken) -> Result<(TokenHash, Self), MetaError> {
        let wire::TenantToken { hash, role, expires_ns } = from;
        let role = Role::try_from(role).map_err(|_unknown| MetaError::Invalid("unknown role of a token"))?;
        Ok((TokenHash::from_wire(&hash)?, Self { role, expires_ns }))
    }
}
