//! The way from the router to the shards: one call to each shard's node.

use std::error::Error as _;
use std::fmt;
use std::sync::Arc;

use proto::placement::Placement;
use proto::selection::SelectionError;
use proto::wire::node_client::NodeClient;
use proto::wire::node_server::Node;
use proto::{Answer, Batch, LabelSet, Matcher, Selection, TenantId, Window, limits, wire};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

/// One node: in this process, called without a network, or elsewhere.
#[derive(Clone)]
enum Link {
    Local(Arc<dyn Node>),
    Remote { client: NodeClient<Channel>, endpoint: Arc<str> },
}

/// All shards, and where they are.
#[derive(Clone)]
pub struct Nodes {
    link: Link,
    placement: Arc<Placement>,
}

impl fmt::Debug for Nodes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let link = match &self.link {
            Link::Local(_) => "local",
            Link::Remote { .. } => "remote",
        };
        f.debug_struct("Nodes").field("link", &link).field("placement", &self.placement).finish()
    }
}

/// Why a shard did not answer.
#[derive(Debug, thiserror::Error)]
pub enum NodesError {
    /// What the node said; its code says whether to try again.
    #[error("shard {shard}: {}", status.message())]
    Refused {
        /// Which shard.
        shard: u32,
        /// Its words.
        status: Status,
    },
    /// An answer that cannot be read: the node is broken or of another version.
    #[error("shard {shard} answered what cannot be read: {source}")]
    Unreadable {
        /// Which shard.
        shard: u32,
        /// What is wrong.
        source: SelectionError,
    },
}

/// Series of all shards.
#[derive(Debug, Default)]
pub struct SeriesAnswer {
    /// Sorted, each once.
    pub series: Vec<LabelSet>,
    /// Names of sample attributes, sorted, each once.
    pub attribute_names: Vec<String>,
}

impl Nodes {
    /// The node of this process.
    #[must_use]
    pub fn local(node: Arc<dyn Node>) -> Self {
        Self { link: Link::Local(node), placement: Arc::new(Placement::single_shard()) }
    }

    /// A node elsewhere; connects when first used, and again whenever the connection broke.
    #[must_use]
    pub fn remote(endpoint: Endpoint) -> Self {
        let name = Arc::from(endpoint.uri().to_string());
        let client = NodeClient::new(endpoint.connect_lazy())
            .max_decoding_message_size(limits::NODE_MESSAGE_BYTES_MAX)
            .max_encoding_message_size(limits::NODE_MESSAGE_BYTES_MAX);
        Self { link: Link::Remote { client, endpoint: name }, placement: Arc::new(Placement::single_shard()) }
    }

    /// Which shard holds what.
    #[must_use]
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// What a node said; or, where none was reached, where it should be.
    fn refused(&self, shard: u32, status: Status) -> NodesError {
        let never_reached = status.source().is_some_and(|source| source.is::<tonic::transport::Error>());
        let status = match &self.link {
            Link::Remote { endpoint, .. } if never_reached => Status::unavailable(format!(
                "the node at {endpoint} cannot be reached ({}): start `varve node` there, or say where it is with --node-endpoint",
                status.message()
            )),
            _ => status,
        };
        NodesError::Refused { shard, status }
    }

    /// Stores a batch; returns whether it was known already. When this returns, the batch is durable and visible.
    ///
    /// # Errors
    /// [`NodesError::Refused`]; unless the code says that the batch itself is wrong, its outcome is unknown and the same batch
    /// with the same id may be sent again.
    pub async fn append(&self, shard: u32, batch: &Batch) -> Result<bool, NodesError> {
        let request =
            wire::AppendRequest { shard, placement_epoch: self.placement.epoch(), batch: Some(batch.to_wire()) };
        let answer = match &self.link {
            Link::Local(node) => node.append(Request::new(request)).await,
            Link::Remote { client, .. } => client.clone().append(request).await,
        };
        Ok(answer.map_err(|status| self.refused(shard, status))?.into_inner().duplicate)
    }

    /// The answers of all shards that may hold what is asked for.
    ///
    /// # Errors
    /// The first shard's that failed.
    pub async fn select(&self, selection: &Selection) -> Result<Vec<Answer>, NodesError> {
        let mut answers = Vec::new();
        for shard in self.placement.shards() {
            let request = selection.to_wire(shard);
            let answer = match &self.link {
                Link::Local(node) => node.select(Request::new(request)).await,
                Link::Remote { client, .. } => client.clone().select(request).await,
            };
            let answer = answer.map_err(|status| self.refused(shard, status))?.into_inner();
            let read = Answer::from_wire(answer, &selection.fold);
            answers.push(read.map_err(|source| NodesError::Unreadable { shard, source })?);
        }
        Ok(answers)
    }

    /// The series of all shards that have samples in the window.
    ///
    /// # Errors
    /// The first shard's that failed.
    pub async fn series(
        &self,
        tenant: &TenantId,
        matchers: &[Matcher],
        window: Window,
    ) -> Result<SeriesAnswer, NodesError> {
        let mut all = SeriesAnswer::default();
        for shard in self.placement.shards() {
            let request = wire::SeriesRequest {
                shard,
                tenant: tenant.as_str().to_owned(),
                matchers: matchers.iter().map(Matcher::to_wire).collect(),
                start_ns: window.start_ns,
                end_ns: window.end_ns,
            };
            let answer = match &self.link {
                Link::Local(node) => node.series(Request::new(request)).await,
                Link::Remote { client, .. } => client.clone().series(request).await,
            };
            let answer = answer.map_err(|status| self.refused(shard, status))?.into_inner();
            all.series.extend(answer.series.into_iter().map(|group| LabelSet::from_wire(group.labels)));
            all.attribute_names.extend(answer.attribute_names);
        }
        all.series.sort_unstable();
        all.series.dedup();
        all.attribute_names.sort_unstable();
        all.attribute_names.dedup();
        Ok(all)
    }
}
