//! The CA of a cluster: opened from its files, or made.

use std::path::Path;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, bail, ensure};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    PublicKeyData as _, SanType,
};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use transport::Role;

use super::files::{self, Kind};
use super::subject::Subject;

const DAY: Duration = Duration::from_secs(86_400);
/// Validity of a new CA.
const CA_VALIDITY: Duration = Duration::from_secs(10 * 365 * 86_400);
/// Time before now from which certificates are valid, because clocks of other hosts may be behind.
const CLOCK_DIFFERENCE: Duration = Duration::from_secs(3600);

/// Name of the file of the CA's certificate.
pub(super) const CERTIFICATE: &str = "ca.pem";
/// Name of the file of the CA's private key.
pub(super) const KEY: &str = "ca.key";

/// The CA of a cluster.
pub(super) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Certificate in PEM, if the CA is new.
    new: Option<String>,
    /// Time until which the CA is valid.
    pub(super) expires: SystemTime,
}

impl Authority {
    /// Opens the CA in `dir`, or makes a new one if there is none. Writes nothing.
    ///
    /// # Errors
    /// One of the two files is missing, or the CA cannot be used.
    pub(super) fn open_or_make(dir: &Path, now: SystemTime) -> anyhow::Result<Self> {
        let certificate_path = dir.join(CERTIFICATE);
        let key_path = dir.join(KEY);
        match (files::read(&certificate_path)?, files::read(&key_path)?) {
            (None, None) => Self::make(now),
            (Some(certificate), Some(key)) => {
                let opened = Self::open(&certificate, &key, now);
                opened.with_context(|| format!("the CA in {} and {KEY}", certificate_path.display()))
            }
            (Some(_), None) => bail!(
                "{} exists without {KEY}: put {KEY} there to use this CA, or use another --dir",
                certificate_path.display()
            ),
            (None, Some(_)) => bail!(
                "{} exists without {CERTIFICATE}: put {CERTIFICATE} there to use this CA, or use another --dir",
                key_path.display()
            ),
        }
    }

    fn make(now: SystemTime) -> anyhow::Result<Self> {
        let key = KeyPair::generate().context("making the key of the CA")?;
        let mut params = CertificateParams::default();
        // Two CAs have different names, so that a certificate of the other CA is recognised as such.
        let identifier = params.key_identifier(&key);
        let identifier: String = identifier.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
        params.distinguished_name.push(DnType::CommonName, format!("varve CA {identifier}"));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let expires = now + CA_VALIDITY;
        params.not_before = (now - CLOCK_DIFFERENCE).into();
        params.not_after = expires.into();
        let certificate = params.self_signed(&key).context("making the CA")?;
        Ok(Self { issuer: Issuer::new(params, key), new: Some(certificate.pem()), expires })
    }

    fn open(certificate: &[u8], key: &[u8], now: SystemTime) -> anyhow::Result<Self> {
        let der = CertificateDer::from_pem_slice(certificate).map_err(|_pem| {
            anyhow::anyhow!("{CERTIFICATE} holds no complete certificate in PEM: restore it from a copy")
        })?;
        let key = std::str::from_utf8(key).ok().and_then(|key| KeyPair::from_pem(key).ok());
        let key = key.with_context(|| format!("{KEY} holds no complete private key in PEM: restore it from a copy"))?;
        let (_, parsed) = x509_parser::parse_x509_certificate(&der).context(CERTIFICATE)?;
        ensure!(parsed.is_ca(), "{CERTIFICATE} is no CA");
        ensure!(
            parsed.public_key().raw == key.subject_public_key_info(),
            "{KEY} is not the key of {CERTIFICATE}: restore both from one copy"
        );
        let expires = u64::try_from(parsed.validity().not_after.timestamp()).unwrap_or(0);
        let expires = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(expires)).unwrap_or(now);
        ensure!(
            expires > now,
            "it expired at {}: make a new CA in another --dir, and certificates of it for all nodes and routers",
            humantime::format_rfc3339_seconds(expires)
        );
        let issuer = Issuer::from_ca_cert_der(&der, key).context(CERTIFICATE)?;
        Ok(Self { issuer, new: None, expires })
    }

    /// Returns true if the CA was not opened, but made.
    pub(super) fn is_new(&self) -> bool {
        self.new.is_some()
    }

    /// Writes the files of a new CA. Never replaces a file.
    pub(super) fn write_if_new(&self, dir: &Path) -> anyhow::Result<()> {
        let Some(certificate) = &self.new else { return Ok(()) };
        files::write(&dir.join(KEY), self.issuer.key().serialize_pem().as_bytes(), Kind::NewSecret)?;
        files::write(&dir.join(CERTIFICATE), certificate.as_bytes(), Kind::NewPublic)
    }

    /// Returns the time until which certificates with this validity are valid.
    ///
    /// # Errors
    /// The validity is zero, or ends after that of the CA.
    pub(super) fn expiry_of_certificates(&self, now: SystemTime, validity: Duration) -> anyhow::Result<SystemTime> {
        ensure!(!validity.is_zero(), "--validity must be longer than 0");
        match now.checked_add(validity) {
            Some(expires) if expires <= self.expires => Ok(expires),
            _ => {
                let left = self.expires.duration_since(now).unwrap_or_default();
                bail!(
                    "--validity ends after that of the CA, at {}: use at most {}d",
                    humantime::format_rfc3339_seconds(self.expires),
                    left.as_secs() / DAY.as_secs()
                )
            }
        }
    }

    /// Makes the certificate of a subject for a key, in PEM.
    pub(super) fn issue(
        &self,
        subject: &Subject,
        key: &KeyPair,
        now: SystemTime,
        expires: SystemTime,
    ) -> anyhow::Result<String> {
        let Subject { role, hosts } = subject;
        let mut params = CertificateParams::new(hosts.clone()).context("hosts")?;
        params.subject_alt_names.push(SanType::URI(role.uri().try_into().context("role")?));
        params.distinguished_name.remove(DnType::CommonName);
        params.distinguished_name.push(DnType::CommonName, format!("varve {role}"));
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        // Routers and administrators only dial, so its certificate cannot pose as a server.
        params.extended_key_usages = match role {
            Role::Node(_) => vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth],
            Role::Router(_) | Role::Admin(_) => vec![ExtendedKeyUsagePurpose::ClientAuth],
        };
        params.use_authority_key_identifier_extension = true;
        params.not_before = (now - CLOCK_DIFFERENCE).into();
        params.not_after = expires.into();
        let certificate = params.signed_by(key, &self.issuer).with_context(|| format!("the certificate of {role}"))?;
        Ok(certificate.pem())
    }
}
