//! The gRPC server for `varve.v1.Node`. It decodes requests of other processes, and calls [`proto::Shards`].

use proto::{
    Batch, BatchId, Consistency, Deleted, Deletion, KnownLocations, ReadAt, Selection, SeriesQuery, TenantId, wire,
};
use tonic::{Request, Response, Status};

use crate::node::Node;
use crate::node::service::Refused;

/// Size up to which a batch is decoded at once, in bytes. Moving it to another thread would take about as long.
const SMALL_BYTES: usize = 32 << 10;

#[tonic::async_trait]
impl wire::node_server::Node for Node {
    async fn placement(
        &self,
        _request: Request<wire::PlacementRequest>,
    ) -> Result<Response<wire::PlacementResponse>, Status> {
        Ok(Response::new(proto::Shards::placement(self).await?.to_wire()))
    }

    async fn append(&self, request: Request<wire::AppendRequest>) -> Result<Response<wire::AppendResponse>, Status> {
        let wire::AppendRequest { shard, placement_epoch, batch } = request.into_inner();
        let refused = |refused| self.shared.count(refused);
        let batch = batch.ok_or_else(|| refused(Refused::unreadable(&"it has no batch")))?;
        let batch = {
            // The encoded batch counts against the budget for appends until it is decoded. From then on, the decoded
            // batch counts.
            let _in_flight = self.shared.take_in(batch.len()).map_err(refused)?;
            let read = if batch.len() <= SMALL_BYTES {
                Batch::decode(&batch)
            } else {
                let read = tokio::task::spawn_blocking(move || Batch::decode(&batch)).await;
                read.map_err(|panic| Status::internal(panic.to_string()))?
            };
            read.map_err(|error| refused(Refused::unreadable(&error)))?
        };
        let appended = proto::Shards::append(self, shard, placement_epoch, batch).await?;
        Ok(Response::new(wire::AppendResponse {
            duplicate: appended.duplicate,
            samples_too_old: appended.samples_too_old,
            retention_seconds: appended.retention.as_secs(),
        }))
    }

    async fn holds_batch(
        &self,
        request: Request<wire::HoldsBatchRequest>,
    ) -> Result<Response<wire::HoldsBatchResponse>, Status> {
        let wire::HoldsBatchRequest { shard, placement_epoch, tenant, id } = request.into_inner();
        let tenant = TenantId::new(&tenant).map_err(|error| invalid(&error))?;
        let id = BatchId::from_wire(&id).map_err(|error| invalid(&error))?;
        let holds = proto::Shards::holds_batch(self, shard, placement_epoch, tenant, id).await?;
        Ok(Response::new(wire::HoldsBatchResponse { holds }))
    }

    async fn read_point(
        &self,
        request: Request<wire::ReadPointRequest>,
    ) -> Result<Response<wire::ReadPointResponse>, Status> {
        let wire::ReadPointRequest { shard, placement_epoch, is_stale } = request.into_inner();
        let consistency = if is_stale { Consistency::Stale } else { Consistency::Linearizable };
        let point = proto::Shards::read_point(self, shard, placement_epoch, consistency).await?;
        Ok(Response::new(point.to_wire()))
    }

    async fn select(&self, request: Request<wire::SelectRequest>) -> Result<Response<wire::SelectResponse>, Status> {
        let request = request.into_inner();
        let wire::SelectRequest { shard, placement_epoch, applied_index, .. } = request;
        let selection = Selection::from_wire(request).map_err(|error| invalid(&error))?;
        let answer = proto::Shards::select(self, shard, ReadAt { placement_epoch, applied_index }, selection).await?;
        let encoded = tokio::task::spawn_blocking(move || answer.to_wire()).await;
        encoded.map(Response::new).map_err(|panic| Status::internal(panic.to_string()))
    }

    async fn locations(
        &self,
        request: Request<wire::LocationsRequest>,
    ) -> Result<Response<wire::LocationsResponse>, Status> {
        let wire::LocationsRequest { shard, placement_epoch, tenant, generation, count, applied_index } =
            request.into_inner();
        let at = ReadAt { placement_epoch, applied_index };
        let tenant = TenantId::new(&tenant).map_err(|error| invalid(&error))?;
        let known = KnownLocations { generation, count };
        let page = proto::Shards::locations(self, shard, at, tenant, known).await?;
        let encoded = tokio::task::spawn_blocking(move || page.to_wire()).await;
        encoded.map(Response::new).map_err(|panic| Status::internal(panic.to_string()))
    }

    async fn series(&self, request: Request<wire::SeriesRequest>) -> Result<Response<wire::SeriesResponse>, Status> {
        let request = request.into_inner();
        let wire::SeriesRequest { shard, placement_epoch, applied_index, .. } = request;
        let query = SeriesQuery::from_wire(request).map_err(|error| invalid(&error))?;
        let answer = proto::Shards::series(self, shard, ReadAt { placement_epoch, applied_index }, query).await?;
        let encoded = tokio::task::spawn_blocking(move || answer.to_wire()).await;
        encoded.map(Response::new).map_err(|panic| Status::internal(panic.to_string()))
    }

    async fn delete(&self, request: Request<wire::DeleteRequest>) -> Result<Response<wire::DeleteResponse>, Status> {
        let wire::DeleteRequest { shard, placement_epoch, deletion } = request.into_inner();
        let deletion = deletion.ok_or_else(|| Status::invalid_argument("the request has no deletion"))?;
        let deletion = Deletion::from_wire(deletion).map_err(|error| invalid(&error))?;
        let Deleted { samples, windows } = proto::Shards::delete(self, shard, placement_epoch, deletion).await?;
        Ok(Response::new(wire::DeleteResponse { samples, windows }))
    }

    async fn administer(
        &self,
        request: Request<wire::AdministerRequest>,
    ) -> Result<Response<wire::AdministerResponse>, Status> {
        let request = request.into_inner();
        let task = proto::AdministrationTask::try_from(request.task).map_err(|error| invalid(&error))?;
        let report = proto::Shards::administer(self, request.shard, task).await?;
        Ok(Response::new(wire::AdministerResponse { report }))
    }
}

fn invalid(error: &dyn std::fmt::Display) -> Status {
    Status::invalid_argument(error.to_string())
}
