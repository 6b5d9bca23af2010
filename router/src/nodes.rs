//! Calls from the router to the nodes that hold the shards.

use std::error::Error as _;
use std::fmt;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use proto::placement::Placement;
use proto::wire::node_client::NodeClient;
use proto::{
    AdministrationTask, Answer, Appended, Batch, Deleted, Deletion, KnownLocations, LocationPage, Selection,
    SelectionError, SeriesAnswer, SeriesQuery, Shards, TenantId, Tokens, limits, wire,
};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};

/// Connection to the node that holds all shards, which is in this process or on the network.
#[derive(Clone)]
enum Link {
    Local(Arc<dyn Shards<Error = Status>>),
    Remote(Arc<Remote>),
}

struct Remote {
    client: Client,
    endpoint: String,
    patience: Patience,
}

type Client = NodeClient<InterceptedService<Channel, Authorization>>;

/// Interceptor that adds the router's credential to each call.
#[derive(Clone)]
struct Authorization(Option<MetadataValue<Ascii>>);

impl Interceptor for Authorization {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(bearer) = &self.0 {
            request.metadata_mut().insert("authorization", bearer.clone());
        }
        Ok(request)
    }
}

impl Remote {
    fn client(&self) -> Client {
        self.client.clone()
    }

    async fn append(&self, shard: u32, placement_epoch: u64, batch: &Batch) -> Result<Appended, Status> {
        let request = wire::AppendRequest { shard, placement_epoch, batch: Some(batch.to_wire()) };
        let answer = self.within(self.client().append(request)).await?.into_inner();
        let wire::AppendResponse { duplicate, samples_too_old, retention_seconds } = answer;
        Ok(Appended { duplicate, samples_too_old, retention: Duration::from_secs(retention_seconds) })
    }

    async fn series(&self, shard: u32, query: &SeriesQuery) -> Result<SeriesAnswer, Status> {
        let answer = self.within(self.client().series(query.to_wire(shard))).await?.into_inner();
        SeriesAnswer::from_wire(answer).map_err(|error| Status::internal(error.to_string()))
    }

    /// Waits for the response to a call, up to a time limit. A call that times out is cancelled, and its outcome is
    /// unknown.
    async fn within<T>(&self, call: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
        let patience = self.patience.answer;
        let late = |_elapsed| Status::unavailable(format!("the node did not respond within {patience:?}: try again"));
        tokio::time::timeout(patience, call).await.map_err(late)?
    }
}

/// Time limits of calls to a remote node.
#[derive(Clone, Copy, Debug)]
struct Patience {
    /// Time limit to connect and to respond to a keep-alive ping. Also the interval of pings, which detect a dead host
    /// or a stopped process.
    alive: Duration,
    /// Time limit of one response.
    answer: Duration,
}

/// Time limits outside of tests. No client waits so long for a response, and even a busy node needs far less time.
const PATIENCE: Patience = Patience { alive: Duration::from_secs(5), answer: Duration::from_secs(120) };

/// All shards, and the nodes that hold them.
#[derive(Clone)]
pub struct Nodes {
    link: Link,
    placement: Arc<Placement>,
}

impl fmt::Debug for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let link = match &self.link {
            Link::Local(_) => "local",
            Link::Remote(_) => "remote",
        };
        f.debug_struct("Nodes").field("link", &link).field("placement", &self.placement).finish()
    }
}

/// The error of a call to a shard.
#[derive(Debug, thiserror::Error)]
pub enum NodesError {
    /// The node refused the call. The code determines whether a retry can succeed.
    #[error("shard {shard}: {}", status.message())]
    Refused {
        /// Number of the shard.
        shard: u32,
        /// Status that the node returned.
        status: Status,
    },
    /// The response cannot be decoded: the node is broken or has another version.
    #[error("the response of shard {shard} cannot be decoded: {source}")]
    Unreadable {
        /// Number of the shard.
        shard: u32,
        /// Fault in the response.
        source: SelectionError,
    },
}

impl NodesError {
    /// Returns whether the call failed because the shard does not hold a stack that the batch omits. The shard then
    /// stored nothing of the batch.
    pub(crate) fn is_dangling(&self) -> bool {
        matches!(self, Self::Refused { status, .. } if status.code() == Code::Aborted)
    }
}

impl Nodes {
    /// Makes a connection to a node in this process.
    #[must_use]
    pub fn local(node: Arc<dyn Shards<Error = Status>>) -> Self {
        Self { link: Link::Local(node), placement: Arc::new(Placement::uniform(NonZeroU16::MIN)) }
    }

    /// Makes a connection to a remote node. Calls carry the first of `tokens`. The network connection is made on the
    /// first call, and again after it breaks.
    #[must_use]
    pub fn remote(endpoint: Endpoint, tokens: Option<&Tokens>) -> Self {
        Self::remote_with(endpoint, tokens, PATIENCE)
    }

    fn remote_with(endpoint: Endpoint, tokens: Option<&Tokens>, patience: Patience) -> Self {
        // No node accepts a token that does not fit a header.
        let bearer = tokens.and_then(|tokens| format!("Bearer {}", tokens.first()).parse().ok());
        let name = endpoint.uri().to_string();
        let endpoint = endpoint
            .connect_timeout(patience.alive)
            .http2_keep_alive_interval(patience.alive)
            .keep_alive_timeout(patience.alive)
            .keep_alive_while_idle(true);
        let client = NodeClient::with_interceptor(endpoint.connect_lazy(), Authorization(bearer))
            .max_decoding_message_size(limits::NODE_MESSAGE_BYTES_MAX)
            .max_encoding_message_size(limits::NODE_MESSAGE_BYTES_MAX);
        let node = Remote { client, endpoint: name, patience };
        Self { link: Link::Remote(Arc::new(node)), placement: Arc::new(Placement::uniform(NonZeroU16::MIN)) }
    }

    /// The assignment of slots to shards. The slot of a service is a hash of its tenant and its name.
    #[must_use]
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Returns the error of a call. If no node was reached, the error names the address of the node.
    fn refused(&self, shard: u32, status: Status) -> NodesError {
        let never_reached = status.source().is_some_and(|source| source.is::<tonic::transport::Error>());
        let status = match &self.link {
            Link::Remote(node) if never_reached => Status::unavailable(format!(
                "the node at {} cannot be reached ({}): start `varve node` there, or set \
                 --node-endpoint",
                node.endpoint,
                status.message()
            )),
            // The sender's credential was accepted: this fault is in the router's own credential.
            Link::Remote(node) if matches!(status.code(), Code::Unauthenticated | Code::PermissionDenied) => {
                Status::new(
                    status.code(),
                    format!(
                        "the node at {} refuses this router ({}): the first token of the router's --token-file \
                         must be in the node's",
                        node.endpoint,
                        status.message()
                    ),
                )
            }
            _ => status,
        };
        NodesError::Refused { shard, status }
    }

    /// Appends a batch. When this function returns `Ok`, the batch is durable and visible to queries. The response
    /// counts the samples that the shard skipped as too old.
    ///
    /// # Errors
    /// Returns [`NodesError::Refused`]. If the code says that the batch itself is wrong, the batch was not stored.
    /// After any other code, it may have been stored, and may be sent again with the same ID.
    pub async fn append(&self, shard: u32, batch: Batch) -> Result<Appended, NodesError> {
        let placement_epoch = self.placement.epoch();
        let appended = match &self.link {
            Link::Local(node) => node.append(shard, placement_epoch, batch).await,
            Link::Remote(node) => node.append(shard, placement_epoch, &batch).await,
        };
        appended.map_err(|status| self.refused(shard, status))
    }

    /// Returns the sums of samples that a selection requests from one shard.
    ///
    /// # Errors
    /// Returns the [`NodesError`] of the shard.
    pub async fn select(&self, shard: u32, selection: Selection) -> Result<Answer, NodesError> {
        match &self.link {
            Link::Local(node) => node.select(shard, selection).await.map_err(|status| self.refused(shard, status)),
            Link::Remote(node) => {
                let request = selection.to_wire(shard);
                let answer = node.within(node.client().select(request)).await;
                let answer = answer.map_err(|status| self.refused(shard, status))?.into_inner();
                let read = Answer::from_wire(answer, &selection);
                read.map_err(|source| NodesError::Unreadable { shard, source })
            }
        }
    }

    /// Returns a page of a tenant's locations in one shard. The page has only locations that the router does not know
    /// yet.
    ///
    /// # Errors
    /// Returns the [`NodesError`] of the shard.
    pub async fn locations(
        &self,
        shard: u32,
        tenant: &TenantId,
        known: KnownLocations,
    ) -> Result<LocationPage, NodesError> {
        match &self.link {
            Link::Local(node) => {
                node.locations(shard, tenant.clone(), known).await.map_err(|status| self.refused(shard, status))
            }
            Link::Remote(node) => {
                let KnownLocations { generation, count } = known;
                let request = wire::LocationsRequest { shard, tenant: tenant.as_str().to_owned(), generation, count };
                let page = node.within(node.client().locations(request)).await;
                let page = page.map_err(|status| self.refused(shard, status))?.into_inner();
                LocationPage::from_wire(page).map_err(|source| NodesError::Unreadable { shard, source })
            }
        }
    }

    /// Returns the series of all shards that have samples in the window.
    ///
    /// # Errors
    /// Returns the [`NodesError`] of the first shard that fails.
    pub async fn series(&self, query: &SeriesQuery) -> Result<SeriesAnswer, NodesError> {
        let mut all = SeriesAnswer::default();
        for shard in self.placement.shards() {
            let answer = match &self.link {
                Link::Local(node) => node.series(shard, query.clone()).await,
                Link::Remote(node) => node.series(shard, query).await,
            };
            all.extend(answer.map_err(|status| self.refused(shard, status))?);
        }
        Ok(all)
    }
}

impl Nodes {
    /// Deletes samples from all shards. Returns the total numbers of deleted samples and sums.
    ///
    /// # Errors
    /// Returns the [`NodesError`] of the first shard that fails. Other shards may have deleted samples.
    pub async fn delete(&self, deletion: &Deletion) -> Result<Deleted, NodesError> {
        let mut all = Deleted::default();
        for shard in self.placement.shards() {
            let deleted = match &self.link {
                Link::Local(node) => node.delete(shard, deletion.clone()).await,
                // A deletion may take any time, so this call has no time limit. Only keep-alive pings have one.
                Link::Remote(node) => {
                    let request = wire::DeleteRequest { shard, deletion: Some(deletion.to_wire()) };
                    let answer = node.client().delete(request).await.map(tonic::Response::into_inner);
                    answer.map(|wire::DeleteResponse { samples, windows }| Deleted { samples, windows })
                }
            };
            let Deleted { samples, windows } = deleted.map_err(|status| self.refused(shard, status))?;
            all.samples += samples;
            all.windows += windows;
        }
        Ok(all)
    }

    /// Runs an administration task on all shards. Returns the number and report of each shard, in the order of the
    /// shards. A report is a JSON object.
    ///
    /// # Errors
    /// Returns the [`NodesError`] of the first shard that fails. Other shards may have finished the task.
    pub async fn administer(&self, task: AdministrationTask) -> Result<Vec<(u32, String)>, NodesError> {
        let mut reports = Vec::new();
        for shard in self.placement.shards() {
            let report = match &self.link {
                Link::Local(node) => node.administer(shard, task).await,
                // A task may take any time, so this call has no time limit. Only keep-alive pings have one.
                Link::Remote(node) => {
                    let request = wire::AdministerRequest { shard, task: task.into() };
                    node.client().administer(request).await.map(|answer| answer.into_inner().report)
                }
            };
            reports.push((shard, report.map_err(|status| self.refused(shard, status))?));
        }
        Ok(reports)
    }
}

#[cfg(test)]
mod tests {
    use proto::Window;
    use tokio::net::TcpListener;

    use super::*;

    /// Calls a node that accepts connections and never responds. Returns the code and text of the error.
    async fn error_of_a_silent_node(patience: Patience) -> (tonic::Code, String) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = Endpoint::from_shared(format!("http://{}", listener.local_addr().unwrap())).unwrap();
        let nodes = Nodes::remote_with(endpoint, None, patience);
        let window = Window { start_ns: 0, end_ns: 1 };
        let query = SeriesQuery { tenant: TenantId::default_tenant(), matchers: Vec::new(), window, label: None };
        match nodes.series(&query).await {
            Err(NodesError::Refused { status, .. }) => (status.code(), status.message().to_owned()),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn calls_to_a_silent_node_time_out() {
        let short = Duration::from_millis(50);
        let long = Duration::from_secs(600);
        let (code, text) = error_of_a_silent_node(Patience { alive: short, answer: long }).await;
        assert!(code == tonic::Code::Unavailable && text.contains("127.0.0.1"), "no sign of life: {code} {text}");
        let (code, text) = error_of_a_silent_node(Patience { alive: long, answer: short }).await;
        assert!(code == tonic::Code::Unavailable && text.contains("within"), "no answer: {code} {text}");
    }
}
