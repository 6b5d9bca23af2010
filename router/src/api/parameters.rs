//! Parameters of a request, from the URL and, for a POST, from the form in the body.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::{Method, header};
use http_body_util::BodyExt as _;
use proto::{Consistency, Window};

use super::error::ApiError;
use super::time::{now_ns, parse_duration, parse_time};
use crate::query::run::ReadOptions;

/// Names and values of the parameters, in the order of the request. An empty value counts as missing.
#[derive(Debug)]
pub(crate) struct Parameters {
    pairs: Vec<(String, String)>,
    /// Time of the request, in nanoseconds since 1970. `now` means this time in all parameters.
    now_ns: i64,
}

/// Length of the time range if the request has no `start`, in nanoseconds.
const WINDOW_DEFAULT_NS: i64 = 3_600_000_000_000;

/// Largest size of the form of a request, in bytes.
const FORM_BYTES_MAX: usize = 2 << 20;
/// Longest time that the form of a request may take to arrive.
const FORM_PATIENCE: Duration = Duration::from_secs(30);

impl<S: Send + Sync> FromRequest<S> for Parameters {
    type Rejection = ApiError;

    async fn from_request(request: Request, _state: &S) -> Result<Self, ApiError> {
        let mut parameters = Self { pairs: Vec::new(), now_ns: now_ns() };
        parameters.add(request.uri().query().unwrap_or_default().as_bytes());
        if request.method() == Method::POST {
            let content_type = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
            let is_form = content_type.is_none_or(|kind| kind.starts_with("application/x-www-form-urlencoded"));
            let form = tokio::time::timeout(FORM_PATIENCE, read_form(request.into_body())).await;
            let late = |_elapsed| ApiError::timeout(format!("the form did not arrive within {FORM_PATIENCE:?}"));
            let body = form.map_err(late)??;
            if !is_form && !body.is_empty() {
                return Err(ApiError::bad_data("send the parameters as application/x-www-form-urlencoded"));
            }
            parameters.add(&body);
        }
        Ok(parameters)
    }
}

/// Reads the form in a body.
async fn read_form(mut body: Body) -> Result<Vec<u8>, ApiError> {
    let mut form = Vec::new();
    while let Some(frame) = body.frame().await {
        let unreadable = |_error| ApiError::bad_data("the form could not be read: send it again");
        let Ok(bytes) = frame.map_err(unreadable)?.into_data() else { continue };
        if form.len() + bytes.len() > FORM_BYTES_MAX {
            return Err(ApiError::too_large("the form has more than 2 MB: split the query"));
        }
        form.extend_from_slice(&bytes);
    }
    Ok(form)
}

impl Parameters {
    fn add(&mut self, encoded: &[u8]) {
        self.pairs.extend(form_urlencoded::parse(encoded).into_owned().filter(|(_, value)| !value.is_empty()));
    }

    /// Returns all values of a parameter, in the order of the request.
    pub(crate) fn all(&self, name: &str) -> Vec<String> {
        self.pairs.iter().filter(|(known, _)| known == name).map(|(_, value)| value.clone()).collect()
    }

    /// Returns the first value of a parameter; `None` if the request lacks the parameter.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.pairs.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// Returns the first value of a required parameter.
    pub(crate) fn required(&self, name: &str) -> Result<&str, ApiError> {
        self.get(name).ok_or_else(|| ApiError::bad_data(format!("the parameter {name:?} is missing")))
    }

    /// Returns the time in a parameter, in nanoseconds since 1970; `None` if the request lacks the parameter.
    pub(crate) fn time(&self, name: &str) -> Result<Option<i64>, ApiError> {
        let parsed = self.get(name).map(|text| (text, parse_time(text, self.now_ns)));
        parsed.map(|(text, time)| time.map_err(|error| invalid(name, text, &error))).transpose()
    }

    /// Returns the time in a required parameter, in nanoseconds since 1970.
    pub(crate) fn required_time(&self, name: &str) -> Result<i64, ApiError> {
        self.required(name)?;
        self.time(name)?.ok_or_else(|| ApiError::bad_data(format!("the parameter {name:?} is missing")))
    }

    /// Returns the time range (`start`, `end`]. Both parameters are required.
    pub(crate) fn window(&self) -> Result<Window, ApiError> {
        Self::window_of(self.required_time("start")?, self.required_time("end")?)
    }

    /// Returns the time range (`start`, `end`]. `end` defaults to the time of the request, and `start` to one hour
    /// before `end`.
    pub(crate) fn window_or_last_hour(&self) -> Result<Window, ApiError> {
        let end_ns = self.time("end")?.unwrap_or(self.now_ns);
        let start_ns = self.time("start")?.unwrap_or_else(|| end_ns.saturating_sub(WINDOW_DEFAULT_NS).max(0));
        Self::window_of(start_ns, end_ns)
    }

    fn window_of(start_ns: i64, end_ns: i64) -> Result<Window, ApiError> {
        if end_ns <= start_ns {
            return Err(ApiError::bad_data("\"end\" must be after \"start\": the window is (start, end]"));
        }
        Ok(Window { start_ns, end_ns })
    }

    /// Returns the duration in a required parameter, in nanoseconds, and refuses a duration of 0 seconds.
    pub(crate) fn required_duration(&self, name: &str) -> Result<i64, ApiError> {
        let text = self.required(name)?;
        parse_duration(text).map_err(|error| invalid(name, text, &error))
    }

    /// Returns the time in a parameter, in nanoseconds since 1970, or the time of the request if the parameter is
    /// missing.
    pub(crate) fn time_or_now(&self, name: &str) -> Result<i64, ApiError> {
        Ok(self.time(name)?.unwrap_or(self.now_ns))
    }

    /// Returns which responses the client accepts: `partial` is `allow` or `refuse`, and `consistency` is
    /// `linearizable` or `stale`.
    pub(crate) fn read_options(&self) -> Result<ReadOptions, ApiError> {
        let refuses_partial = match self.get("partial") {
            None | Some("allow") => false,
            Some("refuse") => true,
            Some(other) => return Err(invalid("partial", other, &"it must be allow or refuse")),
        };
        let consistency = match self.get("consistency") {
            None | Some("linearizable") => Consistency::Linearizable,
            Some("stale") => Consistency::Stale,
            Some(other) => return Err(invalid("consistency", other, &"it must be linearizable or stale")),
        };
        Ok(ReadOptions { consistency, refuses_partial })
    }

    /// Returns the maximum number of results; `None` if `limit` is 0 or missing, which means no limit, as in
    /// Prometheus.
    pub(crate) fn limit(&self) -> Result<Option<usize>, ApiError> {
        let Some(text) = self.get("limit") else { return Ok(None) };
        let limit: usize =
            text.parse().map_err(|_unreadable| invalid("limit", text, &"it must be a whole number, 0 for no limit"))?;
        Ok(Some(limit).filter(|&limit| limit > 0))
    }
}

/// Returns the error of a parameter with an invalid value.
pub(crate) fn invalid(name: &str, text: &str, error: &dyn std::fmt::Display) -> ApiError {
    let shown: String = text.chars().take(100).collect();
    ApiError::bad_data(format!("invalid parameter {name:?}, {shown:?}: {error}"))
}
