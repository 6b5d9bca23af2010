//! HTTP requests to a running varve.

use std::io;
use std::time::Duration;

use anyhow::{Context as _, bail};
use proto::Tokens;
use serde_json::Value;
use ureq::http::{HeaderMap, StatusCode};

use super::printable::printable;
use super::wrong_port;
use crate::command::ServerOptions;

/// Longest wait for the start of a response, unless the caller gives another limit.
const PATIENCE: Duration = Duration::from_secs(120);

/// Outcome of a POST request.
pub(crate) enum Posted {
    /// The request succeeded. The value is the body of the response.
    Done(String),
    /// The server refused the body of the request as unusable.
    Unusable(anyhow::Error),
    /// The server is busy, so the request should be sent again later.
    Busy {
        /// Time to wait before a retry.
        retry_after: Duration,
    },
}

/// Response to a query.
pub(crate) struct Read {
    /// Body, which may be binary.
    pub(crate) body: Vec<u8>,
    /// Sentences about what the response may lack: shards that did not answer, and samples that are too recent.
    pub(crate) shortfalls: Vec<String>,
}

/// HTTP client of a running varve.
pub(crate) struct Server {
    agent: ureq::Agent,
    endpoint: String,
    authorization: Option<String>,
}

impl Server {
    pub(crate) fn new(options: &ServerOptions) -> anyhow::Result<Self> {
        let endpoint = options.endpoint.trim_end_matches('/').to_owned();
        if !endpoint.starts_with("http://") {
            bail!("--endpoint {endpoint} must be http://HOST:PORT; for TLS, use a proxy");
        }
        let config = ureq::Agent::config_builder().http_status_as_error(false).timeout_recv_response(Some(PATIENCE));
        let token = options.token_file.as_ref().map(Tokens::first);
        let authorization = token.map(|token| format!("Bearer {token}"));
        Ok(Self { agent: config.build().new_agent(), endpoint, authorization })
    }

    /// Returns the body of a successful response.
    pub(crate) fn get(&self, path: &str, parameters: &[(&str, String)]) -> anyhow::Result<String> {
        self.get_within(path, parameters, PATIENCE)
    }

    /// Returns the body of a successful response. The response must begin to arrive within `patience`.
    pub(crate) fn get_within(
        &self,
        path: &str,
        parameters: &[(&str, String)],
        patience: Duration,
    ) -> anyhow::Result<String> {
        let body = self.read_within(path, parameters, patience)?.body;
        String::from_utf8(body).context("the response is not UTF-8")
    }

    /// Returns the successful response to a query.
    pub(crate) fn read(&self, path: &str, parameters: &[(&str, String)]) -> anyhow::Result<Read> {
        self.read_within(path, parameters, PATIENCE)
    }

    fn read_within(&self, path: &str, parameters: &[(&str, String)], patience: Duration) -> anyhow::Result<Read> {
        let request = self.agent.get(format!("{}{path}", self.endpoint));
        let mut request = request.config().timeout_recv_response(Some(patience)).build();
        for (name, value) in parameters {
            request = request.query(name, value);
        }
        if let Some(authorization) = &self.authorization {
            request = request.header("Authorization", authorization);
        }
        let answer = request.call();
        let shortfalls = answer.as_ref().map(|answer| shortfalls(answer.headers())).unwrap_or_default();
        Ok(Read { body: self.answer(answer)?, shortfalls })
    }

    /// Posts a body. Sends the body only after the server has agreed to receive it.
    pub(crate) fn post(
        &self,
        path: &str,
        parameters: &[(&str, String)],
        body: impl io::Read + 'static,
        patience: Duration,
    ) -> anyhow::Result<Posted> {
        let request = self.agent.post(format!("{}{path}", self.endpoint)).header("Expect", "100-continue");
        let mut request = request.config().timeout_recv_response(Some(patience)).build();
        for (name, value) in parameters {
            request = request.query(name, value);
        }
        if let Some(authorization) = &self.authorization {
            request = request.header("Authorization", authorization);
        }
        let answer = request.send(ureq::SendBody::from_owned_reader(body));
        if let Ok(answer) = &answer
            && answer.status() == StatusCode::TOO_MANY_REQUESTS
        {
            let seconds = answer.headers().get("retry-after").and_then(|after| after.to_str().ok()?.parse().ok());
            return Ok(Posted::Busy { retry_after: Duration::from_secs(seconds.unwrap_or(1)) });
        }
        let is_unusable = answer.as_ref().is_ok_and(|answer| answer.status() == StatusCode::UNPROCESSABLE_ENTITY);
        match self.answer(answer) {
            Ok(body) => Ok(Posted::Done(String::from_utf8(body).context("the response is not UTF-8")?)),
            Err(error) if is_unusable => Ok(Posted::Unusable(error)),
            Err(error) => Err(error),
        }
    }

    fn answer(&self, answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> anyhow::Result<Vec<u8>> {
        let mut answer = match answer {
            Ok(answer) => answer,
            Err(_) if wrong_port::is_grpc(&self.endpoint) => bail!(
                "{} is a gRPC port, for OTLP or for routers: --endpoint must be the HTTP API (--http-listen of \
                 `varve up` or `varve router`), http://127.0.0.1:4040 by default",
                self.endpoint
            ),
            Err(error) => {
                let text = format!("no response from {}: is `varve up` running there?", self.endpoint);
                return Err(anyhow::Error::from(error).context(text));
            }
        };
        // Flame graphs of a million nodes have about 100 MB.
        let body = answer.body_mut().with_config().limit(1 << 30).read_to_vec().context("reading the response")?;
        if answer.status().is_success() {
            return Ok(body);
        }
        let body = String::from_utf8_lossy(&body);
        let said = serde_json::from_str::<Value>(&body).ok();
        // The HTTP API has the text of an error in `error`, and an OTLP/HTTP port has it in `message`.
        let said = said.as_ref().and_then(|said| said["error"].as_str().or(said["message"].as_str()));
        // The text has several lines if a regular expression is invalid.
        let said: Vec<String> = said.unwrap_or(&body).lines().map(printable).collect();
        bail!("{} answered {}: {}", self.endpoint, answer.status(), said.join("\n"))
    }
}

/// Returns a sentence for each header that says what a response may lack.
fn shortfalls(headers: &HeaderMap) -> Vec<String> {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(printable);
    let partial = header("varve-partial").map(|value| {
        let field = |name: &str| value.split("; ").find_map(|field| field.strip_prefix(name)).unwrap_or("?");
        let [shards, asked, answered] = ["shards=", "asked=", "answered="].map(field);
        format!(
            "partial response: only {answered} of {asked} shards answered (missing: {shards}), so values may be too low"
        )
    });
    let stale = header("varve-staleness").map(|seconds| match seconds.as_str() {
        "unknown" => "stale response: nobody knows how many of the latest samples it lacks".to_owned(),
        seconds => format!("stale response: it may lack samples of the last {seconds} s"),
    });
    partial.into_iter().chain(stale).collect()
}

#[cfg(test)]
mod tests {
    use ureq::http::HeaderValue;

    use super::*;

    #[test]
    fn headers_say_what_a_response_lacks() {
        let said = |pairs: &[(&'static str, &'static str)]| {
            shortfalls(
                &pairs.iter().map(|&(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value))).collect(),
            )
        };
        assert!(said(&[("server-timing", "asked")]).is_empty());
        assert_eq!(
            said(&[("varve-partial", "shards=2,5; asked=8; answered=6"), ("varve-staleness", "0.412")]),
            [
                "partial response: only 6 of 8 shards answered (missing: 2,5), so values may be too low",
                "stale response: it may lack samples of the last 0.412 s",
            ]
        );
        assert!(said(&[("varve-staleness", "unknown")])[0].contains("nobody knows"));
    }
}
