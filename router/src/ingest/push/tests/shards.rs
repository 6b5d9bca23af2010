//! Tests of pushes over several shards.

use std::collections::BTreeMap;

use tokio::sync::Barrier;
use tonic::Code;

use super::many_shards::{ManyShards, Pause, body_of, large_body, placement, pusher, timeless_body};
use super::*;

async fn push(pusher: &Pusher, body: &[u8]) -> Result<Accepted, PushError> {
    let arriving = arriving(Format::OtlpProtobuf, Encoding::Identity, body.to_vec());
    pusher.push(&TenantId::default_tenant(), arriving).await
}

/// Pause that is long enough to change a node before the retry.
const SLOW: &[Duration] = &[Duration::from_millis(300)];

/// Services in different shards of four.
const SERVICES: [&str; 3] = ["a", "b", "c"];

/// Makes a node with four shards, and a pusher. Also returns the shards of [`SERVICES`].
fn four() -> (Arc<ManyShards>, Pusher, [u32; 3]) {
    let node = ManyShards::new(4);
    let pusher = pusher(&node);
    let shards = SERVICES.map(|service| node.shard_of(service));
    assert_eq!(shards.iter().collect::<HashSet<_>>().len(), 3, "the tests need different shards: {shards:?}");
    (node, pusher, shards)
}

#[tokio::test]
async fn a_push_goes_to_its_shards_at_the_same_time() {
    let (node, pusher, shards) = four();
    // No append ends before all three have begun.
    *node.barrier.lock().unwrap() = Some(Arc::new(Barrier::new(3)));
    let pushed = tokio::time::timeout(Duration::from_secs(30), push(&pusher, &body_of(&SERVICES))).await.unwrap();
    assert_eq!(pushed.unwrap().samples, 3);
    assert_eq!(node.stored(), shards.map(|shard| (shard, 1)).into());
    assert_eq!(*node.placements_read.lock().unwrap(), 1);
}

#[tokio::test]
async fn a_retry_after_a_failed_shard_stores_nothing_twice() {
    let (node, pusher, [a, b, c]) = four();
    let body = body_of(&SERVICES);
    for code in [Code::Unavailable, Code::ResourceExhausted, Code::Internal] {
        node.with(b, |shard| shard.refuses = Some(code));
        let error = push(&pusher, &body).await.unwrap_err();
        assert!(error.to_string().contains(&format!("shard {b}: as the test wishes")), "{error}");
        let status = crate::api::error::ApiError::from(error).status.as_u16();
        assert!([429, 503].contains(&status), "a sender retries: {status}");
        assert_eq!(node.stored(), [(a, 1), (c, 1)].into(), "the other shards store their part");
    }
    node.with(b, |shard| shard.refuses = None);
    assert_eq!(push(&pusher, &body).await.unwrap().samples, 3);
    assert_eq!(node.stored(), [(a, 1), (b, 1), (c, 1)].into());
    // Another push has other samples.
    push(&pusher, &body_of(&SERVICES)).await.unwrap();
    assert_eq!(node.stored(), [(a, 2), (b, 2), (c, 2)].into());
}

#[tokio::test]
async fn only_a_shard_without_the_definitions_gets_the_push_again() {
    let (node, pusher, [a, b, c]) = four();
    push(&pusher, &body_of(&["a", "b"])).await.unwrap();
    assert_eq!(node.arrived(), [(a, (1, 1)), (b, (1, 1))].into());
    // The stack is known in two shards, and new in the third.
    push(&pusher, &body_of(&SERVICES)).await.unwrap();
    assert_eq!(node.arrived()[&c], (1, 1));
    push(&pusher, &body_of(&SERVICES)).await.unwrap();
    assert_eq!(node.arrived(), [(a, (1, 0)), (b, (1, 0)), (c, (1, 0))].into());
    node.with(b, |shard| shard.held.clear());
    push(&pusher, &body_of(&SERVICES)).await.unwrap();
    assert_eq!(node.arrived(), [(a, (1, 0)), (b, (2, 1)), (c, (1, 0))].into());
    assert_eq!(node.stored(), [(a, 4), (b, 4), (c, 3)].into());
    // A shard that fails for another reason makes the sender retry.
    node.with(b, |shard| shard.held.clear());
    node.with(a, |shard| shard.refuses = Some(Code::Unavailable));
    let error = push(&pusher, &body_of(&SERVICES)).await.unwrap_err();
    assert!(error.to_string().contains(&format!("shard {a}:")), "{error}");
}

#[tokio::test]
async fn a_push_with_an_old_placement_is_placed_again() {
    let (node, pusher, before) = four();
    push(&pusher, &body_of(&SERVICES)).await.unwrap();
    *node.placement.lock().unwrap() = placement(2, 4, 1);
    let after = SERVICES.map(|service| node.shard_of(service));
    assert_ne!(before, after);
    push(&pusher, &body_of(&SERVICES)).await.unwrap();
    let mut want: BTreeMap<u32, usize> = BTreeMap::new();
    before.iter().chain(&after).for_each(|shard| *want.entry(*shard).or_default() += 1);
    assert_eq!(node.stored(), want);
    assert_eq!(*node.placements_read.lock().unwrap(), 2, "once for both");
}

#[tokio::test]
async fn a_push_is_not_placed_again_for_ever() {
    let (node, pusher, [a, ..]) = four();
    node.with(a, |shard| shard.refuses = Some(Code::FailedPrecondition));
    let error = push(&pusher, &body_of(&["a"])).await.unwrap_err();
    assert!(error.to_string().contains("as the test wishes"), "{error}");
    assert_eq!(node.arrived(), [(a, (4, 4))].into());
    // Samples that a shard has acknowledged are not placed again.
    push(&pusher, &body_of(&SERVICES)).await.unwrap_err();
    assert_eq!(node.arrived()[&a].0, 1);
}

// Once, the second try used the new placement for samples of which one shard had stored a part: samples were stored
// twice, others never, and the push was acknowledged.
#[tokio::test]
async fn a_push_that_is_stored_in_part_keeps_its_placement() {
    let (node, pusher, [a, b, _]) = four();
    push(&pusher, &body_of(&["a", "b"])).await.unwrap();
    node.with(b, |shard| shard.held.clear());
    let pause = Arc::new(Pause::default());
    *node.pause.lock().unwrap() = Some(Arc::clone(&pause));
    let body = body_of(&["a", "b"]);
    let pushing = tokio::spawn({
        let pusher = pusher.clone();
        async move { push(&pusher, &body).await }
    });
    pause.began.notified().await;
    assert_eq!(node.stored(), [(a, 2), (b, 1)].into());
    *node.placement.lock().unwrap() = placement(2, 4, 1);
    *node.pause.lock().unwrap() = None;
    // Another push makes the router read the new placement.
    push(&pusher, &body_of(&["c"])).await.unwrap();
    let with_c = node.stored();
    pause.may_end.notify_one();
    let error = pushing.await.unwrap().unwrap_err();
    assert!(error.to_string().contains("read the placement again"), "{error}");
    assert_eq!(node.stored(), with_c, "nothing is stored twice, or acknowledged without being stored");
}

// The outcome of the second shard is unknown: samples that it may have stored must not get another shard.
#[tokio::test]
async fn a_push_with_an_unknown_outcome_is_not_placed_again() {
    let (node, pusher, [a, b, _]) = four();
    node.with(a, |shard| shard.refuses = Some(Code::FailedPrecondition));
    node.with(b, |shard| shard.refuses = Some(Code::Unavailable));
    push(&pusher, &body_of(&["a", "b"])).await.unwrap_err();
    assert_eq!((node.arrived()[&a].0, *node.placements_read.lock().unwrap()), (1, 1));
    // Missing definitions are a known outcome.
    node.with(b, |shard| shard.refuses = Some(Code::Aborted));
    push(&pusher, &body_of(&["a", "b"])).await.unwrap_err();
    assert_eq!((node.arrived()[&b].0, *node.placements_read.lock().unwrap()), (4, 5));
}

#[tokio::test]
async fn a_retry_after_an_unknown_outcome_is_not_placed_again() {
    let (node, pusher, [_, b, _]) = four();
    node.with(b, |shard| shard.silent = 1);
    let slow = Pusher { retry_pauses: SLOW, ..pusher };
    let body = body_of(&["b"]);
    let pushing = tokio::spawn(async move { push(&slow, &body).await });
    while node.stored().is_empty() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    *node.placement.lock().unwrap() = placement(2, 4, 1);
    pushing.await.unwrap().unwrap_err();
    assert_eq!(node.stored(), [(b, 1)].into());
}

#[tokio::test]
async fn a_lost_response_stores_samples_without_times_once() {
    let (node, pusher, [a, b, _]) = four();
    let body = timeless_body(&["a", "b"]);
    node.with(b, |shard| shard.silent = 2);
    assert_eq!(push(&pusher, &body).await.unwrap().samples, 2);
    assert_eq!(node.stored(), [(a, 1), (b, 1)].into());
    assert_eq!(node.arrived(), [(a, (1, 1)), (b, (3, 3))].into(), "only the second shard gets its part again");
    // Another push with the same content is no retry.
    push(&pusher, &body).await.unwrap();
    assert_eq!(node.stored(), [(a, 2), (b, 2)].into());
}

#[tokio::test]
async fn refused_parts_are_sent_again_a_few_times() {
    let (node, pusher, [a, b, _]) = four();
    for (code, tries) in [(Code::ResourceExhausted, 3), (Code::Unavailable, 3), (Code::Internal, 1)] {
        node.with(b, |shard| shard.refuses = Some(code));
        push(&pusher, &body_of(&["a", "b"])).await.unwrap_err();
        let arrived = node.arrived();
        assert_eq!((arrived[&a].0, arrived[&b].0), (1, tries), "{code}");
    }
    node.with(b, |shard| shard.refuses = Some(Code::Unavailable));
    let slow = Pusher { retry_pauses: SLOW, ..pusher.clone() };
    let body = body_of(&["a", "b"]);
    let pushing = tokio::spawn(async move { push(&slow, &body).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    node.with(b, |shard| shard.refuses = None);
    assert_eq!(pushing.await.unwrap().unwrap().samples, 2);
}

// Once, two parts of 70 MiB each refused each other by the node's budget, on every retry.
#[tokio::test]
async fn large_parts_are_sent_in_rounds_of_limited_size() {
    let services: Vec<String> = (0..40).map(|i| format!("service{i}")).collect();
    // Parts of 8 MB, of which some are sent at the same time, and parts of 50 MB, which are sent alone.
    for (stacks, are_together) in [(1_000, true), (6_000, false)] {
        let node = ManyShards::new(4);
        let pusher = pusher(&node);
        // One service of each shard.
        let of_shard = |shard: u32| services.iter().find(|service| node.shard_of(service) == shard).unwrap().as_str();
        let four: Vec<&str> = (1..=4).map(of_shard).collect();
        let free_bytes = pusher.admission.free_bytes();
        let accepted = push(&pusher, &large_body(&four, stacks)).await.unwrap();
        assert_eq!(accepted.samples, 4 * stacks as u64);
        assert_eq!(node.stored(), (1..=4).map(|shard| (shard, stacks as usize)).collect::<BTreeMap<_, _>>());
        let (count, bytes) = *node.appending_max.lock().unwrap();
        assert_eq!(count > 1, are_together, "{bytes} bytes");
        assert!(count == 1 || bytes <= 32 << 20, "{bytes}");
        assert_eq!(pusher.admission.free_bytes(), free_bytes, "all budget is free again");
    }
}
