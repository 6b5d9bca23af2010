//! Role of a process of the cluster, which its certificate carries as a URI: `varve://node/1`, `varve://router/a` or
//! `varve://admin/a`.

use std::fmt;

use rustls::pki_types::CertificateDer;
use webpki::EndEntityCert;

/// Maximum length of the name of a router or an administrator, in bytes.
const NAME_BYTES_MAX: usize = 63;

/// Role of a process of the cluster. A node stores data and takes part in Raft; a router only calls nodes; an
/// administrator reads and changes the state of the cluster, and no profiles.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// The node with this number, which is not zero.
    Node(u64),
    /// The router with this name.
    Router(String),
    /// The administrator with this name.
    Admin(String),
}

/// The reason why a certificate or a name has no [`Role`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RoleError {
    /// The certificate cannot be parsed.
    #[error("it is no X.509 certificate that varve can read")]
    Unreadable,
    /// The certificate has no URI that begins with `varve://`.
    #[error("it names no role, such as varve://node/1: make it with `varve admin certs`")]
    Missing,
    /// The certificate has several URIs that begin with `varve://`.
    #[error("it names several roles, and must name one")]
    Several,
    /// The URI is not that of a node, a router or an administrator.
    #[error("{0:?} is no role: it must be varve://node/NUMBER, varve://router/NAME or varve://admin/NAME")]
    Unknown(String),
    /// The name of a router or an administrator has an invalid length or character.
    #[error(
        "{0:?} is no name of a router or an administrator: use 1 to {NAME_BYTES_MAX} letters, digits, '-', '_' and '.'"
    )]
    Name(String),
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(id) => write!(f, "node {id}"),
            Self::Router(name) => write!(f, "router {name}"),
            Self::Admin(name) => write!(f, "admin {name}"),
        }
    }
}

impl Role {
    /// Returns the role of a router with this name.
    ///
    /// # Errors
    /// [`RoleError::Name`] if the name is empty, too long, or has other characters than letters, digits, `-`, `_`, `.`.
    pub fn router(name: &str) -> Result<Self, RoleError> {
        checked(name).map(Self::Router)
    }

    /// Returns the role of an administrator with this name.
    ///
    /// # Errors
    /// [`RoleError::Name`] as for [`Role::router`].
    pub fn admin(name: &str) -> Result<Self, RoleError> {
        checked(name).map(Self::Admin)
    }

    /// Returns the URI that a certificate carries for this role.
    #[must_use]
    pub fn uri(&self) -> String {
        match self {
            Self::Node(id) => format!("varve://node/{id}"),
            Self::Router(name) => format!("varve://router/{name}"),
            Self::Admin(name) => format!("varve://admin/{name}"),
        }
    }

    /// Parses the URI of a role.
    ///
    /// # Errors
    /// The URI is not that of a role.
    pub fn from_uri(uri: &str) -> Result<Self, RoleError> {
        let unknown = || RoleError::Unknown(uri.chars().take(2 * NAME_BYTES_MAX).collect());
        match uri.strip_prefix("varve://").and_then(|path| path.split_once('/')) {
            Some(("node", id)) => {
                // One number has one URI, so "01" and "+1" are refused.
                let number = id.parse::<u64>().ok().filter(|number| *number > 0 && number.to_string() == id);
                number.map(Self::Node).ok_or_else(unknown)
            }
            Some(("router", name)) => Self::router(name),
            Some(("admin", name)) => Self::admin(name),
            _ => Err(unknown()),
        }
    }

    /// Returns the role that a certificate carries. URIs of other schemes are ignored.
    ///
    /// # Errors
    /// The certificate cannot be parsed, or has not exactly one role.
    pub fn of(certificate: &CertificateDer<'_>) -> Result<Self, RoleError> {
        let parsed = EndEntityCert::try_from(certificate).map_err(|_unreadable| RoleError::Unreadable)?;
        let mut uris = parsed.valid_uri_names().filter(|uri| uri.starts_with("varve://"));
        let uri = uris.next().ok_or(RoleError::Missing)?;
        if uris.next().is_some() {
            return Err(RoleError::Several);
        }
        Self::from_uri(uri)
    }
}

/// Returns a name if its length and its characters are allowed.
fn checked(name: &str) -> Result<String, RoleError> {
    let is_valid = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.');
    if name.is_empty() || name.len() > NAME_BYTES_MAX || !name.bytes().all(is_valid) {
        return Err(RoleError::Name(name.chars().take(2 * NAME_BYTES_MAX).collect()));
    }
    Ok(name.to_owned())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_no_uri_of_a_role_is_refused() {
        for uri in [
            "",
            "varve://",
            "varve://node/",
            "varve://node/0",
            "varve://node/01",
            "varve://node/+1",
            "varve://node/1/2",
            "varve://node/18446744073709551616",
            "varve://router/",
            "varve://router/a b",
            "varve://router/a/b",
            "varve://admin/",
            "varve://admin/a b",
            "varve://agent/1",
            "VARVE://node/1",
            "spiffe://node/1",
        ] {
            assert!(Role::from_uri(uri).is_err(), "{uri}");
        }
        assert!(Role::router(&"a".repeat(NAME_BYTES_MAX)).is_ok());
        assert!(Role::router(&"a".repeat(NAME_BYTES_MAX + 1)).is_err());
        let long = Role::from_uri(&format!("varve://{}", "é".repeat(1 << 20))).unwrap_err();
        assert!(long.to_string().len() < 1000, "errors are bounded");
    }

    #[test]
    fn bytes_that_are_no_certificate_have_no_role() {
        for bytes in [&[][..], &[0x30], &[0x30, 0x82, 0xff, 0xff, 0x30], &[0xff; 4096]] {
            assert_eq!(Role::of(&CertificateDer::from(bytes)), Err(RoleError::Unreadable));
        }
    }

    /// Returns a self-signed certificate with these URIs as subject alternative names.
    fn certificate(uris: &[String]) -> CertificateDer<'static> {
        let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        let uris = uris.iter().map(|uri| rcgen::SanType::URI(uri.as_str().try_into().unwrap()));
        params.subject_alt_names.extend(uris);
        params.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    #[test]
    fn a_certificate_has_exactly_one_role() {
        let of = |uris: &[&str]| Role::of(&certificate(&uris.iter().map(|&uri| uri.to_owned()).collect::<Vec<_>>()));
        assert_eq!(of(&[]), Err(RoleError::Missing));
        assert_eq!(of(&["spiffe://example/node/1"]), Err(RoleError::Missing));
        assert_eq!(of(&["varve://node/1", "varve://node/2"]), Err(RoleError::Several));
        assert_eq!(of(&["varve://node/1", "varve://router/a"]), Err(RoleError::Several));
        assert_eq!(of(&["spiffe://example/node/1", "varve://node/7"]), Ok(Role::Node(7)));
        assert!(matches!(of(&["varve://agent/1"]), Err(RoleError::Unknown(_))));
    }

    fn role() -> impl Strategy<Value = Role> {
        prop_oneof![
            (1..=u64::MAX).prop_map(Role::Node),
            "[A-Za-z0-9._-]{1,63}".prop_map(|name| Role::router(&name).unwrap()),
            "[A-Za-z0-9._-]{1,63}".prop_map(|name| Role::admin(&name).unwrap()),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn a_role_is_read_back_from_its_certificate(role in role()) {
            prop_assert_eq!(Role::from_uri(&role.uri()), Ok(role.clone()));
            prop_assert_eq!(Role::of(&certificate(&[role.uri()])), Ok(role));
        }

        #[test]
        fn a_damaged_certificate_gets_a_role_or_an_error(
            role in role(), cut in 0_usize..600, at in 0_usize..600, flip in 1_u8..,
        ) {
            let mut bytes = certificate(&[role.uri()]).to_vec();
            let length = bytes.len();
            bytes[at % length] ^= flip;
            bytes.truncate(length - cut % length);
            if let Err(error) = Role::of(&CertificateDer::from(bytes)) {
                prop_assert!(error.to_string().len() < 2000);
            }
        }
    }
}
