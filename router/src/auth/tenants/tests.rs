//! Tests of the limits of tenants.

use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroU64};

use proto::meta::{ClusterId, Policy, Retention, Tenant, TimeResolution, Token, TokenHash};

use super::*;

/// Name, limits and tokens of a tenant.
type Described<'a> = (&'a str, Limits, &'a [(&'a str, Token)]);

/// Returns a state with these tenants.
pub(crate) fn state(tenants: &[Described<'_>]) -> Arc<State> {
    let tenant = |&(name, limits, tokens): &Described<'_>| {
        let name = TenantId::new(name).unwrap();
        let policy = Policy {
            retention: Retention([1; 4]),
            time_resolution: TimeResolution::Nanoseconds,
            removed_labels: Vec::new(),
            dropped_labels: Default::default(),
            limits,
        };
        let tokens = tokens.iter().map(|&(token, of)| (TokenHash::of(token), of)).collect();
        (name.clone(), Tenant { name, policy, retention_class: 1, owns_class: false, tokens })
    };
    let tenants: BTreeMap<_, _> = tenants.iter().map(tenant).collect();
    Arc::new(State { cluster: Some(ClusterId(1)), revision: 1, tenants, ..State::default() })
}

fn name(text: &str) -> TenantId {
    TenantId::new(text).unwrap()
}

#[tokio::test]
async fn a_tenant_over_its_rates_is_refused_and_others_are_not() {
    let limits = |samples, bytes| Limits {
        samples_per_second_max: NonZeroU64::new(samples),
        bytes_per_second_max: NonZeroU64::new(bytes),
        ..Limits::default()
    };
    let (states, receiver) = watch::channel(state(&[("a", limits(10, 0), &[]), ("b", limits(0, 1_000_000), &[])]));
    let tenants = Tenants::of_node(receiver);
    tenants.charge_push(&name("a"), 5).unwrap();
    tenants.charge_samples(&name("a"), 100_000);
    let refused = tenants.admit_push(&name("a")).unwrap_err();
    assert_eq!(refused, Exceeded::Samples(NonZeroU64::new(10).unwrap()));
    assert!(refused.to_string().contains("10 samples a second"), "{refused}");
    tenants.charge_push(&name("b"), 1_000_000_000).unwrap();
    tenants.charge_samples(&name("b"), 100_000);
    assert_eq!(tenants.admit_push(&name("b")), Err(Exceeded::Bytes(NonZeroU64::new(1_000_000).unwrap())));
    // Neither a tenant without limits nor one that the meta group does not know is limited.
    for _ in 0..3 {
        tenants.charge_push(&name("default"), 1 << 40).unwrap();
        tenants.charge_samples(&name("default"), 1 << 40);
    }
    // A limit that is lifted no longer applies.
    states.send_replace(state(&[("a", Limits::default(), &[])]));
    tenants.admit_push(&name("a")).unwrap();
}

#[tokio::test]
async fn a_query_counts_until_its_share_is_dropped() {
    let limits = Limits { queries_at_once_max: NonZeroU32::new(2), ..Limits::default() };
    let (_states, receiver) = watch::channel(state(&[("a", limits, &[]), ("b", limits, &[])]));
    let tenants = Tenants::of_node(receiver);
    let first = tenants.admit_query(&name("a")).unwrap();
    let _second = tenants.admit_query(&name("a")).unwrap();
    assert!(matches!(tenants.admit_query(&name("a")), Err(Exceeded::Queries(_))));
    let _other = tenants.admit_query(&name("b")).unwrap();
    drop(first);
    let _third = tenants.admit_query(&name("a")).unwrap();
    assert!(tenants.admit_query(&name("a")).is_err());
    assert!((0..100).map(|_| tenants.admit_query(&name("default"))).all(|share| share.is_ok()));
}

#[tokio::test]
async fn what_deleted_tenants_used_is_forgotten() {
    let limits = Limits { queries_at_once_max: NonZeroU32::new(2), ..Limits::default() };
    let (states, receiver) = watch::channel(state(&[]));
    let tenants = Tenants::of_node(receiver);
    for number in 0..2 * TENANTS_MAX {
        let tenant = format!("t{number}");
        states.send_replace(state(&[(&tenant, limits, &[])]));
        let _share = tenants.admit_query(&name(&tenant)).unwrap();
        assert!(tenants.usage.lock().len() <= TENANTS_MAX);
    }
}

#[tokio::test]
async fn the_first_state_is_waited_for_and_the_last_one_stays() {
    let (states, receiver) = watch::channel(Arc::default());
    let tenants = Tenants::of_node(receiver);
    let unknown = tenants.known_state(false).await.unwrap_err();
    assert!(unknown.0.contains("try again"), "{}", unknown.0);
    let waiting = tenants.clone();
    let waiting = tokio::spawn(async move { waiting.known_state(false).await.unwrap().unwrap().revision });
    tokio::task::yield_now().await;
    states.send_replace(state(&[]));
    assert_eq!(waiting.await.unwrap(), 1);
    drop(states);
    assert_eq!(tenants.known_state(false).await.unwrap().unwrap().revision, 1);
}
