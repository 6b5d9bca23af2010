//! The response to an OTLP export that was stored.

use proto::otlp::collector::profiles::v1development::{ExportProfilesPartialSuccess, ExportProfilesServiceResponse};

use crate::ingest::push::Accepted;

/// Returns the message of the response, which is the same over gRPC and HTTP. Refused profiles and warnings are
/// reported as a partial success.
pub(crate) fn response(accepted: &Accepted) -> ExportProfilesServiceResponse {
    let says_something = accepted.rejected_profiles > 0 || !accepted.warnings.is_empty();
    let partial_success = says_something.then(|| ExportProfilesPartialSuccess {
        rejected_profiles: i64::try_from(accepted.rejected_profiles).unwrap_or(i64::MAX),
        error_message: accepted.warnings.join("; "),
    });
    ExportProfilesServiceResponse { partial_success }
}
