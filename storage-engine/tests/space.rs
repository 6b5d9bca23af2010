//! Disk space of partitions, and reclaiming it after they are dropped.

#![allow(clippy::unwrap_used, reason = "a test's helpers may")]

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use proto::dictionary::stack_hash;
use proto::{
    Batch, Command, Dictionary, Entry, Function, Label, LabelSet, Line, Location, Samples, SeriesSamples, StackPair,
    TenantId, Tier,
};
use storage_engine::{BudgetSizes, Budgets, Config, Engine, Extent, Position};

const PARTITION_NS: i64 = 6 * 3600 * 1_000_000_000;

/// Returns a batch with one sample of one of two tenants. The function of the sample has a random name of 1 MiB, which
/// hardly compresses.
fn batch(time_ns: i64) -> Batch {
    let mut state = time_ns.unsigned_abs();
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        char::from(b'0' + (state >> 58) as u8)
    };
    let name: String = (0..1 << 20).map(|_| next()).collect();
    let tenant = TenantId::new(["first", "second"][(time_ns % 2) as usize]).unwrap();
    let labels = LabelSet::new(vec![Label::new("service_name", "test")]);
    let mut dictionary = Dictionary::default();
    let set = dictionary.intern_attributes(Vec::new());
    let name = dictionary.strings.intern(&name);
    let function = dictionary.intern_function(Function { name, system_name: 0, file: 0, start_line: 0 });
    let lines = [Line { function, line: 1, column: 0 }].into();
    let location = dictionary.intern_location(Location::Lines { mapping_file: 0, frame_type: 0, lines });
    let user = dictionary.intern_stack(stack_hash(&[dictionary.location_hash(location)]), Some(&[location]));
    let pair = dictionary.intern_pair(StackPair { user, kernel: 0 });
    let mut samples = Samples::default();
    samples.push(time_ns, pair, 1, set);
    let fingerprint = labels.fingerprint(&tenant);
    let series = vec![SeriesSamples { fingerprint, labels: Some(labels), samples }];
    Batch { tenant, id: None, retention_class: 0, dictionary, series }
}

fn apply(engine: &Engine, index: u64, command: Command) {
    let position = Position { index, log_id: Bytes::from_static(b"id") };
    engine.apply(position, &Entry { proposed_at_ns: index as i64, command }).unwrap();
}

fn used_bytes(folder: &Path) -> u64 {
    std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum()
}

#[test]
fn extents_report_disk_bytes_and_reclaim_frees_dropped_partitions() {
    let folder = tempfile::tempdir().unwrap();
    let config = Config {
        directory: folder.path().to_owned(),
        budgets: Budgets::new(BudgetSizes {
            engines: 1,
            head_bytes_max: 1 << 20,
            dictionary_bytes_max: 1 << 30,
            cache_bytes: 1 << 20,
        }),
        barrier: Default::default(),
    };
    let engine = Engine::open(config).unwrap();
    let mut index = 0;
    let mut next = || {
        index += 1;
        index
    };
    for partition in 1..4 {
        for i in 0..8 * partition {
            apply(&engine, next(), Command::Append(Arc::new(batch(partition * PARTITION_NS + 1 + i))));
        }
    }
    engine.flush().unwrap();
    let of_minutes = || -> Vec<Extent> {
        engine.extents().unwrap().into_iter().filter(|extent| extent.tier == Tier::Minute).collect()
    };
    let sizes = of_minutes();
    assert_eq!(sizes.iter().map(|extent| extent.end_ns / PARTITION_NS).collect::<Vec<_>>(), [2, 3, 4]);
    for (partition, extent) in (1..).zip(&sizes) {
        // A name consists of 64 different characters, so zstd needs at least 6 bits for each.
        let bytes = extent.disk_bytes;
        assert!((5 << 20..9 << 20).contains(&(bytes / partition)), "partition {partition}: {bytes} bytes");
    }
    let before = used_bytes(folder.path());
    let before_ns = 3 * PARTITION_NS;
    apply(&engine, next(), Command::Expire { tier: Tier::Minute, retention_class: 0, before_ns });
    engine.flush().unwrap();
    // All partitions are in one table file, so the drop alone does not remove the file.
    let expired = used_bytes(folder.path());
    engine.reclaim(Tier::Minute, 0, before_ns);
    let after = used_bytes(folder.path());
    // The hours were summed up before the drop, and their partition keeps the names.
    let hours: u64 =
        engine.extents().unwrap().iter().filter(|extent| extent.tier == Tier::Hour).map(|e| e.disk_bytes).sum();
    assert!(
        after + (sizes[0].disk_bytes + sizes[1].disk_bytes) * 9 / 10 < before + hours,
        "{before} bytes, {expired} expired, {after} reclaimed, {hours} of hours"
    );
    assert_eq!(of_minutes().len(), 1);
}
