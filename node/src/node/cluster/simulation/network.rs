//! The network of a simulation. Each direction between two nodes has its own random numbers, delays and losses.
//!
//! # Fault model
//! A message arrives after a delay, twice, or not at all. Messages may overtake each other. The sender of a lost
//! message notices the loss at once or late, as with a connection that breaks or hangs.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use testkit::random::Random;
use tokio::time::sleep;

/// Time after which the sender of a lost message notices the loss, if it does not notice it at once.
const HANG: Duration = Duration::from_secs(15);

/// Faults of one direction between two nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LinkFaults {
    pub(super) is_cut: bool,
    /// Percentage of messages that are lost.
    pub(super) loss: usize,
    /// Percentage of requests that arrive twice.
    pub(super) duplicates: usize,
    /// Largest additional delay in milliseconds.
    pub(super) slow_ms: u64,
}

#[derive(Debug)]
struct Direction {
    random: Random,
    faults: LinkFaults,
}

/// Numbers of messages, by their fate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Carried {
    pub(super) arrived: u64,
    pub(super) lost: u64,
    pub(super) duplicated: u64,
}

/// Directions between nodes, by sender and receiver.
type Directions = BTreeMap<(u64, u64), Direction>;

/// All directions between nodes, by sender and receiver.
#[derive(Debug)]
pub(super) struct Network {
    seed: u64,
    directions: Mutex<(Directions, Carried)>,
}

enum Fate {
    Arrives(Duration),
    Lost(Duration),
}

impl Network {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, directions: Mutex::default() }
    }

    fn with<T>(&self, from: u64, to: u64, change: impl FnOnce(&mut Direction, &mut Carried) -> T) -> T {
        let (directions, carried) = &mut *self.directions.lock();
        let direction = directions.entry((from, to)).or_insert_with(|| Direction {
            random: Random::new(self.seed ^ (from << 32 | to << 16).wrapping_mul(0x9E37_79B9_7F4A_7C15)),
            faults: LinkFaults::default(),
        });
        change(direction, carried)
    }

    /// Changes the faults of one direction.
    pub(super) fn change(&self, from: u64, to: u64, change: impl FnOnce(&mut LinkFaults)) {
        self.with(from, to, |direction, _carried| change(&mut direction.faults));
    }

    /// Ends all faults.
    pub(super) fn heal(&self) {
        self.directions.lock().0.values_mut().for_each(|direction| direction.faults = LinkFaults::default());
    }

    pub(super) fn carried(&self) -> Carried {
        self.directions.lock().1
    }

    fn fate(&self, from: u64, to: u64) -> Fate {
        self.with(from, to, |Direction { random, faults }, carried| {
            if faults.is_cut || random.chance(faults.loss) {
                carried.lost += 1;
                return Fate::Lost(if random.chance(50) {
                    HANG
                } else {
                    Duration::from_millis(random.next_u64() % 50)
                });
            }
            carried.arrived += 1;
            let usual = 1 + random.next_u64() % 4;
            let slow = if faults.slow_ms > 0 { random.next_u64() % faults.slow_ms } else { 0 };
            Fate::Arrives(Duration::from_millis(usual + slow))
        })
    }

    /// Carries a message. Returns `None` if it is lost, when the sender notices this.
    pub(super) async fn carry(&self, from: u64, to: u64) -> Option<()> {
        match self.fate(from, to) {
            Fate::Arrives(delay) => {
                sleep(delay).await;
                Some(())
            }
            Fate::Lost(noticed) => {
                sleep(noticed).await;
                None
            }
        }
    }

    /// Returns the further delay after which a message arrives a second time.
    pub(super) fn duplicate(&self, from: u64, to: u64) -> Option<Duration> {
        self.with(from, to, |Direction { random, faults }, carried| {
            let is_duplicated = random.chance(faults.duplicates);
            carried.duplicated += u64::from(is_duplicated);
            is_duplicated.then(|| Duration::from_millis(random.next_u64() % 400))
        })
    }
}
