//! Replicas that apply the same entries have the same outcomes, contents and responses, although they get the entries
//! in different forms, flush, seal, roll up and reopen at different times, and have different budgets.
//!
//! - The first replica applies entries as a leader has them in memory.
//! - The second one decodes each entry, and evicts its dictionaries with each flush.
//! - The third one works all the time, and never keeps samples in memory over a flush.
//! - The last one starts from a snapshot of another replica in the middle of the log, up to three times.

mod counts;
mod history;
mod replica;

use proptest::prelude::*;
use proto::selection::Operation;
use proto::{Fold, LocationSets, Matcher, Selection, StackDetail, TenantId, Tier, Window};
use storage_engine::{BudgetSizes, Outcome};
use storage_model::samples::{Drawn, SECOND, T0};
use storage_model::world::BUDGETS;

use self::counts::Counts;
use self::history::{Case, Log, Proposal, Push, REPLICAS, Step};
use self::replica::{OF_GAUGE, Replica, Summed, Traits, Upkeep};
use super::cases;

/// Properties of the replicas. The last one is that of the replica that starts from snapshots.
const TRAITS: [Traits; REPLICAS] = [
    Traits { leads: true, budgets: BUDGETS },
    Traits { leads: false, budgets: BudgetSizes { dictionary_bytes_max: 1 << 10, ..BUDGETS } },
    Traits { leads: false, budgets: BudgetSizes { head_bytes_max: 200, ..BUDGETS } },
    Traits { leads: false, budgets: BUDGETS },
];

/// Compares the contents and the responses of all replicas.
///
/// Replicas sum up hours and days at different times, and these lack labels that were dropped, attributes, and sums of
/// gauges. Unless `is_sealed`, a query for these may therefore be refused by some replicas, or have more missing times
/// or series.
/// The ends of missing times also depend on the partitions that exist, which differ only between periods.
fn compare(replicas: &[Replica], case: &Case, is_sealed: bool, counts: &Counts) -> Result<(), TestCaseError> {
    counts.add("comparison");
    let [first, others @ ..] = replicas else { unreachable!("there are replicas") };
    for selection in &case.selections {
        let mut names = selection.matchers.iter().map(|matcher| &matcher.name).chain(&selection.group_by);
        let is_by_attribute = names.any(|name| name == "thread_name");
        let is_equal = is_sealed || case.periods == 0 && !case.drops_labels() && !is_by_attribute;
        let (sums, series) = first.responses(selection, counts);
        for (number, other) in others.iter().enumerate() {
            let (other_sums, other_series) = other.responses(selection, counts);
            match (&sums, &other_sums) {
                (Ok((sums, missing, samples)), Ok((other_sums, other_missing, other_samples))) => {
                    prop_assert_eq!(other_sums, sums, "replica {}: {:?}", number + 1, selection);
                    prop_assert_eq!(other_samples, samples, "replica {}: {:?}", number + 1, selection);
                    if is_equal {
                        prop_assert_eq!(other_missing, missing, "replica {}: {:?}", number + 1, selection);
                    }
                    counts.add_if(missing != other_missing, "query with different missing times");
                }
                _ if is_sealed => prop_assert_eq!(&other_sums, &sums, "replica {}: {:?}", number + 1, selection),
                _ => {
                    let is_of_gauge = |summed: &Summed| summed.as_ref().err().is_none_or(|refusal| refusal == OF_GAUGE);
                    let is_expected = !is_equal || sums == other_sums || is_of_gauge(&sums) && is_of_gauge(&other_sums);
                    prop_assert!(is_expected, "replica {}: {:?}: {:?} {:?}", number + 1, selection, sums, other_sums);
                    counts.add_if(sums != other_sums, "query that only some refuse");
                }
            }
            if is_equal {
                prop_assert_eq!(&other_series, &series, "replica {}: {:?}", number + 1, selection);
            }
        }
    }
    // Last, because this flushes.
    let content = first.engine().content().unwrap();
    for (number, other) in others.iter().enumerate() {
        prop_assert_eq!(&other.engine().content().unwrap(), &content, "replica {}", number + 1);
        prop_assert_eq!(other.engine().membership(), first.engine().membership());
    }
    Ok(())
}

fn run(case: &Case, counts: &Counts) -> Result<(), TestCaseError> {
    let [.., of_last] = TRAITS;
    let mut replicas: Vec<_> = TRAITS[..REPLICAS - 1].iter().map(|&traits| Replica::new(traits)).collect();
    let mut log = Log::new();
    for (index, step) in case.steps.iter().enumerate() {
        for (at, source) in &case.snapshots {
            if at % case.steps.len() == index {
                counts.add("snapshot");
                // The last replica may not exist yet.
                let copy = replicas[source % replicas.len()].snapshot(of_last);
                replicas.truncate(REPLICAS - 1);
                replicas.push(copy);
            }
        }
        log.propose(step, replicas[0].engine(), counts);
        let outcomes: Vec<_> = replicas.iter().map(|replica| replica.apply_last(&log.entries)).collect();
        let [outcome, others @ ..] = &outcomes[..] else { unreachable!("there are replicas") };
        prop_assert!(
            others.iter().all(|other| other == outcome),
            "entry {}: {:?} {:?}",
            index,
            outcomes,
            step.proposal
        );
        outcome.iter().for_each(|outcome: &Outcome| counts.add_outcome(*outcome));
        for (replica, upkeep) in replicas.iter_mut().zip(step.upkeep) {
            replica.keep(upkeep, &log.entries, counts);
        }
        if step.is_compared {
            compare(&replicas, case, false, counts)?;
        }
    }
    prop_assert_eq!(replicas.len(), REPLICAS, "no replica started from a snapshot");
    compare(&replicas, case, false, counts)?;
    let content = replicas[0].engine().content().unwrap();
    // The content stays the same when everything is sealed and rolled up.
    let signatures: Vec<_> = replicas.iter().map(Replica::sealed_signature).collect();
    prop_assert!(signatures.iter().all(|signature| *signature == signatures[0]), "{:?}", signatures);
    prop_assert_eq!(replicas[0].engine().content().unwrap(), content);
    compare(&replicas, case, true, counts)?;
    Ok(())
}

#[test]
fn replicas_of_all_kinds_stay_equal() {
    let counts = Counts::default();
    let cases = cases::check_all(200, Case::any, |case| run(case, &counts));
    counts.check(cases >= 200);
}

/// Runs entries on the four replicas, of which the first two do upkeep. The last one starts from a snapshot of the
/// first before the last entry.
fn run_steps(steps: Vec<(Proposal, [Upkeep; 2])>) {
    let step = |(proposal, [one, other]): (Proposal, [Upkeep; 2])| {
        let upkeep = [one, other, Upkeep::Nothing, Upkeep::Nothing];
        Step { proposal, wait: 0, upkeep, is_compared: false }
    };
    let steps: Vec<_> = steps.into_iter().map(step).collect();
    let snapshots = vec![(steps.len() - 1, 0)];
    let case = Case { steps, snapshots, selections: Vec::new(), periods: 0 };
    run(&case, &Counts::default()).unwrap();
}

/// Old samples have no threads, and later ones in the same partition of hours have threads. Only one replica has rolled
/// the later ones up when the deletion by thread is applied, and both must decide alike.
#[test]
fn a_deletion_does_not_depend_on_the_progress_of_the_rollup() {
    let old = Drawn { thread: 0, ..Drawn::simple(0, -100_000, 1, 5) };
    let later = Drawn::simple(0, -20_000, 1, 5);
    run_steps(vec![
        (Proposal::Append(Push::of(vec![old])), [Upkeep::Nothing; 2]),
        (Proposal::Expire(Tier::Minute, 0, -50_000), [Upkeep::Nothing; 2]),
        (Proposal::Append(Push::of(vec![later])), [Upkeep::PassTime(10_000), Upkeep::Nothing]),
        (Proposal::Delete(0, vec![(3, 0, 1)], -110_000, -90_000), [Upkeep::Nothing; 2]),
    ]);
}

/// A query for last points needs raw samples, which have expired. Only one replica has days, which lack a label of the
/// query, and both must report the same times as missing.
#[test]
fn missing_times_do_not_depend_on_the_progress_of_the_rollup() {
    let old = Drawn { service: 0, time: -26_600 * SECOND, user: 0, kernel: 0, value: 0, thread: 0 };
    let later = Drawn { time: -2, thread: 1, ..old.clone() };
    let matcher = |value: &str| Matcher { name: "region".to_owned(), operation: Operation::Equal, value: value.into() };
    let window = Window { start_ns: T0 - 91_340 * SECOND - 1, end_ns: T0 };
    let selection = |value: &str| Selection {
        tenant: TenantId::default_tenant(),
        matchers: vec![matcher(value)],
        fold: Fold::Points(window),
        group_by: Vec::new(),
        group_by_series: false,
        stacks: StackDetail::None,
        locations: LocationSets::default(),
    };
    let nothing = [Upkeep::Nothing; REPLICAS];
    let last = [Upkeep::Nothing, Upkeep::Nothing, Upkeep::Nothing, Upkeep::PassTime(2260)];
    let step = |(proposal, upkeep)| Step { proposal, wait: 0, upkeep, is_compared: false };
    let steps = [
        (Proposal::DropLabels(0, [2, 3]), nothing),
        (Proposal::Append(Push::of(vec![old])), nothing),
        (Proposal::Expire(Tier::Raw, 0, 0), nothing),
        (Proposal::Append(Push::of(vec![later])), last),
    ];
    let steps: Vec<_> = steps.into_iter().map(step).collect();
    let selections = vec![selection("none"), selection("eu")];
    run(&Case { steps, snapshots: vec![(0, 0)], selections, periods: 0 }, &Counts::default()).unwrap();
}

/// The labels that sums drop change twice, in samples of three periods of eight days. The replicas sum up hours and
/// days at different times, and must drop the same labels from each.
#[test]
fn changes_of_dropped_labels_hold_for_the_same_times_on_every_replica() {
    const PERIOD: i64 = 8 * 86_400;
    let append = |period: i64| {
        let samples = [0, 1, 2].map(|service| Drawn::simple(service, period * PERIOD + i64::from(service), 1, 5));
        Proposal::Append(Push::of(samples.to_vec()))
    };
    run_steps(vec![
        (append(0), [Upkeep::Nothing; 2]),
        (Proposal::DropLabels(0, [2, 3]), [Upkeep::PassTime(4 * PERIOD), Upkeep::Reopen]),
        (append(0), [Upkeep::Nothing; 2]),
        (append(1), [Upkeep::PassTime(4 * PERIOD), Upkeep::Nothing]),
        (Proposal::DropLabels(0, [1, 0]), [Upkeep::Crash, Upkeep::Compact]),
        (append(2), [Upkeep::Nothing, Upkeep::PassTime(4 * PERIOD)]),
        (Proposal::Expire(Tier::Minute, 0, 2 * PERIOD), [Upkeep::Nothing, Upkeep::Crash]),
        (append(2), [Upkeep::Reopen, Upkeep::Nothing]),
    ]);
}

/// A partition's only sample is deleted. Only one replica opens the partition again before the next deletion, and both
/// must decide alike.
#[test]
fn a_deletion_does_not_depend_on_a_restart() {
    let deleted = Drawn::simple(1, -74_863, 0, 0);
    let later = Drawn { thread: 0, ..Drawn::simple(0, -20_000, 0, 0) };
    run_steps(vec![
        (Proposal::Append(Push::of(vec![deleted])), [Upkeep::Nothing; 2]),
        (Proposal::Delete(0, vec![(1, 0, 1)], -74_864, -74_863), [Upkeep::Nothing; 2]),
        (Proposal::Append(Push::of(vec![later])), [Upkeep::Reopen, Upkeep::Nothing]),
        (Proposal::Delete(0, vec![(3, 0, 0)], -69_801, -69_800), [Upkeep::Nothing; 2]),
    ]);
}
