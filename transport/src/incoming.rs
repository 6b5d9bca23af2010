//! Connections to the port of a node, as a stream for tonic's server.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{Stream, StreamExt as _};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use crate::connection::Connection;
use crate::credentials::Credentials;
use crate::fault;
use crate::refusal_log::RefusalLog;

/// Maximum number of handshakes at one time. Each holds a socket and some kilobytes. Further connections wait in the
/// kernel's queue.
const HANDSHAKES_MAX: usize = 256;
/// Time limit of a handshake.
const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(5);
/// Wait after the system has not accepted a connection, for example because the process has too many open files.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// First byte of a TLS connection: the content type of a handshake.
const TLS_HANDSHAKE: u8 = 22;
/// Text for clients without TLS.
const NEEDS_TLS: &str =
    "this port requires TLS: give the client --tls-ca, --tls-cert and --tls-key, and an https:// URL";
/// Maximum number of bytes that are read from a client without TLS.
const PLAINTEXT_BYTES_MAX: u64 = 64 << 10;

/// Returns the connections that `listener` accepts. With `credentials`, each connection has TLS, and its peer has a
/// certificate of the same CA. Other connections are refused and logged. The stream never ends, and has no errors.
pub fn incoming(
    listener: TcpListener,
    credentials: Option<Arc<Credentials>>,
) -> impl Stream<Item = io::Result<Connection>> + Send {
    let incoming = Incoming { listener, credentials, handshakes: FuturesUnordered::new(), log: RefusalLog::default() };
    futures::stream::unfold(incoming, |mut incoming| async move { Some((Ok(incoming.next().await), incoming)) })
}

struct Incoming {
    listener: TcpListener,
    credentials: Option<Arc<Credentials>>,
    handshakes: FuturesUnordered<BoxFuture<'static, Result<Connection, Refused>>>,
    log: RefusalLog,
}

/// A connection that was refused, and the reason.
struct Refused {
    peer: SocketAddr,
    reason: String,
}

impl Incoming {
    async fn next(&mut self) -> Connection {
        loop {
            tokio::select! {
                accepted = self.listener.accept(), if self.handshakes.len() < HANDSHAKES_MAX => match accepted {
                    Ok((stream, peer)) => {
                        // With TCP_NODELAY, the kernel sends a response at once instead of waiting for more bytes.
                        if let Err(error) = stream.set_nodelay(true) {
                            tracing::debug!(%error, "the system may delay a connection's responses");
                        }
                        let Some(credentials) = &self.credentials else { return Connection::plaintext(stream) };
                        let credentials = Arc::clone(credentials);
                        self.handshakes.push(Box::pin(async move {
                            let outcome = timeout(HANDSHAKE_PATIENCE, handshake(stream, &credentials)).await;
                            let late = |_elapsed| format!("no TLS handshake within {HANDSHAKE_PATIENCE:?}");
                            outcome.map_err(late).flatten().map_err(|reason| Refused { peer, reason })
                        }));
                    }
                    Err(error) => {
                        self.log(format_args!("no connection to the node's port was accepted: {error}"));
                        tokio::time::sleep(ACCEPT_RETRY).await;
                    }
                },
                Some(outcome) = self.handshakes.next() => match outcome {
                    Ok(connection) => return connection,
                    Err(Refused { peer, reason }) => {
                        self.log(format_args!("a connection from {peer} to the node's port was refused: {reason}"));
                    }
                },
            }
        }
    }

    fn log(&mut self, text: std::fmt::Arguments<'_>) {
        match self.log.admit(Instant::now()) {
            Some(0) => tracing::warn!("{text}"),
            Some(suppressed) => tracing::warn!("{text}; {suppressed} more before that"),
            None => {}
        }
    }
}

/// Makes the TLS handshake. The error is the reason why the connection is refused.
async fn handshake(mut stream: TcpStream, credentials: &Arc<Credentials>) -> Result<Connection, String> {
    let mut first = [0];
    match stream.peek(&mut first).await {
        Ok(0) => return Err("it ended the connection before the TLS handshake".to_owned()),
        Ok(_) if first[0] == TLS_HANDSHAKE => {}
        Ok(_) => {
            // The client may be gone, or speak anything.
            let _answered = refuse_plaintext(&mut stream).await;
            return Err("it does not use TLS: it needs --tls-ca, --tls-cert and --tls-key".to_owned());
        }
        Err(error) => return Err(fault::of_accepting(&error)),
    }
    let acceptor = TlsAcceptor::from(credentials.current().await.server);
    let accepted = acceptor.accept(stream).await.map_err(|error| fault::of_accepting(&error))?;
    Ok(Connection::tls(accepted))
}

/// Answers an HTTP/2 client that does not use TLS, so that it learns the reason: a SETTINGS frame, and after the
/// client's first request a GOAWAY frame with a text. Without a request on the connection, the client would not report
/// the text.
async fn refuse_plaintext(stream: &mut TcpStream) -> io::Result<()> {
    /// SETTINGS (type 4) without content: the first frame of every server.
    const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    /// Type of a GOAWAY frame.
    const GOAWAY: u8 = 7;
    /// Error code of a GOAWAY frame: INADEQUATE_SECURITY.
    const INADEQUATE_SECURITY: u32 = 12;
    stream.write_all(&SETTINGS).await?;
    let (from, mut to) = stream.split();
    let mut from = from.take(PLAINTEXT_BYTES_MAX);
    read_until_request(&mut from).await?;
    // The content is the last stream (none), the error code and the text.
    let mut goaway = Vec::new();
    let length = u32::try_from(8 + NEEDS_TLS.len()).map_err(io::Error::other)?;
    goaway.extend(&length.to_be_bytes()[1..]);
    goaway.extend([GOAWAY, 0, 0, 0, 0, 0]);
    goaway.extend(0_u32.to_be_bytes());
    goaway.extend(INADEQUATE_SECURITY.to_be_bytes());
    goaway.extend(NEEDS_TLS.as_bytes());
    to.write_all(&goaway).await?;
    to.shutdown().await?;
    // If unread bytes were left, closing the socket would discard the answer on its way.
    tokio::io::copy(&mut from, &mut tokio::io::sink()).await?;
    Ok(())
}

/// Reads what an HTTP/2 client sends, up to the header of the frame that begins its first request.
async fn read_until_request(from: &mut (impl AsyncRead + Unpin)) -> io::Result<()> {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    /// Type of the frame that begins a request.
    const HEADERS: u8 = 1;
    let mut preface = [0; PREFACE.len()];
    from.read_exact(&mut preface).await?;
    if preface != PREFACE {
        return Err(io::ErrorKind::InvalidData.into());
    }
    loop {
        let mut header = [0; 9];
        from.read_exact(&mut header).await?;
        if header[3] == HEADERS {
            return Ok(());
        }
        let length = u32::from_be_bytes([0, header[0], header[1], header[2]]);
        let mut content = (&mut *from).take(length.into());
        tokio::io::copy(&mut content, &mut tokio::io::sink()).await?;
    }
}
