//! Texts of TLS errors. Each names the fault and the remedy.

use std::io;

use rustls::{AlertDescription, CertificateError, Error};

/// Advice for a certificate whose time is wrong.
const RENEW: &str = "renew it with `varve admin certs`";

/// Returns the fault of a certificate, as the rest of a sentence whose subject is the certificate.
pub(crate) fn certificate(error: &CertificateError) -> String {
    match error {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            format!("has expired: {RENEW}, or correct the clock of this host")
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "is not valid yet: compare the clocks of this host and of the host where it was made".to_owned()
        }
        // The signature is wrong if two CAs have the same name.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "is of another CA than those in --tls-ca: all processes of a cluster need certificates of the same CA"
                .to_owned()
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => format!(
            "is for another host ({error}): use an address that it names, or make it again with `varve admin certs \
             --node ID=HOST`"
        ),
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "is not for this purpose: a node needs the certificate of a node, which is for servers and clients"
                .to_owned()
        }
        other => format!("is invalid: {other}"),
    }
}

/// Returns the meaning of an alert that the peer sent because of this process's certificate, as the rest of a sentence
/// whose subject is this certificate.
fn refused_certificate(alert: AlertDescription) -> Option<String> {
    Some(match alert {
        AlertDescription::CertificateExpired => format!(
            "has expired, or is not valid yet by the peer's clock: {RENEW}, or compare the clocks of both hosts"
        ),
        AlertDescription::UnknownCA | AlertDescription::DecryptError => {
            "is of another CA than those in the peer's --tls-ca: all processes of a cluster need certificates of the \
             same CA"
                .to_owned()
        }
        AlertDescription::UnsupportedCertificate => "is not for clients: make it with `varve admin certs`".to_owned(),
        AlertDescription::BadCertificate
        | AlertDescription::CertificateRevoked
        | AlertDescription::CertificateUnknown
        | AlertDescription::AccessDenied => format!("is invalid to the peer ({alert:?}): see the peer's log"),
        _ => return None,
    })
}

/// Returns the TLS error inside an I/O error.
fn inner(error: &io::Error) -> Option<&Error> {
    error.get_ref()?.downcast_ref()
}

/// Returns the reason why a client has no connection to a node.
pub(crate) fn of_dialing(error: &io::Error) -> String {
    match inner(error) {
        Some(Error::InvalidCertificate(error)) => format!("the node's certificate {}", certificate(error)),
        Some(Error::AlertReceived(alert)) => match refused_certificate(*alert) {
            Some(text) => format!("the certificate in --tls-cert {text}"),
            None => format!("the node refuses the TLS connection ({alert:?}): see the node's log"),
        },
        Some(Error::InvalidMessage(_)) => {
            "the node does not use TLS: start it with --tls-ca, --tls-cert and --tls-key, or use none of them here"
                .to_owned()
        }
        Some(other) => format!("TLS: {other}"),
        None => format!("the node ended the connection before it was established ({error}): see the node's log"),
    }
}

/// Returns the reason why a node refuses a connection.
pub(crate) fn of_accepting(error: &io::Error) -> String {
    match inner(error) {
        Some(Error::InvalidCertificate(error)) => format!("its certificate {}", certificate(error)),
        Some(Error::NoCertificatesPresented) => {
            "it has no certificate: it needs one of the cluster's CA, from `varve admin certs`".to_owned()
        }
        Some(Error::AlertReceived(alert)) => match refused_certificate(*alert) {
            Some(text) => format!("it refuses the certificate in --tls-cert, which {text}"),
            None => format!("it refuses the TLS connection ({alert:?})"),
        },
        Some(Error::PeerIncompatible(fault)) => format!("its TLS is incompatible, and TLS 1.3 is needed ({fault:?})"),
        Some(other) => format!("TLS: {other}"),
        None => format!("it ended the connection during the TLS handshake ({error})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_end_is_told_whose_certificate_is_at_fault() {
        let io = |error: Error| io::Error::new(io::ErrorKind::InvalidData, error);
        let expired = || Error::InvalidCertificate(CertificateError::Expired);
        assert!(of_dialing(&io(expired())).starts_with("the node's certificate has expired: renew"));
        assert!(of_accepting(&io(expired())).starts_with("its certificate has expired: renew"));
        let alert = |alert| io(Error::AlertReceived(alert));
        for (description, wanted) in [
            (AlertDescription::CertificateExpired, "has expired, or is not valid yet by the peer's clock"),
            (AlertDescription::UnknownCA, "another CA than those in the peer's --tls-ca"),
            (AlertDescription::DecryptError, "another CA than those in the peer's --tls-ca"),
            (AlertDescription::UnsupportedCertificate, "is not for clients"),
            (AlertDescription::BadCertificate, "see the peer's log"),
        ] {
            for text in [of_dialing(&alert(description)), of_accepting(&alert(description))] {
                assert!(text.contains("certificate in --tls-cert") && text.contains(wanted), "{text}");
            }
        }
        assert!(of_dialing(&alert(AlertDescription::ProtocolVersion)).contains("see the node's log"));
        assert!(of_accepting(&io(Error::NoCertificatesPresented)).contains("varve admin certs"));
        let ended = io::Error::from(io::ErrorKind::UnexpectedEof);
        assert!(of_dialing(&ended).contains("ended the connection") && of_accepting(&ended).contains("ended"));
    }
}
