//! The CA, the certificate and the key of a process. The files are read again when they change.

use std::fmt;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig, version};

use crate::fault;
use crate::role::{Role, RoleError};

/// Maximum size of each file, in bytes. A certificate has about 1 kB, and a file may hold a chain of them.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Minimum time between two checks for changed files.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Protocol that both ends negotiate: HTTP/2.
const PROTOCOL: &[u8] = b"h2";

/// Paths of the PEM files of a process.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// Certificates of the CAs whose certificates are accepted.
    pub ca: PathBuf,
    /// Certificate of this process, followed by intermediate certificates if there are any.
    pub cert: PathBuf,
    /// Private key of the certificate.
    pub key: PathBuf,
}

/// Error of files that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// A file cannot be read.
    #[error("{option} {}: {source}", .path.display())]
    Read {
        /// Option that names the file.
        option: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// A file does not hold what its option needs.
    #[error("{option} {} holds no complete {content} in PEM: copy it again, or make it with `varve admin certs`",
        .path.display())]
    Pem {
        /// Option that names the file.
        option: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Content that the file should have.
        content: &'static str,
    },
    /// The certificate or the key cannot be used.
    #[error("the certificate in --tls-cert {} {fault}", .path.display())]
    Certificate {
        /// Path of the certificate.
        path: PathBuf,
        /// The fault and its remedy.
        fault: String,
    },
    /// The CA cannot be used.
    #[error("the CA in --tls-ca {} cannot be used: {fault}", .path.display())]
    Ca {
        /// Path of the CA.
        path: PathBuf,
        /// The fault.
        fault: String,
    },
    /// The certificate has no role.
    #[error("the certificate in --tls-cert {}: {source}", .path.display())]
    Role {
        /// Path of the certificate.
        path: PathBuf,
        /// The fault of the role.
        source: RoleError,
    },
}

/// The CA, the certificate and the key of a process. New connections use the present contents of the files. If these
/// are invalid, the last valid ones are used, and the log says so.
pub struct Credentials {
    files: TlsFiles,
    role: Role,
    state: Mutex<State>,
}

struct State {
    checked: Instant,
    /// Contents of the last check, or the text of its error.
    seen: Result<Contents, String>,
    current: Configs,
}

/// Configurations of both ends of a connection.
#[derive(Clone)]
pub(crate) struct Configs {
    pub(crate) server: Arc<ServerConfig>,
    pub(crate) client: Arc<ClientConfig>,
}

/// Contents of the files.
#[derive(PartialEq, Eq)]
struct Contents {
    ca: Vec<u8>,
    cert: Vec<u8>,
    key: Vec<u8>,
}

/// Prints no key, because the output ends up in logs.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("files", &self.files).field("role", &self.role).finish_non_exhaustive()
    }
}

impl Credentials {
    /// Reads the files and checks them: the certificate is valid now, it is of the CA, it names a role, and the key is
    /// its key.
    ///
    /// # Errors
    /// Returns the [`CredentialsError`] of the first check that fails.
    pub fn load(files: TlsFiles) -> Result<Arc<Self>, CredentialsError> {
        let contents = Contents::read(&files)?;
        let (role, current) = contents.configs(&files)?;
        let state = Mutex::new(State { checked: Instant::now(), seen: Ok(contents), current });
        Ok(Arc::new(Self { files, role, state }))
    }

    /// Role of this process.
    #[must_use]
    pub fn role(&self) -> &Role {
        &self.role
    }

    /// Returns the configurations for a new connection. Checks for changed files at most once per [`CHECK_INTERVAL`].
    pub(crate) async fn current(self: &Arc<Self>) -> Configs {
        let is_due = {
            let mut state = self.state.lock();
            let is_due = state.checked.elapsed() >= CHECK_INTERVAL;
            if is_due {
                state.checked = Instant::now();
            }
            is_due
        };
        if is_due {
            let this = Arc::clone(self);
            if let Err(panic) = tokio::task::spawn_blocking(move || this.reload()).await {
                tracing::error!(%panic, "the TLS files were not checked for changes");
            }
        }
        self.state.lock().current.clone()
    }

    /// Reads the files, and uses their contents from now on if they have changed and are valid.
    fn reload(&self) {
        let seen = Contents::read(&self.files).map_err(|error| error.to_string());
        if self.state.lock().seen == seen {
            return;
        }
        let renewed = match &seen {
            Ok(contents) => contents.configs(&self.files).map_err(|error| error.to_string()),
            Err(error) => Err(error.clone()),
        };
        let mut state = self.state.lock();
        state.seen = seen;
        match renewed {
            Ok((role, current)) if role == self.role => {
                state.current = current;
                tracing::info!("new connections use the TLS files that have changed");
            }
            Ok((other, _)) => tracing::warn!(
                "the certificate in --tls-cert {} is now that of {other}, and this is {}: the last one stays in use",
                self.files.cert.display(),
                self.role
            ),
            Err(error) => tracing::warn!("TLS files have changed, and the last valid ones stay in use: {error}"),
        }
    }
}

impl Contents {
    fn read(files: &TlsFiles) -> Result<Self, CredentialsError> {
        Ok(Self {
            ca: read("--tls-ca", &files.ca)?,
            cert: read("--tls-cert", &files.cert)?,
            key: read("--tls-key", &files.key)?,
        })
    }

    /// Checks the contents, and returns the role of the certificate and the configurations.
    fn configs(&self, files: &TlsFiles) -> Result<(Role, Configs), CredentialsError> {
        let cas = certificates("--tls-ca", &files.ca, &self.ca)?;
        let chain = certificates("--tls-cert", &files.cert, &self.cert)?;
        let pem =
            |_error| CredentialsError::Pem { option: "--tls-key", path: files.key.clone(), content: "private key" };
        let key = PrivateKeyDer::from_pem_slice(&self.key).map_err(pem)?;
        let ca_fault = |fault: String| CredentialsError::Ca { path: files.ca.clone(), fault };
        let mut roots = RootCertStore::empty();
        for ca in cas {
            roots.add(ca).map_err(|error| ca_fault(error.to_string()))?;
        }
        let roots = Arc::new(roots);
        let provider = Arc::new(ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider)).build();
        let verifier = verifier.map_err(|error| ca_fault(error.to_string()))?;
        let fault = |fault: String| CredentialsError::Certificate { path: files.cert.clone(), fault };
        let (own, intermediates) = chain.split_first().ok_or_else(|| fault("is missing".to_owned()))?;
        verifier.verify_client_cert(own, intermediates, UnixTime::now()).map_err(|error| match error {
            rustls::Error::InvalidCertificate(error) => fault(fault::certificate(&error)),
            other => fault(format!("cannot be used: {other}")),
        })?;
        let role = Role::of(own).map_err(|source| CredentialsError::Role { path: files.cert.clone(), source })?;
        let unusable = |error: rustls::Error| match error {
            rustls::Error::InconsistentKeys(_) => {
                fault(format!("does not belong to the key in --tls-key {}", files.key.display()))
            }
            other => fault(format!("cannot be used with the key in --tls-key {}: {other}", files.key.display())),
        };
        let server = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(&[&version::TLS13])
            .map_err(unusable)?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain.clone(), key.clone_key());
        let mut server = server.map_err(unusable)?;
        server.alpn_protocols = vec![PROTOCOL.to_vec()];
        // Every connection verifies both certificates, so that no old session outlives a certificate.
        server.send_tls13_tickets = 0;
        let client = client(provider, roots, chain, key).map_err(unusable)?;
        Ok((role, Configs { server: Arc::new(server), client: Arc::new(client) }))
    }
}

fn client(
    provider: Arc<CryptoProvider>,
    roots: Arc<RootCertStore>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ClientConfig, rustls::Error> {
    let mut client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&version::TLS13])?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)?;
    client.alpn_protocols = vec![PROTOCOL.to_vec()];
    client.resumption = Resumption::disabled();
    Ok(client)
}

fn read(option: &'static str, path: &Path) -> Result<Vec<u8>, CredentialsError> {
    let of = |source| CredentialsError::Read { option, path: path.to_owned(), source };
    let mut bytes = Vec::new();
    File::open(path).map_err(of)?.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(of)?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(of(io::Error::other(format!("the file is larger than {FILE_BYTES_MAX} bytes"))));
    }
    Ok(bytes)
}

/// Parses all certificates of a file, at least one.
fn certificates(
    option: &'static str,
    path: &Path,
    pem: &[u8],
) -> Result<Vec<CertificateDer<'static>>, CredentialsError> {
    match CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>() {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        _ => Err(CredentialsError::Pem { option, path: path.to_owned(), content: "certificate" }),
    }
}
