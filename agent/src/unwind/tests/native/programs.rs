//! The programs whose stacks are walked: deep ones, and one that uses stacks in every way.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Program that stops with 900 calls of one function on the stack.
pub(super) const RECURSION: &str = r#"
static volatile int sink;
__attribute__((noinline, noipa)) int descend(int depth) {
    if (depth > 1) return descend(depth - 1) + 1;
    __asm__ volatile("int3");
    return 1;
}
int main(void) { sink = descend(900); return 0; }
"#;

/// Program that stops with calls of 300 functions on the stack, each with its own type and with locals that have
/// destructors.
pub(super) const TEMPLATES: &str = r#"
#include <string>
#include <vector>
static volatile int sink;
template <int N> struct Nest {
    struct Guard { ~Guard() { sink = sink + N; } };
    static __attribute__((noinline, noipa)) int call(const std::vector<std::string> &names) {
        Guard guard;
        std::string name = names[N % names.size()] + names[0];
        if constexpr (N == 0) { __asm__ volatile("int3"); return name.size(); }
        else return Nest<N - 1>::call(names) + name.size();
    }
};
int main() { sink = Nest<299>::call({"one", "two", "a name that does not fit into the string itself"}); }
"#;

/// Program that repeats one round for ever, with an `int3` before and after it. A round has calls through the PLT with
/// lazy binding, callbacks from the C library, and tail calls. Its frames are of unknown size, of large size, or
/// aligned, and its signal handler runs on the same stack or on its own.
pub(super) const BUSY: &str = r#"
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#define NOINLINE __attribute__((noinline, noipa))
static volatile uint64_t sink;
static char stack[1 << 16];
NOINLINE int compare(const void *a, const void *b) { return *(int *)a - *(int *)b; }
NOINLINE void sort(int count) {
    int numbers[count];
    for (int i = 0; i < count; i++) numbers[i] = i * 7919 % 101;
    qsort(numbers, count, sizeof(int), compare); sink += numbers[0];
}
NOINLINE void large(void) { char page[70000]; memset(page, 1, sizeof(page)); sink += page[sink % sizeof(page)]; }
NOINLINE void aligned(int count) {
    __attribute__((aligned(64))) char line[64]; char more[count];
    memset(line, count, 64); memcpy(more, line, count); sink += more[count - 1];
}
typedef uint64_t u;
NOINLINE u pressed(u a, u b, u c, u d, u e, u f, u g, u h) {
    uint64_t x = a * b, y = c * d, z = e * f, w = g * h;
    for (int i = 0; i < 3; i++) {
        x ^= strlen("abc") + y; y += z * w; z -= x; w ^= a + b + c + d + e + f + g + h; sink += x;
    }
    return x + y + z + w;
}
NOINLINE uint64_t tail(uint64_t depth) { return depth ? tail(depth - 1) : pressed(1, 2, 3, 4, 5, 6, 7, 8); }
NOINLINE void handler(int signal) { sort(3); sink += signal; }
NOINLINE void struck(int count) {
    char more[count];
    memset(more, 1, count);
    long done;
    __asm__ volatile("syscall" : "=a"(done) : "a"(SYS_tgkill), "D"(getpid()), "S"(getpid()), "d"(SIGUSR1)
                     : "rcx", "r11", "memory");
    sink += more[count - 1] + done;
}
NOINLINE void once(void) {
    sink += getppid(); sort(9); large(); sink += tail(3);
    char text[64]; snprintf(text, sizeof text, "%d %s %5.2f", 7, "seven", 7.7); sink += strtod(text, 0);
    char *copy = strdup(text); sink += strlen(copy) + (uint64_t)strchr(copy, 's'); free(copy);
    raise(SIGUSR1); struck(40);
    if (HAS_ALIGNED) aligned(33);
    struct timespec now; clock_gettime(CLOCK_MONOTONIC, &now); sink += now.tv_nsec;
    void *moved = realloc(malloc(100), 300000); memmove((char *)moved + 1, moved, 20000); free(moved);
}
int main(void) {
    stack_t other = { .ss_sp = stack, .ss_size = sizeof stack };
    if (ON_OTHER_STACK) sigaltstack(&other, 0);
    struct sigaction action = { .sa_handler = handler, .sa_flags = ON_OTHER_STACK ? SA_ONSTACK : 0 };
    sigaction(SIGUSR1, &action, 0);
    __asm__ volatile("int3");
    once();
    __asm__ volatile("int3");
    for (;;) once();
}
"#;

/// Program with nested futures, polled by hand, and a closure in a sort of the standard library.
pub(super) const FUTURES: &str = r#"
use std::{future::Future, pin::Pin, task::{Context, Waker}};
fn nested(depth: u64) -> Pin<Box<dyn Future<Output = u64>>> {
    Box::pin(async move {
        if depth > 0 { return nested(depth - 1).await + depth; }
        let mut numbers: Vec<u64> = (0..4).collect();
        numbers.sort_by_key(|number| { unsafe { std::arch::asm!("int3") }; std::hint::black_box(4 - number) });
        numbers[0]
    })
}
fn main() {
    let poll = nested(200).as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(poll.is_ready());
}
"#;

/// Program that stops in calls of methods, closures and deferred functions. Then it allocates memory, switches between
/// goroutines and is preempted by the runtime, for ever. The main goroutine stays on the main thread.
pub(super) const GO: &str = r#"
package main
import ("fmt"; "runtime"; "sort"; "strings")
type nest interface { down(depth int, f func(int) int) int }
type one struct{ n int }
type two struct{ one; m [9]int }
//go:noinline
func (o one) down(depth int, f func(int) int) int {
	if depth == 0 { return f(o.n) }
	var n nest = &two{one: o}
	return n.down(depth-1, func(x int) int { return f(x + 1) })
}
//go:noinline
func (t *two) down(depth int, f func(int) int) int {
	if depth == 0 { return f(t.m[3]) }
	defer func() { t.m[depth%9]++ }()
	return t.one.down(depth-1, f)
}
var sink int
//go:noinline
func once(i int) {
	c := make(chan int); go func() { c <- i }(); sink += <-c
	words := strings.Fields(fmt.Sprintf("%d %v %x", i, []int{i, 2}, "abc")); sort.Strings(words); sink += len(words)
	m := map[int][]byte{}; for j := 0; j < 50; j++ { m[j*7919] = make([]byte, j*64) }; sink += len(m)
	for j := 0; j < 1000; j++ { sink += j * sink }
}
func init() { runtime.LockOSThread() }
func main() {
	var n nest = one{1}
	sink += n.down(300, func(x int) int { runtime.Breakpoint(); return x })
	for i := 0; ; i++ { once(i) }
}
"#;

/// A compiled program.
pub(super) struct Program {
    _folder: tempfile::TempDir,
    pub(super) path: PathBuf,
}

impl Program {
    /// Compiles a program. Returns `None` if the compiler is not installed.
    pub(super) fn compile(compiler: &str, source: &str, flags: &[&str]) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let ending = match compiler {
            "g++" => "cc",
            "rustc" => "rs",
            _ => "c",
        };
        let path = folder.path().join("program");
        let source_path = folder.path().join(format!("program.{ending}"));
        std::fs::write(&source_path, source).unwrap();
        Self::build(Command::new(compiler).args(flags).arg("-o").args([&path, &source_path])).then_some(())?;
        Some(Self { _folder: folder, path })
    }

    /// Runs a compiler. Returns false if it is not installed.
    pub(super) fn build(command: &mut Command) -> bool {
        match command.output() {
            Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return false,
            Err(error) => panic!("{command:?}: {error}"),
        }
        true
    }

    /// Builds a stripped Go program, and a copy with call frame information.
    pub(super) fn go(source: &str) -> Option<(Self, PathBuf)> {
        let folder = tempfile::tempdir().unwrap();
        let [source_path, twin, path] = ["main.go", "twin", "program"].map(|name| folder.path().join(name));
        std::fs::write(&source_path, source).unwrap();
        let mut go = Command::new("go");
        go.args(["build", "-ldflags=-compressdwarf=false", "-o"]).args([&twin, &source_path]);
        go.envs([("CGO_ENABLED", "0"), ("GOTOOLCHAIN", "local"), ("GO111MODULE", "off")]);
        Self::build(&mut go).then_some(())?;
        assert!(Self::build(Command::new("strip").arg("-o").args([&path, &twin])), "binutils");
        Some((Self { _folder: folder, path }, twin))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}
