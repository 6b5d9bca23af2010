//! Kills of the sender and of the receiver of a snapshot, in each phase of the transfer.
//!
//! As soon as the files of the receiver show a phase, the receiver is stopped, so that the phase lasts until the kill.

use std::time::{Duration, Instant};

use tests::cluster::members;
use tests::program::{signal, state};

use crate::large_snapshot::{Large, PATIENCE, RECEIVER, SHARD, bytes_below};

/// Message of a receiver at the beginning of a transfer.
const RECEIVING: &str = "receiving a snapshot";
/// Number of disks that are replaced at most. One is enough, unless a phase is over before it is seen.
const DISKS_MAX: usize = 4;
/// Number of looks at the files between two requests to the receiver, which take longer than a short phase.
const LOOKS: usize = 200;
/// Longest time until the shard has a leader.
const ELECTION_MAX: Duration = Duration::from_secs(30);

/// Phases of a transfer, as the files of the receiver show them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The receiver has begun. The sender makes a checkpoint and hashes its files, unless it has done so for an earlier
    /// transfer.
    Begun,
    /// Files are sent.
    Files,
    /// The files are on disk, and become the state of the shard.
    Install,
}

/// The process that is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Sender,
    Receiver,
}

/// A kill in a phase of a transfer.
pub(super) type Kill = (Role, Phase);

/// All kills. One transfer allows them in this order: a receiver that is killed while it installs receives anew, and
/// one whose sender is killed meanwhile needs no other transfer.
const KILLS: [Kill; 6] = [
    (Role::Sender, Phase::Begun),
    (Role::Receiver, Phase::Begun),
    (Role::Sender, Phase::Files),
    (Role::Receiver, Phase::Files),
    (Role::Receiver, Phase::Install),
    (Role::Sender, Phase::Install),
];

impl Large {
    /// Replaces the disk of the receiver, and kills the sender and the receiver in each phase of the transfer. Replaces
    /// the disk again if a phase was over too soon. Returns the kills, and the number of replaced disks.
    pub(super) fn replace_disks_with_kills(&self, state_bytes: u64) -> (Vec<Kill>, usize) {
        let mut made: Vec<Kill> = Vec::new();
        for disk in 1..=DISKS_MAX {
            // The next leader has no checkpoint of an earlier transfer.
            if let Some(leader) = members::leader(&self.cluster, SHARD).filter(|&leader| leader != RECEIVER) {
                self.restart(leader);
            }
            self.replace_disk();
            for kill in KILLS {
                if !made.contains(&kill) {
                    if !self.kill_in_phase(kill, state_bytes / 3) {
                        break;
                    }
                    made.push(kill);
                }
            }
            if made.len() == KILLS.len() {
                return (made, disk);
            }
            self.wait_until_ready();
        }
        panic!("with {DISKS_MAX} disks, there were only the kills {made:?}");
    }

    /// Kills a process in a phase of the transfer, in `Files` after `bytes` of them have arrived. Starts the process
    /// again. Returns false if the transfer was over before.
    fn kill_in_phase(&self, (role, phase): Kill, bytes: u64) -> bool {
        if !self.hold(phase, bytes) {
            return false;
        }
        let begun = self.messages(RECEIVING);
        let staged = self.staged_bytes();
        match role {
            Role::Sender => {
                self.restart(self.sender());
                signal(self.cluster.pid(RECEIVER), libc::SIGCONT);
            }
            Role::Receiver => self.restart(RECEIVER),
        }
        match (role, phase) {
            // The files of another sender differ, so the next transfer begins anew.
            (Role::Sender, Phase::Files) => assert!(self.goes_on(begun), "ready without the files of the next sender"),
            (Role::Receiver, Phase::Files) => {
                assert!(self.goes_on(begun), "ready with {staged} bytes");
                let kept = self.staged_bytes();
                assert!(kept >= staged, "{kept} of {staged} staged bytes were kept");
            }
            // The kill may have come just after the pointer to the state was changed.
            (Role::Receiver, Phase::Install) => {
                let _goes_on = self.goes_on(begun);
            }
            _ => {}
        }
        true
    }

    /// Stops the receiver in a phase, in `Files` after `bytes` of them have arrived. Returns false if it is ready
    /// before.
    fn hold(&self, phase: Phase, bytes: u64) -> bool {
        let is_in_phase = || self.phase() == Some(phase) && (phase != Phase::Files || self.staged_bytes() >= bytes);
        let pid = self.cluster.pid(RECEIVER);
        let began = Instant::now();
        loop {
            for _ in 0..LOOKS {
                if is_in_phase() {
                    signal(pid, libc::SIGSTOP);
                    while state(pid) != Some('T') {
                        assert!(state(pid).is_some(), "the receiver has died by itself");
                        assert!(began.elapsed() < PATIENCE, "the receiver does not stop: {:?}", state(pid));
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    if is_in_phase() {
                        return true;
                    }
                    signal(pid, libc::SIGCONT);
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            if self.is_ready() {
                return false;
            }
            assert!(began.elapsed() < PATIENCE, "the transfer does not reach {phase:?}: {:?}", self.phase());
        }
    }

    /// Waits until the receiver has begun more transfers than `before`. Returns false if it is ready without.
    fn goes_on(&self, before: usize) -> bool {
        let began = Instant::now();
        loop {
            if self.messages(RECEIVING) > before {
                return true;
            }
            if self.is_ready() {
                // The message may have come in between.
                return self.messages(RECEIVING) > before;
            }
            assert!(began.elapsed() < PATIENCE, "the transfer does not go on");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Returns the phase of the transfer; `None` before it begins and after it ends.
    fn phase(&self) -> Option<Phase> {
        let staging = self.shard_dir(RECEIVER).join("staging");
        match (staging.join("files").exists(), staging.join("MANIFEST").exists()) {
            (true, _) => Some(Phase::Files),
            (false, true) => Some(Phase::Install),
            (false, false) => staging.exists().then_some(Phase::Begun),
        }
    }

    fn staged_bytes(&self) -> u64 {
        bytes_below(&self.shard_dir(RECEIVER).join("staging/files"))
    }

    /// Returns the leader of the shard, which sends. The receiver cannot lead, and does not respond while it is
    /// stopped.
    fn sender(&self) -> usize {
        let began = Instant::now();
        loop {
            let mut others = (1..=3).filter(|&node| node != RECEIVER);
            if let Some(leader) = others.find(|&node| members::leads(&self.cluster, node, SHARD)) {
                return leader;
            }
            assert!(began.elapsed() < ELECTION_MAX, "neither of the other members leads");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Kills a node, and starts it again.
    fn restart(&self, node: usize) {
        self.cluster.kill(node);
        self.cluster.start(node);
    }
}
