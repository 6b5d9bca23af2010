//! Sends requests one by one, each until it is acknowledged, given up, or too late.
//!
//! An export carries one `idempotency-key` through all its tries, so that a try whose answer was lost counts once. What the
//! OTLP specification calls retryable is tried again with growing pauses; anything else will not get better and is given up, and
//! counted. Pauses begin small again only after a success: a request that takes the place of one that was given up finds the
//! same endpoint.
//!
//! With a spool, what did not arrive at once waits on disk, and while the endpoint is away, so does all that comes, at once: what
//! `kill -9` can cost is the request of the first try, for [`SLOW`] at most. When the endpoint is back, the oldest goes first, in
//! turn with what is fresh. Without a spool, or where it cannot be written, one request is tried as long as the queue behind it
//! has room.
//!
//! Invariant: a request is in one place: in the queue, in `held`, or on disk.

use std::hash::{BuildHasher as _, RandomState};
use std::pin::pin;
use std::time::Duration;

use proto::otlp::collector::profiles::v1development::ExportProfilesServiceResponse;
use proto::retry_info::retry_delay;
use tokio_util::sync::CancellationToken;
use tonic::Status as GrpcStatus;

use crate::config::CheckedConfig;
use crate::export::Export;
use crate::export::client::{Client, IdempotencyKey, explain, is_retryable, is_unseen};
use crate::export::queue::ExportQueue;
use crate::export::request::EncodedRequest;
use crate::export::spool::{End, Spool};
use crate::status::{DropReason, Outcome, Status};

/// The first pause between tries, and the longest.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// An endpoint that takes longer to answer may be away: what it has not acknowledged goes to disk.
const SLOW: Duration = Duration::from_secs(1);
/// How long what is left may take once the agent shall end.
pub(crate) const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// Sends what comes out of a queue, and what is in a spool.
#[derive(Debug)]
pub(crate) struct Sender {
    client: Client,
    spool: Option<Spool>,
    /// Where the next request of the spool is taken from.
    end: End,
    /// Not on disk: on its way, or to be tried again.
    held: Option<Held>,
    /// The last try failed, or the present one takes long.
    is_away: bool,
    /// A fresh request was sent, and now one of the spool may go.
    is_turn_of_spool: bool,
    /// Tells this run of the agent from all others.
    run_id: u128,
    exports: u64,
    /// Before the next try that follows a failed one.
    pause: Duration,
    status: Status,
}

#[derive(Debug)]
struct Held {
    export: Export,
    /// Of the queue, when it came: at one more, newer ones need its place.
    overflows: u64,
}

impl Sender {
    pub(crate) fn new(config: &CheckedConfig, spool: Option<Spool>, status: Status) -> Self {
        // The standard library seeds its hashers from the kernel's random numbers.
        let random = || u128::from(RandomState::new().hash_one(std::process::id()));
        Self {
            client: Client::new(config),
            spool,
            end: End::Oldest,
            held: None,
            is_away: false,
            is_turn_of_spool: false,
            run_id: random() << 64 | random(),
            exports: 0,
            pause: PAUSE_MIN,
            status,
        }
    }

    /// Sends until `queue` is closed and all is sent, or on disk with the endpoint away; once `shutdown` is cancelled, no longer
    /// than [`SHUTDOWN_TIMEOUT`]. What is left goes to disk, or is counted as lost.
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
            if self.is_away && !self.wait(pause, queue, shutdown).await {
                return;
            }
        }
    }

    /// What is sent next; `None` at the end. Nothing is popped, or taken from the spool, and not remembered, should this or what
    /// follows be cancelled.
    async fn next(&mut self, queue: &ExportQueue) -> Option<Export> {
        loop {
            if let Some(held) = &self.held {
                return Some(held.export.clone());
            }
            let fresh = if self.is_away || self.is_turn_of_spool { None } else { queue.try_pop() };
            self.is_turn_of_spool = fresh.is_some();
            if fresh.is_none()
                && let Some(export) = self.spool.as_mut().and_then(|spool| spool.start(self.end))
            {
                return Some(export);
            }
            let request = match fresh {
                Some(request) => request,
                None => queue.pop().await?,
            };
            self.hold(request, queue);
            if self.is_away {
                self.spool_held(false);
            }
        }
    }

    /// Tries once. Returns how long to wait if the endpoint is away.
    async fn send(&mut self, export: Export, queue: &ExportQueue) -> Duration {
        let sending = self.client.clone().send(export.request.bytes.clone(), export.key);
        let (mut sending, mut slow) = (pin!(sending), pin!(tokio::time::sleep(SLOW)));
        let answer = loop {
            tokio::select! {
                biased;
                answer = &mut sending => break answer,
                () = &mut slow, if self.spool.is_some() && !self.is_away => {
                    self.is_away = true;
                    self.spool_held(true);
                }
                Some(request) = queue.pop(), if self.is_away && self.can_spool() => {
                    self.hold(request, queue);
                    self.spool_held(false);
                }
            }
        };
        match answer {
            Ok(response) => {
                (self.is_away, self.pause, self.end) = (false, PAUSE_MIN, End::Oldest);
                self.finish();
                self.acknowledged(&export.request, &response);
                Duration::ZERO
            }
            Err(error) => self.failed(&export, &error, queue),
        }
    }

    fn failed(&mut self, export: &Export, error: &GrpcStatus, queue: &ExportQueue) -> Duration {
        let (reason, samples) = (explain(error), export.request.samples());
        self.status.set_reason(&reason);
        self.is_away = is_retryable(error);
        if !self.is_away {
            tracing::error!(samples, "the endpoint refused an export: {reason}");
            self.finish();
            self.give_up(DropReason::Refused, samples);
            return Duration::ZERO;
        }
        if self.spool.as_mut().is_some_and(Spool::put_back) {
            // Should it be because of this request, the others need not wait for it.
            self.end = if is_unseen(error) { self.end } else { self.end.other() };
        } else if self.held.as_ref().is_some_and(|held| held.overflows != queue.overflows()) {
            tracing::error!(samples, "an export is given up for newer ones: {reason}");
            self.finish();
            self.give_up(DropReason::QueueFull, samples);
            self.is_away = false;
            return Duration::ZERO;
        } else {
            self.spool_held(false);
        }
        let pause = self.pause.max(retry_delay(error).unwrap_or_default()).min(PAUSE_MAX);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        tracing::warn!(pause_ms = pause.as_millis(), "an export did not arrive and will be tried again: {reason}");
        self.status.count_export(Outcome::Retried);
        pause
    }

    /// Waits for the time of the next try, while what comes goes to disk. `false` if nothing comes any more and all is there.
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

    /// What comes need not wait in the queue.
    fn can_spool(&self) -> bool {
        self.spool.is_some() && self.held.is_none()
    }

    fn hold(&mut self, request: EncodedRequest, queue: &ExportQueue) {
        self.exports += 1;
        let key = IdempotencyKey { run: self.run_id, number: self.exports };
        self.held = Some(Held { export: Export { key, request }, overflows: queue.overflows() });
    }

    /// Moves what is held to disk, if it can be written; `is_sending` says that it is on its way.
    fn spool_held(&mut self, is_sending: bool) {
        let (Some(spool), Some(held)) = (&mut self.spool, &self.held) else { return };
        match spool.push(&held.export) {
            Ok(number) => {
                if is_sending {
                    spool.is_sending(number);
                }
                self.held = None;
            }
            Err(error) => {
                self.status.count_spool_error();
                tracing::error!("an export cannot be kept on disk and waits in memory: {error}");
            }
        }
    }

    /// The request that was on its way is so no more, and need not be kept.
    fn finish(&mut self) {
        // What is held beside one from the spool is another, which could not be written.
        if !self.spool.as_mut().is_some_and(Spool::finish) {
            self.held = None;
        }
    }

    /// Leaves nothing in memory.
    fn end(&mut self, queue: &ExportQueue) {
        if let Some(held) = &self.held {
            let samples = held.export.request.samples();
            self.spool_held(false);
            if self.held.take().is_some() {
                self.give_up(DropReason::Shutdown, samples);
            }
        }
        for request in queue.give_up(DropReason::Shutdown) {
            let samples = request.samples();
            self.hold(request, queue);
            self.spool_held(false);
            if self.held.take().is_some() {
                self.status.count_dropped(DropReason::Shutdown, samples);
            }
        }
        let waiting = self.spool.as_ref().map_or(0, Spool::len);
        if waiting != 0 {
            tracing::warn!(requests = waiting, "what did not arrive waits on disk for the next start of the agent");
        }
    }

    fn give_up(&self, reason: DropReason, samples: u64) {
        self.status.count_export(Outcome::Failed);
        self.status.count_dropped(reason, samples);
    }

    fn acknowledged(&self, request: &EncodedRequest, response: &ExportProfilesServiceResponse) {
        self.status.count_export(Outcome::Ok);
        self.status.count_export_bytes(request.bytes.len());
        let partial = response.partial_success.as_ref();
        let rejected_profiles = partial.map_or(0, |partial| partial.rejected_profiles);
        if rejected_profiles != 0 {
            // Which ones is not said: they had these samples, or more.
            let samples = request.samples_of(u64::try_from(rejected_profiles).unwrap_or(0));
            self.status.count_dropped(DropReason::Refused, samples);
            let message = partial.map_or("", |partial| &partial.error_message);
            tracing::error!(rejected_profiles, samples, "the endpoint refused a part of an export: {message}");
            self.status.set_reason(&format!("the endpoint refused {rejected_profiles} profiles: {message}"));
        } else {
            self.status.set_reason("");
        }
    }
}

/// Between half of `pause` and all of it, so that agents which lost one server do not come back all at once.
fn jittered(pause: Duration) -> Duration {
    let random = RandomState::new().hash_one(0) >> 54;
    pause / 2 + pause.mul_f64(random as f64 / 2048.0)
}

#[cfg(test)]
mod spool_tests;
#[cfg(test)]
mod tests;
