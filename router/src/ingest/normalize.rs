//! Normalize: the fourth step of a push.
//!
//! This step builds a [`proto::Push`] from a message of any format, within limits.

mod advice;
mod builder;
mod frames;
mod otlp;
mod pprof;
mod stacks;

use std::time::{SystemTime, UNIX_EPOCH};

use proto::placement::Placement;
use proto::{Push, TenantId, limits};

use self::builder::Builder;
use crate::ingest::decode::Decoded;
use crate::ingest::error::{IngestError, PPROF_FORMAT, ProfileError};
use crate::ingest::known_stacks::{DefinitionPlan, KnownStacks, StackKey};

/// Largest message for which definitions of stacks may be omitted, in bytes. A larger message defines all its stacks.
///
/// A batch that does not fit into one log entry is split, at positions that depend on its content. A retry must be
/// split at the same positions, so a batch that might be split omits no definition. A definition takes at most ten
/// times as many bytes as in the message; the worst case is a stack of one frame. So the definitions of a message of
/// this size take at most 10/16 of a log entry, and 6/16 remain for all other data.
pub(super) const OMITTING_BYTES_MAX: usize = limits::ENTRY_BYTES_MAX / 16;

/// A push in normal form, and the stacks that it defines.
#[derive(Debug)]
pub(crate) struct Normalized {
    pub(crate) push: Push,
    /// Stacks that the push defines.
    pub(crate) defined: Vec<StackKey>,
}

/// The tenant of a push, and the shard of each service.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Destination<'d> {
    pub(crate) tenant: &'d TenantId,
    pub(crate) placement: &'d Placement,
}

/// Builds the normal form of a message of `message_bytes` bytes, which arrived at `now_ns`.
///
/// `known` contains the stacks that the push need not define. `None` means that the push defines all stacks.
///
/// # Errors
/// Returns [`IngestError::NothingAccepted`] if every profile was refused, and [`IngestError::Malformed`] for a broken
/// pprof file.
pub(crate) fn normalize(
    decoded: &Decoded<'_>,
    message_bytes: usize,
    now_ns: i64,
    destination: Destination<'_>,
    known: Option<&KnownStacks>,
) -> Result<Normalized, IngestError> {
    let known = known.filter(|_| message_bytes <= OMITTING_BYTES_MAX);
    let build = |known| {
        let mut plan = DefinitionPlan::new(known, destination.tenant, destination.placement);
        let push = push_of(decoded, now_ns, &mut plan)?;
        Ok::<_, IngestError>((push, plan))
    };
    let (mut push, mut plan) = build(known)?;
    if known.is_some() && (plan.is_spread() || push.memory_bytes() > 6 * OMITTING_BYTES_MAX) {
        (push, plan) = build(None)?;
    }
    Ok(Normalized { push, defined: plan.into_defined() })
}

fn push_of(decoded: &Decoded<'_>, now_ns: i64, plan: &mut DefinitionPlan<'_>) -> Result<Push, IngestError> {
    let mut builder = Builder::new(now_ns);
    match decoded {
        Decoded::Otlp(request) => otlp::add(request, &mut builder, plan),
        Decoded::Pprof { file, name, labels } => {
            let malformed =
                |error: ProfileError| IngestError::Malformed { format: PPROF_FORMAT, detail: error.to_string() };
            pprof::add(file, *name, labels, &mut builder, plan).map_err(malformed)?;
        }
    }
    builder.finish()
}

/// Returns the time of the router's clock, in nanoseconds since 1970.
pub(super) fn now_ns() -> i64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since_1970.as_nanos()).unwrap_or(i64::MAX)
}
