//! Reports damage to operators: the damaged windows, and their number.

use std::fmt;
use std::time::{Duration, UNIX_EPOCH};

use proto::{Tier, Window};

use crate::database::key::{PartitionKey, Section, two_numbers};
use crate::engine::store::Store;
use crate::integrity::quarantine::area::Area;

/// A time range whose stored samples or sums are damaged. Responses that need this range report the damage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedWindow {
    /// Tier of the damaged values.
    pub tier: Tier,
    /// Tenant of the damaged values.
    pub tenant: String,
    /// Time range of the damaged values.
    pub window: Window,
    /// First and last number of the damaged series in their partition; `None` for all series.
    pub series: Option<(u32, u32)>,
    /// Description of the damage: the check that failed, with the file or the key.
    pub what: String,
}

/// Counts of known damage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DamageCounts {
    /// Number of windows that [`Engine::damaged_windows`](crate::Engine::damaged_windows) returns.
    pub windows: u64,
    /// Number of partitions that lost IDs of batches. Such a batch counts again if a client sends it again.
    pub without_batch_ids: u64,
    /// Number of damaged values and blocks that were found since the engine was opened.
    pub damaged_reads: u64,
}

impl fmt::Display for DamagedWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tier, tenant, window, series, what } = self;
        let of_series = match series {
            None => "all series".to_owned(),
            Some((first, last)) if first == last => format!("series {first}"),
            Some((first, last)) => format!("series {first} to {last}"),
        };
        write!(f, "{}: {what}", describe(*tier, tenant, *window, &of_series))
    }
}

/// Describes a tier, tenant, series and time range.
fn describe(tier: Tier, tenant: &str, window: Window, series: &str) -> String {
    let time = |time_ns: i64| {
        let time = UNIX_EPOCH + Duration::from_nanos(u64::try_from(time_ns).unwrap_or_default());
        humantime::format_rfc3339_seconds(time).to_string()
    };
    let start = time(window.start_ns);
    let end = time(window.end_ns);
    format!("tier {}, tenant {tenant:?}, {series}, from {start} to {end}", tier.name())
}

/// Describes the tier, tenant, series and time of a key; `None` if the key belongs to no partition.
pub(crate) fn describe_key(store: &Store, key: &[u8]) -> Option<String> {
    let partition = PartitionKey::of_key(key)?;
    let tenant = store.tenant_name(partition.tenant);
    let all = || Some(describe_partition(store, partition));
    let Some((section, rest)) = PartitionKey::section_of(key) else { return all() };
    let Some((first, second, _)) = two_numbers(rest) else { return all() };
    let (series, window) = match section {
        Section::Head => (second, first),
        Section::Chunks | Section::Events | Section::Windows => (first, second),
        Section::BatchIds | Section::Series | Section::Dictionary | Section::DroppedNames => return all(),
    };
    let window = Area::value(series, window).time(partition.tier);
    Some(describe(partition.tier, tenant.as_str(), window, &format!("series {series}")))
}

/// Describes the tier, tenant and time of a partition.
fn describe_partition(store: &Store, key: PartitionKey) -> String {
    let whole = Window { start_ns: key.start_ns(), end_ns: key.end_ns() };
    describe(key.tier, store.tenant_name(key.tenant).as_str(), whole, "all series")
}

/// Describes the partitions that lost IDs of batches.
pub(crate) fn lost_batch_ids(store: &Store) -> Vec<String> {
    let partitions: Vec<PartitionKey> = store.state().damage.without_batch_ids().collect();
    let describe = |key| format!("{}: batch IDs are lost: a retry may count twice", describe_partition(store, key));
    partitions.into_iter().map(describe).collect()
}

/// Returns all damaged windows, by tier and time.
pub(crate) fn damaged_windows(store: &Store) -> Vec<DamagedWindow> {
    let state = store.state();
    let name = |number: u32| state.tenants.name(number).map(|name| name.as_str().to_owned()).unwrap_or_default();
    let damaged = |(key, area, what): (PartitionKey, Area, &str)| DamagedWindow {
        tier: key.tier,
        tenant: name(key.tenant),
        window: area.time(key.tier),
        series: area.some_series(),
        what: what.to_owned(),
    };
    state.damage.iter().map(damaged).collect()
}

/// Returns the counts of known damage.
pub(crate) fn damage_counts(store: &Store) -> DamageCounts {
    let state = store.state();
    DamageCounts {
        windows: state.damage.len() as u64,
        without_batch_ids: state.damage.without_batch_ids().len() as u64,
        damaged_reads: state.damage.damaged_reads(),
    }
}
