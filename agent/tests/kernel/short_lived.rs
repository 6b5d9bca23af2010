//! A thousand processes per second that live for a millisecond: memory and descriptors stay bounded, and stacks are
//! complete.

use crate::support::agent::RunningAgent;
use crate::support::program::{Program, printed_number};

/// Program that starts a child every millisecond, or as fast as the machine can. Each child runs for half a
/// millisecond. At the end, the program prints the number of children.
const SOURCE: &str = r#"
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#define NOINLINE __attribute__((noinline, noipa))
static volatile uint64_t sink;
NOINLINE uint64_t at(clockid_t clock) { struct timespec t; clock_gettime(clock, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec; }
NOINLINE void burn(void) { uint64_t end = at(CLOCK_MONOTONIC) + 500000;
    while (at(CLOCK_MONOTONIC) < end) for (int i = 0; i < 1000; i++) sink++; }
int main(int count, char **arguments) {
    if (count > 2) { burn(); return 0; }
    uint64_t end = at(CLOCK_MONOTONIC) + atoll(getenv("SECONDS_LONG")) * 1000000000ull;
    uint64_t next = at(CLOCK_MONOTONIC), started = 0;
    while (at(CLOCK_MONOTONIC) < end) {
        pid_t child = vfork();
        if (child == 0) { execl(arguments[0], arguments[0], "child", "child", (char *)0); _exit(1); }
        started += child > 0;
        while (waitpid(-1, 0, WNOHANG) > 0) {}
        next += 1000000;
        uint64_t now = at(CLOCK_MONOTONIC);
        if (now < next) usleep((next - now) / 1000); else next = now;
    }
    while (waitpid(-1, 0, 0) > 0) {}
    printf("%llu\n", (unsigned long long)started);
    return 0;
}"#;

/// Returns the anonymous memory, in bytes, and the number of open descriptors of this process, in which the agent runs.
fn footprint() -> (u64, usize) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    let kilobytes: u64 = resident.split_ascii_whitespace().next().unwrap().parse().unwrap();
    (kilobytes << 10, std::fs::read_dir("/proc/self/fd").unwrap().count())
}

#[test]
fn short_lived_processes_leave_no_memory_or_descriptors_behind() {
    let test = "short_lived_processes_leave_no_memory_or_descriptors_behind";
    let seconds = if std::env::var_os("VARVE_SOAK").is_some() { "60" } else { "10" };
    let program = Program::compile_with(SOURCE, &["-O2", "-static"]);
    let Some(agent) = RunningAgent::start(test, 97) else { return };
    // A first run allocates the memory that the agent uses again for later processes.
    let warm_up = printed_number(program.start(&[("SECONDS_LONG", "3")]));
    assert!(warm_up > 300, "{warm_up}");
    std::thread::sleep(std::time::Duration::from_secs(6));
    let (memory_before, descriptors_before) = footprint();
    let started = printed_number(program.start(&[("SECONDS_LONG", seconds)]));
    let (memory, descriptors) = footprint();
    let (samples, _) = agent.stop(test);
    // On an idle machine, nearly all of the processes are started, and on a busy one at least a quarter.
    let wanted: u64 = seconds.parse::<u64>().unwrap() * 1000;
    assert!(wanted / 4 < started, "{started} processes in {seconds} s");
    assert!(
        descriptors <= descriptors_before + 8,
        "{descriptors_before} descriptors before, {descriptors} after {started} processes"
    );
    // The agent forgets an ended process after ten seconds, so only the last ten seconds take memory.
    let growth = memory.saturating_sub(memory_before);
    assert!(growth < 32 << 20, "{} MB more after {started} processes", growth >> 20);
    // In samples of user mode, the file must be known, and the stack must reach its root.
    let of_program = samples.iter().filter(|sample| {
        let is_named = sample.resource.get("process.executable.name").is_some_and(|name| name == "program");
        is_named && sample.frames[0].kind != "kernel"
    });
    let mut whole = 0;
    let mut all = 0;
    for sample in of_program {
        all += sample.times.len();
        let is_whole = sample.frames.iter().all(|frame| frame.name.is_empty() || frame.name == "[vdso]");
        whole += if is_whole { sample.times.len() } else { 0 };
    }
    assert!(100 < all && all * 9 < whole * 10, "{whole} of {all} samples are whole");
    testkit::report::note(&format!(
        "{started} processes in {seconds} s: {} KB more, {whole} of {all} samples whole",
        growth >> 10
    ));
}
