//! The message `google.rpc.Status`. It is in the details of a gRPC error, and in the body of an OTLP/HTTP error.
//!
//! A `google.rpc.RetryInfo` in the details of the status requests a retry. In OTLP, clients do not retry
//! RESOURCE_EXHAUSTED if the `RetryInfo` is absent.

use std::time::Duration;

use prost::Message;

/// Type URL of `RetryInfo` in a `google.protobuf.Any`.
pub const RETRY_INFO: &str = "type.googleapis.com/google.rpc.RetryInfo";

#[derive(Clone, PartialEq, Message)]
struct RpcStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

#[derive(Clone, PartialEq, Message)]
struct Any {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct RetryInfo {
    #[prost(message, tag = "1")]
    retry_delay: Option<Delay>,
}

#[derive(Clone, PartialEq, Message)]
struct Delay {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

/// Returns the minimum time to wait before a retry. `status` holds the details of a gRPC error: an encoded
/// `google.rpc.Status`. Returns `None` if the receiver does not request a retry.
#[must_use]
pub fn retry_delay(status: &[u8]) -> Option<Duration> {
    let details = RpcStatus::decode(status).ok()?.details;
    let info = details.iter().find(|detail| detail.type_url == RETRY_INFO)?;
    let delay = RetryInfo::decode(&*info.value).ok()?.retry_delay.unwrap_or_default();
    // A negative delay makes no sense and counts as no delay.
    let seconds = Duration::from_secs(u64::try_from(delay.seconds).unwrap_or(0));
    Some(seconds.saturating_add(Duration::from_nanos(u64::try_from(delay.nanos).unwrap_or(0))))
}

/// Encodes a `google.rpc.Status` with this gRPC code. Adds a `RetryInfo` if there is a delay.
#[must_use]
pub fn rpc_status(code: i32, message: &str, delay: Option<Duration>) -> Vec<u8> {
    let retry_info = |delay: Duration| {
        let seconds = i64::try_from(delay.as_secs()).unwrap_or(i64::MAX);
        let delay = Delay { seconds, nanos: delay.subsec_nanos().cast_signed() };
        let value = RetryInfo { retry_delay: Some(delay) }.encode_to_vec();
        Any { type_url: RETRY_INFO.to_owned(), value }
    };
    let details = delay.map(retry_info).into_iter().collect();
    RpcStatus { code, message: message.to_owned(), details }.encode_to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESOURCE_EXHAUSTED: i32 = 8;

    #[test]
    fn the_retry_delay_is_read_back_and_garbage_has_none() {
        let delay = Duration::from_millis(1_500);
        assert_eq!(retry_delay(&rpc_status(RESOURCE_EXHAUSTED, "slower", Some(delay))), Some(delay));
        assert_eq!(retry_delay(&rpc_status(RESOURCE_EXHAUSTED, "too large", None)), None);
        assert_eq!(retry_delay(&[]), None);
        assert_eq!(retry_delay(&[0xff; 9]), None);
    }
}
