//! The cluster of a fake node: the state of its meta group, in which all shards are on this node.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use proto::meta::{ClusterId, DirectoryId, Member, Node, Retention, Shard, State};
use proto::placement::{Epoch, SLOTS};
use proto::wire;
use proto::wire::cluster_server::{Cluster, ClusterServer};
use tonic::{Request, Response, Status};

/// A service that returns the same state to every watcher.
#[derive(Debug)]
pub(crate) struct OneNode(wire::MetaState);

impl OneNode {
    /// Returns the service of a node at `address` with `shards` shards. The placement has epoch 1.
    pub(crate) fn service(address: SocketAddr, shards: u32) -> ClusterServer<Self> {
        let member = Member { node: 1, directory: DirectoryId(1) };
        let node = Node { id: 1, address: address.to_string(), zone: String::new(), directory: member.directory };
        let shard = |number| {
            (
                number,
                Shard {
                    number,
                    members: vec![member],
                    target: Vec::new(),
                    leaving: Vec::new(),
                    creator: 1,
                    is_created: true,
                },
            )
        };
        let slots = (0..u32::from(SLOTS)).map(|slot| slot % shards + 1).collect();
        let state = State {
            cluster: Some(ClusterId(1)),
            format_version: 1,
            revision: 1,
            nodes: BTreeMap::from([(1, node)]),
            shards: (1..=shards).map(shard).collect(),
            retention_classes: vec![Retention::DEFAULT],
            epochs: vec![Epoch::new(1, i64::MIN, slots, BTreeMap::new()).unwrap().into()],
            ..State::default()
        };
        ClusterServer::new(Self(state.to_wire()))
    }
}

#[tonic::async_trait]
impl Cluster for OneNode {
    async fn identify(&self, _: Request<wire::IdentifyRequest>) -> Result<Response<wire::IdentifyResponse>, Status> {
        Err(Status::unimplemented("not used here"))
    }

    async fn propose(&self, _: Request<wire::ProposeRequest>) -> Result<Response<wire::ProposeResponse>, Status> {
        Err(Status::unimplemented("not used here"))
    }

    async fn status(&self, _: Request<wire::StatusRequest>) -> Result<Response<wire::StatusResponse>, Status> {
        Err(Status::unimplemented("not used here"))
    }

    async fn watch(&self, request: Request<wire::WatchRequest>) -> Result<Response<wire::WatchResponse>, Status> {
        if request.into_inner().revision == 0 {
            return Ok(Response::new(wire::WatchResponse { state: Some(self.0.clone()) }));
        }
        // Nothing ever changes.
        std::future::pending().await
    }
}
