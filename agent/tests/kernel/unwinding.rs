//! Stacks of programs and libraries without frame pointers.

use crate::support::agent::RunningAgent;
use crate::support::program::{Program, printed_number};
use crate::support::view::Sample;

const FLAGS: [&str; 3] = ["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"];

const SPIN: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#define NOINLINE __attribute__((noinline, noipa))
static volatile uint64_t sink;
NOINLINE uint64_t cpu_ns(void) { struct timespec t; clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec; }
/* Samples that are taken before the file has its table fall here. */
__attribute__((constructor)) NOINLINE void warm_up(void) {
    while (cpu_ns() < 500000000ull) for (int i = 0; i < 20000; i++) sink += i; }
NOINLINE void spin(uint64_t ns) { uint64_t end = cpu_ns() + ns;
    while (cpu_ns() < end) for (int i = 0; i < 20000; i++) sink += i; sink++; }
"#;

/// Returns the stacks that contain `function`, each as its names, leaf first, and its weight.
fn stacks_with(function: &str, program: &Program, samples: &[Sample]) -> Vec<(Vec<String>, usize)> {
    let functions = program.functions(samples);
    let named = samples.iter().map(|sample| (program.names(sample, &functions), sample.times.len()));
    named.filter(|(names, _)| names.iter().any(|name| name == function)).collect()
}

fn weight<'a>(stacks: impl IntoIterator<Item = &'a (Vec<String>, usize)>) -> usize {
    stacks.into_iter().map(|(_, weight)| weight).sum()
}

/// Runs a program until it ends. Returns its samples.
fn sampled(test: &str, hz: u32, program: &Program) -> Option<Vec<Sample>> {
    let agent = RunningAgent::start(test, hz)?;
    let pid = printed_number(program.start(&[])) as u32;
    let (all, _) = agent.stop(test);
    Some(all.into_iter().filter(|sample| sample.is_of(pid)).collect())
}

/// Asserts that nearly all stacks with `function` have these callers, up to the start of the program.
fn assert_callers(function: &str, callers: &[&str], share: f64, program: &Program, samples: &[Sample]) {
    let stacks = stacks_with(function, program, samples);
    let is_whole = |(names, _): &&(Vec<String>, usize)| {
        let at = names.iter().position(|name| name == function).unwrap();
        names[at + 1..] == *callers
    };
    let whole = weight(stacks.iter().filter(is_whole));
    let all = weight(&stacks);
    let other = stacks.iter().find(|stack| !is_whole(stack));
    assert!(100 < all && share < whole as f64 / all as f64, "{whole} of {all}; another: {other:?}");
}

#[test]
fn a_deep_recursion_and_a_callback_from_the_c_library_are_complete() {
    let program = Program::compile_with(
        &format!(
            "{SPIN}{}",
            r#"
            NOINLINE int compare(const void *a, const void *b) { spin(300000000); return *(int *)a - *(int *)b; }
            NOINLINE void sort(void) { int numbers[4] = {4, 3, 2, 1}; qsort(numbers, 4, sizeof(int), compare);
                sink += numbers[0]; }
            NOINLINE int descend(int depth) { if (depth > 1) return descend(depth - 1) + 1; sort(); return 1; }
            int main(void) { sink += descend(300); printf("%d\n", getpid()); return 0; }"#
        ),
        &FLAGS,
    );
    let Some(samples) = sampled("a_deep_recursion_and_a_callback_from_the_c_library_are_complete", 199, &program)
    else {
        return;
    };
    let callers: Vec<_> = [vec!["descend"; 300], vec!["main", "?", "?", "_start"]].concat();
    assert_callers("sort", &callers, 0.98, &program, &samples);
    let compared = stacks_with("compare", &program, &samples);
    let has_sort = |(names, _): &&(Vec<String>, usize)| {
        let at = names.iter().position(|name| name == "compare").unwrap();
        names[at + 1] == "?" && names[at + 1..].iter().any(|name| name == "sort")
    };
    let whole = weight(compared.iter().filter(has_sort));
    let all = weight(&compared);
    assert!(100 < all && 0.98 < whole as f64 / all as f64, "{whole} of {all}");
}

#[test]
fn a_handler_on_its_own_stack_has_the_interrupted_code_as_caller() {
    // The handler runs on its own stack.
    let program = Program::compile_with(
        &format!(
            "{SPIN}{}",
            r#"
            NOINLINE void handler(int signal) { spin(40000000); sink++; }
            NOINLINE void interrupted(void) { while (cpu_ns() < 2500000000ull) for (int i = 0; i < 50000; i++) sink++;
                sink++; }
            NOINLINE void caller(void) { interrupted(); sink++; }
            int main(void) {
                stack_t stack = { .ss_sp = malloc(1 << 16), .ss_size = 1 << 16 };
                sigaltstack(&stack, 0);
                struct sigaction action = { .sa_handler = handler, .sa_flags = SA_ONSTACK };
                sigaction(SIGVTALRM, &action, 0);
                timer_t timer; struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGVTALRM };
                timer_create(CLOCK_PROCESS_CPUTIME_ID, &event, &timer);
                struct itimerspec often = { { 0, 60000000 }, { 0, 60000000 } };
                timer_settime(timer, 0, &often, 0);
                caller(); printf("%d\n", getpid()); return 0;
            }"#
        ),
        &FLAGS,
    );
    let Some(samples) = sampled("a_handler_on_its_own_stack_has_the_interrupted_code_as_caller", 499, &program) else {
        return;
    };
    assert_callers("caller", &["main", "?", "?", "_start"], 0.98, &program, &samples);
    let handled = stacks_with("handler", &program, &samples);
    let is_whole = |(names, _): &&(Vec<String>, usize)| {
        names.ends_with(&["caller", "main", "?", "?", "_start"].map(str::to_owned))
    };
    let whole = weight(handled.iter().filter(is_whole));
    let all = weight(&handled);
    assert!(100 < all && 0.98 < whole as f64 / all as f64, "{whole} of {all}: {:?}", handled.first());
}

#[test]
fn code_of_the_vdso_has_its_caller() {
    let program = Program::compile_with(
        &format!(
            "{SPIN}{}",
            r#"
            NOINLINE void ask(void) { struct timespec t; for (int i = 0; i < 1000; i++) {
                clock_gettime(CLOCK_MONOTONIC, &t); sink += t.tv_nsec; } }
            int main(void) { while (cpu_ns() < 2500000000ull) ask(); printf("%d\n", getpid()); return 0; }"#
        ),
        &FLAGS,
    );
    let Some(samples) = sampled("code_of_the_vdso_has_its_caller", 199, &program) else { return };
    assert_callers("ask", &["main", "?", "?", "_start"], 0.98, &program, &samples);
    let mut inside = stacks_with("[vdso]", &program, &samples);
    // The warm-up and the program's own clock are left out, because they call the vdso before there are tables.
    inside.retain(|(names, _)| !["warm_up", "cpu_ns"].iter().any(|name| names.iter().any(|of| of == name)));
    let is_whole =
        |(names, _): &&(Vec<String>, usize)| names.ends_with(&["ask", "main", "?", "?", "_start"].map(str::to_owned));
    let whole = weight(inside.iter().filter(is_whole));
    let all = weight(&inside);
    let others: Vec<_> = inside.iter().filter(|stack| !is_whole(stack)).collect();
    assert!(50 < all && 0.95 < whole as f64 / all as f64, "{whole} of {all}; others: {others:?}");
}

#[test]
fn children_that_live_for_milliseconds_have_complete_stacks() {
    let test = "children_that_live_for_milliseconds_have_complete_stacks";
    let program = Program::compile_with(
        &format!(
            "{SPIN}{}",
            r#"
            NOINLINE void child(void) { spin(3000000); sink++; }
            int main(void) {
                for (int i = 0; i < 400; i++) { int pid = fork(); if (pid == 0) { child(); _exit(0); }
                    waitpid(pid, 0, 0); }
                printf("%d\n", getpid()); return 0;
            }"#
        ),
        &FLAGS,
    );
    let Some(agent) = RunningAgent::start(test, 499) else { return };
    printed_number(program.start(&[]));
    let (all, _) = agent.stop(test);
    let path = program.path.to_str().unwrap();
    let samples: Vec<_> =
        all.into_iter().filter(|sample| sample.frames.iter().any(|frame| frame.file == path)).collect();
    assert_callers("child", &["main", "?", "?", "_start"], 0.98, &program, &samples);
}

#[test]
fn libraries_that_replace_each_other_are_unwound_and_named() {
    let test = "libraries_that_replace_each_other_are_unwound_and_named";
    let library = |sum: &str| {
        let source = format!(
            "volatile long sink;
             __attribute__((noinline, noipa)) void work(void (*spin)(unsigned long)) {{ spin(400000000); sink {sum}; }}"
        );
        Program::compile_with(&source, &["-O2", "-fomit-frame-pointer", "-shared", "-fPIC"])
    };
    // Both libraries have the same size, and are loaded at the same address.
    let first = library("+= 1");
    let second = library("-= 1");
    let program = Program::compile_with(
        &format!(
            "{SPIN}{}",
            r#"
            NOINLINE void run(const char *path) {
                void *library = dlopen(path, RTLD_NOW); if (!library) { puts(dlerror()); exit(1); }
                ((void (*)(void *))dlsym(library, "work"))(spin); dlclose(library); sink++;
            }
            int main(void) {
                for (int i = 0; i < 2; i++) { run(getenv("FIRST")); run(getenv("SECOND")); }
                printf("%d\n", getpid()); return 0;
            }"#
        ),
        &FLAGS,
    );
    let Some(agent) = RunningAgent::start(test, 199) else { return };
    let paths = [&first, &second].map(|library| library.path.to_str().unwrap());
    let pid = printed_number(program.start(&[("FIRST", paths[0]), ("SECOND", paths[1])])) as u32;
    let (all, _) = agent.stop(test);
    let samples: Vec<_> = all.into_iter().filter(|sample| sample.is_of(pid)).collect();
    let of = paths.map(|path| {
        let of: Vec<_> =
            samples.iter().filter(|sample| sample.frames.iter().any(|frame| frame.file == path)).cloned().collect();
        // The first samples in a library are taken before it has its table.
        assert_callers("run", &["main", "?", "?", "_start"], 0.75, &program, &of);
        of.iter().map(|sample| sample.times.len()).sum::<usize>()
    });
    // Both libraries work equally long, so samples of one that count for the other would show.
    assert!(of[0].abs_diff(of[1]) * 5 < of[0].max(of[1]), "{of:?}");
}

#[test]
fn a_program_described_only_by_its_debug_file_has_complete_stacks() {
    let program = Program::compile_with(
        &format!(
            "{SPIN}{}",
            r#"
            NOINLINE void caller(void) { spin(2000000000); sink++; }
            NOINLINE int descend(int depth) { if (depth > 1) return descend(depth - 1) + 1; caller(); return 1; }
            int main(void) { sink += descend(5); printf("%d\n", getpid()); return 0; }"#
        ),
        &[&FLAGS[..], &["-fno-asynchronous-unwind-tables", "-gz=zlib"]].concat(),
    );
    program.move_debug_information();
    let test = "a_program_described_only_by_its_debug_file_has_complete_stacks";
    let Some(samples) = sampled(test, 199, &program) else { return };
    let callers = [&["descend"; 5][..], &["main", "?", "?", "_start"]].concat();
    assert_callers("caller", &callers, 0.95, &program, &samples);
}

#[test]
fn threads_of_a_musl_program_have_complete_stacks_in_system_calls() {
    let test = "threads_of_a_musl_program_have_complete_stacks_in_system_calls";
    let specs = "/usr/lib/x86_64-linux-musl/musl-gcc.specs";
    if !std::path::Path::new(specs).exists() {
        return testkit::report::skipped(test, "no musl-gcc");
    }
    let program = Program::compile_with(
        &format!(
            "{SPIN}{}",
            r#"
            #include <fcntl.h>
            #include <pthread.h>
            static char block[1 << 16];
            NOINLINE void *work(void *zeros) { uint64_t end = cpu_ns() + 3000000000ull;
                while (cpu_ns() < end) sink += read((int)(uint64_t)zeros, block, sizeof block); return 0; }
            int main(void) {
                void *zeros = (void *)(uint64_t)open("/dev/zero", O_RDONLY);
                pthread_t thread; pthread_create(&thread, 0, work, zeros); work(zeros); pthread_join(thread, 0);
                printf("%d\n", getpid()); return 0;
            }"#
        ),
        &[&FLAGS[..], &["-pthread", "-specs", specs]].concat(),
    );
    let Some(samples) = sampled(test, 199, &program) else { return };
    let stacks = stacks_with("work", &program, &samples);
    let of = |ends: &[&str]| {
        let ends: Vec<_> = ends.iter().map(|name| (*name).to_owned()).collect();
        weight(stacks.iter().filter(|(names, _)| names.ends_with(&ends)))
    };
    // The first function of a thread and the caller of main() are in the C library.
    let in_thread = of(&["work", "?", "?"]);
    let in_main = of(&["work", "main", "?", "_start"]);
    let all = weight(&stacks);
    assert!(100 < in_thread && 100 < in_main, "{in_thread} and {in_main} of {all}: {stacks:?}");
    assert!(0.98 < (in_thread + in_main) as f64 / all as f64, "{in_thread} and {in_main} of {all}: {stacks:?}");
}

#[test]
fn a_stack_through_wrongly_described_code_has_no_root() {
    // The description is wrong: it places the return address 8,000 bytes above the stack pointer, at a word that is
    // none.
    let program = Program::compile_with(
        &format!(
            "{SPIN}{}",
            r#"
            void misdescribed(uint64_t rounds);
            asm(".text\n.globl misdescribed\n.type misdescribed, @function\nmisdescribed:\n"
                ".cfi_startproc\n.cfi_def_cfa_offset 8008\n"
                "1: dec %rdi\n jnz 1b\n ret\n.cfi_endproc\n.size misdescribed, .-misdescribed\n");
            NOINLINE void with_garbage(uint64_t garbage) {
                volatile uint64_t words[2000];
                for (int i = 0; i < 2000; i++) words[i] = garbage;
                uint64_t end = cpu_ns() + 500000000ull;
                while (cpu_ns() < end) misdescribed(20000000);
                sink += words[7];
            }
            int main(void) {
                with_garbage(0); with_garbage(0x11); with_garbage(0x1111111111111111ull); with_garbage((uint64_t)&sink);
                printf("%d\n", getpid()); return 0;
            }"#
        ),
        &FLAGS,
    );
    let test = "a_stack_through_wrongly_described_code_has_no_root";
    let Some(samples) = sampled(test, 199, &program) else { return };
    let stacks = stacks_with("misdescribed", &program, &samples);
    assert!(200 < weight(&stacks), "{stacks:?}");
    for (names, _) in &stacks {
        // If the sample was taken in the kernel, frames of the kernel come first.
        let at = names.iter().position(|name| name == "misdescribed").unwrap();
        assert_eq!(names[at..], ["misdescribed", "[unwinding failed]"], "{names:?}");
    }
}

#[test]
fn a_coroutine_has_its_root_at_the_end_of_the_memory_of_its_stack() {
    // A coroutine's first function returns nowhere. In the middle of memory, the same word shows that a step was wrong.
    let program = Program::compile_with(
        &format!(
            "{SPIN}{}",
            r#"
            #include <sys/mman.h>
            void *resumer;
            void start(void **resumer, uint64_t *stack, void (*first)(void));
            void finish(void *resumer);
            asm(".text\nstart: push %rbx\n push %rbp\n push %r12\n push %r13\n push %r14\n push %r15\n"
                " mov %rsp, (%rdi)\n mov %rsi, %rsp\n jmp *%rdx\n"
                "finish: mov %rdi, %rsp\n pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbp\n pop %rbx\n ret\n");
            NOINLINE void at_end(void) { spin(1500000000); sink++; finish(resumer); }
            NOINLINE void in_middle(void) { spin(1500000000); sink++; finish(resumer); }
            int main(void) {
                int bytes = 1 << 16;
                char *memory = mmap(0, bytes + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
                mprotect(memory + bytes, 4096, PROT_NONE);
                start(&resumer, (uint64_t *)(memory + bytes) - 1, at_end);
                start(&resumer, (uint64_t *)(memory + bytes / 2) - 1, in_middle);
                printf("%d\n", getpid()); return 0;
            }"#
        ),
        &FLAGS,
    );
    let test = "a_coroutine_has_its_root_at_the_end_of_the_memory_of_its_stack";
    let Some(samples) = sampled(test, 199, &program) else { return };
    for (function, callers) in [("at_end", &[][..]), ("in_middle", &["[unwinding failed]"])] {
        let stacks = stacks_with(function, &program, &samples);
        assert!(100 < weight(&stacks), "{stacks:?}");
        for (names, _) in &stacks {
            let at = names.iter().position(|name| name == function).unwrap();
            assert_eq!(names[at + 1..], *callers, "{names:?}");
        }
    }
}
