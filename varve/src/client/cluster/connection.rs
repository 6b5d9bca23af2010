//! Calls to the service `varve.v1.Cluster` of the nodes.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use futures::future::join_all;
use proto::limits::META_STATE_BYTES_MAX;
use proto::meta::{ClusterId, Command, State};
use proto::refusal::Refusal;
use proto::wire;
use proto::wire::cluster_client::ClusterClient;
use tokio::time::{sleep, timeout};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Response, Status};
use transport::{DialError, Dialer};

use crate::command::NodeOptions;
use crate::roles::credentials;

/// Longest time that a node may take to respond with its state. It waits 5 s for a state if it has none.
const READ_PATIENCE: Duration = Duration::from_secs(8);
/// Longest time that a change may take, with all attempts. A cluster that elects a leader needs a second or two.
const CHANGE_PATIENCE: Duration = Duration::from_secs(20);
/// Pause before the nodes are asked again for a leader.
const PAUSE: Duration = Duration::from_millis(200);
/// Largest size of a response, in bytes.
const RESPONSE_BYTES_MAX: usize = META_STATE_BYTES_MAX + (64 << 10);

/// The nodes of a cluster.
pub(super) struct Connection {
    dialer: Dialer,
    /// Addresses of the nodes that the options name, `host:port`.
    seeds: Vec<String>,
    bearer: Option<MetadataValue<Ascii>>,
}

impl Connection {
    /// Prepares calls to the nodes that the options name. Connects on the first call.
    pub(super) fn new(options: &NodeOptions) -> anyhow::Result<Self> {
        let NodeOptions { node_endpoint, tls, token_file, json: _ } = options;
        let dialer = credentials(tls.clone())?.map_or_else(Dialer::plaintext, Dialer::tls);
        let seeds = node_endpoint.iter().map(|url| dialer.endpoint_of_url(url));
        let seeds: Vec<Endpoint> = seeds.collect::<Result<_, _>>().context("--node-endpoint")?;
        let authority = |endpoint: &Endpoint| endpoint.uri().authority().map_or_else(String::new, ToString::to_string);
        let bearer = token_file.as_ref().map(|tokens| format!("Bearer {}", tokens.first()).parse());
        let bearer = bearer.transpose().context("--token-file has characters that no token has")?;
        Ok(Self { dialer, seeds: seeds.iter().map(authority).collect(), bearer })
    }

    fn client(&self, address: &str) -> Result<ClusterClient<Channel>, Status> {
        let endpoint = self.dialer.endpoint(address);
        let endpoint = endpoint.map_err(|error| Status::invalid_argument(error.to_string()))?;
        let client = ClusterClient::new(self.dialer.connect_lazy(&endpoint));
        Ok(client.max_decoding_message_size(RESPONSE_BYTES_MAX))
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(bearer) = &self.bearer {
            request.metadata_mut().insert("authorization", bearer.clone());
        }
        request
    }

    async fn watch(&self, address: &str) -> Result<Option<State>, Status> {
        let mut client = self.client(address)?;
        let call = client.watch(self.request(wire::WatchRequest { revision: 0 }));
        let state = timeout(READ_PATIENCE, call).await.map_err(late)??.into_inner().state;
        let unreadable = |error| Status::internal(format!("its state cannot be read: {error}; run the same version"));
        state.map(|state| State::from_wire(state).map_err(unreadable)).transpose()
    }

    /// Returns the newest state of all nodes that respond.
    ///
    /// # Errors
    /// No node that the options name responds with a state. The text has the reason of each.
    pub(super) async fn state(&self) -> anyhow::Result<State> {
        let mut reasons = Vec::new();
        let mut newest: Option<State> = None;
        let mut asked = self.seeds.clone();
        let mut round = asked.clone();
        // The second round asks the nodes that the first round has named: a follower may be behind.
        while !round.is_empty() {
            let found = join_all(round.iter().map(|address| self.watch(address))).await;
            for (address, found) in round.iter().zip(found) {
                match found {
                    Ok(Some(state)) => {
                        let is_newer = newest
                            .as_ref()
                            .is_none_or(|newest| newest.cluster == state.cluster && newest.revision < state.revision);
                        if is_newer {
                            newest = Some(state);
                        }
                    }
                    Ok(None) => reasons.push(format!("{address}: the cluster is being created: try again")),
                    Err(status) => reasons.push(format!("{address}: {}", reason(&status))),
                }
            }
            let known = newest.iter().flat_map(|state| state.nodes.values().map(|node| node.address.clone()));
            round = known.filter(|address| !asked.contains(address)).collect();
            asked.extend(round.iter().cloned());
        }
        newest.with_context(|| format!("no node responds with the state of the cluster:\n  {}", reasons.join("\n  ")))
    }

    /// Proposes a command to the nodes of the cluster with this state, until one has an answer. Returns true if it
    /// changed the state.
    ///
    /// # Errors
    /// The cluster refuses the command, or the outcome is unknown. The text says what to do.
    pub(super) async fn propose(&self, state: &State, command: &Command) -> anyhow::Result<bool> {
        let cluster = state.cluster.map(ClusterId::to_wire).unwrap_or_default();
        let request = wire::ProposeRequest { command: Some(command.to_wire()), is_forwarded: false, cluster };
        let begun = Instant::now();
        let mut addresses = self.seeds.clone();
        loop {
            let mut reasons = Vec::new();
            for address in &addresses {
                match self.propose_at(address, request.clone()).await {
                    Ok(is_changed) => return Ok(is_changed),
                    Err(status) if Refusal::decode(status.details()) == Some(Refusal::Unknown) => {
                        bail!("{address}: {}: look at the state, and run the command again if needed", reason(&status))
                    }
                    Err(status) if status.code() == Code::Unavailable => {
                        reasons.push(format!("{address}: {}", reason(&status)));
                    }
                    Err(status) => bail!("{}", reason(&status)),
                }
            }
            if begun.elapsed() > CHANGE_PATIENCE {
                bail!("no node accepts the change:\n  {}", reasons.join("\n  "));
            }
            sleep(PAUSE).await;
            if let Ok(state) = self.state().await {
                addresses.extend(state.nodes.values().map(|node| node.address.clone()));
                addresses.sort();
                addresses.dedup();
            }
        }
    }

    async fn propose_at(&self, address: &str, request: wire::ProposeRequest) -> Result<bool, Status> {
        let mut client = self.client(address)?;
        let proposed = timeout(CHANGE_PATIENCE, client.propose(self.request(request))).await.map_err(|_elapsed| {
            let text = format!("it did not respond within {CHANGE_PATIENCE:?}, so the outcome is unknown");
            Status::with_details(Code::Unavailable, text, Refusal::Unknown.encode().into())
        })?;
        proposed.map(|response| response.into_inner().is_changed)
    }

    /// Returns who the node at an address is.
    ///
    /// # Errors
    /// The node does not respond. The text has the reason.
    pub(super) async fn identity(&self, address: &str) -> anyhow::Result<wire::IdentifyResponse> {
        let identify = async {
            let mut client = self.client(address)?;
            let call = client.identify(self.request(wire::IdentifyRequest {}));
            timeout(READ_PATIENCE, call).await.map_err(late)?.map(Response::into_inner)
        };
        identify.await.map_err(|status: Status| anyhow::anyhow!("{}", reason(&status)))
    }

    /// Returns the status of each node of a state, or the reason why it does not respond.
    pub(super) async fn statuses(&self, state: &State) -> Vec<Result<wire::StatusResponse, String>> {
        let calls = state.nodes.values().map(|node| async {
            let mut client = self.client(&node.address)?;
            let call = timeout(READ_PATIENCE, client.status(self.request(wire::StatusRequest {}))).await;
            call.map_err(late)?.map(Response::into_inner)
        });
        let responses = join_all(calls).await;
        responses.into_iter().map(|response: Result<_, Status>| response.map_err(|status| reason(&status))).collect()
    }
}

fn late(_elapsed: tokio::time::error::Elapsed) -> Status {
    Status::unavailable(format!("it did not respond within {READ_PATIENCE:?}"))
}

/// Returns the reason of a failed call, and what to do if the credential is the reason.
fn reason(status: &Status) -> String {
    if let Some(error) = DialError::of(status) {
        return error.to_string();
    }
    match status.code() {
        Code::Unauthenticated => format!("{}: give this command --token-file", status.message()),
        _ => {
            let mut text = status.message().to_owned();
            let mut source = std::error::Error::source(status);
            while let Some(error) = source {
                let cause = error.to_string();
                if !text.contains(&cause) {
                    text = format!("{text}: {cause}");
                }
                source = error.source();
            }
            text
        }
    }
}
