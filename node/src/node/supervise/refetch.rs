//! Repair of a damaged state: the state of another member takes its place.
//!
//! The log and the votes of the replica are not damaged, so the replica keeps its vote, and everything that it has
//! acknowledged. The other state is received and checked while the replica runs. A damaged replica that leads hands the
//! leadership over first, and stands back in elections, so that reads go to a member without damage.
//!
//! Invariant: a state is replaced only if the replica does not lead, and the other members that serve are a majority.
//! A shard with one or two members is therefore never repaired: it keeps what it has, and names the damage. Two members
//! may still be closed at the same time, because they do not coordinate; the shard then pauses, and loses nothing.

use std::sync::Arc;
use std::time::Duration;

use proto::meta::Shard;
use proto::wire;
use tokio::time::{Instant, sleep};

use crate::error::{NodeError, ReplicaError};
use crate::node::cluster::call;
use crate::node::hosted::{Hosted, State};
use crate::node::replica::Replica;
use crate::node::shared::Shared;
use crate::node::supervise::install::{INSTALL_INTERVAL, fetch};
use crate::node::supervise::{QueriesHeld, Repaired, close_and_install};
use crate::shard::snapshot::error::SnapshotError;
use crate::shard::snapshot::receiver::Staged;

/// Interval of checks if the replica has damage.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Longest time until another member leads, after this one has handed over.
const HAND_OVER_PATIENCE: Duration = Duration::from_secs(3);
/// Interval of checks if another member leads.
const HAND_OVER_INTERVAL: Duration = Duration::from_millis(20);
/// Largest number of entries that a member may lack that is to lead.
const LAG_MAX: u64 = 1000;

/// Reason why a damaged state is not repaired now.
#[derive(Debug, thiserror::Error)]
enum NotRepaired {
    #[error("this node does not know the members of the shard yet, or they are changing")]
    Unsettled,
    #[error("{serving} of the {others} other members serve, and {majority} must")]
    TooFew { serving: usize, others: usize, majority: usize },
    #[error("all other members that serve have damage, too")]
    NoSource,
    #[error("no other member has taken over the leadership")]
    Leads,
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    #[error("the snapshot cannot be opened: {0}")]
    Open(#[from] NodeError),
    #[error(transparent)]
    Log(#[from] Arc<ReplicaError>),
}

/// Another member of a shard that serves.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Peer {
    node: u64,
    address: String,
    applied_index: u64,
    is_damaged: bool,
}

/// The state of another member, which is ready to be installed.
pub(super) struct Fetched {
    staged: Staged,
    from: Peer,
}

/// Returns the state of another member as soon as the replica has damage, and another member can send its state.
/// `repaired` delays further attempts.
pub(super) async fn next(shared: &Shared, hosted: &Hosted, replica: &Replica, repaired: &mut Repaired) -> Fetched {
    let shard = hosted.number();
    loop {
        sleep(CHECK_INTERVAL).await;
        let damage = replica.shard().damage();
        let is_repairable = settled(shared, shard).is_some_and(|shard| shard.members.len() > 1);
        replica.stand_back(damage.is_some() && is_repairable);
        let Some(damage) = damage.filter(|_| is_repairable && matches!(hosted.state(), State::Serving(_))) else {
            continue;
        };
        sleep(repaired.pause()).await;
        tracing::warn!(shard, damage, "the state is damaged: it is to be replaced by that of another member");
        match fetch_for(shared, replica).await {
            Ok(fetched) => return fetched,
            Err(error) => not_repaired(shared, shard, &error),
        }
    }
}

/// Closes the replica, installs the state of another member, and opens the replica again. Returns the replica, and a
/// guard that makes queries wait until the replica serves. Returns `None` if the node stops, or if the replica failed
/// and is closed.
pub(super) async fn install(
    shared: &Shared,
    hosted: &Hosted,
    replica: Arc<Replica>,
    Fetched { staged, from }: Fetched,
) -> Option<(Arc<Replica>, QueriesHeld)> {
    let shard = hosted.number();
    let opened = close_and_install(shared, hosted, replica, Some(staged), INSTALL_INTERVAL, &State::Repairing).await?;
    note_installed(shared, shard, &opened.0, &from);
    Some(opened)
}

/// Opens a replica whose own state cannot be used, with the state of another member. Returns the replica, and a guard
/// that makes queries wait until the replica serves. Returns `None` if the node stops, or if the replica has failed for
/// good: the shard has no other member, or the log has failed.
pub(super) async fn rebuild(
    shared: &Shared,
    hosted: &Hosted,
    error: Arc<ReplicaError>,
    repaired: &mut Repaired,
) -> Option<(Arc<Replica>, Option<QueriesHeld>)> {
    let shard = hosted.number();
    let rebuilt = async {
        loop {
            if let Some(error) = shared.raft_log.final_error() {
                return Err(error);
            }
            if is_alone(shared, shard) {
                return Err(error);
            }
            if settled(shared, shard).is_none() {
                sleep(CHECK_INTERVAL).await;
                continue;
            }
            sleep(repaired.pause()).await;
            match open_with_state_of_other(shared, hosted).await {
                Ok((replica, held, from)) => {
                    note_installed(shared, shard, &replica, &from);
                    return Ok((replica, Some(held)));
                }
                Err(error) => not_repaired(shared, shard, &error),
            }
        }
    };
    match hosted.closing.run_until_cancelled(rebuilt).await {
        Some(Ok(opened)) => Some(opened),
        Some(Err(error)) => {
            hosted.set_state(State::Failed(error));
            None
        }
        None => {
            hosted.set_state(State::Stopped);
            None
        }
    }
}

async fn open_with_state_of_other(
    shared: &Shared,
    hosted: &Hosted,
) -> Result<(Arc<Replica>, QueriesHeld, Peer), NotRepaired> {
    let shard = hosted.number();
    let from = {
        let (members, serving) = serving_peers(shared, shard).await?;
        sources(members, serving)?.into_iter().next().ok_or(NotRepaired::NoSource)?
    };
    tracing::info!(shard, node = from.node, "fetching the state of another member");
    let staged = {
        // The semaphore is never closed.
        let _permit = shared.refetches.acquire().await;
        fetch(shared, shard, &from.address).await?
    };
    let held = Arc::clone(&hosted.queries).write_owned().await;
    let replica = shared.open_with(hosted, Some(staged)).await?;
    Ok((replica, held, from))
}

/// Fetches the state of another member for an open replica. A replica that leads first hands the leadership over.
async fn fetch_for(shared: &Shared, replica: &Replica) -> Result<Fetched, NotRepaired> {
    let shard = replica.shard().id();
    // Before the wait for other transfers, so that queries soon get undamaged data.
    if replica.is_leader() {
        let (_members, serving) = serving_peers(shared, shard).await?;
        let last = replica.status().last_index;
        let successor = undamaged(&serving).into_iter().next().ok_or(NotRepaired::NoSource)?;
        if successor.applied_index + LAG_MAX < last {
            return Err(NotRepaired::Leads);
        }
        tracing::info!(shard, node = successor.node, "the state is damaged: another member is to lead");
        replica.hand_over(successor.node).await;
        await_other_leader(replica).await?;
    }
    // The semaphore is never closed.
    let _permit = shared.refetches.acquire().await;
    let (members, serving) = serving_peers(shared, shard).await?;
    let from = sources(members, serving)?.into_iter().next().ok_or(NotRepaired::NoSource)?;
    let staged = fetch(shared, shard, &from.address).await?;
    let index = staged.manifest().position.index;
    // The log must go on where the state ends.
    if let Some(purged) = replica.last_purged().await?.filter(|&purged| purged > index) {
        return Err(SnapshotError::TooOld { found: index, requested: purged }.into());
    }
    // The transfer may have taken long.
    let (members, serving) = serving_peers(shared, shard).await?;
    sources(members, serving)?;
    if replica.is_leader() { Err(NotRepaired::Leads) } else { Ok(Fetched { staged, from }) }
}

async fn await_other_leader(replica: &Replica) -> Result<(), NotRepaired> {
    let began = Instant::now();
    while replica.is_leader() || replica.status().leader == 0 {
        if began.elapsed() > HAND_OVER_PATIENCE {
            return Err(NotRepaired::Leads);
        }
        sleep(HAND_OVER_INTERVAL).await;
    }
    Ok(())
}

/// Returns a shard whose members are known and not changing. A shard is changed or repaired, one after the other.
fn settled(shared: &Shared, shard: u32) -> Option<Shard> {
    let state = shared.cluster.state();
    state.shards.get(&shard).filter(|shard| shard.is_created && shard.target.is_empty()).cloned()
}

/// Returns true if the shard is known to have no other member.
fn is_alone(shared: &Shared, shard: u32) -> bool {
    settled(shared, shard).is_some_and(|shard| shard.members.len() <= 1)
}

/// Returns the number of members of a shard, and those on other nodes that serve.
async fn serving_peers(shared: &Shared, shard: u32) -> Result<(usize, Vec<Peer>), NotRepaired> {
    let state = shared.cluster.state();
    let members = settled(shared, shard).ok_or(NotRepaired::Unsettled)?.members;
    let others = members.iter().filter(|member| member.node != shared.config.node_id);
    let asked = others.filter_map(|member| state.nodes.get(&member.node)).map(|node| async {
        let status =
            call(shared, &node.address, |mut client| async move { client.status(wire::StatusRequest {}).await });
        let groups = status.await.ok()?.groups;
        let status = groups.into_iter().find(|group| group.number == shard && group.state == "serving")?;
        let wire::GroupStatus { applied_index, damage, .. } = status;
        let is_damaged = !damage.is_empty();
        Some(Peer { node: node.id, address: node.address.clone(), applied_index, is_damaged })
    });
    let serving = futures::future::join_all(asked).await.into_iter().flatten().collect();
    Ok((members.len(), serving))
}

/// Returns the members without damage, the most complete one first.
fn undamaged(serving: &[Peer]) -> Vec<Peer> {
    let mut peers: Vec<Peer> = serving.iter().filter(|peer| !peer.is_damaged).cloned().collect();
    peers.sort_by_key(|peer| std::cmp::Reverse((peer.applied_index, peer.node)));
    peers
}

/// Returns the members whose state can take the place of a damaged one, the most complete one first. `serving` are the
/// other members that serve.
fn sources(members: usize, serving: Vec<Peer>) -> Result<Vec<Peer>, NotRepaired> {
    let majority = members / 2 + 1;
    if serving.len() < majority {
        return Err(NotRepaired::TooFew { serving: serving.len(), others: members.saturating_sub(1), majority });
    }
    let sources = undamaged(&serving);
    if sources.is_empty() { Err(NotRepaired::NoSource) } else { Ok(sources) }
}

fn not_repaired(shared: &Shared, shard: u32, error: &NotRepaired) {
    shared.metrics.repaired(shard, false);
    tracing::warn!(shard, %error, "the damaged state is not repaired yet: will retry");
}

fn note_installed(shared: &Shared, shard: u32, replica: &Replica, from: &Peer) {
    let damage = replica.shard().damage();
    shared.metrics.repaired(shard, damage.is_none());
    let Peer { node, .. } = from;
    match damage {
        None => tracing::info!(shard, node, "repaired: the state of another member has replaced the damaged one"),
        Some(damage) => tracing::error!(shard, node, damage, "the state is damaged after its repair: will retry"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(node: u64, applied_index: u64, is_damaged: bool) -> Peer {
        Peer { node, address: format!("host-{node}:1"), applied_index, is_damaged }
    }

    #[test]
    fn the_state_comes_from_the_most_complete_undamaged_member() {
        let found = sources(3, vec![peer(2, 10, false), peer(3, 11, false)]).unwrap();
        assert_eq!(found.iter().map(|peer| peer.node).collect::<Vec<_>>(), [3, 2]);
        let found = sources(3, vec![peer(2, 10, false), peer(3, 11, true)]).unwrap();
        assert_eq!(found.iter().map(|peer| peer.node).collect::<Vec<_>>(), [2]);
    }

    #[test]
    fn no_state_is_replaced_without_a_majority_of_others_or_a_good_one() {
        let one = || vec![peer(2, 10, false)];
        for members in [2, 3] {
            let refused = sources(members, one()).unwrap_err();
            assert!(matches!(refused, NotRepaired::TooFew { serving: 1, majority: 2, .. }), "{refused}");
        }
        let refused = sources(5, vec![peer(2, 10, false), peer(3, 10, false)]).unwrap_err();
        assert!(matches!(refused, NotRepaired::TooFew { serving: 2, others: 4, majority: 3 }), "{refused}");
        let refused = sources(3, vec![peer(2, 10, true), peer(3, 11, true)]).unwrap_err();
        assert!(matches!(refused, NotRepaired::NoSource), "{refused}");
    }
}
