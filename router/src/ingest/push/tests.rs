//! Tests of pushes through all steps, to a fake node.

mod epochs;
mod many_shards;
mod shards;

use std::collections::HashSet;
use std::io::Write as _;
use std::sync::Mutex;
use std::time::Duration;

use proto::{
    Answer, Appended, Batch, BatchId, KnownLocations, Label, LocationPage, Selection, SeriesAnswer, SeriesQuery,
    Shards, StackHash,
};
use tonic::Status;

use super::*;
use crate::ingest::normalize::{OMITTING_BYTES_MAX, now_ns};
use crate::ingest::receive::Framing;
use crate::ingest::request::{Encoding, Format, Head};

/// Fields of a pprof file: a location without a mapping, and a sample whose stack is this location.
const STACK_AND_SAMPLE: &[u8] = b"\x22\x04\x08\x01\x18\x07\x12\x06\x0a\x01\x01\x12\x01\x05";

/// Returns a pprof file with one sample without a stack.
fn pprof() -> Vec<u8> {
    let time = now_ns().cast_unsigned();
    let mut bytes = b"\x0a\x04\x08\x01\x10\x02\x12\x03\x12\x01\x05\x32\x00\x32\x03cpu\x32\x0bnanoseconds".to_vec();
    prost::encoding::uint64::encode(9, &time, &mut bytes);
    bytes
}

fn gzip(bytes: &[u8], level: u32) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(level));
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// Returns a request with this body.
fn arriving(format: Format, encoding: Encoding, body: Vec<u8>) -> Arriving {
    let head = Ok(Head { format, encoding, key: None });
    Arriving { head, body: body.into(), announced_bytes: 0, framing: Framing::None }
}

fn pprof_push(body: Vec<u8>) -> Arriving {
    compressed_push(body, Encoding::Identity)
}

fn compressed_push(body: Vec<u8>, encoding: Encoding) -> Arriving {
    arriving(Format::Pprof { name: None, labels: vec![Label::new("service_name", "s")] }, encoding, body)
}

/// Returns an export request with samples of one stack at these times, in seconds from now.
fn otlp_push(seconds: &[i64]) -> Arriving {
    otlp_push_of(&[&[1]], seconds)
}

/// Returns an export request with one profile for each list of stacks. Each stack has one location. The location of
/// stack 3 does not exist.
fn otlp_push_of(stacks: &[&[i32]], seconds: &[i64]) -> Arriving {
    use proto::otlp::collector::profiles::v1development::ExportProfilesServiceRequest;
    use proto::otlp::profiles::v1development::{
        Location, Profile, ProfilesDictionary, ResourceProfiles, Sample, ScopeProfiles, Stack,
    };
    let times: Vec<u64> = seconds.iter().map(|second| (now_ns() + second * 1_000_000_000) as u64).collect();
    let sample = |&stack: &i32| Sample { stack_index: stack, timestamps_unix_nano: times.clone(), ..Sample::default() };
    let profile = |stacks: &&[i32]| Profile { samples: stacks.iter().map(sample).collect(), ..Profile::default() };
    let profiles = stacks.iter().map(profile).collect();
    let scope_profiles = vec![ScopeProfiles { profiles, ..ScopeProfiles::default() }];
    let location = |address| Location { address, ..Location::default() };
    let stack = |location| Stack { location_indices: vec![location] };
    let dictionary = ProfilesDictionary {
        location_table: vec![Location::default(), location(7), location(8)],
        stack_table: vec![Stack::default(), stack(1), stack(2), stack(99)],
        ..ProfilesDictionary::default()
    };
    let request = ExportProfilesServiceRequest {
        resource_profiles: vec![ResourceProfiles { scope_profiles, ..ResourceProfiles::default() }],
        dictionary: Some(dictionary),
    };
    arriving(Format::OtlpProtobuf, Encoding::Identity, prost::Message::encode_to_vec(&request))
}

/// A node with a retention of ten days, which records the batches that it receives.
#[derive(Default)]
struct FakeNode {
    /// For each batch, the number of samples that the node reports as older than the retention.
    samples_too_old: u64,
    /// Stacks that batches have defined.
    held: Mutex<HashSet<StackHash>>,
    /// For each batch, in the order of arrival: true if the batch defined all its stacks.
    are_whole: Mutex<Vec<bool>>,
    /// IDs of the batches, in the order of arrival.
    ids: Mutex<Vec<Option<BatchId>>>,
    /// True if the node refuses every batch for missing definitions.
    is_faulty: bool,
    /// True if the node reports every batch as a duplicate.
    is_duplicate: bool,
}

#[tonic::async_trait]
impl Shards for FakeNode {
    type Error = Status;

    async fn delete(&self, _: u32, _: u64, _: proto::Deletion) -> Result<proto::Deleted, Status> {
        Err(Status::unimplemented("not used here"))
    }

    async fn holds_batch(&self, _: u32, _: u64, _: TenantId, _: BatchId) -> Result<bool, Status> {
        Err(Status::unimplemented("not used here"))
    }

    async fn administer(&self, _shard: u32, _task: proto::AdministrationTask) -> Result<String, Status> {
        Err(Status::unimplemented("not used here"))
    }

    async fn placement(&self) -> Result<proto::placement::Placement, tonic::Status> {
        Ok(proto::placement::Placement::uniform(std::num::NonZeroU16::MIN))
    }

    async fn append(&self, _shard: u32, _placement_epoch: u64, batch: Batch) -> Result<Appended, Status> {
        self.ids.lock().unwrap().push(batch.id);
        let stacks = || batch.dictionary.stacks.iter().skip(1);
        self.are_whole.lock().unwrap().push(stacks().all(|(_, stack)| stack.is_some()));
        let mut held = self.held.lock().unwrap();
        if self.is_faulty || stacks().any(|(hash, stack)| stack.is_none() && !held.contains(hash)) {
            return Err(Status::aborted("definitions are missing"));
        }
        held.extend(stacks().map(|(hash, _)| *hash));
        let samples_too_old = self.samples_too_old;
        let retention = Duration::from_secs(864_000);
        Ok(Appended { duplicate: self.is_duplicate, samples_too_old, retention })
    }

    async fn read_point(&self, _: u32, _: u64, _: proto::Consistency) -> Result<proto::ReadPoint, Status> {
        Err(Status::unimplemented("not used here"))
    }

    async fn select(&self, _: u32, _: proto::ReadAt, _: Selection) -> Result<Answer, Status> {
        Err(Status::unimplemented(""))
    }

    async fn locations(
        &self,
        _: u32,
        _: proto::ReadAt,
        _: TenantId,
        _: KnownLocations,
    ) -> Result<LocationPage, Status> {
        Err(Status::unimplemented(""))
    }

    async fn series(&self, _: u32, _: proto::ReadAt, _: SeriesQuery) -> Result<SeriesAnswer, Status> {
        Err(Status::unimplemented(""))
    }
}

/// A pusher and the fake node behind it.
struct Fixture {
    node: Arc<FakeNode>,
    registry: Registry,
    pusher: Pusher,
}

impl Fixture {
    fn new(node: FakeNode) -> Self {
        let node = Arc::new(node);
        let mut registry = Registry::default();
        let pusher = Pusher::new(Nodes::local(Arc::clone(&node) as Arc<dyn Shards<Error = Status>>), &mut registry);
        Self { node, registry, pusher }
    }

    async fn push(&self, arriving: Arriving) -> Result<Accepted, PushError> {
        self.pusher.push(&TenantId::default_tenant(), arriving).await
    }

    /// Returns whether each batch of a push defined all its stacks.
    async fn are_whole(&self, arriving: Arriving) -> Vec<bool> {
        self.push(arriving).await.unwrap();
        std::mem::take(&mut *self.node.are_whole.lock().unwrap())
    }
}

#[tokio::test]
async fn a_pprof_is_the_same_push_however_it_is_compressed() {
    let fixture = Fixture::new(FakeNode::default());
    let pprof = pprof();
    let zstd = zstd::encode_all(pprof.as_slice(), 1).unwrap();
    for packed in [pprof.clone(), gzip(&pprof, 1), gzip(&pprof, 0), zstd] {
        fixture.push(pprof_push(packed)).await.unwrap();
    }
    fixture.push(compressed_push(gzip(&gzip(&pprof, 6), 6), Encoding::Gzip)).await.unwrap();
    let ids = fixture.node.ids.lock().unwrap();
    assert!(ids.len() == 5 && ids[0].is_some() && ids.iter().all(|id| *id == ids[0]), "{ids:?}");
}

#[tokio::test]
async fn samples_older_than_the_retention_are_reported() {
    let push = async |samples_too_old, samples| {
        let fixture = Fixture::new(FakeNode { samples_too_old, ..FakeNode::default() });
        let mut bytes = pprof();
        for _ in 1..samples {
            bytes.extend(b"\x12\x03\x12\x01\x05");
        }
        fixture.push(pprof_push(bytes)).await
    };
    assert_eq!(push(0, 2).await.unwrap().warnings, Vec::<String>::new());
    let some = push(1, 3).await.unwrap();
    assert_eq!(some.samples, 2);
    assert_eq!(some.warnings, ["1 samples were skipped: they are older than the retention, 10 days"]);
    let none = push(2, 2).await.unwrap_err().to_string();
    assert!(none.contains("all 2 samples") && none.contains("10 days"), "{none}");
}

#[tokio::test]
async fn a_stack_is_defined_once_and_again_for_a_shard_that_lost_it() {
    let fixture = Fixture::new(FakeNode::default());
    let push = || pprof_push([pprof().as_slice(), STACK_AND_SAMPLE].concat());
    assert_eq!(fixture.push(push()).await.unwrap().samples, 2);
    assert_eq!(fixture.are_whole(push()).await, [true, false]);
    fixture.node.held.lock().unwrap().clear();
    assert_eq!(fixture.are_whole(push()).await, [false, true], "refused, and sent again with all definitions");
    assert_eq!(fixture.are_whole(push()).await, [false]);
}

/// The log events of a thread, each with its fields.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl tracing::Subscriber for Log {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.is_event() && *metadata.level() <= tracing::Level::WARN
    }

    fn event(&self, event: &tracing::Event<'_>) {
        let mut text = event.metadata().level().to_string();
        event.record(&mut |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
            text.push_str(&format!(" {field}={value:?}"));
        });
        self.0.lock().unwrap().push(text);
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::Id {
        tracing::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::Id, _: &tracing::Id) {}

    fn enter(&self, _: &tracing::Id) {}

    fn exit(&self, _: &tracing::Id) {}
}

// A sender that gets a retryable status would retry for ever.
#[tokio::test]
async fn a_fault_of_varve_is_a_final_error() {
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let fixture = Fixture::new(FakeNode { is_faulty: true, ..FakeNode::default() });
    let error = fixture.push(pprof_push(pprof())).await.unwrap_err();
    assert_eq!(*fixture.node.are_whole.lock().unwrap(), [true, true], "it is tried once more, with all definitions");
    assert!(matches!(error, PushError::Inconsistent), "{error}");
    let status = Status::from(&error);
    assert_eq!(status.code(), tonic::Code::Internal);
    assert!(status.message().contains("fault of varve"), "{status}");
    let response = crate::api::error::ApiError::from(error);
    assert_eq!((response.status.as_u16(), response.error_type), (500, "internal"));
    let mut metrics = String::new();
    prometheus_client::encoding::text::encode(&mut metrics, &fixture.registry).unwrap();
    assert!(metrics.contains("varve_router_inconsistent_pushes_total{format=\"pprof\"} 1\n"), "{metrics}");
    let lines = log.0.lock().unwrap().clone();
    let [line] = lines.as_slice() else { panic!("one push is one line: {lines:#?}") };
    for part in ["ERROR", "fault of varve", "tenant=", "format=\"pprof\"", "samples=1", "definitions are missing"] {
        assert!(line.contains(part), "{part}: {line}");
    }
}

#[tokio::test]
async fn a_fault_of_varve_is_logged_once_a_second_at_most() {
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let fixture = Fixture::new(FakeNode { is_faulty: true, ..FakeNode::default() });
    let began = Instant::now();
    for _ in 0..3 {
        fixture.push(pprof_push(pprof())).await.unwrap_err();
    }
    let lines = log.0.lock().unwrap().len() as u64;
    assert!(lines <= began.elapsed().as_secs() + 1, "{lines}");
}

// Once, such a push was refused forever: the shard held no definition of the stack, and the router sent none.
#[tokio::test]
async fn a_stack_that_only_a_refused_profile_has_is_not_sent() {
    let fixture = Fixture::new(FakeNode::default());
    let push = async |profiles: &[&[i32]]| {
        let accepted = fixture.push(otlp_push_of(profiles, &[0])).await.unwrap();
        (accepted.rejected_profiles, std::mem::take(&mut *fixture.node.are_whole.lock().unwrap()))
    };
    assert_eq!(push(&[&[1, 3], &[2]]).await, (1, vec![true]));
    assert_eq!(push(&[&[1]]).await, (0, vec![true]), "stack 1 is defined at the first try");
    assert_eq!(push(&[&[1], &[2]]).await, (0, vec![false]));
}

// A client may send one idempotency key with two different pushes. The shard stores nothing of the second push.
#[tokio::test]
async fn stacks_of_a_duplicate_batch_are_not_taken_for_known() {
    let fixture = Fixture::new(FakeNode { is_duplicate: true, ..FakeNode::default() });
    assert_eq!(fixture.are_whole(otlp_push(&[0])).await, [true]);
    assert_eq!(fixture.are_whole(otlp_push(&[0])).await, [true]);
}

// A large batch is split into log entries, at positions that depend on its whole content. A retry must be split at the
// same positions.
#[tokio::test]
async fn large_messages_define_all_stacks() {
    let fixture = Fixture::new(FakeNode::default());
    let mut are_whole = Vec::new();
    for filling in [0, 0, OMITTING_BYTES_MAX - 100, OMITTING_BYTES_MAX] {
        let mut bytes = [pprof().as_slice(), STACK_AND_SAMPLE].concat();
        prost::encoding::bytes::encode(99, &vec![0; filling], &mut bytes);
        are_whole.extend(fixture.are_whole(pprof_push(bytes)).await);
    }
    assert_eq!(are_whole, [true, false, false, true]);
}

// Every partition must hold all stacks that the batch does not define. Once, each such push was refused and sent again.
#[tokio::test]
async fn pushes_that_reach_two_partitions_define_all_stacks() {
    let fixture = Fixture::new(FakeNode::default());
    let mut are_whole = Vec::new();
    // A partition covers six hours, and 22,000 s are more. So that time is always in another partition than now.
    for seconds in [&[0][..], &[0], &[-22_000], &[-22_000, 0]] {
        are_whole.extend(fixture.are_whole(otlp_push(seconds)).await);
    }
    assert_eq!(are_whole, [true, false, true, true]);
}
