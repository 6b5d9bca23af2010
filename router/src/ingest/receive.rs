//! Receive: the first step of a push. Reads the body piece by piece as the body arrives, over HTTP and gRPC.
//!
//! Invariant: every byte that this step holds in memory is counted as in flight, and stays for at most
//! [`BODY_TIME_MAX`].

use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody as _};
use bytes::BytesMut;
use http_body_util::BodyExt as _;
use proto::limits;
use tokio::time::{Instant, timeout_at};

use crate::ingest::admission::{Admission, InFlight};
use crate::ingest::error::{BodyError, PushError};
use crate::ingest::request::{Encoding, Head};

/// Longest time to wait for the next byte of a body. Agents send their bodies without pauses.
const BODY_PATIENCE: Duration = Duration::from_secs(30);

/// Longest time in which a whole body must arrive. At 1 Mbit/s, the largest body takes this time.
const BODY_TIME_MAX: Duration = Duration::from_secs(300);

/// Largest number of bytes that are reserved for the rest of an announced body. More memory is allocated only as the
/// body arrives.
const RESERVED_BYTES_MAX: usize = 1 << 18;

/// Length of the prefix of each message of a gRPC call: a flag for compression, and the length as big-endian u32.
const GRPC_PREFIX_BYTES: usize = 5;

/// A request whose body is still arriving.
#[derive(Debug)]
pub(crate) struct Arriving {
    /// Head of the request, or the head's fault. The fault is returned after the whole body has arrived: a client that
    /// gets a response while it is sending sees a broken connection instead of the error.
    pub(crate) head: Result<Head, PushError>,
    pub(crate) body: Body,
    /// Length of the body that the request announces, in bytes; 0 if it announces none.
    pub(crate) announced_bytes: usize,
    pub(crate) framing: Framing,
}

/// Framing of the content in the body of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Framing {
    /// The body is the content.
    None,
    /// The body is one message of a unary gRPC call.
    Grpc,
}

/// A request whose body has arrived.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) head: Head,
    pub(crate) body: Bytes,
    pub(crate) in_flight: InFlight,
}

/// Reads the whole body. Each piece counts as in flight from its arrival.
pub(crate) async fn receive(arriving: Arriving, admission: &Admission) -> Result<Received, PushError> {
    let Arriving { head, body, announced_bytes, framing } = arriving;
    let bytes_max = limits::PUSH_BYTES_MAX;
    if announced_bytes > bytes_max {
        return Err(BodyError::TooLarge { bytes_max }.into());
    }
    let mut in_flight = admission.enter(0)?;
    match framing {
        Framing::None => {
            let body = read(body, &mut in_flight, bytes_max).await?;
            Ok(Received { head: head?, body, in_flight })
        }
        Framing::Grpc => {
            let framed = read(body, &mut in_flight, bytes_max + GRPC_PREFIX_BYTES).await?;
            let message = grpc_message(framed)?;
            let mut head = head?;
            if !message.is_compressed {
                head.encoding = Encoding::Identity;
            }
            Ok(Received { head, body: message.bytes, in_flight })
        }
    }
}

async fn read(mut body: Body, in_flight: &mut InFlight, bytes_max: usize) -> Result<Bytes, BodyError> {
    let mut read = BytesMut::new();
    let end = Instant::now() + BODY_TIME_MAX;
    loop {
        let deadline = (Instant::now() + BODY_PATIENCE).min(end);
        let Ok(frame) = timeout_at(deadline, body.frame()).await else {
            return Err(if deadline == end {
                BodyError::Slow(BODY_TIME_MAX)
            } else {
                BodyError::Stalled(BODY_PATIENCE)
            });
        };
        let Some(frame) = frame else { return Ok(read.freeze()) };
        let Ok(bytes) = frame.map_err(BodyError::Unreadable)?.into_data() else { continue };
        if read.len() + bytes.len() > bytes_max {
            return Err(BodyError::TooLarge { bytes_max });
        }
        in_flight.grow(bytes.len())?;
        if read.is_empty() {
            let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
            read.reserve(bytes.len().saturating_add(announced.min(RESERVED_BYTES_MAX)));
        }
        read.extend_from_slice(&bytes);
        // The timeout cannot fire while each next frame is ready at once, so the time is checked here too.
        if Instant::now() >= end {
            return Err(BodyError::Slow(BODY_TIME_MAX));
        }
    }
}

/// The message of a unary gRPC call.
struct GrpcMessage {
    is_compressed: bool,
    bytes: Bytes,
}

fn grpc_message(mut framed: Bytes) -> Result<GrpcMessage, BodyError> {
    let &[flag, a, b, c, d] = framed.first_chunk().ok_or(BodyError::Framing("it has no message"))?;
    let bytes = framed.split_off(GRPC_PREFIX_BYTES);
    if bytes.len() as u64 != u64::from(u32::from_be_bytes([a, b, c, d])) {
        return Err(BodyError::Framing("its body is not one message of the length in its prefix"));
    }
    Ok(GrpcMessage { is_compressed: flag != 0, bytes })
}

#[cfg(test)]
mod tests {
    use futures::stream;

    use super::*;
    use crate::ingest::admission::Admission;

    fn pieces(count: usize, bytes: &'static [u8]) -> Body {
        Body::from_stream(stream::iter(std::iter::repeat_n(Ok::<_, std::fmt::Error>(Bytes::from_static(bytes)), count)))
    }

    #[tokio::test]
    async fn bodies_are_read_up_to_the_limit_and_no_further() {
        let admission = Admission::default();
        let mut in_flight = admission.enter(0).unwrap();
        assert_eq!(read(pieces(3, b"ab"), &mut in_flight, 6).await.unwrap(), "ababab");
        let error = read(pieces(3, b"ab"), &mut in_flight, 5).await.unwrap_err();
        assert!(matches!(error, BodyError::TooLarge { bytes_max: 5 }), "{error}");
    }

    #[tokio::test]
    async fn a_body_of_many_small_pieces_counts_only_its_bytes() {
        let admission = Admission::default();
        let before = admission.free_bytes();
        let mut in_flight = admission.enter(0).unwrap();
        assert_eq!(read(pieces(100_000, b"a"), &mut in_flight, 100_000).await.unwrap().len(), 100_000);
        let taken = before - admission.free_bytes();
        assert!((100_000..102_000).contains(&taken), "{taken}");
    }

    #[test]
    fn a_grpc_body_that_is_not_one_message_is_malformed() {
        for framed in [&b""[..], b"\0\0\0", b"\0\0\0\0\x02a", b"\0\0\0\0\x01ab"] {
            assert!(grpc_message(Bytes::from_static(framed)).is_err(), "{framed:?}");
        }
        let message = grpc_message(Bytes::from_static(b"\x01\0\0\0\x01a")).unwrap();
        assert_eq!((message.is_compressed, &message.bytes[..]), (true, &b"a"[..]));
    }
}
