//! Options of `varve admin cluster accept` and `varve admin cluster move`.

use clap::{Args, Subcommand};

use super::role::TlsOptions;

/// Subcommands of `varve admin cluster`.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum ClusterCommands {
    /// Accepts the empty data directory of a node that lost its disk
    ///
    /// The node's replicas are built again from the other members of each shard. Its old directory must never be used
    /// again. Example: varve admin cluster accept --node 3 --node-endpoint https://db1.example:4041
    Accept(AcceptOptions),
    /// Moves a replica of a shard from one node to another
    ///
    /// The shard serves meanwhile. The old node deletes its replica after the new one has a vote.
    Move(MoveOptions),
}

/// Options of `varve admin cluster accept`.
#[derive(Clone, Debug, Args)]
pub(crate) struct AcceptOptions {
    /// Number of the node, which must run with its new directory
    #[arg(long, value_name = "ID")]
    pub(crate) node: u64,
    #[command(flatten)]
    pub(crate) change: MembersOptions,
}

/// Options of `varve admin cluster move`.
#[derive(Clone, Debug, Args)]
pub(crate) struct MoveOptions {
    /// Number of the shard
    #[arg(long, value_name = "N")]
    pub(crate) shard: u32,
    /// Number of the node that gives up its replica
    #[arg(long, value_name = "ID")]
    pub(crate) from: u64,
    /// Number of the node that gets a replica
    #[arg(long, value_name = "ID")]
    pub(crate) to: u64,
    #[command(flatten)]
    pub(crate) change: MembersOptions,
}

/// The cluster to change, and the output.
#[derive(Clone, Debug, Args)]
pub(crate) struct MembersOptions {
    /// URLs of the gRPC servers of some nodes, which are tried in this order; https://HOST:PORT with --tls-ca
    #[arg(
        long,
        env = "VARVE_NODE_ENDPOINT",
        default_value = "http://127.0.0.1:4041",
        value_delimiter = ',',
        value_name = "URL,..."
    )]
    pub(crate) node_endpoint: Vec<String>,
    #[command(flatten)]
    pub(crate) tls: TlsOptions,
    /// Check the change against the state of the cluster, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
