//! Links of samples to the spans for which their threads work, by OpenTelemetry's thread context.

use std::collections::BTreeMap;

use crate::support::agent::RunningAgent;
use crate::support::program::Program;
use crate::support::view::Sample;
use testkit::report;

const FREQUENCY_HZ: u32 = 199;

/// The thread-local variable, and the function that sets it.
const VARIABLE: &str = r#"
#include <stdint.h>
/* If it is large, a library that is loaded later has its variables in no block of fixed place. */
__thread char other_variables[LARGE ? 1 << 16 : 8] = { 1 };
__thread void *volatile otel_thread_ctx_v1;
__attribute__((noinline, noipa)) void set_context(void *record) { otel_thread_ctx_v1 = record; }
"#;

/// Code of all programs: records, a clock, and a start that leaves the agent time to find the variable.
const COMMON: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#define NOINLINE __attribute__((noinline, noipa))
struct record { uint8_t trace_id[16], span_id[8], valid, flags; uint16_t attributes_bytes; uint8_t attributes[612]; };
static volatile uint64_t sink;
#ifdef LIBRARY
static void (*set_context)(void *);
static void load(void) { set_context = (void (*)(void *))dlsym(dlopen(LIBRARY, RTLD_NOW), "set_context"); }
#else
void set_context(void *record);
static void load(void) {}
#endif
NOINLINE uint64_t cpu_ns(void) { struct timespec t; clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec; }
NOINLINE void warm_up(void) { while (cpu_ns() < 2000000000ull) for (int i = 0; i < 20000; i++) sink += i; }
/* The trace of a thread is its id, four times. */
NOINLINE void fill(struct record *record, char span) {
    uint32_t tid = syscall(SYS_gettid);
    memset(record, 0, sizeof(*record));
    for (int i = 0; i < 4; i++) memcpy(record->trace_id + 4 * i, &tid, 4);
    memset(record->span_id, span, 8);
    record->valid = 1; record->flags = 1;
}
"#;

/// Two threads that switch between two spans in rounds of random length. Parts of each round are in no span, and in a
/// record that is not valid. The threads exist before the library is loaded.
const SWITCHING: &str = r#"
static pthread_barrier_t loaded;
static __thread uint64_t start, round_ns;
#define WORK_UNTIL(percent) \
    while (cpu_ns() < start + round_ns / 100 * (percent)) for (int i = 0; i < 20000; i++) sink += i
NOINLINE void in_a(void) { WORK_UNTIL(30); sink++; }
NOINLINE void waits_in_b(void) { struct timespec t = { 0, 3000000 }; nanosleep(&t, 0); sink++; }
NOINLINE void in_b(void) { WORK_UNTIL(70); waits_in_b(); sink++; }
NOINLINE void in_none(void) { WORK_UNTIL(90); sink++; }
NOINLINE void waits_in_none(void) { struct timespec t = { 0, 3000000 }; nanosleep(&t, 0); sink++; }
NOINLINE void in_invalid(void) { WORK_UNTIL(100); sink++; }
NOINLINE void rounds(uint64_t ns) {
    struct record a, b;
    uint64_t random = 88172645463325252ull ^ syscall(SYS_gettid), end = (start = cpu_ns()) + ns;
    fill(&a, 'a'); fill(&b, 'b');
    while (start < end) {
        random ^= random << 13; random ^= random >> 7; random ^= random << 17;
        round_ns = 100000000ull + random % 200000000ull;
        set_context(&a); in_a();
        set_context(&b); in_b();
        set_context(0); in_none(); waits_in_none();
        a.valid = 0; set_context(&a); in_invalid(); set_context(0); a.valid = 1;
        start += round_ns;
    }
    sink++;
}
void *thread(void *unused) { pthread_barrier_wait(&loaded); rounds(3000000000ull); return unused; }
int main(void) {
    pthread_t threads[2];
    pthread_barrier_init(&loaded, 0, 3);
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], 0, thread, 0);
    load();
    warm_up();
    pthread_barrier_wait(&loaded);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], 0);
    return 0;
}
"#;

/// For each function of [`SWITCHING`] that works: its span, and its share of the samples.
const SHARES: [(&str, Option<u8>, f64); 4] =
    [("in_a", Some(b'a'), 0.3), ("in_b", Some(b'b'), 0.4), ("in_none", None, 0.2), ("in_invalid", None, 0.1)];

/// A program that points to records that are none, one after another.
const HOSTILE: &str = r#"
#define WORK(name) NOINLINE void name(void) { \
    uint64_t end = cpu_ns() + 400000000ull; while (cpu_ns() < end) for (int i = 0; i < 20000; i++) sink += i; sink++; }
WORK(on_unmapped) WORK(on_kernel) WORK(on_odd) WORK(on_cut) WORK(on_last) WORK(on_large) WORK(on_no_trace)
WORK(on_no_span) WORK(on_other_flag) WORK(on_minus_one)
int main(void) {
    uint8_t *pages = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint8_t *end = pages + 4096;
    struct record record, other;
    load();
    warm_up();
    munmap(end, 4096);
    fill(&record, 'x');
    record.attributes_bytes = 65535;
    set_context((void *)0x1000); on_unmapped();
    set_context((void *)0xffff888000001000); on_kernel();
    set_context((void *)-1l); on_minus_one();
    memcpy(pages + 1, &record, sizeof(record)); set_context(pages + 1); on_odd();
    memcpy(end - 24, &record, 24); set_context(end - 24); on_cut();
    memcpy(end - 28, &record, 28); set_context(end - 28); on_last();
    set_context(&record); on_large();
    other = record; memset(other.trace_id, 0, 16); set_context(&other); on_no_trace();
    other = record; memset(other.span_id, 0, 8); set_context(&other); on_no_span();
    other = record; other.valid = 2; set_context(&other); on_other_flag();
    return 0;
}
"#;

/// Ids of the trace and the span of a thread of a test's program.
fn ids(sample: &Sample, span: u8) -> (Vec<u8>, Vec<u8>) {
    let tid: u32 = sample.attributes["thread.id"].parse().unwrap();
    (tid.to_ne_bytes().repeat(4), vec![span; 8])
}

/// Number of samples of each function, with each span; `?` stands for a link that is not that of the thread.
type Counts = BTreeMap<(String, Option<char>), usize>;

/// Counts the samples of one kind by the innermost function whose name has one of the prefixes.
fn count(program: &Program, samples: &[Sample], kind: &str, prefixes: &[&str]) -> Counts {
    let functions = program.functions(samples);
    let mut counts = Counts::new();
    for sample in samples.iter().filter(|sample| sample.kind.0 == kind) {
        let names = program.names(sample, &functions);
        let is_it = |name: &&String| prefixes.iter().any(|prefix| name.starts_with(prefix));
        let Some(function) = names.iter().find(is_it) else { continue };
        let span = sample.link.as_ref().map(|link| {
            let span = link.1.first().copied().unwrap_or_default();
            if *link == ids(sample, span) { char::from(span) } else { '?' }
        });
        *counts.entry((function.clone(), span)).or_default() += sample.times.len();
    }
    counts
}

/// Checks that each function of [`SWITCHING`] has only its span, and its share of the samples.
fn check_spans(what: &str, program: &Program, samples: &[Sample]) {
    let counts = count(program, samples, "samples", &["in_"]);
    let waits = count(program, samples, "off_cpu", &["waits_"]);
    report::note(&format!("{what}: {counts:?}, waits {waits:?}"));
    let all = counts.values().sum::<usize>() as f64;
    assert!(900.0 < all && all < 1500.0, "{what}: {all}");
    for (function, span, share) in SHARES {
        let counted = counts.get(&(function.to_owned(), span.map(char::from))).copied().unwrap_or_default() as f64;
        let sigma = (all * share * (1.0 - share)).sqrt();
        // Of 28 shares, one in ten runs would have one beyond 3 sigma by chance.
        assert!((counted - all * share).abs() < 4.5 * sigma, "{what}: {function}: {counted} of {all}");
    }
    assert_eq!(counts.len(), SHARES.len(), "{what}: each function has one span: {counts:?}");
    for (function, span) in [("waits_in_b", Some('b')), ("waits_in_none", None)] {
        assert!(5 < waits[&(function.to_owned(), span)], "{what}: {waits:?}");
    }
    assert_eq!(waits.len(), 2, "{what}: {waits:?}");
}

/// Compiles the program with the variable in it.
fn program_with_variable(source: &str) -> Program {
    let source = format!("{COMMON}{VARIABLE}{source}");
    Program::compile_with(&source, &["-O1", "-DLARGE=0", "-rdynamic"])
}

/// Runs a program while an agent samples it. Returns the samples.
fn sampled(test: &str, program: &Program) -> Option<Vec<Sample>> {
    let agent = RunningAgent::start_with(test, FREQUENCY_HZ, true)?;
    let mut child = program.start(&[]);
    let pid = child.id();
    assert!(child.wait().unwrap().success());
    let (mut samples, _) = agent.stop(test);
    samples.retain(|sample| sample.is_of(pid));
    Some(samples)
}

fn is_skipped(test: &str) -> bool {
    let is_skipped = cfg!(not(target_arch = "x86_64"));
    if is_skipped {
        report::skipped(test, "the layout of thread-local variables is known on x86-64 only");
    }
    is_skipped
}

#[test]
fn samples_have_the_span_of_a_program_with_the_variable() {
    let test = "samples_have_the_span_of_a_program_with_the_variable";
    if is_skipped(test) {
        return;
    }
    let program = program_with_variable(SWITCHING);
    let Some(samples) = sampled(test, &program) else { return };
    check_spans("program", &program, &samples);
}

#[test]
fn samples_have_the_span_of_a_library_with_the_variable() {
    let test = "samples_have_the_span_of_a_library_with_the_variable";
    if is_skipped(test) {
        return;
    }
    for (large, dialect) in [("-DLARGE=0", "-mtls-dialect=gnu2"), ("-DLARGE=1", "-mtls-dialect=gnu")] {
        let library = Program::compile_with(VARIABLE, &["-O1", "-shared", "-fPIC", large, dialect]);
        let library_path = library.path.to_str().unwrap();
        let program = Program::compile_with(&format!("{COMMON}{SWITCHING}"), &["-O1", library_path]);
        let Some(samples) = sampled(test, &program) else { return };
        check_spans(&format!("library, {large} {dialect}"), &program, &samples);
    }
}

#[test]
fn samples_have_the_span_of_a_library_that_is_loaded_later() {
    let test = "samples_have_the_span_of_a_library_that_is_loaded_later";
    if is_skipped(test) {
        return;
    }
    for (large, dialect) in [
        ("-DLARGE=1", "-mtls-dialect=gnu2"),
        ("-DLARGE=1", "-mtls-dialect=gnu"),
        ("-DLARGE=0", "-ftls-model=initial-exec"),
    ] {
        let library = Program::compile_with(VARIABLE, &["-O1", "-shared", "-fPIC", large, dialect]);
        let path = format!("-DLIBRARY=\"{}\"", library.path.display());
        let program = Program::compile_with(&format!("{COMMON}{SWITCHING}"), &["-O1", &path]);
        let Some(samples) = sampled(test, &program) else { return };
        check_spans(&format!("loaded later, {large} {dialect}"), &program, &samples);
    }
}

#[test]
fn a_hostile_program_costs_only_its_own_links() {
    let test = "a_hostile_program_costs_only_its_own_links";
    if is_skipped(test) {
        return;
    }
    let hostile = program_with_variable(HOSTILE);
    let other = program_with_variable(SWITCHING);
    let Some(agent) = RunningAgent::start_with(test, FREQUENCY_HZ, true) else { return };
    let mut children = [hostile.start(&[]), other.start(&[])];
    let pids = children.each_ref().map(std::process::Child::id);
    assert!(children.iter_mut().all(|child| child.wait().unwrap().success()));
    let (samples, _) = agent.stop(test);
    let [of_hostile, of_other] =
        pids.map(|pid| samples.iter().filter(|sample| sample.is_of(pid)).cloned().collect::<Vec<_>>());
    let counts = count(&hostile, &of_hostile, "samples", &["on_"]);
    report::note(&format!("hostile: {counts:?}"));
    let functions = ["unmapped", "kernel", "minus_one", "odd", "cut", "no_trace", "no_span", "other_flag"];
    let without = functions.map(|function| (function, None));
    let wanted = without.into_iter().chain([("last", Some('x')), ("large", Some('x'))]);
    for (function, span) in wanted {
        assert!(40 < counts[&(format!("on_{function}"), span)], "{function} {counts:?}");
    }
    assert_eq!(counts.len(), 10, "{counts:?}");
    check_spans("beside a hostile program", &other, &of_other);
}
