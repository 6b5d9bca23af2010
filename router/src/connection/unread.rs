//! Bodies of HTTP/1 requests that are answered before they are read, such as those without a credential.
//!
//! hyper closes the connection of such a request, and its response does not say so. A client that sends its next
//! request on the connection gets no response. So a short rest of the body is read before the response is sent. If the
//! rest is long or slow, the response says that the connection closes.

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

/// Longest rest of a body that is read, in bytes.
const REST_BYTES_MAX: usize = 64 << 10;

/// Longest time for which the rest of a body is awaited.
const REST_PATIENCE: Duration = Duration::from_secs(1);

/// Middleware that reads the rest of a body, or closes the connection.
pub(super) async fn read_rest(request: Request, next: Next) -> Response {
    if request.version() > Version::HTTP_11 || request.body().is_end_stream() {
        return next.run(request).await;
    }
    // Such a client sends its body only after it is asked to.
    let waits = request.headers().contains_key(EXPECT);
    let (returned, mut rest) = oneshot::channel();
    let request = request.map(|body| Body::new(Returning { body, to: Some(returned) }));
    let mut response = next.run(request).await;
    // Without a rest, something reads the body on.
    let Ok(rest) = rest.try_recv() else { return response };
    if !rest.is_end_stream() && (waits || !is_short(rest).await) {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// Reads the rest of a body. Returns false if it is long or slow, or if the client is gone.
async fn is_short(mut rest: Body) -> bool {
    let read = async {
        let mut bytes = 0;
        while let Some(frame) = rest.frame().await {
            bytes += frame.ok()?.data_ref().map_or(0, Bytes::len);
            if REST_BYTES_MAX < bytes {
                return None;
            }
        }
        Some(())
    };
    tokio::time::timeout(REST_PATIENCE, read).await.is_ok_and(|read| read.is_some())
}

/// A body that is sent to `to` when its reader drops it.
struct Returning {
    body: Body,
    to: Option<oneshot::Sender<Body>>,
}

impl HttpBody for Returning {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
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
        let _unwanted = self.to.take().map(|to| to.send(body));
    }
}
