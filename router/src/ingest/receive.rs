//! The body of a push, read piece by piece as it comes, over HTTP and gRPC alike.
//!
//! Invariant: every byte that is held here is counted as in flight, and nobody holds any for longer than [`BODY_TIME_MAX`].

use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody as _};
use bytes::BytesMut;
use http_body_util::BodyExt as _;
use tokio::time::{Instant, timeout_at};

use crate::ingest::admission::{InFlight, Overloaded};

/// How long a body may stall: agents send theirs at once.
const BODY_PATIENCE: Duration = Duration::from_secs(30);

/// How long all of a body may take: the largest one at 1 Mbit/s.
const BODY_TIME_MAX: Duration = Duration::from_secs(300);

/// What is reserved for the rest of a body that is announced: more is held only when it is here.
const ROOM_BYTES_MAX: usize = 1 << 18;

/// Why a body is not here.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError {
    #[error("nothing of the body came for {BODY_PATIENCE:?}")]
    Stalled,
    #[error("the body did not come within {BODY_TIME_MAX:?}: send smaller requests")]
    Slow,
    #[error("the body has more than {bytes_max} bytes: send smaller requests")]
    TooLarge { bytes_max: usize },
    #[error("the body could not be read: {0}")]
    Unreadable(#[source] axum::Error),
    #[error(transparent)]
    Overloaded(#[from] Overloaded),
}

/// The whole body, each piece counted when it comes.
pub(crate) async fn read(mut body: Body, in_flight: &mut InFlight, bytes_max: usize) -> Result<Bytes, BodyError> {
    let mut read = BytesMut::new();
    let end = Instant::now() + BODY_TIME_MAX;
    loop {
        let patience = (Instant::now() + BODY_PATIENCE).min(end);
        let Ok(frame) = timeout_at(patience, body.frame()).await else {
            return Err(if patience == end { BodyError::Slow } else { BodyError::Stalled });
        };
        let Some(frame) = frame else { return Ok(read.freeze()) };
        let Ok(bytes) = frame.map_err(BodyError::Unreadable)?.into_data() else { continue };
        if read.len() + bytes.len() > bytes_max {
            return Err(BodyError::TooLarge { bytes_max });
        }
        in_flight.grow(bytes.len())?;
        if read.is_empty() {
            let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
            read.reserve(bytes.len().saturating_add(announced.min(ROOM_BYTES_MAX)));
        }
        read.extend_from_slice(&bytes);
        // A frame that is always ready gives the deadline no chance.
        if Instant::now() >= end {
            return Err(BodyError::Slow);
        }
    }
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
    async fn a_body_is_read_whole_up_to_the_limit_and_not_a_byte_more() {
        let admission = Admission::default();
        let mut in_flight = admission.enter(0).unwrap();
        assert_eq!(read(pieces(3, b"ab"), &mut in_flight, 6).await.unwrap(), "ababab");
        let error = read(pieces(3, b"ab"), &mut in_flight, 5).await.unwrap_err();
        assert!(matches!(error, BodyError::TooLarge { bytes_max: 5 }), "{error}");
    }

    #[tokio::test]
    async fn a_body_of_many_small_pieces_takes_no_more_from_others_than_its_bytes() {
        let admission = Admission::default();
        let before = admission.free_bytes();
        let mut in_flight = admission.enter(0).unwrap();
        assert_eq!(read(pieces(100_000, b"a"), &mut in_flight, 100_000).await.unwrap().len(), 100_000);
        let taken = before - admission.free_bytes();
        assert!((100_000..102_000).contains(&taken), "{taken}");
    }
}
