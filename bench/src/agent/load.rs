//! Load programs that run while the agent is measured. Each load program is a process of the bench program itself, in
//! one [`Role`].
//!
//! Each load program works until its stdin ends. It then prints its iterations per second, counted from the moment at
//! which it received a line on stdin.
//!
//! All iterations of a role do the same work, so the iterations per second are proportional to the CPU time that the
//! program got.

use std::hint::black_box;
use std::io::{Read as _, Write as _};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use clap::{Args, ValueEnum};

/// Role of a load program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Role {
    /// One busy thread per CPU, with stacks of 300 calls.
    Deep,
    /// One busy thread per CPU. Each of its stacks is a new path through the same functions.
    Wide,
    /// Pairs of threads. In each pair, one thread hands work to the other, up to a thousand times a second.
    Waiting,
    /// Starts 15 processes a second.
    Churn,
    /// A process that [`Role::Churn`] starts: it works for some milliseconds and ends.
    Child,
}

/// Roles that are started together.
pub(crate) const LOADS: [Role; 4] = [Role::Deep, Role::Wide, Role::Waiting, Role::Churn];

const DEEP_CALLS: u32 = 300;
const WIDE_CALLS: u32 = 24;
const PAIRS: usize = 2;
const HAND_OVER: Duration = Duration::from_millis(1);
const CHILDREN_EVERY: Duration = Duration::from_millis(1000 / 15);
/// Number of iterations of a [`Role::Child`]. Together they take 3 ms on a machine of 2026.
const CHILD_CHUNKS: u64 = 30;

/// Runs one of the load programs of `bench agent`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    role: Role,
}

/// Number of iterations that all threads of this process have done since its start.
static DONE: AtomicU64 = AtomicU64::new(0);

/// Does one iteration: about 0.1 ms of work that the compiler cannot remove.
#[inline(never)]
fn work(seed: u64) -> u64 {
    (0..40_000_u64).fold(seed, |sum, number| black_box(sum.wrapping_mul(31) ^ number))
}

#[inline(never)]
fn iterate(seed: u64) -> u64 {
    DONE.fetch_add(1, Ordering::Relaxed);
    work(seed)
}

#[inline(never)]
fn descend(depth: u32) -> u64 {
    match depth {
        0 => loop {
            black_box(iterate(1));
        },
        _ => black_box(descend(depth - 1)) + 1,
    }
}

/// Calls one of four functions, which the lowest two bits of `path` select. The called function calls `branch` again,
/// with the other bits. At depth 0, one iteration of work is done instead.
#[inline(never)]
fn branch(path: u64, depth: u32) -> u64 {
    const BRANCHES: [fn(u64, u32) -> u64; 4] = [north, east, south, west];
    if depth == 0 { iterate(path) } else { BRANCHES[(path & 3) as usize](path >> 2, depth - 1) }
}

#[inline(never)]
fn north(path: u64, depth: u32) -> u64 {
    black_box(branch(path, depth)) + 1
}

#[inline(never)]
fn east(path: u64, depth: u32) -> u64 {
    black_box(branch(path, depth)) + 2
}

#[inline(never)]
fn south(path: u64, depth: u32) -> u64 {
    black_box(branch(path, depth)) + 3
}

#[inline(never)]
fn west(path: u64, depth: u32) -> u64 {
    black_box(branch(path, depth)) + 4
}

fn wander(thread: u64) {
    // A linear congruential generator (Knuth's MMIX): its high bits choose the path.
    let mut state = thread;
    loop {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        black_box(branch(state >> 16, WIDE_CALLS));
    }
}

fn hand_over() {
    let (sender, receiver) = sync_channel::<u64>(0);
    thread::spawn(move || {
        for seed in receiver {
            black_box(iterate(seed));
        }
    });
    while sender.send(1).is_ok() {
        thread::sleep(HAND_OVER);
    }
}

fn churn() -> anyhow::Result<()> {
    let mut next = Instant::now();
    loop {
        start(Role::Child)?.wait()?;
        DONE.fetch_add(1, Ordering::Relaxed);
        next += CHILDREN_EVERY;
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

/// Runs a load program until stdin ends, and prints its iterations per second. A [`Role::Child`] ends by itself, and
/// prints nothing.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let cpus = thread::available_parallelism()?.get();
    match arguments.role {
        Role::Child => {
            for seed in 0..CHILD_CHUNKS {
                black_box(work(seed));
            }
            return Ok(());
        }
        Role::Deep => (0..cpus).for_each(|_| drop(thread::spawn(|| descend(DEEP_CALLS)))),
        Role::Wide => (0..cpus as u64).for_each(|number| drop(thread::spawn(move || wander(number)))),
        Role::Waiting => (0..PAIRS).for_each(|_| drop(thread::spawn(hand_over))),
        Role::Churn => drop(thread::spawn(churn)),
    }
    let mut input = std::io::stdin();
    input.read_exact(&mut [0])?;
    let began = Instant::now();
    let before = DONE.load(Ordering::Relaxed);
    input.read_to_end(&mut Vec::new())?;
    let done = DONE.load(Ordering::Relaxed) - before;
    writeln!(std::io::stdout(), "{}", done as f64 / began.elapsed().as_secs_f64())?;
    Ok(())
}

fn start(role: Role) -> anyhow::Result<Child> {
    let role = role.to_possible_value().context("a role has a name")?.get_name().to_owned();
    let mut command = Command::new(std::env::current_exe()?);
    Ok(command.args(["agent-load", &role]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?)
}

/// One running process for each role of [`LOADS`]. The processes end when this value is dropped.
pub(crate) struct Loads(Vec<(Child, ChildStdin)>);

impl Loads {
    pub(crate) fn start() -> anyhow::Result<Self> {
        let one = |role: Role| {
            let mut child = start(role)?;
            let input = child.stdin.take().context("a load has no input")?;
            anyhow::Ok((child, input))
        };
        LOADS.into_iter().map(one).collect::<anyhow::Result<_>>().map(Self)
    }

    /// Makes each process count its iterations from now on.
    pub(crate) fn count(&mut self) -> anyhow::Result<()> {
        self.0.iter_mut().try_for_each(|(_, input)| input.write_all(b"\n"))?;
        Ok(())
    }

    /// Ends the processes, and returns the iterations per second of each.
    pub(crate) fn end(self) -> anyhow::Result<Vec<f64>> {
        let ended = |(child, input): (Child, ChildStdin)| {
            drop(input);
            let output = child.wait_with_output()?;
            ensure!(output.status.success(), "a load ended with {}", output.status);
            Ok(String::from_utf8(output.stdout)?.trim().parse()?)
        };
        self.0.into_iter().map(ended).collect()
    }
}
