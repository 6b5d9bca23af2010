//! The sender of requests: it sends one after another, each until it is acknowledged, refused, or dropped.
//!
//! An export keeps one `idempotency-key` through all tries, so that the receiver counts the request once even if the
//! response to a try was lost. Errors that the OTLP specification calls retryable are tried again with growing pauses,
//! and so are requests whose token was refused.
//! After any other error the request is dropped and counted. Pauses stay long until a request succeeds, because the
//! next request goes to the same endpoint.
//!
//! With a spool, a request that did not arrive at once waits on disk. While the endpoint is unreachable, new requests
//! are spooled at once. So `kill -9` can lose only a request that is in its first try. If that try takes longer than
//! [`SLOW`], the request is spooled, too. When the endpoint is reachable again, spooled requests are sent in turn with
//! new ones, the oldest first.
//!
//! Without a spool, or if the spool cannot be written, one request is tried until the queue overflows.
//!
//! Invariant: a request is in exactly one place: in the queue, in `held`, or on disk.

use std::hash::{BuildHasher as _, RandomState};
use std::pin::pin;
use std::time::Duration;

use proto::otlp::collector::profiles::v1development::ExportProfilesServiceResponse;
use proto::rpc_status::retry_delay;
use tokio_util::sync::CancellationToken;
use tonic::Status as GrpcStatus;

use crate::config::CheckedConfig;
use crate::export::client::{Client, Export, IdempotencyKey, explain, is_retryable, is_unseen};
use crate::export::queue::ExportQueue;
use crate::export::request::EncodedRequest;
use crate::export::spool::{End, Spool};
use crate::status::{DropReason, Outcome, Status};

/// Pause after the first of several failed tries. It doubles with each further failure.
const PAUSE_MIN: Duration = Duration::from_millis(500);
/// Longest pause between tries.
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Time without a response after which the endpoint may be unreachable, and the request is spooled.
const SLOW: Duration = Duration::from_secs(1);
/// Time to send the remaining requests after a shutdown was requested.
pub(crate) const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Sends the requests of a queue and of a spool.
#[derive(Debug)]
pub(crate) struct Sender {
    client: Client,
    spool: Option<Spool>,
    /// End of the spool, oldest or newest, from which the next request is taken.
    end: End,
    /// A request that is not on disk, and is being sent or will be tried again.
    held: Option<Held>,
    /// True if the last try failed, or the current one takes long.
    is_unreachable: bool,
    /// True if the next request comes from the spool, because the previous one was new. Spooled and new requests
    /// alternate.
    is_spool_next: bool,
    /// Random number of this run of the agent.
    run_id: u128,
    exports: u64,
    /// Pause before the next try after a failed one.
    pause: Duration,
    status: Status,
}

#[derive(Debug)]
struct Held {
    export: Export,
    /// Value of [`ExportQueue::overflows`] when the request was popped. A larger value later means that newer requests
    /// need the memory.
    overflows: u64,
}

impl Sender {
    pub(crate) fn new(config: &CheckedConfig, spool: Option<Spool>, status: Status) -> Self {
        // The standard library seeds its hashers with random numbers of the kernel.
        let random = || u128::from(RandomState::new().hash_one(std::process::id()));
        Self {
            client: Client::new(config),
            spool,
            end: End::Oldest,
            held: None,
            is_unreachable: false,
            is_spool_next: false,
            run_id: random() << 64 | random(),
            exports: 0,
            pause: PAUSE_MIN,
            status,
        }
    }

    /// Sends until `queue` is closed and all requests are sent, or spooled while the endpoint is unreachable. Once
    /// `shutdown` is cancelled, sends no longer than [`SHUTDOWN_TIMEOUT`]. Requests that are left are spooled or
    /// counted as dropped.
    pub(crate) async fn run(mut self, queue: &ExportQueue, shutdown: &CancellationToken) {
        let deadline = async {
            shutdown.cancelled().await;
            tokio::time::sleep(SHUTDOWN_TIMEOUT).await;
        };
        tokio::select! {
            () = self.send_all(queue, shutdown) => {}
            () = deadline => {}
        }
        self.end(queue);
    }

    async fn send_all(&mut self, queue: &ExportQueue, shutdown: &CancellationToken) {
        while let Some(export) = self.next(queue).await {
            let pause = self.send(export, queue).await;
            if self.is_unreachable && !self.wait(pause, queue, shutdown).await {
                return;
            }
        }
    }

    /// Returns the next request to send; `None` at the end. If this call or a later one is cancelled, no request is
    /// lost: each is in the queue, in `held` or in the spool.
    async fn next(&mut self, queue: &ExportQueue) -> Option<Export> {
        loop {
            if let Some(held) = &self.held {
                return Some(held.export.clone());
            }
            let new = if self.is_unreachable || self.is_spool_next { None } else { queue.try_pop() };
            self.is_spool_next = new.is_some();
            if new.is_none()
                && let Some(export) = self.spool.as_mut().and_then(|spool| spool.start(self.end))
            {
                return Some(export);
            }
            let request = match new {
                Some(request) => request,
                None => queue.pop().await?,
            };
            self.hold(request, queue);
            if self.is_unreachable {
                self.spool_held(false);
            }
        }
    }

    /// Tries once to send `export`. Returns the pause before the next try.
    async fn send(&mut self, export: Export, queue: &ExportQueue) -> Duration {
        let sending = self.client.clone().send(export.request.bytes.clone(), export.key);
        let mut sending = pin!(sending);
        let mut slow = pin!(tokio::time::sleep(SLOW));
        let response = loop {
            tokio::select! {
                biased;
                response = &mut sending => break response,
                () = &mut slow, if self.spool.is_some() && !self.is_unreachable => {
                    self.is_unreachable = true;
                    self.spool_held(true);
                }
                Some(request) = queue.pop(), if self.is_unreachable && self.can_spool() => {
                    self.hold(request, queue);
                    self.spool_held(false);
                }
            }
        };
        match response {
            Ok(response) => {
                (self.is_unreachable, self.pause, self.end) = (false, PAUSE_MIN, End::Oldest);
                self.finish();
                self.acknowledged(&export.request, &response);
                Duration::ZERO
            }
            Err(error) => self.failed(&export, &error, queue),
        }
    }

    fn failed(&mut self, export: &Export, error: &GrpcStatus, queue: &ExportQueue) -> Duration {
        let reason = explain(error);
        let samples = export.request.samples();
        self.status.set_reason(&reason);
        self.is_unreachable = is_retryable(error);
        if !self.is_unreachable {
            tracing::error!(samples, "the endpoint refused an export: {reason}");
            self.finish();
            self.drop_request(DropReason::Refused, samples);
            return Duration::ZERO;
        }
        if self.spool.as_mut().is_some_and(Spool::put_back) {
            // If a receiver saw the request, the request itself may be the cause of the error. The next one then comes
            // from the other end of the spool, and does not wait for it.
            self.end = if is_unseen(error) { self.end } else { self.end.other() };
        } else if self.held.as_ref().is_some_and(|held| held.overflows != queue.overflows()) {
            tracing::error!(samples, "the queue is full: dropped the oldest export: {reason}");
            self.finish();
            self.drop_request(DropReason::QueueFull, samples);
            self.is_unreachable = false;
            return Duration::ZERO;
        } else {
            self.spool_held(false);
        }
        let pause = self.pause.max(retry_delay(error.details()).unwrap_or_default()).min(PAUSE_MAX);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        tracing::warn!(pause_ms = pause.as_millis(), "an export failed and will be tried again: {reason}");
        self.status.count_export(Outcome::Retried);
        pause
    }

    /// Waits until the next try, and spools new requests meanwhile. Returns false if the queue is closed and all
    /// requests are spooled.
    async fn wait(&mut self, pause: Duration, queue: &ExportQueue, shutdown: &CancellationToken) -> bool {
        let is_ending = shutdown.is_cancelled();
        let mut due = pin!(tokio::time::sleep(if is_ending { PAUSE_MIN } else { jittered(pause) }));
        loop {
            tokio::select! {
                biased;
                request = queue.pop(), if self.can_spool() => {
                    let Some(request) = request else { return false };
                    self.hold(request, queue);
                    self.spool_held(false);
                }
                () = &mut due => return true,
                () = shutdown.cancelled(), if !is_ending => return true,
            }
        }
    }

    /// True if new requests can be spooled.
    fn can_spool(&self) -> bool {
        self.spool.is_some() && self.held.is_none()
    }

    fn hold(&mut self, request: EncodedRequest, queue: &ExportQueue) {
        self.exports += 1;
        let key = IdempotencyKey { run: self.run_id, number: self.exports };
        self.held = Some(Held { export: Export { key, request }, overflows: queue.overflows() });
    }

    /// Moves the held request to the spool, if the spool can be written. `is_sending` is true if the request is being
    /// sent.
    fn spool_held(&mut self, is_sending: bool) {
        let (Some(spool), Some(held)) = (&mut self.spool, &self.held) else { return };
        match spool.push(&held.export) {
            Ok(number) => {
                if is_sending {
                    spool.mark_sending(number);
                }
                self.held = None;
            }
            Err(error) => {
                self.status.count_spool_error();
                tracing::error!("an export cannot be spooled and waits in memory: {error}");
            }
        }
    }

    /// Removes the request that was being sent: from the spool if it is there, or else from `held`.
    fn finish(&mut self) {
        // If the request was from the spool, the held request is another one, which could not be written to the spool.
        if !self.spool.as_mut().is_some_and(Spool::finish) {
            self.held = None;
        }
    }

    /// Spools or drops the requests that are left in memory.
    fn end(&mut self, queue: &ExportQueue) {
        if let Some(held) = &self.held {
            let samples = held.export.request.samples();
            self.spool_held(false);
            if self.held.take().is_some() {
                self.drop_request(DropReason::Shutdown, samples);
            }
        }
        for request in queue.abandon(DropReason::Shutdown) {
            let samples = request.samples();
            self.hold(request, queue);
            self.spool_held(false);
            if self.held.take().is_some() {
                self.status.count_dropped(DropReason::Shutdown, samples);
            }
        }
        let waiting = self.spool.as_ref().map_or(0, Spool::len);
        if waiting != 0 {
            tracing::warn!(requests = waiting, "unsent requests wait on disk for the next start of the agent");
        }
    }

    fn drop_request(&self, reason: DropReason, samples: u64) {
        self.status.count_export(Outcome::Failed);
        self.status.count_dropped(reason, samples);
    }

    fn acknowledged(&self, request: &EncodedRequest, response: &ExportProfilesServiceResponse) {
        self.status.count_export(Outcome::Ok);
        self.status.count_export_bytes(request.bytes.len());
        let partial = response.partial_success.as_ref();
        let rejected_profiles = partial.map_or(0, |partial| partial.rejected_profiles);
        if rejected_profiles != 0 {
            // The response does not name the profiles. They had at least this many samples.
            let samples = request.samples_of(u64::try_from(rejected_profiles).unwrap_or(0));
            self.status.count_dropped(DropReason::Refused, samples);
            let message = partial.map_or("", |partial| &partial.error_message);
            tracing::error!(rejected_profiles, samples, "the endpoint refused part of an export: {message}");
            self.status.set_reason(&format!("the endpoint refused {rejected_profiles} profiles: {message}"));
        } else {
            self.status.set_reason("");
        }
    }
}

/// Returns a random time between half of `pause` and `pause`, so that agents do not reconnect to a server all at once.
fn jittered(pause: Duration) -> Duration {
    let random = RandomState::new().hash_one(0) >> 54;
    pause / 2 + pause.mul_f64(random as f64 / 2048.0)
}

#[cfg(test)]
mod tests;
