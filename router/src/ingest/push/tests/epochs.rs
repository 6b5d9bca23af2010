//! Tests of retries of pushes that carry no times, across epochs of the placement.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proto::placement::Epoch;
use tonic::Code;

use super::many_shards::{ManyShards, placement, pusher, timeless_body};
use super::*;

const SHARDS: u16 = 4;
const SERVICES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
const MINUTE_NS: i64 = 60_000_000_000;

async fn push(pusher: &Pusher, key: &str) -> Result<Accepted, PushError> {
    let body = timeless_body(&SERVICES);
    let key = Some(key.to_owned().into());
    let head = Ok(Head { format: Format::OtlpProtobuf, encoding: Encoding::Identity, key });
    let arriving = Arriving { head, body: body.into(), announced_bytes: 0, framing: Framing::None };
    pusher.push(&TenantId::default_tenant(), arriving).await
}

/// Adds an epoch that begins this many minutes ago, and in which slots are moved by `moved` shards.
fn add_epoch(node: &ManyShards, minutes_ago: i64, moved: u32) {
    let mut known = node.placement.lock().unwrap();
    let begins_ns = (now_ns() / MINUTE_NS - minutes_ago) * MINUTE_NS;
    let slots = placement(1, SHARDS, moved).newest().shard_of_slot().to_vec();
    let next = Epoch::new(known.epoch() + 1, begins_ns, slots, BTreeMap::new()).unwrap();
    let epochs = known.epochs().cloned().chain([Arc::new(next)]).collect::<Vec<_>>();
    *known = Placement::new(epochs).unwrap();
}

fn samples(node: &ManyShards) -> usize {
    node.stored().values().sum()
}

#[tokio::test]
async fn a_retry_without_times_in_a_later_epoch_counts_once() {
    let node = ManyShards::new(SHARDS);
    let pusher = pusher(&node);
    node.with(2, |shard| shard.refuses = Some(Code::Internal));
    push(&pusher, "k").await.unwrap_err();
    let before = samples(&node);
    assert!(before > 0 && before < SERVICES.len(), "one shard has stored nothing, others their parts");
    assert_eq!(*node.lookups.lock().unwrap(), 0, "there is one epoch");
    node.with(2, |shard| shard.refuses = None);
    add_epoch(&node, 0, 1);
    for _ in 0..2 {
        let accepted = push(&pusher, "k").await.unwrap();
        assert_eq!((accepted.samples, samples(&node)), (SERVICES.len() as u64, SERVICES.len()));
    }
    assert!(*node.lookups.lock().unwrap() > 0);
    // Another push of the same content.
    push(&pusher, "other").await.unwrap();
    assert_eq!(samples(&node), 2 * SERVICES.len());
}

#[tokio::test]
async fn a_push_waits_for_a_shard_that_may_have_stored_it() {
    let node = ManyShards::new(SHARDS);
    let pusher = pusher(&node);
    push(&pusher, "k").await.unwrap();
    add_epoch(&node, 0, 1);
    node.with(3, |shard| shard.refuses = Some(Code::Unavailable));
    let error = push(&pusher, "k").await.unwrap_err();
    assert_eq!(crate::api::error::ApiError::from(error).status.as_u16(), 503, "a sender retries");
    assert_eq!(samples(&node), SERVICES.len());
    // A push with times is found by its times, and one without a key is no retry: neither asks anyone.
    let asked = *node.lookups.lock().unwrap();
    node.with(3, |shard| shard.refuses = None);
    let keyless = arriving(Format::OtlpProtobuf, Encoding::Identity, timeless_body(&SERVICES));
    pusher.push(&TenantId::default_tenant(), keyless).await.unwrap();
    assert_eq!((samples(&node), *node.lookups.lock().unwrap()), (2 * SERVICES.len(), asked));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn attempts_in_any_epochs_store_each_sample_once(
        attempts in proptest::collection::vec((proptest::collection::btree_set(1_u32..5, 0..4), 0_u32..6), 1..5),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let node = ManyShards::new(SHARDS);
            let pusher = pusher(&node);
            let mut minutes_ago = 10;
            for (refusing, moved) in attempts.iter().chain([&(BTreeSet::new(), 9)]) {
                (1..=u32::from(SHARDS)).for_each(|shard| {
                    // The lookup must be answered: otherwise nothing is sent at all.
                    node.with(shard, |of| of.refuses_appends = refusing.contains(&shard));
                });
                let pushed = push(&pusher, "k").await;
                assert!(pushed.is_ok() || !refusing.is_empty());
                if *moved < u32::from(SHARDS) {
                    add_epoch(&node, minutes_ago, *moved);
                    minutes_ago -= 1;
                }
            }
            assert_eq!(samples(&node), SERVICES.len());
        });
    }
}
