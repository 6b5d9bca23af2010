//! Stacks of stopped Node.js programs, compared with their own view of them.
//!
//! The program stops at places that it chooses at random, after it has written its stack. It is also stopped at random
//! moments, where nothing is known of its stack but which functions call each other. `VARVE_STOPS` is the number of
//! stops of each kind, and `VARVE_UNWIND_SEED` chooses them as far as possible.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ebpf::{UserEnd, UserFrame};
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::SeedableRng as _;
use testkit::interpreters::{Interpreter, nodes};
use testkit::report;

use super::code::MachineCode;
use super::heap::Heap;
use super::source::Sources;
use crate::names::location::Call;
use crate::runtimes::languages::{Function, Layout};
use crate::runtimes::memory::ProcessMemory;
use crate::unwind::tests::damage::{below, number};
use crate::unwind::tests::native::child::{Child, mappings};
use crate::unwind::tests::native::kernel::Kernel;

const PROGRAM: &str = include_str!("tests/program.js");
/// Kinds of code, that of the interpreter and that of the three compilers, each with the first version of V8 whose
/// Node.js uses it without an option.
const TIERS: [(&str, (u32, u32)); 4] =
    [("Ignition", (0, 0)), ("Sparkplug", (9, 4)), ("Maglev", (13, 6)), ("TurboFan", (0, 0))];

/// A line of a function.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    /// Last part of the name; empty if V8 has none for the function.
    function: String,
    file: String,
    line: u32,
    /// True for the call of an inlined function. In copies of a loop's body, V8 itself has the line of the loop.
    calls_inlined: bool,
}

impl Line {
    fn new(function: &str, file: &str, line: u32) -> Self {
        let plain = function.rsplit('.').next().unwrap_or_default();
        let plain = plain.strip_prefix("new ").unwrap_or(plain);
        let plain = if ["(anonymous)", "<anonymous>"].contains(&plain) { "" } else { plain };
        Self { function: plain.to_owned(), file: file.to_owned(), line, calls_inlined: false }
    }

    /// True if this line, which the program wrote, is the line that was walked. `Error().stack` has no name for a
    /// function that is assigned to a property, and calls others `eval`. In Node.js 22 and later, functions of its own
    /// that are assigned to properties have no name until `Error().stack` finds the property. Methods with computed
    /// names, such as `[Symbol.toPrimitive]`, have no name of their own.
    fn is(&self, walked: &Self) -> bool {
        let has_name = !["", "eval"].contains(&self.function.as_str());
        let is_own = self.file.starts_with("node:") && walked.function.is_empty();
        let is_computed = self.function.ends_with(']') && walked.function.is_empty();
        let is_named = !has_name || is_own || is_computed || self.function == walked.function;
        is_named && self.file == walked.file && (self.line == walked.line || walked.calls_inlined)
    }
}

/// Reads what the program wrote, leaf first, without builtin functions, which have no file.
fn read_written(written: &str) -> Vec<Line> {
    let lines = written.lines().filter_map(|line| line.strip_prefix("    at "));
    let lines = lines.filter(|line| !line.starts_with("async "));
    lines
        .filter_map(|line| {
            let (function, place) = match line.split_once(" (") {
                Some((function, place)) => (function, place.strip_suffix(')')?),
                None => ("", line),
            };
            let function = function.split(" [as ").next()?;
            let (place, _column) = place.rsplit_once(':')?;
            let (file, line) = place.rsplit_once(':')?;
            let file = if file.starts_with("eval at ") { "(eval)" } else { file };
            Some(Line::new(function, file, line.parse().ok()?))
        })
        .collect()
}

/// A program that can be stopped.
struct Program {
    child: Child,
    kernel: Kernel,
    memory: ProcessMemory,
    sources: Sources,
    written: PathBuf,
    /// Number of frames in code of each of [`TIERS`], and the version of V8.
    tiers: [usize; TIERS.len()],
    version: (u32, u32),
}

impl Program {
    fn start(interpreter: &Interpreter, folder: &Path, seed: u64) -> Self {
        let (script, written) = (folder.join("program.js"), folder.join("written"));
        fs::write(&script, PROGRAM).unwrap();
        let seed = seed.to_string();
        let own = interpreter.arguments.iter().map(|argument| argument.as_os_str());
        let arguments: Vec<&OsStr> = own.chain([script.as_os_str(), written.as_os_str(), OsStr::new(&seed)]).collect();
        let mut child = Child::start_with(&interpreter.program, &arguments);
        child.run();
        let memory = ProcessMemory::of_file(File::open(format!("/proc/{}/mem", child.pid)).unwrap());
        let (kernel, sources) = (Kernel::new(), Sources::default());
        Self { child, kernel, memory, sources, written, tiers: [0; TIERS.len()], version: (0, 0) }
    }

    /// True if code of each tier that this version uses was on a stack.
    fn has_all_tiers(&self) -> bool {
        TIERS.iter().zip(self.tiers).all(|((_, since), frames)| self.version < *since || 0 < frames)
    }

    /// Returns the functions of the stopped program that have a file, leaf first, and the end of the stack.
    fn walk(&mut self) -> (Vec<Line>, UserEnd) {
        self.kernel.run(self.child.pid, &mappings(self.child.pid));
        let registers = self.child.registers();
        // The first sample of a program may not know yet that the program runs V8.
        self.kernel.sample(&registers);
        let (frames, end, _) = self.kernel.sample(&registers);
        let Self { kernel, memory, sources, tiers, version, .. } = self;
        let functions = frames.into_iter().flat_map(|frame| {
            let UserFrame::Function { runtime, address, position, identity } = frame else { return Vec::new() };
            let layout = kernel.runtimes.layout(runtime).unwrap();
            if let Layout::V8(v8) = &*layout {
                *version = v8.form.version;
                let tier = tier(&Heap { memory, layout: v8 }, (address, position, identity));
                tier.into_iter().for_each(|tier| tiers[tier] += 1);
            }
            let function = Function::read(memory, &layout, &sources.for_batch(), (address, position, identity));
            let Some(function) = function else {
                return vec![Line::new(&format!("unknown function at {address:#x}"), "?", 0)];
            };
            let calls = function.calls(&layout, position).into_iter();
            let line = |call: Call| Line::new(&call.function, &call.file, call.line);
            calls.map(line).enumerate().map(|(at, line)| Line { calls_inlined: 0 < at, ..line }).collect()
        });
        (functions.filter(|line| !line.file.is_empty()).collect(), end)
    }
}

/// Returns the index in [`TIERS`] of the code of a frame, which BPF has encoded; `None` if it is of no function.
fn tier(heap: &Heap<'_>, (address, position, identity): (u64, u32, u32)) -> Option<usize> {
    let form = &heap.layout.form.code;
    match address & 7 {
        1 => Some(0),
        2 => {
            let pc = u64::from(identity >> 17) << 32 | u64::from(position);
            let code = MachineCode::find(heap, pc)?;
            let of_compilers = [form.baseline, form.maglev, code.is_optimized(form).then_some(code.kind)];
            of_compilers.iter().position(|kind| *kind == Some(code.kind)).map(|at| at + 1)
        }
        _ => None,
    }
}

/// Functions of the program, each with its callers. All others may be called by any, and have no name or call none of
/// these.
const CALLERS: [(&str, &[&str]); 26] = [
    ("report", &["visit"]),
    ("add", &["inlined", "scaled", "later", ""]),
    ("inlined", &["sum"]),
    ("sum", &["round", "descend", "later"]),
    ("Shape", &["of", "Square", "texts", ""]),
    ("get area", &["of", "round"]),
    ("set area", &["Square"]),
    ("scaled", &["get area", "scaled"]),
    ("of", &["round"]),
    ("toJSON", &["texts"]),
    ("Square", &["round", "texts"]),
    ("checked", &["Shape", "set area", "toJSON"]),
    ("sorted", &["round"]),
    ("texts", &["round"]),
    ("numbers", &["generated"]),
    ("generated", &["round"]),
    ("descend", &["descend", "round"]),
    ("caught", &["round"]),
    ("get", &["b"]),
    ("byEval", &[""]),
    ("inVm", &["spread"]),
    ("withUrl", &["b"]),
    ("b", &["target"]),
    ("applied", &["spread"]),
    ("spread", &["many"]),
    ("many", &["round"]),
];

/// True if each function is called by one that may call it, and the outermost ones are those of a program that runs.
fn is_possible(walked: &[Line]) -> bool {
    walked.windows(2).all(|pair| {
        let callers = CALLERS.iter().find(|(callee, _)| *callee == pair[0].function);
        let is_node = |line: &Line| line.file.starts_with("node:") || line.file.starts_with("internal/");
        is_node(&pair[0]) || is_node(&pair[1]) || callers.is_none_or(|(_, of)| of.contains(&&*pair[1].function))
    })
}

/// Returns the walked functions from the one on that wrote the stack.
fn from_report(walked: Vec<Line>) -> Vec<Line> {
    walked.into_iter().skip_while(|line| line.function != "report").collect()
}

/// Compares the stacks of one Node.js at so many stops, or at more until all tiers were seen. Returns the figures as a
/// text.
fn check(interpreter: &Interpreter, stops_min: u64, seed: u64) -> String {
    let folder = tempfile::tempdir().unwrap();
    let mut program = Program::start(interpreter, folder.path(), seed);
    let (mut functions, mut calls, mut wrong, mut impossible) = (0, 0, 0, Vec::new());
    let mut random = SplitMix64::seed_from_u64(seed);
    let mut stops = 0;
    while stops < stops_min || (!program.has_all_tiers() && stops < stops_min * 10) {
        let (walked, _) = program.walk();
        let walked = from_report(walked);
        let written = read_written(&fs::read_to_string(&program.written).unwrap());
        let are_equal = walked.len() == written.len() && written.iter().zip(&walked).all(|(own, it)| own.is(it));
        assert!(are_equal, "{interpreter}: stop {stops}: {walked:#?}, not {written:#?}");
        functions += walked.len();
        calls += walked.iter().filter(|line| line.calls_inlined).count();
        wrong += written.iter().zip(&walked).filter(|(own, it)| own.line != it.line).count();
        program.child.run_for(Duration::from_micros(1 + below(&mut random, 3000) as u64));
        let (walked, end) = program.walk();
        if !is_possible(&walked) || end != UserEnd::Root {
            impossible.push((end, walked));
        }
        stops += 1;
        program.child.run();
    }
    assert!(wrong <= calls / 5 + 3, "{interpreter}: {wrong} of {calls} lines of inlined calls are wrong");
    assert!(impossible.len() as u64 * 50 <= stops, "{interpreter}: {impossible:#?}");
    let tiers: Vec<_> = TIERS.iter().zip(program.tiers).map(|((tier, _), frames)| format!("{tier} {frames}")).collect();
    assert!(program.has_all_tiers(), "{interpreter}: {tiers:?}");
    format!(
        "{interpreter}: {stops} stacks with {functions} functions are equal, but {wrong} of {calls} lines of calls \
         that V8 inlined. {} of {stops} other stacks have calls that the program does not make. Frames: {}.",
        impossible.len(),
        tiers.join(", ")
    )
}

#[test]
fn stacks_of_stopped_nodes_are_those_that_v8_sees() {
    let test = "stacks_of_stopped_nodes_are_those_that_v8_sees";
    let (stops, seed) = (number("VARVE_STOPS", 50), number("VARVE_UNWIND_SEED", 1));
    let nodes = nodes();
    if nodes.is_empty() {
        return report::skipped(test, "there is no Node.js");
    }
    // Most of the time is that of the tables, and these are made by one thread each.
    std::thread::scope(|scope| {
        let checks = nodes.iter().map(|interpreter| scope.spawn(move || check(interpreter, stops, seed)));
        let checks: Vec<_> = checks.collect();
        for check in checks {
            report::note(&check.join().unwrap());
        }
    });
}
