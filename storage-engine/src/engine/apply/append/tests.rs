//! Tests of single steps of applying a batch.

use bytes::Bytes;
use proto::{Command, Entry};
use storage_model::alike::batch;

use super::*;
use crate::memory::tenant_dictionary::ROOT;
use crate::{BudgetSizes, Budgets, Config, LogBarrier};

/// Time of the sample, in nanoseconds since 1970.
const TIME_NS: i64 = 1_700_000_000_000_000_000;

#[test]
fn a_reference_is_found_again_if_the_dictionary_was_rebuilt_meanwhile() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = 1 << 20;
    let sizes = BudgetSizes { engines: 1, head_bytes_max: bytes, dictionary_bytes_max: bytes, cache_bytes: bytes };
    let budgets = Budgets::new(sizes);
    let config = Config { directory: folder.path().to_owned(), budgets, barrier: LogBarrier::default() };
    let engine = Engine::open(config).unwrap();
    let command = Command::Append(Arc::new(batch(7, TIME_NS, 1)));
    let position = Position { index: 1, log_id: Bytes::from_static(b"1") };
    engine.apply(position, &Entry { proposed_at_ns: TIME_NS + 1, command }).unwrap();
    let mut reference = batch(7, TIME_NS, 1);
    engine.strip(&mut reference, 10).unwrap().unwrap();
    assert_eq!(reference.dictionary.stacks.references().count(), 1);
    let tenant = engine.store.state().tenants.number_or_next(&reference.tenant);
    let (key, parts) = split::parts(tenant, &reference).pop_first().unwrap();
    let partition = engine.store.partition(key).unwrap();
    let destination = Destination { key, partition: partition.clone(), parts };
    let shared = engine.store.tenant_dictionary(tenant);
    let destinations = [destination];
    let (nodes, incomplete) = known_nodes(&reference, &destinations, &shared.read());
    assert!(incomplete.is_empty());
    let partition = partition.unwrap();
    let generation = shared.read().generation() + 1;
    shared.write().renew(generation, &mut [partition.write()]);
    assert_eq!(shared.read().current(&nodes), None);
    let [destination] = destinations;
    let imported = import(&engine, &reference, destination, &shared, &nodes, true);
    let (_, samples) = &imported.samples[0];
    let pair = partition.read().pairs.get(samples.pairs[0]).unwrap();
    assert!(pair.user != ROOT && pair.kernel == ROOT, "{pair:?}");
}
