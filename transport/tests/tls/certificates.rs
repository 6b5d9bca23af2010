//! Certificates of any kind, valid or not.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, SanType};
use tempfile::TempDir;
use transport::{Credentials, CredentialsError, TlsFiles};

const DAY: Duration = Duration::from_secs(86_400);

/// A CA.
pub(crate) struct Ca {
    issuer: Issuer<'static, KeyPair>,
    /// Certificate of the CA.
    pub(crate) pem: String,
}

impl Ca {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }
}

/// A certificate to make. The default is a valid one of node 1 at localhost.
#[derive(Clone)]
pub(crate) struct Leaf<'a> {
    pub(crate) uris: &'a [&'a str],
    pub(crate) host: &'a str,
    pub(crate) not_before: SystemTime,
    pub(crate) not_after: SystemTime,
    pub(crate) usages: &'a [ExtendedKeyUsagePurpose],
}

impl Default for Leaf<'_> {
    fn default() -> Self {
        let now = SystemTime::now();
        Self {
            uris: &["varve://node/1"],
            host: "127.0.0.1",
            not_before: now - DAY,
            not_after: now + DAY,
            usages: &[ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth],
        }
    }
}

/// A certificate of a router.
pub(crate) fn router() -> Leaf<'static> {
    Leaf { uris: &["varve://router/a"], usages: &[ExtendedKeyUsagePurpose::ClientAuth], ..Leaf::default() }
}

pub(crate) fn expired() -> Leaf<'static> {
    Leaf { not_before: SystemTime::now() - 2 * DAY, not_after: SystemTime::now() - DAY, ..Leaf::default() }
}

pub(crate) fn not_yet_valid() -> Leaf<'static> {
    Leaf { not_before: SystemTime::now() + DAY, not_after: SystemTime::now() + 2 * DAY, ..Leaf::default() }
}

/// The files of a process, in PEM.
#[derive(Clone)]
pub(crate) struct Pem {
    pub(crate) ca: String,
    pub(crate) cert: String,
    pub(crate) key: String,
}

impl Pem {
    /// Returns these files with another CA.
    pub(crate) fn with_ca(self, ca: &Ca) -> Self {
        Self { ca: ca.pem.clone(), ..self }
    }
}

impl Leaf<'_> {
    fn params(&self) -> CertificateParams {
        let mut params = CertificateParams::new(vec![self.host.to_owned()]).unwrap();
        params.subject_alt_names.extend(self.uris.iter().map(|&uri| SanType::URI(uri.try_into().unwrap())));
        params.not_before = self.not_before.into();
        params.not_after = self.not_after.into();
        params.extended_key_usages = self.usages.to_vec();
        params
    }

    /// Makes the certificate, as one of `ca`.
    pub(crate) fn of(&self, ca: &Ca) -> Pem {
        let key = KeyPair::generate().unwrap();
        let cert = self.params().signed_by(&key, &ca.issuer).unwrap().pem();
        Pem { ca: ca.pem.clone(), cert, key: key.serialize_pem() }
    }

    /// Makes the certificate, signed by its own key. `ca` is the CA that the process accepts.
    pub(crate) fn self_signed(&self, ca: &Ca) -> Pem {
        let key = KeyPair::generate().unwrap();
        let cert = self.params().self_signed(&key).unwrap().pem();
        Pem { ca: ca.pem.clone(), cert, key: key.serialize_pem() }
    }
}

/// The files of a process, in a directory of their own.
pub(crate) struct Process {
    folder: TempDir,
}

impl Process {
    pub(crate) fn new(pem: &Pem) -> Self {
        let process = Self { folder: tempfile::tempdir().unwrap() };
        process.write(pem);
        process
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn files(&self) -> TlsFiles {
        let [ca, cert, key] = ["ca.pem", "cert.pem", "key.pem"].map(|name| self.path().join(name));
        TlsFiles { ca, cert, key }
    }

    /// Replaces the files one after another, as a tool that rotates certificates does.
    pub(crate) fn write(&self, pem: &Pem) {
        let TlsFiles { ca, cert, key } = self.files();
        for (path, text) in [(ca, &pem.ca), (cert, &pem.cert), (key, &pem.key)] {
            let new = self.path().join("new");
            fs::write(&new, text).unwrap();
            fs::rename(&new, path).unwrap();
        }
    }

    pub(crate) fn load(&self) -> Result<Arc<Credentials>, CredentialsError> {
        Credentials::load(self.files())
    }
}

/// Returns the credentials of a process with these files.
pub(crate) fn credentials(pem: &Pem) -> Arc<Credentials> {
    Process::new(pem).load().unwrap()
}
