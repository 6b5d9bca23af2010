//! Waiting times of threads, compared with the clocks of the threads and with this kernel's accounting.

use crate::support::agent::RunningAgent;
use crate::support::program::Program;
use crate::support::view::Sample;

const FLAGS: [&str; 3] = ["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"];

const CLOCK: &str = r#"
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#define NOINLINE __attribute__((noinline, noipa))
static volatile uint64_t sink;
/* Samples that are taken before the file has its table fall here. */
__attribute__((constructor)) void warm_up(void) { while (clock() < CLOCKS_PER_SEC / 2) sink++; }
NOINLINE uint64_t now_ns(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec; }
NOINLINE void sleep_ns(uint64_t ns) { struct timespec t = { 0, ns }; nanosleep(&t, 0); sink++; }
"#;

/// Runs a program until it ends, with waits recorded. Returns the numbers that it printed, and its samples.
fn sampled(test: &str, program: &Program) -> Option<(Vec<u64>, Vec<Sample>)> {
    let agent = RunningAgent::start_with(test, 20, true)?;
    let child = program.start(&[]);
    let pid = child.id();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let numbers = String::from_utf8(output.stdout).unwrap();
    let (all, _) = agent.stop(test);
    let ours = all.into_iter().filter(|sample| sample.is_of(pid)).collect();
    Some((numbers.split_ascii_whitespace().map(|number| number.parse().unwrap()).collect(), ours))
}

/// Returns the nanoseconds waited in stacks with this function.
fn waited_ns(function: &str, program: &Program, samples: &[Sample]) -> u64 {
    let functions = program.functions(samples);
    let waits = samples.iter().filter(|sample| sample.kind == ("off_cpu".to_owned(), "nanoseconds".to_owned()));
    let within = waits.filter(|sample| program.names(sample, &functions).iter().any(|name| name == function));
    within.flat_map(|sample| &sample.values).sum::<i64>() as u64
}

fn assert_close(what: &str, measured: u64, wanted: u64) {
    let off = measured as f64 / wanted as f64 - 1.0;
    assert!(off.abs() < 0.05, "{what}: {:.1} % off ({measured} of {wanted})", off * 100.0);
}

#[test]
fn waits_for_sleeps_locks_and_pipes_add_up_to_the_threads_clocks() {
    let program = Program::compile_with(
        &format!(
            "{CLOCK}{}",
            r#"
            static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
            static int ends[2];
            static uint64_t slept, locked, piped;
            static volatile int is_over;
            NOINLINE void sleeper(void) { while (!is_over) { uint64_t t = now_ns(); sleep_ns(7000000);
                slept += now_ns() - t; } }
            NOINLINE void locker(void) {
                while (!is_over) { uint64_t t = now_ns(); pthread_mutex_lock(&lock); locked += now_ns() - t;
                    pthread_mutex_unlock(&lock); sleep_ns(1000000); }
            }
            NOINLINE void reader(void) { char c; while (!is_over) { uint64_t t = now_ns();
                if (read(ends[0], &c, 1) != 1) abort(); piped += now_ns() - t; } }
            NOINLINE void holder(void) { while (!is_over) { pthread_mutex_lock(&lock); sleep_ns(30000000);
                pthread_mutex_unlock(&lock); sleep_ns(5000000); } }
            NOINLINE void writer(void) { while (!is_over) { sleep_ns(23000000);
                if (write(ends[1], "x", 1) != 1) abort(); } if (write(ends[1], "x", 1) != 1) abort(); }
            #define THREAD(f) void *f##_thread(void *x) { f(); sink++; return x; }
            THREAD(sleeper) THREAD(locker) THREAD(reader) THREAD(holder) THREAD(writer)
            int main(void) {
                if (pipe(ends)) abort();
                void *(*all[5])(void *) = {
                    sleeper_thread, locker_thread, reader_thread, holder_thread, writer_thread };
                pthread_t threads[5];
                for (int i = 0; i < 5; i++) pthread_create(&threads[i], 0, all[i], 0);
                sleep(8); is_over = 1;
                for (int i = 0; i < 5; i++) pthread_join(threads[i], 0);
                typedef unsigned long long ull;
                printf("%llu %llu %llu\n", (ull)slept, (ull)locked, (ull)piped);
                return 0;
            }"#
        ),
        &FLAGS,
    );
    let test = "waits_for_sleeps_locks_and_pipes_add_up_to_the_threads_clocks";
    let Some((numbers, samples)) = sampled(test, &program) else { return };
    assert_close("sleeps", waited_ns("sleeper", &program, &samples), numbers[0]);
    assert_close("a slow pipe", waited_ns("reader", &program, &samples), numbers[2]);
    // The thread also sleeps between two locks. These sleeps are left out.
    let functions = program.functions(&samples);
    let of_lock: u64 = samples
        .iter()
        .filter(|sample| sample.kind.0 == "off_cpu")
        .filter(|sample| {
            let names = program.names(sample, &functions);
            names.iter().any(|name| name == "locker") && names.iter().all(|name| name != "sleep_ns")
        })
        .flat_map(|sample| &sample.values)
        .sum::<i64>() as u64;
    assert_close("a lock", of_lock, numbers[1]);
    let leaf_is_scheduler = |sample: &&Sample| sample.frames[0].name == "__schedule";
    let waits: Vec<_> = samples.iter().filter(|sample| sample.kind.0 == "off_cpu").collect();
    assert!(waits.iter().all(leaf_is_scheduler), "the sampler itself is not part of the stack");
}

#[test]
fn the_waits_of_a_thousand_threads_add_up_to_the_kernels_accounting() {
    let program = Program::compile_with(
        &format!(
            "{CLOCK}{}",
            r#"
            #include <fcntl.h>
            #include <sys/syscall.h>
            static uint64_t waited[1000];
            /* Wall clock minus CPU time minus runnable time of this thread. */
            NOINLINE uint64_t waited_ns(void) {
                char path[64], text[128] = {0}; unsigned long long cpu = 0, runnable = 0;
                snprintf(path, sizeof path, "/proc/self/task/%ld/schedstat", syscall(SYS_gettid));
                int fd = open(path, O_RDONLY); if (fd < 0 || read(fd, text, sizeof text - 1) < 0) abort(); close(fd);
                if (sscanf(text, "%llu %llu", &cpu, &runnable) != 2) abort();
                return now_ns() - cpu - runnable;
            }
            NOINLINE void work(long number) {
                unsigned seed = number + 1;
                for (int i = 0; i < 80; i++) sleep_ns(20000000 + rand_r(&seed) % 180000000);
            }
            void *thread(void *number) {
                uint64_t before = waited_ns(); work((long)number); waited[(long)number] = waited_ns() - before;
                return 0;
            }
            int main(void) {
                pthread_t threads[1000]; pthread_attr_t small; pthread_attr_init(&small);
                pthread_attr_setstacksize(&small, 65536);
                for (long i = 0; i < 1000; i++) if (pthread_create(&threads[i], &small, thread, (void *)i)) abort();
                uint64_t sum = 0;
                for (int i = 0; i < 1000; i++) { pthread_join(threads[i], 0); sum += waited[i]; }
                printf("%llu\n", (unsigned long long)sum); return 0;
            }"#
        ),
        &FLAGS,
    );
    let Some((numbers, samples)) =
        sampled("the_waits_of_a_thousand_threads_add_up_to_the_kernels_accounting", &program)
    else {
        return;
    };
    assert_close("all threads", waited_ns("work", &program, &samples), numbers[0]);
}
