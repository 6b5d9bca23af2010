//! Addresses and URLs of nodes.

use proptest::prelude::*;
use transport::Dialer;

use crate::certificates::{Ca, credentials, router};

#[test]
fn what_is_no_address_is_refused() {
    let plaintext = Dialer::plaintext();
    for address in ["", "a", ":1", "a:", "a:b", "a:65536", "a:1/", "u@a:1", "a:1?b", "::1:4041", "http://a:1", "a b:1"]
    {
        assert!(plaintext.endpoint(address).is_err(), "{address:?}");
    }
    for url in ["", "a:1", "ftp://a:1", "http://", "http://a", "http://u@a:1", "http://a:1/b", "http://a:1?b"] {
        assert!(plaintext.endpoint_of_url(url).is_err(), "{url:?}");
    }
}

#[test]
fn the_scheme_of_a_url_agrees_with_the_credentials() {
    let tls = Dialer::tls(credentials(&router().of(&Ca::new("ca"))));
    let refused = |dialer: &Dialer, url: &str| dialer.endpoint_of_url(url).unwrap_err().to_string();
    assert!(refused(&Dialer::plaintext(), "https://a:1").contains("needs --tls-ca"));
    assert!(refused(&tls, "http://a:1").contains("must be https://"));
    assert_eq!(tls.endpoint_of_url("https://a:1/").unwrap().uri().to_string(), "https://a:1/");
    assert_eq!(tls.endpoint("a:1").unwrap().uri().to_string(), "https://a:1/");
}

proptest! {
    #[test]
    fn a_host_and_a_port_are_an_address(
        host in prop_oneof![
            "[a-z][a-z0-9]{0,9}(\\.[a-z][a-z0-9-]{0,8}[a-z0-9]){0,3}",
            any::<std::net::Ipv4Addr>().prop_map(|host| host.to_string()),
            any::<std::net::Ipv6Addr>().prop_map(|host| format!("[{host}]")),
        ],
        port: u16,
    ) {
        let endpoint = Dialer::plaintext().endpoint(&format!("{host}:{port}")).unwrap();
        prop_assert_eq!(endpoint.uri().host(), Some(host.as_str()));
        prop_assert_eq!(endpoint.uri().port_u16(), Some(port));
        let url = format!("http://{host}:{port}");
        let of_url = Dialer::plaintext().endpoint_of_url(&url).unwrap();
        prop_assert_eq!(of_url.uri(), endpoint.uri());
    }

    #[test]
    fn any_text_is_an_address_or_an_error(text: String) {
        let _either = Dialer::plaintext().endpoint(&text);
        let _either = Dialer::plaintext().endpoint_of_url(&text);
    }
}
