//! Processes that end before the agent reads the samples by its timer, which is every 250 ms.

use std::process::Stdio;

use crate::support::agent::RunningAgent;
use testkit::interpreters::{Interpreter, perls, pythons};
use testkit::report;

/// Program that calls ten functions in turn, each for 15 ms of CPU time.
const PYTHON: &str = "
import time
def spin(until):
    while time.process_time() < until: sum(range(100))
for number in range(10): exec(f'def part{number}(until): spin(until)')
for number in range(10): globals()[f'part{number}'](time.process_time() + 0.015)
";

/// The same in Perl.
const PERL: &str = "
sub spin { my ($until) = @_; while ((times)[0] < $until) { my $x = 0; $x += $_ for 1 .. 100 } }
for my $number (0 .. 9) { eval \"sub part$number { spin(\\$_[0]) }\" }
for my $number (0 .. 9) { &{\"part$number\"}((times)[0] + 0.015) }
";

/// Number of processes, one after the other.
const PROCESSES: usize = 30;

/// Runs a program many times, and checks that nearly all samples of its functions have names.
fn check(test: &str, interpreter: &Interpreter, code: [&str; 2], kind: &str) {
    let Some(mut agent) = RunningAgent::start(test, 199) else { return };
    let run = || {
        let mut command = interpreter.command();
        let mut child = command.args(code).stdout(Stdio::null()).spawn().unwrap();
        assert!(child.wait().unwrap().success());
        child.id()
    };
    // The tables of the interpreter's files are made now.
    run();
    std::thread::sleep(std::time::Duration::from_secs(3));
    agent.take();
    let pids: Vec<u32> = (0..PROCESSES).map(|_| run()).collect();
    let (samples, _) = agent.stop(test);
    let (mut named, mut unnamed) = (0, 0);
    for sample in samples.iter().filter(|sample| pids.iter().any(|pid| sample.is_of(*pid))) {
        let has = |name: &str| sample.frames.iter().any(|frame| frame.name == name);
        let has_part = sample.frames.iter().any(|frame| frame.kind == kind && frame.name.contains("part"));
        if ["[function gone]", "[function unread]", "[process exited]"].into_iter().any(has) {
            unnamed += sample.times.len();
        } else if has_part {
            named += sample.times.len();
        }
    }
    report::note(&format!("{interpreter}: {named} samples have names, and {unnamed} do not"));
    // The last function of a process may begin right after a wake-up. Without wake-ups, nine in ten have no name.
    assert!(300 < named && unnamed * 7 <= named, "{named} samples have names, and {unnamed} do not");
}

#[test]
fn functions_of_processes_that_soon_end_have_names() {
    let test = "functions_of_processes_that_soon_end_have_names";
    match pythons().pop() {
        Some(python) => check(test, &python, ["-c", PYTHON], "cpython"),
        None => report::skipped(test, "there is no Python 3"),
    }
    match perls().pop() {
        Some(perl) => check(test, &perl, ["-e", PERL], "perl"),
        None => report::skipped(test, "there is no Perl"),
    }
}
