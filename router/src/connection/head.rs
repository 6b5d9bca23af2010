//! Parses one request head. Makes the same checks as hyper, and corrects a URL that hyper would refuse.

use std::ops::Range;

use axum::http::{HeaderName, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};

use super::framing::Framing;
use super::{HEAD_BYTES_MAX, HEAD_PATIENCE};
use crate::api::error::ApiError;

/// Maximum number of headers of a request. Hyper has the same limit.
const HEADERS_MAX: usize = 100;

/// Longest URL, in bytes. Hyper has the same limit.
const URL_BYTES_MAX: usize = 65_534;

/// Largest Content-Length. Hyper uses the two larger numbers as markers.
const CONTENT_LENGTH_MAX: u64 = u64::MAX - 2;

/// The first bytes of a TLS connection.
const TLS_HANDSHAKE: &[u8] = &[0x16, 0x03];

/// Result of parsing bytes in which no fault was found.
#[derive(Debug)]
pub(super) enum Head {
    /// The head is incomplete: more bytes are needed.
    Partial,
    /// The head is complete.
    Complete {
        /// Length of the head, in bytes.
        length: usize,
        /// Range of the URL in the head, and the percent-encoded URL to put there; `None` if the URL is valid as it was
        /// sent.
        url: Option<(Range<usize>, String)>,
        /// Framing of the body that follows the head.
        framing: Framing,
    },
}

/// Reason why a head is refused.
#[derive(Debug)]
pub(super) enum BadHead {
    Malformed(String),
    UrlTooLong,
    TooLarge,
    TimedOut,
}

impl BadHead {
    /// Returns the fault of a head that exceeds the size limit: either its URL or its headers are too long.
    pub(super) fn too_large(head: &[u8]) -> Self {
        if head.iter().take(URL_BYTES_MAX).any(|&byte| byte == b'\n') { Self::TooLarge } else { Self::UrlTooLong }
    }
}

impl IntoResponse for BadHead {
    fn into_response(self) -> Response {
        let error = match self {
            Self::Malformed(text) => ApiError::bad_data(text),
            Self::UrlTooLong => {
                let text = format!("the URL has more than {URL_BYTES_MAX} bytes: POST the parameters as a form");
                ApiError { status: StatusCode::URI_TOO_LONG, ..ApiError::bad_data(text) }
            }
            Self::TooLarge => {
                let text = format!(
                    "the request's headers are more than {HEADERS_MAX} or have more than {} KiB: send fewer",
                    HEAD_BYTES_MAX >> 10
                );
                ApiError { status: StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, ..ApiError::bad_data(text) }
            }
            Self::TimedOut => {
                ApiError::timeout(format!("the request's headers did not arrive within {HEAD_PATIENCE:?}"))
            }
        };
        error.into_response()
    }
}

/// Parses a head.
pub(super) fn parse(bytes: &[u8]) -> Result<Head, BadHead> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    let length = match request.parse(bytes) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(Head::Partial),
        Err(error) => return Err(fault(error, &request, bytes)),
    };
    if let Err(error) = Method::from_bytes(request.method.unwrap_or_default().as_bytes()) {
        return Err(BadHead::Malformed(format!("the method cannot be read: {error}")));
    }
    let url = url(request.path.unwrap_or_default(), bytes)?;
    let framing = framing(&request)?;
    Ok(Head::Complete { length, url, framing })
}

fn fault(error: httparse::Error, request: &httparse::Request<'_, '_>, bytes: &[u8]) -> BadHead {
    let text = match error {
        httparse::Error::TooManyHeaders => return BadHead::TooLarge,
        _ if bytes.starts_with(TLS_HANDSHAKE) => {
            "this port speaks HTTP without TLS: use http://, or a TLS proxy in between".to_owned()
        }
        httparse::Error::Token if request.method.is_some() => {
            "the URL contains a control character: percent-encode it".to_owned()
        }
        httparse::Error::Token => "the request does not begin with METHOD URL HTTP/1.1".to_owned(),
        httparse::Error::Version => {
            "the URL is not followed by HTTP/1.1 or HTTP/1.0: percent-encode spaces in the URL as %20".to_owned()
        }
        error => format!("the request's head is malformed: {error}"),
    };
    BadHead::Malformed(text)
}

/// Returns the range of the URL in the head, and the percent-encoded URL. Returns `None` if hyper accepts the URL as it
/// is.
fn url(url: &str, head: &[u8]) -> Result<Option<(Range<usize>, String)>, BadHead> {
    if url.len() <= URL_BYTES_MAX && Uri::try_from(url).is_ok() {
        return Ok(None);
    }
    let encoded = percent_encoded(url);
    if encoded.len() > URL_BYTES_MAX {
        return Err(BadHead::UrlTooLong);
    }
    if let Err(error) = Uri::try_from(&encoded) {
        return Err(BadHead::Malformed(format!("the URL cannot be read: {error}")));
    }
    let start = (url.as_ptr() as usize).wrapping_sub(head.as_ptr() as usize);
    Ok(Some((start..start.wrapping_add(url.len()), encoded)))
}

/// Percent-encodes every character of the URL that RFC 3986 does not allow.
fn percent_encoded(url: &str) -> String {
    let mut encoded = String::with_capacity(url.len() + 16);
    for byte in url.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~:/?#[]@!$&'()*+,;=%".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

/// Returns the framing of the body. As in hyper, Transfer-Encoding takes precedence over Content-Length.
fn framing(request: &httparse::Request<'_, '_>) -> Result<Framing, BadHead> {
    let malformed = |text: &str| Err(BadHead::Malformed(text.to_owned()));
    let mut length = None;
    let mut last_encoding = None;
    for header in request.headers.iter() {
        if HeaderName::from_bytes(header.name.as_bytes()).is_err() {
            return malformed("the name of a header cannot be read");
        }
        if header.name.eq_ignore_ascii_case("transfer-encoding") {
            let encodings = std::str::from_utf8(header.value).unwrap_or_default();
            last_encoding = encodings.rsplit(',').next().map(|encoding| encoding.trim().to_owned());
        }
        if header.name.eq_ignore_ascii_case("content-length") && last_encoding.is_none() {
            let digits = header.value.iter().all(u8::is_ascii_digit).then_some(header.value);
            let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok()?.parse::<u64>().ok());
            match (digits, length) {
                (Some(new), Some(known)) if new != known => return malformed("there are several Content-Length"),
                (Some(new), _) if new <= CONTENT_LENGTH_MAX => length = Some(new),
                _ => return malformed("Content-Length is not a number of bytes"),
            }
        }
    }
    match last_encoding {
        None => Ok(Framing::Sized(length.unwrap_or(0))),
        Some(_) if request.version == Some(0) => malformed("HTTP/1.0 has no Transfer-Encoding"),
        Some(encoding) if encoding.eq_ignore_ascii_case("chunked") => Ok(Framing::CHUNKED),
        Some(_) => malformed("the last Transfer-Encoding of a request must be chunked"),
    }
}
