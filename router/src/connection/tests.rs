//! Tests of connections with unusual URLs, malformed heads, and heads that arrive slowly.

use axum::body::Bytes;
use axum::http::Uri;
use axum::routing;
use proptest::prelude::*;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::api::alone;

/// Starts a server of two paths, and returns its address. `/echo` returns the URL and the body. `/early` responds
/// without reading the body.
async fn server() -> std::net::SocketAddr {
    let routes = Router::new()
        .route(
            "/echo",
            routing::any(|uri: Uri, body: Bytes| async move { [uri.to_string().as_bytes(), b"\n", &body].concat() }),
        )
        .route("/early", routing::any(|| async { "early" }));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(axum::serve(Listener::new(listener), service(alone(routes))).into_future());
    address
}

/// Sends the pieces of a request with short pauses. Returns everything that the server sends until it closes the
/// connection.
async fn send(pieces: &[&[u8]]) -> String {
    let mut stream = TcpStream::connect(server().await).await.unwrap();
    stream.set_nodelay(true).unwrap();
    for piece in pieces {
        stream.write_all(piece).await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut text = Vec::new();
    tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut text)).await.unwrap().unwrap();
    String::from_utf8_lossy(&text).into_owned()
}

/// Returns the status and the error text of a response that is an error in JSON.
fn error_of(response: &str) -> (u16, String) {
    let (head, body) = response.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no response: {response:?}"));
    let json: serde_json::Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("not JSON: {response:?}"));
    assert_eq!(json["status"], "error", "{response}");
    (head.split(' ').nth(1).unwrap().parse().unwrap(), json["error"].as_str().unwrap().to_owned())
}

const CLOSE: &str = "HTTP/1.1\r\nconnection: close\r\n\r\n";

#[tokio::test]
async fn a_url_with_characters_of_promql_is_understood() {
    for (sent, understood) in [
        ("/echo?q=a{b=\"c\"}", "/echo?q=a%7Bb=%22c%22%7D"),
        ("/echo?q=a<b>c", "/echo?q=a%3Cb%3Ec"),
        ("/echo?q=`\\^|", "/echo?q=`\\^|"),
        ("/echo?q=größe\"", "/echo?q=gr%C3%B6%C3%9Fe%22"),
        ("/echo?q=%22+\"", "/echo?q=%22+%22"),
        ("/echo?q={plain}", "/echo?q={plain}"),
    ] {
        let response = send(&[format!("GET {sent} {CLOSE}").as_bytes()]).await;
        assert!(
            response.starts_with("HTTP/1.1 200") && response.contains(&format!("\r\n{understood}\n")),
            "{response}"
        );
    }
}

#[tokio::test]
async fn every_request_of_a_connection_may_have_such_a_url() {
    let sized = b"POST /echo?a=\"1\" HTTP/1.1\r\ncontent-length: 27\r\n\r\nGET /echo?\"body\" HTTP/1.1\r\n";
    let chunked = b"POST /echo?a=\"2\" HTTP/1.1\r\nTransfer-Encoding: gzip, Chunked\r\n\r\n\
        1b\r\nGET /echo?\"body\" HTTP/1.1\r\n\r\n0\r\n\r\n";
    let last = format!("GET /echo?a=\"3\" {CLOSE}");
    let all = [&sized[..], chunked, last.as_bytes()].concat();
    let whole = send(&[&all]).await;
    let in_pieces = send(&all.chunks(7).collect::<Vec<_>>()).await;
    let without_dates =
        |text: &str| text.lines().filter(|line| !line.starts_with("date")).collect::<Vec<_>>().join("\n");
    assert_eq!(without_dates(&whole), without_dates(&in_pieces));
    for url in [
        "/echo?a=%221%22\nGET /echo?\"body\" HTTP/1.1\r\n",
        "/echo?a=%222%22\nGET /echo?\"body\" HTTP/1.1\r\n",
        "/echo?a=%223%22\n",
    ] {
        assert!(whole.contains(url), "{url} in {whole}");
    }
}

#[tokio::test]
async fn a_body_after_100_continue_stays_as_it_is() {
    let head = b"POST /echo HTTP/1.1\r\nexpect: 100-continue\r\nconnection: close\r\ncontent-length: 26\r\n\r\n";
    let response = send(&[head, b"GET /echo?\"x\" HTTP/1.1\r\n\r\n"]).await;
    assert!(response.contains("100 Continue") && response.ends_with("GET /echo?\"x\" HTTP/1.1\r\n\r\n"), "{response}");
}

#[tokio::test]
async fn malformed_requests_get_an_error_in_json_with_the_fault() {
    let headers = "x: y\r\n".repeat(101);
    let long_header = format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(HEAD_BYTES_MAX));
    let longer_header = format!("GET / HTTP/1.1\r\nx: {}\r\n\r\n", "y".repeat(HEAD_BYTES_MAX * 3 / 2));
    let long_url = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(70_000));
    let longer_url = format!("GET /{}", "x".repeat(2 * HEAD_BYTES_MAX));
    let encoded_url = format!("GET /?{} HTTP/1.1\r\n\r\n", "\"".repeat(40_000));
    let many_headers = format!("GET / HTTP/1.1\r\n{headers}\r\n");
    for (sent, status, word) in [
        (&b"GET /a b HTTP/1.1\r\n\r\n"[..], 400, "%20"),
        (b"GET /\x01 HTTP/1.1\r\n\r\n", 400, "control character"),
        (b"GET no/slash HTTP/1.1\r\n\r\n", 400, "URL"),
        (b"GET / HTTP/9.9\r\n\r\n", 400, "HTTP/1.1"),
        (b"garbage\r\n\r\n", 400, "METHOD URL"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "TLS"),
        (b"GET / HTTP/1.1\r\nbad header\r\n\r\n", 400, "malformed"),
        (b"GET / HTTP/1.1\r\na: \x01\r\n\r\n", 400, "malformed"),
        (b"POST / HTTP/1.1\r\ncontent-length: x\r\n\r\n", 400, "Content-Length"),
        (b"POST / HTTP/1.1\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", 400, "Content-Length"),
        (b"POST / HTTP/1.1\r\ncontent-length: 18446744073709551615\r\n\r\n", 400, "Content-Length"),
        (b"POST / HTTP/1.1\r\ntransfer-encoding: gzip\r\n\r\n", 400, "chunked"),
        (b"POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n", 400, "HTTP/1.0"),
        (long_url.as_bytes(), 414, "URL"),
        (longer_url.as_bytes(), 414, "URL"),
        (encoded_url.as_bytes(), 414, "URL"),
        (many_headers.as_bytes(), 431, "headers"),
        (long_header.as_bytes(), 431, "headers"),
        (longer_header.as_bytes(), 431, "headers"),
    ] {
        let shown = String::from_utf8_lossy(&sent[..sent.len().min(60)]).into_owned();
        let (got, text) = error_of(&send(&[sent]).await);
        assert!(got == status && text.contains(word), "{got} {text}: {shown:?}");
    }
}

#[tokio::test]
async fn a_malformed_request_after_good_ones_does_not_cost_them_their_responses() {
    let response =
        send(&[b"GET /early HTTP/1.1\r\n\r\nGET /early HTTP/1.1\r\n\r\nGET /a b HTTP/1.1\r\n\r\nmore"]).await;
    assert_eq!(response.matches("HTTP/1.1 200").count(), 2, "{response}");
    assert_eq!(response.matches("HTTP/1.1 400").count(), 1, "{response}");
}

// Regression: the connection was closed without notice, and the next request of the client got no response.
#[tokio::test]
async fn a_request_after_one_whose_body_was_not_read_gets_its_response() {
    let next = "POST /echo HTTP/1.1\r\nconnection: close\r\ncontent-length: 4\r\n\r\nnext";
    for (head, body) in [("content-length: 5", "early"), ("transfer-encoding: chunked", "5\r\nearly\r\n0\r\n\r\n")] {
        let head = format!("POST /early HTTP/1.1\r\n{head}\r\n\r\n");
        let (start, end) = body.split_at(3);
        let response = send(&[head.as_bytes(), start.as_bytes(), end.as_bytes(), next.as_bytes()]).await;
        assert_eq!(response.matches("HTTP/1.1 200").count(), 2, "{response}");
        assert!(response.ends_with("/echo\nnext"), "{response}");
        assert_eq!(response.matches("connection: close").count(), 1, "{response}");
    }
}

#[tokio::test]
async fn a_connection_stays_open_after_a_body_that_was_awaited_and_read() {
    let head = b"POST /echo HTTP/1.1\r\nexpect: 100-continue\r\ntransfer-encoding: chunked\r\n\r\n";
    let next = format!("GET /echo {CLOSE}");
    let response = send(&[head, b"4\r\nbody\r\n0\r\n\r\n", next.as_bytes()]).await;
    assert_eq!(response.matches("HTTP/1.1 200").count(), 2, "{response}");
    assert!(response.contains("/echo\nbody"), "{response}");
}

#[tokio::test]
async fn a_response_to_a_malformed_body_says_that_the_connection_closes() {
    let response = send(&[b"POST /echo HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n", b"x\r\n", &[b'x'; 100]]).await;
    assert!(response.starts_with("HTTP/1.1 400") && response.contains("connection: close"), "{response}");
}

#[tokio::test]
async fn a_response_before_a_long_or_slow_body_says_that_the_connection_closes() {
    let long = vec![0; 10_000_000];
    for (headers, part) in [
        ("content-length: 10000000", &long[..]),
        ("content-length: 20000000", &long[..]),
        ("content-length: 5", b"slow"),
        ("content-length: 5\r\nexpect: 100-continue", b""),
    ] {
        let head = format!("POST /early HTTP/1.1\r\n{headers}\r\n\r\n");
        let response = send(&[head.as_bytes(), part]).await;
        assert!(response.starts_with("HTTP/1.1 200") && response.contains("connection: close"), "{response}");
    }
}

#[tokio::test]
async fn the_internal_path_of_malformed_requests_is_not_found() {
    let (status, _) = error_of(&send(&[format!("GET {BAD_HEAD_PATH} {CLOSE}").as_bytes()]).await);
    assert_eq!(status, 404);
}

/// A stream of bytes that arrive in pieces of these sizes, the last size first.
struct Pieces {
    bytes: Vec<u8>,
    sizes: Vec<usize>,
}

impl AsyncRead for Pieces {
    fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let size = self.sizes.pop().unwrap_or(usize::MAX).min(self.bytes.len()).min(out.remaining());
        let rest = self.bytes.split_off(size);
        out.put_slice(&std::mem::replace(&mut self.bytes, rest));
        Poll::Ready(Ok(()))
    }
}

#[tokio::test]
async fn a_head_that_does_not_end_is_answered_after_a_while() {
    let (mut client, server) = tokio::io::duplex(1 << 10);
    client.write_all(b"GET / HTTP/1.1\r\nx:").await.unwrap();
    let mut connection = Connection::new(server, Duration::from_millis(50));
    let mut read = [0; 1000];
    let length = connection.read(&mut read).await.unwrap();
    assert_eq!(&read[..length], BAD_HEAD_REQUEST);
    assert!(matches!(*connection.fault.0.lock(), Some(BadHead::TimedOut)));
}

#[tokio::test]
async fn a_head_that_arrives_byte_by_byte_costs_no_more_than_twice_its_length() {
    let mut connection = Connection::new(tokio::io::empty(), HEAD_PATIENCE);
    let mut parsed = 0;
    let mut bytes = 0;
    for byte in b"GET / HTTP/1.1\r\nx: ".iter().copied().chain(std::iter::repeat_n(b'y', 100_000)) {
        connection.received.extend_from_slice(&[byte]);
        let before = connection.parsed;
        connection.examine();
        if connection.parsed != before {
            parsed += 1;
            bytes += connection.parsed;
        }
    }
    assert!(parsed < 30 && bytes < 300_000, "{parsed} times, {bytes} bytes");
}

fn request() -> impl Strategy<Value = Vec<u8>> {
    let url = prop_oneof!["/[a-z]{0,9}", "/[a-z]{0,5}\\?q=[a-z{}%22+]{0,9}"];
    let body = prop::collection::vec(any::<u8>(), 0..300);
    (url, body, prop::collection::vec(1..40_usize, 0..9), any::<bool>()).prop_map(|(url, body, chunks, is_chunked)| {
        if !is_chunked {
            let head = format!("POST {url} HTTP/1.1\r\ncontent-length: {}\r\n\r\n", body.len());
            return [head.as_bytes(), &body].concat();
        }
        let mut bytes = format!("PUT {url} HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n").into_bytes();
        let mut rest = &body[..];
        for size in chunks {
            let (chunk, after) = rest.split_at(size.min(rest.len()));
            if !chunk.is_empty() {
                bytes.extend(format!("{:x}\r\n", chunk.len()).bytes().chain(chunk.iter().copied()).chain(*b"\r\n"));
            }
            rest = after;
        }
        bytes.extend(b"0\r\n\r\n");
        bytes
    })
}

proptest! {
    #[test]
    fn requests_without_such_characters_pass_unchanged_however_they_arrive(
        requests in prop::collection::vec(request(), 1..6),
        sizes in prop::collection::vec(1..200_usize, 0..50),
    ) {
        let sent = requests.concat();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let received = runtime.block_on(async {
            let mut received = Vec::new();
            let pieces = Pieces { bytes: sent.clone(), sizes };
            Connection::new(pieces, HEAD_PATIENCE).read_to_end(&mut received).await.unwrap();
            received
        });
        prop_assert_eq!(received, sent);
    }

    #[test]
    fn no_bytes_make_the_checks_panic(
        start in prop_oneof![Just(""), Just("GET /"), Just("POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n")],
        bytes in prop::collection::vec(any::<u8>(), 0..300),
        sizes in prop::collection::vec(1..50_usize, 0..20),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let pieces = Pieces { bytes: [start.as_bytes(), &bytes].concat(), sizes };
            let mut connection = Connection::new(pieces, HEAD_PATIENCE);
            let mut received = Vec::new();
            // The stream of a rejected connection never ends, so the read is stopped after 1 ms.
            drop(tokio::time::timeout(Duration::from_millis(1), connection.read_to_end(&mut received)).await);
            prop_assert!(connection.received.len() <= HEAD_BYTES_MAX + READ_BYTES);
            Ok(())
        })?;
    }
}
