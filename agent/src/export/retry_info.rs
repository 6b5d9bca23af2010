//! When a receiver wants to be asked again: `google.rpc.RetryInfo` among the details of a gRPC status.
//!
//! The details are a `google.rpc.Status`; only the fields that lead to the delay are read.

use std::time::Duration;

use prost::Message;
use tonic::Status as GrpcStatus;

const RETRY_INFO: &str = "type.googleapis.com/google.rpc.RetryInfo";

#[derive(Clone, PartialEq, Message)]
struct RpcStatus {
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
pub(crate) fn retry_delay(status: &GrpcStatus) -> Option<Duration> {
    let details = RpcStatus::decode(status.details()).ok()?.details;
    let info = details.iter().find(|detail| detail.type_url == RETRY_INFO)?;
    let delay = RetryInfo::decode(&*info.value).ok()?.retry_delay.unwrap_or_default();
    // A negative delay makes no sense, and is none.
    let seconds = Duration::from_secs(u64::try_from(delay.seconds).unwrap_or(0));
    Some(seconds.saturating_add(Duration::from_nanos(u64::try_from(delay.nanos).unwrap_or(0))))
}

#[cfg(test)]
pub(crate) fn with_retry_delay(code: tonic::Code, message: &str, delay: Duration) -> GrpcStatus {
    let delay = Delay { seconds: delay.as_secs().cast_signed(), nanos: delay.subsec_nanos().cast_signed() };
    let value = RetryInfo { retry_delay: Some(delay) }.encode_to_vec();
    let details = RpcStatus { details: vec![Any { type_url: RETRY_INFO.to_owned(), value }] };
    GrpcStatus::with_details(code, message, details.encode_to_vec().into())
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[test]
    fn the_delay_is_found_and_garbage_is_none() {
        let delay = Duration::from_millis(1_500);
        assert_eq!(retry_delay(&with_retry_delay(Code::ResourceExhausted, "slower", delay)), Some(delay));
        assert_eq!(retry_delay(&GrpcStatus::resource_exhausted("too large")), None);
        let garbage = GrpcStatus::with_details(Code::ResourceExhausted, "", vec![0xff; 9].into());
        assert_eq!(retry_delay(&garbage), None);
    }
}
