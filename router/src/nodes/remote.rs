//! A node on the network, over gRPC.

use std::error::Error as _;
use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use prost::Message;
use proto::meta::{CLUSTER_METADATA, ClusterId, State};
use proto::wire::cluster_client::ClusterClient;
use proto::wire::node_client::NodeClient;
use proto::{
    AdministrationTask, Answer, Appended, Batch, BatchId, Consistency, Deleted, Deletion, KnownLocations, LocationPage,
    ReadAt, ReadPoint, Selection, SelectionError, SeriesAnswer, SeriesQuery, TenantId, Tokens, limits, wire,
};
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, ConnectError, Request, Response, Status};
use transport::{DialError, Dialer};

use crate::nodes::reading::Reading;

/// A node on the network. The connection is made on the first call, and again after it breaks.
#[derive(Debug)]
pub(super) struct Remote {
    connection: Connection,
    endpoint: String,
    patience: Patience,
}

type Connection = InterceptedService<Channel, Authorization>;

/// Interceptor that adds the router's credential and its cluster to each call.
#[derive(Clone, Debug)]
struct Authorization {
    bearer: Option<MetadataValue<Ascii>>,
    /// ID of the cluster, as soon as the router knows it.
    cluster: Arc<OnceLock<ClusterId>>,
}

impl Interceptor for Authorization {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(bearer) = &self.bearer {
            request.metadata_mut().insert("authorization", bearer.clone());
        }
        // Hexadecimal digits always fit a header.
        if let Some(cluster) = self.cluster.get().and_then(|cluster| cluster.to_string().parse().ok()) {
            request.metadata_mut().insert(CLUSTER_METADATA, cluster);
        }
        Ok(request)
    }
}

/// Time limits of calls to a remote node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    /// Time limit to connect and to respond to a keep-alive ping. Also the interval of pings, which detect a dead host
    /// or a stopped process.
    pub(super) alive: Duration,
    /// Time limit of one response.
    pub(super) answer: Duration,
}

/// Time limits outside of tests. No client waits so long for a response, and even a busy node needs far less time.
/// While a router finds out that a leader has stopped, a client waits for up to twice the first limit.
pub(super) const PATIENCE: Patience = Patience { alive: Duration::from_secs(2), answer: Duration::from_secs(120) };

/// Size from which on a response is decoded on a blocking thread, in bytes. A smaller response takes about as long as
/// moving it to another thread.
const LARGE_BYTES: usize = 64 << 10;

/// Codec that leaves responses encoded. The largest ones take seconds to decode, which must not stop other requests.
struct Undecoded<Q>(PhantomData<Q>);

impl<Q: Message + 'static> Codec for Undecoded<Q> {
    type Encode = Q;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self(PhantomData)
    }

    fn decoder(&mut self) -> Self {
        Self(PhantomData)
    }
}

impl<Q: Message> Encoder for Undecoded<Q> {
    type Item = Q;
    type Error = Status;

    fn encode(&mut self, request: Q, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        request.encode(to).map_err(|error| Status::internal(error.to_string()))
    }
}

impl<Q> Decoder for Undecoded<Q> {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

impl Remote {
    /// Makes a connection for a router of a cluster, whose ID may become known later.
    pub(super) fn new(
        dialer: &Dialer,
        endpoint: Endpoint,
        tokens: Option<&Tokens>,
        cluster: Arc<OnceLock<ClusterId>>,
        patience: Patience,
    ) -> Self {
        // No node accepts a token that does not fit a header.
        let bearer = tokens.and_then(|tokens| format!("Bearer {}", tokens.first()).parse().ok());
        let name = endpoint.uri().to_string();
        let endpoint = endpoint
            .connect_timeout(patience.alive)
            .http2_keep_alive_interval(patience.alive)
            .keep_alive_timeout(patience.alive)
            .keep_alive_while_idle(true);
        let connection = InterceptedService::new(dialer.connect_lazy(&endpoint), Authorization { bearer, cluster });
        Self { connection, endpoint: name, patience }
    }

    fn client(&self) -> NodeClient<Connection> {
        NodeClient::new(self.connection.clone())
            .max_decoding_message_size(limits::NODE_MESSAGE_BYTES_MAX)
            .max_encoding_message_size(limits::NODE_MESSAGE_BYTES_MAX)
    }

    /// Makes a call whose response may be large. Returns the encoded response.
    async fn call(&self, method: &'static str, request: impl Message + 'static) -> Result<Bytes, Status> {
        let mut client = Grpc::new(self.connection.clone())
            .max_decoding_message_size(limits::NODE_MESSAGE_BYTES_MAX)
            .max_encoding_message_size(limits::NODE_MESSAGE_BYTES_MAX);
        let call = async {
            client.ready().await.map_err(|error| Status::from_error(Box::new(error)))?;
            let path = PathAndQuery::from_static(method);
            client.unary(Request::new(request), path, Undecoded(PhantomData)).await
        };
        self.within(call).await
    }

    /// Returns true if the process of the node responds within `patience`, whatever its response is.
    pub(super) async fn is_responding(&self, patience: Duration) -> bool {
        let mut client = ClusterClient::new(self.connection.clone());
        let response = tokio::time::timeout(patience, client.identify(wire::IdentifyRequest {})).await;
        // Only the router's own part of the connection gives a status a source.
        response.is_ok_and(|response| response.map_or_else(|status| status.source().is_none(), |_identity| true))
    }

    /// Waits for the response to a call, up to a time limit. A call that times out is cancelled, and its outcome is
    /// unknown.
    async fn within<T>(&self, call: impl Future<Output = Result<Response<T>, Status>>) -> Result<T, Status> {
        let patience = self.patience.answer;
        let late = |_elapsed| Lost::Response.status(format!("the node did not respond within {patience:?}: try again"));
        self.response(tokio::time::timeout(patience, call).await.map_err(late)?)
    }

    /// Returns the response to a call. If no node was reached, the error names the address of the node.
    fn response<T>(&self, response: Result<Response<T>, Status>) -> Result<T, Status> {
        response.map(Response::into_inner).map_err(|status| {
            let endpoint = &self.endpoint;
            if let Some(reason) = DialError::of(&status) {
                return Lost::Request.status(format!("no connection to the node at {endpoint}: {reason}"));
            }
            let text = status.message();
            match status.code() {
                _ if was_never_sent(&status) => Lost::Request.status(format!(
                    "the node at {endpoint} cannot be reached ({text}): start `varve node` there, or set \
                     --node-endpoint"
                )),
                // Only the router's own part of the connection gives a status a source.
                _ if status.source().is_some() => {
                    Lost::Response.status(format!("the connection to the node at {endpoint} broke ({text}): try again"))
                }
                // The sender's credential was accepted: these faults are in the router's own credential.
                code @ Code::PermissionDenied => {
                    Status::new(code, format!("the node at {endpoint} refuses this router: {text}"))
                }
                code @ Code::Unauthenticated => Status::new(
                    code,
                    format!(
                        "the node at {endpoint} refuses this router ({text}): the first token of the router's \
                         --token-file must be in the node's"
                    ),
                ),
                _ => status,
            }
        })
    }
}

/// The part of a call that the network lost. It is the source of the router's own statuses; those of nodes have none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Lost {
    /// The request was never sent, so nothing was done.
    #[error("no connection could be made")]
    Request,
    /// The request may have had its effect.
    #[error("there was no response")]
    Response,
}

impl Lost {
    /// Returns the status of a call that lost this.
    pub(super) fn status(self, text: String) -> Status {
        let mut status = Status::unavailable(text);
        status.set_source(Arc::new(self));
        status
    }

    /// Returns what the call with this status lost; `None` if the node has responded.
    pub(super) fn of(status: &Status) -> Option<Self> {
        status.source()?.downcast_ref().copied()
    }
}

/// Returns true if a call failed because no connection could be made.
fn was_never_sent(status: &Status) -> bool {
    let mut source = std::error::Error::source(status);
    while let Some(error) = source {
        if error.is::<ConnectError>() {
            return true;
        }
        source = error.source();
    }
    false
}

/// Decodes a response. A large one is decoded on a blocking thread.
async fn decoded<R: Message + Default, T: Send + 'static>(
    reading: &Reading,
    encoded: Bytes,
    decode: impl FnOnce(R) -> Result<T, SelectionError> + Send + 'static,
) -> Result<T, Status> {
    let bytes = encoded.len();
    let decode = move || decode(R::decode(encoded).map_err(unreadable)?).map_err(unreadable);
    if bytes < LARGE_BYTES { decode() } else { reading.blocking(decode).await }
}

/// Returns the error of a response that cannot be decoded: the node is broken or has another version.
fn unreadable(error: impl std::fmt::Display) -> Status {
    Status::internal(format!("the response of the node cannot be decoded: {error}"))
}

/// The requests of [`proto::Shards`]. Those of queries count the size of their responses.
impl Remote {
    /// Waits some seconds for a state of the meta group that is newer than `revision`. Returns `None` if there is none.
    pub(super) async fn watch(&self, revision: u64) -> Result<Option<State>, Status> {
        let mut client = ClusterClient::new(self.connection.clone())
            .max_decoding_message_size(limits::NODE_MESSAGE_BYTES_MAX)
            .max_encoding_message_size(limits::NODE_MESSAGE_BYTES_MAX);
        let wire::WatchResponse { state } = self.within(client.watch(wire::WatchRequest { revision })).await?;
        state.map(|state| State::from_wire(state).map_err(unreadable)).transpose()
    }

    pub(super) async fn append(&self, shard: u32, placement_epoch: u64, batch: &Batch) -> Result<Appended, Status> {
        let request = wire::AppendRequest { shard, placement_epoch, batch: Some(batch.encode()) };
        let answer = self.within(self.client().append(request)).await?;
        let wire::AppendResponse { duplicate, samples_too_old, retention_seconds } = answer;
        Ok(Appended { duplicate, samples_too_old, retention: Duration::from_secs(retention_seconds) })
    }

    pub(super) async fn holds_batch(
        &self,
        shard: u32,
        placement_epoch: u64,
        tenant: &TenantId,
        id: BatchId,
    ) -> Result<bool, Status> {
        let (tenant, id) = (tenant.as_str().to_owned(), id.to_wire());
        let request = wire::HoldsBatchRequest { shard, placement_epoch, tenant, id };
        Ok(self.within(self.client().holds_batch(request)).await?.holds)
    }

    pub(super) async fn read_point(
        &self,
        shard: u32,
        placement_epoch: u64,
        consistency: Consistency,
    ) -> Result<ReadPoint, Status> {
        let is_stale = consistency == Consistency::Stale;
        let request = wire::ReadPointRequest { shard, placement_epoch, is_stale };
        Ok(ReadPoint::from_wire(self.within(self.client().read_point(request)).await?))
    }

    pub(super) async fn select(&self, reading: &Reading, shard: u32, selection: Selection) -> Result<Answer, Status> {
        let request = selection.to_wire(shard, reading.at(shard));
        let encoded = self.call("/varve.v1.Node/Select", request).await?;
        reading.receive(encoded.len())?;
        decoded(reading, encoded, move |answer| Answer::from_wire(answer, &selection)).await
    }

    // Pages of locations do not count: each is dropped before the next one is read.
    pub(super) async fn locations(
        &self,
        reading: &Reading,
        shard: u32,
        tenant: &TenantId,
        known: KnownLocations,
    ) -> Result<LocationPage, Status> {
        let KnownLocations { generation, count } = known;
        let tenant = tenant.as_str().to_owned();
        let ReadAt { placement_epoch, applied_index } = reading.at(shard);
        let request = wire::LocationsRequest { shard, placement_epoch, tenant, generation, count, applied_index };
        let encoded = self.call("/varve.v1.Node/Locations", request).await?;
        decoded(reading, encoded, LocationPage::from_wire).await
    }

    pub(super) async fn series(
        &self,
        reading: &Reading,
        shard: u32,
        query: &SeriesQuery,
    ) -> Result<SeriesAnswer, Status> {
        let encoded = self.call("/varve.v1.Node/Series", query.to_wire(shard, reading.at(shard))).await?;
        reading.receive(encoded.len())?;
        decoded(reading, encoded, SeriesAnswer::from_wire).await
    }

    // A deletion may take any time, so this call has no time limit. Only keep-alive pings have one.
    pub(super) async fn delete(
        &self,
        shard: u32,
        placement_epoch: u64,
        deletion: &Deletion,
    ) -> Result<Deleted, Status> {
        let request = wire::DeleteRequest { shard, placement_epoch, deletion: Some(deletion.to_wire()) };
        let wire::DeleteResponse { samples, windows } = self.response(self.client().delete(request).await)?;
        Ok(Deleted { samples, windows })
    }

    // A task may take any time, so this call has no time limit. Only keep-alive pings have one.
    pub(super) async fn administer(&self, shard: u32, task: AdministrationTask) -> Result<String, Status> {
        let request = wire::AdministerRequest { shard, task: task.into() };
        Ok(self.response(self.client().administer(request).await)?.report)
    }
}
