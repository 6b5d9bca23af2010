use proto::{Label, LabelSet, TenantId};

use super::*;

const TENANT: u32 = 0;

/// Adds a written partition of minutes, `number` partitions after the first. Its series is in no other partition.
fn partition(partitions: &mut Partitions, number: u32, label_bytes: usize) {
    let shared = partitions.dictionary(TENANT);
    let mut shared = shared.write();
    let key = PartitionKey::of(Tier::Minute, 0, TENANT, i64::from(number + 1) * Tier::Minute.partition_ns());
    let mut partition = Partition::new(key, shared.generation());
    let value = format!("{number}{}", "x".repeat(label_bytes));
    let labels = LabelSet::new(vec![Label::new("pod", &value)]);
    let fingerprint = labels.fingerprint(&TenantId::default_tenant());
    partition.add_series(fingerprint, || shared.share_labels(Arc::new(labels)));
    partition.wrote(partition.lengths());
    shared.recount();
    partitions.keep(partition);
}

#[test]
fn many_partitions_are_evicted_at_once_and_few_dictionaries_rebuilt() {
    let mut partitions = Partitions::default();
    for number in 0..1500 {
        partition(&mut partitions, number, 10);
        partitions.evict(usize::MAX);
        assert!(partitions.loaded.len() <= IDLE_PARTITIONS_MAX);
    }
    assert!(partitions.loaded.len() >= IDLE_PARTITIONS_MAX / 4 * 3, "{}", partitions.loaded.len());
    assert_eq!(partitions.generations, 1, "a small dictionary was rebuilt");
    // 64 MiB of labels in total, few of which are needed.
    for number in 1500..1564 {
        partition(&mut partitions, number, 1 << 20);
        partitions.evict(usize::MAX);
    }
    assert!(partitions.generations <= 4, "{} times", partitions.generations - 1);
}

#[test]
fn outlines_that_may_be_outdated_are_not_kept() {
    let mut partitions = Partitions::default();
    partition(&mut partitions, 0, 10);
    let key = *partitions.all_loaded().next().unwrap().0;
    let has_outline = |partitions: &Partitions| partitions.outline(&key).is_some();
    let outline = || Partition::new(key, 0);
    // The partition was read into memory and evicted while the outline was read.
    let changes = partitions.changes();
    partitions.forget(&key);
    partition(&mut partitions, 0, 10);
    partitions.forget(&key);
    partitions.keep_outline(outline(), changes, usize::MAX);
    assert!(!has_outline(&partitions));
    let changes = partitions.changes();
    partitions.keep_outline(outline(), changes, usize::MAX);
    assert!(has_outline(&partitions));
    partition(&mut partitions, 0, 10);
    assert!(!has_outline(&partitions), "it was read into memory");
    partitions.forget(&key);
    partitions.keep_outline(outline(), partitions.changes(), usize::MAX);
    partitions.drop_partition(&key);
    assert!(!has_outline(&partitions), "it was dropped");
}

#[test]
fn outlines_are_evicted_before_partitions() {
    let mut partitions = Partitions::default();
    partition(&mut partitions, 0, 1 << 20);
    let bytes = partitions.definitions.bytes();
    partition(&mut partitions, 1, 1 << 20);
    let mut outline = Partition::new(*partitions.all_loaded().nth(1).unwrap().0, 0);
    let labels = LabelSet::new(vec![Label::new("pod", "y".repeat(1 << 20))]);
    outline.add_series(labels.fingerprint(&TenantId::default_tenant()), || Arc::new(labels));
    partitions.forget(&outline.key);
    let changes = partitions.changes();
    partitions.keep_outline(outline, changes, usize::MAX);
    assert!(partitions.definitions.bytes() > bytes * 5 / 4);
    partitions.evict(bytes * 5 / 4);
    assert_eq!((partitions.loaded.len(), partitions.definitions.bytes()), (1, bytes));
    let large = Partition::new(PartitionKey::of(Tier::Minute, 0, TENANT, 3 * Tier::Minute.partition_ns()), 0);
    partitions.keep_outline(large, changes, bytes - 1);
    assert_eq!((partitions.loaded.len(), partitions.definitions.bytes()), (1, bytes), "it does not fit");
}

#[test]
fn an_idle_partition_that_fills_the_budget_alone_is_evicted() {
    let mut partitions = Partitions::default();
    partition(&mut partitions, 0, 1 << 20);
    partitions.evict(1 << 22);
    assert_eq!(partitions.loaded.len(), 1, "it fits");
    partitions.evict(1 << 19);
    assert_eq!((partitions.loaded.len(), partitions.dictionaries.len()), (0, 1));
    assert!(partitions.definitions.bytes() < 1 << 10, "{} bytes", partitions.definitions.bytes());
}

#[test]
fn each_class_of_a_tier_is_listed_once() {
    let mut partitions = Partitions::default();
    assert_eq!(partitions.classes(Tier::Raw).count(), 0);
    for (tier, class, tenant) in [(Tier::Raw, 255, 1), (Tier::Raw, 3, 9), (Tier::Raw, 3, 1), (Tier::Minute, 4, 1)] {
        partitions.add(PartitionKey::of(tier, class, tenant, i64::from(tenant) * tier.partition_ns()));
    }
    assert_eq!(partitions.classes(Tier::Raw).collect::<Vec<_>>(), [3, 255]);
    assert_eq!(partitions.classes(Tier::Minute).collect::<Vec<_>>(), [4]);
    assert_eq!(partitions.classes(Tier::Day).count(), 0);
}

#[test]
fn unneeded_definitions_are_evicted_before_loaded_partitions() {
    let mut partitions = Partitions::default();
    for number in 0..20 {
        partition(&mut partitions, number, 1 << 20);
    }
    let first: Vec<PartitionKey> = partitions.loaded.keys().copied().take(18).collect();
    first.iter().for_each(|key| partitions.forget(key));
    assert!(partitions.definitions.bytes() > 18 << 20);
    partitions.evict(10 << 20);
    assert_eq!(partitions.loaded.len(), 2);
    assert!(partitions.definitions.bytes() < 5 << 20, "{} bytes", partitions.definitions.bytes());
    // A tenant without partitions uses no memory.
    let rest: Vec<PartitionKey> = partitions.loaded.keys().copied().collect();
    rest.iter().for_each(|key| partitions.forget(key));
    partitions.evict(usize::MAX);
    assert!(partitions.definitions.bytes() < 10_000, "{} bytes", partitions.definitions.bytes());
}

#[test]
fn a_deletion_forgets_the_samples_of_partitions_and_outlines() {
    let mut partitions = Partitions::default();
    partition(&mut partitions, 0, 10);
    partition(&mut partitions, 1, 10);
    let [loaded, stored] = [0, 1].map(|at| *partitions.all_loaded().nth(at).unwrap().0);
    partitions.forget(&stored);
    let mut outline = Partition::new(stored, 0);
    let labels = LabelSet::new(vec![Label::new("pod", "a")]);
    outline.add_series(labels.fingerprint(&TenantId::default_tenant()), || Arc::new(labels));
    let both = [
        partitions.keep_outline(outline, partitions.changes(), usize::MAX),
        Arc::clone(partitions.loaded(&loaded).unwrap()),
    ];
    both.iter().for_each(|partition| partition.write().sample_times.add(1, 1, [(0, (5, 6))]));
    let known = || both.iter().filter(|partition| partition.read().sample_times.of(0).is_some()).count();
    assert_eq!(known(), 2);
    let deletions = partitions.deletions();
    partitions.forget_samples(&[stored]);
    assert_eq!((known(), partitions.deletions()), (1, deletions + 1), "the other partition has its samples");
    partitions.forget_samples(&[loaded]);
    assert_eq!((known(), partitions.deletions()), (0, deletions + 2));
}
