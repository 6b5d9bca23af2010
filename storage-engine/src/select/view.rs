//! Data that a query reads, as of one moment.

use std::cell::RefCell;
use std::sync::Arc;

use parking_lot::RwLock;
use proto::LabelSet;

use crate::database::Snapshot;
use crate::database::key::PartitionKey;
use crate::integrity::quarantine::damage::NewDamage;
use crate::integrity::quarantine::part_damage::PartDamage;
use crate::memory::partition::{Lengths, Partition};
use crate::memory::run::Run;
use crate::memory::tenant_dictionary::TenantDictionary;
use crate::select::plan::PartPlan;

/// Data that all partitions of a query share.
pub(crate) struct View<'a> {
    pub(crate) shared: Option<Arc<RwLock<TenantDictionary>>>,
    pub(crate) snapshot: Snapshot<'a>,
    /// Function `is_wanted` of the query. It returns false if the caller no longer waits.
    pub(crate) is_wanted: &'a dyn Fn() -> bool,
    /// Damage that the query found and that was unknown before. A query that finds any is planned again.
    pub(crate) found: RefCell<Vec<NewDamage>>,
}

/// Data that a query reads from one partition.
pub(crate) struct PartView {
    pub(crate) key: PartitionKey,
    pub(crate) partition: Arc<RwLock<Partition>>,
    pub(crate) plan: PartPlan,
    pub(crate) series: Vec<SeriesView>,
    /// Lengths of the partition's lists. The data that the query reads refers only to numbers below these lengths.
    pub(crate) known: Lengths,
    pub(crate) damage: PartDamage,
}

/// A series that matches the query.
pub(crate) struct SeriesView {
    pub(crate) number: u32,
    pub(crate) labels: Arc<LabelSet>,
    pub(crate) is_gauge: bool,
    /// Planned runs of the series in the head, ascending by window.
    pub(crate) head: Vec<Arc<Run>>,
}
