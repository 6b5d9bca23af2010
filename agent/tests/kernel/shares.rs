//! Shares of samples, compared with shares of CPU time that are known in advance. `VARVE_SHARES_SECONDS` sets the
//! duration, which is 20 seconds by default.

use crate::support::agent::RunningAgent;
use crate::support::program::{Program, printed_number};
use testkit::report;

const FREQUENCY_HZ: u32 = 97;

/// A program that runs in rounds. A round is divided among the functions, and each function works until the thread's
/// own clock reaches the end of its part. So errors do not add up: if one function runs too long, the next one has less
/// time. Rounds have random lengths, so that no timer is in step with them.
const SOURCE: &str = r#"
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#define NOINLINE __attribute__((noinline, noipa))
static volatile uint64_t sink;
static uint64_t start, round_ns;
NOINLINE uint64_t cpu_ns(void) { struct timespec t; clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec; }
/* Samples that are taken before the file has its table fall here. */
__attribute__((constructor)) NOINLINE void warm_up(void) {
    while (cpu_ns() < 1000000000ull) for (int i = 0; i < 20000; i++) sink += i; }
#define WORK_UNTIL(percent) \
    while (cpu_ns() < start + round_ns / 100 * (percent)) for (int i = 0; i < 20000; i++) sink += i
NOINLINE void beta(void) { WORK_UNTIL(30); sink++; }
NOINLINE void alpha(void) { WORK_UNTIL(10); beta(); sink++; }
NOINLINE void delta(void) { WORK_UNTIL(100); sink++; }
NOINLINE void gamma_(void) { WORK_UNTIL(60); delta(); sink++; }
NOINLINE void rounds(uint64_t ns) {
    uint64_t random = 88172645463325252ull, end = (start = cpu_ns()) + ns;
    while (start < end) {
        random ^= random << 13; random ^= random >> 7; random ^= random << 17;
        round_ns = 100000000ull + random % 200000000ull;
        alpha(); gamma_();
        start += round_ns;
    }
    sink++;
}
int main(void) { rounds(strtoull(getenv("SECONDS"), 0, 10) * 1000000000ull); printf("%d\n", getpid()); return 0; }
"#;

/// For each function: its own share of all samples, and its share together with the functions that it calls.
const SHARES: [(&str, f64, f64); 5] =
    [("alpha", 0.1, 0.3), ("beta", 0.2, 0.2), ("gamma_", 0.3, 0.7), ("delta", 0.4, 0.4), ("rounds", 0.0, 1.0)];

#[test]
fn every_function_has_its_share_of_cpu_time_within_three_sigma() {
    let test = "every_function_has_its_share_of_cpu_time_within_three_sigma";
    let seconds = std::env::var("VARVE_SHARES_SECONDS").unwrap_or_else(|_| "20".to_owned());
    let flags = ["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"];
    let program = Program::compile_with(SOURCE, &flags);
    let Some(agent) = RunningAgent::start(test, FREQUENCY_HZ) else { return };
    let pid = printed_number(program.start(&[("SECONDS", &seconds)])) as u32;
    let (mut samples, _) = agent.stop(test);
    samples.retain(|sample| sample.is_of(pid));
    let functions = program.functions(&samples);
    // Each stack is reduced to the functions in `SHARES`, innermost first. The time in which the C library and the
    // kernel read the clock counts for the caller.
    let known = |name: &String| SHARES.iter().any(|(function, ..)| function == name);
    let stacks: Vec<(Vec<String>, usize)> = samples
        .iter()
        .map(|sample| (program.names(sample, &functions).into_iter().filter(known).collect(), sample.times.len()))
        .filter(|(stack, _): &(Vec<String>, usize)| !stack.is_empty())
        .collect();
    let weight = |is_it: &dyn Fn(&[String]) -> bool| {
        stacks.iter().filter(|(stack, _)| is_it(stack)).map(|(_, weight)| weight).sum::<usize>() as f64
    };
    let count = weight(&|_| true);
    let expected = seconds.parse::<f64>().unwrap() * f64::from(FREQUENCY_HZ);
    let mut wrong = Vec::new();
    let mut figures = vec![format!("{count} samples in {seconds} s at {FREQUENCY_HZ} Hz")];
    for (function, own, total) in SHARES {
        let counts = [
            ("self", weight(&|stack| stack[0] == function), own),
            ("total", weight(&|stack| stack.iter().any(|name| name == function)), total),
        ];
        for (kind, counted, share) in counts {
            let mean = count * share;
            let sigma = (count * share * (1.0 - share)).sqrt();
            let figure = format!("{function} {kind} {:.2} % of {:.0}", 100.0 * counted / count, 100.0 * share);
            // Shares of 0 and 1 have a sigma of 0, but a few samples may be taken during calls and returns.
            if 3.0 * sigma.max(1.0) < (counted - mean).abs() {
                wrong.push(format!("{figure}: {:.1} sigma", (counted - mean) / sigma.max(1.0)));
            }
            figures.push(figure);
        }
    }
    report::note(&figures.join(", "));
    assert!(wrong.is_empty(), "{wrong:?} of {figures:?}");
    assert!(0.9 * expected < count && count < 1.1 * expected, "{count} samples, {expected} expected");
}
