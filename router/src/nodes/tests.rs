//! Tests of the calls to nodes.

pub(crate) mod fake_cluster;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use proto::wire;
use proto::wire::node_server::{Node, NodeServer};
use proto::{Matcher, Window};
use tokio::net::TcpListener;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response};

use self::fake_cluster::OneNode;
use super::reading::tests::reading;
use super::*;

/// Calls a node that accepts connections and never responds. Returns the code and text of the error.
async fn error_of_a_silent_node(patience: Patience) -> (Code, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = Endpoint::from_shared(format!("http://{}", listener.local_addr().unwrap())).unwrap();
    let nodes = Nodes::remote_with(&Dialer::plaintext(), vec![endpoint], None, patience);
    let error = nodes.placement().await.unwrap_err();
    (error.code(), error.to_string())
}

#[tokio::test]
async fn calls_to_a_silent_node_time_out() {
    let short = Duration::from_millis(50);
    let long = Duration::from_secs(600);
    let (code, text) = error_of_a_silent_node(Patience { alive: short, answer: long }).await;
    assert!(code == Code::Unavailable && text.contains("127.0.0.1"), "no sign of life: {code} {text}");
    let (code, text) = error_of_a_silent_node(Patience { alive: long, answer: short }).await;
    assert!(code == Code::Unavailable && text.contains("within"), "no answer: {code} {text}");
}

#[tokio::test]
async fn calls_run_together_up_to_the_limit_and_the_first_error_in_order_wins() {
    let running = &AtomicUsize::new(0);
    let most = &AtomicUsize::new(0);
    let call = |number: usize| async move {
        most.fetch_max(running.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        // Later calls end first.
        tokio::time::sleep(Duration::from_millis(40 - number as u64)).await;
        running.fetch_sub(1, Ordering::Relaxed);
        if number % 10 == 3 || number % 10 == 7 { Err(number) } else { Ok(number) }
    };
    assert_eq!(in_order((14..17).map(call).collect()).await, Ok((14..17).collect()));
    // Calls 3 and 7 run at the same time, and call 7 fails first.
    assert_eq!(in_order((0..30).map(call).collect()).await, Err(3));
    assert_eq!(most.load(Ordering::Relaxed), SHARDS_AT_ONCE_MAX);
}

/// A node with 16 shards. Shard N has N series for each byte of the first matcher's value.
struct Remote16;

#[tonic::async_trait]
impl Node for Remote16 {
    async fn placement(&self, _: Request<wire::PlacementRequest>) -> Result<Response<wire::PlacementResponse>, Status> {
        Ok(Response::new(Placement::uniform(std::num::NonZeroU16::new(16).unwrap()).to_wire()))
    }

    async fn holds_batch(
        &self,
        _: Request<wire::HoldsBatchRequest>,
    ) -> Result<Response<wire::HoldsBatchResponse>, Status> {
        Err(Status::unimplemented("not used here"))
    }

    async fn read_point(
        &self,
        _: Request<wire::ReadPointRequest>,
    ) -> Result<Response<wire::ReadPointResponse>, Status> {
        Err(Status::unimplemented("not used here"))
    }

    async fn series(&self, request: Request<wire::SeriesRequest>) -> Result<Response<wire::SeriesResponse>, Status> {
        let wire::SeriesRequest { shard, placement_epoch, matchers, .. } = request.into_inner();
        assert_eq!(placement_epoch, 1);
        let count = shard as usize * matchers[0].value.len();
        let label = |i| wire::Label { name: format!("of_{shard}"), value: format!("{i:05}"), ..wire::Label::default() };
        let series = (0..count).map(|i| wire::Group { labels: vec![label(i)] }).collect();
        Ok(Response::new(wire::SeriesResponse { series, ..wire::SeriesResponse::default() }))
    }

    async fn append(&self, _: Request<wire::AppendRequest>) -> Result<Response<wire::AppendResponse>, Status> {
        Err(Status::unimplemented("not used here"))
    }

    async fn select(&self, _: Request<wire::SelectRequest>) -> Result<Response<wire::SelectResponse>, Status> {
        // The columns of the cells differ in length.
        Ok(Response::new(wire::SelectResponse { cell_groups: vec![0; 1000], ..wire::SelectResponse::default() }))
    }

    async fn locations(&self, _: Request<wire::LocationsRequest>) -> Result<Response<wire::LocationsResponse>, Status> {
        Err(Status::not_found("read the placement again"))
    }

    async fn delete(&self, _: Request<wire::DeleteRequest>) -> Result<Response<wire::DeleteResponse>, Status> {
        Err(Status::unimplemented("not used here"))
    }

    async fn administer(
        &self,
        request: Request<wire::AdministerRequest>,
    ) -> Result<Response<wire::AdministerResponse>, Status> {
        Ok(Response::new(wire::AdministerResponse { report: request.into_inner().shard.to_string() }))
    }
}

/// Starts a [`Remote16`], and connects to it.
fn remote16() -> Nodes {
    let incoming = TcpIncoming::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = incoming.local_addr().unwrap();
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    let services = Server::builder().add_service(NodeServer::new(Remote16));
    let services = services.add_service(OneNode::service(address, 16));
    tokio::spawn(services.serve_with_incoming(incoming));
    Nodes::remote(&Dialer::plaintext(), vec![endpoint], None)
}

/// Returns a request for N series for each byte of `text`, from shard N.
fn series_query(text: &str) -> SeriesQuery {
    let operation = proto::selection::Operation::Equal;
    let matchers = vec![Matcher { name: "a".to_owned(), operation, value: text.to_owned() }];
    let window = Window { start_ns: 0, end_ns: 1 };
    SeriesQuery { tenant: TenantId::default_tenant(), matchers, window, label: None }
}

#[tokio::test]
async fn the_limits_apply_to_the_responses_of_all_shards_together() {
    let nodes = remote16();
    let shards = nodes.placement().await.unwrap().shards();
    let series = async |shards: &[u32], received_max, held_max| {
        let reading = &reading(1, received_max, held_max);
        let query = &series_query(&"x".repeat(50));
        let calls = shards.iter().map(|&shard| nodes.series(reading, shard, query)).collect();
        let found = in_order(calls).await.map(SeriesAnswer::merged);
        found.map(|found| found.series.len()).map_err(|error| (error.code(), error.to_string()))
    };
    // Each response has at most 20 kB, and all have 130 kB. In memory, they take seven times as much.
    let unlimited = usize::MAX;
    assert_eq!(series(&shards, unlimited, unlimited).await, Ok(6_800));
    for (received_max, held_max) in [(40_000, unlimited), (unlimited, 300_000)] {
        for shard in &shards {
            assert_eq!(series(&[*shard], received_max, held_max).await, Ok(50 * *shard as usize));
        }
        let (code, text) = series(&shards, received_max, held_max).await.unwrap_err();
        assert_eq!(code, Code::ResourceExhausted, "{text}");
        assert!(text.starts_with("the responses of the shards") && text.contains("narrow the selector"), "{text}");
    }
}

#[tokio::test]
async fn a_response_that_is_too_large_is_not_decoded() {
    let nodes = remote16();
    let code = async |received_max| {
        let selection = Selection {
            tenant: TenantId::default_tenant(),
            matchers: Vec::new(),
            fold: proto::Fold::Sum(vec![Window { start_ns: 0, end_ns: 1 }]),
            group_by: Vec::new(),
            group_by_series: false,
            stacks: proto::StackDetail::None,
            locations: proto::LocationSets::default(),
        };
        nodes.select(&reading(1, received_max, 1 << 20), 1, selection).await.unwrap_err().code()
    };
    assert_eq!(code(1 << 20).await, Code::Internal, "the response cannot be decoded");
    assert_eq!(code(1_000).await, Code::ResourceExhausted);
}

#[tokio::test]
async fn a_remote_node_has_many_shards_and_large_responses() {
    let nodes = remote16();
    let reading = || reading(1, usize::MAX, usize::MAX);
    let tenant = TenantId::default_tenant();
    let shards = nodes.placement().await.unwrap().shards();
    assert_eq!(shards, (1..=16).collect::<Vec<_>>());
    for (bytes, text) in [(0, ""), (1, "x"), (500, &"x".repeat(500))] {
        let (reading, query) = (&reading(), &series_query(text));
        let calls = shards.iter().map(|&shard| nodes.series(reading, shard, query)).collect();
        let found = SeriesAnswer::merged(in_order(calls).await.unwrap());
        // The largest responses have several hundred kilobytes.
        assert_eq!(found.series.len(), 136 * bytes);
        assert!(found.series.is_sorted());
    }
    let reports = nodes.administer(AdministrationTask::Statistics).await.unwrap();
    assert!(reports.iter().zip(1..).all(|((shard, report), i)| *shard == i && *report == i.to_string()));
    assert!(nodes.placement.read().is_some());
    let error = nodes.locations(&reading(), 3, &tenant, KnownLocations::default()).await.unwrap_err();
    assert_eq!(error.to_string(), "shard 3: read the placement again");
    assert!(nodes.placement.read().is_none(), "it is read again");
}
