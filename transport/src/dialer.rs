//! Connections to nodes, from routers and from other nodes.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Status};
use tower::{BoxError, service_fn};

use crate::credentials::Credentials;
use crate::fault;
use crate::role::Role;

/// Size of the buffer between the TLS stream and HTTP/2, in bytes: that of the largest TLS record.
const BUFFER_BYTES: usize = 16 << 10;
/// Time limit to make a connection, unless the caller sets another one.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);

/// Maker of connections to nodes: all with TLS, or all without. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Dialer {
    credentials: Option<Arc<Credentials>>,
}

/// Error of an address of a node.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// The address is not of the form `HOST:PORT`.
    #[error("{0:?} must be HOST:PORT")]
    Address(String),
    /// The URL is not of the form `http://HOST:PORT`.
    #[error("{0:?} must be http://HOST:PORT, or https://HOST:PORT with --tls-ca, --tls-cert and --tls-key")]
    Url(String),
    /// The URL needs TLS, and there is no certificate.
    #[error("{0:?} needs --tls-ca, --tls-cert and --tls-key")]
    NeedsCredentials(String),
    /// The URL has no TLS, and there is a certificate.
    #[error("{0:?} must be https://HOST:PORT, because --tls-ca, --tls-cert and --tls-key are given")]
    NeedsHttps(String),
}

/// The reason why there is no connection to a node with the security that one end requires, although the node's port
/// accepts connections.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct DialError(String);

impl DialError {
    /// Returns the reason in the sources of a status, if the call failed for such a reason.
    #[must_use]
    pub fn of(status: &Status) -> Option<Self> {
        let mut source = std::error::Error::source(status);
        // The code of a connection that the node has ended with the HTTP/2 error INADEQUATE_SECURITY.
        let is_insecure = status.code() == Code::PermissionDenied;
        if is_insecure && source.is_some_and(|error| error.is::<tonic::transport::Error>()) {
            let text = "the node requires TLS: give --tls-ca, --tls-cert and --tls-key, and an https:// URL";
            return Some(Self(text.to_owned()));
        }
        while let Some(error) = source {
            if let Some(error) = error.downcast_ref::<Self>() {
                return Some(error.clone());
            }
            source = error.source();
        }
        None
    }
}

impl Dialer {
    /// Makes connections without TLS.
    #[must_use]
    pub fn plaintext() -> Self {
        Self::default()
    }

    /// Makes connections with TLS. The peer must be a node with a certificate of the same CA, for the host that is
    /// dialed.
    #[must_use]
    pub fn tls(credentials: Arc<Credentials>) -> Self {
        Self { credentials: Some(credentials) }
    }

    fn scheme(&self) -> &'static str {
        if self.credentials.is_some() { "https" } else { "http" }
    }

    /// Returns the endpoint of the node at `address`, which is `HOST:PORT`.
    ///
    /// # Errors
    /// [`AddressError::Address`] if it is not an address.
    pub fn endpoint(&self, address: &str) -> Result<Endpoint, AddressError> {
        let wrong = || AddressError::Address(address.to_owned());
        let uri: Uri = format!("{}://{address}", self.scheme()).parse().map_err(|_no_uri| wrong())?;
        // An address with a user, a path or no port is refused.
        let is_address = uri.authority().is_some_and(|authority| authority.as_str() == address)
            && !address.contains('@')
            && uri.port_u16().is_some()
            && uri.host().is_some_and(|host| !host.is_empty());
        if is_address { Ok(Endpoint::from(uri).connect_timeout(CONNECT_PATIENCE)) } else { Err(wrong()) }
    }

    /// Returns the endpoint of the node at `url`, whose scheme must be `https` exactly if connections have TLS.
    ///
    /// # Errors
    /// Returns an [`AddressError`] if it is not such a URL.
    pub fn endpoint_of_url(&self, url: &str) -> Result<Endpoint, AddressError> {
        let Some((scheme, address)) = url.split_once("://") else { return Err(AddressError::Url(url.to_owned())) };
        match (scheme, self.scheme()) {
            ("https", "http") => return Err(AddressError::NeedsCredentials(url.to_owned())),
            ("http", "https") => return Err(AddressError::NeedsHttps(url.to_owned())),
            ("http" | "https", _) => {}
            _ => return Err(AddressError::Url(url.to_owned())),
        }
        let address = address.strip_suffix('/').unwrap_or(address);
        self.endpoint(address).map_err(|_wrong| AddressError::Url(url.to_owned()))
    }

    /// Returns a channel to an endpoint of [`Dialer::endpoint`]. The connection is made on the first call, and again
    /// after it breaks.
    #[must_use]
    pub fn connect_lazy(&self, endpoint: &Endpoint) -> Channel {
        let Some(credentials) = &self.credentials else { return endpoint.connect_lazy() };
        let credentials = Arc::clone(credentials);
        let connector = service_fn(move |uri: Uri| {
            let credentials = Arc::clone(&credentials);
            async move { Ok::<_, BoxError>(TokioIo::new(dial(&uri, &credentials).await?)) }
        });
        endpoint.connect_with_connector_lazy(connector)
    }
}

/// Makes a TLS connection to the node at `uri`. Returns it after the node has accepted this process's certificate.
async fn dial(uri: &Uri, credentials: &Arc<Credentials>) -> Result<BufReader<TlsStream<TcpStream>>, BoxError> {
    let refused = |text: String| BoxError::from(DialError(text));
    let host = uri.host().unwrap_or_default();
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let name = ServerName::try_from(host.to_owned());
    let name = name.map_err(|error| refused(format!("{host:?} is no name of a host: {error}")))?;
    let stream = TcpStream::connect((host, uri.port_u16().unwrap_or_default())).await?;
    stream.set_nodelay(true)?;
    let connector = TlsConnector::from(credentials.current().await.client);
    let failed = |error: io::Error| refused(fault::of_dialing(&error));
    let stream = connector.connect(name, stream).await.map_err(failed)?;
    let (_, session) = stream.get_ref();
    match session.peer_certificates().and_then(|chain| chain.first()).map(Role::of) {
        Some(Ok(Role::Node(_))) => {}
        Some(Ok(other)) => return Err(refused(format!("its certificate is that of {other}, and not of a node"))),
        Some(Err(fault)) => return Err(refused(format!("its certificate has no role: {fault}"))),
        None => return Err(refused("the node has no certificate".to_owned())),
    }
    // The handshake of TLS 1.3 ends for the client before the server has checked the client's certificate. The first
    // bytes of the server, which are its HTTP/2 settings, show that the certificate was accepted.
    let mut stream = BufReader::with_capacity(BUFFER_BYTES, stream);
    match stream.fill_buf().await {
        Ok([]) => Err(failed(io::ErrorKind::UnexpectedEof.into())),
        Ok(_settings) => Ok(stream),
        Err(error) => Err(failed(error)),
    }
}
