//! Options of `varve admin tenant`, `varve admin token` and `varve admin cluster`.

use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::time::Duration;

use bytesize::ByteSize;
use clap::{Args, Subcommand, ValueEnum};
use proto::meta::Role;
use proto::{TenantId, Tokens};

use super::cluster_members::{AcceptOptions, AddShardsOptions, MoveOptions};
use super::epoch::EpochOptions;
use super::role::TlsOptions;
use super::time::Time;
use super::token_file;

/// The nodes of the cluster to administer.
#[derive(Clone, Debug, Args)]
pub(crate) struct NodeOptions {
    /// URLs of the gRPC servers of some nodes, which name the others; https://HOST:PORT with --tls-ca
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
    /// File whose first line is the token of a node that has no TLS, but a --token-file
    #[arg(long, env = "VARVE_TOKEN_FILE", value_name = "FILE", value_parser = token_file::read)]
    pub(crate) token_file: Option<Tokens>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options and subcommands of `varve admin cluster`.
#[derive(Clone, Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct ClusterOptions {
    #[command(flatten)]
    pub(crate) nodes: NodeOptions,
    #[command(subcommand)]
    pub(crate) command: Option<ClusterCommands>,
}

/// Subcommands of `varve admin cluster`.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum ClusterCommands {
    /// Adds an epoch to the placement: samples after its begin go to these shards
    ///
    /// No data moves: older samples stay in their shards, and queries find both.
    /// Example: varve admin cluster epoch --shards 1-12 --spread default/api=8
    Epoch(EpochOptions),
    /// Accepts the empty data directory of a node that lost its disk
    ///
    /// The node's replicas are built again from the other members of each shard. Its old directory must never be used
    /// again. Example: varve admin cluster accept --node 3 --node-endpoint https://db1.example:4041
    Accept(AcceptOptions),
    /// Adds shards, which are empty until an epoch gives them slots
    ///
    /// Each has members on the nodes with the fewest replicas, in different zones as far as possible. Waits until the
    /// members have created the new shards. A repeated command changes nothing.
    /// Example: varve admin cluster add-shards --total 12
    AddShards(AddShardsOptions),
    /// Moves a replica of a shard from one node to another
    ///
    /// The shard serves meanwhile. The old node deletes its replica after the new one has a vote.
    Move(MoveOptions),
}

/// Options of a command that changes the cluster.
#[derive(Clone, Debug, Args)]
pub(crate) struct ChangeOptions {
    /// Check the change against the state of the cluster, and change nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) nodes: NodeOptions,
}

/// Subcommands of `varve admin tenant`.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum TenantCommands {
    /// Creates a tenant without tokens
    ///
    /// Example: varve admin tenant create acme --samples-per-second 50000 --queries-at-once 4
    Create(PolicyOptions),
    /// Changes the limits and retentions that are given, and leaves the others as they are
    ///
    /// Example: varve admin tenant update acme --queries-at-once none
    Update(PolicyOptions),
    /// Removes a tenant and all its tokens; its profiles stay on disk until they expire
    ///
    /// No other tenant can have its name then. To remove the profiles at once, first run `varve admin delete` with a
    /// token of the tenant.
    Delete(DeleteTenantOptions),
    /// Lists all tenants with their limits
    List(NodeOptions),
    /// Prints the policy of a tenant, and its tokens
    Show(ShowTenantOptions),
}

/// A limit of a tenant; `None` for no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limit(pub(crate) Option<NonZeroU64>);

/// Precision with which the times of samples are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Resolution {
    /// As pushed
    Nanoseconds,
    /// Rounded up to the millisecond
    Milliseconds,
    /// Rounded up to the minute
    Minute,
}

/// Options of `varve admin tenant create` and `update`.
#[derive(Clone, Debug, Args)]
pub(crate) struct PolicyOptions {
    /// Name of the tenant: 1 to 64 characters of a-z A-Z 0-9 _ -; `default` is the tenant of the operator
    #[arg(value_parser = TenantId::new)]
    pub(crate) tenant: TenantId,
    /// Samples per second that the tenant may push to each router, or `none`; more are refused with 429
    #[arg(long, value_name = "N|none", value_parser = Limit::number)]
    pub(crate) samples_per_second: Option<Limit>,
    /// Size of pushes per second to each router, after decompression, such as 10MiB, or `none`; more get 429
    #[arg(long, value_name = "SIZE|none", value_parser = Limit::size)]
    pub(crate) bytes_per_second: Option<Limit>,
    /// Series that the tenant may have in six hours of each shard, or `none`; new ones get 429
    #[arg(long, value_name = "N|none", value_parser = Limit::number)]
    pub(crate) series: Option<Limit>,
    /// Queries that the tenant may run at one time on each router, or `none`; more are refused with 429
    #[arg(long, value_name = "N|none", value_parser = Limit::number)]
    pub(crate) queries_at_once: Option<Limit>,
    /// Sums (group x time x stack) that one selection of a query may read, or `none`; larger queries are refused
    #[arg(long, value_name = "N|none", value_parser = Limit::number)]
    pub(crate) query_cells: Option<Limit>,
    /// Retention of single samples, with their times and attributes [default of a new tenant: 30d]
    ///
    /// A change applies to stored samples only if no other tenant has had the same retentions; the command says so.
    #[arg(long, value_name = "AGE", value_parser = humantime::parse_duration)]
    pub(crate) retention: Option<Duration>,
    /// Retention of sums per minute [default of a new tenant: 90d]
    #[arg(long = "retention-1m", value_name = "AGE", value_parser = humantime::parse_duration)]
    pub(crate) retention_1m: Option<Duration>,
    /// Retention of sums per hour [default of a new tenant: 1y]
    #[arg(long = "retention-1h", value_name = "AGE", value_parser = humantime::parse_duration)]
    pub(crate) retention_1h: Option<Duration>,
    /// Retention of sums per day [default of a new tenant: 5y]
    #[arg(long = "retention-1d", value_name = "AGE", value_parser = humantime::parse_duration)]
    pub(crate) retention_1d: Option<Duration>,
    /// Labels that are removed from new samples, such as pod,container, or `none`; values that then have equal labels
    /// are added up
    #[arg(long, value_name = "LABEL,...|none", value_parser = LabelNames::parse)]
    pub(crate) remove_labels: Option<LabelNames>,
    /// Labels that sums per hour drop, such as pod,container, or `none`; stored sums do not change
    ///
    /// Samples and sums per minute keep all labels. A change holds at once for a tenant without samples, and otherwise
    /// from the first period of eight days after all its samples.
    #[arg(long = "drop-labels-1h", value_name = "LABEL,...|none", value_parser = LabelNames::parse)]
    pub(crate) drop_labels_1h: Option<LabelNames>,
    /// Labels that sums per day drop as well, or `none`
    #[arg(long = "drop-labels-1d", value_name = "LABEL,...|none", value_parser = LabelNames::parse)]
    pub(crate) drop_labels_1d: Option<LabelNames>,
    /// Precision of the times of new samples; a lower one takes less space, and changes no sum over whole minutes
    #[arg(long, value_name = "UNIT")]
    pub(crate) time_resolution: Option<Resolution>,
    #[command(flatten)]
    pub(crate) change: ChangeOptions,
}

/// Names of labels, sorted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LabelNames(pub(crate) Vec<String>);

impl LabelNames {
    fn parse(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self(Vec::new()));
        }
        let names: BTreeSet<String> = text.split(',').map(|name| name.trim().to_owned()).collect();
        if names.contains("") {
            return Err("use names of labels, separated by commas, or `none`".to_owned());
        }
        Ok(Self(names.into_iter().collect()))
    }
}

impl Limit {
    fn number(text: &str) -> Result<Self, String> {
        Self::parse(text, text.parse().ok(), "a whole number from 1 on, such as 50000")
    }

    fn size(text: &str) -> Result<Self, String> {
        Self::parse(text, text.parse().ok().map(|size: ByteSize| size.as_u64()), "a size, such as 10MiB")
    }

    fn parse(text: &str, number: Option<u64>, expected: &str) -> Result<Self, String> {
        match number.and_then(NonZeroU64::new) {
            Some(number) => Ok(Self(Some(number))),
            None if text == "none" => Ok(Self(None)),
            None => Err(format!("use {expected}, or `none` for no limit")),
        }
    }
}

/// Options of `varve admin tenant delete`.
#[derive(Clone, Debug, Args)]
pub(crate) struct DeleteTenantOptions {
    /// Name of the tenant
    #[arg(value_parser = TenantId::new)]
    pub(crate) tenant: TenantId,
    #[command(flatten)]
    pub(crate) change: ChangeOptions,
}

/// Options of `varve admin tenant show`.
#[derive(Clone, Debug, Args)]
pub(crate) struct ShowTenantOptions {
    /// Name of the tenant
    #[arg(value_parser = TenantId::new)]
    pub(crate) tenant: TenantId,
    #[command(flatten)]
    pub(crate) nodes: NodeOptions,
}

/// Subcommands of `varve admin token`.
#[derive(Clone, Debug, Subcommand)]
pub(crate) enum TokenCommands {
    /// Makes a token and prints it, once: the cluster keeps only its hash
    ///
    /// The output is a token file, for --token-file of agents and commands. Routers accept the token within a second.
    /// Example: varve admin token create --tenant acme --role push --expires 90d > push.token
    Create(CreateTokenOptions),
    /// Removes a token; routers then refuse it within a second
    ///
    /// To replace a token, create the new one, give it to all clients, and then revoke the old one: no request fails.
    Revoke(RevokeTokenOptions),
    /// Lists all tokens by the beginning of their hashes
    List(NodeOptions),
}

/// Options of `varve admin token create`.
#[derive(Clone, Debug, Args)]
pub(crate) struct CreateTokenOptions {
    /// Tenant whose profiles the token pushes or reads; create it first with `varve admin tenant create`
    #[arg(long, value_parser = TenantId::new)]
    pub(crate) tenant: TenantId,
    /// `push` sends profiles, `read` queries them, and `admin` does both and deletes
    #[arg(long, value_parser = parse_role, value_name = "push|read|admin")]
    pub(crate) role: Role,
    /// Time after which the token is refused: an age, such as 90d, or a time [default: never]
    #[arg(long, value_name = "AGE|TIME", value_parser = parse_expiry)]
    pub(crate) expires: Option<Time>,
    #[command(flatten)]
    pub(crate) change: ChangeOptions,
}

/// Options of `varve admin token revoke`.
#[derive(Clone, Debug, Args)]
pub(crate) struct RevokeTokenOptions {
    /// Hash of the token, or its first 8 characters or more, from `varve admin token list`
    pub(crate) hash: String,
    #[command(flatten)]
    pub(crate) change: ChangeOptions,
}

fn parse_role(text: &str) -> Result<Role, String> {
    match text {
        "push" => Ok(Role::Push),
        "read" => Ok(Role::Read),
        "admin" => Ok(Role::Admin),
        _ => Err("use push, read or admin".to_owned()),
    }
}

/// Parses an age from now on, such as `90d`, or a time that is not in the past.
fn parse_expiry(text: &str) -> Result<Time, String> {
    let time = match humantime::parse_duration(text) {
        Ok(age) => Time::now().after(age).ok_or("the age is too long")?,
        Err(_no_age) => Time::parse(text).map_err(|error| error.to_string())?,
    };
    if time.0 <= Time::now().0 {
        return Err("the time is in the past: use an age, such as 90d, or a later time".to_owned());
    }
    Ok(time)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_numbers_sizes_or_none() {
        let limit = |number| Ok(Limit(NonZeroU64::new(number)));
        assert_eq!(Limit::number("50000"), limit(50_000));
        assert_eq!(Limit::size("10MiB"), limit(10 << 20));
        assert_eq!(Limit::number("none"), Ok(Limit(None)));
        for wrong in ["0", "-1", "many", "", "1e9"] {
            assert!(Limit::number(wrong).is_err_and(|text| text.contains("`none`")), "{wrong}");
        }
    }

    #[test]
    fn label_names_are_sorted_and_each_is_there_once() {
        let names = |names: &[&str]| Ok(LabelNames(names.iter().map(|&name| name.to_owned()).collect()));
        assert_eq!(LabelNames::parse("pod, container,pod"), names(&["container", "pod"]));
        assert_eq!(LabelNames::parse("none"), names(&[]));
        assert!(LabelNames::parse("pod,").is_err_and(|text| text.contains("`none`")));
    }

    #[test]
    fn a_token_expires_after_an_age_or_at_a_later_time() {
        let day_ns = 86_400_000_000_000;
        let in_90_days = parse_expiry("90d").unwrap().0 - Time::now().0;
        assert!((in_90_days - 90 * day_ns).abs() < day_ns, "{in_90_days}");
        assert_eq!(parse_expiry("2100-01-01T00:00:00Z").unwrap().0, 4_102_444_800_000_000_000);
        assert!(parse_expiry("2000-01-01T00:00:00Z").unwrap_err().contains("past"));
        assert!(parse_expiry("999999999y").is_err());
        assert!(parse_expiry("soon").is_err());
    }
}
