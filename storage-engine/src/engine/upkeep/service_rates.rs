//! Rates of services: how many samples of each service arrived lately. They are counted in the heads, which have the
//! samples of the last ten to twenty minutes.

use std::collections::BTreeMap;
use std::sync::Arc;

use proto::label::SERVICE_NAME_LABEL;
use proto::{TenantId, Tier};

use crate::engine::state::partitions::SharedPartition;
use crate::engine::store::Store;

/// Largest number of services that are listed.
const SERVICES_MAX: usize = 16;
/// Shortest time over which a rate is measured, in nanoseconds.
const MEASURED_NS_MIN: i64 = 30 * 1_000_000_000;

/// Number of samples of a service that a shard stores in a second.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceRate {
    /// Owner of the service.
    pub tenant: TenantId,
    /// Name of the service; empty for samples without one.
    pub service: String,
    /// Samples per second.
    pub samples_per_second: f64,
}

/// Samples that arrived lately.
#[derive(Clone, Copy, Debug)]
struct Arrived {
    samples: u64,
    /// Time at which the first of them arrived, in nanoseconds since 1970.
    since_ns: i64,
}

impl Arrived {
    const NONE: Self = Self { samples: 0, since_ns: i64::MAX };

    fn add(&mut self, other: Self) {
        self.samples += other.samples;
        self.since_ns = self.since_ns.min(other.since_ns);
    }
}

/// Returns the services with the highest rates, highest first.
pub(crate) fn service_rates(store: &Store) -> Vec<ServiceRate> {
    // The heads are read without the lock of the state, because there may be very many series.
    let (now_ns, partitions) = {
        let state = store.state();
        let minutes = state.partitions.all_loaded().filter(|(key, _)| key.tier == Tier::Minute);
        let partitions: Vec<(u32, SharedPartition)> = minutes.map(|(key, of)| (key.tenant, Arc::clone(of))).collect();
        (state.clock.entries_ns(), partitions)
    };
    let mut services: BTreeMap<(u32, String), Arrived> = BTreeMap::new();
    for (tenant, partition) in partitions {
        let partition = partition.read();
        let mut series: BTreeMap<u32, Arrived> = BTreeMap::new();
        for (_, number, chunk) in partition.head.in_windows(0..=u32::MAX) {
            series
                .entry(number)
                .or_insert(Arrived::NONE)
                .add(Arrived { samples: chunk.samples() as u64, since_ns: chunk.since_ns() });
        }
        for (number, arrived) in series {
            let Some((_, labels)) = partition.series.get_index(number as usize) else { continue };
            let service = labels.get(SERVICE_NAME_LABEL).to_owned();
            services.entry((tenant, service)).or_insert(Arrived::NONE).add(arrived);
        }
    }
    let rate = |((tenant, service), arrived): ((u32, String), Arrived)| {
        let measured_ns = now_ns.saturating_sub(arrived.since_ns).max(MEASURED_NS_MIN);
        let samples_per_second = arrived.samples as f64 / (measured_ns as f64 / 1e9);
        ServiceRate { tenant: store.tenant_name(tenant), service, samples_per_second }
    };
    let mut rates: Vec<ServiceRate> = services.into_iter().map(rate).collect();
    rates.sort_by(|a, b| b.samples_per_second.total_cmp(&a.samples_per_second));
    rates.truncate(SERVICES_MAX);
    rates
}
