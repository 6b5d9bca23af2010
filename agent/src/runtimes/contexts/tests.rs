//! Searches in real processes, whose programs tell where their variable is.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use ebpf::Libc;
use testkit::report;
use testkit::workshop::{Workshop, have};

use super::*;
use crate::process::test_record::start_boottime_ns;
use crate::unwind::tests::native::child::mappings;
use crate::unwind::tests::native::kernel::Kernel;

/// A program with the variable, which prints the offset of the variable from the thread's base.
const PROGRAM: &str = r#"
#include <stdio.h>
__thread long before[3] = { 1 };
__thread void *otel_thread_ctx_v1;
int main(void) {
    printf("%ld\n", (long)((char *)&otel_thread_ctx_v1 - (char *)__builtin_thread_pointer()));
    fflush(stdout);
    return getchar() + before[0] == 0;
}
"#;

/// A program that loads and unloads a library with the variable, each time that it reads a line.
const LOADER: &str = r#"
#include <dlfcn.h>
#include <stdio.h>
int main(void) {
    void *library = 0;
    for (puts("began"), fflush(stdout); getchar() != EOF; fflush(stdout)) {
        if (library) { dlclose(library); library = 0; puts("unloaded"); }
        else puts((library = dlopen("./library.so", RTLD_NOW)) ? "loaded" : dlerror());
    }
    return 0;
}
"#;

/// A program that has keys and the library. It prints the base of its thread, the address of its keys, and the value of
/// the library's variable. The last number is no key.
const KEYS: &str = r#"
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
static pthread_key_t keys[44];
int main(void) {
    void *library = dlopen("./library.so", RTLD_NOW);
    void (*set)(void *) = (void (*)(void *))dlsym(library, "set");
    for (long i = 0; i < 40; i++)
        if (pthread_key_create(&keys[i], 0) || pthread_setspecific(keys[i], (void *)(1000 + i))) return 1;
    keys[40] = 5000;
    set((void *)0x12345678);
    printf("%lu %lu %lu\n", (unsigned long)__builtin_thread_pointer(), (unsigned long)keys, 0x12345678ul);
    fflush(stdout);
    return getchar() == 0;
}
"#;

/// A program that publishes its name each time that it reads a line: `cart`, `shop`, `cart`, and then no more.
pub(crate) const PUBLISHER: &str = r#"
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
struct context { char signature[8]; uint32_t version, bytes; volatile uint64_t published_ns; const char *payload; };
int main(void) {
    static const char payloads[2][27] = { "\n\x18\n\x16\n\x0cservice.name\x12\x06\n\x04""cart",
                                          "\n\x18\n\x16\n\x0cservice.name\x12\x06\n\x04""shop" };
    struct context *context = 0;
    const char *name = "none";
    for (uint64_t published_ns = 1; puts(name), fflush(stdout), getchar() != EOF; published_ns++) {
        if (published_ns == 4) {
            munmap(context, 4096);
            name = "gone";
            continue;
        }
        if (!context) {
            int file = memfd_create("OTEL_CTX", MFD_CLOEXEC);
            if (ftruncate(file, 4096)) return 1;
            context = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
            close(file);
            context->version = 2;
            memcpy(context->signature, "OTEL_CTX", 8);
        }
        context->published_ns = 0;
        context->payload = payloads[(published_ns - 1) % 2];
        context->bytes = 26;
        context->published_ns = published_ns;
        name = context->payload + 22;
    }
    return 0;
}
"#;

const LIBRARY: &str = "__thread void *otel_thread_ctx_v1; void set(void *to) { otel_thread_ctx_v1 = to; }";

/// A program that runs until it is dropped.
pub(crate) struct Running {
    child: Child,
    lines: BufReader<ChildStdout>,
    input: Option<ChildStdin>,
}

impl Running {
    pub(crate) fn start(workshop: &Workshop, name: &str) -> Self {
        let mut command = Command::new(workshop.path(name));
        command.current_dir(workshop.path(".")).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let input = child.stdin.take();
        Self { child, lines, input }
    }

    pub(crate) fn key(&self) -> ProcessKey {
        let pid = self.child.id();
        ProcessKey { pid, start_boottime_ns: start_boottime_ns(pid), exec_id: 1 }
    }

    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    pub(crate) fn go_on(&mut self) -> String {
        self.input.as_mut().unwrap().write_all(b"\n").unwrap();
        self.line()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ended = self.child.wait();
    }
}

/// True, and reported, if these tests cannot run here.
fn is_skipped(test: &str) -> bool {
    let is_skipped = cfg!(not(target_arch = "x86_64")) || !have(&["gcc"]);
    if is_skipped {
        report::skipped(test, "this machine is not x86-64, or has no gcc");
    }
    is_skipped
}

#[test]
fn the_variable_of_a_program_is_found_where_the_program_has_it() {
    if is_skipped("the_variable_of_a_program_is_found_where_the_program_has_it") {
        return;
    }
    let workshop = Workshop::default();
    workshop.write("program.c", PROGRAM);
    workshop.run("gcc -O1 -rdynamic program.c -o program");
    let mut program = Running::start(&workshop, "program");
    let offset: i64 = program.line().parse().unwrap();
    let key = program.key();
    let contexts = Contexts::default();
    contexts.search(key, &mut Last::default());
    let context = Some(ThreadPointer::Fixed(offset));
    let ProcessKey { pid, start_boottime_ns, exec_id } = key;
    assert_eq!(contexts.take_found(), [(pid, Program { start_boottime_ns, exec_id, context, eager: 0 })]);
    assert_eq!(contexts.take_found(), []);
    // Another process that had the pid before.
    contexts.search(ProcessKey { start_boottime_ns: 1, ..key }, &mut Last::default());
    assert_eq!(contexts.take_found(), []);
}

#[test]
fn a_library_is_found_when_it_is_loaded_and_forgotten_when_it_is_not() {
    if is_skipped("a_library_is_found_when_it_is_loaded_and_forgotten_when_it_is_not") {
        return;
    }
    let workshop = Workshop::default();
    workshop.write("loader.c", LOADER);
    workshop.write("library.c", LIBRARY);
    workshop.run("gcc loader.c -o loader");
    workshop.run("gcc -O1 -shared -fPIC library.c -o library.so");
    let mut loader = Running::start(&workshop, "loader");
    assert_eq!(loader.line(), "began");
    let key = loader.key();
    let (contexts, mut last) = (Contexts::default(), Last::default());
    let mut search = || {
        contexts.search(key, &mut last);
        contexts.take_found().into_iter().map(|(_, program)| program.context).collect::<Vec<_>>()
    };
    assert_eq!((search(), search()), (Vec::new(), Vec::new()));
    assert_eq!(loader.go_on(), "loaded");
    let found = search();
    assert!(matches!(found[..], [Some(ThreadPointer::Dynamic { .. })]), "{found:?}");
    assert_eq!(search(), found, "BPF may have forgotten it");
    assert_eq!(loader.go_on(), "unloaded");
    assert_eq!((search(), search()), (vec![None], Vec::new()));
    assert!(last.without.is_some(), "the same files need no other search");
}

#[test]
fn the_context_of_a_process_is_read_after_each_publication() {
    let test = "the_context_of_a_process_is_read_after_each_publication";
    if !have(&["gcc"]) {
        return report::skipped(test, "this machine has no gcc");
    }
    let workshop = Workshop::default();
    workshop.write("publisher.c", PUBLISHER);
    workshop.run("gcc publisher.c -o publisher");
    let mut publisher = Running::start(&workshop, "publisher");
    assert_eq!(publisher.line(), "none");
    let (key, contexts, mut search) = (publisher.key(), Contexts::default(), Search::new(0));
    let mut read = || {
        let due_ns = search.due_ns;
        search.follow(key, due_ns, &contexts);
        assert_ne!(search.due_ns, due_ns, "a search has begun");
        while 1 < Arc::strong_count(&search.last) {
            thread::yield_now();
        }
        let published = search.take_published();
        assert_eq!(search.take_published(), None, "attributes are taken once");
        published
    };
    let service = |name: &str| Some(vec![("service.name".to_owned(), name.to_owned())]);
    assert_eq!(read(), None);
    assert_eq!(publisher.go_on(), "cart");
    assert_eq!((read(), read()), (service("cart"), None));
    assert_eq!(publisher.go_on(), "shop");
    assert_eq!((read(), read()), (service("shop"), None));
    assert_eq!((publisher.go_on(), publisher.go_on()), ("cart".to_owned(), "gone".to_owned()));
    assert_eq!((read(), read()), (Some(Vec::new()), None));
    assert_eq!(contexts.take_found(), [], "it has no thread context");
}

#[test]
fn bpf_reads_keys_and_variables_of_both_c_libraries() {
    let test = "bpf_reads_keys_and_variables_of_both_c_libraries";
    if is_skipped(test) {
        return;
    }
    for (compiler, libc) in [("gcc", Libc::Glibc), ("musl-gcc", Libc::Musl)] {
        if !have(&[compiler]) {
            report::skipped(test, format!("no {compiler}"));
            continue;
        }
        let workshop = Workshop::default();
        workshop.write("keys.c", KEYS);
        workshop.write("library.c", LIBRARY);
        workshop.run(&format!("{compiler} -pthread keys.c -o keys"));
        workshop.run(&format!("{compiler} -O1 -shared -fPIC library.c -o library.so"));
        let mut program = Running::start(&workshop, "keys");
        let printed = program.line();
        let numbers: Vec<u64> = printed.split(' ').map(|number| number.parse().unwrap()).collect();
        let [base, keys, variable] = numbers[..] else { panic!("{printed}") };
        let contexts = Contexts::default();
        contexts.search(program.key(), &mut Last::default());
        let place = contexts.take_found().pop().unwrap().1.context.unwrap();
        assert!(matches!(place, ThreadPointer::Dynamic { libc: found, .. } if found == libc), "{compiler}: {place:?}");
        let mut kernel = Kernel::new();
        let pid = program.child.id();
        kernel.run(pid, &mappings(pid));
        kernel.set_thread_base(base);
        assert_eq!(kernel.thread_pointer(place), Some(variable), "{compiler}");
        for key in 0..40 {
            let read = kernel.thread_pointer(ThreadPointer::Key(keys + 4 * key, libc));
            assert_eq!(read, Some(1000 + key), "{compiler}: key {key}");
        }
        assert_eq!(kernel.thread_pointer(ThreadPointer::Key(keys + 4 * 40, libc)), None, "{compiler}: no key");
        // Modules that do not exist: the word is the number of the module.
        let missing = ThreadPointer::Dynamic { pair: keys + 4 * 40, displacement: 0, libc };
        assert_eq!(kernel.thread_pointer(missing), None, "{compiler}: no module");
        // With the layout of the other library, the first key has another value.
        let other = if libc == Libc::Musl { Libc::Glibc } else { Libc::Musl };
        assert_ne!(kernel.thread_pointer(ThreadPointer::Key(keys, other)), Some(1000), "{compiler}");
    }
}

#[test]
fn searches_become_rare_and_one_at_a_time_runs_in_a_process() {
    let key = ProcessKey { pid: u32::MAX, start_boottime_ns: 1, exec_id: 0 };
    let contexts = Contexts::default();
    let mut search = Search::new(0);
    search.follow(key, INTERVAL_NS_MIN - 1, &contexts);
    assert_eq!(search.due_ns, INTERVAL_NS_MIN, "it is too early");
    let running = Arc::clone(&search.last);
    search.follow(key, INTERVAL_NS_MIN, &contexts);
    assert_eq!(search.due_ns, INTERVAL_NS_MIN, "the last search still runs");
    drop(running);
    let mut intervals = Vec::new();
    for _ in 0..6 {
        let now_ns = search.due_ns;
        while search.due_ns == now_ns {
            search.follow(key, now_ns, &contexts);
        }
        intervals.push((search.due_ns - now_ns) / 1_000_000_000);
    }
    assert_eq!(intervals, [2, 8, 32, 60, 60, 60]);
}
