//! Tests of stacks in export requests. A stack is defined unless its shard holds it. Its hash is the same in both
//! cases.

use prost::Message;
use proto::otlp::profiles::v1development::{Line, Location, Stack};
use proto::{Push, limits};

use super::{NOW, TIME, at, decode as decode_whole, normalize, profile, request, rows};
use crate::ingest::known_stacks::{KnownStacks, planned};

#[test]
fn known_stacks_are_only_hashed_and_new_ones_are_defined() {
    let of = |stacks: &[i32]| {
        let samples = stacks.iter().map(|&stack| at(stack, &[TIME])).collect();
        request(&[("service.name", "api")], vec![profile(samples)]).encode_to_vec()
    };
    let known = KnownStacks::default();
    let decode = |stacks: &[i32]| {
        let (push, defined_keys) = planned(Some(&known), |plan| normalize(&of(stacks), NOW, plan)).unwrap();
        known.add(&defined_keys);
        push
    };
    let hashes = |push: &Push| push.dictionary.stacks.keys().copied().collect::<Vec<_>>();
    let defined = |push: &Push| push.dictionary.stacks.iter().skip(1).filter(|(_, stack)| stack.is_some()).count();

    let first = decode(&[2, 3]);
    let whole = decode_whole(&of(&[2, 3]), NOW).unwrap();
    assert_eq!((rows(&first), hashes(&first)), (rows(&whole), hashes(&whole)), "unknown stacks are complete");
    assert_eq!(defined(&first), 3, "two parts of stack 2, one of stack 3");

    let again = decode(&[2, 3]);
    assert_eq!((hashes(&again), defined(&again)), (hashes(&whole), 0));
    assert!(again.dictionary.locations.is_empty() && again.dictionary.functions.is_empty());
    assert!(again.dictionary.strings.find("leaf").is_none());
    assert_eq!(again.profiles[0].samples.times_ns, whole.profiles[0].samples.times_ns);

    // The user part of stack 2 is stack 1, which is known; stack 4 has never been seen.
    let mut more =
        request(&[("service.name", "api")], vec![profile([1, 2, 4].map(|stack| at(stack, &[TIME])).to_vec())]);
    more.dictionary.as_mut().unwrap().stack_table.push(Stack { location_indices: vec![1, 2, 4] });
    let more = planned(Some(&known), |plan| normalize(&more.encode_to_vec(), NOW, plan)).unwrap().0;
    assert_eq!(defined(&more), 1);
    let names = rows(&more).remove(2).2;
    assert_eq!(names, ["leaf", "main", "Virtual(4660)"]);
}

#[test]
fn a_truncated_stack_has_the_same_hash_known_or_not() {
    let mut deep = request(&[("service.name", "api")], vec![profile(vec![at(4, &[TIME])])]);
    let location_indices = [&[3, 3][..], &[1, 2].repeat(limits::STACK_DEPTH_MAX)].concat();
    deep.dictionary.as_mut().unwrap().stack_table.push(Stack { location_indices });
    let deep = deep.encode_to_vec();
    let whole = decode_whole(&deep, NOW).unwrap();
    let (_, _, user, kernel) = rows(&whole).remove(0);
    assert_eq!((user.len() + kernel.len(), kernel.len()), (limits::STACK_DEPTH_MAX, 2));
    assert_eq!(user.last().unwrap(), "[truncated stack]");
    let stack = whole.dictionary.stack(1);
    let hashes: Vec<u128> = stack.iter().map(|&location| whole.dictionary.location_hash(location)).collect();
    assert_eq!(whole.dictionary.stacks.hash(1), proto::dictionary::stack_hash(&hashes));
    let known = KnownStacks::default();
    let decode = || planned(Some(&known), |plan| normalize(&deep, NOW, plan)).unwrap();
    known.add(&decode().1);
    let again = decode().0;
    assert!(again.dictionary.stacks.keys().eq(whole.dictionary.stacks.keys()));
    assert!(again.dictionary.stacks.get(1).is_none());
}

// Once, the second profile was accepted as if its stacks were defined, and shards refused the batch forever.
#[test]
fn a_stack_that_cannot_be_defined_refuses_only_its_profiles() {
    let profiles = [vec![1], vec![2, 3, 4, 5, 6, 7, 8, 9], vec![9], vec![1]];
    let profiles = profiles.map(|stacks| profile(stacks.into_iter().map(|stack| at(stack, &[TIME])).collect()));
    let mut large = request(&[("service.name", "api")], profiles.to_vec());
    let dictionary = large.dictionary.as_mut().unwrap();
    let locations = 9 * limits::STACK_DEPTH_MAX;
    let location = |i| Location {
        lines: vec![Line { line: i, ..Line::default() }; limits::LOCATION_LINES_MAX],
        ..Location::default()
    };
    dictionary.location_table = (0..locations as i64).map(location).collect();
    dictionary.location_table[0] = Location::default();
    let ids: Vec<i32> = (1..locations as i32).collect();
    let stacks = ids.chunks(limits::STACK_DEPTH_MAX).map(|ids| Stack { location_indices: ids.to_vec() });
    dictionary.stack_table = std::iter::once(Stack::default()).chain(stacks).collect();
    let large = large.encode_to_vec();
    let (push, defined_keys) = planned(None, |plan| normalize(&large, NOW, plan)).unwrap();
    assert_eq!((push.profiles.len(), push.rejected), (2, 2), "{:?}", push.warnings);
    // Some stacks of the second profile were defined before it was refused, and no shard receives them.
    assert_eq!(defined_keys.len(), 1, "stack 1 alone counts as sent");
    let used = push.profiles.iter().flat_map(|profile| &profile.samples.pairs);
    assert!({ used }.all(|&pair| push.dictionary.stacks.get(push.dictionary.pairs[pair as usize].user).is_some()));
}
