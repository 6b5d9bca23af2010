//! One connection through the proxy: two directions, each a queue of reads with the times at which they arrive.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

use super::{Fault, Link, Shared};

/// Size of one read, in bytes.
const READ_BYTES: usize = 16 << 10;
/// Number of reads that a direction keeps. A sender that has filled the queue has to wait, as with a full window.
const READS: usize = 64;
/// Time after which TCP sends a lost segment again.
const RETRANSMISSION: Duration = Duration::from_millis(200);
/// Longest life of a half-open connection. Real ones end with a timeout of one end.
const HALF_OPEN: Duration = Duration::from_secs(120);

/// The way in which a connection broke.
enum Broken {
    Reset,
    HalfOpen,
}

/// Forwards the bytes of a connection that the first process of `link` has made to the second one, at `target`.
pub(super) async fn forward(mut inbound: TcpStream, target: SocketAddr, link: Link, shared: &Shared) {
    let number = shared.next.fetch_add(1, Ordering::Relaxed);
    if shared.fault(link).refuses {
        return reset(&[&inbound], &shared.reset);
    }
    let Ok(mut outbound) = TcpStream::connect(target).await else {
        // The process at the other end does not run, so its host would reset the connection.
        return drop(inbound.set_zero_linger());
    };
    drop((inbound.set_nodelay(true), outbound.set_nodelay(true)));
    let broken = {
        let (from_caller, to_caller) = inbound.split();
        let (from_target, to_target) = outbound.split();
        let there = shared.pump(link, from_caller, to_target);
        let back = shared.pump((link.1, link.0), from_target, to_caller);
        tokio::select! {
            _ended = async { tokio::try_join!(there, back) } => None,
            broken = shared.broken(link, number) => Some(broken),
        }
    };
    match broken {
        None => {}
        Some(Broken::Reset) => reset(&[&inbound, &outbound], &shared.reset),
        Some(Broken::HalfOpen) => {
            shared.half_open.fetch_add(1, Ordering::Relaxed);
            sleep(HALF_OPEN).await;
        }
    }
}

fn reset(streams: &[&TcpStream], counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
    // Closing a socket without lingering sends a reset. The peer may have closed it already.
    streams.iter().for_each(|stream| drop(stream.set_zero_linger()));
}

impl Shared {
    fn fault(&self, link: Link) -> Fault {
        self.table.borrow().faults.get(&link).copied().unwrap_or_default()
    }

    /// Returns when the connection breaks.
    async fn broken(&self, link: Link, number: u64) -> Broken {
        let mut table = self.table.subscribe();
        loop {
            {
                let table = table.borrow_and_update();
                let is_before = |before: Option<&u64>| before.is_some_and(|&before| number < before);
                if is_before(table.reset_before.get(&link)) {
                    return Broken::Reset;
                }
                if is_before(table.half_open_before.get(&link)) {
                    return Broken::HalfOpen;
                }
            }
            if table.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Forwards the bytes of one direction until its end.
    async fn pump(
        &self,
        link: Link,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
    ) -> io::Result<()> {
        let (sender, mut receiver) = mpsc::channel::<(Instant, Vec<u8>)>(READS);
        let read = async move {
            loop {
                let mut buffer = vec![0; READ_BYTES];
                // A connection that its sender has reset ends like one that it has closed.
                let length = from.read(&mut buffer).await.unwrap_or(0);
                buffer.truncate(length);
                let arrives = Instant::now() + self.delay(link);
                if sender.send((arrives, buffer)).await.is_err() || length == 0 {
                    return Ok(());
                }
            }
        };
        let write = async {
            while let Some((arrives, bytes)) = receiver.recv().await {
                sleep_until(arrives).await;
                self.passage(link).await;
                if bytes.is_empty() {
                    return to.shutdown().await;
                }
                to.write_all(&bytes).await?;
            }
            Ok(())
        };
        tokio::try_join!(read, write).map(|_ended| ())
    }

    /// Returns the time that the next read of a direction needs.
    fn delay(&self, link: Link) -> Duration {
        let Fault { delay, loss_percent, .. } = self.fault(link);
        let mut random = self.random.lock();
        let mut total = delay.map_or(Duration::ZERO, |(shortest, spread)| {
            shortest + Duration::from_micros(random.next_u64() % u64::try_from(spread.as_micros()).unwrap().max(1))
        });
        let mut wait = RETRANSMISSION;
        while random.chance(loss_percent) && wait < RETRANSMISSION * 16 {
            total += wait;
            wait *= 2;
        }
        if total > Duration::ZERO {
            self.delayed.fetch_add(1, Ordering::Relaxed);
        }
        total
    }

    /// Returns when the direction is not silent.
    async fn passage(&self, link: Link) {
        if !self.fault(link).is_silent {
            return;
        }
        self.held.fetch_add(1, Ordering::Relaxed);
        let mut table = self.table.subscribe();
        let is_open = |table: &super::Table| !table.faults.get(&link).is_some_and(|fault| fault.is_silent);
        // The table lives as long as the proxy.
        drop(table.wait_for(is_open).await);
    }
}
