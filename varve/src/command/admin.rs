//! Options of `varve admin`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::client::ServerOptions;
use super::cluster_admin::{ClusterOptions, TenantCommands, TokenCommands};
use super::time::Time;
use crate::certs::Subject;

/// Subcommands of `varve admin`.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum AdminCommands {
    /// Seals all samples, builds the rollups that are due, compacts the database, and purges the Raft log
    ///
    /// Returns when that is done. `du -sb DATA-DIR` then prints the size of the stored data.
    Compact(AdminOptions),
    /// Prints the size of each part of the data: sections, tiers, dictionaries, bytes per sample
    Stats(AdminOptions),
    /// Reads all data on disk and checks it: checksums, references, and each rollup against its source
    ///
    /// Prints every damaged value, and fails if there is one.
    Verify(AdminOptions),
    /// Prints the system clock and the time that retention uses, or accepts a changed system clock
    ///
    /// Retention does not follow a jump ahead by more than an eighth of --retention, or by more than a day. It follows
    /// after --accept confirms the jump, or while a time server keeps the clock.
    Clock(ClockOptions),
    /// Deletes the samples of matching series in a time window, permanently
    ///
    /// Example: varve admin delete 'process_cpu{service_name="api"}' --start now-2d --end now-1d
    Delete(DeleteOptions),
    /// Creates, changes, lists and deletes tenants, which own profiles and have limits
    #[command(subcommand)]
    Tenant(TenantCommands),
    /// Creates, lists and revokes the bearer tokens of tenants
    #[command(subcommand)]
    Token(TokenCommands),
    /// Prints the nodes, shards, leaders, lags and epochs of a cluster, or changes its members and its placement
    ///
    /// Example: varve admin cluster --node-endpoint https://db1.example:4041 --tls-ca ca.pem
    /// --tls-cert admin-ops.pem --tls-key admin-ops.key
    Cluster(ClusterOptions),
    /// Makes a CA, and certificates for the ports of nodes; needs no running varve
    ///
    /// An existing CA is used and never overwritten. An existing certificate of the same role is renewed.
    /// Example: varve admin certs --dir certs --node 1=db1.example,10.0.0.1 --node 2=db2.example --router a --admin ops
    Certs(CertsOptions),
}

/// Options of `varve admin certs`.
#[derive(Clone, Debug, Args)]
pub(crate) struct CertsOptions {
    /// Directory of ca.pem, ca.key, node-ID.pem, node-ID.key and so on; created if it does not exist
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: PathBuf,
    /// Number of a node, and the names and IP addresses at which others reach it; may be repeated
    #[arg(long = "node", value_name = "ID=HOST[,HOST...]", value_parser = Subject::parse_node)]
    pub(crate) nodes: Vec<Subject>,
    /// Name of a router, and names and IP addresses of its host if it has any; may be repeated
    #[arg(long = "router", value_name = "NAME[=HOST,...]", value_parser = Subject::parse_router)]
    pub(crate) routers: Vec<Subject>,
    /// Name of an administrator, who runs `varve admin tenant`, `token` and `cluster`; may be repeated
    #[arg(long = "admin", value_name = "NAME", value_parser = Subject::parse_admin)]
    pub(crate) admins: Vec<Subject>,
    /// Validity of the certificates of nodes, routers and administrators; that of a new CA is 10 years
    #[arg(long, default_value = "365d", value_name = "AGE", value_parser = humantime::parse_duration)]
    pub(crate) validity: Duration,
    /// Print what would be written, and write nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of `varve admin delete`.
#[derive(Clone, Debug, Args)]
pub(crate) struct DeleteOptions {
    /// PromQL selector of the series to delete
    pub(crate) selector: String,
    /// Start of the window, exclusive: RFC 3339, Unix seconds, or relative, such as now-1h
    #[arg(long, value_name = "TIME", value_parser = Time::parse)]
    pub(crate) start: Time,
    /// End of the window, inclusive
    #[arg(long, value_name = "TIME", value_parser = Time::parse)]
    pub(crate) end: Time,
    /// Delete without a confirmation
    #[arg(long)]
    pub(crate) yes: bool,
    #[command(flatten)]
    pub(crate) server: ServerOptions,
}

/// Options of `varve admin clock`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ClockOptions {
    /// Accept the system clock: retention uses it, and permanently drops data that is too old by it
    #[arg(long)]
    pub(crate) accept: bool,
    #[command(flatten)]
    pub(crate) admin: AdminOptions,
}

/// Options that several subcommands of `varve admin` share.
#[derive(Clone, Debug, Args)]
pub(crate) struct AdminOptions {
    /// Output format
    #[arg(long, default_value = "table", value_parser = ["table", "json"])]
    pub(crate) format: String,
    #[command(flatten)]
    pub(crate) server: ServerOptions,
}
