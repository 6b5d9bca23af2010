//! Samples of CPython programs: the functions of each version, between native frames in the order of the calls.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::process::Stdio;

use crate::support::agent::RunningAgent;
use crate::support::program::Program;
use crate::support::view::{Frame, Sample, are_nearly_all};
use testkit::interpreters::{Interpreter, pythons};
use testkit::report;

/// Program with a known path of calls: through recursion, a generator, a method, a lambda, and C code that calls
/// Python.
const PROGRAM: &str = "
import time

def spin(until):
    total = 0
    while time.time() < until:
        for i in range(2000):
            total += i * i
    return total

class Worker:
    def method(self, until):
        return (lambda end: spin(end))(until)

def generator(until):
    yield Worker().method(until)

def called_from_c(until):
    return sum(generator(until))

def descend(depth, until):
    if depth:
        return descend(depth - 1, until)
    return sorted([until], key=called_from_c)

def main():
    until = time.time() + 10
    descend(40, until)

main()
";

/// Returns the names of the Python functions of a sample, leaf first.
fn functions(sample: &Sample) -> Vec<&str> {
    sample.frames.iter().filter(|frame| frame.kind == "cpython").map(|frame| frame.name.as_str()).collect()
}

/// Name of the native function that runs Python functions.
const LOOP: &str = "_PyEval_EvalFrameDefault";

/// Time in which the tables of a program's files are made, in nanoseconds.
const START_NS: u64 = 4_000_000_000;

/// Runs a script with all interpreters at once, and returns the samples of each without those of its start; `None` if
/// this machine cannot sample.
pub(crate) fn sampled(
    test: &str,
    interpreters: Vec<Interpreter>,
    script: &Path,
    with_waits: bool,
) -> Option<Vec<(Interpreter, Vec<Sample>)>> {
    if interpreters.is_empty() {
        report::skipped(test, "there is no such interpreter");
        return None;
    }
    let agent = RunningAgent::start_with(test, 99, with_waits)?;
    let start = |interpreter: Interpreter| {
        let child = interpreter.command().arg(script).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        (interpreter, child)
    };
    let mut children: Vec<_> = interpreters.into_iter().map(start).collect();
    for (interpreter, child) in &mut children {
        assert!(child.wait().unwrap().success(), "{interpreter}");
    }
    let (samples, _) = agent.stop(test);
    let of = |pid: u32| samples.iter().filter(move |sample| sample.is_of(pid)).cloned().collect();
    Some(children.into_iter().map(|(interpreter, child)| (interpreter, after_start(of(child.id())))).collect())
}

/// Returns the samples of a process without those of its start.
fn after_start(mut samples: Vec<Sample>) -> Vec<Sample> {
    let start = samples.iter().flat_map(|sample| &sample.times).min().copied().unwrap_or_default();
    for sample in &mut samples {
        let is_late: Vec<bool> = sample.times.iter().map(|time| start + START_NS < *time).collect();
        let mut keep = is_late.iter();
        sample.values.retain(|_| keep.next() == Some(&true));
        let mut keep = is_late.iter();
        sample.times.retain(|_| keep.next() == Some(&true));
    }
    samples.retain(|sample| !sample.times.is_empty());
    samples
}

/// Checks that nearly all of `samples` are whole.
pub(crate) fn assert_whole(
    interpreter: &Interpreter,
    samples: &[Sample],
    weight: fn(&Sample) -> u64,
    is_whole: impl Fn(&Sample) -> bool,
) {
    let (mut whole, mut all) = (0, 0);
    let mut other = Vec::new();
    for sample in samples {
        all += weight(sample);
        if is_whole(sample) {
            whole += weight(sample);
        } else {
            let frames = sample.frames.iter();
            let frames = frames.map(|it| format!("{}:{}@{}+{:#x}", it.name, it.line, it.file, it.address));
            other.push((weight(sample), frames.collect::<Vec<_>>().join(";")));
        }
    }
    assert!(4 < whole && are_nearly_all(whole, all), "{interpreter}: {whole} of {all}: {other:?}");
}

/// Checks that nearly all samples of an interpreter that ran [`PROGRAM`] have all functions, in the order of the calls.
fn check_calls(interpreter: &Interpreter, samples: Vec<Sample>) {
    let is_whole = |sample: &Sample| {
        let names = functions(sample);
        let plain: Vec<&str> = names.iter().map(|name| name.rsplit('.').next().unwrap_or(name)).collect();
        let inner = ["spin", "<lambda>", "method", "generator", "called_from_c"];
        let outer = ["main", "<module>"];
        plain.starts_with(&inner)
            && plain.ends_with(&outer)
            && plain[inner.len()..plain.len() - outer.len()].iter().all(|name| *name == "descend")
            && plain.len() == inner.len() + 41 + outer.len()
            && has_c_between(sample, "generator", "called_from_c")
            && has_c_between(sample, "called_from_c", "descend")
    };
    // At the end of the program, the interpreter runs without a function.
    let runs = |sample: &Sample| sample.frames.iter().any(|frame| frame.name == LOOP || frame.name.starts_with('['));
    let running: Vec<Sample> = samples.into_iter().filter(runs).collect();
    assert_whole(interpreter, &running, |sample| sample.times.len() as u64, is_whole);
}

#[test]
fn functions_of_each_python_are_on_the_stack_in_the_order_of_the_calls() {
    let test = "functions_of_each_python_are_on_the_stack_in_the_order_of_the_calls";
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("program.py");
    std::fs::write(&script, PROGRAM).unwrap();
    for (interpreter, samples) in sampled(test, pythons(), &script, false).unwrap_or_default() {
        check_calls(&interpreter, samples);
    }
}

/// C program that contains Python, and runs a script in a thread of its own.
const EMBEDDER: &str = "
#include <Python.h>
#include <pthread.h>
static int count;
static char **arguments;
static void *run(void *unused) { return Py_BytesMain(count, arguments) ? (void *)1 : unused; }
int main(int given_count, char **given_arguments)
{
    pthread_t thread;
    void *failed;
    count = given_count;
    arguments = given_arguments;
    pthread_create(&thread, 0, run, 0);
    pthread_join(thread, &failed);
    return failed != 0;
}";

/// Compiles a program that contains the Python of an interpreter; `None` if there is no library for that, or if the
/// version is one that is recognised by the name of its file only.
fn embedder(interpreter: &Interpreter) -> Option<Program> {
    let name = interpreter.program.canonicalize().ok()?.file_name()?.to_str()?.to_owned();
    let minor: u32 = name.strip_prefix("python3.")?.parse().ok()?;
    let prefix = interpreter.program.ancestors().nth(2)?.to_str()?;
    let library = format!("{prefix}/lib/{name}/config-3.{minor}-x86_64-linux-gnu/lib{name}.a");
    let include = format!("-I{prefix}/include/{name}");
    // Libraries of distributions need other libraries to be linked.
    if minor < 11 || !prefix.contains(".pyenv") || !Path::new(&library).exists() {
        return None;
    }
    let flags = ["-O2", &include, "-Wl,--export-dynamic", &library, "-lm", "-ldl", "-lutil"];
    Some(Program::compile_with(EMBEDDER, &flags))
}

#[test]
fn functions_of_python_in_a_program_that_contains_it_are_on_the_stack() {
    let test = "functions_of_python_in_a_program_that_contains_it_are_on_the_stack";
    let with_library = |interpreter: Interpreter| Some((embedder(&interpreter)?, interpreter));
    let all: Vec<(Program, Interpreter)> = pythons().into_iter().filter_map(with_library).collect();
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("program.py");
    std::fs::write(&script, PROGRAM).unwrap();
    // The program finds Python's modules as a virtual environment does: by a file in its own folder.
    let programs = all.iter().map(|(program, interpreter)| {
        let home = interpreter.program.parent().unwrap();
        let configuration = program.path.with_file_name("pyvenv.cfg");
        std::fs::write(configuration, format!("home = {}\n", home.display())).unwrap();
        Interpreter { program: program.path.clone(), arguments: Vec::new() }
    });
    for (interpreter, samples) in sampled(test, programs.collect(), &script, false).unwrap_or_default() {
        check_calls(&interpreter, samples);
    }
}

/// True if a sample has the loop that runs the function `inner`, and then C code, between it and its caller `outer`.
fn has_c_between(sample: &Sample, inner: &str, outer: &str) -> bool {
    let is_function =
        |frame: &Frame, name: &str| frame.kind == "cpython" && frame.name.rsplit('.').next() == Some(name);
    let at = sample.frames.iter().position(|frame| is_function(frame, inner));
    let Some((_, [first, between @ ..])) = at.and_then(|at| sample.frames.split_at_checked(at + 1)) else {
        return false;
    };
    let end = between.iter().position(|frame| is_function(frame, outer));
    first.name == LOOP && end.is_some_and(|end| 0 < end && between[..end].iter().all(|frame| frame.kind == "native"))
}

/// Program that holds the interpreter's lock neither while it compresses nor while it sleeps.
const WITHOUT_LOCK: &str = "
import time, zlib

DATA = bytes(range(256)) * 20000

def compress():
    zlib.compress(DATA, 9)

def wait():
    time.sleep(0.02)

def main():
    until = time.time() + 10
    while time.time() < until:
        compress()
        wait()

main()
";

#[test]
fn functions_that_hold_no_lock_are_on_the_stack() {
    let test = "functions_that_hold_no_lock_are_on_the_stack";
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("without_lock.py");
    std::fs::write(&script, WITHOUT_LOCK).unwrap();
    // Those that were compiled for musl have no module for compression.
    let can_compress = |interpreter: &Interpreter| {
        let imported = interpreter.command().args(["-c", "import zlib"]).stderr(Stdio::null()).status();
        imported.unwrap().success()
    };
    let interpreters = pythons().into_iter().filter(can_compress).collect();
    for (interpreter, samples) in sampled(test, interpreters, &script, true).unwrap_or_default() {
        let has_loop = |sample: &Sample| sample.frames.iter().any(|frame| frame.name == LOOP);
        let compresses = |sample: &Sample| sample.frames.iter().any(|frame| frame.file.contains("libz."));
        let (waits, cpu): (Vec<_>, Vec<_>) = samples.into_iter().partition(|sample| sample.kind.0 == "off_cpu");
        let compressed: Vec<_> = cpu.into_iter().filter(compresses).collect();
        let is_of = |sample: &Sample, inner| functions(sample) == [inner, "main", "<module>"];
        assert_whole(&interpreter, &compressed, |sample| sample.times.len() as u64, |sample| is_of(sample, "compress"));
        let slept: Vec<_> = waits.into_iter().filter(has_loop).collect();
        let waited = |sample: &Sample| sample.values.iter().sum::<i64>().unsigned_abs();
        assert_whole(&interpreter, &slept, waited, |sample| is_of(sample, "wait"));
    }
}

/// Program that runs a function in an interpreter of its own, in a thread of its own.
const SECOND_INTERPRETER: &str = "
import sys, threading
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters

CODE = '''
import time
def spin_in_second(until):
    while time.time() < until:
        for i in range(2000):
            i * i
def main_of_second():
    spin_in_second(time.time() + 10)
main_of_second()
'''

def run_second():
    interpreters.run_string(interpreters.create(), CODE)

thread = threading.Thread(target=run_second)
thread.start()
thread.join()
";

#[test]
fn functions_of_a_second_interpreter_are_on_the_stack() {
    let test = "functions_of_a_second_interpreter_are_on_the_stack";
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("second.py");
    std::fs::write(&script, SECOND_INTERPRETER).unwrap();
    let has_second = |interpreter: &Interpreter| {
        let program = "import sys; sys.exit(sys.version_info < (3, 8))";
        interpreter.command().args(["-c", program]).status().is_ok_and(|status| status.success())
    };
    let interpreters = pythons().into_iter().filter(has_second).collect();
    for (interpreter, samples) in sampled(test, interpreters, &script, false).unwrap_or_default() {
        let has_function = |sample: &Sample| functions(sample).iter().any(|name| name.ends_with("_second"));
        let second: Vec<Sample> = samples.into_iter().filter(has_function).collect();
        let is_whole =
            |sample: &Sample| functions(sample).starts_with(&["spin_in_second", "main_of_second", "<module>"]);
        assert_whole(&interpreter, &second, |sample| sample.times.len() as u64, is_whole);
    }
}

/// Program with two busy threads.
const TWO_THREADS: &str = "
import threading, time

def spin(until):
    total = 0
    while time.time() < until:
        for i in range(2000):
            total += i * i

def work(until):
    spin(until)

threads = [threading.Thread(target=work, args=(time.time() + 10,)) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
";

/// Length of a window of time in which threads may run at once, in nanoseconds.
const WINDOW_NS: u64 = 250_000_000;

/// Returns the largest number of CPUs that were busy with `samples` in a window of time.
fn most_cpus(samples: &[Sample]) -> f64 {
    let mut in_window = HashMap::<u64, u64>::new();
    for sample in samples {
        let cpu_ns = sample.period_ns.unsigned_abs();
        sample.times.iter().for_each(|time| *in_window.entry(time / WINDOW_NS).or_default() += cpu_ns);
    }
    in_window.into_values().max().unwrap_or_default() as f64 / WINDOW_NS as f64
}

#[test]
fn functions_of_threads_that_run_at_once_are_on_the_stack() {
    let test = "functions_of_threads_that_run_at_once_are_on_the_stack";
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("two_threads.py");
    std::fs::write(&script, TWO_THREADS).unwrap();
    let has_no_lock = |interpreter: &Interpreter| {
        let program = "import sys; sys.exit(sys._is_gil_enabled())";
        let output = interpreter.command().args(["-c", program]).stderr(Stdio::null()).status();
        output.is_ok_and(|status| status.success())
    };
    let interpreters: Vec<_> = pythons().into_iter().filter(has_no_lock).collect();
    if interpreters.is_empty() || std::thread::available_parallelism().unwrap().get() < 2 {
        return report::skipped(test, "there is no free-threaded Python, or only one CPU");
    }
    // One after the other, because each needs two CPUs.
    for interpreter in interpreters {
        let Some(sampled) = sampled(test, vec![interpreter], &script, false) else { return };
        for (interpreter, samples) in sampled {
            let has_loop = |sample: &Sample| sample.frames.iter().any(|frame| frame.name == LOOP);
            let running: Vec<Sample> = samples.into_iter().filter(has_loop).collect();
            let threads: HashSet<_> = running.iter().map(|sample| &sample.attributes["thread.id"]).collect();
            assert_eq!(threads.len(), 2, "{interpreter}");
            let is_whole = |sample: &Sample| {
                let plain = functions(sample).into_iter().map(|name| name.rsplit('.').next().unwrap_or(name));
                // Each thread has its own copy of the instructions, but all have the same lines.
                let lines: Vec<i64> =
                    sample.frames.iter().filter(|it| it.kind == "cpython").map(|it| it.line).collect();
                plain.eq(["spin", "work", "run", "_bootstrap_inner", "_bootstrap"])
                    && matches!(lines[..], [6..=8, 11, ..])
            };
            assert_whole(&interpreter, &running, |sample| sample.times.len() as u64, is_whole);
            let cpus = most_cpus(&running);
            report::note(&format!("{interpreter}: threads were busy on up to {cpus:.2} CPUs at once"));
            // With the interpreter's lock, it would be one CPU at most.
            if cpus < 1.5 {
                report::skipped(test, format!("{interpreter}: the host is too busy for two threads at once"));
            }
        }
    }
}
