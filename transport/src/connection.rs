//! A connection that a node has accepted, and the role of its peer.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;
use tonic::{Request, Status};

use crate::role::{Role, RoleError};

/// A connection that a node has accepted.
#[derive(Debug)]
pub struct Connection {
    stream: Stream,
    peer: Peer,
}

#[derive(Debug)]
enum Stream {
    Plaintext(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// The peer of a connection, which tonic adds to the extensions of each request on the connection.
#[derive(Clone, Debug)]
pub enum Peer {
    /// The connection has no TLS, so the peer is unknown.
    Plaintext,
    /// The certificate of the peer is valid. The error tells why it has no role.
    Certified(Result<Role, RoleError>),
}

impl Connection {
    pub(crate) fn plaintext(stream: TcpStream) -> Self {
        Self { stream: Stream::Plaintext(stream), peer: Peer::Plaintext }
    }

    /// Makes a connection from a TLS stream, after the handshake has verified the certificate of the peer.
    pub(crate) fn tls(stream: TlsStream<TcpStream>) -> Self {
        let (_, session) = stream.get_ref();
        let certificate = session.peer_certificates().and_then(|chain| chain.first());
        let role = certificate.ok_or(RoleError::Missing).and_then(Role::of);
        Self { stream: Stream::Tls(Box::new(stream)), peer: Peer::Certified(role) }
    }
}

/// Returns the role of the peer that sent a request; `None` if the connection has no TLS.
///
/// # Errors
/// `PermissionDenied` if the certificate of the peer has no role.
pub fn peer_role<T>(request: &Request<T>) -> Result<Option<Role>, Status> {
    match request.extensions().get::<Peer>() {
        Some(Peer::Certified(Ok(role))) => Ok(Some(role.clone())),
        Some(Peer::Certified(Err(fault))) => {
            Err(Status::permission_denied(format!("the certificate in --tls-cert cannot be used: {fault}")))
        }
        Some(Peer::Plaintext) | None => Ok(None),
    }
}

/// Returns the number of the node that sent a request; `None` if the connection has no TLS, and the number that the
/// request itself states must be believed.
///
/// # Errors
/// `PermissionDenied` if the peer is not a node.
pub fn require_node<T>(request: &Request<T>) -> Result<Option<u64>, Status> {
    match peer_role(request)? {
        None => Ok(None),
        Some(Role::Node(id)) => Ok(Some(id)),
        Some(other) => Err(Status::permission_denied(format!(
            "only nodes may make this call, and the certificate is that of {other}: use the certificate of a node"
        ))),
    }
}

/// Fails if an administrator sent a request that needs a node or a router.
///
/// # Errors
/// `PermissionDenied` if the peer is an administrator, or has no role.
pub fn refuse_admin<T>(request: &Request<T>) -> Result<(), Status> {
    match peer_role(request)? {
        Some(Role::Admin(name)) => Err(Status::permission_denied(format!(
            "the certificate is that of admin {name}, who may administer the cluster and read no profiles: use a router"
        ))),
        Some(Role::Node(_) | Role::Router(_)) | None => Ok(()),
    }
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Plaintext(stream) => Pin::new(stream).poll_read(cx, buf),
            Stream::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.stream {
            Stream::Plaintext(stream) => Pin::new(stream).poll_write(cx, buf),
            Stream::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.stream {
            Stream::Plaintext(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Stream::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Plaintext(stream) => stream.is_write_vectored(),
            Stream::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Plaintext(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Plaintext(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[test]
    fn a_certificate_without_a_role_may_make_no_call() {
        let mut request = Request::new(());
        request.extensions_mut().insert(Peer::Certified(Err(RoleError::Missing)));
        let all = [peer_role(&request).map(|_| ()), require_node(&request).map(|_| ()), refuse_admin(&request)];
        for refused in all {
            let refused = refused.unwrap_err();
            assert_eq!(refused.code(), Code::PermissionDenied);
            assert!(refused.message().contains("varve admin certs"), "{refused}");
        }
    }

    #[test]
    fn an_administrator_is_neither_a_node_nor_a_router() {
        let mut request = Request::new(());
        request.extensions_mut().insert(Peer::Certified(Role::admin("a")));
        assert_eq!(peer_role(&request).unwrap(), Some(Role::Admin("a".to_owned())));
        for refused in [require_node(&request).map(|_| ()), refuse_admin(&request)] {
            let refused = refused.unwrap_err();
            assert_eq!(refused.code(), Code::PermissionDenied);
            assert!(refused.message().contains("admin a"), "{refused}");
        }
    }
}
