//! `varve admin cluster accept` and `varve admin cluster move`: changes of the members of a cluster.
//!
//! A command changes only the state of the meta group. The nodes then make the change, also if this process ends.

use std::io::Read as _;
use std::time::Duration;

use anyhow::{Context as _, bail};
use proto::meta::{Command, DirectoryId, Member, State};
use proto::wire;
use proto::wire::cluster_client::ClusterClient;
use serde_json::{Value, json};
use tonic::Status;
use tonic::transport::Channel;
use transport::Dialer;

use super::output::print;
use crate::command::{AcceptOptions, ClusterCommands, MembersOptions, MoveOptions};
use crate::roles::credentials;

/// Longest time that a node may take to connect and to respond. It waits as long for the leader of the meta group.
const PATIENCE: Duration = Duration::from_secs(15);

pub(crate) fn run(command: &ClusterCommands) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting threads")?;
    runtime.block_on(async {
        match command {
            ClusterCommands::Accept(options) => accept(options).await,
            ClusterCommands::Move(options) => move_member(options).await,
        }
    })
}

async fn accept(options: &AcceptOptions) -> anyhow::Result<()> {
    let AcceptOptions { node, change } = options;
    let cluster = Cluster::reach(change).await?;
    let known = cluster.state.nodes.get(node).with_context(|| {
        let known: Vec<String> = cluster.state.nodes.keys().map(ToString::to_string).collect();
        format!("node {node} is unknown: the cluster has the nodes {}", known.join(", "))
    })?;
    let address = &known.address;
    let mut client = ClusterClient::new(cluster.dialer.connect_lazy(&cluster.dialer.endpoint(address)?));
    let identity = within(client.identify(wire::IdentifyRequest {})).await;
    let identity = identity.with_context(|| format!("node {node} at {address} must run with its new directory"))?;
    if identity.node != *node {
        bail!("node {}, and not node {node}, is at {address}: correct the options of that node", identity.node);
    }
    let found: [u8; 16] = identity.directory.as_ref().try_into().context("the node has no identity")?;
    let directory = DirectoryId(u128::from_be_bytes(found));
    let affected: Vec<u32> =
        cluster.state.shards.values().filter_map(|shard| shard.replica_on(*node).map(|_| shard.number)).collect();
    if known.directory == directory {
        let text = format!("node {node} has its known directory {directory}: nothing is to be done\n");
        return change.report(&json!({"node": node, "directory": directory.to_string(), "changed": false}), &text);
    }
    if identity.has_cluster {
        bail!(
            "node {node} at {address} has a directory that already belongs to a cluster: start it with an empty one, \
             because a directory with data may be a backup or that of another cluster"
        );
    }
    let changed = cluster.propose(change, Command::AcceptDirectory { node: *node, directory }).await?;
    let report = json!({"node": node, "directory": directory.to_string(), "shards": affected, "changed": changed});
    let verb = if change.dry_run { "would be" } else { "is" };
    let text = format!(
        "the directory {directory} of node {node} {verb} accepted: {} replicas are built again\n",
        affected.len()
    );
    change.report(&report, &text)
}

async fn move_member(options: &MoveOptions) -> anyhow::Result<()> {
    let MoveOptions { shard, from, to, change } = options;
    let cluster = Cluster::reach(change).await?;
    let known = cluster.state.shards.get(shard);
    let known = known
        .with_context(|| format!("shard {shard} is unknown: the cluster has {} shards", cluster.state.shards.len()))?;
    if let Some(known) = known.wanted().iter().find(|member| member.node == *to)
        && !known_wanted(&cluster.state, *shard, *from)
    {
        let text = format!("shard {shard} is or will be on node {to}, and not on node {from}: nothing is to be done\n");
        let identity = known.directory.to_string();
        return change
            .report(&json!({"shard": shard, "from": from, "to": to, "replica": identity, "changed": false}), &text);
    }
    // A member that was to leave stays with its own replica. Any other replica is new.
    let directory = known.member(*to).map_or_else(random_identity, |member| Ok(member.directory))?;
    let to_member = Member { node: *to, directory };
    let changed = cluster.propose(change, Command::MoveMember { shard: *shard, from: *from, to: to_member }).await?;
    let report = json!({"shard": shard, "from": from, "to": to, "replica": directory.to_string(), "changed": changed});
    let verb = if change.dry_run { "would move" } else { "moves" };
    change.report(&report, &format!("shard {shard} {verb} from node {from} to node {to}\n"))
}

/// Returns true if a node is to be a member of a shard.
fn known_wanted(state: &State, shard: u32, node: u64) -> bool {
    state.shards.get(&shard).is_some_and(|shard| shard.wanted().iter().any(|member| member.node == node))
}

fn random_identity() -> anyhow::Result<DirectoryId> {
    let mut identity = [0; 16];
    std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut identity)).context("/dev/urandom")?;
    Ok(DirectoryId(u128::from_be_bytes(identity)))
}

impl MembersOptions {
    fn report(&self, report: &Value, text: &str) -> anyhow::Result<()> {
        let mut report = report.clone();
        report["dry_run"] = self.dry_run.into();
        print(&if self.json { format!("{report}\n") } else { text.to_owned() })
    }
}

/// The cluster, as one of its nodes knows it.
struct Cluster {
    dialer: Dialer,
    client: ClusterClient<Channel>,
    state: State,
}

impl Cluster {
    /// Reads the state from the first node that knows it.
    async fn reach(options: &MembersOptions) -> anyhow::Result<Self> {
        let credentials = credentials(options.tls.clone())?;
        let dialer = credentials.map_or_else(Dialer::plaintext, Dialer::tls);
        let mut last = anyhow::anyhow!("no --node-endpoint is given");
        for url in &options.node_endpoint {
            let endpoint = dialer.endpoint_of_url(url)?;
            let client = ClusterClient::new(dialer.connect_lazy(&endpoint))
                .max_decoding_message_size(proto::limits::NODE_MESSAGE_BYTES_MAX);
            match within(client.clone().watch(wire::WatchRequest { revision: 0 })).await {
                Ok(wire::WatchResponse { state: Some(state) }) => {
                    let state = State::from_wire(state).with_context(|| format!("the state of the node at {url}"))?;
                    return Ok(Self { dialer, client, state });
                }
                Ok(wire::WatchResponse { state: None }) => {
                    last = anyhow::anyhow!("the node at {url} belongs to no cluster yet: name another node");
                }
                Err(error) => last = error.context(format!("the node at {url}")),
            }
        }
        Err(last)
    }

    /// Proposes a command. In a dry run, applies it to a copy of the state. Returns true if it changes the state.
    async fn propose(&self, options: &MembersOptions, command: Command) -> anyhow::Result<bool> {
        if options.dry_run {
            let mut state = node::meta::MetaState::from(self.state.clone());
            let applied = state.apply(self.state.revision + 1, 0, &command)?;
            return Ok(applied == node::meta::Applied::Changed);
        }
        let cluster = self.state.cluster.map(|cluster| cluster.to_wire()).unwrap_or_default();
        let request = wire::ProposeRequest { command: Some(command.to_wire()), is_forwarded: false, cluster };
        Ok(within(self.client.clone().propose(request)).await?.is_changed)
    }
}

/// Waits for a response, up to a time limit.
async fn within<T>(call: impl Future<Output = Result<tonic::Response<T>, Status>>) -> anyhow::Result<T> {
    let late = |_elapsed| anyhow::anyhow!("no response within {PATIENCE:?}: try again");
    match tokio::time::timeout(PATIENCE, call).await.map_err(late)? {
        Ok(response) => Ok(response.into_inner()),
        Err(status) => match transport::DialError::of(&status) {
            Some(reason) => bail!("no connection: {reason}"),
            None => bail!("{}", status.message()),
        },
    }
}
