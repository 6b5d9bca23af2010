//! The engine against a plain `Vec` of samples: whatever is applied, flushed, restarted and expired, every answer is equal.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::sync::Arc;

use bytes::Bytes;
use proptest::prelude::*;
use proto::attribute::{Attribute, AttributeValue};
use proto::dictionary::stack_hash;
use proto::selection::Operation;
use proto::{
    Answer, Batch, BatchId, Command, Dictionary, Entry, Fold, Label, LabelSet, Line, Location, Matcher, Samples,
    Selection, SeriesSamples, StackDetail, StackPair, TenantId, Window,
};
use storage_engine::{Config, Engine, Outcome, Position};

const T0: i64 = 1_790_000_000_000_000_000;
const SECOND: i64 = 1_000_000_000;
const DAY: i64 = 86_400 * SECOND;

/// One sample as the model knows it.
#[derive(Clone, Debug)]
struct Row {
    labels: BTreeMap<String, String>,
    time_ns: i64,
    /// Function names, root first; kernel part behind the user part.
    stack: Vec<String>,
    value: i64,
    thread: Option<String>,
}

#[derive(Clone, Debug)]
enum Step {
    /// (service, second, user stack, kernel stack, value, thread) of each sample, and the batch id.
    Append(Vec<(u8, i32, u8, u8, i64, u8)>, Option<u8>),
    Flush,
    /// Ends cleanly.
    Restart,
    /// Ends as by a power cut: what is not flushed is lost.
    Crash,
    Expire(i32),
    /// Time passes without entries, seconds.
    Wait(i64),
}

fn step() -> impl Strategy<Value = Step> {
    // Seconds reach over several 6 h partitions.
    let value = prop_oneof![4 => -5..50_i64, 1 => Just(i64::MAX), 1 => Just(i64::MIN)];
    let sample = (0..3_u8, -60_000..60_000_i32, 0..6_u8, 0..3_u8, value, 0..4_u8);
    prop_oneof![
        8 => (prop::collection::vec(sample, 1..20), prop::option::of(0..6_u8)).prop_map(|(samples, id)| Step::Append(samples, id)),
        2 => Just(Step::Flush),
        1 => Just(Step::Restart),
        2 => Just(Step::Crash),
        1 => (0..40_000_i64).prop_map(Step::Wait),
        1 => (-60_000..-20_000_i32).prop_map(Step::Expire),
    ]
}

fn labels_of(service: u8) -> LabelSet {
    LabelSet::new(vec![
        Label::new("service_name", &format!("s{service}")),
        Label::new("region", ["eu", "us"][usize::from(service) % 2]),
    ])
}

/// Stack `i` is `main`, then one function for each bit; kernel stack 0 is none.
fn functions_of(user: u8, kernel: u8) -> Vec<String> {
    let mut stack = vec!["main".to_owned()];
    stack.extend((0..3).filter(|bit| user >> bit & 1 == 1).map(|bit| format!("f{bit}")));
    stack.extend((0..kernel).map(|depth| format!("k{depth}")));
    stack
}

fn intern_stack(dictionary: &mut Dictionary, root_first: &[String]) -> u32 {
    let locations: Vec<u32> = root_first
        .iter()
        .rev()
        .map(|name| {
            let name = dictionary.strings.intern(name);
            let function = dictionary.intern_function(proto::Function { name, ..Default::default() });
            let lines = [Line { function, line: 1, column: 0 }].into();
            dictionary.intern_location(Location::Lines { mapping_file: 0, frame_type: 0, lines })
        })
        .collect();
    let hashes: Vec<u128> = locations.iter().map(|&id| dictionary.location_hash(id)).collect();
    dictionary.intern_stack(stack_hash(&hashes), Some(&locations))
}

fn batch_of(samples: &[(u8, i32, u8, u8, i64, u8)], id: Option<u8>) -> Batch {
    let tenant = TenantId::default_tenant();
    let mut dictionary = Dictionary::default();
    let mut series: BTreeMap<u8, Samples> = BTreeMap::new();
    for &(service, second, user, kernel, value, thread) in samples {
        let stack = functions_of(user, kernel);
        let (user_part, kernel_part) = stack.split_at(stack.len() - usize::from(kernel));
        let pair = StackPair {
            user: intern_stack(&mut dictionary, user_part),
            kernel: intern_stack(&mut dictionary, kernel_part),
        };
        let pair = dictionary.intern_pair(pair);
        let set = if thread == 0 {
            0
        } else {
            let key = dictionary.strings.intern("thread.name");
            let value = AttributeValue::Text(dictionary.strings.intern(&format!("t{thread}")));
            dictionary.intern_attributes(vec![Attribute { key, unit: 0, value }])
        };
        series.entry(service).or_default().push(T0 + i64::from(second) * SECOND, pair, value, set);
    }
    let series = series
        .into_iter()
        .map(|(service, samples)| {
            let labels = labels_of(service);
            SeriesSamples { fingerprint: labels.fingerprint(&tenant), labels: Some(labels), samples }
        })
        .collect();
    Batch { tenant, id: id.map(|id| BatchId(u128::from(id) + 1)), dictionary, series }
}

fn rows_of(samples: &[(u8, i32, u8, u8, i64, u8)]) -> impl Iterator<Item = Row> {
    samples.iter().map(|&(service, second, user, kernel, value, thread)| Row {
        labels: labels_of(service).iter().map(|label| (label.name.clone(), label.value.clone())).collect(),
        time_ns: T0 + i64::from(second) * SECOND,
        stack: functions_of(user, kernel),
        value,
        thread: (thread > 0).then(|| format!("t{thread}")),
    })
}

struct World {
    directory: tempfile::TempDir,
    engine: Option<Engine>,
    log: Vec<Entry>,
    rows: Vec<Row>,
    now_ns: i64,
    /// When each id was counted.
    ids: BTreeMap<u8, i64>,
}

impl World {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let engine = Some(open(directory.path()));
        Self { directory, engine, log: Vec::new(), rows: Vec::new(), now_ns: T0, ids: BTreeMap::new() }
    }

    fn engine(&self) -> &Engine {
        self.engine.as_ref().unwrap()
    }

    /// Entry `i` of the log has index `i + 1`.
    fn apply(&self, i: usize) -> Outcome {
        let position = Position { index: i as u64 + 1, log_id: Bytes::from(format!("id {i}")) };
        self.engine().apply(position, &self.log[i]).unwrap()
    }

    fn propose(&mut self, command: Command) -> Outcome {
        // As a node does: what is logged went over the wire form.
        self.now_ns += 1;
        let entry = Entry { proposed_at_ns: self.now_ns, command };
        self.log.push(Entry::from_wire(entry.to_wire()).unwrap());
        self.apply(self.log.len() - 1)
    }

    /// From now on the directory is what a power cut would have left of it.
    fn lose_memory(&mut self) {
        // As of one moment: copied again if RocksDB changed anything meanwhile.
        let left = loop {
            let (before, left) = (listing(self.directory.path()), tempfile::tempdir().unwrap());
            let copy = |(name, _): &(OsString, u64)| {
                std::fs::copy(self.directory.path().join(name), left.path().join(name)).is_ok()
            };
            if before.iter().all(copy) && listing(self.directory.path()) == before {
                break left;
            }
        };
        self.engine = None;
        self.directory = left;
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Append(samples, id) => {
                let batch = self.engine().strip(&batch_of(samples, *id)).unwrap();
                let outcome = self.propose(Command::Append(Arc::new(batch)));
                let age_ns = id.and_then(|id| self.ids.get(&id)).map(|at| self.now_ns - at);
                match age_ns {
                    Some(age_ns) if age_ns < DAY => assert_eq!(outcome, Outcome::Duplicate, "{age_ns} ns later"),
                    // A little longer is allowed: forgetting is by periods.
                    Some(age_ns) if age_ns < DAY * 3 / 2 => assert_ne!(outcome, Outcome::Dangling),
                    _ => assert_eq!(outcome, Outcome::Applied, "{age_ns:?} ns later"),
                }
                if outcome == Outcome::Applied {
                    self.rows.extend(rows_of(samples));
                    self.ids.extend(id.map(|id| (id, self.now_ns)));
                }
            }
            Step::Wait(seconds) => self.now_ns += seconds * SECOND,
            Step::Flush => {
                let flushed = self.engine().flush().unwrap();
                assert_eq!(flushed.map_or(0, |position| position.index), self.log.len() as u64);
            }
            Step::Restart | Step::Crash => {
                if matches!(step, Step::Crash) {
                    self.lose_memory();
                }
                self.engine = None;
                self.engine = Some(open(self.directory.path()));
                let applied = self.engine().applied().map_or(0, |position| position.index);
                assert_eq!(self.engine().flushed().map_or(0, |position| position.index), applied);
                (applied as usize..self.log.len()).for_each(|i| {
                    self.apply(i);
                });
            }
            Step::Expire(second) => {
                let before_ns = T0 + i64::from(*second) * SECOND;
                self.propose(Command::Expire { before_ns });
                let partition_end = |time: i64| (time.div_euclid(6 * 3600 * SECOND) + 1) * 6 * 3600 * SECOND;
                self.rows.retain(|row| partition_end(row.time_ns) > before_ns);
            }
        }
    }
}

/// Name and length of each file.
fn listing(directory: &std::path::Path) -> BTreeSet<(OsString, u64)> {
    let file = |file: std::fs::DirEntry| (file.file_name(), file.metadata().map_or(0, |metadata| metadata.len()));
    std::fs::read_dir(directory).unwrap().map(|entry| file(entry.unwrap())).collect()
}

fn open(directory: &std::path::Path) -> Engine {
    open_with(directory, 1 << 30)
}

fn open_with(directory: &std::path::Path, dictionary_bytes_max: usize) -> Engine {
    let directory = directory.to_owned();
    Engine::open(Config { directory, head_bytes_max: 1 << 20, dictionary_bytes_max, cache_bytes: 1 << 20 }).unwrap()
}

/// (group, bucket or time, root-first stack) to sum.
type Sums = BTreeMap<(BTreeMap<String, String>, i64, Vec<String>), i128>;

fn sums_of(answer: &Answer, selection: &Selection) -> Sums {
    let mut out = Sums::new();
    for cell in &answer.cells {
        let mut stack = Vec::new();
        let mut node = cell.node;
        while node != 0 {
            let Location::Lines { lines, .. } =
                &answer.dictionary.locations[answer.nodes[node as usize].location as usize]
            else {
                panic!("all locations of the model have lines")
            };
            let function = answer.dictionary.functions[lines[0].function as usize];
            stack.insert(0, answer.dictionary.strings.get(function.name).to_owned());
            node = answer.nodes[node as usize].parent;
        }
        let group =
            answer.groups[cell.group as usize].iter().map(|label| (label.name.clone(), label.value.clone())).collect();
        let bucket = match selection.fold {
            Fold::Sum(_) => i64::from(cell.bucket),
            _ => answer.bucket_times_ns[cell.bucket as usize],
        };
        let before = out.insert((group, bucket, stack), cell.sum);
        assert!(before.is_none(), "a cell is there twice");
    }
    out
}

fn attribute_or_label(row: &Row, name: &str) -> String {
    let attribute = || (name == "thread_name").then(|| row.thread.clone()).flatten();
    row.labels.get(name).cloned().or_else(attribute).unwrap_or_default()
}

fn model_sums(rows: &[Row], selection: &Selection) -> Sums {
    let window = selection.fold.window();
    let in_window = |row: &&Row| window.start_ns < row.time_ns && row.time_ns <= window.end_ns;
    let matches = |row: &&Row| {
        selection.matchers.iter().all(|matcher| {
            let value = attribute_or_label(row, &matcher.name);
            let alternatives: Vec<&str> = matcher.value.split('|').collect();
            match matcher.operation {
                Operation::Equal => value == matcher.value,
                Operation::NotEqual => value != matcher.value,
                Operation::Match => alternatives.contains(&value.as_str()),
                Operation::NotMatch => !alternatives.contains(&value.as_str()),
            }
        })
    };
    let mut last: BTreeMap<&BTreeMap<String, String>, i64> = BTreeMap::new();
    for row in rows.iter().filter(in_window) {
        let time = last.entry(&row.labels).or_insert(row.time_ns);
        *time = row.time_ns.max(*time);
    }
    let mut out = Sums::new();
    for row in rows.iter().filter(in_window).filter(matches) {
        let bucket = match &selection.fold {
            Fold::Sum(edges) => {
                edges.windows(2).position(|edge| edge[0] < row.time_ns && row.time_ns <= edge[1]).unwrap() as i64
            }
            Fold::Last(_) if last[&row.labels] != row.time_ns => continue,
            Fold::Points(_) | Fold::Last(_) => row.time_ns,
        };
        let mut group: BTreeMap<String, String> =
            if selection.group_by_series { row.labels.clone() } else { BTreeMap::new() };
        for name in &selection.group_by {
            group.insert(name.clone(), attribute_or_label(row, name));
        }
        group.retain(|_, value| !value.is_empty());
        let stack = match selection.stacks {
            StackDetail::None => Vec::new(),
            StackDetail::Leaf => vec![row.stack.last().unwrap().clone()],
            StackDetail::Full => row.stack.clone(),
        };
        *out.entry((group, bucket, stack)).or_default() += i128::from(row.value);
    }
    out
}

fn selection() -> impl Strategy<Value = Selection> {
    let matcher = (0..4_u8, 0..4_u8, 0..7_u8).prop_map(|(name, operation, value)| Matcher {
        name: ["service_name", "region", "thread_name", "missing"][usize::from(name)].to_owned(),
        operation: [Operation::Equal, Operation::NotEqual, Operation::Match, Operation::NotMatch]
            [usize::from(operation)],
        value: ["s0", "eu", "t1", "", "s1|s2", "t2|t3", "us|"][usize::from(value)].to_owned(),
    });
    let edges = prop::collection::btree_set(-70_000..70_000_i32, 2..6);
    (prop::collection::vec(matcher, 0..3), edges, 0..3_u8, 0..4_u8, any::<bool>(), 0..3_i32).prop_map(
        |(matchers, edges, fold, group_by, group_by_series, stacks)| {
            let edges: Vec<i64> = edges.into_iter().map(|second| T0 + i64::from(second) * SECOND).collect();
            let window = Window { start_ns: edges[0], end_ns: *edges.last().unwrap() };
            let names: [&[&str]; 4] = [&[], &["thread_name"], &["region", "thread_name"], &["service_name"]];
            Selection {
                tenant: TenantId::default_tenant(),
                matchers,
                fold: [Fold::Sum(edges), Fold::Points(window), Fold::Last(window)][usize::from(fold)].clone(),
                group_by: names[usize::from(group_by)].iter().map(|&name| name.to_owned()).collect(),
                group_by_series,
                stacks: StackDetail::try_from(stacks).unwrap(),
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, max_shrink_iters: 2000, ..ProptestConfig::default() })]
    #[test]
    fn every_answer_is_the_models(
        steps in prop::collection::vec(step(), 1..25),
        selections in prop::collection::vec(selection(), 1..6),
    ) {
        let mut world = World::new();
        for step in &steps {
            world.step(step);
        }
        for selection in &selections {
            let answer = world.engine().select(selection).unwrap();
            let read = Answer::from_wire(answer.to_wire(), &selection.fold).unwrap();
            prop_assert_eq!(sums_of(&read, selection), model_sums(&world.rows, selection), "{:?}", selection);
            let series = world.engine().series(&selection.tenant, &selection.matchers, selection.fold.window()).unwrap().series;
            let in_series = Selection {
                fold: Fold::Points(selection.fold.window()),
                group_by_series: true,
                group_by: Vec::new(),
                ..selection.clone()
            };
            let wanted: BTreeSet<_> = model_sums(&world.rows, &in_series).into_keys().map(|(group, _, _)| group).collect();
            let got: BTreeSet<BTreeMap<String, String>> =
                series.iter().map(|set| set.iter().map(|l| (l.name.clone(), l.value.clone())).collect()).collect();
            prop_assert_eq!(got, wanted, "series of {:?}", selection);
        }
    }
}

#[test]
fn what_was_stripped_for_a_partition_that_is_gone_dangles_and_changes_nothing() {
    let mut world = World::new();
    let samples = [(0, 0, 1, 1, 5, 1)];
    world.step(&Step::Append(samples.to_vec(), None));
    let stripped = world.engine().strip(&batch_of(&samples, None)).unwrap();
    assert!(stripped.series[0].labels.is_none());
    assert!(stripped.dictionary.locations.is_empty(), "everything was known");
    world.propose(Command::Expire { before_ns: T0 + 86_400 * SECOND });
    assert_eq!(world.propose(Command::Append(Arc::new(stripped))), Outcome::Dangling);
    assert_eq!(world.propose(Command::Append(Arc::new(batch_of(&samples, None)))), Outcome::Applied);
}

#[test]
fn an_entry_out_of_order_is_refused() {
    let mut world = World::new();
    world.step(&Step::Append(vec![(0, 0, 1, 1, 5, 1)], None));
    let position = Position { index: 3, log_id: Bytes::new() };
    assert!(world.engine().apply(position, &world.log[0]).is_err());
}

// Found by review: files went before the state that no longer needs them was on disk.
#[test]
fn until_a_dropped_partition_is_flushed_away_the_disk_holds_all_of_it() {
    let mut world = World::new();
    let mut random = 1_u64;
    let mut next = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        random.cast_signed()
    };
    let old = T0 - 20 * DAY;
    let mut total = 0_i128;
    // More than two files of 64 MiB below level 0, from where whole files are deleted.
    for _ in 0..4 {
        let mut batch = batch_of(&[(0, 0, 1, 1, 1, 1)], None);
        let samples = &mut batch.series[0].samples;
        *samples = Samples::default();
        for _ in 0..2_000_000 {
            let value = next() >> 8;
            total += i128::from(value);
            samples.push(old + next().rem_euclid(3600 * SECOND), 1, value, 1);
        }
        let position = Position { index: world.log.len() as u64 + 1, log_id: Bytes::new() };
        let entry = Entry { proposed_at_ns: T0, command: Command::Append(Arc::new(batch)) };
        world.engine().apply(position, &entry).unwrap();
        world.log.push(entry);
        world.step(&Step::Flush);
    }
    let is_compacting = |world: &World| {
        let before = listing(world.directory.path());
        std::thread::sleep(std::time::Duration::from_millis(500));
        listing(world.directory.path()) != before
    };
    while is_compacting(&world) {}
    let selection = Selection {
        tenant: TenantId::default_tenant(),
        matchers: Vec::new(),
        fold: Fold::Sum(vec![old - DAY, old + DAY]),
        group_by: Vec::new(),
        group_by_series: true,
        stacks: StackDetail::None,
    };
    world.propose(Command::Expire { before_ns: T0 - 10 * DAY });
    world.lose_memory();
    world.engine = Some(open(world.directory.path()));
    let answer = world.engine().select(&selection).unwrap();
    assert_eq!((answer.samples, answer.cells[0].sum), (8_000_000, total));
    // The log is replayed, and now it goes for good.
    world.apply(4);
    world.step(&Step::Flush);
    world.step(&Step::Crash);
    assert_eq!(world.engine().select(&selection).unwrap().samples, 0);
    let left: u64 = listing(world.directory.path()).iter().map(|(_, length)| length).sum();
    assert!(left < 100 << 20, "{left} bytes are still there");
}

#[test]
fn a_batch_of_too_many_partitions_is_refused_and_one_of_many_is_taken_in_one_pass() {
    let mut world = World::new();
    let spread = |partitions: i32| -> Vec<_> { (0..partitions).map(|i| (0, i * 21_600, 1, 0, 1, 1)).collect() };
    let refused = world.engine().strip(&batch_of(&spread(200), None)).unwrap_err();
    assert!(refused.to_string().contains("200 spans"), "{refused}");
    world.step(&Step::Append(spread(100), None));
    world.step(&Step::Append(spread(100), None));
    let window = Window { start_ns: T0 - DAY, end_ns: T0 + 100 * DAY };
    assert_eq!(world.engine().series(&TenantId::default_tenant(), &[], window).unwrap().series.len(), 1);
}

#[test]
fn over_the_budget_of_dictionaries_only_what_is_known_is_taken() {
    let mut world = World::new();
    world.engine = None;
    let engine = open_with(world.directory.path(), 1);
    world.engine = Some(engine);
    let (known, new_thread, new_stack) = ([(0, 0, 1, 0, 1, 1)], [(0, 0, 1, 0, 1, 2)], [(0, 0, 2, 0, 1, 1)]);
    world.propose(Command::Append(Arc::new(batch_of(&known, None))));
    assert!(world.engine().dictionary_bytes() > 100);
    world.step(&Step::Append(known.to_vec(), None));
    for new in [new_thread, new_stack] {
        let refused = world.engine().strip(&batch_of(&new, None)).unwrap_err();
        assert!(matches!(refused, storage_engine::StripError::DictionaryFull { .. }), "{refused}");
    }
}
