//! Tests of the proposals for new shards and for new epochs.

use std::collections::BTreeSet;

use proptest::prelude::*;
use proto::meta::State;

use super::*;

/// Returns a cluster of nodes in these zones.
fn in_zones(zones: &[&str]) -> State {
    let mut state = State { cluster: Some(ClusterId(1)), format_version: 1, revision: 1, ..State::default() };
    state.retention_classes.push(Retention::DEFAULT);
    for (id, zone) in (1..).zip(zones) {
        state.nodes.insert(id, Node { zone: (*zone).to_owned(), ..node(id) });
    }
    state
}

/// Returns the number of replicas, or of created shards, of each node.
fn loads(state: &State, shards: &[Shard], of: impl Fn(&Shard, u64) -> bool) -> Vec<usize> {
    state.nodes.keys().map(|&node| shards.iter().filter(|shard| of(shard, node)).count()).collect()
}

fn difference(loads: &[usize]) -> usize {
    loads.iter().max().unwrap() - loads.iter().min().unwrap()
}

#[test]
fn nine_nodes_in_three_zones_share_all_shards_evenly() {
    let state = in_zones(&["a", "a", "a", "b", "b", "b", "c", "c", "c"]);
    let shards = propose_shards(&state, 18);
    assert_eq!(loads(&state, &shards, |shard, node| shard.member(node).is_some()), [6; 9]);
    assert_eq!(loads(&state, &shards, |shard, node| shard.creator == node), [2; 9]);
    assert_eq!(shards.iter().map(|shard| shard.number).collect::<Vec<_>>(), (1..=18).collect::<Vec<_>>());
}

#[test]
fn new_shards_go_to_the_nodes_with_the_fewest_replicas() {
    let mut state = in_zones(&["", "", ""]);
    state.shards.extend(propose_shards(&state, 4).into_iter().map(|shard| (shard.number, shard)));
    for id in 4..=6 {
        state.nodes.insert(id, Node { zone: String::new(), ..node(id) });
    }
    let added = propose_shards(&state, 4);
    assert_eq!(added[0].number, 5);
    assert!(added.iter().all(|shard| shard.members.iter().all(|member| member.node > 3)), "{added:?}");
}

#[test]
fn few_nodes_and_small_zones_still_have_shards() {
    assert_eq!(propose_shards(&in_zones(&[]), 3), []);
    assert_eq!(propose_shards(&in_zones(&["a"]), 2)[1].members.len(), 1);
    assert_eq!(propose_shards(&in_zones(&["a", "a"]), 1)[0].members.len(), 2);
    // Two replicas never share the larger zone while another zone is free.
    let state = in_zones(&["a", "a", "a", "a", "b", "c"]);
    for shard in propose_shards(&state, 8) {
        let zones: BTreeSet<&str> = shard.members.iter().map(|member| &*state.nodes[&member.node].zone).collect();
        assert_eq!(zones.len(), 3, "{shard:?}");
    }
}

/// Returns the fewest slots that any even division must move, by trying all shards for the remainder in order of size.
fn moves_min(previous: &Epoch, shards: &[u32]) -> usize {
    let slots = usize::from(SLOTS);
    let (each, remainder) = (slots / shards.len(), slots % shards.len());
    let count = |shard: &u32| previous.shard_of_slot().iter().filter(|&of_slot| of_slot == shard).count();
    let counts: Vec<usize> = shards.iter().map(count).collect();
    let kept: usize = counts.iter().map(|&count| count.min(each)).sum();
    let kept_more = counts.iter().filter(|&&count| count > each).count().min(remainder);
    slots - kept - kept_more
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    #[test]
    fn proposed_shards_are_valid_spread_and_in_different_zones(
        zones in proptest::collection::vec(0_usize..4, 1..12),
        counts in (0_u32..20, 0_u32..20),
        has_zones in any::<bool>(),
    ) {
        let names: Vec<&str> =
            zones.iter().map(|&zone| if has_zones { ["a", "b", "c", "d"][zone] } else { "" }).collect();
        let mut state = in_zones(&names);
        for count in [counts.0, counts.1] {
            let shards = propose_shards(&state, count);
            prop_assert_eq!(&shards, &propose_shards(&state, count));
            prop_assert_eq!(shards.len(), count as usize);
            let mut meta = MetaState::from(state);
            if count > 0 {
                prop_assert_eq!(meta.apply(2, 0, &Command::AddShards(shards)).unwrap(), Applied::Changed);
            }
            meta.state().check().unwrap();
            state = meta.state().clone();
        }
        let shards: Vec<Shard> = state.shards.values().cloned().collect();
        let distinct = names.iter().collect::<BTreeSet<_>>().len();
        for shard in &shards {
            prop_assert_eq!(shard.members.len(), names.len().min(REPLICAS));
            let of_shard: BTreeSet<&str> =
                shard.members.iter().map(|member| &*state.nodes[&member.node].zone).collect();
            prop_assert_eq!(of_shard.len(), distinct.min(shard.members.len()));
        }
        if distinct == 1 {
            prop_assert!(difference(&loads(&state, &shards, |shard, node| shard.member(node).is_some())) <= 1);
            // A node leads at most one shard more than another node, or as many as its members allow.
            prop_assert!(difference(&loads(&state, &shards, |shard, node| shard.creator == node)) <= 2);
        }
    }

    #[test]
    fn slots_are_divided_evenly_and_the_fewest_are_moved(
        before in proptest::collection::btree_set(1_u32..40, 1..20),
        after in proptest::collection::btree_set(1_u32..40, 1..20),
        skew in 0_usize..4096,
    ) {
        let [before, after] = [before, after].map(|shards| shards.into_iter().collect::<Vec<_>>());
        let mut slots = divide_slots(None, &before);
        // Also an uneven placement, as an operator may have made.
        slots[..skew].fill(before[0]);
        let previous = Epoch::new(1, i64::MIN, slots.clone(), BTreeMap::new()).unwrap();
        let divided = divide_slots(Some(&previous), &after);
        prop_assert_eq!(divided.len(), usize::from(SLOTS));
        let counts: Vec<usize> =
            after.iter().map(|shard| divided.iter().filter(|of_slot| *of_slot == shard).count()).collect();
        prop_assert_eq!(counts.iter().sum::<usize>(), usize::from(SLOTS), "only the given shards");
        prop_assert!(difference(&counts) <= 1);
        let moved = slots.iter().zip(&divided).filter(|(before, after)| before != after).count();
        prop_assert_eq!(moved, moves_min(&previous, &after));
    }
}

/// Returns services that are spread over these numbers of slots.
fn spread(slots: &[Option<u16>]) -> SpreadChanges {
    let service = |(number, slots): (usize, &Option<u16>)| {
        let slots = slots.map(|slots| Spread::new(slots).unwrap());
        ((TenantId::new("a").unwrap(), format!("s{}", number % 3)), slots)
    };
    slots.iter().enumerate().map(service).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn proposed_epochs_are_accepted_and_keep_what_is_not_changed(
        shards in proptest::collection::btree_set(1_u32..=6, 1..6),
        first in proptest::collection::vec(proptest::option::of(2_u16..9), 0..4),
        changes in proptest::collection::vec(proptest::option::of(2_u16..9), 0..4),
    ) {
        let mut state = in_zones(&["", "", ""]);
        let created = |shard: Shard| (shard.number, Shard { is_created: true, ..shard });
        state.shards.extend(propose_shards(&state, 6).into_iter().map(created));
        let shards: Vec<u32> = shards.into_iter().collect();
        let mut meta = MetaState::from(state);
        let [first, changes] = [first, changes].map(|slots| spread(&slots));
        for (begins_ns, changes) in [(i64::MIN, &first), (60_000_000_000, &changes)] {
            let epoch = propose_epoch(meta.state(), &shards, begins_ns, changes).unwrap();
            prop_assert_eq!(&epoch, &propose_epoch(meta.state(), &shards, begins_ns, changes).unwrap());
            prop_assert_eq!(meta.apply(2, 0, &Command::AddEpoch(epoch)).unwrap(), Applied::Changed);
            meta.state().check().unwrap();
        }
        let newest = meta.state().epochs.last().unwrap();
        prop_assert_eq!(newest.shards(), &shards[..]);
        let mut want: BTreeMap<String, u16> = BTreeMap::new();
        for ((_, service), slots) in first.iter().chain(&changes) {
            match slots {
                Some(slots) => want.insert(service.clone(), slots.slots()),
                None => want.remove(service),
            };
        }
        let services = newest.spread().values().flatten();
        let found: BTreeMap<String, u16> = services.map(|(name, slots)| (name.clone(), slots.slots())).collect();
        prop_assert_eq!(found, want);
    }
}

#[test]
fn an_epoch_without_shards_or_within_a_minute_is_not_proposed() {
    let state = in_zones(&["a"]);
    assert!(propose_epoch(&state, &[], i64::MIN, &SpreadChanges::new()).is_err());
    assert!(propose_epoch(&state, &[1], 7, &SpreadChanges::new()).is_err());
}

#[test]
fn no_shards_and_too_many_shards_divide_nothing() {
    assert!(divide_slots(None, &[]).is_empty());
    assert!(divide_slots(None, &(1..=4097).collect::<Vec<_>>()).is_empty());
    assert_eq!(divide_slots(None, &(1..=4096).collect::<Vec<_>>()), (1..=4096).collect::<Vec<_>>());
    assert_eq!(divide_slots(None, &[5, 5]), [5; 4096]);
}
