//! The runtime of openraft in tests: tokio, with one difference.
//!
//! Tokio wakes the tasks that wait for a change of one value in a random order. Here they are woken in the order in
//! which they began to wait, so that a simulation with the same seed takes the same steps.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use openraft::async_runtime::watch::{RecvError, SendError};
use openraft::async_runtime::{AsyncRuntime, Watch, WatchReceiver, WatchSender};
use openraft::impls::TokioRuntime;
use openraft::{OptionalSend, OptionalSync};
use tokio::sync::{Notify, watch};
use tokio::task::coop::unconstrained;

/// Tokio with ordered watch channels.
pub(crate) struct Ordered(TokioRuntime);

impl fmt::Debug for Ordered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ordered")
    }
}

impl AsyncRuntime for Ordered {
    type JoinError = <TokioRuntime as AsyncRuntime>::JoinError;
    type JoinHandle<T: OptionalSend + 'static> = <TokioRuntime as AsyncRuntime>::JoinHandle<T>;
    type Sleep = <TokioRuntime as AsyncRuntime>::Sleep;
    type Instant = <TokioRuntime as AsyncRuntime>::Instant;
    type TimeoutError = <TokioRuntime as AsyncRuntime>::TimeoutError;
    type Timeout<R, T: Future<Output = R> + OptionalSend> = <TokioRuntime as AsyncRuntime>::Timeout<R, T>;
    type ThreadLocalRng = <TokioRuntime as AsyncRuntime>::ThreadLocalRng;
    type Mpsc = <TokioRuntime as AsyncRuntime>::Mpsc;
    type Watch = OrderedWatch;
    type Oneshot = <TokioRuntime as AsyncRuntime>::Oneshot;
    type Mutex<T: OptionalSend + 'static> = <TokioRuntime as AsyncRuntime>::Mutex<T>;

    fn spawn<T>(future: T) -> Self::JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        TokioRuntime::spawn(future)
    }

    fn sleep(duration: Duration) -> Self::Sleep {
        TokioRuntime::sleep(duration)
    }

    fn sleep_until(deadline: Self::Instant) -> Self::Sleep {
        TokioRuntime::sleep_until(deadline)
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(duration: Duration, future: F) -> Self::Timeout<R, F> {
        TokioRuntime::timeout(duration, future)
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(deadline: Self::Instant, future: F) -> Self::Timeout<R, F> {
        TokioRuntime::timeout_at(deadline, future)
    }

    fn is_panic(join_error: &Self::JoinError) -> bool {
        TokioRuntime::is_panic(join_error)
    }

    // Openraft draws only the phase of its timer, which varve does not use.
    fn thread_rng() -> Self::ThreadLocalRng {
        TokioRuntime::thread_rng()
    }

    fn new(threads: usize) -> Self {
        Self(TokioRuntime::new(threads))
    }

    fn block_on<F, T>(&mut self, future: F) -> T
    where
        F: Future<Output = T>,
    {
        self.0.block_on(future)
    }
}

/// A channel with one value, whose receivers are woken in the order in which they began to wait.
pub(crate) struct OrderedWatch;

/// Notifies the receivers when the last sender is dropped.
struct Closing(Arc<Notify>);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0.notify_waiters();
    }
}

pub(crate) struct OrderedSender<T> {
    // Dropped before the receivers are notified of it.
    value: watch::Sender<T>,
    closing: Arc<Closing>,
}

impl<T> Clone for OrderedSender<T> {
    fn clone(&self) -> Self {
        Self { value: self.value.clone(), closing: Arc::clone(&self.closing) }
    }
}

pub(crate) struct OrderedReceiver<T> {
    value: watch::Receiver<T>,
    changes: Arc<Notify>,
}

impl<T> Clone for OrderedReceiver<T> {
    fn clone(&self) -> Self {
        Self { value: self.value.clone(), changes: Arc::clone(&self.changes) }
    }
}

impl Watch for OrderedWatch {
    type Sender<T: OptionalSend + OptionalSync> = OrderedSender<T>;
    type Receiver<T: OptionalSend + OptionalSync> = OrderedReceiver<T>;
    type Ref<'a, T: OptionalSend + 'a> = watch::Ref<'a, T>;

    fn channel<T: OptionalSend + OptionalSync>(init: T) -> (Self::Sender<T>, Self::Receiver<T>) {
        let (value, received) = watch::channel(init);
        let changes = Arc::<Notify>::default();
        let closing = Arc::new(Closing(Arc::clone(&changes)));
        (OrderedSender { value, closing }, OrderedReceiver { value: received, changes })
    }
}

impl<T: OptionalSend + OptionalSync> WatchSender<OrderedWatch, T> for OrderedSender<T> {
    fn send(&self, value: T) -> Result<(), SendError<T>> {
        self.value.send(value).map_err(|error| SendError(error.0))?;
        self.closing.0.notify_waiters();
        Ok(())
    }

    fn send_if_modified<F>(&self, modify: F) -> bool
    where
        F: FnOnce(&mut T) -> bool,
    {
        let is_modified = self.value.send_if_modified(modify);
        if is_modified {
            self.closing.0.notify_waiters();
        }
        is_modified
    }

    fn borrow_watched(&self) -> watch::Ref<'_, T> {
        self.value.borrow()
    }

    fn subscribe(&self) -> OrderedReceiver<T> {
        OrderedReceiver { value: self.value.subscribe(), changes: Arc::clone(&self.closing.0) }
    }
}

impl<T: OptionalSend + OptionalSync> WatchReceiver<OrderedWatch, T> for OrderedReceiver<T> {
    async fn changed(&mut self) -> Result<(), RecvError> {
        let changes = Arc::clone(&self.changes);
        loop {
            // Made before the look at the value, so that no change between the two is missed.
            let notified = changes.notified();
            // Without the budget of tasks, which would let this look miss a change.
            if let Some(changed) = unconstrained(self.value.changed()).now_or_never() {
                return changed.map_err(|_closed| RecvError(()));
            }
            notified.await;
        }
    }

    fn borrow_watched(&self) -> watch::Ref<'_, T> {
        self.value.borrow()
    }

    fn borrow_and_update(&mut self) -> watch::Ref<'_, T> {
        self.value.borrow_and_update()
    }
}
