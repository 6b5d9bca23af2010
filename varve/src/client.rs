//! The terminal's side: asks a running varve over HTTP.

pub(crate) mod admin;
mod destination;
pub(crate) mod flamegraph;
mod printable;
pub(crate) mod query;
mod table;
pub(crate) mod upload;
mod wrong_port;

use std::io::{self, Read, Write};
use std::time::Duration;

use anyhow::{Context as _, bail};
use proto::Tokens;
use serde_json::Value;
use ureq::http::StatusCode;

pub(crate) use self::printable::printable;
use crate::command::ServerOptions;

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// What became of a body that was sent.
pub(crate) enum Posted {
    /// The body of the answer.
    Done(String),
    /// The server cannot use the body; why.
    Unusable(anyhow::Error),
    /// The server has too much to do now.
    Busy {
        /// When to come back.
        retry_after: Duration,
    },
}

/// A varve to talk to.
pub(crate) struct Server {
    agent: ureq::Agent,
    endpoint: String,
    authorization: Option<String>,
}

impl Server {
    pub(crate) fn new(options: &ServerOptions) -> anyhow::Result<Self> {
        let endpoint = options.endpoint.trim_end_matches('/').to_owned();
        if !endpoint.starts_with("http://") {
            bail!("--endpoint {endpoint} must be http://HOST:PORT: put a TLS proxy of yours in between where needed");
        }
        let config = ureq::Agent::config_builder().http_status_as_error(false).timeout_recv_response(Some(PATIENCE));
        let token = options.token_file.as_ref().map(Tokens::first);
        let authorization = token.map(|token| format!("Bearer {token}"));
        Ok(Self { agent: config.build().new_agent(), endpoint, authorization })
    }

    /// The body of a successful answer.
    pub(crate) fn get(&self, path: &str, parameters: &[(&str, String)]) -> anyhow::Result<String> {
        self.get_within(path, parameters, PATIENCE)
    }

    /// The body of a successful answer that may take longer.
    pub(crate) fn get_within(
        &self,
        path: &str,
        parameters: &[(&str, String)],
        patience: Duration,
    ) -> anyhow::Result<String> {
        String::from_utf8(self.bytes_within(path, parameters, patience)?).context("the answer is not UTF-8")
    }

    /// The body of a successful answer that may be binary.
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

    /// Sends a body; the server says first whether it wants it.
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
            Ok(body) => Ok(Posted::Done(String::from_utf8(body).context("the answer is not UTF-8")?)),
            Err(error) if is_unusable => Ok(Posted::Unusable(error)),
            Err(error) => Err(error),
        }
    }

    fn answer(&self, answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> anyhow::Result<Vec<u8>> {
        let mut answer = match answer {
            Ok(answer) => answer,
            Err(_) if wrong_port::is_grpc(&self.endpoint) => bail!(
                "{} is a port of gRPC, for OTLP or for routers: --endpoint must be the HTTP API (--http-listen of `varve up` \
                 or `varve router`), http://127.0.0.1:4040 by default",
                self.endpoint
            ),
            Err(error) => {
                let text = format!("no answer from {}: is `varve up` running there?", self.endpoint);
                return Err(anyhow::Error::from(error).context(text));
            }
        };
        // Flame graphs of a million nodes have about 100 MB.
        let body = answer.body_mut().with_config().limit(1 << 30).read_to_vec().context("reading the answer")?;
        if answer.status().is_success() {
            return Ok(body);
        }
        let body = String::from_utf8_lossy(&body);
        let said = serde_json::from_str::<Value>(&body).ok();
        // The port of OTLP over HTTP has another form of errors.
        let said = said.as_ref().and_then(|said| said["error"].as_str().or(said["message"].as_str()));
        // The error of a regular expression has several lines.
        let said: Vec<String> = said.unwrap_or(&body).lines().map(printable).collect();
        bail!("{} answered {}: {}", self.endpoint, answer.status(), said.join("\n"))
    }
}

/// Writes to stdout; a closed pipe, as of `| head`, is no error.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    print_bytes(text.as_bytes())
}

/// Writes bytes to stdout, as [`print`].
fn print_bytes(bytes: &[u8]) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(bytes).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error).context("stdout"),
        _ => Ok(()),
    }
}
