//! Parameters of a request: of its URL, and of its form where it is a POST.

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::{Method, StatusCode, header};
use proto::Window;

use super::error::ApiError;
use super::time::{parse_duration, parse_time};

/// See the module. An empty value is as good as none.
#[derive(Debug, Default)]
pub(crate) struct Parameters(Vec<(String, String)>);

impl<S: Send + Sync> FromRequest<S> for Parameters {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &S) -> Result<Self, ApiError> {
        let mut parameters = Self::default();
        parameters.add(request.uri().query().unwrap_or_default().as_bytes());
        if request.method() == Method::POST {
            let content_type = request.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
            let is_form = content_type.is_none_or(|kind| kind.starts_with("application/x-www-form-urlencoded"));
            // axum reads at most 2 MB.
            let body = Bytes::from_request(request, state).await.map_err(|rejection| {
                if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
                    ApiError::too_large("the form has more than 2 MB: split the query")
                } else {
                    ApiError::bad_data("the form could not be read: send it again")
                }
            })?;
            if !is_form && !body.is_empty() {
                return Err(ApiError::bad_data("send the parameters as application/x-www-form-urlencoded"));
            }
            parameters.add(&body);
        }
        Ok(parameters)
    }
}

impl Parameters {
    fn add(&mut self, encoded: &[u8]) {
        self.0.extend(form_urlencoded::parse(encoded).into_owned().filter(|(_, value)| !value.is_empty()));
    }

    /// All values of a parameter.
    pub(crate) fn all(&self, name: &str) -> Vec<String> {
        self.0.iter().filter(|(known, _)| known == name).map(|(_, value)| value.clone()).collect()
    }

    /// The first value of a parameter.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The first value of a parameter that must be there.
    pub(crate) fn required(&self, name: &str) -> Result<&str, ApiError> {
        self.get(name).ok_or_else(|| ApiError::bad_data(format!("the parameter {name:?} is missing")))
    }

    /// A time in nanoseconds.
    pub(crate) fn time(&self, name: &str) -> Result<Option<i64>, ApiError> {
        let parsed = self.get(name).map(|text| (text, parse_time(text)));
        parsed.map(|(text, time)| time.map_err(|error| invalid(name, text, &error))).transpose()
    }

    /// A time in nanoseconds that must be there.
    pub(crate) fn required_time(&self, name: &str) -> Result<i64, ApiError> {
        self.required(name)?;
        self.time(name)?.ok_or_else(|| ApiError::bad_data(format!("the parameter {name:?} is missing")))
    }

    /// The window from `start`, which is not in it, to `end`, which is; both must be there.
    pub(crate) fn window(&self) -> Result<Window, ApiError> {
        let (start_ns, end_ns) = (self.required_time("start")?, self.required_time("end")?);
        if end_ns <= start_ns {
            return Err(ApiError::bad_data("\"end\" must be after \"start\": the window is (start, end]"));
        }
        Ok(Window { start_ns, end_ns })
    }

    /// A duration in nanoseconds, above 0, that must be there.
    pub(crate) fn required_duration(&self, name: &str) -> Result<i64, ApiError> {
        let text = self.required(name)?;
        parse_duration(text).map_err(|error| invalid(name, text, &error))
    }

    /// How many results at most; 0 and none mean all, as in Prometheus.
    pub(crate) fn limit(&self) -> Result<Option<usize>, ApiError> {
        let Some(text) = self.get("limit") else { return Ok(None) };
        let limit: usize =
            text.parse().map_err(|_unreadable| invalid("limit", text, &"it must be a whole number, 0 for no limit"))?;
        Ok(Some(limit).filter(|&limit| limit > 0))
    }
}

/// An error that names the parameter and what it holds.
pub(crate) fn invalid(name: &str, text: &str, error: &dyn std::fmt::Display) -> ApiError {
    let shown: String = text.chars().take(100).collect();
    ApiError::bad_data(format!("invalid parameter {name:?}, {shown:?}: {error}"))
}
