//! Measurement of a running varve with a month of history: 30 days with samples in 5 s of every hour, and then one full
//! hour.
//!
//! Each query runs several times. In all runs but the first, the edges of its window are not on whole minutes, so that
//! it reads every tier.

use std::path::Path;

use anyhow::{Context as _, ensure};
use prost::Message as _;
use serde_json::{Value, json};

use super::query::{Query, flamegraph_total};
use super::sending::Sending;
use super::server::{Measured, Server};
use crate::generator::{BatchBuilder, Corpus, Days, Fleet, INTERVAL_NS, Mix, PERIOD_NS, Plan, build_request};

const HOUR_NS: u64 = 3600 * 1_000_000_000;
const DAY_NS: u64 = 24 * HOUR_NS;
/// Length of the history. It is short enough that varve's default retention drops no samples during the measurement.
const HISTORY_NS: u64 = 30 * DAY_NS - 2 * HOUR_NS;
/// Number of intervals of 5 s in an hour. Only one of these intervals is played.
const EVERY: u64 = HOUR_NS / INTERVAL_NS;
/// Number of requests that are encoded in memory and then sent, before the next requests are encoded.
const REQUESTS_AT_ONCE: usize = 500;
const SENDING: Sending = Sending::Closed { clients: 8 };
/// Names and lengths of the queried windows; lengths are in nanoseconds.
const SPANS: [(&str, u64); 4] =
    [("1 h", HOUR_NS), ("24 h", DAY_NS), ("29 d", 29 * DAY_NS), ("29 d, again", 29 * DAY_NS)];

/// Sends the history to a new server, compacts it, and queries it. Returns the figures of the history and of each
/// query.
///
/// # Errors
/// The server does not start, a request fails, or the sum of the stored values differs from the sum of the sent values.
pub(crate) fn history(
    varve: Measured<'_>,
    data_dir: &Path,
    mix: Mix,
    seed: u64,
    end_ns: u64,
) -> anyhow::Result<Vec<Value>> {
    let mut server = Server::prepare(varve, data_dir)?;
    server.launch()?;
    let corpus = Corpus::load(mix)?;
    let plan = Plan {
        seed,
        first_pod: 0,
        pods: mix.pods(),
        start_ns: end_ns - HISTORY_NS,
        intervals: (HISTORY_NS - HOUR_NS) / INTERVAL_NS,
        every: EVERY,
        days: Days::Daily,
    };
    let month = send(&server, &corpus, plan)?;
    let hour =
        Plan { start_ns: end_ns - HOUR_NS, intervals: HOUR_NS / INTERVAL_NS, every: 1, days: Days::Full, ..plan };
    let hour = send(&server, &corpus, hour)?;
    let ingest_rss_bytes = server.peak_rss_bytes()?;
    server.compact()?;
    let mut figures = vec![json!({
        "history_samples": month,
        "hour_samples": hour,
        "peak_rss_bytes": ingest_rss_bytes,
        "compacted_peak_rss_bytes": server.peak_rss_bytes()?,
        "disk_bytes": server.disk_bytes()?.0,
    })];
    server.stop()?;
    server.launch()?;
    let service = &corpus.services[0].name;
    for (name, span_ns) in SPANS {
        let selector = format!("process_cpu{{service_name={service:?}}}");
        let query = Query::flamegraph(format!("flame graph of one service, {name}"), selector);
        figures.push(query.measure(&server, end_ns - span_ns, end_ns)?.0);
    }
    let query = Query::flamegraph("flame graph of everything, 30 d".to_owned(), "process_cpu".to_owned());
    let (of_all, answer) = query.measure(&server, end_ns - HISTORY_NS, end_ns)?;
    let total = flamegraph_total(&answer)?;
    let want = (month + hour) * PERIOD_NS;
    ensure!(total == want, "the server has {total} ns of CPU, it was sent {want}");
    figures.push(of_all);
    Ok(figures)
}

/// Sends the samples of a plan, and returns their number.
fn send(server: &Server, corpus: &Corpus, plan: Plan) -> anyhow::Result<u64> {
    let builder = BatchBuilder::new(corpus);
    let mut samples = 0;
    let mut hosts = Fleet::new(corpus, plan).peekable();
    while hosts.peek().is_some() {
        let requests: Vec<Vec<u8>> = hosts
            .by_ref()
            .take(REQUESTS_AT_ONCE)
            .map(|host| {
                samples += host.pods.iter().map(|pod| pod.samples.len() as u64).sum::<u64>();
                build_request(&builder.build(&host), &host).encode_to_vec()
            })
            .collect();
        SENDING.send(&server.otlp, "", &requests).context("history")?;
    }
    Ok(samples)
}
