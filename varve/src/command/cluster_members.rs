//! Options of `varve admin cluster accept`, `varve admin cluster move` and `varve admin cluster add-shards`.

use std::num::NonZeroU16;

use clap::Args;

use super::cluster_admin::ChangeOptions;

/// Options of `varve admin cluster accept`.
#[derive(Clone, Debug, Args)]
pub(crate) struct AcceptOptions {
    /// Number of the node, which must run with its new directory
    #[arg(long, value_name = "ID")]
    pub(crate) node: u64,
    #[command(flatten)]
    pub(crate) change: ChangeOptions,
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
    pub(crate) change: ChangeOptions,
}

/// Options of `varve admin cluster add-shards`.
#[derive(Clone, Debug, Args)]
pub(crate) struct AddShardsOptions {
    /// Number of shards that the cluster is to have
    #[arg(long, value_name = "N")]
    pub(crate) total: NonZeroU16,
    /// Nodes that get none of the new shards, for example because they are switched off
    #[arg(long, value_delimiter = ',', value_name = "ID,...")]
    pub(crate) without: Vec<u64>,
    #[command(flatten)]
    pub(crate) change: ChangeOptions,
}
