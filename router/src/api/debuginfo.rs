//! Uploads of debug files.
//!
//! A debug file may have several gigabytes, so an upload has a minimum speed instead of a time limit. The symbol store
//! limits the number of concurrent uploads and their space on the disk.

use std::io::Write;
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::extract::{Extension, Request, State};
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use http_body_util::BodyExt;
use proto::{BuildId, TenantId};
use serde_json::{Value, json};
use symbol_store::{AddError, SymbolStore, Upload};

use super::error::ApiError;
use super::parameters::Parameters;

/// Longest time to wait for the next byte of the body, including the first byte.
const BODY_PATIENCE: Duration = Duration::from_secs(30);

/// Minimum average speed of a body, in bytes per second. Even a mobile connection is faster. A slower upload would
/// block one of the few upload slots for too long.
const BODY_BYTES_PER_SECOND_MIN: u64 = 64 << 10;

/// Returns the routes `POST /api/v1/debuginfo` and `DELETE /api/v1/debuginfo`.
pub(crate) fn routes(symbols: SymbolStore) -> Router {
    Router::new().route("/api/v1/debuginfo", post(upload).delete(delete)).with_state(symbols)
}

async fn upload(
    State(symbols): State<SymbolStore>,
    Extension(tenant): Extension<TenantId>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let upload = on_disk(move || symbols.upload(&tenant).map_err(ApiError::from)).await?;
    let upload = receive(request.into_body(), upload, BODY_PATIENCE).await?;
    let added = on_disk(move || upload.finish().map_err(ApiError::from)).await?;
    let data = json!({
        "build_id": added.build_id.to_string(),
        "functions": added.functions,
        "source": added.source.code(),
        "is_used": added.is_used,
    });
    Ok(Json(json!({"status": "success", "data": data})))
}

/// Deletes the symbol tables of one build ID, or all of the tenant's with `all=true`.
async fn delete(
    State(symbols): State<SymbolStore>,
    Extension(tenant): Extension<TenantId>,
    parameters: Parameters,
) -> Result<Json<Value>, ApiError> {
    let id = match (parameters.get("build_id"), parameters.get("all")) {
        (Some(text), None) => {
            let wrong = || ApiError::bad_data(format!("build_id={text:?}: use gnu:HEX, go:TEXT or htlhash:HEX"));
            Some(BuildId::parse(text).ok_or_else(wrong)?)
        }
        (None, Some("true")) => None,
        _ => return Err(ApiError::bad_data("name the file with build_id=gnu:HEX, or delete all files with all=true")),
    };
    let tables = on_disk(move || {
        symbols
            .remove_uploads(&tenant, id.as_ref())
            .map_err(|error| ApiError::unavailable(format!("some symbol tables may remain: {error}: try again")))
    });
    Ok(Json(json!({"status": "success", "data": {"tables": tables.await?}})))
}

/// Writes the body to the upload as the body arrives. No piece may take longer than `stall` to arrive.
async fn receive(mut body: Body, mut upload: Upload, stall: Duration) -> Result<Upload, ApiError> {
    let began = Instant::now();
    let mut received = 0;
    loop {
        let patience = patience(received, began.elapsed()).min(stall);
        let Ok(frame) = tokio::time::timeout(patience, body.frame()).await else {
            let text = format!(
                "the body stalled or came slower than {} KiB a second: {received} bytes in {} s",
                BODY_BYTES_PER_SECOND_MIN >> 10,
                began.elapsed().as_secs()
            );
            return Err(ApiError::timeout(text));
        };
        let Some(frame) = frame else { return Ok(upload) };
        let frame = frame.map_err(|error| ApiError::bad_data(format!("the body could not be read: {error}")))?;
        let Ok(bytes) = frame.into_data() else { continue };
        received += bytes.len() as u64;
        upload = on_disk(move || {
            upload.write_all(&bytes)?;
            Ok::<Upload, ApiError>(upload)
        })
        .await?;
    }
}

/// Returns the longest time to wait for the next piece of a body. `received` is the number of bytes received, and
/// `elapsed` is the time since the upload began.
fn patience(received: u64, elapsed: Duration) -> Duration {
    let due = BODY_PATIENCE + Duration::from_secs(received / BODY_BYTES_PER_SECOND_MIN);
    due.saturating_sub(elapsed).min(BODY_PATIENCE)
}

/// Runs work on a blocking thread, because the work waits for the disk, or for the process that converts a debug file.
async fn on_disk<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(stopped) => Err(ApiError::unavailable(format!("the upload stopped: {stopped}"))),
    }
}

impl From<std::io::Error> for ApiError {
    fn from(error: std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::FileTooLarge => Self::too_large("the file is larger than a debug file may be"),
            _ => Self::unavailable(format!("the file could not be received: {error}")),
        }
    }
}

impl From<AddError> for ApiError {
    fn from(error: AddError) -> Self {
        let text = match std::error::Error::source(&error) {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        };
        match error {
            AddError::Full { .. } | AddError::Io(_) => Self::unavailable(text),
            AddError::Busy => Self::overloaded(text),
            AddError::Elf(_) | AddError::NoBuildId | AddError::Stripped | AddError::Unusable(_) => {
                Self { status: StatusCode::UNPROCESSABLE_ENTITY, ..Self::bad_data(text) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Bytes;
    use futures::stream::{self, StreamExt as _};
    use symbol_store::Config;
    use symbol_store::convert::Converter;
    use symbol_store::limits::{self, Limits};
    use tower::ServiceExt as _;

    use super::*;

    fn store(directory: &std::path::Path) -> SymbolStore {
        SymbolStore::open(Config {
            directory: directory.join("symbols"),
            converter: Converter { program: "/bin/false".into(), arguments: Vec::new() },
            host_files: false,
            debug_directory: String::new(),
            bucket: None,
            limits: Limits::DEFAULT,
        })
        .unwrap()
    }

    fn post(body: Body) -> Request {
        Request::post("/api/v1/debuginfo").body(body).unwrap()
    }

    /// Returns a body that begins and then stalls.
    fn stalled() -> Body {
        let first = stream::iter([Ok::<_, std::io::Error>(Bytes::from_static(b"\x7fELF"))]);
        Body::from_stream(first.chain(stream::pending()))
    }

    #[tokio::test]
    async fn an_upload_over_the_limit_is_refused_at_once_with_retry_after() {
        let directory = tempfile::tempdir().unwrap();
        let routes = routes(store(directory.path())).layer(Extension(TenantId::default_tenant()));
        let stalled: Vec<_> =
            (0..limits::UPLOADS_MAX).map(|_| tokio::spawn(routes.clone().oneshot(post(stalled())))).collect();
        let making = directory.path().join("symbols/making");
        while std::fs::read_dir(&making).unwrap().count() < limits::UPLOADS_MAX {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let refused = routes.clone().oneshot(post(Body::from("more"))).await.unwrap();
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(refused.headers()["retry-after"], "1");
        // An upload that ends frees its slot.
        for request in stalled {
            request.abort();
            assert!(request.await.unwrap_err().is_cancelled());
        }
        while std::fs::read_dir(&making).unwrap().count() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let refused = routes.oneshot(post(Body::from("no program"))).await.unwrap();
        assert_eq!(refused.status(), StatusCode::UNPROCESSABLE_ENTITY);
    }

    #[tokio::test]
    async fn stalled_bodies_time_out() {
        let directory = tempfile::tempdir().unwrap();
        let upload = store(directory.path()).upload(&TenantId::default_tenant()).unwrap();
        let refused = receive(stalled(), upload, Duration::from_millis(20)).await.unwrap_err();
        assert_eq!(refused.status, StatusCode::REQUEST_TIMEOUT);
        assert_eq!(std::fs::read_dir(directory.path().join("symbols/making")).unwrap().count(), 0);
    }

    #[test]
    fn slow_uploads_have_less_and_less_time() {
        let seconds = Duration::from_secs;
        assert_eq!(patience(0, seconds(0)), seconds(30));
        assert_eq!(patience(0, seconds(29)), seconds(1));
        // One byte earns no more time. Bytes that arrived fast allow no stall of more than 30 seconds. The last body is
        // exactly at its time limit.
        assert_eq!(patience(1, seconds(29)), seconds(1));
        assert_eq!(patience(1 << 30, seconds(100)), seconds(30));
        assert_eq!(patience(1 << 20, seconds(46)), seconds(0));
    }
}
