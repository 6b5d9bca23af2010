//! Stacks of stopped Python programs, compared with Python's own view of them.
//!
//! The program is stopped at random moments, and the C code of the BPF programs walks its stack. Then the program gets
//! a signal, on which `faulthandler` prints its stack before the program runs any further instruction. `VARVE_STOPS` is
//! the number of stops of each interpreter, and `VARVE_UNWIND_SEED` chooses the moments as far as possible.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ebpf::{UserEnd, UserFrame};
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::SeedableRng as _;
use testkit::interpreters::{Interpreter, pythons};
use testkit::report;

use crate::runtimes::languages::Function;
use crate::runtimes::languages::v8::source::Sources;
use crate::runtimes::memory::ProcessMemory;
use crate::unwind::tests::damage::{below, number};
use crate::unwind::tests::native::child::{Child, mappings};
use crate::unwind::tests::native::kernel::Kernel;

/// Program that is busy in all kinds of functions. Its first argument is the file to which `faulthandler` prints.
const PROGRAM: &str = r#"
import faulthandler, functools, os, signal, sys

faulthandler.register(signal.SIGUSR1, file=open(sys.argv[1], "w"), all_threads=False)

class Shape:
    def __init__(self, width):
        self.width = width

    @property
    def area(self):
        return sum(
            self.width * part
            for part in range(self.width)
        )

    def __lt__(self, other):
        return self.area < other.area

    @staticmethod
    def of(width):
        return Shape(width)

def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)

def numbers(n):
    for i in range(n):
        try:
            if i % 7 == 3:
                raise ValueError(i)
            yield fib(6) + i
        except ValueError as error:
            yield (
                error.args[0] *
                2
            )

def delegate(n):
    yield from numbers(n)

def closure(n):
    def inner(m):
        return n + len([x for x in range(m) if fib(3)])
    return inner

def descend(depth):
    if depth == 0:
        shapes = [Shape.of(width) for width in (9, 3, 7, 5)]
        shapes.sort()
        return functools.reduce(lambda a, b: a + b.area, shapes, 0)
    return descend(depth - 1) + 1

class Number(int):
    def __add__(self, other):
        return Number(int(self) + fib(4))

def main():
    os.kill(os.getpid(), signal.SIGTRAP)
    while True:
        sum(delegate(20))
        descend(30)
        max(range(8), key=closure(4))
        sum([Number(3), Number(4)], Number(0))
        "".join(map(str, sorted(range(20), key=lambda value: -value)))

main()
"#;

/// Number of bytes of the stack in which return addresses are replaced.
const STACK_BYTES: usize = 64 << 10;
/// Time in which `faulthandler` prints a stack that is valid.
const PRINTED_WITHIN: Duration = Duration::from_secs(3);
/// An address at which no code is.
const UNUSED: u64 = 0x1234_5678_9abc;

/// A line of a Python function.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    file: String,
    line: u32,
    function: String,
}

/// Reads what `faulthandler` printed, leaf first; `None` if it has not printed the outermost function yet.
fn read_printed(printed: &str) -> Option<Vec<Line>> {
    let mut lines = Vec::new();
    // Python 3.12 also prints frames that are below the first one of a loop, and have no function.
    for line in printed.lines().filter(|line| line.starts_with("  File ") && !line.contains("<shim>")) {
        let (file, rest) = line.strip_prefix("  File \"")?.split_once("\", line ")?;
        let (number, function) = rest.split_once(" in ")?;
        // An instruction that the compiler added has no line.
        let line = if number == "???" { 0 } else { number.parse().ok()? };
        lines.push(Line { file: file.to_owned(), line, function: function.to_owned() });
    }
    lines.last().filter(|line| line.function == "<module>")?;
    Some(lines)
}

/// A Python program that can be stopped.
struct Program {
    child: Child,
    kernel: Kernel,
    memory: ProcessMemory,
    printed: PathBuf,
}

impl Program {
    fn start(interpreter: &Interpreter, folder: &Path) -> Self {
        let (script, printed) = (folder.join("program.py"), folder.join("printed"));
        fs::write(&script, PROGRAM).unwrap();
        let own = interpreter.arguments.iter().map(OsString::as_os_str);
        let arguments: Vec<&OsStr> = own.chain([script.as_os_str(), printed.as_os_str()]).collect();
        let mut child = Child::start_with(&interpreter.program, &arguments);
        child.run();
        let mut kernel = Kernel::new();
        kernel.run(child.pid, &mappings(child.pid));
        let memory = ProcessMemory::of_file(File::open(format!("/proc/{}/mem", child.pid)).unwrap());
        Self { child, kernel, memory, printed }
    }

    /// Returns all frames of the stopped program, and its Python functions, leaf first.
    fn walk(&mut self) -> (Vec<UserFrame>, Vec<Line>) {
        self.kernel.set_thread_base(self.child.thread_base());
        let (frames, ..) = self.kernel.sample(&self.child.registers());
        let Self { kernel, memory, .. } = self;
        let functions = frames.iter().filter_map(|frame| {
            let &UserFrame::Function { runtime, address, position, identity } = frame else { return None };
            let layout = kernel.runtimes.layout(runtime).unwrap();
            let function = Function::read(memory, &layout, &Sources::default(), (address, position, identity));
            Some(function.map_or_else(
                || Line { file: String::new(), line: 0, function: format!("unknown function at {address:#x}") },
                |function| {
                    let [call] = function.calls(&layout, position).try_into().unwrap();
                    let function = call.function.rsplit('.').next().unwrap_or_default().to_owned();
                    Line { file: call.file, line: call.line, function }
                },
            ))
        });
        let functions = functions.collect();
        (frames, functions)
    }

    /// Checks that each frame of the interpreter's loop follows a function that this loop runs. The innermost loop has
    /// none after its function has returned. It has none yet when it begins: the functions are then those of the next
    /// loops, and the outermost loop has none.
    fn check_order(&self, frames: &[UserFrame]) {
        let is_loop = |frame: &UserFrame| match frame {
            UserFrame::File { number, offset } => self.kernel.is_loop(*number, *offset),
            _ => false,
        };
        let is_function = |frame: &UserFrame| matches!(frame, UserFrame::Function { .. });
        let loops: Vec<bool> = (0..frames.len())
            .filter(|at| is_loop(&frames[*at]))
            .map(|at| at.checked_sub(1).is_some_and(|before| is_function(&frames[before])))
            .collect();
        assert!(!loops.is_empty(), "no loop: {frames:x?}");
        let inner = loops.get(1..loops.len() - 1).unwrap_or_default();
        assert!(inner.iter().all(|follows| *follows), "{frames:x?}");
        // All other functions would be between other frames.
        let runs = frames.windows(2).filter(|pair| is_function(&pair[0]) && !is_function(&pair[1]));
        assert!(runs.clone().all(|pair| is_loop(&pair[1])), "{frames:x?}");
    }

    /// Returns the Python frames that Python itself sees at the same moment, leaf first; `None` if the program crashed,
    /// or if `faulthandler` says that a frame is not valid or follows a cycle of frames.
    fn own_view(&mut self) -> Option<Vec<Line>> {
        fs::write(&self.printed, "").unwrap();
        self.child.deliver(libc::SIGUSR1);
        let began = Instant::now();
        loop {
            if !self.child.try_run_for(Duration::from_micros(200)) {
                return None;
            }
            // The program appends to the file at the position that it had before the file was emptied.
            let printed = fs::read(&self.printed).unwrap();
            let printed = String::from_utf8_lossy(&printed);
            let printed = printed.trim_matches('\0');
            if let Some(lines) = read_printed(printed) {
                return Some(lines);
            }
            if printed.contains("<invalid frame>") || PRINTED_WITHIN < began.elapsed() {
                return None;
            }
        }
    }
}

#[test]
fn stacks_of_stopped_pythons_are_those_that_python_sees() {
    let test = "stacks_of_stopped_pythons_are_those_that_python_sees";
    let (stops, seed) = (number("VARVE_STOPS", 100), number("VARVE_UNWIND_SEED", 1));
    let interpreters = pythons();
    if interpreters.is_empty() {
        return report::skipped(test, "there is no Python 3");
    }
    let mut random = SplitMix64::seed_from_u64(seed);
    for interpreter in interpreters {
        let folder = tempfile::tempdir().unwrap();
        let mut program = Program::start(&interpreter, folder.path());
        let (mut frames, mut unseen) = (0, 0);
        for stop in 0..stops {
            program.child.run_for(Duration::from_micros(1 + below(&mut random, 3000) as u64));
            let (all, walked) = program.walk();
            let Some(expected) = program.own_view() else {
                // `faulthandler` reads a frame that is being removed, or that is not written yet. That of Python 3.12
                // crashes.
                unseen += 1;
                program = Program::start(&interpreter, folder.path());
                continue;
            };
            program.check_order(&all);
            assert_eq!(walked, expected, "{interpreter}: stop {stop}, VARVE_UNWIND_SEED={seed}");
            frames += walked.len();
        }
        assert!(unseen * 10 <= stops, "{interpreter}: {unseen} stacks are unseen");
        report::note(&format!("{interpreter}: {} stacks with {frames} functions are equal", stops - unseen));
    }
}

/// Replaces the words of the program's stack that have a value by another one.
fn replace_on_stack(program: &Program, from: u64, to: u64) {
    let start = program.child.stack_pointer();
    let memory = File::options().read(true).write(true).open(format!("/proc/{}/mem", program.child.pid)).unwrap();
    let mut stack = vec![0; STACK_BYTES];
    // The stack may end before.
    let read = memory.read_at(&mut stack, start).unwrap();
    for (at, word) in (start..).step_by(8).zip(stack[..read].as_chunks::<8>().0) {
        if u64::from_ne_bytes(*word) == from {
            memory.write_all_at(&to.to_ne_bytes(), at).unwrap();
        }
    }
}

#[test]
fn functions_are_on_the_stack_if_the_native_frames_end_early() {
    let test = "functions_are_on_the_stack_if_the_native_frames_end_early";
    let interpreters = pythons();
    if interpreters.is_empty() {
        return report::skipped(test, "there is no Python 3");
    }
    for interpreter in interpreters {
        let folder = tempfile::tempdir().unwrap();
        let mut program = Program::start(&interpreter, folder.path());
        let is_function = |frame: &UserFrame| matches!(frame, UserFrame::Function { .. });
        let mut checked = 0;
        for _ in 0..100 {
            program.child.run_for(Duration::from_micros(500));
            program.kernel.set_thread_base(program.child.thread_base());
            let (frames, ..) = program.kernel.sample(&program.child.registers());
            let first_loop = frames
                .iter()
                .position(is_function)
                .and_then(|first| Some(first + frames[first..].iter().position(|frame| !is_function(frame))?));
            let Some([caller, after @ ..]) = first_loop.and_then(|at| frames.get(at + 1..)) else { continue };
            if is_function(caller) || !after.iter().any(is_function) {
                continue;
            }
            // The frame's return address leads nowhere for a moment.
            let address = program.kernel.address(*caller) + 1;
            replace_on_stack(&program, address, UNUSED);
            let (short, end, _) = program.kernel.sample(&program.child.registers());
            replace_on_stack(&program, UNUSED, address);
            let native = first_loop.unwrap_or_default() + 1;
            if !short.starts_with(&frames[..native]) {
                // A frame closer to the leaf has the same return address.
                continue;
            }
            let functions = |frames: &[UserFrame]| frames.iter().copied().filter(is_function).collect::<Vec<_>>();
            assert_eq!(end, UserEnd::Broken, "{interpreter}");
            assert_eq!(functions(&short), functions(&frames), "{interpreter}");
            assert!(short[native..].iter().all(is_function), "{interpreter}: {short:x?}");
            checked += 1;
            if checked == 5 {
                break;
            }
        }
        assert_eq!(checked, 5, "{interpreter}");
    }
}
