//! Two ways to send a workload: by clients that wait for each acknowledgement, or at times that do not depend on the
//! server.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::client::{Client, Pushed};

/// Largest number of requests that an open loop has in flight at one time. Further requests are sent late, and the
/// delay counts as latency.
const OPEN_CLIENTS: usize = 128;
/// Pause before a refused request is sent again.
const RETRY_AFTER: Duration = Duration::from_millis(20);

/// Way to send a workload.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sending {
    /// Each client sends its next request after the acknowledgement of its previous request.
    Closed { clients: usize },
    /// Requests are due at fixed times, and are sent at these times. Latencies are measured from the fixed times, so
    /// that stalls of the server are visible.
    Open { requests_per_s: u32 },
}

/// Latencies and refusals of all requests.
#[derive(Debug)]
pub(crate) struct Sent {
    /// Latency of each request up to its acknowledgement, in milliseconds, ascending. It is measured from the first
    /// attempt; in an open loop, from the time at which the request was due.
    pub(crate) latencies_ms: Vec<f64>,
    /// Number of responses that demanded a retry.
    pub(crate) refused: usize,
    /// Time from the start of the first request to the last acknowledgement, in seconds.
    pub(crate) took_s: f64,
}

impl Sending {
    /// Sends all requests, with a bearer token unless it is empty.
    ///
    /// # Errors
    /// A request failed, and the server did not demand a retry.
    pub(crate) fn send(self, address: &str, token: &str, requests: &[Vec<u8>]) -> anyhow::Result<Sent> {
        let clients = match self {
            Self::Closed { clients } => clients,
            Self::Open { .. } => OPEN_CLIENTS,
        };
        let next = AtomicUsize::new(0);
        let refused = AtomicUsize::new(0);
        let began = Instant::now();
        let work = || {
            let client = Client::with_token(token);
            let mut latencies_ms = Vec::new();
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let Some(request) = requests.get(number) else { return Ok(latencies_ms) };
                let due = self.wait_until_due(began, number);
                while client.push(address, request)? == Pushed::Refused {
                    refused.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(RETRY_AFTER);
                }
                latencies_ms.push(due.elapsed().as_secs_f64() * 1e3);
            }
        };
        let of_clients: Vec<anyhow::Result<Vec<f64>>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..clients).map(|_| scope.spawn(work)).collect();
            let died = |_payload| Err(anyhow::anyhow!("a client died"));
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(died)).collect()
        });
        let took_s = began.elapsed().as_secs_f64();
        let mut latencies_ms = of_clients.into_iter().collect::<anyhow::Result<Vec<_>>>()?.concat();
        latencies_ms.sort_by(f64::total_cmp);
        Ok(Sent { latencies_ms, refused: refused.into_inner(), took_s })
    }

    fn wait_until_due(self, began: Instant, number: usize) -> Instant {
        match self {
            Self::Closed { .. } => Instant::now(),
            Self::Open { requests_per_s } => {
                let due = began + Duration::from_secs_f64(number as f64 / f64::from(requests_per_s));
                std::thread::sleep(due.saturating_duration_since(Instant::now()));
                due
            }
        }
    }
}
