//! Tests of queries over a placement of several epochs: samples are placed by their own times, and responses do not
//! depend on the placement.

use std::num::NonZeroU16;

use proptest::prelude::*;
use proto::placement::Placement;
use proto::wire::SpreadService;

use super::shards::{ManyShards, any_sample, place_of, responses};
use super::*;

/// Begin of the second epoch in these tests, in seconds since 1970: a full minute.
const BEGIN_S: i64 = (NOW_S - 140) / 60 * 60;

/// Returns a placement of two epochs. In the second one, every slot has moved to the next shard, and service `a` is
/// spread over several slots.
fn two_epochs(shards: u16) -> Placement {
    let mut sent = Placement::uniform(NonZeroU16::new(shards).unwrap()).to_wire();
    let mut next = sent.epochs[0].clone();
    next.number += 1;
    next.begins_ns = BEGIN_S * S;
    next.shard_of_slot.iter_mut().for_each(|shard| *shard = *shard % u32::from(shards) + 1);
    next.spread = vec![SpreadService { tenant: "default".to_owned(), service: "a".to_owned(), slots: 4 }];
    sent.epochs.push(next);
    Placement::from_wire(sent).unwrap()
}

/// Returns a placement of more epochs, which begin in the last minutes before `NOW_S`. At the begin of each, every slot
/// moves by the next of `moves` shards, and service `a` is spread over the next of these numbers of slots.
fn many_epochs(shards: u16, moves: &[(u32, u32)]) -> Placement {
    let mut sent = Placement::uniform(NonZeroU16::new(shards).unwrap()).to_wire();
    for (&(by, slots), minute) in moves.iter().zip(0..) {
        let mut next = sent.epochs.last().unwrap().clone();
        next.number += 1;
        next.begins_ns = (NOW_S / 60 - 4 + minute) * 60 * S;
        next.shard_of_slot.iter_mut().for_each(|shard| *shard = (*shard - 1 + by) % u32::from(shards) + 1);
        next.spread = vec![SpreadService { tenant: "default".to_owned(), service: "a".to_owned(), slots }];
        sent.epochs.push(next);
    }
    Placement::from_wire(sent).unwrap()
}

fn read(placement: Placement, samples: &[Sample], nodes_max: usize) -> Vec<(String, StatusCode, Vec<u8>)> {
    read_from(ManyShards::placed(placement, samples), nodes_max)
}

/// Returns responses to requests of every kind, without the numbers of samples and series that were read: these count a
/// series twice if it has moved.
fn read_from(node: ManyShards, nodes_max: usize) -> Vec<(String, StatusCode, Vec<u8>)> {
    let number = regex::bytes::Regex::new("\"samples\":[0-9]+,\"series\":[0-9]+").unwrap();
    let all = responses(&Server::of(Arc::new(node)), nodes_max);
    all.into_iter()
        .map(|(request, status, body)| (request, status, number.replace(&body, &b""[..]).into_owned()))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

    #[test]
    fn responses_do_not_depend_on_the_epochs(
        samples in proptest::collection::vec(any_sample(), 0..60),
        nodes_max in 1_usize..20,
    ) {
        let one = read(Placement::uniform(NonZeroU16::MIN), &samples, nodes_max);
        for (one, many) in one.iter().zip(read(two_epochs(5), &samples, nodes_max)) {
            prop_assert_eq!(one, &many, "{}", String::from_utf8_lossy(&many.2));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, ..ProptestConfig::default() })]

    // A router learns of an epoch a little late, and until then places samples by the epoch before.
    #[test]
    fn responses_do_not_depend_on_several_epochs_and_late_routers(
        samples in proptest::collection::vec((any_sample(), any::<bool>()), 0..60),
        moves in proptest::collection::vec((1_u32..5, 2_u32..9), 2..5),
        nodes_max in 1_usize..20,
    ) {
        let plain: Vec<Sample> = samples.iter().map(|(sample, _)| sample.clone()).collect();
        let one = read(Placement::uniform(NonZeroU16::MIN), &plain, nodes_max);
        let newest = many_epochs(5, &moves);
        let before = many_epochs(5, &moves[..moves.len() - 1]);
        let placed: Vec<(Sample, u32)> = samples.into_iter().map(|(sample, is_late)| {
            let shard = place_of(if is_late { &before } else { &newest }, &sample);
            (sample, shard)
        }).collect();
        for (one, many) in one.iter().zip(read_from(ManyShards::holding(newest, &placed), nodes_max)) {
            prop_assert_eq!(one, &many, "{}", String::from_utf8_lossy(&many.2));
        }
    }
}

#[test]
fn a_gauge_whose_series_has_moved_counts_once() {
    let sample = |service, ago_s, function: &str, value| {
        Sample::new(IN_USE, &[("service_name", service)], (NOW_S - ago_s) * S, &[function, "main"], value)
    };
    let samples = [
        sample("b", 200, "old", 1000),
        sample("b", 10, "new", 7),
        sample("c", 200, "old", 40),
        sample("d", 20, "new", 2),
    ];
    let server = Server::of(Arc::new(ManyShards::placed(two_epochs(4), &samples)));
    let [start, end] = [NOW_S - 240, NOW_S].map(|time| time.to_string());
    let parameters = [("query", IN_USE), ("start", &start), ("end", &end)];
    let graph = server.get("/api/v1/flamegraph", &[&parameters[..], &[("format", "folded")]].concat()).text();
    assert_eq!(graph, "main;old 40\nmain;new 9\n");
    assert_eq!(server.get("/api/v1/flamegraph", &parameters).json()["series"], 3);
    let sum = server.query("sum(memory:inuse_space:bytes:space:bytes)").json();
    assert_eq!(sum["data"]["result"][0]["value"][1], "49");
    // The newest point of service b has no such stack, and its older point does not count either.
    let filtered = format!("{IN_USE}{{stack_function=\"old\"}}");
    let parameters = [("query", filtered.as_str()), ("start", &start), ("end", &end), ("format", "folded")];
    assert_eq!(server.get("/api/v1/flamegraph", &parameters).text(), "main;old 40\n");
}

#[test]
fn only_the_shards_of_the_epochs_in_the_range_are_asked() {
    let sample = |ago_s| Sample::new(CPU, &[("service_name", "b")], (NOW_S - ago_s) * S, &["f"], 1);
    let placement = two_epochs(4);
    let tenant = TenantId::default_tenant();
    let of = |time_s: i64| placement.shard_of(&tenant, "b", proto::Fingerprint(0), time_s * S);
    let (old, new) = (of(BEGIN_S), of(BEGIN_S + 1));
    assert_ne!(old, new);
    let node = Arc::new(ManyShards::placed(placement.clone(), &[sample(200), sample(10)]));
    let server = Server::of(Arc::clone(&node));
    let hour = 3600;
    let mut both = vec![old, new];
    both.sort_unstable();
    for (start_s, end_s, asked) in [
        (BEGIN_S - 600, BEGIN_S, vec![old]),
        (BEGIN_S - 600, BEGIN_S + 1, both.clone()),
        // Samples of the first hour may have been placed before the second epoch was known.
        (BEGIN_S + hour - 1, BEGIN_S + hour + 600, both),
        (BEGIN_S + hour, BEGIN_S + hour + 600, vec![new]),
    ] {
        let (start, end) = (start_s.to_string(), end_s.to_string());
        let selector = format!("{CPU}{{service_name=\"b\"}}");
        server.get("/api/v1/flamegraph", &[("query", &selector), ("start", &start), ("end", &end)]);
        assert_eq!(node.asked(), asked, "{}..{}", start_s - BEGIN_S, end_s - BEGIN_S);
    }
}
