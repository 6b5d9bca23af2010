//! Connections that are refused, and what each end learns.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rcgen::ExtendedKeyUsagePurpose;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{AlertDescription, ClientConfig, Error, RootCertStore, ServerConfig};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tonic::Code;
use transport::{DialError, Dialer};

use crate::certificates::{Ca, Leaf, Pem, credentials, expired, not_yet_valid, router};
use crate::service::{call_once, serve, serve_badly};

fn chain(pem: &Pem) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
    let chain = CertificateDer::pem_slice_iter(pem.cert.as_bytes()).map(Result::unwrap).collect();
    (chain, PrivateKeyDer::from_pem_slice(pem.key.as_bytes()).unwrap())
}

/// Connects with a certificate that need not be valid, or with none. Returns the alert with which the server refuses
/// it.
async fn alert(address: &str, ca: &Ca, pem: Option<&Pem>) -> Option<AlertDescription> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca.pem.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots);
    let mut config = match pem.map(chain) {
        Some((chain, key)) => config.with_client_auth_cert(chain, key).unwrap(),
        None => config.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    let stream = TcpStream::connect(address).await.unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let answer = async {
        let mut stream = connector.connect(ServerName::try_from("127.0.0.1").unwrap(), stream).await?;
        stream.read_u8().await
    };
    let error: io::Error = answer.await.err()?;
    match error.get_ref().and_then(|error| error.downcast_ref()) {
        Some(Error::AlertReceived(alert)) => Some(*alert),
        _ => panic!("no alert: {error}"),
    }
}

#[tokio::test]
async fn roles_follow_from_certificates() {
    let ca = Ca::new("ca");
    let address = serve(Some(credentials(&Leaf::default().of(&ca)))).await;
    let node = Dialer::tls(credentials(&Leaf { uris: &["varve://node/2"], ..Leaf::default() }.of(&ca)));
    assert_eq!(call_once(&node, &address, "role").await.unwrap(), "node 2");
    assert_eq!(call_once(&node, &address, "node").await.unwrap(), "Some(2)");
    let router = Dialer::tls(credentials(&router().of(&ca)));
    assert_eq!(call_once(&router, &address, "role").await.unwrap(), "router a");
    let refused = call_once(&router, &address, "node").await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);
    assert!(refused.message().contains("router a") && refused.message().contains("only nodes"), "{refused}");
    let plaintext = serve(None).await;
    assert_eq!(call_once(&Dialer::plaintext(), &plaintext, "role").await.unwrap(), "nobody");
    assert_eq!(call_once(&Dialer::plaintext(), &plaintext, "node").await.unwrap(), "None");
}

#[tokio::test]
async fn a_node_refuses_invalid_certificates_and_serves_on() {
    let ca = Ca::new("ca");
    let address = serve(Some(credentials(&Leaf::default().of(&ca)))).await;
    let foreign = Ca::new("another");
    // A CA with the same name and another key.
    let twin = Ca::new("ca");
    let only_server = Leaf { usages: &[ExtendedKeyUsagePurpose::ServerAuth], ..Leaf::default() };
    let cases = [
        ("expired", expired().of(&ca), AlertDescription::CertificateExpired),
        ("not yet valid", not_yet_valid().of(&ca), AlertDescription::CertificateExpired),
        ("another CA", Leaf::default().of(&foreign), AlertDescription::UnknownCA),
        ("another CA of this name", Leaf::default().of(&twin), AlertDescription::DecryptError),
        ("self-signed", Leaf::default().self_signed(&ca), AlertDescription::UnknownCA),
        ("only for servers", only_server.of(&ca), AlertDescription::UnsupportedCertificate),
    ];
    for (case, pem, wanted) in &cases {
        assert_eq!(alert(&address, &ca, Some(pem)).await, Some(*wanted), "{case}");
    }
    assert_eq!(alert(&address, &ca, None).await, Some(AlertDescription::CertificateRequired));
    assert_eq!(alert(&address, &ca, Some(&router().of(&ca))).await, None, "a valid one is accepted");
}

#[tokio::test]
async fn a_client_learns_why_its_certificate_is_refused() {
    let ca = Ca::new("ca");
    let other = Ca::new("another");
    // Each end accepts the other's CA, except for the node, which does not accept that of the client.
    let address = serve(Some(credentials(&Leaf::default().of(&ca)))).await;
    let mut pem = router().of(&other);
    pem.ca = format!("{}{}", other.pem, ca.pem);
    let refused = call_once(&Dialer::tls(credentials(&pem)), &address, "role").await.unwrap_err();
    let reason = DialError::of(&refused).expect("a reason").to_string();
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(reason.contains("--tls-cert") && reason.contains("another CA"), "{reason}");
    // Certificates of the CA that name no role or several.
    for (uris, wanted) in
        [(&[][..], "Role"), (&["varve://node/1", "varve://router/a"][..], "Role"), (&["varve://agent/1"][..], "Role")]
    {
        let pem = Leaf { uris, ..Leaf::default() }.of(&ca);
        let error = crate::certificates::Process::new(&pem).load().unwrap_err();
        assert!(format!("{error:?}").starts_with(wanted), "{error:?}");
        assert_eq!(alert(&address, &ca, Some(&pem)).await, None, "the call itself is refused");
    }
}

/// Returns the configuration of a server that shows any certificate, and requires none.
fn showing(pem: &Pem) -> ServerConfig {
    let (chain, key) = chain(pem);
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
    let config = config.with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    config.with_single_cert(chain, key).unwrap()
}

#[tokio::test]
async fn a_client_refuses_servers_that_are_not_the_node() {
    let ca = Ca::new("ca");
    let dialer = Dialer::tls(credentials(&router().of(&ca)));
    let both = &[ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
    let cases = [
        (expired().of(&ca), "has expired"),
        (not_yet_valid().of(&ca), "not valid yet"),
        (Leaf::default().of(&Ca::new("another")), "another CA"),
        (Leaf::default().of(&Ca::new("ca")), "another CA"),
        (Leaf::default().self_signed(&ca), "another CA"),
        (Leaf { host: "db1.example", ..Leaf::default() }.of(&ca), "db1.example"),
        (Leaf { host: "127.0.0.2", ..Leaf::default() }.of(&ca), "--node ID=HOST"),
        (router().of(&ca), "needs the certificate of a node"),
        (Leaf { usages: both, ..router() }.of(&ca), "router a"),
        (Leaf { uris: &[], ..Leaf::default() }.of(&ca), "no role"),
    ];
    for (pem, wanted) in &cases {
        let address = serve_badly(showing(pem)).await;
        let refused = call_once(&dialer, &address, "role").await.unwrap_err();
        let reason = DialError::of(&refused).unwrap_or_else(|| panic!("{wanted}: {refused:?}")).to_string();
        assert!(reason.contains(wanted), "{wanted}: {reason}");
    }
}

#[tokio::test]
async fn each_end_without_tls_is_told_to_use_it() {
    let ca = Ca::new("ca");
    let tls = Dialer::tls(credentials(&router().of(&ca)));
    let plaintext = serve(None).await;
    let refused = call_once(&tls, &plaintext, "role").await.unwrap_err();
    let reason = DialError::of(&refused).expect("a reason").to_string();
    assert!(reason.contains("does not use TLS") && reason.contains("--tls-ca"), "{reason}");
    let secured = serve(Some(credentials(&Leaf::default().of(&ca)))).await;
    for _ in 0..50 {
        let refused = call_once(&Dialer::plaintext(), &secured, "role").await.unwrap_err();
        let reason = DialError::of(&refused).unwrap_or_else(|| panic!("no reason: {refused:?}")).to_string();
        assert!(reason.contains("requires TLS") && reason.contains("--tls-ca"), "{reason}");
        // Clients that are not varve find a text as well.
        assert!(format!("{refused:?}").contains("this port requires TLS"), "{refused:?}");
    }
    assert_eq!(call_once(&tls, &secured, "role").await.unwrap(), "router a");
    // Nothing listens here, which is no fault of TLS.
    let refused = call_once(&tls, "127.0.0.1:1", "role").await.unwrap_err();
    assert!(DialError::of(&refused).is_none() && refused.code() == Code::Unavailable, "{refused:?}");
}

#[tokio::test]
async fn silent_and_hostile_clients_end_alone_and_in_time() {
    let ca = Ca::new("ca");
    let address = serve(Some(credentials(&Leaf::default().of(&ca)))).await;
    let mut silent = TcpStream::connect(&address).await.unwrap();
    let mut half = TcpStream::connect(&address).await.unwrap();
    // The header of a TLS handshake of 512 bytes, and nothing after it.
    half.write_all(&[22, 3, 1, 2, 0, 1]).await.unwrap();
    let hostile: [&[u8]; 6] = [
        &[22],
        &[22, 3, 1, 0xff, 0xff, 1, 2, 3],
        &[22, 3, 3, 0, 4, 1, 0, 0, 0],
        b"GET / HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        &[0; 100_000],
    ];
    for bytes in hostile {
        let mut client = TcpStream::connect(&address).await.unwrap();
        let _may_be_refused_early = client.write_all(bytes).await;
        let _may_be_refused_early = client.shutdown().await;
        let mut answer = Vec::new();
        let ended = tokio::time::timeout(Duration::from_secs(8), client.read_to_end(&mut answer)).await;
        assert!(ended.is_ok() && answer.len() < 1000, "{bytes:?}");
    }
    let router = Dialer::tls(credentials(&router().of(&ca)));
    assert_eq!(call_once(&router, &address, "role").await.unwrap(), "router a", "others are served");
    for client in [&mut silent, &mut half] {
        let ended = tokio::time::timeout(Duration::from_secs(8), client.read_to_end(&mut Vec::new())).await;
        assert!(ended.is_ok(), "the server waits for ever");
    }
}
