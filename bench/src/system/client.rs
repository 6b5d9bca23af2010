//! An HTTP client with persistent connections, like those of real senders and readers.

use std::time::Duration;

use anyhow::{Context as _, bail};
use ureq::http::StatusCode;

/// Longest time that a request may take, up to the end of its response.
const TIMEOUT: Duration = Duration::from_secs(120);
/// Largest size of a response in bytes. No response to the requests of this program is as large.
const ANSWER_BYTES_MAX: u64 = 256 << 20;

/// An HTTP client. Each thread uses its own client.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    agent: ureq::Agent,
    /// Value of the header `authorization`; "" sends none.
    authorization: String,
}

/// Outcome of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pushed {
    Acknowledged,
    /// The server responded with 429 or 503: the sender must try again later.
    Refused,
}

impl Client {
    pub(crate) fn new() -> Self {
        Self::with_token("")
    }

    /// Returns a client that sends a bearer token, unless the token is empty.
    pub(crate) fn with_token(token: &str) -> Self {
        let config =
            ureq::Agent::config_builder().http_status_as_error(false).proxy(None).timeout_global(Some(TIMEOUT));
        // Responses are requested uncompressed, because compression is not measured.
        let authorization = if token.is_empty() { String::new() } else { format!("Bearer {token}") };
        Self { agent: config.accept_encoding("identity").build().new_agent(), authorization }
    }

    /// Sends one export request.
    ///
    /// # Errors
    /// There was no response, or a response other than success, 429 and 503. A partial success is an error, too.
    pub(crate) fn push(&self, address: &str, request: &[u8]) -> anyhow::Result<Pushed> {
        let url = format!("http://{address}/v1development/profiles");
        let mut post = self.agent.post(url).content_type("application/x-protobuf");
        if !self.authorization.is_empty() {
            post = post.header("authorization", &self.authorization);
        }
        let mut answer = post.send(request)?;
        let status = answer.status();
        let body = answer.body_mut().read_to_vec()?;
        match status {
            // An empty response means that everything was accepted.
            StatusCode::OK if body.is_empty() => Ok(Pushed::Acknowledged),
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => Ok(Pushed::Refused),
            _ => bail!("push: {status} {}", String::from_utf8_lossy(&body)),
        }
    }

    /// Returns the body of the response to a GET request.
    ///
    /// # Errors
    /// There was no response, or its status is not 200.
    pub(crate) fn get(&self, address: &str, path: &str, parameters: &[(&str, &str)]) -> anyhow::Result<Vec<u8>> {
        let mut request = self.agent.get(format!("http://{address}{path}")).query_pairs(parameters.iter().copied());
        if !self.authorization.is_empty() {
            request = request.header("authorization", &self.authorization);
        }
        let mut answer = request.call()?;
        let body = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec()?;
        if answer.status() != StatusCode::OK {
            bail!("GET {path} {parameters:?}: {} {}", answer.status(), String::from_utf8_lossy(&body));
        }
        Ok(body)
    }

    /// Returns the value of the first metric whose name has this suffix.
    pub(crate) fn metric(&self, address: &str, name_end: &str) -> anyhow::Result<f64> {
        let text = String::from_utf8(self.get(address, "/metrics", &[])?)?;
        let value = text.lines().find_map(|line| line.split_once(' ').filter(|(name, _)| name.ends_with(name_end)));
        Ok(value.with_context(|| format!("/metrics has no {name_end}"))?.1.trim().parse()?)
    }
}
