//! Tests of the accumulator.

use parking_lot::RwLock;
use proto::{Label, Samples, TenantId, Tier, Window};

use super::*;
use crate::database::key::PartitionKey;
use crate::engine::store::Store;
use crate::memory::partition::Partition;
use crate::select::gather::{Aggregate, Query, gather};
use crate::select::plan::{Interval, PartPlan, Tiers};
use crate::{BudgetSizes, Budgets, Config};

const SERIES: u32 = 50;

/// Returns a partition of [`SERIES`] series, of which only number 7 has a sample. It is within `window`.
fn partition(window: Window) -> Partition {
    let tenant = TenantId::default_tenant();
    let mut partition = Partition::new(PartitionKey::of(Tier::Minute, 0, 0, window.end_ns), 0);
    for pod in 0..SERIES {
        let labels = LabelSet::new(vec![Label::new("pod", format!("{pod}"))]);
        partition.add_series(labels.fingerprint(&tenant), || Arc::new(labels));
    }
    let mut samples = Samples::default();
    samples.push(window.end_ns, 0, 1, 0);
    partition.head.add(7, samples, window.end_ns);
    partition
}

/// Opens an empty store.
pub(super) fn empty_store(directory: &std::path::Path) -> Store {
    let sizes = BudgetSizes { engines: 1, head_bytes_max: 1, dictionary_bytes_max: 1, cache_bytes: 1 << 20 };
    let store = Store::open(Config {
        directory: directory.to_owned(),
        budgets: Budgets::new(sizes),
        barrier: crate::LogBarrier::default(),
    });
    store.unwrap()
}

// Regression: a query of five minutes counted the groups of all series of six hours against its limit.
#[test]
fn groups_of_series_without_samples_do_not_count() {
    let directory = tempfile::tempdir().unwrap();
    let store = empty_store(directory.path());
    let window = Window { start_ns: 0, end_ns: 1_000_000_000 };
    let tenant = TenantId::default_tenant();
    for fold in [Fold::Sum(vec![window]), Fold::Points(window)] {
        for (group_by_series, stacks) in [(true, StackDetail::None), (false, StackDetail::Full)] {
            let selection = Selection {
                tenant: tenant.clone(),
                matchers: Vec::new(),
                fold: fold.clone(),
                group_by: vec!["pod".to_owned()],
                group_by_series,
                stacks,
                locations: proto::LocationSets::default(),
            };
            let query = Query {
                tenant: &tenant,
                matchers: &[],
                buckets: &[window],
                group_by: &selection.group_by,
                listed_label: None,
                by_series: group_by_series,
                aggregate: Aggregate::Sums,
                tiers: Tiers::RAW,
                needs_stacks: true,
                is_wanted: &|| true,
            };
            let interval = Interval { start_ns: window.start_ns, end_ns: window.end_ns, bucket: 0 };
            let plan = PartPlan { raw: vec![interval], ..PartPlan::default() };
            let partition = partition(window);
            let part = gather(partition.key, Arc::new(RwLock::new(partition)), plan, &query);
            let view = View::new(None, store.database().snapshot(), &|| true);
            let mut accumulator = Accumulator::new(&selection, &[]);
            assert!(matches!(accumulator.add(&view, &part), Ok(Progress::Done)));
            let bytes = accumulator.groups.memory_bytes();
            let answer = accumulator.finish(ReadSummary::default());
            assert_eq!((answer.groups.len(), answer.groups[0].get("pod")), (1, "7"));
            assert_eq!(bytes, answer.groups[0].memory_bytes() + 64);
        }
    }
}
