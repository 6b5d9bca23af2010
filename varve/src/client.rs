//! The terminal's side: asks a running varve over HTTP.

pub(crate) mod admin;
pub(crate) mod flamegraph;
mod printable;
pub(crate) mod query;
mod table;
pub(crate) mod upload;

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
        self.answer(answer).map(Posted::Done)
    }

    fn answer(&self, answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> anyhow::Result<String> {
        let mut answer =
            answer.with_context(|| format!("no answer from {}: is `varve up` running there?", self.endpoint))?;
        // Flame graphs of a million nodes have about 100 MB.
        let body = answer.body_mut().with_config().limit(1 << 30).read_to_string().context("reading the answer")?;
        if answer.status().is_success() {
            return Ok(body);
        }
        let said = serde_json::from_str::<Value>(&body).ok();
        let said = said.as_ref().and_then(|said| said["error"].as_str());
        // The error of a regular expression has several lines.
        let said: Vec<String> = said.unwrap_or(&body).lines().map(printable).collect();
        bail!("{} answered {}: {}", self.endpoint, answer.status(), said.join("\n"))
    }
}

/// Writes to stdout; a closed pipe, as of `| head`, is no error.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error).context("stdout"),
        _ => Ok(()),
    }
}
