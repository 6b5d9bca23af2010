//! Lists of series use the known times of samples, and read other series.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use proto::entry::Deletion;
use proto::selection::Operation;
use proto::{Command, Entry, Matcher, SeriesQuery, TenantId, Window};
use storage_engine::Position;
use storage_model::samples::{Drawn, SECOND, T0, batch_of};
use storage_model::steps::Step;
use storage_model::world::World;

/// Services with samples in a window, and the number of series that were read to find them.
#[derive(Debug, PartialEq, Eq)]
struct Listed {
    services: Vec<String>,
    read: usize,
}

fn listed(services: &[&str], read: usize) -> Listed {
    Listed { services: services.iter().map(|&service| service.to_owned()).collect(), read }
}

/// Returns the times `(from, to]`, in seconds since [`T0`].
fn window(from: i64, to: i64) -> Window {
    Window { start_ns: T0 + from * SECOND, end_ns: T0 + to * SECOND }
}

fn query(window: Window, label: Option<&str>) -> SeriesQuery {
    let label = label.map(str::to_owned);
    SeriesQuery { tenant: TenantId::default_tenant(), matchers: Vec::new(), window, label }
}

/// Lists the services with samples in `(from, to]`, in seconds since [`T0`], as values of their label and as series.
fn list(world: &World, from: i64, to: i64) -> [Listed; 2] {
    [Some("service_name"), None].map(|label| {
        let query = query(window(from, to), label);
        let looks = AtomicUsize::new(0);
        let answer = world.engine().series_while(&query, &|| {
            looks.fetch_add(1, Ordering::Relaxed);
            true
        });
        let answer = answer.unwrap();
        let of_series = answer.series.iter().map(|labels| labels.get("service_name").to_owned());
        let services = answer.values.iter().map(ToString::to_string).chain(of_series).collect();
        // There is one partition, and one look before it. The others are before each series that is read.
        Listed { services, read: looks.into_inner() - 1 }
    })
}

/// Returns a world with samples of two services from 10 to 170 s after [`T0`] in chunks. Their minutes end at 40, 100
/// and 160 s.
fn world() -> World {
    let mut world = World::default();
    let seconds = [10, 70, 130, 170];
    let drawn = seconds.iter().flat_map(|second| [0, 1].map(|service| Drawn::simple(service, *second, 1, 5)));
    world.step(&Step::Append(drawn.collect(), None));
    world.step(&Step::Compact);
    world
}

#[test]
fn series_with_a_known_sample_in_the_window_are_not_read() {
    let mut world = world();
    let both = ["s0", "s1"];
    assert_eq!(list(&world, 0, 200), [listed(&both, 0), listed(&both, 0)]);
    assert_eq!(list(&world, 9, 10), [listed(&both, 0), listed(&both, 0)], "the first sample is in the window");
    assert_eq!(list(&world, 150, 170), [listed(&both, 0), listed(&both, 0)], "the last sample is in the window");
    assert_eq!(list(&world, -20, 40), [listed(&both, 0), listed(&both, 0)], "a minute with the first sample");
    assert_eq!(list(&world, 40, 100), [listed(&both, 2), listed(&both, 2)], "a minute with another sample");
    assert_eq!(list(&world, 10, 30), [listed(&[], 2), listed(&[], 2)], "no sample is in the window");
    world.step(&Step::Restart);
    assert_eq!(list(&world, 60, 71), [listed(&both, 2), listed(&both, 2)], "after a restart no times are known");
    assert_eq!(list(&world, 0, 11), [listed(&both, 2), listed(&both, 0)], "the first list has read the chunks");
    assert_eq!(list(&world, 0, 200), [listed(&both, 0), listed(&both, 0)]);
    world.step(&Step::Restart);
    assert_eq!(list(&world, -20, 40), [listed(&both, 2), listed(&both, 2)], "minutes have no times of samples");
}

// The query was planned before the flush, so it sees no sample of it.
#[test]
fn a_list_uses_no_times_of_samples_that_are_flushed_meanwhile() {
    let mut world = world();
    world.step(&Step::Restart);
    let late = Command::Append(Arc::new(batch_of(&[Drawn::simple(0, 300, 1, 5)], None)));
    let entry = Entry { proposed_at_ns: T0 + 400 * SECOND, command: late };
    let position = Position { index: world.log.len() as u64 + 1, log_id: Bytes::new() };
    let looks = AtomicUsize::new(0);
    let before = world.engine().series_while(&query(window(200, 400), None), &|| {
        if looks.fetch_add(1, Ordering::Relaxed) == 0 {
            world.engine().apply(position.clone(), &entry).unwrap();
            world.engine().compact().unwrap();
        }
        true
    });
    assert_eq!(before.unwrap().series.len(), 0);
    assert_eq!(list(&world, 200, 400)[0], listed(&["s0"], 1), "the time of the other service is not known");
}

#[test]
fn a_deleted_sample_is_no_longer_known() {
    let mut world = world();
    world.step(&Step::Delete((0, 0), 0, 11));
    assert_eq!(list(&world, 0, 11)[0], listed(&["s1"], 2));
    assert_eq!(list(&world, 0, 11)[0], listed(&["s1"], 1), "its chunk was read");
}

// Such a list reads the samples as they were before the deletion.
#[test]
fn a_list_keeps_no_times_of_samples_that_are_deleted_meanwhile() {
    let mut world = world();
    world.step(&Step::Restart);
    // The partition stays in memory for new samples.
    world.step(&Step::Append(vec![Drawn::simple(2, 180, 1, 5)], None));
    let is_first = Matcher { name: "service_name".to_owned(), operation: Operation::Equal, value: "s0".to_owned() };
    let deletion = Deletion { tenant: TenantId::default_tenant(), matchers: vec![is_first], window: window(0, 11) };
    let entry = Entry { proposed_at_ns: T0 + 200 * SECOND, command: Command::Delete(deletion) };
    let position = Position { index: world.log.len() as u64 + 1, log_id: Bytes::new() };
    let looks = AtomicUsize::new(0);
    let before = world.engine().series_while(&query(window(0, 11), None), &|| {
        // The first look is before the partition, and the next before a series.
        if looks.fetch_add(1, Ordering::Relaxed) == 1 {
            world.engine().apply(position.clone(), &entry).unwrap();
        }
        true
    });
    assert_eq!(before.unwrap().series.len(), 2);
    assert_eq!(list(&world, 0, 11)[0], listed(&["s1"], 3));
}
