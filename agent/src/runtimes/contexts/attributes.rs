//! Attributes that a program publishes for readers outside: OpenTelemetry's process context (OTEP 4719).
//!
//! The context is at the start of a mapping that has a certain name ([`Maps::context`]). Its numbers have the byte
//! order of the machine:
//!
//! | `OTEL_CTX` | version: u32 | bytes of the payload: u32 | time of publication, ns: u64 | payload's address: u64 |
//!
//! The payload is a protobuf message. Its field 1 is the resource of the program, as OTLP has it. While the program
//! changes its context, the time is 0. Each publication has another time.
//!
//! Invariant: attributes are bounded for any memory. If the program follows the protocol, all are of one publication.
//!
//! [`Maps::context`]: crate::process::maps::Maps::context

use std::time::Duration;

use prost::Message;
use proto::otlp::common::v1::{AnyValue, any_value::Value};
use proto::otlp::resource::v1::Resource;

use crate::process::environment::{ATTRIBUTES_MAX, fits};
use crate::runtimes::memory::ProcessMemory;

const SIGNATURE: [u8; 8] = *b"OTEL_CTX";
const VERSION: u32 = 2;
const HEADER_BYTES: usize = 32;
const SERVICE_NAME: &str = "service.name";
/// Beginning of the name that OpenTelemetry's libraries give to a service that has none.
const UNKNOWN_SERVICE: &str = "unknown_service";
/// Size of the largest payload that is read, in bytes. The reader of OpenTelemetry's profiler has the same limit.
const PAYLOAD_BYTES_MAX: u32 = 64 << 10;
/// Largest size of all keys and values that are kept, in bytes. Attributes beyond it are omitted.
const KEPT_BYTES_MAX: usize = 8 << 10;
/// Number of attempts to read a context that changes meanwhile.
const TRIES: u32 = 3;
/// Time between two attempts: the program may have to wait for a CPU.
const PAUSE: Duration = Duration::from_millis(2);

/// Attributes that a program has published.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Published {
    /// Time of publication. It is compared only for equality.
    pub(super) at_ns: u64,
    /// Attributes of the service first, then all others, in the order of the program. Keys are unique.
    pub(super) attributes: Vec<(String, String)>,
}

/// The payload.
#[derive(Clone, PartialEq, Message)]
struct ProcessContext {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
}

/// The start of a context.
#[derive(Debug, PartialEq, Eq)]
struct Header {
    payload_bytes: u32,
    published_ns: u64,
    payload: u64,
}

impl Header {
    /// Reads the header at an address. `None` if there is none, or one of another version.
    fn read(memory: &ProcessMemory, address: u64) -> Option<Self> {
        let bytes: [u8; HEADER_BYTES] = memory.array(address)?;
        let number = |at: usize| bytes[at..].first_chunk().map(|bytes| u64::from_ne_bytes(*bytes));
        let short = |at: usize| bytes[at..].first_chunk().map(|bytes| u32::from_ne_bytes(*bytes));
        let (version, payload_bytes) = (short(8)?, short(12)?);
        let is_valid = bytes.starts_with(&SIGNATURE) && version == VERSION && payload_bytes <= PAYLOAD_BYTES_MAX;
        is_valid.then_some(Self { payload_bytes, published_ns: number(16)?, payload: number(24)? })
    }
}

/// Reads the context at an address. `None` if there is none that is valid, if the program changes it all the time, or
/// if it was published at the time `known_ns`.
pub(super) fn read(memory: &ProcessMemory, address: u64, known_ns: Option<u64>) -> Option<Published> {
    for index in 0..TRIES {
        if index != 0 {
            std::thread::sleep(PAUSE);
        }
        let header = Header::read(memory, address)?;
        if known_ns == Some(header.published_ns) {
            return None;
        }
        if header.published_ns == 0 {
            continue;
        }
        let mut payload = vec![0; header.payload_bytes as usize];
        let is_read = memory.read(header.payload, &mut payload);
        if Header::read(memory, address)? == header {
            let attributes = is_read.then(|| attributes(&payload))??;
            return Some(Published { at_ns: header.published_ns, attributes });
        }
    }
    None
}

/// Returns the attributes of a payload that have one value. `None` if the payload is not valid.
fn attributes(payload: &[u8]) -> Option<Vec<(String, String)>> {
    let resource = ProcessContext::decode(payload).ok()?.resource.unwrap_or_default();
    let all = resource.attributes.into_iter().filter_map(|attribute| {
        let (key, value) = (attribute.key, attribute.value.and_then(text)?);
        let (key, value) = (key.trim(), value.trim());
        let is_default = key == SERVICE_NAME && value.starts_with(UNKNOWN_SERVICE);
        (fits(key, value) && !is_default).then(|| (key.to_owned(), value.to_owned()))
    });
    let (of_service, others): (Vec<_>, Vec<_>) = all.partition(|(key, _)| key.starts_with("service."));
    let (mut attributes, mut bytes) = (Vec::<(String, String)>::new(), 0);
    for (key, value) in of_service.into_iter().chain(others) {
        let is_new = attributes.iter().all(|(known, _)| *known != key);
        let with_it = bytes + key.len() + value.len();
        if is_new && attributes.len() < ATTRIBUTES_MAX && with_it <= KEPT_BYTES_MAX {
            bytes = with_it;
            attributes.push((key, value));
        }
    }
    Some(attributes)
}

/// Returns a value as text; `None` for lists and bytes.
fn text(value: AnyValue) -> Option<String> {
    match value.value? {
        Value::StringValue(text) => Some(text),
        Value::BoolValue(value) => Some(value.to_string()),
        Value::IntValue(value) => Some(value.to_string()),
        Value::DoubleValue(value) => Some(value.to_string()),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
