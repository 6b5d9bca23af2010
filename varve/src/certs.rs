//! `varve admin certs`: makes a CA, and the certificates of nodes, routers and administrators, as files in a directory.

mod authority;
mod files;
mod report;
mod subject;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::SystemTime;

use anyhow::{Context as _, bail};
use rcgen::KeyPair;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use transport::Role;

use self::authority::Authority;
pub(crate) use self::subject::Subject;
use crate::client;
use crate::command::CertsOptions;

/// A certificate to make, and what happens to its files.
struct Planned<'a> {
    subject: &'a Subject,
    /// True if files of the same role are replaced.
    renews: bool,
    /// Time until which the certificate is valid.
    expires: SystemTime,
}

/// Makes the files, and prints which they are and where they belong.
///
/// # Errors
/// A file exists that must not be replaced, the CA cannot be used, or a file cannot be written. Everything is checked
/// before the first file is written.
pub(crate) fn run(options: &CertsOptions) -> anyhow::Result<()> {
    let CertsOptions { dir, nodes, routers, admins, validity, dry_run, json } = options;
    let now = SystemTime::now();
    let subjects: Vec<&Subject> = nodes.iter().chain(routers).chain(admins).collect();
    let mut roles = BTreeSet::new();
    if let Some(twice) = subjects.iter().find(|subject| !roles.insert(subject.role.uri())) {
        bail!("{} is given twice: give all its hosts in one option, separated by commas", twice.role);
    }
    let authority = Authority::open_or_make(dir, now)?;
    let expires = authority.expiry_of_certificates(now, *validity)?;
    let mut planned = Vec::new();
    for subject in subjects {
        planned.push(Planned { subject, renews: is_renewal(dir, subject)?, expires });
    }
    if !dry_run {
        files::make_directory(dir)?;
        authority.write_if_new(dir)?;
        for Planned { subject, expires, .. } in &planned {
            let key = KeyPair::generate().context("making a key")?;
            let certificate = authority.issue(subject, &key, now, *expires)?;
            // If the process ends between the two files, the next run replaces the certificate and makes the key.
            files::write(&dir.join(subject.certificate_name()), certificate.as_bytes(), files::Kind::Public)?;
            files::write(&dir.join(subject.key_name()), key.serialize_pem().as_bytes(), files::Kind::Secret)?;
        }
    }
    let report = report::Report { dir, authority: &authority, planned: &planned, dry_run: *dry_run };
    client::print(&if *json { report.json()? } else { report.text() })
}

/// Returns true if the files of a subject exist and may be replaced, because they have the same role; false if there
/// are none.
fn is_renewal(dir: &Path, subject: &Subject) -> anyhow::Result<bool> {
    let path = dir.join(subject.certificate_name());
    let Some(pem) = files::read(&path)? else {
        let key = dir.join(subject.key_name());
        if key.exists() {
            bail!("{} exists without its certificate: move it away, or use another --dir", key.display());
        }
        return Ok(false);
    };
    let shown = path.display();
    let Ok(certificate) = CertificateDer::from_pem_slice(&pem) else {
        bail!("{shown} exists and holds no certificate: move it away, or use another --dir");
    };
    match Role::of(&certificate) {
        Ok(role) if role == subject.role => Ok(true),
        Ok(role) => bail!(
            "{shown} exists and is the certificate of {role}, and not of {}: move it away, or use another --dir",
            subject.role
        ),
        Err(error) => {
            bail!("{shown} exists and is a foreign certificate ({error}): move it away, or use another --dir")
        }
    }
}

#[cfg(test)]
mod tests;
