//! A push from its body to its acknowledgement: admitted, decoded, written. HTTP and gRPC end here.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use axum::http::HeaderMap;
use bytes::Bytes;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use proto::placement::Placement;
use proto::{BatchId, Label, Push, TenantId, limits};

use crate::ingest::admission::{Admission, InFlight, Overloaded};
use crate::ingest::decode::otlp::json;
use crate::ingest::error::IngestError;
use crate::ingest::known_stacks::{Key, Knowledge, KnownStacks};
use crate::ingest::normalize::{otlp, pprof};
use crate::ingest::place::{PushKey, Written, write};
use crate::ingest::receive::BodyError;
use crate::ingest::refusal_log::RefusalLog;
use crate::ingest::unpack::{Encoding, unpack};
use crate::nodes::{Nodes, NodesError};

/// What became of a push.
#[derive(Debug, Default)]
pub(crate) struct Accepted {
    pub(crate) samples: u64,
    pub(crate) rejected_profiles: u64,
    pub(crate) warnings: Vec<String>,
}

/// Why a push is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PushError {
    #[error(transparent)]
    Ingest(#[from] IngestError),
    #[error(transparent)]
    Overloaded(#[from] Overloaded),
    #[error(transparent)]
    Body(#[from] BodyError),
    #[error(
        "the Idempotency-Key must have 1 to {} bytes: leave it out, or send what no other push has",
        limits::IDEMPOTENCY_KEY_BYTES_MAX
    )]
    Key,
    #[error(
        "all {samples} samples are older than what is kept, {}: send newer ones, or start varve with a longer --retention",
        days(*retention)
    )]
    TooOld { samples: u64, retention: Duration },
    #[error(transparent)]
    Nodes(#[from] NodesError),
    #[error("decoding stopped: {0}")]
    Stopped(#[from] tokio::task::JoinError),
    /// A retry of the same push meets the same fault, so the sender must not be told to send it again.
    #[error(
        "this push is valid, and a fault of varve keeps it from being stored (a shard lacks definitions although all were \
         sent): sending it again does not help; report it with the server's log of this moment"
    )]
    Inconsistent,
}

/// A body, and what its request says about it.
#[derive(Debug)]
pub(crate) struct PushBody {
    pub(crate) format: Format,
    pub(crate) encoding: Encoding,
    pub(crate) bytes: Bytes,
    /// The client's key.
    pub(crate) key: Option<Bytes>,
}

/// The client's key: an HTTP header, or gRPC metadata. An empty one would make all pushes that have it the same.
pub(crate) fn client_key(headers: &HeaderMap) -> Result<Option<Bytes>, PushError> {
    let key = headers.get("idempotency-key").map(|key| Bytes::copy_from_slice(key.as_bytes()));
    match &key {
        Some(key) if key.is_empty() || key.len() > limits::IDEMPOTENCY_KEY_BYTES_MAX => Err(PushError::Key),
        _ => Ok(key),
    }
}

/// What a body is.
#[derive(Debug)]
pub(crate) enum Format {
    OtlpProtobuf,
    OtlpJson,
    Pprof { name: Option<String>, labels: Vec<Label> },
}

impl Format {
    /// As metrics and the log have it.
    fn name(&self) -> &'static str {
        match self {
            Self::OtlpProtobuf => "otlp",
            Self::OtlpJson => "otlp_json",
            Self::Pprof { .. } => "pprof",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FormatLabel {
    format: &'static str,
}

#[derive(Clone, Debug, Default)]
struct Metrics {
    pushes: Family<FormatLabel, Counter<u64, AtomicU64>>,
    refused: Family<FormatLabel, Counter<u64, AtomicU64>>,
    samples: Family<FormatLabel, Counter<u64, AtomicU64>>,
    rejected_profiles: Family<FormatLabel, Counter<u64, AtomicU64>>,
    inconsistent: Family<FormatLabel, Counter<u64, AtomicU64>>,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Pusher {
    nodes: Nodes,
    admission: Admission,
    known_stacks: Arc<KnownStacks>,
    metrics: Arc<Metrics>,
    refusal_log: Arc<RefusalLog>,
}

impl Pusher {
    /// Writes to these nodes; counts in this registry, under `varve_router`.
    #[must_use]
    pub fn new(nodes: Nodes, registry: &mut Registry) -> Self {
        let metrics = Metrics::default();
        let registry = registry.sub_registry_with_prefix("varve_router");
        registry.register("pushes", "Pushes acknowledged", metrics.pushes.clone());
        registry.register("pushes_refused", "Pushes refused as a whole", metrics.refused.clone());
        registry.register("pushed_samples", "Samples acknowledged", metrics.samples.clone());
        registry.register(
            "rejected_profiles",
            "Profiles refused out of pushes that were accepted",
            metrics.rejected_profiles.clone(),
        );
        registry.register(
            "inconsistent_pushes",
            "Valid pushes that were not stored because of a fault of varve, which the log describes",
            metrics.inconsistent.clone(),
        );
        let known_stacks = Arc::new(KnownStacks::default());
        Self {
            nodes,
            admission: Admission::default(),
            known_stacks,
            metrics: Arc::new(metrics),
            refusal_log: Arc::default(),
        }
    }

    /// Lets a push in of which this many bytes are here; held until it is acknowledged.
    pub(crate) fn enter(&self, bytes: usize) -> Result<InFlight, Overloaded> {
        self.admission.enter(bytes)
    }

    /// Decodes and stores a body that was let in. When this returns, its samples are durable and every query sees them.
    pub(crate) async fn push(
        &self,
        tenant: &TenantId,
        body: PushBody,
        in_flight: InFlight,
    ) -> Result<Accepted, PushError> {
        let label = FormatLabel { format: body.format.name() };
        let pushed = self.decode_and_write(tenant, body, in_flight).await;
        match &pushed {
            Ok(accepted) => {
                self.metrics.pushes.get_or_create(&label).inc();
                self.metrics.samples.get_or_create(&label).inc_by(accepted.samples);
                self.metrics.rejected_profiles.get_or_create(&label).inc_by(accepted.rejected_profiles);
            }
            Err(error) => {
                self.metrics.refused.get_or_create(&label).inc();
                if let Some(suppressed) = self.refusal_log.admit(Instant::now()) {
                    tracing::warn!(tenant = tenant.as_str(), format = label.format, %error, suppressed, "push refused");
                }
            }
        }
        pushed
    }

    async fn decode_and_write(
        &self,
        tenant: &TenantId,
        body: PushBody,
        in_flight: InFlight,
    ) -> Result<Accepted, PushError> {
        let body = Arc::new(body);
        let mut written = Written::default();
        let (in_flight, decoded) = self.decode(tenant, &body, in_flight, Some(Arc::clone(&self.known_stacks))).await?;
        let mut accepted = decoded.accepted();
        let Decoded { push, id, mut told } = decoded;
        let mut outcome = write(&self.nodes, tenant, push, id, &mut written).await;
        if outcome.as_ref().is_err_and(NodesError::is_dangling) {
            // A shard does not hold what it told us that it holds: it was dropped, or is another machine's. So all of it.
            let (_in_flight, decoded) = self.decode(tenant, &body, in_flight, None).await?;
            accepted = decoded.accepted();
            told = decoded.told;
            outcome = write(&self.nodes, tenant, decoded.push, id, &mut written).await;
            if let Err(error) = &outcome
                && error.is_dangling()
            {
                return Err(self.inconsistent(tenant, body.format.name(), &accepted, told.len(), error));
            }
        }
        outcome?;
        let Written { samples_too_old, retention, is_duplicate, .. } = written;
        // A shard that knows the batch's id takes nothing of it, and the batch with that id may have been another.
        if samples_too_old == 0 && !is_duplicate {
            self.known_stacks.add(&told);
        }
        if samples_too_old > 0 {
            if samples_too_old == accepted.samples {
                return Err(PushError::TooOld { samples: samples_too_old, retention });
            }
            accepted.samples = accepted.samples.saturating_sub(samples_too_old);
            let kept = days(retention);
            accepted
                .warnings
                .push(format!("{samples_too_old} samples are left out: they are older than what is kept, {kept}"));
        }
        Ok(accepted)
    }

    /// Counts and logs a shard that lacks definitions although it was sent all of them.
    fn inconsistent(
        &self,
        tenant: &TenantId,
        format: &'static str,
        accepted: &Accepted,
        stacks: usize,
        error: &NodesError,
    ) -> PushError {
        self.metrics.inconsistent.get_or_create(&FormatLabel { format }).inc();
        let &Accepted { samples, rejected_profiles, .. } = accepted;
        tracing::error!(
            tenant = tenant.as_str(),
            format,
            samples,
            rejected_profiles,
            stacks,
            %error,
            "a push that defines all its stacks was refused for missing definitions: this is a fault of varve"
        );
        PushError::Inconsistent
    }

    /// `known`: what need not be defined; `None`: everything is.
    async fn decode(
        &self,
        tenant: &TenantId,
        body: &Arc<PushBody>,
        in_flight: InFlight,
        known: Option<Arc<KnownStacks>>,
    ) -> Result<(InFlight, Decoded), PushError> {
        let (tenant, body, nodes) = (tenant.clone(), Arc::clone(body), self.nodes.clone());
        let work =
            move |in_flight: &mut InFlight| decode(&tenant, nodes.placement(), &body, in_flight, known.as_deref());
        let (in_flight, decoded) = in_flight.decode(work).await?;
        Ok((in_flight, decoded?))
    }
}

/// A body that was decoded.
#[derive(Debug)]
struct Decoded {
    push: Push,
    id: Option<BatchId>,
    /// The stacks that it defines.
    told: Vec<Key>,
}

impl Decoded {
    fn accepted(&self) -> Accepted {
        Accepted {
            samples: self.push.profiles.iter().map(|profile| profile.samples.len() as u64).sum(),
            rejected_profiles: self.push.rejected,
            warnings: self.push.warnings.clone(),
        }
    }
}

/// A time for people: `30 days`, or seconds where it is no whole number of days.
fn days(time: Duration) -> String {
    let (days, rest) = (time.as_secs() / 86_400, time.as_secs() % 86_400);
    if days > 0 && rest == 0 { format!("{days} days") } else { format!("{} seconds", time.as_secs()) }
}

/// Of a larger message all is defined. A batch that does not fit into one entry is cut, and where depends on all that it can hold:
/// so that a retry is cut in the same places, nothing is left out of one that might be. Defined and encoded, an entry of a
/// dictionary takes less than ten times the bytes in which it was sent, a stack of one frame most; the other six parts are for all
/// else.
const DEFINED_IN_PART_BYTES_MAX: usize = limits::ENTRY_BYTES_MAX / 16;

/// Unpacks and decodes. What it was unpacked to is counted before anything is made of it.
fn decode(
    tenant: &TenantId,
    placement: &Placement,
    body: &PushBody,
    in_flight: &mut InFlight,
    known: Option<&KnownStacks>,
) -> Result<Decoded, PushError> {
    let now_ns = now_ns();
    let unpacked = unpack(&body.bytes, body.encoding, limits::PUSH_UNPACKED_BYTES_MAX)?;
    let bytes = body.bytes.len() + unpacked.len();
    in_flight.grow_to(bytes)?;
    let message = match &body.format {
        Format::OtlpProtobuf => Cow::Borrowed(&*unpacked),
        Format::OtlpJson => Cow::Owned(json::to_protobuf(&unpacked)?),
        Format::Pprof { .. } => pprof::message(&unpacked)?,
    };
    if let Cow::Owned(message) = &message {
        in_flight.grow_to(bytes + message.len())?;
    }
    let read = |knowledge: &mut Knowledge<'_>| match &body.format {
        Format::OtlpProtobuf => otlp::decode(&message, now_ns, knowledge),
        Format::OtlpJson => otlp::decode_json(&message, now_ns, knowledge),
        Format::Pprof { name, labels } => pprof::decode(&message, name.as_deref(), labels, now_ns, knowledge),
    };
    let known = known.filter(|_| message.len() <= DEFINED_IN_PART_BYTES_MAX);
    let mut knowledge = Knowledge::new(known, tenant, placement);
    let mut push = read(&mut knowledge)?;
    if known.is_some() && (knowledge.is_spread() || push.memory_bytes() > 6 * DEFINED_IN_PART_BYTES_MAX) {
        knowledge = Knowledge::new(None, tenant, placement);
        push = read(&mut knowledge)?;
    }
    let id = match &body.key {
        Some(key) => Some(PushKey::Client(key).id(tenant)),
        None if push.has_own_times => Some(content_id(tenant, &body.format, &message)),
        None => None,
    };
    Ok(Decoded { push, id, told: knowledge.told() })
}

/// A push is its message, the same however it was packed, and what was said beside it.
fn content_id(tenant: &TenantId, format: &Format, message: &[u8]) -> BatchId {
    let said = match format {
        Format::Pprof { name, labels } => format!("{name:?} {labels:?}"),
        Format::OtlpProtobuf | Format::OtlpJson => String::new(),
    };
    PushKey::Content(&[said.as_bytes(), message]).id(tenant)
}

/// The receiver's clock, nanoseconds since 1970.
fn now_ns() -> i64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since_1970.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use proto::{
        Answer, Appended, Batch, KnownLocations, LocationPage, Matcher, Selection, SeriesAnswer, Shards, Window,
    };
    use tonic::Status;

    use super::*;
    use crate::ingest::admission::Admission;

    /// A pprof of one sample.
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

    fn body(bytes: Vec<u8>, encoding: Encoding) -> PushBody {
        let format = Format::Pprof { name: None, labels: vec![Label::new("service_name", "s")] };
        PushBody { format, encoding, bytes: bytes.into(), key: None }
    }

    #[test]
    fn a_pprof_is_the_same_push_however_it_is_packed_and_counts_as_what_is_in_it() {
        let (pprof, admission) = (pprof(), Admission::default());
        let tenant = TenantId::default_tenant();
        let id = |body: PushBody| {
            let mut in_flight = admission.enter(body.bytes.len()).unwrap();
            decode(&tenant, &Placement::single_shard(), &body, &mut in_flight, None).unwrap().id.unwrap()
        };
        let plain = id(body(pprof.clone(), Encoding::Identity));
        for packed in [gzip(&pprof, 1), gzip(&pprof, 0), zstd::encode_all(pprof.as_slice(), 1).unwrap()] {
            assert_eq!(id(body(packed, Encoding::Identity)), plain);
        }
        assert_eq!(id(body(gzip(&gzip(&pprof, 6), 6), Encoding::Gzip)), plain);

        // A field that nobody knows makes it large.
        let mut large = pprof;
        prost::encoding::bytes::encode(99, &vec![0; 10 << 20], &mut large);
        let mut in_flight = admission.enter(0).unwrap();
        let before = admission.free_bytes();
        let body = body(gzip(&large, 6), Encoding::Identity);
        decode(&tenant, &Placement::single_shard(), &body, &mut in_flight, None).unwrap();
        assert!(before - admission.free_bytes() >= 10 << 20);
    }

    #[test]
    fn a_key_has_a_length() {
        let key =
            |key: &str| client_key(&HeaderMap::from_iter([("idempotency-key".parse().unwrap(), key.parse().unwrap())]));
        assert_eq!(key("a").unwrap().unwrap(), "a");
        assert_eq!(client_key(&HeaderMap::new()).unwrap(), None);
        assert!(matches!(key(""), Err(PushError::Key)));
        assert!(matches!(key(&"x".repeat(limits::IDEMPOTENCY_KEY_BYTES_MAX + 1)), Err(PushError::Key)));
    }

    /// A node that keeps ten days, of which so many samples are older, and which holds no stack that it was not told.
    #[derive(Default)]
    struct Forgetful {
        samples_too_old: u64,
        told: std::sync::Mutex<std::collections::HashSet<proto::StackHash>>,
        /// Whether each batch was whole, in the order of coming.
        batches: std::sync::Mutex<Vec<bool>>,
        /// It says of every batch that definitions are missing.
        is_faulty: bool,
        /// It says of every batch that it has one with the same id.
        is_duplicate: bool,
    }

    #[tonic::async_trait]
    impl Shards for Forgetful {
        async fn delete(&self, _shard: u32, _deletion: proto::Deletion) -> Result<proto::Deleted, Status> {
            Err(Status::unimplemented("not asked for here"))
        }

        async fn administer(&self, _shard: u32, _task: proto::AdministrationTask) -> Result<String, Status> {
            Err(Status::unimplemented("not asked for here"))
        }

        async fn append(&self, _shard: u32, _placement_epoch: u64, batch: Batch) -> Result<Appended, Status> {
            let stacks = || batch.dictionary.stacks.iter().skip(1);
            self.batches.lock().unwrap().push(stacks().all(|(_, stack)| stack.is_some()));
            let mut told = self.told.lock().unwrap();
            if self.is_faulty || stacks().any(|(hash, stack)| stack.is_none() && !told.contains(hash)) {
                return Err(Status::aborted("send it with all of them"));
            }
            told.extend(stacks().map(|(hash, _)| *hash));
            let samples_too_old = self.samples_too_old;
            let retention = Duration::from_secs(864_000);
            Ok(Appended { duplicate: self.is_duplicate, samples_too_old, retention })
        }

        async fn select(&self, _shard: u32, _selection: Selection) -> Result<Answer, Status> {
            Err(Status::unimplemented(""))
        }

        async fn locations(&self, _: u32, _: TenantId, _: KnownLocations) -> Result<LocationPage, Status> {
            Err(Status::unimplemented(""))
        }

        async fn series(&self, _: u32, _: TenantId, _: Vec<Matcher>, _: Window) -> Result<SeriesAnswer, Status> {
            Err(Status::unimplemented(""))
        }
    }

    #[tokio::test]
    async fn samples_that_are_older_than_the_retention_are_told() {
        let push = async |samples_too_old, samples| {
            let nodes = Nodes::local(Arc::new(Forgetful { samples_too_old, ..Forgetful::default() }));
            let pusher = Pusher::new(nodes, &mut Registry::default());
            let in_flight = pusher.enter(0).unwrap();
            let mut bytes = pprof();
            for _ in 1..samples {
                bytes.extend(b"\x12\x03\x12\x01\x05");
            }
            pusher.push(&TenantId::default_tenant(), body(bytes, Encoding::Identity), in_flight).await
        };
        assert_eq!(push(0, 2).await.unwrap().warnings, Vec::<String>::new());
        let some = push(1, 3).await.unwrap();
        assert_eq!(some.samples, 2);
        assert_eq!(some.warnings, ["1 samples are left out: they are older than what is kept, 10 days"]);
        let none = push(2, 2).await.unwrap_err().to_string();
        assert!(none.contains("all 2 samples") && none.contains("10 days"), "{none}");
    }

    #[tokio::test]
    async fn a_stack_is_told_once_and_again_to_a_shard_that_lost_it() {
        let node = Arc::new(Forgetful::default());
        let pusher = Pusher::new(Nodes::local(Arc::clone(&node) as Arc<dyn Shards>), &mut Registry::default());
        let batches = async || {
            // A stack of one location, without a mapping.
            let mut bytes = pprof();
            bytes.extend(b"\x22\x04\x08\x01\x18\x07\x12\x06\x0a\x01\x01\x12\x01\x05");
            let (body, in_flight) = (body(bytes, Encoding::Identity), pusher.enter(0).unwrap());
            assert_eq!(pusher.push(&TenantId::default_tenant(), body, in_flight).await.unwrap().samples, 2);
            std::mem::take(&mut *node.batches.lock().unwrap())
        };
        assert_eq!(batches().await, [true]);
        assert_eq!(batches().await, [false]);
        node.told.lock().unwrap().clear();
        assert_eq!(batches().await, [false, true], "refused, and sent again with everything");
        assert_eq!(batches().await, [false]);
    }

    // A sender that was told to try again would do so for ever.
    #[tokio::test]
    async fn a_fault_of_varve_is_not_answered_as_if_a_retry_could_help() {
        let node = Arc::new(Forgetful { is_faulty: true, ..Forgetful::default() });
        let mut registry = Registry::default();
        let pusher = Pusher::new(Nodes::local(Arc::clone(&node) as Arc<dyn Shards>), &mut registry);
        let in_flight = pusher.enter(0).unwrap();
        let refused = pusher.push(&TenantId::default_tenant(), body(pprof(), Encoding::Identity), in_flight).await;
        let error = refused.unwrap_err();
        assert_eq!(*node.batches.lock().unwrap(), [true, true], "it is tried once more, with all definitions");
        assert!(matches!(error, PushError::Inconsistent), "{error}");
        let status = tonic::Status::from(&error);
        assert_eq!(status.code(), tonic::Code::Internal);
        assert!(status.message().contains("fault of varve"), "{status}");
        let answer = crate::api::error::ApiError::from(error);
        assert_eq!((answer.status.as_u16(), answer.error_type), (500, "internal"));
        let mut metrics = String::new();
        prometheus_client::encoding::text::encode(&mut metrics, &registry).unwrap();
        assert!(metrics.contains("varve_router_inconsistent_pushes_total{format=\"pprof\"} 1\n"), "{metrics}");
    }

    // Such a push was refused for ever: the shard held no definition of the stack, and the push never had one.
    #[tokio::test]
    async fn a_stack_that_only_a_refused_profile_has_is_not_sent() {
        let node = Arc::new(Forgetful::default());
        let pusher = Pusher::new(Nodes::local(Arc::clone(&node) as Arc<dyn Shards>), &mut Registry::default());
        let batches = async |profiles: &[&[i32]]| {
            let in_flight = pusher.enter(0).unwrap();
            let accepted = pusher.push(&TenantId::default_tenant(), otlp_of(profiles, &[0]), in_flight).await.unwrap();
            (accepted.rejected_profiles, std::mem::take(&mut *node.batches.lock().unwrap()))
        };
        assert_eq!(batches(&[&[1, 3], &[2]]).await, (1, vec![true]));
        assert_eq!(batches(&[&[1]]).await, (0, vec![true]), "stack 1 is defined at the first try");
        assert_eq!(batches(&[&[1], &[2]]).await, (0, vec![false]));
    }

    // A client may use a key for two pushes: the shard takes nothing of the second one.
    #[tokio::test]
    async fn stacks_of_a_push_whose_key_is_known_are_not_taken_for_known() {
        let node = Arc::new(Forgetful { is_duplicate: true, ..Forgetful::default() });
        let pusher = Pusher::new(Nodes::local(Arc::clone(&node) as Arc<dyn Shards>), &mut Registry::default());
        for _ in 0..2 {
            let in_flight = pusher.enter(0).unwrap();
            pusher.push(&TenantId::default_tenant(), otlp(&[0]), in_flight).await.unwrap();
        }
        assert_eq!(*node.batches.lock().unwrap(), [true, true], "both define the stack");
    }

    // Where a batch is cut into entries depends on all of it, and a retry must be cut in the same places.
    #[test]
    fn of_a_large_message_everything_is_told() {
        let (known, tenant, admission) = (KnownStacks::default(), TenantId::default_tenant(), Admission::default());
        let is_whole = |filling: usize| {
            let mut bytes = pprof();
            bytes.extend(b"\x22\x04\x08\x01\x18\x07\x12\x06\x0a\x01\x01\x12\x01\x05");
            prost::encoding::bytes::encode(99, &vec![0; filling], &mut bytes);
            let (body, mut in_flight) = (body(bytes, Encoding::Identity), admission.enter(0).unwrap());
            let decoded = decode(&tenant, &Placement::single_shard(), &body, &mut in_flight, Some(&known)).unwrap();
            known.add(&decoded.told);
            decoded.push.dictionary.stacks.iter().skip(1).all(|(_, stack)| stack.is_some())
        };
        assert_eq!(
            [0, 0, DEFINED_IN_PART_BYTES_MAX - 100, DEFINED_IN_PART_BYTES_MAX].map(is_whole),
            [true, false, false, true]
        );
    }

    /// An export request with samples of one stack at these times, in seconds of now.
    fn otlp(seconds: &[i64]) -> PushBody {
        otlp_of(&[&[1]], seconds)
    }

    /// An export request with a profile for each list of stacks, of one location each; stack 3 refers to none that is there.
    fn otlp_of(stacks: &[&[i32]], seconds: &[i64]) -> PushBody {
        use proto::otlp::collector::profiles::v1development::ExportProfilesServiceRequest;
        use proto::otlp::profiles::v1development::{
            Location, Profile, ProfilesDictionary, ResourceProfiles, Sample, ScopeProfiles, Stack,
        };
        let times: Vec<u64> = seconds.iter().map(|second| (now_ns() + second * 1_000_000_000) as u64).collect();
        let sample =
            |&stack: &i32| Sample { stack_index: stack, timestamps_unix_nano: times.clone(), ..Sample::default() };
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
        let bytes = prost::Message::encode_to_vec(&request).into();
        PushBody { format: Format::OtlpProtobuf, encoding: Encoding::Identity, bytes, key: None }
    }

    // Found by review: each of its partitions must hold what the batch leaves out, so it was refused and sent again every time.
    #[test]
    fn of_a_push_that_reaches_two_partitions_everything_is_told() {
        let (known, tenant, admission) = (KnownStacks::default(), TenantId::default_tenant(), Admission::default());
        let is_whole = |seconds: &[i64]| {
            let mut in_flight = admission.enter(0).unwrap();
            let decoded = decode(&tenant, &Placement::single_shard(), &otlp(seconds), &mut in_flight, Some(&known));
            let decoded = decoded.unwrap();
            known.add(&decoded.told);
            decoded.push.dictionary.stacks.iter().skip(1).all(|(_, stack)| stack.is_some())
        };
        // Six hours and a bit before is another partition, whenever this runs.
        assert_eq!([&[0][..], &[0], &[-22_000], &[-22_000, 0]].map(is_whole), [true, false, true, true]);
    }
}
