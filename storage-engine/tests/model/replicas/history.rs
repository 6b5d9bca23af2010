//! Generated histories: the entries of a log, and the work of each replica between them.

use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use prost::Message as _;
use proto::entry::Deletion;
use proto::limits::PARTITION_SERIES_MAX;
use proto::selection::Operation;
use proto::{Batch, Command, Entry, Fold, LabelDrops, LabelSet, Matcher, Selection, TenantId, Tier, Window, wire};
use storage_engine::Engine;
use storage_model::answers::selection;
use storage_model::samples::{Drawn, SECOND, T0, batch_of, drawn};
use storage_model::steps::CLASSES;

use super::counts::Counts;
use super::replica::Upkeep;

/// Number of replicas.
pub(super) const REPLICAS: usize = 4;
const TENANTS: u8 = 3;
const STEPS_MAX: usize = 24;
/// Time of a sample before or after its proposal from which it counts as late or early.
const HOUR_NS: i64 = 3600 * SECOND;
/// Length of the partitions of hours. Changes of the labels that sums drop hold from the begin of such a period on.
const PERIOD_SECONDS: i64 = 8 * 86_400;

/// A generated history.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) steps: Vec<Step>,
    /// Snapshots from which the last replica starts: before which step, modulo their number, and of which replica.
    pub(super) snapshots: Vec<(usize, usize)>,
    pub(super) selections: Vec<Selection>,
    /// Number of periods of eight days after the first in which samples may be.
    pub(super) periods: u8,
}

/// An entry, and what happens after it.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) proposal: Proposal,
    /// Seconds since the entry before.
    pub(super) wait: i64,
    pub(super) upkeep: [Upkeep; REPLICAS],
    /// True if the contents of all replicas are compared after the entry.
    pub(super) is_compared: bool,
}

#[derive(Clone, Debug)]
pub(super) enum Proposal {
    Append(Push),
    /// Appends one of the last batches of the history again, in this class, as a client that got no response does.
    Retry(usize, u8),
    /// Expires a tier of this class up to a time, in seconds since [`T0`].
    Expire(Tier, u8, i64),
    /// Deletes samples of a tenant between two times, in seconds since [`T0`].
    Delete(u8, Vec<Matched>, i64, i64),
    /// Sets the labels that hours and days of a tenant drop: bit 0 for `region`, and bit 1 for `zone`.
    DropLabels(u8, [u8; 2]),
    /// An entry of consensus itself, which sets this membership.
    Consensus(Option<u8>),
}

/// Samples of one batch.
#[derive(Clone, Debug)]
pub(super) struct Push {
    pub(super) samples: Vec<Drawn>,
    /// Number of periods of eight days by which the samples are later.
    pub(super) period: u8,
    pub(super) tenant: u8,
    pub(super) class: u8,
    pub(super) id: Option<u8>,
    /// Bit `n` is set if the series of service `n` have no label `zone`.
    pub(super) bare: u8,
    pub(super) omitted: Omitted,
    /// True if the batch has definitions that no sample refers to. They are not in the encoded form.
    pub(super) has_unused: bool,
}

impl Push {
    pub(super) fn of(samples: Vec<Drawn>) -> Self {
        Self {
            samples,
            period: 0,
            tenant: 0,
            class: 0,
            id: None,
            bare: 0,
            omitted: Omitted::Nothing,
            has_unused: false,
        }
    }
}

/// Definitions that a batch omits.
#[derive(Clone, Copy, Debug)]
pub(super) enum Omitted {
    Nothing,
    /// Those that a replica has, as when the leader proposes a batch.
    Known,
    /// All stacks and series. The references dangle if the shard does not have them.
    All,
}

/// A condition of a deletion: the numbers of a label, of an operation and of a value.
pub(super) type Matched = (u8, u8, u8);

fn class() -> impl Strategy<Value = u8> {
    prop::sample::select(CLASSES.to_vec())
}

/// Generates samples in the period of [`T0`], or up to this number of periods later.
fn push(periods: u8) -> impl Strategy<Value = Push> {
    let samples = prop::collection::vec(drawn(), 1..12);
    let omitted = prop_oneof![3 => Just(Omitted::Nothing), 2 => Just(Omitted::Known), 1 => Just(Omitted::All)];
    let tenant = prop_oneof![2 => Just(0), 1 => 0..TENANTS];
    let class = prop_oneof![2 => Just(0), 1 => class()];
    (samples, tenant, class, prop::option::of(0..4_u8), 0..8_u8, omitted, prop::bool::weighted(0.3), 0..=periods)
        .prop_map(|(samples, tenant, class, id, bare, omitted, has_unused, period)| Push {
            samples,
            period,
            tenant,
            class,
            id,
            bare,
            omitted,
            has_unused,
        })
}

fn proposal(periods: u8) -> impl Strategy<Value = Proposal> {
    let later = || (0..=i64::from(periods)).prop_map(|period| period * PERIOD_SECONDS);
    let tier = || (0..4_u8).prop_map(|number| Tier::from_number(number).unwrap());
    let matched = (0..5_u8, 0..4_u8, 0..4_u8);
    let matchers = prop_oneof![
        2 => matched.clone().prop_map(|(name, _, value)| vec![(name, 0, value)]),
        1 => prop::collection::vec(matched, 1..3),
    ];
    prop_oneof![
        8 => push(periods).prop_map(Proposal::Append),
        2 => (0..8_usize, class()).prop_map(|(batch, class)| Proposal::Retry(batch, class)),
        3 => (tier(), prop_oneof![1 => Just(0), 1 => class()], -200_000..40_000_i64, later())
            .prop_map(|(tier, class, second, later)| Proposal::Expire(tier, class, second + later)),
        3 => (prop_oneof![2 => Just(0), 1 => 0..TENANTS], matchers, -200_000..60_000_i64, 1..100_000_i64, later())
            .prop_map(|(tenant, matchers, second, length, later)| {
                let start = second + later;
                Proposal::Delete(tenant, matchers, start, start + length)
            }),
        1 => (prop_oneof![2 => Just(0), 1 => 0..TENANTS], [0..4_u8, 0..4_u8])
            .prop_map(|(tenant, names)| Proposal::DropLabels(tenant, names)),
        1 => prop::option::of(any::<u8>()).prop_map(Proposal::Consensus),
    ]
}

fn step(periods: u8) -> impl Strategy<Value = Step> {
    let wait = prop_oneof![6 => Just(0), 3 => 0..2000_i64, 1 => 0..40_000_i64];
    let upkeep = [Upkeep::any(4), Upkeep::any(4), Upkeep::any(1), Upkeep::any(2)];
    (proposal(periods), wait, upkeep, prop::bool::weighted(0.1))
        .prop_map(|(proposal, wait, upkeep, is_compared)| Step { proposal, wait, upkeep, is_compared })
}

/// Returns a step, after steps that expire the finer tiers up to the same time if the step expires hours or days. A
/// node keeps no tier longer than the coarser ones.
fn with_finer(step: Step) -> Vec<Step> {
    let finer = match step.proposal {
        Proposal::Expire(Tier::Hour, class, second) => vec![Proposal::Expire(Tier::Minute, class, second)],
        Proposal::Expire(Tier::Day, class, second) => {
            [Tier::Minute, Tier::Hour].map(|tier| Proposal::Expire(tier, class, second)).to_vec()
        }
        _ => Vec::new(),
    };
    let quiet = |proposal| Step { proposal, upkeep: [Upkeep::Nothing; REPLICAS], is_compared: false, ..step.clone() };
    let mut steps: Vec<Step> = finer.into_iter().map(quiet).collect();
    steps.push(step);
    steps
}

impl Case {
    pub(super) fn any() -> impl Strategy<Value = Self> {
        // In some cases, samples are in several periods.
        prop_oneof![3 => Just(0), 1 => Just(2)].prop_flat_map(Self::in_periods)
    }

    fn in_periods(periods: u8) -> impl Strategy<Value = Self> {
        let steps = prop::collection::vec(step(periods), 1..=STEPS_MAX);
        let snapshots = prop::collection::vec((0..STEPS_MAX, 0..REPLICAS), 1..4);
        let selection = (selection(), 0..TENANTS, 0..=periods, any::<bool>()).prop_map(
            move |(selection, number, period, is_long)| {
                let is_long = is_long && periods > 0;
                let later_ns = i64::from(period) * PERIOD_SECONDS * SECOND;
                let later = |Window { start_ns, end_ns }: Window| Window {
                    start_ns: start_ns.saturating_add(later_ns),
                    end_ns: end_ns.saturating_add(later_ns),
                };
                let fold = match selection.fold {
                    Fold::Sum(windows) => Fold::Sum(windows.into_iter().map(later).collect()),
                    Fold::Points(window) => Fold::Points(later(window)),
                    Fold::Last(window) => Fold::Last(later(window)),
                };
                // Some windows end in a later period.
                let fold = match fold {
                    Fold::Sum(mut windows) if is_long => {
                        if let Some(last) = windows.last_mut() {
                            last.end_ns = last.end_ns.saturating_add(PERIOD_SECONDS * SECOND);
                        }
                        Fold::Sum(windows)
                    }
                    fold => fold,
                };
                Selection { tenant: tenant(number), fold, ..selection }
            },
        );
        let selections = prop::collection::vec(selection, 1..4);
        // In some cases, labels are dropped from the beginning.
        let first =
            prop::option::of(step(periods).prop_map(|step| Step { proposal: Proposal::DropLabels(0, [2, 3]), ..step }));
        (first, steps, snapshots, selections).prop_map(move |(first, steps, snapshots, selections)| Self {
            steps: first.into_iter().chain(steps.into_iter().flat_map(with_finer)).collect(),
            snapshots,
            selections,
            periods,
        })
    }

    /// Returns whether sums drop labels, at least from some time on.
    pub(super) fn drops_labels(&self) -> bool {
        self.steps.iter().any(|step| matches!(step.proposal, Proposal::DropLabels(..)))
    }
}

fn tenant(number: u8) -> TenantId {
    match number {
        0 => TenantId::default_tenant(),
        number => TenantId::new(&format!("tenant-{number}")).unwrap(),
    }
}

/// An entry of the log.
#[derive(Debug)]
pub(super) enum Logged {
    /// A command, as the leader has it in memory, and as the logs hold it.
    Command { entry: Entry, encoded: Vec<u8> },
    /// An entry of consensus itself, with the membership that it sets.
    Consensus(Option<Bytes>),
}

impl Logged {
    /// Encodes the entry as a node does.
    fn command(entry: Entry) -> Self {
        let mut encoded = wire::Entry { proposed_at_ns: entry.proposed_at_ns as u64, command: None }.encode_to_vec();
        entry.command.encode(&mut encoded);
        Self::Command { entry, encoded }
    }

    /// Returns the entry that a log holds.
    pub(super) fn decoded(encoded: &[u8]) -> Entry {
        Entry::from_wire(wire::Entry::decode(encoded).unwrap()).unwrap()
    }
}

/// The log of a history, and the batches in it.
#[derive(Debug)]
pub(super) struct Log {
    pub(super) entries: Vec<Logged>,
    /// Whole batches that were appended.
    batches: Vec<Batch>,
    now_ns: i64,
}

impl Log {
    pub(super) fn new() -> Self {
        Self { entries: Vec::new(), batches: Vec::new(), now_ns: T0 }
    }

    /// Adds the entry of a step. `leader` removes definitions that it has.
    pub(super) fn propose(&mut self, step: &Step, leader: &Engine, counts: &Counts) {
        self.now_ns += step.wait * SECOND;
        if step.wait > 0 {
            counts.add("entry at a later time");
        }
        let command = match &step.proposal {
            Proposal::Append(push) => self.append(push, leader, counts),
            Proposal::Retry(earlier, class) if !self.batches.is_empty() => {
                counts.add("retry");
                let earlier = self.batches.len() - 1 - earlier % self.batches.len();
                let batch = Batch { retention_class: *class, ..self.batches[earlier].clone() };
                Command::Append(Arc::new(batch))
            }
            Proposal::Retry(..) | Proposal::Consensus(None) => {
                counts.add("entry of consensus");
                return self.entries.push(Logged::Consensus(None));
            }
            Proposal::Consensus(Some(membership)) => {
                counts.add("membership");
                return self.entries.push(Logged::Consensus(Some(vec![*membership; 5].into())));
            }
            Proposal::Expire(tier, class, second) => {
                counts.add(["expire raw", "expire minutes", "expire hours", "expire days"][tier.number() as usize]);
                Command::Expire { tier: *tier, retention_class: *class, before_ns: T0 + second * SECOND }
            }
            Proposal::DropLabels(number, names) => {
                counts.add("drop labels");
                let of =
                    |bits: u8| ["region", "zone"].into_iter().zip(0..).filter(move |(_, bit)| bits >> bit & 1 == 1);
                let names = names.map(|bits| of(bits).map(|(name, _)| name.to_owned()).collect());
                Command::DropLabels(LabelDrops { tenant: tenant(*number), names, revision: self.entries.len() as u64 })
            }
            Proposal::Delete(number, matchers, start, end) => {
                let is_attribute = matchers.iter().any(|matched| matched.0 == 3);
                counts.add(if is_attribute { "delete by attribute" } else { "delete by labels" });
                let window = Window { start_ns: T0 + start * SECOND, end_ns: T0 + end * SECOND };
                let matchers = matchers.iter().map(matcher).collect();
                let deletion = Deletion { tenant: tenant(*number), matchers, window };
                storage_engine::check_deletion(&deletion).unwrap();
                Command::Delete(deletion)
            }
        };
        self.entries.push(Logged::command(Entry { proposed_at_ns: self.now_ns, command }));
    }

    fn append(&mut self, push: &Push, leader: &Engine, counts: &Counts) -> Command {
        let mut batch = batch(push);
        counts.add("append");
        counts.add_if(push.tenant > 0, "append of another tenant");
        counts.add_if(push.class > 0, "append in another class");
        let times = || push.samples.iter().map(Drawn::time_ns);
        counts.add_if(times().any(|time| time < self.now_ns - HOUR_NS), "append of late samples");
        counts.add_if(times().any(|time| time > self.now_ns + HOUR_NS), "append of early samples");
        counts.add_if(push.has_unused, "append with unused definitions");
        self.batches.push(batch.clone());
        match push.omitted {
            Omitted::Nothing => {}
            Omitted::Known => {
                let stripped = leader.strip(&mut batch, PARTITION_SERIES_MAX).unwrap();
                counts.add_if(stripped.is_some() && !batch.is_whole(), "append without known definitions");
            }
            Omitted::All => {
                batch.strip(|_stack| true, |_series| true);
                counts.add("append without definitions");
            }
        }
        Command::Append(Arc::new(batch))
    }
}

fn batch(push: &Push) -> Batch {
    let tenant = tenant(push.tenant);
    let later = i64::from(push.period) * PERIOD_SECONDS * SECOND;
    let samples: Vec<_> =
        push.samples.iter().map(|drawn| Drawn { time: drawn.time + later, ..drawn.clone() }).collect();
    let mut batch = Batch { tenant, retention_class: push.class, ..batch_of(&samples, push.id) };
    for series in &mut batch.series {
        let labels = series.labels.take().unwrap();
        let service: u8 = labels.get("service_name")[1..].parse().unwrap();
        let is_kept = |name: &str| name != "zone" || push.bare >> service & 1 == 0;
        let labels = LabelSet::new(labels.iter().filter(|label| is_kept(&label.name)).cloned().collect());
        series.fingerprint = labels.fingerprint(&batch.tenant);
        series.labels = Some(labels);
    }
    if push.has_unused && batch.series.len() > 1 {
        batch.series.pop();
    }
    batch
}

fn matcher(&(name, operation, value): &Matched) -> Matcher {
    let operations = [Operation::Equal, Operation::NotEqual, Operation::Match, Operation::NotMatch];
    let operation = operations[usize::from(operation)];
    let (name, of_name) = match name {
        0 => ("service_name", format!("s{value}")),
        1 => ("region", ["eu", "us"][usize::from(value) % 2].to_owned()),
        2 => ("zone", ["a", "b"][usize::from(value) % 2].to_owned()),
        3 => ("thread_name", format!("t{value}")),
        _ => ("missing", ["", "x"][usize::from(value) % 2].to_owned()),
    };
    let is_pattern = matches!(operation, Operation::Match | Operation::NotMatch);
    let value = if is_pattern { format!("{of_name}|s1|eu") } else { of_name };
    Matcher { name: name.to_owned(), operation, value }
}
