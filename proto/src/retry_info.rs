//! When a gRPC receiver wants to be asked again: `google.rpc.RetryInfo` among the details of a status, which are a
//! `google.rpc.Status`. By OTLP, RESOURCE_EXHAUSTED without it is final.

use std::time::Duration;

use prost::Message;
use tonic::{Code, Status};

/// Type of `RetryInfo` in a `google.protobuf.Any`.
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

/// How long to wait at least; `None` where the receiver does not ask for another try.
#[must_use]
pub fn retry_delay(status: &Status) -> Option<Duration> {
    let details = RpcStatus::decode(status.details()).ok()?.details;
    let info = details.iter().find(|detail| detail.type_url == RETRY_INFO)?;
    let delay = RetryInfo::decode(&*info.value).ok()?.retry_delay.unwrap_or_default();
    // A negative delay makes no sense, and is none.
    let seconds = Duration::from_secs(u64::try_from(delay.seconds).unwrap_or(0));
    Some(seconds.saturating_add(Duration::from_nanos(u64::try_from(delay.nanos).unwrap_or(0))))
}

/// A status that asks to be tried again after `delay`.
#[must_use]
pub fn with_retry_delay(code: Code, message: &str, delay: Duration) -> Status {
    Status::with_details(code, message, rpc_status(code, message, Some(delay)).into())
}

/// An encoded `google.rpc.Status`, with a `RetryInfo` if there is a delay. It is the body of an OTLP/HTTP error.
#[must_use]
pub fn rpc_status(code: Code, message: &str, delay: Option<Duration>) -> Vec<u8> {
    let retry_info = |delay: Duration| {
        let seconds = i64::try_from(delay.as_secs()).unwrap_or(i64::MAX);
        let delay = Delay { seconds, nanos: delay.subsec_nanos().cast_signed() };
        let value = RetryInfo { retry_delay: Some(delay) }.encode_to_vec();
        Any { type_url: RETRY_INFO.to_owned(), value }
    };
    let details = delay.map(retry_info).into_iter().collect();
    RpcStatus { code: code.into(), message: message.to_owned(), details }.encode_to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_is_found_and_garbage_is_none() {
        let delay = Duration::from_millis(1_500);
        assert_eq!(retry_delay(&with_retry_delay(Code::ResourceExhausted, "slower", delay)), Some(delay));
        assert_eq!(retry_delay(&Status::resource_exhausted("too large")), None);
        let garbage = Status::with_details(Code::ResourceExhausted, "", vec![0xff; 9].into());
        assert_eq!(retry_delay(&garbage), None);
    }
}
