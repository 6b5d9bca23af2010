//! Tests of placements, against a naive search over all epochs.

use proptest::prelude::*;

use super::*;

const MINUTE_NS: i64 = 60_000_000_000;

fn uniform(shards: u16) -> Placement {
    Placement::uniform(NonZeroU16::new(shards).unwrap())
}

fn tenant() -> TenantId {
    TenantId::default_tenant()
}

#[test]
fn slots_are_divided_evenly_and_placements_read_back() {
    for shards in [1, 3, 16, 64] {
        let placement = uniform(shards);
        assert_eq!(placement.shards(), (1..=u32::from(shards)).collect::<Vec<_>>());
        for shard in placement.shards() {
            let slots = placement.newest().shard_of_slot().iter().filter(|&&of_slot| of_slot == shard).count();
            assert!(slots.abs_diff(usize::from(SLOTS / shards)) <= 1, "shard {shard} has {slots} slots");
        }
        assert_eq!(placement.epoch(), u64::from(shards));
        assert_eq!(Placement::from_wire(placement.to_wire()).unwrap(), placement);
    }
}

#[test]
fn a_service_keeps_the_slot_that_it_has_always_had() {
    // Stored samples are found by these slots, so the hash must never change.
    let slots = ["api", "web", ""].map(|service| Slot::of(&tenant(), service).index());
    assert_eq!(
        slots,
        ["default/api", "default/web", "default/"]
            .map(|key| { (xxhash_rust::xxh3::xxh3_64(key.as_bytes()) % 4096) as usize })
    );
    let parts: std::collections::BTreeSet<_> = (0..64).map(|part| Slot::of_part(&tenant(), "api", part)).collect();
    assert!(parts.len() > 60 && parts.contains(&Slot::of(&tenant(), "api")), "{parts:?}");
}

#[test]
fn placements_that_contradict_themselves_are_refused() {
    let mut good = uniform(2).to_wire();
    let mut next = good.epochs[0].clone();
    (next.number, next.begins_ns) = (3, 5 * MINUTE_NS);
    next.spread = vec![wire::SpreadService { tenant: "t".to_owned(), service: "api".to_owned(), slots: 4 }];
    good.epochs.push(next);
    assert_eq!(Placement::from_wire(good.clone()).unwrap().to_wire(), good);
    let changes: [fn(&mut wire::PlacementResponse); 15] = [
        |sent| sent.epochs.clear(),
        |sent| sent.epochs[1].number = 2,
        |sent| sent.epochs[1].begins_ns = i64::MIN,
        |sent| sent.epochs[1].begins_ns += 1,
        |sent| sent.epochs[0].begins_ns = 6 * MINUTE_NS,
        |sent| sent.epochs[0].shard_of_slot[7] = 0,
        |sent| sent.epochs[0].shard_of_slot.push(1),
        |sent| sent.epochs[0].shard_of_slot.clear(),
        |sent| sent.epochs[1].spread[0].slots = 1,
        |sent| sent.epochs[1].spread[0].slots = 257,
        |sent| sent.epochs[1].spread[0].slots = 65_538,
        |sent| sent.epochs[1].spread[0].tenant.clear(),
        |sent| sent.epochs[1].spread[0].service = "x".repeat(2049),
        |sent| sent.epochs[1].spread = vec![sent.epochs[1].spread[0].clone(); 2],
        |sent| {
            let epoch = |number: usize| wire::PlacementEpoch {
                number: number as u64,
                begins_ns: number as i64 * MINUTE_NS,
                ..sent.epochs[0].clone()
            };
            sent.epochs = (0..=PLACEMENT_EPOCHS_MAX).map(epoch).collect();
        },
    ];
    for (i, change) in changes.into_iter().enumerate() {
        let mut sent = good.clone();
        change(&mut sent);
        assert!(Placement::from_wire(sent).is_err(), "change {i}");
    }
    let service = |n: usize| wire::SpreadService { tenant: "t".to_owned(), service: n.to_string(), slots: 2 };
    good.epochs[1].spread = (0..SPREAD_MAX).map(service).collect();
    assert!(Placement::from_wire(good.clone()).is_ok());
    good.epochs[1].spread.push(service(SPREAD_MAX));
    assert!(Placement::from_wire(good).is_err());
}

const SPREAD_MAX: usize = crate::limits::SPREAD_SERVICES_MAX;

/// Services of the generated placements. Some are spread in some epochs.
const SERVICES: [&str; 4] = ["a", "b", "c", "d"];

fn any_epoch() -> impl Strategy<Value = (i64, Vec<u32>, [u16; 4])> {
    let slots = prop_oneof![
        proptest::collection::vec(1_u32..6, usize::from(SLOTS)),
        (1_u32..6).prop_map(|shard| vec![shard; usize::from(SLOTS)]),
    ];
    (1_i64..200, slots, proptest::array::uniform4(prop_oneof![Just(1_u16), 2_u16..9]))
}

/// Generates a placement of one to six epochs.
fn any_placement() -> impl Strategy<Value = Placement> {
    proptest::collection::vec(any_epoch(), 1..6).prop_map(|epochs| {
        let mut begins_ns = 0;
        let epoch = |(number, (minutes, slots, spread)): (u64, (i64, Vec<u32>, [u16; 4]))| {
            begins_ns += minutes * MINUTE_NS;
            let begins_ns = if number == 1 { i64::MIN } else { begins_ns };
            let services =
                SERVICES.iter().zip(spread).filter_map(|(name, n)| Some(((*name).to_owned(), Spread::new(n)?)));
            let spread = BTreeMap::from([(tenant(), services.collect())]);
            Arc::new(Epoch::new(number, begins_ns, slots, spread).unwrap())
        };
        Placement::new((1..).zip(epochs).map(epoch)).unwrap()
    })
}

/// The shard of a sample, by a search over all epochs of the wire form.
fn naive(sent: &wire::PlacementResponse, service: &str, fingerprint: u128, time_ns: i64) -> u32 {
    let mut epoch = &sent.epochs[0];
    for later in &sent.epochs[1..] {
        if time_ns > later.begins_ns {
            epoch = later;
        }
    }
    naive_in(epoch, service, fingerprint)
}

fn naive_in(epoch: &wire::PlacementEpoch, service: &str, fingerprint: u128) -> u32 {
    let slots = epoch.spread.iter().find(|spread| spread.service == service).map_or(1, |spread| spread.slots);
    let part = (fingerprint % u128::from(slots)) as u16;
    epoch.shard_of_slot[Slot::of_part(&tenant(), service, part).index()]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn samples_and_queries_agree_with_a_search_over_all_epochs(
        placement in any_placement(),
        service in 0_usize..4,
        fingerprint in any::<u128>(),
        times in proptest::collection::vec((0_i64..1000, -1_i64..=1), 2..12),
    ) {
        let service = SERVICES[service];
        let sent = placement.to_wire();
        prop_assert_eq!(&Placement::from_wire(sent.clone()).unwrap(), &placement);
        let begins = sent.epochs[1..].iter().map(|epoch| epoch.begins_ns);
        let times: Vec<i64> = times.into_iter().map(|(minute, off)| minute * MINUTE_NS + off)
            .chain(begins.flat_map(|begin| [begin, begin + 1, begin + EPOCH_OVERLAP_NS]))
            .chain([i64::MIN, i64::MAX]).collect();
        let route = placement.route(&tenant(), service, || Fingerprint(fingerprint));
        for &time_ns in &times {
            let want = naive(&sent, service, fingerprint, time_ns);
            prop_assert_eq!(placement.shard_of(&tenant(), service, Fingerprint(fingerprint), time_ns), want);
            prop_assert!(route.only().is_none_or(|only| only == want));
            let (shard, Window { start_ns, end_ns }) = route.leg_at(time_ns);
            let first = if start_ns == i64::MIN { start_ns } else { start_ns + 1 };
            prop_assert_eq!([shard; 3], [first, time_ns, end_ns].map(|at| naive(&sent, service, fingerprint, at)));
        }
        for (&a, &b) in times.iter().zip(&times[1..]) {
            let window = Window { start_ns: a.min(b), end_ns: a.max(b) };
            // An epoch also has the times up to an hour after the next epoch begins.
            let overlaps = |i: &usize| {
                let begins = *i == 0 || sent.epochs[*i].begins_ns < window.end_ns;
                let next = sent.epochs.get(i + 1);
                begins && next.is_none_or(|next| window.start_ns < next.begins_ns + EPOCH_OVERLAP_NS)
            };
            let epochs: Vec<usize> = (0..sent.epochs.len()).filter(overlaps).collect();
            let sorted = |mut shards: Vec<u32>| { shards.sort(); shards.dedup(); shards };
            let all = epochs.iter().flat_map(|&i| sent.epochs[i].shard_of_slot.iter().copied()).collect();
            prop_assert_eq!(placement.shards_in(window), sorted(all));
            // Numbers up to 8 x 7 x 5 x 3 x ... cover every part of every spread.
            let of_epoch = |&i: &usize| (0..840).map(move |fingerprint| (i, fingerprint));
            let of_service = epochs.iter().flat_map(of_epoch).map(|(i, fp)| naive_in(&sent.epochs[i], service, fp));
            prop_assert_eq!(placement.shards_of_service(&tenant(), service, window), sorted(of_service.collect()));
            prop_assert_eq!(placement.spans_epochs(window), epochs.len() > 1);
            for shard in placement.shards() {
                let ranges = placement.slots_of(shard, window);
                prop_assert!(ranges.iter().zip(ranges.iter().skip(1)).all(|((_, last), (first, _))| last + 1 < *first));
                let slots: Vec<u16> = ranges.into_iter().flat_map(|(first, last)| first..=last).collect();
                let of = |i: usize, slot: u16| sent.epochs[i].shard_of_slot[usize::from(slot)];
                let has = |slot: &u16| epochs.iter().any(|&i| of(i, *slot) == shard);
                prop_assert!(slots.into_iter().eq((0..SLOTS).filter(has)));
            }
            prop_assert!(!epochs.is_empty());
        }
    }
}
