//! Headers of the response to a query: the duration of each step, and the shards that the response covers.

use axum::http::{HeaderMap, HeaderName, HeaderValue, header};

use crate::query::run::Timings;

/// Header that lists the duration of each processing step. Browsers show these durations.
const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");
/// Header of a response that is missing the data of some shards.
const PARTIAL: HeaderName = HeaderName::from_static("varve-partial");
/// Header of a response that may be stale: its age in seconds.
const STALENESS: HeaderName = HeaderName::from_static("varve-staleness");

/// Returns the headers of the response to a query.
pub(crate) fn query_headers(timings: &Timings) -> HeaderMap {
    let coverage = &timings.coverage;
    let mut headers = HeaderMap::new();
    let mut add = |name, value: String| {
        // The values are printable ASCII.
        if let Ok(value) = HeaderValue::try_from(value) {
            headers.insert(name, value);
        }
    };
    add(SERVER_TIMING, server_timing(timings));
    if coverage.is_partial() {
        add(PARTIAL, coverage.header());
        // A cache must not serve this response once the shards answer again.
        add(header::CACHE_CONTROL, "no-store".to_owned());
    }
    if let Some(staleness) = coverage.staleness {
        add(STALENESS, staleness.text("unknown"));
    }
    headers
}

/// Returns the name of each processing step with its duration in milliseconds, and the numbers of shards that were
/// asked and that answered.
fn server_timing(timings: &Timings) -> String {
    let part =
        |(name, took): &(&'static str, std::time::Duration)| format!("{name};dur={:.3}", took.as_secs_f64() * 1000.0);
    let (asked, answered) = (timings.coverage.asked, timings.coverage.answered());
    let shards = format!("asked;desc=\"{answered} of {asked} shards answered\"");
    timings.parts.iter().map(part).chain([shards]).collect::<Vec<_>>().join(", ")
}
