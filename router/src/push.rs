//! A push from its body to its acknowledgement: admitted, decoded, written. HTTP and gRPC end here.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;
use proto::{Label, Push, TenantId, limits};

use crate::admission::{Admission, InFlight, Overloaded};
use crate::ingest::unpack::{Encoding, unpack};
use crate::ingest::{IngestError, otlp, pprof};
use crate::nodes::{Nodes, NodesError};
use crate::write::{PushKey, write};

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
    Nodes(#[from] NodesError),
    #[error("decoding stopped: {0}")]
    Stopped(#[from] tokio::task::JoinError),
}

/// How a body is to be read.
#[derive(Debug)]
pub(crate) enum Format {
    OtlpProtobuf,
    OtlpJson,
    Pprof { name: Option<String>, labels: Vec<Label> },
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
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Pusher {
    nodes: Nodes,
    admission: Admission,
    metrics: Arc<Metrics>,
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
        Self { nodes, admission: Admission::default(), metrics: Arc::new(metrics) }
    }

    /// Lets a push in of which this many bytes are here; held until it is acknowledged.
    pub(crate) fn enter(&self, bytes: usize) -> Result<InFlight, Overloaded> {
        self.admission.enter(bytes)
    }

    /// Decodes and stores a body that was let in. When this returns, its samples are durable and every query sees them.
    pub(crate) async fn push(
        &self,
        tenant: &TenantId,
        format: Format,
        encoding: Encoding,
        body: Bytes,
        key: Option<Bytes>,
        in_flight: InFlight,
    ) -> Result<Accepted, PushError> {
        let label = FormatLabel {
            format: match format {
                Format::OtlpProtobuf => "otlp",
                Format::OtlpJson => "otlp_json",
                Format::Pprof { .. } => "pprof",
            },
        };
        let pushed = self.decode_and_write(tenant, format, encoding, body, key, in_flight).await;
        match &pushed {
            Ok(accepted) => {
                self.metrics.pushes.get_or_create(&label).inc();
                self.metrics.samples.get_or_create(&label).inc_by(accepted.samples);
                self.metrics.rejected_profiles.get_or_create(&label).inc_by(accepted.rejected_profiles);
            }
            Err(error) => {
                self.metrics.refused.get_or_create(&label).inc();
                tracing::debug!(format = label.format, %error, "push refused");
            }
        }
        pushed
    }

    async fn decode_and_write(
        &self,
        tenant: &TenantId,
        format: Format,
        encoding: Encoding,
        body: Bytes,
        key: Option<Bytes>,
        mut in_flight: InFlight,
    ) -> Result<Accepted, PushError> {
        let slot = in_flight.decoding_slot().await?;
        let of = tenant.clone();
        let decoded =
            tokio::task::spawn_blocking(move || decode(&of, &format, encoding, &body, key.as_deref())).await?;
        let Decoded { push, id, bytes } = decoded?;
        in_flight.grow(bytes)?;
        drop(slot);
        let accepted = Accepted {
            samples: push.profiles.iter().map(|profile| profile.samples.len() as u64).sum(),
            rejected_profiles: push.rejected,
            warnings: push.warnings.clone(),
        };
        write(&self.nodes, tenant, push, id).await?;
        Ok(accepted)
    }
}

struct Decoded {
    push: Push,
    id: Option<proto::BatchId>,
    bytes: usize,
}

fn decode(
    tenant: &TenantId,
    format: &Format,
    encoding: Encoding,
    body: &[u8],
    key: Option<&[u8]>,
) -> Result<Decoded, IngestError> {
    let now_ns = now_ns();
    let mut unpacked = unpack(body, encoding, limits::PUSH_UNPACKED_BYTES_MAX)?;
    let push = match format {
        Format::OtlpProtobuf => otlp::decode(&unpacked, now_ns)?,
        Format::OtlpJson => {
            unpacked = Cow::Owned(otlp::to_protobuf(&unpacked)?);
            otlp::decode(&unpacked, now_ns)?
        }
        Format::Pprof { name, labels } => pprof::decode(&unpacked, name.as_deref(), labels, now_ns)?,
    };
    let said = match format {
        Format::OtlpProtobuf | Format::OtlpJson => String::new(),
        Format::Pprof { name, labels } => format!("{name:?} {labels:?}"),
    };
    let id = match key {
        Some(key) => Some(PushKey::Client(key).id(tenant)),
        None => push.has_own_times.then(|| PushKey::Content(&[said.as_bytes(), &unpacked]).id(tenant)),
    };
    Ok(Decoded { push, id, bytes: unpacked.len() })
}

/// The receiver's clock, nanoseconds since 1970.
fn now_ns() -> i64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since_1970.as_nanos()).unwrap_or(i64::MAX)
}
