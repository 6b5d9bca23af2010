//! Stacks of stopped Ruby programs, compared with Ruby's own view of them.
//!
//! Ruby runs the handler of a signal later than the signal comes. The program therefore stops itself, at many points
//! that it chooses by chance, after it has printed what `caller` says. It is also stopped at random moments, at which
//! all functions must have names. `VARVE_STOPS` is the number of stops of each kind, and `VARVE_UNWIND_SEED` chooses
//! them.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ebpf::{UserEnd, UserFrame};
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::SeedableRng as _;
use testkit::interpreters::{Interpreter, rubies, rubies_that_compile};
use testkit::report;

use crate::runtimes::languages::Function;
use crate::runtimes::languages::ruby::function::Function as RubyFunction;
use crate::runtimes::languages::v8::source::Sources;
use crate::runtimes::memory::ProcessMemory;
use crate::unwind::tests::damage::{below, number};
use crate::unwind::tests::native::child::{Child, mappings};
use crate::unwind::tests::native::kernel::Kernel;

const PROGRAM: &str = include_str!("tests/program.rb");

/// Methods that the program calls and that are written in C in some versions. `caller` shows them with the place of
/// their caller, but they have none. In other versions, they are written in Ruby, in a file whose name begins with `<`.
const C_METHODS: [&str; 16] = [
    "times",
    "inject",
    "each",
    "map",
    "sort",
    "sort_by",
    "each_pair",
    "catch",
    "eval",
    "class_eval",
    "instance_eval",
    "next",
    "resume",
    "new",
    "loop",
    "call",
];

/// The stack of a stopped program.
struct Walked {
    /// Ruby functions, leaf first, each as `file:line:in function`.
    functions: Vec<String>,
    /// True if functions follow the last native frame.
    is_drained: bool,
    end: UserEnd,
}

/// A Ruby program that can be stopped.
struct Program {
    child: Child,
    kernel: Kernel,
    memory: ProcessMemory,
    printed: PathBuf,
}

impl Program {
    fn start(interpreter: &Interpreter, folder: &Path, seed: u64) -> Self {
        let (script, printed) = (folder.join("program.rb"), folder.join("printed"));
        fs::write(&script, PROGRAM).unwrap();
        let own = interpreter.arguments.iter().map(OsString::as_os_str);
        let seed = OsString::from(seed.to_string());
        let arguments: Vec<&OsStr> = own.chain([script.as_os_str(), printed.as_os_str(), &seed]).collect();
        let mut child = Child::start_with(&interpreter.program, &arguments);
        child.run();
        let memory = ProcessMemory::of_file(File::open(format!("/proc/{}/mem", child.pid)).unwrap());
        Self { child, kernel: Kernel::new(), memory, printed }
    }

    /// Walks the stack of the stopped program.
    fn walk(&mut self) -> Walked {
        // A fiber may have got a new stack.
        self.kernel.run(self.child.pid, &mappings(self.child.pid));
        self.kernel.set_thread_base(self.child.thread_base());
        let (frames, end, _) = self.kernel.sample(&self.child.registers());
        let is_drained = self.check_order(&frames);
        let functions = frames.into_iter().filter_map(|frame| {
            let UserFrame::Function { runtime, address, position, identity } = frame else { return None };
            let layout = self.kernel.runtimes.layout(runtime).unwrap();
            let function = Function::read(&self.memory, &layout, &Sources::default(), (address, position, identity));
            Some(function.map_or_else(
                || format!("unknown function at {address:#x}"),
                |function| {
                    let call = function.calls(&layout, position).remove(0);
                    format!("{}:{}:in {}", call.file, call.line, call.function)
                },
            ))
        });
        Walked { functions: functions.collect(), is_drained, end }
    }

    /// Checks that functions are on the stack only before a frame of the loop, or after all native frames. Returns true
    /// for the latter, unless all of them are methods that are written in C: a fiber may begin with one.
    fn check_order(&self, frames: &[UserFrame]) -> bool {
        let is_loop = |frame: &UserFrame| match frame {
            UserFrame::File { number, offset } => self.kernel.is_loop(*number, *offset),
            _ => false,
        };
        let is_function = |frame: &UserFrame| matches!(frame, UserFrame::Function { .. });
        let mut runs = frames.windows(2).filter(|pair| is_function(&pair[0]) && !is_function(&pair[1]));
        assert!(runs.all(|pair| is_loop(&pair[1])), "{frames:x?}");
        let last = frames.iter().rev().take_while(|frame| is_function(frame));
        last.into_iter().any(
            |frame| matches!(frame, UserFrame::Function { address, .. } if !RubyFunction::is_of_position(*address)),
        )
    }

    /// Returns what the program printed before it stopped, in the form of [`Program::walk`].
    fn printed(&self) -> Vec<String> {
        let printed = fs::read_to_string(&self.printed).unwrap();
        let lines = printed.lines().map(|line| {
            let (place, function) = line.split_once(":in ").unwrap_or((line, ""));
            (place, without_class(function.trim_matches(['`', '\''])))
        });
        let is_in_c = |place: &str, function: &str| !place.starts_with('<') && C_METHODS.contains(&function);
        lines
            .map(|(place, function)| match is_in_c(place, &function) {
                true => format!(":0:in {function}"),
                false => format!("{place}:in {function}"),
            })
            .collect()
    }
}

/// Returns a function without the class that Ruby 3.4 shows: `block in f` for `block in Class#f`.
fn without_class(function: &str) -> String {
    let (before, name) = function.rsplit_once(' ').map_or(("", function), |(before, name)| (before, name));
    let name = name.rsplit_once(['#', '.']).map_or(name, |(_, name)| name);
    if before.is_empty() { name.to_owned() } else { format!("{before} {name}") }
}

/// Merges the code of `rescue` and `ensure` with its function, as Ruby 3.4 does.
fn without_parts(walked: &[String]) -> Vec<String> {
    let mut merged = Vec::new();
    let mut is_part = false;
    for line in walked {
        let whole = line.replace(":in rescue in ", ":in ").replace(":in ensure in ", ":in ");
        let has_part = whole != *line;
        if !is_part {
            merged.push(whole);
        }
        is_part = has_part;
    }
    merged
}

/// Returns all versions of Ruby, without and with their compiler.
fn interpreters() -> Vec<(String, Interpreter)> {
    let compiling = rubies_that_compile().into_iter().map(|ruby| (format!("{ruby} --yjit"), ruby));
    rubies().into_iter().map(|ruby| (ruby.to_string(), ruby)).chain(compiling).collect()
}

#[test]
fn stacks_of_stopped_rubies_are_those_that_ruby_sees() {
    let test = "stacks_of_stopped_rubies_are_those_that_ruby_sees";
    let (stops, seed) = (number("VARVE_STOPS", 100), number("VARVE_UNWIND_SEED", 1));
    let interpreters = interpreters();
    if interpreters.is_empty() {
        return report::skipped(test, "there is no Ruby");
    }
    for (name, interpreter) in interpreters {
        let folder = tempfile::tempdir().unwrap();
        let mut program = Program::start(&interpreter, folder.path(), seed);
        let (mut frames, mut drained) = (0, 0);
        for stop in 0..stops {
            let Walked { functions: mut walked, is_drained, .. } = program.walk();
            // The program stops itself by a signal.
            assert_eq!(walked.remove(0), ":0:in kill", "{name}: stop {stop}");
            let printed = program.printed();
            if fs::read_to_string(&program.printed).unwrap().contains(":in '") {
                walked = without_parts(&walked);
            }
            assert_eq!(walked, printed, "{name}: stop {stop}, VARVE_UNWIND_SEED={seed}");
            frames += walked.len();
            drained += u64::from(is_drained);
            program.child.run();
        }
        report::note(&format!("{name}: {stops} stacks with {frames} functions are equal, {drained} drained"));
    }
}

#[test]
fn functions_of_rubies_that_are_stopped_at_random_have_names() {
    let test = "functions_of_rubies_that_are_stopped_at_random_have_names";
    let (stops, seed) = (number("VARVE_STOPS", 100), number("VARVE_UNWIND_SEED", 1));
    let mut random = SplitMix64::seed_from_u64(seed);
    let interpreters = interpreters();
    if interpreters.is_empty() {
        return report::skipped(test, "there is no Ruby");
    }
    for (name, interpreter) in interpreters {
        let folder = tempfile::tempdir().unwrap();
        let mut program = Program::start(&interpreter, folder.path(), seed);
        let (mut frames, mut drained, mut empty, mut broken) = (0, 0, 0, 0);
        for stop in 0..stops {
            program.child.run_for(Duration::from_micros(1 + below(&mut random, 2000) as u64));
            let Walked { functions, is_drained, end } = program.walk();
            broken += u64::from(end != UserEnd::Root);
            let Some(last) = functions.iter().rposition(|function| !function.starts_with(":0:")) else {
                // The stack of a fiber begins. While Ruby changes to the fiber, the stack has no root.
                empty += 1;
                continue;
            };
            let is_known = functions.iter().all(|function| function.contains(":in "));
            // The stack of a fiber ends at the fiber's block, or at methods in C that call it.
            let is_main = functions[last].ends_with("<main>") && last + 1 == functions.len();
            let last = is_main || functions[last].contains("in enumerated");
            assert!(is_known && last, "{name}: stop {stop}, seed {seed}: {functions:#?}");
            frames += functions.len();
            drained += u64::from(is_drained);
        }
        assert!(empty * 10 <= stops, "{name}: {empty} stacks are empty");
        assert!(drained * 50 <= stops, "{name}: the functions of {drained} stacks follow the native frames");
        assert!(broken * 50 <= stops, "{name}: {broken} stacks have no root");
        report::note(&format!("{name}: {stops} stacks have {frames} functions, {drained} drained, {broken} broken"));
    }
}
