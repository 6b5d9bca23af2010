//! Options of the roles node and router, and of `varve up`.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::path::PathBuf;
use std::time::Duration;

use bytesize::ByteSize;
use clap::Args;
use node::Site;
use proto::Tokens;
use proto::meta::{DirectoryId, Node};
use transport::Dialer;

use super::agent::SamplingOptions;
use super::token_file;

#[derive(Clone, Debug, Args)]
pub(crate) struct DataOptions {
    /// Data directory; created if it does not exist
    #[arg(long, env = "VARVE_DATA_DIR", default_value = "./varve-data", value_name = "DIR")]
    pub(crate) data_dir: PathBuf,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct StorageOptions {
    /// Retention of single samples, with their times and attributes; older samples are refused
    ///
    /// The retentions are those of the tenant `default` until `varve admin tenant` gives it a policy. A cluster of
    /// several nodes takes them from the node that leads its first start.
    #[arg(long, env = "VARVE_RETENTION", default_value = "30d", value_name = "AGE",
        value_parser = humantime::parse_duration)]
    pub(crate) retention: Duration,
    /// Retention of sums per minute; at least the retention of samples
    #[arg(long = "retention-1m", env = "VARVE_RETENTION_1M", default_value = "90d", value_name = "AGE",
        value_parser = humantime::parse_duration)]
    pub(crate) retention_1m: Duration,
    /// Retention of sums per hour
    #[arg(long = "retention-1h", env = "VARVE_RETENTION_1H", default_value = "1y", value_name = "AGE",
        value_parser = humantime::parse_duration)]
    pub(crate) retention_1h: Duration,
    /// Retention of sums per day
    #[arg(long = "retention-1d", env = "VARVE_RETENTION_1D", default_value = "5y", value_name = "AGE",
        value_parser = humantime::parse_duration)]
    pub(crate) retention_1d: Duration,
    /// Cap on the disk space of profiles; shortly below the cap, the oldest profiles are dropped
    #[arg(long, env = "VARVE_DISK_MAX", default_value = "20GiB", value_name = "SIZE")]
    pub(crate) disk_max: ByteSize,
    /// Number of shards, from 1 to 64; set on the first start, and fixed from then on [default: 1 on the first start]
    ///
    /// Each service is in one shard. A shard applies pushes one after another, so several shards can use several CPUs.
    /// Later starts use the number that the data directory was made with, and refuse another number.
    /// `varve admin cluster add-shards` adds shards.
    #[arg(long, env = "VARVE_SHARDS", value_name = "N")]
    pub(crate) shards: Option<NonZeroU16>,
    /// Address of the node's gRPC server, for routers
    #[arg(long, env = "VARVE_NODE_LISTEN", default_value = "127.0.0.1:4041", value_name = "ADDR:PORT")]
    pub(crate) node_listen: SocketAddr,
    /// Address at which nodes and routers reach this node, and its zone [default: that of --initial-nodes, or
    /// --node-listen]
    ///
    /// Needed if --node-listen is an address such as 0.0.0.0, unless --initial-nodes names the node.
    #[arg(long, env = "VARVE_NODE_ADVERTISE", value_name = "HOST:PORT[@ZONE]", value_parser = site)]
    pub(crate) node_advertise: Option<Site>,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct RouterOptions {
    /// Address of the web UI and the HTTP API
    #[arg(long, env = "VARVE_HTTP_LISTEN", default_value = "127.0.0.1:4040", value_name = "ADDR:PORT")]
    pub(crate) http_listen: SocketAddr,
    /// Address of the OTLP/gRPC receiver
    #[arg(long, env = "VARVE_OTLP_GRPC_LISTEN", default_value = "127.0.0.1:4317", value_name = "ADDR:PORT")]
    pub(crate) otlp_grpc_listen: SocketAddr,
    /// Address of the OTLP/HTTP receiver
    #[arg(long, env = "VARVE_OTLP_HTTP_LISTEN", default_value = "127.0.0.1:4318", value_name = "ADDR:PORT")]
    pub(crate) otlp_http_listen: SocketAddr,
    /// Require a token of a tenant, from `varve admin token create`, or one of --token-file, on all these ports
    ///
    /// The ports may then have other addresses than loopback. Without this option, tokens are required as soon as the
    /// cluster has one.
    #[arg(long, env = "VARVE_REQUIRE_TOKEN", conflicts_with = "insecure_listen")]
    pub(crate) require_token: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct AccessOptions {
    /// File with bearer tokens, one per line, with all rights of the tenant `default`: every request needs a token
    ///
    /// A router without TLS sends the first token of the file to its nodes.
    #[arg(long, env = "VARVE_TOKEN_FILE", value_name = "FILE", value_parser = token_file::read)]
    pub(crate) token_file: Option<Tokens>,
    /// Allow addresses other than loopback without a token: anyone who reaches the port may read and write
    #[arg(long, env = "VARVE_INSECURE_LISTEN")]
    pub(crate) insecure_listen: bool,
}

/// Options of the connections between routers and nodes.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct TlsOptions {
    /// PEM file with the CA of the cluster: routers and nodes then connect with TLS, and need a certificate of this CA
    ///
    /// `varve admin certs` makes the files of --tls-ca, --tls-cert and --tls-key. When the files change, new
    /// connections use them.
    #[arg(long, env = "VARVE_TLS_CA", value_name = "FILE")]
    pub(crate) tls_ca: Option<PathBuf>,
    /// PEM file with the certificate of this process, which names its role and its hosts
    #[arg(long, env = "VARVE_TLS_CERT", value_name = "FILE")]
    pub(crate) tls_cert: Option<PathBuf>,
    /// PEM file with the private key of the certificate
    #[arg(long, env = "VARVE_TLS_KEY", value_name = "FILE")]
    pub(crate) tls_key: Option<PathBuf>,
}

/// Options of `varve up`.
#[derive(Clone, Debug, Args)]
pub(crate) struct UpOptions {
    #[command(flatten)]
    pub(crate) data: DataOptions,
    #[command(flatten)]
    pub(crate) router: RouterOptions,
    #[command(flatten)]
    pub(crate) storage: StorageOptions,
    #[command(flatten)]
    pub(crate) sampling: SamplingOptions,
    /// Run without an agent: do not sample this host
    #[arg(long, env = "VARVE_NO_AGENT")]
    pub(crate) no_agent: bool,
    #[command(flatten)]
    pub(crate) access: AccessOptions,
}

/// Options of a node that is one of several.
#[derive(Clone, Debug, Args)]
pub(crate) struct PeerOptions {
    /// Number of this node in the cluster, from 1 on; fixed for a data directory
    #[arg(long, env = "VARVE_NODE_ID", default_value_t = 1, value_name = "ID")]
    pub(crate) node_id: u64,
    /// All nodes with which a new cluster begins, each with the address that nodes and routers use [default: only this
    /// node]
    ///
    /// Give every node the same list, at every start. The node with the smallest number creates the cluster as soon as
    /// all of them respond and have empty data directories. A node that lost its data then never makes a cluster of its
    /// own. Each shard has three members, or one on each node if there are fewer nodes. The members of a shard are in
    /// different zones as far as possible, if the nodes have zones, such as racks or data centers.
    /// Example: --initial-nodes 1=db1.example:4041,2=db2.example:4041,3=db3.example:4041
    #[arg(long, env = "VARVE_INITIAL_NODES", value_delimiter = ',', value_name = "ID=HOST:PORT[@ZONE],...",
        value_parser = initial_node)]
    pub(crate) initial_nodes: Vec<(u64, Site)>,
    /// Addresses of some nodes of a cluster that this node joins, instead of --initial-nodes
    ///
    /// With an empty data directory, the node registers itself in the cluster. It then holds the replicas that
    /// `varve admin cluster move` gives it.
    #[arg(
        long,
        env = "VARVE_JOIN",
        value_delimiter = ',',
        value_name = "HOST:PORT,...",
        conflicts_with = "initial_nodes"
    )]
    pub(crate) join: Vec<String>,
}

/// Parses `ID=HOST:PORT` or `ID=HOST:PORT@ZONE`.
fn initial_node(text: &str) -> Result<(u64, Site), String> {
    let expected = || format!("{text:?} must be ID=HOST:PORT, such as 1=db1.example:4041");
    let (id, of_node) = text.split_once('=').ok_or_else(expected)?;
    let id = id.parse().ok().filter(|&id| id > 0).ok_or_else(expected)?;
    Ok((id, site(of_node)?))
}

/// Parses `HOST:PORT` or `HOST:PORT@ZONE`.
fn site(text: &str) -> Result<Site, String> {
    let expected = || format!("{text:?} must be HOST:PORT or HOST:PORT@ZONE, such as db1.example:4041@rack-7");
    let (address, zone) = match text.split_once('@') {
        Some((_, "")) => return Err(expected()),
        Some((address, zone)) => (address, zone),
        None => (text, ""),
    };
    let (host, port) = address.rsplit_once(':').ok_or_else(expected)?;
    let has_port = port.parse::<u16>().is_ok_and(|port| port > 0);
    if !has_port || Dialer::plaintext().endpoint(address).is_err() {
        return Err(expected());
    }
    let ip = host.trim_matches(['[', ']']).parse::<IpAddr>();
    if ip.is_ok_and(|ip| ip.is_unspecified()) {
        return Err(format!("{host} is every address of a host, and none that others can connect to: name the host"));
    }
    let node = Node { id: 1, address: address.to_owned(), zone: zone.to_owned(), directory: DirectoryId(0) };
    node.check().map_err(|error| error.to_string())?;
    Ok(Site { address: node.address, zone: node.zone })
}

/// Options of `varve node`.
#[derive(Clone, Debug, Args)]
pub(crate) struct NodeRoleOptions {
    #[command(flatten)]
    pub(crate) data: DataOptions,
    #[command(flatten)]
    pub(crate) storage: StorageOptions,
    #[command(flatten)]
    pub(crate) cluster: PeerOptions,
    /// Address of /healthz, /ready and /metrics
    #[arg(long, env = "VARVE_HTTP_LISTEN", default_value = "127.0.0.1:4042", value_name = "ADDR:PORT")]
    pub(crate) http_listen: SocketAddr,
    #[command(flatten)]
    pub(crate) tls: TlsOptions,
    #[command(flatten)]
    pub(crate) access: AccessOptions,
}

/// Options of `varve router`.
#[derive(Clone, Debug, Args)]
pub(crate) struct RouterRoleOptions {
    /// Directory of symbol tables; created if it does not exist
    #[arg(long, env = "VARVE_DATA_DIR", default_value = "./varve-router-data", value_name = "DIR")]
    pub(crate) data_dir: PathBuf,
    /// URL of the uploaded debug files that all routers share; file:///DIR (a shared directory) or s3://BUCKET/PREFIX
    /// (with the AWS_* variables). Without it, each router has only its own uploads
    #[arg(long, env = "VARVE_DEBUG_FILES", value_name = "URL")]
    pub(crate) debug_files: Option<String>,
    #[command(flatten)]
    pub(crate) router: RouterOptions,
    /// URLs of the gRPC servers of some nodes of the cluster, which name the others; https://HOST:PORT with --tls-ca
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
    #[command(flatten)]
    pub(crate) access: AccessOptions,
}
