//! An HTTP client that treats no status as an error.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::OnceLock;
use std::time::Duration;

use serde_json::Value;

use crate::payload::wire;

/// An HTTP response.
#[derive(Clone, Debug)]
pub struct Reply {
    /// Status code.
    pub status: u16,
    /// Headers of the response, with names in lower case.
    pub headers: Vec<(String, String)>,
    /// Decompressed body.
    pub body: Vec<u8>,
}

impl Reply {
    /// Returns the body as text, with invalid UTF-8 replaced.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// Returns the body as JSON; null if it is not JSON.
    #[must_use]
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    /// Returns the value of a header, or "" if there is no such header.
    #[must_use]
    pub fn header(&self, name: &str) -> &str {
        self.headers.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }

    /// Checks that the response has this status, and returns the response.
    #[must_use]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", self.text());
        self
    }

    /// Checks that the response has one of these statuses and a reason in JSON, and returns the response.
    #[must_use]
    pub fn refused_with(self, statuses: &[u16]) -> Self {
        let json = self.json();
        let explained = json["status"] == "error" && json["error"].as_str().is_some_and(|error| error.len() > 10);
        assert!(statuses.contains(&self.status), "want one of {statuses:?}, got {}: {}", self.status, self.text());
        assert!(explained, "{} without a reason: {}", self.status, self.text());
        self
    }
}

/// A `google.rpc.Status`: the body of an error of the OTLP/HTTP port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RpcStatus {
    /// The gRPC code.
    pub code: u64,
    /// Error message.
    pub message: String,
    /// Type of each detail of the error.
    pub details: Vec<String>,
}

impl Reply {
    /// Decodes the body as an error of the OTLP/HTTP port: protobuf or JSON, by the content type.
    ///
    /// # Panics
    /// The body is neither protobuf nor JSON.
    #[must_use]
    pub fn rpc_status(&self) -> RpcStatus {
        if self.header("content-type") == "application/json" {
            let json = self.json();
            let details = json["details"].as_array().into_iter().flatten();
            return RpcStatus {
                code: json["code"].as_u64().unwrap_or_else(|| panic!("no code: {}", self.text())),
                message: json["message"].as_str().unwrap_or_default().to_owned(),
                details: details.map(|detail| detail["@type"].as_str().unwrap_or_default().to_owned()).collect(),
            };
        }
        assert_eq!(self.header("content-type"), "application/x-protobuf", "{}", self.text());
        let status = wire::decode(&self.body);
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        RpcStatus {
            code: wire::number(&status, 1),
            message: wire::all(&status, 2).last().map(text).unwrap_or_default(),
            details: wire::all(&status, 3)
                .map(|detail| wire::all(&wire::decode(detail), 1).last().map(text).unwrap_or_default())
                .collect(),
        }
    }

    /// Checks that the response has one of these statuses and is a `google.rpc.Status` with a reason. Returns the
    /// response.
    #[must_use]
    pub fn refused_by_otlp_with(self, statuses: &[u16]) -> Self {
        assert!(statuses.contains(&self.status), "want one of {statuses:?}, got {}: {}", self.status, self.text());
        let status = self.rpc_status();
        assert!(status.code != 0 && status.message.len() > 10, "{} without a reason: {status:?}", self.status);
        self
    }
}

/// Error of a request that got no complete response.
pub type Lost = ureq::Error;

/// Longest time that [`request`] waits for a response.
const PATIENCE: Duration = Duration::from_secs(120);

/// Sends a request, with or without a body.
///
/// # Errors
/// The response is missing or incomplete, so the outcome of the request is unknown.
pub fn request(method: &str, url: &str, headers: &[(&str, &str)], body: Option<&[u8]>) -> Result<Reply, Lost> {
    request_within(PATIENCE, method, url, headers, body)
}

/// Sends a request, and waits at most for `patience`.
///
/// # Errors
/// The response is missing or incomplete, so the outcome of the request is unknown.
pub fn request_within(
    patience: Duration,
    method: &str,
    url: &str,
    headers: &[(&str, &str)],
    body: Option<&[u8]>,
) -> Result<Reply, Lost> {
    static AGENT: OnceLock<ureq::Agent> = OnceLock::new();
    let agent = AGENT.get_or_init(|| {
        let config = ureq::Agent::config_builder().http_status_as_error(false).max_redirects(0);
        config.max_idle_connections_per_host(64).build().new_agent()
    });
    let mut request = ureq::http::Request::builder().method(method).uri(url);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let answer = match body {
        Some(body) => agent.run(agent.configure_request(request.body(body)?).timeout_global(Some(patience)).build()),
        None => agent.run(agent.configure_request(request.body(())?).timeout_global(Some(patience)).build()),
    };
    let mut answer = answer?;
    let headers = answer.headers().iter();
    let headers =
        headers.map(|(name, value)| (name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()));
    let headers = headers.collect();
    let status = answer.status().as_u16();
    let body = answer.body_mut().with_config().limit(1 << 30).read_to_vec()?;
    Ok(Reply { status, headers, body })
}

/// Encodes parameters as a query string.
#[must_use]
pub fn encode(pairs: &[(&str, &str)]) -> String {
    let escape = |text: &str| -> String {
        text.bytes()
            .map(|byte| match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => char::from(byte).to_string(),
                _ => format!("%{byte:02X}"),
            })
            .collect()
    };
    let pairs: Vec<String> = pairs.iter().map(|(name, value)| format!("{}={}", escape(name), escape(value))).collect();
    pairs.join("&")
}

/// Sends exactly these bytes, and reads until the server closes the connection. Returns the status, and the whole
/// response as text.
///
/// # Errors
/// The connection failed.
pub fn raw(address: &str, bytes: &[u8]) -> std::io::Result<(u16, String)> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    stream.write_all(bytes)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let answer = String::from_utf8_lossy(&answer).into_owned();
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    Ok((status, answer))
}
