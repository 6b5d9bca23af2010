//! The web UI. Serves the embedded files that `router/ui` builds, or build instructions if these files are missing.

use axum::Router;
use axum::http::{Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use rust_embed::RustEmbed;

use super::not_found::not_found;

#[derive(RustEmbed)]
#[folder = "ui/dist"]
#[allow_missing = true]
struct Files;

const PLACEHOLDER: &str = "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>\
    varve</title></head><body>\
<h1>The web UI is not in this build</h1><p>Build the web UI and the binary with <code>make build</code>.</p>\
<p>Everything else is here: <a href=\"/api/v1/labels\">/api/v1/labels</a>, \
<a href=\"/metrics\">/metrics</a>, and <code>varve query</code> on the terminal.</p></body></html>";

/// Content security policy of the web UI: no content from other hosts, and no inline scripts.
const CONTENT_SECURITY_POLICY: &str = "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

/// Returns the routes of the web UI: the document at `/`, its scripts and styles below `/assets/`, and its icon.
pub(crate) fn routes() -> Router {
    Router::new().route("/", get(file)).route("/assets/{*path}", get(file)).route("/favicon.svg", get(file))
}

async fn file(uri: Uri) -> Response {
    let path = match uri.path().trim_start_matches('/') {
        "" => "index.html",
        path => path,
    };
    let security = [
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    match Files::get(path) {
        Some(file) => {
            // The name of each asset contains a hash of its content, so assets may be cached forever. The document has
            // one name in all versions, so browsers must ask for it each time.
            let cache = if path.starts_with("assets/") { "max-age=31536000, immutable" } else { "no-cache" };
            let kind = [(header::CONTENT_TYPE, file.metadata.mimetype()), (header::CACHE_CONTROL, cache)];
            (security, kind, file.data.into_owned()).into_response()
        }
        None if path == "index.html" => (security, axum::response::Html(PLACEHOLDER)).into_response(),
        None => not_found(uri).await.into_response(),
    }
}
