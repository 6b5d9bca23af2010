//! Replicas that apply the same entries have the same outcomes and the same sums, although they flush, seal, roll up
//! and reopen at different times.

use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use proto::entry::Deletion;
use proto::selection::Operation;
use proto::{Batch, Command, Entry, LabelSet, Matcher, TenantId, Tier, Window};
use storage_engine::{Engine, Outcome, Position};
use storage_model::samples::{Drawn, SECOND, T0, batch_of, drawn};
use storage_model::world::{Dropped, config};

/// Work that a replica does between two entries, at a time of its own.
#[derive(Clone, Copy, Debug)]
enum Upkeep {
    Nothing,
    Flush,
    Compact,
    /// Advances the clock to this many seconds after [`T0`], and flushes.
    PassTime(i64),
    Reopen,
}

#[derive(Clone, Debug)]
enum Proposal {
    /// Appends these samples. Bit `n` is set if the series of service `n` have no label `zone`.
    Append(Vec<Drawn>, u8),
    /// Appends these samples in this retention class, with this batch ID.
    AppendIn(u8, Vec<Drawn>, u8),
    /// Expires a tier of class 0 up to a time, in seconds since [`T0`].
    Expire(Tier, i64),
    /// Expires a tier of this retention class up to a time, in seconds since [`T0`].
    ExpireIn(u8, Tier, i64),
    /// Deletes the samples between two times that have this label with this value. The label and the value are numbers,
    /// and the times are seconds since [`T0`].
    Delete((u8, u8), i64, i64),
}

/// An entry, and the work of each of the two replicas after it.
type Step = (Proposal, [Upkeep; 2]);

fn upkeep() -> impl Strategy<Value = Upkeep> {
    prop_oneof![
        4 => Just(Upkeep::Nothing),
        2 => Just(Upkeep::Flush),
        2 => Just(Upkeep::Compact),
        2 => (0..400_000_i64).prop_map(Upkeep::PassTime),
        1 => Just(Upkeep::Reopen),
    ]
}

fn proposal() -> impl Strategy<Value = Proposal> {
    prop_oneof![
        5 => (prop::collection::vec(drawn(), 1..12), 0..8_u8)
            .prop_map(|(samples, bare)| Proposal::Append(samples, bare)),
        3 => (0..3_u8, prop::collection::vec(drawn(), 1..12), 0..3_u8)
            .prop_map(|(class, samples, id)| Proposal::AppendIn(class, samples, id)),
        2 => (0..4_u8, -200_000..40_000_i64)
            .prop_map(|(tier, second)| Proposal::Expire(Tier::from_number(tier).unwrap(), second)),
        1 => (1..3_u8, 0..4_u8, -200_000..40_000_i64)
            .prop_map(|(class, tier, second)| Proposal::ExpireIn(class, Tier::from_number(tier).unwrap(), second)),
        3 => ((0..4_u8, 0..4_u8), -200_000..60_000_i64, 1..100_000_i64)
            .prop_map(|(label, second, length)| Proposal::Delete(label, second, second + length)),
    ]
}

fn entry(proposal: &Proposal, index: usize) -> Entry {
    let command = match proposal {
        Proposal::Append(samples, bare) => {
            let mut batch = batch_of(samples, None);
            for series in &mut batch.series {
                let labels = series.labels.take().unwrap();
                let service: u8 = labels.get("service_name")[1..].parse().unwrap();
                let is_kept = |name: &str| name != "zone" || bare >> service & 1 == 0;
                let labels = LabelSet::new(labels.iter().filter(|label| is_kept(&label.name)).cloned().collect());
                series.fingerprint = labels.fingerprint(&TenantId::default_tenant());
                series.labels = Some(labels);
            }
            Command::Append(Arc::new(batch))
        }
        Proposal::AppendIn(class, samples, id) => {
            Command::Append(Arc::new(Batch { retention_class: *class, ..batch_of(samples, Some(*id)) }))
        }
        Proposal::Expire(tier, second) => {
            Command::Expire { tier: *tier, retention_class: 0, before_ns: T0 + second * SECOND }
        }
        Proposal::ExpireIn(class, tier, second) => {
            Command::Expire { tier: *tier, retention_class: *class, before_ns: T0 + second * SECOND }
        }
        Proposal::Delete((name, value), start, end) => {
            let (name, value) = match name {
                0 => ("service_name", format!("s{value}")),
                1 => ("region", ["eu", "us"][usize::from(*value) % 2].to_owned()),
                2 => ("zone", ["a", "b"][usize::from(*value) % 2].to_owned()),
                _ => ("thread_name", format!("t{value}")),
            };
            let matchers = vec![Matcher { name: name.to_owned(), operation: Operation::Equal, value }];
            let window = Window { start_ns: T0 + start * SECOND, end_ns: T0 + end * SECOND };
            Command::Delete(Deletion { tenant: TenantId::default_tenant(), matchers, window })
        }
    };
    Entry { proposed_at_ns: T0 + index as i64, command }
}

struct Replica {
    // The engine is dropped before its directory, because closing writes.
    engine: Option<Engine>,
    directory: tempfile::TempDir,
    dropped: Dropped,
    log: Vec<Entry>,
}

impl Replica {
    fn new(dropped: Dropped) -> Self {
        let directory = tempfile::tempdir_in("/dev/shm").or_else(|_absent| tempfile::tempdir()).unwrap();
        let mut replica = Self { engine: None, directory, dropped, log: Vec::new() };
        replica.open();
        replica
    }

    fn open(&mut self) {
        let mut config = config(self.directory.path());
        config.dropped_labels = self.dropped.map(|names| names.iter().map(|&name| name.to_owned()).collect());
        self.engine = None;
        self.engine = Some(Engine::open(config).unwrap());
        let applied = self.engine().applied().map_or(0, |position| position.index as usize);
        (applied..self.log.len()).for_each(|i| {
            self.apply_at(i);
        });
    }

    fn engine(&self) -> &Engine {
        self.engine.as_ref().unwrap()
    }

    fn apply_at(&self, i: usize) -> Outcome {
        let position = Position { index: i as u64 + 1, log_id: Bytes::from(format!("id {i}")) };
        self.engine().apply(position, &self.log[i]).unwrap()
    }

    fn apply(&mut self, entry: &Entry) -> Outcome {
        self.log.push(entry.clone());
        self.apply_at(self.log.len() - 1)
    }

    fn keep(&mut self, upkeep: Upkeep) {
        match upkeep {
            Upkeep::Nothing => {}
            Upkeep::Flush => drop(self.engine().flush().unwrap()),
            Upkeep::Compact => drop(self.engine().compact().unwrap()),
            Upkeep::PassTime(seconds) => {
                self.engine().pass_time(T0 + seconds * SECOND);
                self.engine().flush().unwrap();
            }
            Upkeep::Reopen => self.open(),
        }
    }

    /// Returns the signature of all windows, after everything was sealed and rolled up.
    fn signature(&self) -> u128 {
        self.engine().pass_time(T0 + 500_000 * SECOND);
        self.engine().compact().unwrap();
        let verified = self.engine().verify().unwrap();
        assert_eq!(verified.described, Vec::<String>::new());
        verified.signature
    }
}

fn run(steps: &[Step], drops: bool) -> Result<(), TestCaseError> {
    let dropped: Dropped = if drops { [&["zone"], &["zone", "region"]] } else { [&[], &[]] };
    let mut replicas = [Replica::new(dropped), Replica::new(dropped)];
    for (index, (proposal, upkeep)) in steps.iter().enumerate() {
        let entry = entry(proposal, index);
        let [one, other] = &mut replicas;
        let of_one = one.apply(&entry);
        let of_other = other.apply(&entry);
        prop_assert_eq!(of_one, of_other, "entry {}: {:?}", index, proposal);
        one.keep(upkeep[0]);
        other.keep(upkeep[1]);
    }
    // The content is equal before everything is sealed and rolled up, and after.
    let content = replicas.each_ref().map(|replica| replica.engine().content().unwrap());
    prop_assert_eq!(&content[0], &content[1]);
    prop_assert_eq!(replicas[0].signature(), replicas[1].signature());
    for replica in &replicas {
        prop_assert_eq!(&replica.engine().content().unwrap(), &content[0]);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn replicas_that_flush_at_different_times_stay_equal(
        steps in prop::collection::vec((proposal(), [upkeep(), upkeep()]), 1..16),
        drops in prop::bool::ANY,
    ) {
        run(&steps, drops)?;
    }
}

/// Old samples have no threads, and later ones in the same partition of hours have threads. Only one replica has rolled
/// the later ones up when the deletion by thread is applied, and both must decide alike.
#[test]
fn a_deletion_does_not_depend_on_the_progress_of_the_rollup() {
    let old = Drawn { thread: 0, ..Drawn::simple(0, -100_000, 1, 5) };
    let steps = [
        (Proposal::Append(vec![old], 0), [Upkeep::Nothing; 2]),
        (Proposal::Expire(Tier::Minute, -50_000), [Upkeep::Nothing; 2]),
        (Proposal::Append(vec![Drawn::simple(0, -20_000, 1, 5)], 0), [Upkeep::PassTime(10_000), Upkeep::Nothing]),
        (Proposal::Delete((3, 1), -110_000, -90_000), [Upkeep::Nothing; 2]),
    ];
    run(&steps, false).unwrap();
}

/// A partition's only sample is deleted. Only one replica opens the partition again before the next deletion, and both
/// must decide alike.
#[test]
fn a_deletion_does_not_depend_on_a_restart() {
    let deleted = Drawn::simple(1, -74_863, 0, 0);
    let later = Drawn { thread: 0, ..Drawn::simple(0, -20_000, 0, 0) };
    let steps = [
        (Proposal::Append(vec![deleted], 0), [Upkeep::Nothing; 2]),
        (Proposal::Delete((1, 1), -74_864, -74_863), [Upkeep::Nothing; 2]),
        (Proposal::Append(vec![later], 0), [Upkeep::Reopen, Upkeep::Nothing]),
        (Proposal::Delete((3, 0), -69_801, -69_800), [Upkeep::Nothing; 2]),
    ];
    run(&steps, false).unwrap();
}
