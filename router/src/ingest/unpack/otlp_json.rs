//! Conversion of OTLP in JSON to protobuf, with OTLP's own descriptors. The result is then decoded as protobuf.
//!
//! The JSON of OTLP differs from the JSON of protobuf in one point: IDs are hexadecimal instead of base64.

use base64::Engine as _;
use prost::Message;
use prost_reflect::{DescriptorPool, DeserializeOptions, DynamicMessage};
use proto::build_id::from_hex;
use serde_json::Value as Json;

use crate::ingest::error::{IngestError, OTLP_FORMAT};

/// Largest body in JSON, in bytes. The conversion takes about 30 times as much memory.
const JSON_BYTES_MAX: usize = 8 << 20;

const REQUEST: &str = "opentelemetry.proto.collector.profiles.v1development.ExportProfilesServiceRequest";

/// Converts an export request from JSON to protobuf, in layout 1.11.
pub(crate) fn to_protobuf(body: &[u8]) -> Result<Vec<u8>, IngestError> {
    if body.len() > JSON_BYTES_MAX {
        return Err(IngestError::TooLarge { bytes_max: JSON_BYTES_MAX });
    }
    let malformed = |detail: String| IngestError::Malformed { format: OTLP_FORMAT, detail };
    let mut json: Json = serde_json::from_slice(body).map_err(|error| malformed(error.to_string()))?;
    ids_to_base64(&mut json);
    let pool =
        DescriptorPool::decode(proto::otlp::FILE_DESCRIPTOR_SET).map_err(|error| malformed(error.to_string()))?;
    let request = pool.get_message_by_name(REQUEST).ok_or_else(|| malformed(format!("{REQUEST} is not described")))?;
    let options = DeserializeOptions::new().deny_unknown_fields(false);
    let message = DynamicMessage::deserialize_with_options(request, json, &options);
    Ok(message.map_err(|error| malformed(error.to_string()))?.encode_to_vec())
}

/// Rewrites hexadecimal IDs as base64. Other IDs stay as they are, and the conversion then reads them as base64.
fn ids_to_base64(json: &mut Json) {
    match json {
        Json::Array(elements) => elements.iter_mut().for_each(ids_to_base64),
        Json::Object(fields) => {
            for (name, value) in fields {
                let is_id =
                    matches!(name.as_str(), "traceId" | "spanId" | "profileId" | "trace_id" | "span_id" | "profile_id");
                match value.as_str().filter(|_| is_id).and_then(from_hex) {
                    Some(bytes) => *value = Json::String(base64::engine::general_purpose::STANDARD.encode(bytes)),
                    None => ids_to_base64(value),
                }
            }
        }
        _ => {}
    }
}
