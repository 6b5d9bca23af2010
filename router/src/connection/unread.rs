//! Bodies of HTTP/1 requests that are answered before they are read, such as those without a credential.
//!
//! hyper closes the connection of such a request, and its response does not say so. A client that sends its next
//! request on the connection gets no response. So a short rest of the body is read before the response is sent. If the
//! rest is long, slow, malformed, or waits for `100 Continue`, the response says that the connection closes.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::header::{CONNECTION, EXPECT};
use axum::http::{HeaderValue, Version};
use axum::middleware::Next;
use axum::response::Response;
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt as _;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

/// Longest rest of a body that is read, in bytes.
const REST_BYTES_MAX: usize = 64 << 10;

/// Longest time for which the rest of a body is awaited.
const REST_PATIENCE: Duration = Duration::from_secs(1);

/// Middleware that reads the rest of a body, or closes the connection.
pub(super) async fn read_rest(request: Request, next: Next) -> Response {
    if request.version() > Version::HTTP_11 || request.body().is_end_stream() {
        return next.run(request).await;
    }
    let expects_100 = request.headers().contains_key(EXPECT);
    let (returned, mut rest) = oneshot::channel();
    let request = request.map(|body| Body::new(Returning { body, read: Read::Nothing, to: Some(returned) }));
    let mut response = next.run(request).await;
    // There is no rest if the body was read to its end, or if a task of the request still reads it.
    let Ok((mut rest, read)) = rest.try_recv() else { return response };
    let is_at_end = match read {
        // Such a client may send no body before `100 Continue`.
        Read::Nothing if expects_100 => false,
        Read::Nothing | Read::Part => discard(&mut rest, REST_BYTES_MAX, REST_PATIENCE).await,
        Read::Error => false,
    };
    if !is_at_end {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Reads and drops the rest of a body, for a limited time. Returns false if the rest is longer than `bytes_max`, slow
/// or malformed.
pub(crate) async fn discard(rest: &mut Body, bytes_max: usize, patience: Duration) -> bool {
    let end = Instant::now() + patience;
    let mut left = bytes_max;
    loop {
        let Ok(frame) = timeout_at(end, rest.frame()).await else { return false };
        let Some(frame) = frame else { return true };
        let Ok(frame) = frame else { return false };
        // The timeout cannot fire while each next frame is ready at once, so the time is checked here too.
        let bytes = frame.data_ref().map_or(0, Bytes::len);
        let Some(after) = left.checked_sub(bytes).filter(|_| Instant::now() < end) else { return false };
        left = after;
    }
}

/// Progress of the routes in reading a body.
#[derive(Clone, Copy)]
enum Read {
    Nothing,
    Part,
    Error,
}

/// A body that is sent to `to` when it is dropped before its end.
struct Returning {
    body: Body,
    read: Read,
    to: Option<oneshot::Sender<(Body, Read)>>,
}

impl HttpBody for Returning {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        match (&frame, self.read) {
            (Poll::Ready(Some(Err(_))), _) => self.read = Read::Error,
            // The end of a body after an error is not that of the request.
            (_, Read::Error) => {}
            (Poll::Ready(None), _) => self.to = None,
            // Reading has begun: the client has been asked to continue.
            (Poll::Ready(Some(Ok(_))) | Poll::Pending, _) => self.read = Read::Part,
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Returning {
    fn drop(&mut self) {
        let body = std::mem::take(&mut self.body);
        // Nobody waits for it if the response was dropped.
        let _unwanted = self.to.take().map(|to| to.send((body, self.read)));
    }
}
