//! The members of the shards: their leaders, and the signatures of their contents, over the gRPC interface of nodes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use proto::TenantId;
use proto::placement::{FIRST_DATA_SHARD, Placement};
use proto::refusal::Refusal;
use proto::wire::cluster_client::ClusterClient;
use proto::wire::node_client::NodeClient;
use proto::wire::{
    AdministerRequest, AdministrationTask, PlacementRequest, ReadPointRequest, SeriesRequest, StatusRequest,
};
use serde_json::Value;
use tonic::transport::Channel;
use tonic::{Code, Status};
use transport::{Credentials, Dialer, TlsFiles};

use crate::cluster::Cluster;
use crate::grpc::block_on;

/// Number of members of a shard, if the cluster has as many nodes.
const MEMBERS: usize = 3;
/// Longest time until all members of a shard have applied the same entries, after the load has ended.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(200);
/// Longest time of one call.
const CALL: Duration = Duration::from_secs(30);

/// Calls a node directly, past the proxy.
fn call<T>(
    cluster: &Cluster,
    node: usize,
    call: impl AsyncFnOnce(NodeClient<Channel>) -> Result<T, Status>,
) -> Result<T, Status> {
    call_at(cluster, node, async |channel| call(NodeClient::new(channel)).await)
}

fn call_at<T>(
    cluster: &Cluster,
    node: usize,
    call: impl AsyncFnOnce(Channel) -> Result<T, Status>,
) -> Result<T, Status> {
    let certs = cluster.folder().join("certs");
    let [ca, cert, key] = ["ca.pem", "router-r1.pem", "router-r1.key"].map(|file| certs.join(file));
    let credentials = Credentials::load(TlsFiles { ca, cert, key }).unwrap();
    block_on(async {
        let dialer = Dialer::tls(credentials);
        let endpoint = dialer.endpoint(&cluster.node_address(node).to_string()).unwrap().timeout(CALL);
        call(dialer.connect_lazy(&endpoint)).await
    })
}

/// Returns the data shards of a cluster's first placement.
pub fn shards(cluster: &Cluster) -> impl Iterator<Item = u32> + use<> {
    (FIRST_DATA_SHARD..).take(cluster.shape().shards)
}

/// Returns the node that leads a shard; `None` if no leader responds.
///
/// Only a leader that has just heard a majority serves a read. Another member names the leader.
#[must_use]
pub fn leader(cluster: &Cluster, shard: u32) -> Option<usize> {
    (1..=cluster.shape().nodes).find(|&node| leads(cluster, node, shard))
}

/// Returns true if a node leads a shard. The wait for a node that is stopped takes half a minute.
#[must_use]
pub fn leads(cluster: &Cluster, node: usize, shard: u32) -> bool {
    let served = call(cluster, node, async |mut node| {
        let epoch = newest_epoch(&mut node).await?;
        let tenant = TenantId::default_tenant().as_str().to_owned();
        node.series(SeriesRequest { shard, tenant, placement_epoch: epoch, ..Default::default() }).await
    });
    match served {
        Ok(_) => true,
        Err(status) if status.code() == Code::InvalidArgument => true,
        Err(status) => {
            !matches!(Refusal::decode(status.details()), Some(Refusal::NotLeader { .. }))
                && status.code() != Code::Unavailable
                && status.code() != Code::NotFound
        }
    }
}

/// Requests the state that a linearizable read of a shard must see.
///
/// # Errors
/// The node does not respond, does not lead the shard, or reaches no majority of its members.
pub fn read_point(cluster: &Cluster, node: usize, shard: u32) -> Result<(), Status> {
    call(cluster, node, async |mut node| {
        let placement_epoch = newest_epoch(&mut node).await?;
        node.read_point(ReadPointRequest { shard, placement_epoch, is_stale: false }).await.map(drop)
    })
}

async fn newest_epoch(node: &mut NodeClient<Channel>) -> Result<u64, Status> {
    let placement = node.placement(PlacementRequest {}).await?.into_inner();
    Ok(Placement::from_wire(placement).map_err(|error| Status::internal(error.to_string()))?.epoch())
}

/// Returns the number of the newest epoch that a node knows.
///
/// # Errors
/// The node does not respond, or knows none.
pub fn epoch(cluster: &Cluster, node: usize) -> Result<u64, Status> {
    call(cluster, node, async |mut node| newest_epoch(&mut node).await)
}

/// Returns the system clock of a node, in seconds since 1970.
///
/// # Errors
/// The node does not respond, or its report has no time.
pub fn system_time_s(cluster: &Cluster, node: usize) -> Result<f64, String> {
    let request = AdministerRequest { shard: FIRST_DATA_SHARD, task: AdministrationTask::Clock.into() };
    let reply = call(cluster, node, async |mut node| node.administer(request).await);
    let report = reply.map_err(|status| status.to_string())?.into_inner().report;
    let report: Value = serde_json::from_str(&report).map_err(|error| error.to_string())?;
    report["system_time"].as_f64().ok_or_else(|| format!("no time: {report}"))
}

/// Returns what a node says about the damage of its replicas, by shard.
///
/// # Errors
/// The node does not respond.
pub fn damages(cluster: &Cluster, node: usize) -> Result<BTreeMap<u32, String>, Status> {
    let dialed = |channel| async move { ClusterClient::new(channel).status(StatusRequest {}).await };
    let groups = call_at(cluster, node, dialed)?.into_inner().groups;
    let damages = groups.into_iter().filter(|group| !group.damage.is_empty());
    Ok(damages.map(|group| (group.number, group.damage)).collect())
}

/// Verifies a node's replica of a shard. Returns the report, a JSON object.
///
/// # Errors
/// The node does not respond, or refuses.
pub fn verify(cluster: &Cluster, node: usize, shard: u32) -> Result<String, Status> {
    administer(cluster, node, shard, AdministrationTask::Verify)
}

/// Flushes and compacts a node's replica of a shard. Returns the report, a JSON object.
///
/// # Errors
/// The node does not respond, or refuses.
pub fn compact(cluster: &Cluster, node: usize, shard: u32) -> Result<String, Status> {
    administer(cluster, node, shard, AdministrationTask::Compact)
}

fn administer(cluster: &Cluster, node: usize, shard: u32, task: AdministrationTask) -> Result<String, Status> {
    let request = AdministerRequest { shard, task: task.into() };
    Ok(call(cluster, node, async |mut node| node.administer(request).await)?.into_inner().report)
}

/// Returns the leader of one of the data shards; `None` if that shard has no leader now.
#[must_use]
pub fn chosen_leader(cluster: &Cluster, choice: usize) -> Option<usize> {
    leader(cluster, FIRST_DATA_SHARD + u32::try_from(choice % cluster.shape().shards).unwrap())
}

/// Returns the leader of one of the data shards, or any node if that shard has no leader now.
#[must_use]
pub fn some_leader(cluster: &Cluster, choice: usize) -> usize {
    chosen_leader(cluster, choice).unwrap_or(choice % cluster.shape().nodes + 1)
}

/// Index of the last applied entry, and the signature of the content.
pub type Content = (Option<u64>, String);

/// Returns the content of a shard on a node; `None` if the node does not have the shard.
///
/// # Errors
/// The node does not respond, or the shard is not open.
pub fn content(cluster: &Cluster, node: usize, shard: u32) -> Result<Option<Content>, Status> {
    match administer(cluster, node, shard, AdministrationTask::Content) {
        Ok(report) => {
            let report: Value = serde_json::from_str(&report).unwrap();
            Ok(Some((report["index"].as_u64(), report["signature"].as_str().unwrap().to_owned())))
        }
        Err(status) if status.code() == Code::NotFound => Ok(None),
        Err(status) => Err(status),
    }
}

/// Returns the content of a shard on each node that has the shard.
fn contents(cluster: &Cluster, shard: u32) -> Result<BTreeMap<usize, Content>, String> {
    let mut out = BTreeMap::new();
    for node in 1..=cluster.shape().nodes {
        let found =
            content(cluster, node, shard).map_err(|status| format!("shard {shard} on node {node}: {status}"))?;
        out.extend(found.map(|content| (node, content)));
    }
    Ok(out)
}

/// Results of comparisons of the contents of members.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    /// Number of compared members.
    pub members: usize,
    /// Number of shards of which all members were compared.
    pub whole: usize,
    /// Number of shards of which only some members were found at one position.
    pub partial: usize,
    /// The differences, and the shards of which no two members were found at one position.
    pub differences: Vec<String>,
}

/// Compares the contents of all members of all shards. Returns the number of compared members, and the differences.
#[must_use]
pub fn compare(cluster: &Cluster) -> (usize, Vec<String>) {
    let Comparison { members, differences, .. } = comparison(cluster);
    (members, differences)
}

/// Compares the contents of all members of all shards, each at one position of the shard's log. If a member does not
/// reach this position in a minute, the other two are compared.
#[must_use]
pub fn comparison(cluster: &Cluster) -> Comparison {
    let all = cluster.shape().nodes.clamp(2, MEMBERS);
    let mut out = Comparison::default();
    for shard in shards(cluster) {
        let began = Instant::now();
        loop {
            let found = contents(cluster, shard);
            let is_late = began.elapsed() > PATIENCE;
            let least = if is_late { 2 } else { all };
            if let Ok(members) = &found
                && members.len() >= least
                && are_at_one_position(members)
            {
                out.add(shard, members, all);
                break;
            }
            if is_late {
                out.differences.push(format!("the members of shard {shard} have no common position: {found:?}"));
                break;
            }
            std::thread::sleep(PAUSE);
        }
    }
    out
}

fn are_at_one_position(members: &BTreeMap<usize, Content>) -> bool {
    let mut positions = members.values().map(|(index, _)| index);
    let first = positions.next();
    positions.all(|position| Some(position) == first)
}

impl Comparison {
    /// Adds members of a shard that are at one position. `all` is the number of its members.
    fn add(&mut self, shard: u32, members: &BTreeMap<usize, Content>, all: usize) {
        let mut signatures = members.values().map(|(_, signature)| signature);
        let first = signatures.next();
        if signatures.any(|signature| Some(signature) != first) {
            self.differences.push(format!("the members of shard {shard} differ: {members:?}"));
        }
        self.members += members.len();
        if members.len() >= all {
            self.whole += 1;
        } else {
            self.partial += 1;
        }
    }
}
