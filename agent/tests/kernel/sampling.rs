//! CPU samples of real programs: shares, callers, depth, signals, kernel code, JIT code, and execve.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::support::agent::RunningAgent;
use crate::support::program::{Program, printed_number};
use crate::support::view::Sample;

/// Program with functions that use CPU time. They call `nothing` from time to time. If they called no function, gcc
/// would give them no frame, and their callers could not be found.
const BUSY: &str = r#"
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>
#define NOINLINE __attribute__((noinline, noipa))
static volatile uint64_t sink;
NOINLINE uint64_t clock_ns(clockid_t clock) { struct timespec t; clock_gettime(clock, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec; }
NOINLINE uint64_t cpu_ns(void) { return clock_ns(CLOCK_PROCESS_CPUTIME_ID); }
NOINLINE void nothing(void) { __asm__ volatile(""); }
NOINLINE void spin(void) { for (int i = 0; i < 50; i++) { for (int j = 0; j < 1000; j++) sink += j; nothing(); } sink++;
}
"#;

fn program(source: &str) -> Program {
    Program::compile(&format!("{BUSY}{source}"))
}

/// Returns the number of samples of all identities.
fn weight<'a>(samples: impl IntoIterator<Item = &'a Sample>) -> usize {
    samples.into_iter().map(|sample| sample.times.len()).sum()
}

#[test]
fn two_functions_have_their_shares_of_cpu_time() {
    let test = "two_functions_have_their_shares_of_cpu_time";
    let Some(agent) = RunningAgent::start(test, 97) else { return };
    let started_ns = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    // Each function runs until it has its share of the CPU time used so far, in cycles of random length.
    let program = program(
        r#"
        static uint64_t used[2];
        NOINLINE void seventy(void) { spin(); sink++; }
        NOINLINE void thirty(void) { spin(); sink++; }
        NOINLINE void work(void) {
            while (cpu_ns() < 10000000000ull) {
                int turn = used[0] * 3 > used[1] * 7;
                uint64_t start = cpu_ns(), length = 1000000 + rand() % 4000000;
                while (cpu_ns() - start < length) { if (turn) thirty(); else seventy(); }
                used[turn] += cpu_ns() - start;
            }
            sink++;
        }
        int main(void) { work(); printf("%d\n", getpid()); return 0; }"#,
    );
    let child =
        program.start(&[("OTEL_SERVICE_NAME", "shares"), ("OTEL_RESOURCE_ATTRIBUTES", "team=blue,service.name=no")]);
    let pid = printed_number(child) as u32;
    let ended_ns = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
    let (all, _) = agent.stop(test);

    let samples: Vec<_> = all.into_iter().filter(|sample| sample.is_of(pid)).collect();
    let functions = program.functions(&samples);
    let share = |function: &str| {
        let inside =
            samples.iter().filter(|sample| program.names(sample, &functions).iter().any(|name| name == function));
        100.0 * weight(inside) as f64 / weight(&samples) as f64
    };
    let seventy = share("seventy");
    let thirty = share("thirty");
    // The other samples are of the loop that chooses between the functions, and of the start of the process.
    let divided = 100.0 / (seventy + thirty);
    assert!(85.0 < seventy + thirty, "{seventy} {thirty}");
    assert!((seventy * divided - 70.0).abs() < 5.0 && (thirty * divided - 30.0).abs() < 5.0, "{seventy} {thirty}");

    let sample = samples.iter().max_by_key(|sample| sample.times.len()).unwrap();
    for (key, value) in [
        ("service.name", "shares"),
        ("team", "blue"),
        ("process.executable.name", "program"),
        ("process.executable.path", program.path.to_str().unwrap()),
    ] {
        assert_eq!(sample.resource.get(key).map(String::as_str), Some(value), "{:?}", sample.resource);
    }
    assert_eq!(sample.attributes["thread.name"], "program");
    assert_eq!(sample.attributes["thread.id"], pid.to_string());
    assert!(sample.attributes.contains_key("cpu.logical_number"));
    assert!((sample.period_ns as f64 * 97.0 / 1e9 - 1.0).abs() < 0.001, "{}", sample.period_ns);
    assert!(sample.values.is_empty() && sample.kind == ("samples".to_owned(), "count".to_owned()), "{sample:?}");
    assert!(samples.iter().flat_map(|sample| &sample.times).all(|time| (started_ns..ended_ns).contains(time)));
}

#[test]
fn the_samples_of_a_busy_thread_weigh_what_it_used() {
    let test = "the_samples_of_a_busy_thread_weigh_what_it_used";
    let Some(agent) = RunningAgent::start(test, 997) else { return };
    let program =
        program(r#"int main(void) { while (cpu_ns() < 5000000000ull) spin(); printf("%d\n", getpid()); return 0; }"#);
    let pid = printed_number(program.start(&[])) as u32;
    let (all, _) = agent.stop(test);
    let samples: Vec<_> = all.into_iter().filter(|sample| sample.is_of(pid)).collect();
    let cpu_s = weight(&samples) as f64 * samples[0].period_ns as f64 / 1e9;
    assert!((cpu_s / 5.0 - 1.0).abs() < 0.05, "{cpu_s} s of CPU time sampled, 5 s used");
}

#[test]
fn callers_are_found_at_the_line_of_their_call() {
    let test = "callers_are_found_at_the_line_of_their_call";
    let Some(agent) = RunningAgent::start(test, 997) else { return };
    // The call is the last instruction of `caller`: the address after it belongs to another function.
    let program = program(
        r#"
        NOINLINE __attribute__((noreturn)) void finish(void) {
            while (cpu_ns() < 1000000000ull) spin();
            printf("%d\n", getpid()); fflush(stdout); _exit(0);
        }
#line 1000
        NOINLINE __attribute__((noreturn)) void caller(void) {
            sink++;
            finish();
        }
        NOINLINE void after(void) { sink++; }
        int main(void) { caller(); }"#,
    );
    let pid = printed_number(program.start(&[])) as u32;
    let (all, _) = agent.stop(test);
    let samples: Vec<_> = all.into_iter().filter(|sample| sample.is_of(pid)).collect();
    let functions = program.functions(&samples);
    let called = samples.iter().filter(|sample| program.names(sample, &functions).contains(&"finish".to_owned()));
    let mut seen = 0;
    for sample in called {
        let names = program.names(sample, &functions);
        let at = names.iter().position(|name| name == "finish").unwrap() + 1;
        assert_eq!(names[at..at + 2], ["caller", "main"], "{names:?}");
        assert_eq!(functions[&sample.frames[at].address].1, 1002);
        seen += sample.times.len();
    }
    assert!(500 < seen, "{seen}");
}

/// Samples a recursion to `depth` that works only in its deepest call. Returns the stacks of that work, each as its
/// names and its weight.
fn recursion(test: &str, depth: u32) -> Option<Vec<(Vec<String>, usize)>> {
    let agent = RunningAgent::start(test, 97)?;
    let program = program(&format!(
        r#"
        NOINLINE void deepest(void) {{ while (cpu_ns() < 1500000000ull) spin(); sink++; }}
        NOINLINE void descend(int depth) {{ if (depth > 1) descend(depth - 1); else deepest(); sink++; }}
        int main(void) {{ descend({depth}); printf("%d\n", getpid()); return 0; }}"#
    ));
    let pid = printed_number(program.start(&[])) as u32;
    let (all, _) = agent.stop(test);
    let samples: Vec<_> = all.into_iter().filter(|sample| sample.is_of(pid)).collect();
    let functions = program.functions(&samples);
    let named = samples.iter().map(|sample| (program.names(sample, &functions), sample.times.len()));
    Some(named.filter(|(names, _)| names.iter().any(|name| name == "deepest")).collect())
}

#[test]
fn a_stack_of_900_frames_is_complete() {
    let Some(stacks) = recursion("a_stack_of_900_frames_is_complete", 900) else { return };
    assert!(100 < stacks.iter().map(|(_, weight)| weight).sum::<usize>());
    for (names, _) in stacks {
        assert_eq!(names.iter().filter(|name| *name == "descend").count(), 900);
        assert!(names.contains(&"main".to_owned()) && !names.contains(&"[truncated stack]".to_owned()), "{names:?}");
    }
}

#[test]
fn a_stack_that_is_too_deep_is_marked_as_truncated() {
    let Some(stacks) = recursion("a_stack_that_is_too_deep_is_marked_as_truncated", 2_000) else { return };
    assert!(100 < stacks.iter().map(|(_, weight)| weight).sum::<usize>());
    for (names, _) in stacks {
        let user = names.iter().position(|name| name == "deepest").unwrap();
        assert_eq!(names.last().unwrap(), "[truncated stack]");
        assert!(names[user + 1..names.len() - 1].iter().all(|name| name == "descend"), "{names:?}");
        assert!(ebpf::USER_FRAMES_MAX - 10 < names.len(), "{}", names.len());
    }
}

#[test]
fn a_signal_handler_has_the_interrupted_code_as_caller() {
    let test = "a_signal_handler_has_the_interrupted_code_as_caller";
    let Some(agent) = RunningAgent::start(test, 997) else { return };
    let program = program(
        r#"
        NOINLINE void handler(int signal) { uint64_t end = cpu_ns() + 40000000; while (cpu_ns() < end) spin(); sink++; }
        NOINLINE void interrupted(void) { while (cpu_ns() < 2000000000ull) for (int i = 0; i < 50000; i++) sink++;
            sink++; }
        NOINLINE void caller(void) { interrupted(); sink++; }
        int main(void) {
            signal(SIGVTALRM, handler);
            timer_t timer; struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGVTALRM };
            timer_create(CLOCK_PROCESS_CPUTIME_ID, &event, &timer);
            struct itimerspec often = { { 0, 60000000 }, { 0, 60000000 } };
            timer_settime(timer, 0, &often, 0);
            caller(); printf("%d\n", getpid()); return 0;
        }"#,
    );
    let pid = printed_number(program.start(&[])) as u32;
    let (all, _) = agent.stop(test);
    let samples: Vec<_> = all.into_iter().filter(|sample| sample.is_of(pid)).collect();
    let functions = program.functions(&samples);
    let mut seen = 0;
    let mut whole = 0;
    for sample in &samples {
        let names = program.names(sample, &functions);
        if let Some(at) = names.iter().position(|name| name == "handler") {
            seen += sample.times.len();
            // The trampoline is in libc. The interrupted code is found by the registers that the kernel saved.
            let under = &names[at + 1..];
            let is_whole =
                under[0] == "?" && ["interrupted", "caller"].iter().all(|name| under.contains(&name.to_string()));
            whole += if is_whole { sample.times.len() } else { 0 };
        }
    }
    assert!(500 < seen, "{seen}");
    assert!(0.9 < whole as f64 / seen as f64, "{whole} of {seen}");
}

#[test]
fn kernel_code_is_named_and_has_its_caller() {
    let test = "kernel_code_is_named_and_has_its_caller";
    let Some(agent) = RunningAgent::start(test, 997) else { return };
    // The program makes the system call without libc, whose wrapper has no frame pointer. Every page of the buffer is
    // mapped before the first call.
    let program = program(
        r#"
        #include <fcntl.h>
        #include <sys/syscall.h>
        static char buffer[1 << 20];
        NOINLINE void reader(int file) { long n; for (int i = 0; i < 20; i++) {
            #ifdef __x86_64__
            __asm__ volatile("syscall" : "=a"(n) : "a"(SYS_read), "D"((long)file), "S"(buffer), "d"(sizeof buffer)
                             : "rcx", "r11", "memory");
            #else
            n = read(file, buffer, sizeof buffer);
            #endif
            sink += n; nothing(); } }
        int main(void) {
            prctl(PR_SET_NAME, "the reader");
            memset(buffer, 1, sizeof buffer); int file = open("/dev/zero", O_RDONLY);
            while (cpu_ns() < 1500000000ull) reader(file);
            printf("%d\n", getpid()); return 0;
        }"#,
    );
    let pid = printed_number(program.start(&[])) as u32;
    let (all, status) = agent.stop(test);
    let samples: Vec<_> = all.into_iter().filter(|sample| sample.is_of(pid)).collect();
    let functions = program.functions(&samples);
    let in_kernel: Vec<_> = samples
        .iter()
        .filter(|sample| sample.frames[0].kind == "kernel")
        .filter(|sample| program.names(sample, &functions).contains(&"reader".to_owned()))
        .collect();
    assert!(500 < weight(in_kernel.iter().copied()), "{}", weight(in_kernel.iter().copied()));
    let is_named = !status.missing.iter().any(|missing| missing.starts_with("kernel symbols"));
    let expected = if is_named { "read_zero" } else { "[kernel symbols unreadable]" };
    let mut as_expected = 0;
    for sample in &in_kernel {
        let kernel: Vec<_> = sample.frames.iter().take_while(|frame| frame.kind == "kernel").collect();
        as_expected += if kernel.iter().any(|frame| frame.name.contains(expected)) { sample.times.len() } else { 0 };
        let user = program.names(sample, &functions).split_off(kernel.len());
        assert_eq!(user[..2], ["reader", "main"], "{kernel:?} {user:?}");
        assert_eq!(sample.attributes["thread.name"], "the reader");
    }
    // The other samples are of interrupts, page faults, and the entry and exit of the system call.
    let share = as_expected as f64 / weight(in_kernel) as f64;
    assert!(0.8 < share, "{share}");
}

#[test]
fn jit_code_has_the_names_of_its_perf_map() {
    let test = "jit_code_has_the_names_of_its_perf_map";
    let Some(agent) = RunningAgent::start(test, 997) else { return };
    // push rbp; mov rbp, rsp; mov ecx, 5000000; 1: dec ecx; jnz 1b; pop rbp; ret
    let program = program(
        r#"
        int main(void) {
            static const unsigned char code[] = {
                0x55, 0x48, 0x89, 0xe5, 0xb9, 0x40, 0x4b, 0x4c, 0x00, 0xff, 0xc9, 0x75, 0xfc, 0x5d, 0xc3 };
            char *memory = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            memcpy(memory, code, sizeof code);
            char path[64]; sprintf(path, "/tmp/perf-%d.map", getpid());
            FILE *map = fopen(path, "w");
            fprintf(map, "%lx %lx LazyCompile:*jitted /app.js:1\n", (long)memory, (long)sizeof code);
            fclose(map);
            while (cpu_ns() < 1500000000ull) ((void (*)(void))memory)();
            unlink(path); printf("%d\n", getpid()); return 0;
        }"#,
    );
    if cfg!(not(target_arch = "x86_64")) {
        return testkit::report::skipped(test, "an x86-64 CPU, for the code in it");
    }
    let pid = printed_number(program.start(&[])) as u32;
    let (all, _) = agent.stop(test);
    let samples: Vec<_> = all.into_iter().filter(|sample| sample.is_of(pid)).collect();
    let functions = program.functions(&samples);
    let named = samples.iter().filter(|sample| {
        let frames = &sample.frames;
        let at = frames.iter().position(|frame| frame.name == "LazyCompile:*jitted /app.js:1" && frame.kind == "v8js");
        at.is_some_and(|at| program.names(sample, &functions)[at + 1] == "main")
    });
    let share = weight(named) as f64 / weight(&samples) as f64;
    // The code has no name until the mapping is read, after a tenth of a second, and the perf map, once per second.
    assert!(0.6 < share, "{share}");
}

#[test]
fn a_program_started_by_execve_is_separate_from_the_one_before() {
    let test = "a_program_started_by_execve_is_separate_from_the_one_before";
    let Some(agent) = RunningAgent::start(test, 97) else { return };
    let program = program(
        r#"
        NOINLINE void before(void) { while (cpu_ns() < 800000000ull) spin(); sink++; }
        NOINLINE void after(void) { while (cpu_ns() < 1600000000ull) spin(); sink++; }
        int main(int count, char **arguments) {
            if (count > 1) { after(); printf("%d\n", getpid()); return 0; }
            before();
            setenv("OTEL_SERVICE_NAME", "second", 1);
            char second[4096]; snprintf(second, sizeof second, "%s2", arguments[0]);
            execl(second, second, "again", NULL);
            return 1;
        }"#,
    );
    let second = format!("{}2", program.path.display());
    std::fs::copy(&program.path, &second).unwrap();
    let pid = printed_number(program.start(&[("OTEL_SERVICE_NAME", "first")])) as u32;
    let (all, _) = agent.stop(test);
    let samples: Vec<_> = all.into_iter().filter(|sample| sample.is_of(pid)).collect();
    let weight_of = |service: &str, path: &str| {
        let is_it = |sample: &&Sample| {
            sample.resource["service.name"] == service && sample.frames.iter().any(|frame| frame.file == path)
        };
        weight(samples.iter().filter(is_it))
    };
    let first = program.path.to_str().unwrap();
    assert!(60 < weight_of("first", first) && 60 < weight_of("second", &second), "{}", weight(&samples));
    assert_eq!((weight_of("first", &second), weight_of("second", first)), (0, 0));
}

#[test]
fn the_agent_is_in_its_own_profile() {
    let test = "the_agent_is_in_its_own_profile";
    let Some(agent) = RunningAgent::start(test, 997) else { return };
    std::thread::sleep(Duration::from_secs(2));
    let (all, status) = agent.stop(test);
    assert!(all.iter().any(|sample| sample.attributes["thread.name"] == "varve-sampler"), "{status:?}");
}

#[test]
fn sampling_ends_with_the_agent() {
    let test = "sampling_ends_with_the_agent";
    let Some(agent) = RunningAgent::start(test, 97) else { return };
    let threads = || {
        let names = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        names
            .filter(|it| std::fs::read_to_string(it.path().join("comm")).is_ok_and(|name| name == "varve-sampler\n"))
            .count()
    };
    assert_eq!(threads(), 1);
    let (_, status) = agent.stop(test);
    assert_eq!((threads(), status.state.name(), &*status.reason), (0, "off", "stopped"));
}
