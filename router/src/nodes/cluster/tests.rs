//! Tests of the search for leaders, with scripted responses of members, and of states of other clusters.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use proto::leader_search::SLOW;
use proto::meta::{ClusterId, DirectoryId, Member, Node, Shard};
use proto::placement::{Epoch, SLOTS};

use super::*;
use crate::nodes::remote::PATIENCE;

const SHARD: u32 = 1;

/// Returns the state of a cluster of these nodes, which all have the only shard.
fn state(cluster: u128, revision: u64, ids: &[u64]) -> State {
    let member = |&node: &u64| Member { node, directory: DirectoryId(node.into()) };
    let address = |id: u64| format!("127.0.0.1:{}", 1000 + id);
    let node =
        |&id: &u64| (id, Node { id, address: address(id), zone: String::new(), directory: DirectoryId(id.into()) });
    let members = ids.iter().map(member).collect();
    let shard =
        Shard { number: SHARD, members, target: Vec::new(), leaving: Vec::new(), creator: ids[0], is_created: true };
    State {
        cluster: Some(ClusterId(cluster)),
        format_version: 1,
        revision,
        nodes: ids.iter().map(node).collect(),
        shards: BTreeMap::from([(SHARD, shard)]),
        epochs: vec![Epoch::new(1, i64::MIN, vec![SHARD; SLOTS.into()], BTreeMap::new()).unwrap().into()],
        ..State::default()
    }
}

fn cluster(ids: &[u64]) -> Arc<Cluster> {
    let cluster = Cluster::new(&Dialer::plaintext(), Vec::new(), None, PATIENCE);
    cluster.learn(state(1, 1, ids)).unwrap();
    cluster
}

fn refused(refusal: Refusal) -> Status {
    Status::with_details(Code::Unavailable, "refused", refusal.encode().into())
}

fn not_leader(leader: Option<u64>) -> Status {
    refused(Refusal::NotLeader { leader })
}

/// Calls the shard. `responses` has the response of each attempt. Returns the nodes that were called, and the result.
async fn called(
    cluster: &Cluster,
    is_repeatable: bool,
    responses: &[Result<(), Status>],
) -> (Vec<u64>, Result<(), Code>) {
    let nodes = Mutex::new(Vec::new());
    let call = |remote: Arc<Remote>| {
        let name = format!("{remote:?}");
        let mut nodes = nodes.lock();
        nodes.push((1..=9).find(|id| name.contains(&format!("127.0.0.1:100{id}"))).unwrap());
        let response = responses[nodes.len() - 1].clone();
        async move { response }
    };
    let result = cluster.at_leader(SHARD, is_repeatable, call).await;
    (nodes.into_inner(), result.map_err(|status| status.code()))
}

#[tokio::test]
async fn a_call_follows_the_hint_and_remembers_the_leader() {
    let cluster = cluster(&[1, 2, 3]);
    assert_eq!(called(&cluster, true, &[Err(not_leader(Some(3))), Ok(())]).await, (vec![1, 3], Ok(())));
    assert_eq!(called(&cluster, true, &[Ok(())]).await, (vec![3], Ok(())));
}

#[tokio::test]
async fn members_that_point_at_each_other_are_called_until_one_leads() {
    let cluster = cluster(&[1, 2, 3]);
    let responses = [Err(not_leader(Some(2))), Err(not_leader(Some(1))), Err(not_leader(Some(2))), Ok(())];
    assert_eq!(called(&cluster, true, &responses).await, (vec![1, 2, 1, 2], Ok(())));
}

/// Until the others have elected a leader, they name the one that died. Then the call must not wait long.
#[tokio::test(start_paused = true)]
async fn a_new_leader_is_found_a_moment_after_its_election() {
    for elected_ms in [0, 30, 400, 750, 1200] {
        let cluster = cluster(&[1, 2, 3]);
        cluster.leaders.lock().set_leader(SHARD, 1);
        let began = Instant::now();
        let elected = Duration::from_millis(elected_ms);
        let calls_of_dead = AtomicU64::new(0);
        let call = |remote: Arc<Remote>| {
            let name = format!("{remote:?}");
            let is_dead = name.contains("127.0.0.1:1001");
            calls_of_dead.fetch_add(is_dead.into(), Ordering::Relaxed);
            async move {
                match began.elapsed() >= elected {
                    _ if is_dead => Err(Lost::Request.status("connection refused".to_owned())),
                    true if name.contains("127.0.0.1:1003") => Ok(()),
                    true => Err(not_leader(Some(3))),
                    false => Err(not_leader(Some(1))),
                }
            }
        };
        cluster.at_leader(SHARD, true, call).await.unwrap();
        let late = began.elapsed() - elected;
        assert!(late <= Duration::from_millis(150), "{elected_ms}: {late:?} after the election");
        assert!(calls_of_dead.into_inner() <= 8, "the dead member is called too often");
    }
}

#[tokio::test]
async fn members_that_do_not_have_the_shard_are_passed_over_once() {
    let lost = || Err(Status::not_found("it lost its data"));
    assert_eq!(called(&cluster(&[1, 2, 3]), true, &[lost(), Ok(())]).await, (vec![1, 2], Ok(())));
    let none = [lost(), lost(), lost(), lost()];
    let (nodes, result) = called(&cluster(&[1, 2, 3]), true, &none).await;
    assert_eq!((nodes.len(), result), (4, Err(Code::NotFound)));
}

#[tokio::test]
async fn only_repeatable_calls_are_made_again_after_an_unknown_outcome() {
    let unknown = || [Err(refused(Refusal::Unknown)), Ok(())];
    assert_eq!(called(&cluster(&[1, 2]), true, &unknown()).await, (vec![1, 2], Ok(())));
    assert_eq!(called(&cluster(&[1, 2]), false, &unknown()).await, (vec![1], Err(Code::Unavailable)));
    // Nothing was done at a member that is not the leader, or that cannot be reached.
    assert_eq!(called(&cluster(&[1, 2]), false, &[Err(not_leader(None)), Ok(())]).await, (vec![1, 2], Ok(())));
    assert_eq!(called(&cluster(&[1]), true, &[Err(not_leader(None))]).await, (vec![1], Err(Code::Unavailable)));
}

#[tokio::test]
async fn an_unknown_outcome_is_not_hidden_by_a_later_error() {
    let broke = Lost::Response.status("the connection broke".to_owned());
    let responses = [Err(broke), Err(Status::failed_precondition("read the placement again"))];
    assert_eq!(called(&cluster(&[1, 2]), true, &responses).await, (vec![1, 2], Err(Code::Unavailable)));
}

/// A stopped process accepts connections and never responds, so a call to it ends with a time limit.
#[tokio::test]
async fn a_silent_member_is_not_called_again_while_another_one_responds() {
    let cluster = cluster(&[1, 2, 3]);
    let silent = AtomicU64::new(0);
    let call = |remote: Arc<Remote>| {
        let is_silent = format!("{remote:?}").contains("127.0.0.1:1001");
        silent.fetch_add(is_silent.into(), Ordering::Relaxed);
        async move {
            if is_silent {
                sleep(SLOW).await;
                return Err(Lost::Response.status("no response".to_owned()));
            }
            // The member does not know yet that its leader is silent.
            if format!("{remote:?}").contains("127.0.0.1:1002") { Err(not_leader(Some(1))) } else { Ok(()) }
        }
    };
    for _ in 0..5 {
        cluster.leaders.lock().forget_leader(SHARD);
        cluster.at_leader(SHARD, true, call).await.unwrap();
    }
    assert_eq!(silent.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_member_is_called_again_if_every_member_is_silent() {
    let cluster = cluster(&[1, 2]);
    let calls = AtomicU64::new(0);
    let call = |_: Arc<Remote>| {
        let is_silent = calls.fetch_add(1, Ordering::Relaxed) < 2;
        async move {
            if is_silent {
                sleep(SLOW).await;
                return Err(Lost::Response.status("no response".to_owned()));
            }
            Ok(())
        }
    };
    cluster.at_leader(SHARD, true, call).await.unwrap();
    assert_eq!(calls.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn states_of_other_clusters_and_older_states_are_not_kept() {
    let cluster = cluster(&[1, 2]);
    assert_eq!(cluster.learn(state(2, 99, &[3])).unwrap_err().code(), Code::FailedPrecondition);
    assert_eq!(cluster.learn(state(1, 2, &[1, 2, 3])).unwrap().nodes.len(), 3);
    assert_eq!(cluster.learn(state(1, 1, &[1])).unwrap().nodes.len(), 3);
}
