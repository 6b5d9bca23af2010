//! Commands to the meta group, whose log is never purged.

use node::Node;
use proto::TenantId;
use proto::meta::{Command, Limits, Policy, Retention, TimeResolution};
use proto::wire::cluster_server::Cluster as _;
use proto::wire::{ProposeRequest, StatusRequest};
use tonic::{Code, Request, Status};

use crate::support::{config, open, open_with};

async fn propose(node: &Node, command: &Command) -> Result<bool, Status> {
    let request = ProposeRequest { command: Some(command.to_wire()), is_forwarded: false, ..Default::default() };
    Ok(node.propose(Request::new(request)).await?.into_inner().is_changed)
}

/// Returns the index of the last entry in the log of the meta group.
async fn last_index(node: &Node) -> u64 {
    let status = node.status(Request::new(StatusRequest {})).await.unwrap().into_inner();
    let meta = &status.groups[0];
    assert_eq!((meta.number, meta.state.as_str(), meta.leader), (0, "serving", status.node));
    meta.last_index
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_and_repeated_commands_do_not_reach_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let opened = open(folder.path()).await;
    let node = &opened.node;
    let name = TenantId::new("acme").unwrap();
    let policy = Policy {
        retention: Retention([1, 2, 3, 4]),
        time_resolution: TimeResolution::Nanoseconds,
        removed_labels: Vec::new(),
        dropped_labels: Default::default(),
        limits: Limits::default(),
    };
    let create = Command::CreateTenant(name.clone(), policy.clone());
    let before = last_index(node).await;
    assert!(propose(node, &create).await.unwrap());
    assert_eq!(last_index(node).await, before + 1);
    for _ in 0..3 {
        assert!(!propose(node, &create).await.unwrap(), "it changes nothing");
        let other = Policy { retention: Retention([9; 4]), ..policy.clone() };
        for refused in [Command::CreateTenant(name.clone(), other), Command::ShardCreated(99)] {
            assert_eq!(propose(node, &refused).await.unwrap_err().code(), Code::FailedPrecondition);
        }
    }
    assert_eq!(last_index(node).await, before + 1);
    assert!(propose(node, &Command::DeleteTenant(name)).await.unwrap());
    assert_eq!(last_index(node).await, before + 2);
    opened.node.shutdown().await;
    // The log is the state: a start applies it again.
    let again = open_with(config(folder.path())).await;
    again.node.ready().await;
    assert!(again.node.watch_cluster().borrow().tenants.is_empty());
    again.node.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_status_of_a_node_names_all_its_groups() {
    let folder = tempfile::tempdir().unwrap();
    let opened = open_with(node::Config { shards: std::num::NonZeroU16::new(3), ..config(folder.path()) }).await;
    opened.node.ready().await;
    let status = opened.node.status(Request::new(StatusRequest {})).await.unwrap().into_inner();
    assert_eq!(status.groups.iter().map(|group| group.number).collect::<Vec<_>>(), [0, 1, 2, 3]);
    for group in &status.groups {
        assert!(group.state == "serving" && group.leader == 1 && group.term > 0, "{group:?}");
        assert!(group.applied_index <= group.last_index && group.followers.is_empty(), "{group:?}");
    }
    assert_eq!(status.revision, opened.node.watch_cluster().borrow().revision);
    opened.node.shutdown().await;
}
