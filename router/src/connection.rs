//! HTTP/1 connections whose request heads are checked before hyper parses them.
//!
//! If hyper cannot parse a request head, it returns a status with an empty body. Its URL parser refuses characters that
//! other servers accept, such as a raw `"`. So this module checks each head first. It percent-encodes such characters
//! in a URL. It replaces a malformed head by a request for [`BAD_HEAD_PATH`], whose response is an error in the usual
//! form.
//!
//! A connection that is closed with unread bytes loses the last response. So a connection that closes with unread bytes
//! takes further bytes for a while ([`LINGER`]). This does not cover connections on which a request was CONNECT or had
//! an `Upgrade` header: hyper drops them at once.
//!
//! Invariants: hyper receives each body unchanged. A head takes at most [`HEAD_BYTES_MAX`] of memory, for at most
//! [`HEAD_PATIENCE`].

mod framing;
mod head;
pub(crate) mod unread;

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::extract::connect_info::{Connected, IntoMakeServiceWithConnectInfo};
use axum::extract::{ConnectInfo, Request};
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse as _, Response};
use axum::serve::IncomingStream;
use bytes::BytesMut;
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use self::framing::Framing;
use self::head::{BadHead, Head};

/// Longest head of a request, in bytes. The longest URL has 65,534 bytes, which leaves enough space for headers.
const HEAD_BYTES_MAX: usize = 128 << 10;

/// Longest time from the first byte of a head to its last.
const HEAD_PATIENCE: Duration = Duration::from_secs(30);

/// Number of bytes per read while the head is incomplete. With larger reads, more bytes of the body would be copied
/// twice.
const READ_BYTES: usize = 4096;

/// Number of discarding reads before other connections have their turn.
const DISCARDED_READS: usize = 16;

/// Longest time for which a connection is kept after the response to a request that was not read to its end. Some
/// clients send the whole request before they read the response.
const LINGER: Duration = Duration::from_secs(5);

/// Path of the request that hyper receives instead of a request with a malformed head.
const BAD_HEAD_PATH: &str = "/-/malformed-request";
const BAD_HEAD_REQUEST: &[u8] = b"GET /-/malformed-request HTTP/1.1\r\nconnection: close\r\n\r\n";

/// The first bytes of an HTTP/2 connection.
const HTTP2_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A listener whose connections check the heads of requests.
#[derive(Debug)]
pub struct Listener<L>(L);

impl<L> Listener<L> {
    /// Makes a listener that checks the connections of `listener`.
    #[must_use]
    pub fn new(listener: L) -> Self {
        Self(listener)
    }
}

impl<L: axum::serve::Listener> axum::serve::Listener for Listener<L> {
    type Io = Connection<L::Io>;
    type Addr = L::Addr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        let (io, address) = self.0.accept().await;
        (Connection::new(io, HEAD_PATIENCE), address)
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        self.0.local_addr()
    }
}

/// Returns the service of these routes for the connections of a [`Listener`].
pub fn service(routes: Router) -> IntoMakeServiceWithConnectInfo<Router, Fault> {
    routes.layer(from_fn(unread::read_rest)).into_make_service_with_connect_info()
}

/// Adds the responses to malformed heads to these routes.
pub(crate) fn reporting_bad_heads(routes: Router) -> Router {
    routes.layer(from_fn(report))
}

async fn report(request: Request, next: Next) -> Response {
    let fault = request.extensions().get::<ConnectInfo<Fault>>();
    match fault.and_then(|ConnectInfo(fault)| fault.0.lock().take_if(|_| request.uri().path() == BAD_HEAD_PATH)) {
        Some(bad_head) => bad_head.into_response(),
        None => next.run(request).await,
    }
}

/// Fault of the last head of a connection; `None` if that head had no fault.
#[derive(Clone, Debug, Default)]
pub struct Fault(Arc<Mutex<Option<BadHead>>>);

impl<L: axum::serve::Listener> Connected<IncomingStream<'_, Listener<L>>> for Fault {
    fn connect_info(stream: IncomingStream<'_, Listener<L>>) -> Self {
        stream.io().fault.clone()
    }
}

/// A connection that hyper reads from and writes to.
#[derive(Debug)]
pub struct Connection<Io> {
    io: Io,
    state: State,
    /// Received bytes that are not examined yet.
    received: BytesMut,
    /// Examined bytes, which hyper may read.
    checked: BytesMut,
    /// Length of `received` when it was last parsed as a head.
    parsed: usize,
    /// Length of `received` when it was last searched for the end of a head.
    scanned: usize,
    /// Longest time from the first byte of a head to its last.
    patience: Duration,
    /// Time at which the head must be complete; `None` before the first byte of a head.
    deadline: Option<Pin<Box<Sleep>>>,
    /// True once the first complete head of an HTTP request has arrived on the connection.
    is_in_use: bool,
    fault: Fault,
    /// Time at which the connection ends, although the client still sends; `None` before its writing half is closed.
    linger: Option<Pin<Box<Sleep>>>,
}

#[derive(Debug)]
enum State {
    Head,
    Body(Framing),
    /// HTTP/2, or a body whose framing hyper refuses. All bytes are passed to hyper unchanged.
    Opaque,
    /// State after a malformed head. All further bytes are discarded.
    Rejected,
}

impl<Io: AsyncRead + Unpin> Connection<Io> {
    fn new(io: Io, patience: Duration) -> Self {
        Self {
            io,
            state: State::Head,
            received: BytesMut::new(),
            checked: BytesMut::new(),
            parsed: 0,
            scanned: 0,
            patience,
            deadline: None,
            is_in_use: false,
            fault: Fault::default(),
            linger: None,
        }
    }

    /// Examines the received bytes, and reads more bytes if they hold no complete head. Returns `false` at the end of
    /// the stream.
    fn poll_head(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        if self.examine() {
            return Poll::Ready(Ok(true));
        }
        let mut bytes = [0; READ_BYTES];
        let mut piece = ReadBuf::new(&mut bytes);
        match Pin::new(&mut self.io).poll_read(context, &mut piece) {
            Poll::Ready(Ok(())) if piece.filled().is_empty() => {
                // The end of the stream is in the middle of a head. hyper closes the connection when it has read these
                // bytes.
                self.pass_all();
                return Poll::Ready(Ok(!self.checked.is_empty()));
            }
            Poll::Ready(Ok(())) => {
                self.received.extend_from_slice(piece.filled());
                return Poll::Ready(Ok(true));
            }
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending => {}
        }
        if self.received.is_empty() {
            return Poll::Pending;
        }
        let patience = self.patience;
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        ready!(deadline.as_mut().poll(context));
        self.reject(BadHead::TimedOut);
        Poll::Ready(Ok(true))
    }

    /// Moves the head to `checked` if the head is complete. Returns whether the state has changed.
    fn examine(&mut self) -> bool {
        if !self.is_in_use && self.received.starts_with(HTTP2_PREFACE) {
            self.pass_all();
            return true;
        }
        let is_preface = !self.is_in_use && HTTP2_PREFACE.starts_with(&self.received);
        if is_preface || !self.is_worth_parsing() {
            return false;
        }
        self.parsed = self.received.len();
        match head::parse(&self.received) {
            Ok(Head::Complete { length, .. }) if length > HEAD_BYTES_MAX => {
                self.reject(BadHead::too_large(&self.received));
            }
            Ok(Head::Complete { length, url, framing }) => {
                let mut head = self.received.split_to(length);
                if let Some((range, encoded)) = url {
                    self.checked.extend_from_slice(&head.split_to(range.start));
                    self.checked.extend_from_slice(encoded.as_bytes());
                    drop(head.split_to(range.len()));
                }
                self.checked.extend_from_slice(&head);
                (self.parsed, self.scanned, self.deadline, self.is_in_use) = (0, 0, None, true);
                self.state = if framing.is_complete() { State::Head } else { State::Body(framing) };
            }
            Ok(Head::Partial) if self.received.len() <= HEAD_BYTES_MAX => return false,
            Ok(Head::Partial) => self.reject(BadHead::too_large(&self.received)),
            Err(bad_head) => self.reject(bad_head),
        }
        true
    }

    /// Returns whether `received` should be parsed: it may hold a whole head, it exceeds the limit, or its length has
    /// doubled since the last parsing. So the total time for a head that arrives byte by byte grows with the head's
    /// length, and not with the square of the length.
    fn is_worth_parsing(&mut self) -> bool {
        let new = self.received.get(self.scanned.saturating_sub(3)..).unwrap_or_default();
        let has_empty_line =
            new.windows(2).any(|bytes| bytes == b"\n\n") || new.windows(3).any(|bytes| bytes == b"\n\r\n");
        self.scanned = self.received.len();
        let is_worth = has_empty_line || self.received.len() >= 2 * self.parsed || self.received.len() > HEAD_BYTES_MAX;
        is_worth && !self.received.is_empty()
    }

    fn pass_all(&mut self) {
        self.checked.unsplit(self.received.split());
        (self.state, self.deadline) = (State::Opaque, None);
    }

    fn reject(&mut self, bad_head: BadHead) {
        *self.fault.0.lock() = Some(bad_head);
        self.checked.extend_from_slice(BAD_HEAD_REQUEST);
        (self.received, self.state, self.deadline) = (BytesMut::new(), State::Rejected, None);
    }

    /// Reads and discards bytes of the client, until the client closes the connection.
    fn poll_discard(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut bytes = [0; READ_BYTES];
        for _ in 0..DISCARDED_READS {
            let mut piece = ReadBuf::new(&mut bytes);
            ready!(Pin::new(&mut self.io).poll_read(context, &mut piece))?;
            if piece.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Advances over the bytes at the start of `bytes` that belong to the body. Returns the number of these bytes.
    fn advance(&mut self, bytes: &[u8]) -> usize {
        let State::Body(framing) = &mut self.state else { return bytes.len() };
        let Some(taken) = framing.advance(bytes) else {
            self.state = State::Opaque;
            return bytes.len();
        };
        if framing.is_complete() {
            self.state = State::Head;
        }
        taken
    }
}

impl<Io: AsyncRead + Unpin> AsyncRead for Connection<Io> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            if !this.checked.is_empty() {
                let length = this.checked.len().min(out.remaining());
                out.put_slice(&this.checked.split_to(length));
                return Poll::Ready(Ok(()));
            }
            match this.state {
                State::Head => {
                    if !ready!(this.poll_head(context))? {
                        return Poll::Ready(Ok(()));
                    }
                }
                State::Rejected => {
                    ready!(this.poll_discard(context))?;
                    // The end of the stream would make hyper drop the response.
                    return Poll::Pending;
                }
                State::Body(_) if !this.received.is_empty() => {
                    let received = this.received.split();
                    let taken = this.advance(&received);
                    this.checked.extend_from_slice(&received[..taken]);
                    this.received.extend_from_slice(&received[taken..]);
                }
                State::Body(_) | State::Opaque => {
                    let before = out.filled().len();
                    ready!(Pin::new(&mut this.io).poll_read(context, out))?;
                    let taken = before + this.advance(&out.filled()[before..]);
                    this.received.extend_from_slice(&out.filled()[taken..]);
                    out.set_filled(taken);
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

impl<Io: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Connection<Io> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.linger.is_none() {
            ready!(Pin::new(&mut self.io).poll_shutdown(context))?;
            let is_http2 = matches!(self.state, State::Opaque) && !self.is_in_use;
            let is_read = matches!(self.state, State::Head) && self.received.is_empty();
            if is_http2 || is_read {
                return Poll::Ready(Ok(()));
            }
        }
        let linger = self.linger.get_or_insert_with(|| Box::pin(tokio::time::sleep(LINGER)));
        if linger.as_mut().poll(context).is_ready() {
            return Poll::Ready(Ok(()));
        }
        self.poll_discard(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

#[cfg(test)]
mod tests;
