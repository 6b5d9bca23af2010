//! Files that cannot be used, and what the error says.

use std::fs;

use crate::certificates::{Ca, Leaf, Pem, Process, expired, not_yet_valid, router};

fn error(pem: &Pem) -> String {
    Process::new(pem).load().unwrap_err().to_string()
}

#[test]
fn unusable_files_are_refused_with_their_option_and_a_remedy() {
    let ca = Ca::new("ca");
    let valid = Leaf::default().of(&ca);
    let cases = [
        (expired().of(&ca), "--tls-cert", "has expired"),
        (not_yet_valid().of(&ca), "--tls-cert", "compare the clocks"),
        (Pem { ca: Ca::new("another").pem, ..valid.clone() }, "--tls-cert", "another CA"),
        (Leaf::default().self_signed(&ca), "--tls-cert", "another CA"),
        (Pem { key: router().of(&ca).key, ..valid.clone() }, "--tls-key", "does not belong"),
        (Leaf { uris: &["spiffe://node/1"], ..Leaf::default() }.of(&ca), "--tls-cert", "names no role"),
        (Pem { ca: valid.key.clone(), ..valid.clone() }, "--tls-ca", "no complete certificate"),
        (Pem { cert: String::new(), ..valid.clone() }, "--tls-cert", "no complete certificate"),
        (Pem { key: valid.cert.clone(), ..valid.clone() }, "--tls-key", "no complete private key"),
        (Pem { ca: format!("{}{}", valid.ca, &valid.cert[..200]), ..valid.clone() }, "--tls-ca", "no complete"),
        (Pem { ca: " ".repeat((1 << 20) + 1), ..valid.clone() }, "--tls-ca", "larger than"),
    ];
    for (pem, option, remedy) in &cases {
        let said = error(pem);
        assert!(said.contains(option) && said.contains(remedy), "{option} {remedy}: {said}");
    }
    let process = Process::new(&valid);
    fs::remove_file(process.files().key).unwrap();
    assert!(process.load().unwrap_err().to_string().contains("--tls-key"));
    assert!(Process::new(&valid).load().is_ok());
}

#[test]
fn every_truncated_file_is_refused() {
    let ca = Ca::new("ca");
    let valid = Leaf::default().of(&ca);
    let end = |text: &str| text.trim_end().len();
    for length in 0..end(&valid.cert) {
        let cert = valid.cert[..length].to_owned();
        assert!(error(&Pem { cert, ..valid.clone() }).contains("--tls-cert"), "{length}");
    }
    for length in 0..end(&valid.key) {
        let key = valid.key[..length].to_owned();
        assert!(error(&Pem { key, ..valid.clone() }).contains("--tls-key"), "{length}");
    }
    for length in 0..end(&valid.ca) {
        let ca = valid.ca[..length].to_owned();
        assert!(error(&Pem { ca, ..valid.clone() }).contains("--tls-ca"), "{length}");
    }
}

#[test]
fn keys_are_not_printed() {
    let valid = Leaf::default().of(&Ca::new("ca"));
    let printed = format!("{:?}", Process::new(&valid).load().unwrap());
    assert!(printed.contains("Node(1)") && !printed.contains("PRIVATE") && printed.len() < 500, "{printed}");
}
