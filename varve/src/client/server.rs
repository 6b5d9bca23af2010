//! HTTP requests to a running varve.

use std::io::Read;
use std::time::Duration;

use anyhow::{Context as _, bail};
use proto::Tokens;
use serde_json::Value;
use ureq::http::StatusCode;

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
        String::from_utf8(self.bytes_within(path, parameters, patience)?).context("the response is not UTF-8")
    }

    /// Returns the body of a successful response, which may be binary.
    pub(crate) fn get_bytes(&self, path: &str, parameters: &[(&str, String)]) -> anyhow::Result<Vec<u8>> {
        self.bytes_within(path, parameters, PATIENCE)
    }

    fn bytes_within(&self, path: &str, parameters: &[(&str, String)], patience: Duration) -> anyhow::Result<Vec<u8>> {
        let request = self.agent.get(format!("{}{path}", self.endpoint));
        let mut request = request.config().timeout_recv_response(Some(patience)).build();
        for (name, value) in parameters {
            request = request.query(name, value);
        }
        if let Some(authorization) = &self.authorization {
            request = request.header("Authorization", authorization);
        }
        self.answer(request.call())
    }

    /// Posts a body. Sends the body only after the server has agreed to receive it.
    pub(crate) fn post(
        &self,
        path: &str,
        parameters: &[(&str, String)],
        body: impl Read + 'static,
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
