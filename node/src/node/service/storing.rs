//! The parts of a tenant's policy that change what shards store. The leader of a shard applies them to each batch
//! before it proposes the batch, so followers and later starts find their effect in the entry.
//!
//! The leader does this, and not the router. The router divides a push by the labels that were pushed, so a retry goes
//! to the same shards under the same ID, also if the policy has changed since. If labels were removed before, a service
//! that is spread over several shards would be divided in another way. A retry would then miss series that one shard
//! has not stored, because the other shard knows the ID already.
//!
//! For the same reason, batches are split into entries before the policy is applied.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::time::Duration;

use proto::meta::{DEFAULT_CLASS, State, TimeResolution};
use proto::{Batch, Fingerprint, Label, LabelDrops, LabelSet, Samples, SeriesSamples, TenantId, Tier, limits};
use tonic::Status;

/// The rules by which the samples of one push are stored.
#[derive(Debug)]
pub(super) struct Storing {
    retention_class: u8,
    /// Retention of raw samples.
    retention: Duration,
    time_resolution: TimeResolution,
    /// Names of the labels that are removed.
    removed_labels: Vec<String>,
    /// Names of the labels that hours and days drop.
    dropped_labels: [Vec<String>; 2],
    /// Number of series that the tenant may have in six hours of a shard.
    series_max: usize,
    /// Revision of the state of the meta group that has these rules.
    revision: u64,
}

impl Storing {
    /// Returns the rules of a tenant.
    ///
    /// # Errors
    /// UNAVAILABLE: this node does not know the tenant yet, or the tenant was deleted.
    pub(super) fn of(state: &State, tenant: &TenantId) -> Result<Self, Status> {
        let known = state.tenants.get(tenant);
        let class = known.map(|known| known.retention_class);
        let class = class.or_else(|| (*tenant == TenantId::default_tenant()).then_some(DEFAULT_CLASS));
        let of_class = class.and_then(|class| Some((class, state.retention_classes.get(usize::from(class))?)));
        let (retention_class, retention) = of_class.ok_or_else(|| {
            Status::unavailable(format!("this node does not know tenant {tenant} yet: try again in a moment"))
        })?;
        let policy = known.map(|known| &known.policy);
        let time_resolution = policy.map_or(TimeResolution::Nanoseconds, |policy| policy.time_resolution);
        let removed_labels = policy.map(|policy| policy.removed_labels.clone()).unwrap_or_default();
        let dropped_labels = policy.map(|policy| policy.dropped_labels.clone()).unwrap_or_default();
        let series_max = policy.and_then(|policy| policy.limits.series_max).map_or(u64::MAX, NonZeroU64::get);
        let series_max = usize::try_from(series_max).unwrap_or(usize::MAX).min(limits::PARTITION_SERIES_MAX);
        let retention = retention.of(Tier::Raw);
        Ok(Self {
            retention_class,
            retention,
            time_resolution,
            removed_labels,
            dropped_labels,
            series_max,
            revision: state.revision,
        })
    }

    /// Returns the entry after which the sums of a tenant drop the labels of the policy; `None` if they do already.
    /// The shard has the labels `known` of a revision.
    pub(super) fn label_drops(&self, tenant: &TenantId, known: (&[Vec<String>; 2], u64)) -> Option<LabelDrops> {
        let (known, of_revision) = known;
        let (names, revision) = (&self.dropped_labels, self.revision);
        let drops = || LabelDrops { tenant: tenant.clone(), names: names.clone(), revision };
        (names != known && revision >= of_revision).then(drops)
    }

    /// Returns the number of series that the tenant may have in six hours of a shard.
    pub(super) fn series_max(&self) -> usize {
        self.series_max
    }

    /// Retention of raw samples. Older samples are not stored.
    pub(super) fn retention(&self) -> Duration {
        self.retention
    }

    /// Returns the batch as it is stored. Series that differ only in removed labels become one series. Returns `None`
    /// if labels must be removed from a series whose labels the batch omits.
    pub(super) fn apply(&self, batch: Batch) -> Option<Batch> {
        let mut batch = Batch { retention_class: self.retention_class, ..batch };
        if self.time_resolution != TimeResolution::Nanoseconds {
            let times = batch.series.iter_mut().flat_map(|series| &mut series.samples.times_ns);
            times.for_each(|time_ns| *time_ns = self.time_resolution.round(*time_ns));
        }
        if self.removed_labels.is_empty() {
            return Some(batch);
        }
        let mut series: Vec<SeriesSamples> = Vec::with_capacity(batch.series.len());
        let mut indexes: BTreeMap<Fingerprint, usize> = BTreeMap::new();
        for SeriesSamples { labels, samples, .. } in batch.series {
            let labels = self.without_removed(labels?);
            let fingerprint = labels.fingerprint(&batch.tenant);
            let index = *indexes.entry(fingerprint).or_insert_with(|| {
                series.push(SeriesSamples { fingerprint, labels: Some(labels), samples: Samples::default() });
                series.len() - 1
            });
            series[index].samples.append(samples);
        }
        Some(Batch { series, ..batch })
    }

    fn without_removed(&self, labels: LabelSet) -> LabelSet {
        let is_removed =
            |label: &Label| self.removed_labels.binary_search_by(|name| name.as_str().cmp(&label.name)).is_ok();
        if !labels.iter().any(is_removed) {
            return labels;
        }
        LabelSet::new(labels.iter().filter(|label| !is_removed(label)).cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proto::Label;
    use proto::meta::{Limits, Policy, Retention, Tenant};

    use super::*;

    fn state(removed_labels: &[&str]) -> State {
        let name = TenantId::new("acme").unwrap();
        let policy = Policy {
            retention: Retention([7, 8, 9, 10]),
            time_resolution: TimeResolution::Nanoseconds,
            removed_labels: removed_labels.iter().map(|&name| name.to_owned()).collect(),
            dropped_labels: [vec!["pod".to_owned()], Vec::new()],
            limits: Limits::default(),
        };
        let retention_classes = vec![Retention([1, 2, 3, 4]), Retention([5; 4]), policy.retention];
        let acme = Tenant { name: name.clone(), policy, retention_class: 2, owns_class: true, tokens: BTreeMap::new() };
        State { revision: 5, tenants: BTreeMap::from([(name, acme)]), retention_classes, ..State::default() }
    }

    fn storing(removed_labels: &[&str]) -> Storing {
        Storing::of(&state(removed_labels), &TenantId::new("acme").unwrap()).unwrap()
    }

    #[test]
    fn a_change_of_dropped_labels_is_proposed_only_while_the_shard_has_others() {
        let acme = TenantId::new("acme").unwrap();
        let wanted = [vec!["pod".to_owned()], Vec::new()];
        let none = <[Vec<String>; 2]>::default();
        let drops = storing(&[]).label_drops(&acme, (&none, 4));
        assert_eq!(drops, Some(LabelDrops { tenant: acme.clone(), names: wanted.clone(), revision: 5 }));
        assert_eq!(storing(&[]).label_drops(&acme, (&wanted, 4)), None);
        // Another leader knew a newer policy.
        assert_eq!(storing(&[]).label_drops(&acme, (&none, 6)), None);
        let default = TenantId::default_tenant();
        let of_default = Storing::of(&state(&[]), &default).unwrap();
        assert_eq!(of_default.label_drops(&default, (&none, 0)), None);
    }

    #[test]
    fn a_tenant_has_the_class_of_its_policy_and_default_the_first() {
        let acme = storing(&[]);
        assert_eq!((acme.retention_class, acme.retention()), (2, Duration::from_secs(7)));
        let default = Storing::of(&state(&[]), &TenantId::default_tenant()).unwrap();
        assert_eq!((default.retention_class, default.retention()), (0, Duration::from_secs(1)));
        for (state, tenant) in [(state(&[]), "other"), (State::default(), "default")] {
            let status = Storing::of(&state, &TenantId::new(tenant).unwrap()).unwrap_err();
            assert_eq!(status.code(), tonic::Code::Unavailable);
            assert!(status.message().contains(tenant), "{status}");
        }
    }

    #[test]
    fn times_are_rounded_up_within_their_minute() {
        const MINUTE_NS: i64 = 60_000_000_000;
        let times = [1, 1_000_000, 1_000_001, MINUTE_NS - 1, MINUTE_NS, MINUTE_NS + 1];
        for (resolution, wanted) in [
            (TimeResolution::Nanoseconds, times),
            (
                TimeResolution::Milliseconds,
                [1, 1, 2, 60_000, 60_000, 60_001].map(|millisecond| millisecond * 1_000_000),
            ),
            (TimeResolution::Window, [1, 1, 1, 1, 1, 2].map(|minute| minute * MINUTE_NS)),
        ] {
            let mut batch = testkit::batches::batch(None, [1; 6]);
            batch.series[0].samples.times_ns = times.to_vec();
            // Labels are not needed for it.
            batch.series[0].labels = None;
            let stored = Storing { time_resolution: resolution, ..storing(&[]) }.apply(batch).unwrap();
            assert_eq!(stored.series[0].samples.times_ns, wanted, "{resolution:?}");
        }
    }

    #[test]
    fn a_series_without_labels_is_sent_again_if_labels_are_removed() {
        let mut batch = testkit::batches::batch(None, [1, 2]);
        batch.series[0].labels = None;
        assert!(storing(&["pod"]).apply(batch.clone()).is_none());
        assert!(storing(&[]).apply(batch).is_some());
    }

    proptest! {
        #[test]
        fn series_that_differ_in_removed_labels_become_one_with_all_samples(
            series in proptest::collection::btree_map((0_u8..3, 0_u8..3, 0_u8..3), 1_i64..4, 1..12),
            removed in prop::sample::subsequence(vec!["node", "pod"], 0..=2),
        ) {
            let mut batch = testkit::batches::batch(None, [1]);
            let [one] = batch.series.as_slice() else { panic!() };
            let one = one.clone();
            let mut wanted: BTreeMap<LabelSet, Vec<i64>> = BTreeMap::new();
            batch.series.clear();
            for (&(service, pod, node), &samples) in &series {
                let labels = [("service_name", service), ("pod", pod), ("node", node)];
                let labels = |names: &[&str]| {
                    let kept = labels.iter().filter(|(name, value)| *value > 0 && !names.contains(name));
                    LabelSet::new(kept.map(|(name, value)| Label::new(name, value.to_string())).collect())
                };
                let mut of_series = Samples::default();
                for sample in 0..samples {
                    let time_ns = sample * 100 + i64::from(pod * 10 + node);
                    of_series.push(time_ns, one.samples.pairs[0], 1, one.samples.attribute_sets[0]);
                    wanted.entry(labels(&removed)).or_default().push(time_ns);
                }
                let fingerprint = labels(&[]).fingerprint(&batch.tenant);
                batch.series.push(SeriesSamples { fingerprint, labels: Some(labels(&[])), samples: of_series });
            }
            let tenant = batch.tenant.clone();
            let stored = storing(&removed).apply(batch).unwrap();
            prop_assert_eq!(stored.retention_class, 2);
            let mut got: BTreeMap<LabelSet, Vec<i64>> = BTreeMap::new();
            for SeriesSamples { fingerprint, labels, samples } in stored.series {
                let labels = labels.unwrap();
                prop_assert_eq!(fingerprint, labels.fingerprint(&tenant));
                prop_assert!(got.insert(labels, samples.times_ns).is_none(), "a series occurs twice");
            }
            wanted.values_mut().chain(got.values_mut()).for_each(|times| times.sort_unstable());
            prop_assert_eq!(got, wanted);
        }
    }
}
