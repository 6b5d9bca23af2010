//! Entries, flushes and queries of old times at once, in a store with more partitions than fit into memory. No thread
//! waits forever, no call fails, and every answer is right.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use proto::entry::Deletion;
use proto::limits::PARTITION_SERIES_MAX;
use proto::selection::Operation;
use proto::{Command, Entry, Fold, Matcher, Selection, SeriesQuery, StackDetail, TenantId, Tier, Window};
use storage_engine::{Engine, Position};
use storage_model::samples::{DAY, Drawn, SECOND, T0, batch_of};
use storage_model::world::config;

/// Number of partitions. The engine does not keep so many in memory at once.
const PARTITIONS: i64 = 120;
const SAMPLES: i64 = 30;
const RUNS_FOR: Duration = Duration::from_secs(6);
const PATIENCE: Duration = Duration::from_secs(120);
const PARTITION_S: i64 = 6 * 3600;

/// Returns the end of a partition, in seconds since [`T0`]. Partition 0 is today's, and larger numbers are older.
fn end_s(partition: i64) -> i64 {
    (T0 / SECOND / PARTITION_S - partition) * PARTITION_S - T0 / SECOND
}

/// Work of a thread. Returns the number of operations that the thread has done.
type Work = Box<dyn FnOnce(&Shared) -> usize + Send>;

struct Shared {
    engine: Engine,
    stops: AtomicBool,
    /// Time up to which the minutes may be dropped already, in nanoseconds since 1970.
    horizon_ns: AtomicI64,
}

impl Shared {
    fn goes_on(&self) -> bool {
        !self.stops.load(Ordering::Relaxed)
    }

    /// Returns the time of a partition.
    fn window(partition: i64) -> Window {
        let end_ns = T0 + end_s(partition) * SECOND;
        Window { start_ns: end_ns - PARTITION_S * SECOND, end_ns }
    }

    /// Returns whether the first service has samples in a partition, as the values of its label tell.
    fn lists(&self, partition: i64) -> bool {
        let query = SeriesQuery {
            tenant: TenantId::default_tenant(),
            matchers: Vec::new(),
            window: Self::window(partition),
            label: Some("service_name".to_owned()),
        };
        self.engine.series(&query).unwrap().values.iter().any(|service| service == "s0")
    }

    fn sum(&self, partition: i64) -> i128 {
        let is_service =
            Matcher { name: "service_name".to_owned(), operation: Operation::Equal, value: "s0".to_owned() };
        let selection = Selection {
            tenant: TenantId::default_tenant(),
            matchers: vec![is_service],
            fold: Fold::Sum(vec![Self::window(partition)]),
            group_by: Vec::new(),
            group_by_series: true,
            stacks: StackDetail::Full,
            locations: proto::LocationSets::default(),
        };
        self.engine.select(&selection).unwrap().cells.iter().map(|cell| cell.sum).sum()
    }
}

/// Appends new and old samples, deletes samples of a service that no query reads, and expires old samples.
fn apply(shared: &Shared, mut index: u64) {
    let mut now_s = 0;
    let mut propose = |now_s: i64, command: Command| {
        index += 1;
        let entry = Entry { proposed_at_ns: T0 + now_s * SECOND, command };
        shared.engine.apply(Position { index, log_id: Bytes::new() }, &entry).unwrap();
    };
    for round in 0_i64.. {
        if !shared.goes_on() {
            return;
        }
        now_s += 300;
        let old_s = end_s(round * 7 % PARTITIONS) - 100;
        for drawn in [Drawn::simple(0, now_s, 3, 1), Drawn::simple(1, old_s, (round % 8) as u8, 1)] {
            let mut batch = batch_of(&[drawn], None);
            shared.engine.strip(&mut batch, PARTITION_SERIES_MAX).unwrap();
            propose(now_s, Command::Append(Arc::new(batch)));
        }
        if round % 20 == 19 {
            let value = "s1".to_owned();
            let matchers = vec![Matcher { name: "service_name".to_owned(), operation: Operation::Equal, value }];
            let window = Window { start_ns: T0 + (old_s - 5000) * SECOND, end_ns: T0 + old_s * SECOND };
            propose(now_s, Command::Delete(Deletion { tenant: TenantId::default_tenant(), matchers, window }));
        }
        if round % 50 == 49 {
            let before_ns = T0 + end_s(PARTITIONS - round / 50) * SECOND;
            shared.horizon_ns.store(before_ns, Ordering::SeqCst);
            propose(now_s, Command::Expire { tier: Tier::Minute, retention_class: 0, before_ns });
        }
    }
}

fn flush(shared: &Shared) {
    for round in 0.. {
        if !shared.goes_on() {
            return;
        }
        shared.engine.flush().unwrap();
        if round % 10 == 9 {
            shared.engine.compact().unwrap();
        }
    }
}

fn query(shared: &Shared, seed: i64) -> usize {
    let mut queries = 0;
    while shared.goes_on() {
        // The partitions are far apart, so most are not in memory.
        let partition = (queries as i64 * 37 + seed) % PARTITIONS;
        let (is_listed, sum) = (shared.lists(partition), shared.sum(partition));
        if T0 + end_s(partition + 1) * SECOND >= shared.horizon_ns.load(Ordering::SeqCst) && partition > 0 {
            assert_eq!((is_listed, sum), (true, i128::from(SAMPLES * 5)), "partition {partition}");
        }
        queries += 1;
    }
    queries
}

#[test]
fn queries_of_old_times_run_beside_entries_and_flushes() {
    let directory = tempfile::tempdir_in("/dev/shm").or_else(|_absent| tempfile::tempdir()).unwrap();
    let engine = Engine::open(config(directory.path())).unwrap();
    let mut index = 0;
    for partition in (0..PARTITIONS).rev() {
        let samples: Vec<Drawn> = (0..SAMPLES)
            .map(|i| Drawn::simple(0, end_s(partition) - 20_000 + i * 600, ((partition + i) % 8) as u8, 5))
            .collect();
        index += 1;
        let entry = Entry { proposed_at_ns: T0 - DAY, command: Command::Append(Arc::new(batch_of(&samples, None))) };
        engine.apply(Position { index, log_id: Bytes::new() }, &entry).unwrap();
    }
    engine.flush().unwrap();
    let shared = Arc::new(Shared { engine, stops: AtomicBool::new(false), horizon_ns: AtomicI64::new(i64::MIN) });
    let (done, ended) = mpsc::channel();
    let mut work: Vec<Work> = vec![
        Box::new(move |shared: &Shared| {
            apply(shared, index);
            1
        }),
        Box::new(|shared: &Shared| {
            flush(shared);
            1
        }),
    ];
    work.extend([1, 50, 90].map(|seed| -> Work { Box::new(move |shared: &Shared| query(shared, seed)) }));
    let threads = work.len();
    for work in work {
        let shared = Arc::clone(&shared);
        let done = done.clone();
        std::thread::spawn(move || {
            let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(&shared)));
            shared.stops.store(true, Ordering::Relaxed);
            done.send(worked.ok()).unwrap();
        });
    }
    let began = Instant::now();
    while began.elapsed() < RUNS_FOR && shared.goes_on() {
        std::thread::sleep(Duration::from_millis(20));
    }
    shared.stops.store(true, Ordering::Relaxed);
    let worked: Vec<_> = (0..threads).map(|_| ended.recv_timeout(PATIENCE).unwrap().unwrap()).collect();
    assert!(worked.iter().sum::<usize>() > 50, "{worked:?}");
    let verified = shared.engine.verify().unwrap();
    assert_eq!(verified.described, Vec::<String>::new());
}
