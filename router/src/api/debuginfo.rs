//! Uploads of debug files.

use std::io::Write;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use symbol_store::{AddError, SymbolStore, Upload};

use super::error::ApiError;

/// `POST /api/v1/debuginfo`.
pub(crate) fn routes(symbols: SymbolStore) -> Router {
    Router::new().route("/api/v1/debuginfo", post(upload)).with_state(symbols)
}

async fn upload(State(symbols): State<SymbolStore>, request: Request) -> Result<Json<Value>, ApiError> {
    let mut upload = on_disk(move || symbols.upload().map_err(ApiError::from)).await?;
    let mut body = request.into_body();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| ApiError::bad_data(format!("the body could not be read: {error}")))?;
        let Ok(bytes) = frame.into_data() else { continue };
        upload = on_disk(move || {
            upload.write_all(&bytes)?;
            Ok::<Upload, ApiError>(upload)
        })
        .await?;
    }
    let added = on_disk(move || upload.finish().map_err(ApiError::from)).await?;
    let data = json!({
        "build_id": added.build_id.to_string(),
        "functions": added.functions,
        "source": added.source.code(),
        "is_used": added.is_used,
    });
    Ok(Json(json!({"status": "success", "data": data})))
}

/// Runs what waits for the disk or a converter away from the threads that serve.
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
