//! Stacks of stopped Perl programs, compared with Perl's own view of them.
//!
//! The program is stopped at random moments, and the C code of the BPF programs walks its stack. Then the program gets
//! a signal, whose handler runs in a copy of the program, before any further instruction. The handler prints what
//! `caller` says. `VARVE_STOPS` is the number of stops of each interpreter, and `VARVE_UNWIND_SEED` chooses the moments
//! as far as possible.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ebpf::UserFrame;
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::SeedableRng as _;
use testkit::interpreters::{Interpreter, perls};
use testkit::report;

use crate::runtimes::languages::Function;
use crate::runtimes::languages::v8::source::Sources;
use crate::runtimes::memory::ProcessMemory;
use crate::unwind::tests::damage::{below, number};
use crate::unwind::tests::native::child::{Child, mappings};
use crate::unwind::tests::native::kernel::Kernel;

/// Program that is busy in all kinds of functions. Its first argument is the file to which it prints its stack.
const PROGRAM: &str = include_str!("tests/program.pl");

/// A line of a Perl function.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    function: String,
    file: String,
    /// 0 if it is not known.
    line: u32,
}

/// Reads what the program printed, leaf first; `None` if it has not printed the outermost function yet.
fn read_printed(printed: &str) -> Option<Vec<Line>> {
    printed.ends_with("end\n").then_some(())?;
    let lines = printed.lines().filter(|line| *line != "end").map(|line| {
        let [function, file, line] = line.split('\t').collect::<Vec<_>>()[..] else { panic!("{printed}") };
        Line { function: function.to_owned(), file: file.to_owned(), line: line.parse().unwrap() }
    });
    Some(lines.collect())
}

/// A Perl program that can be stopped.
struct Program {
    child: Child,
    kernel: Kernel,
    memory: ProcessMemory,
    printed: PathBuf,
}

impl Program {
    fn start(interpreter: &Interpreter, folder: &Path) -> Self {
        let [script, library, printed] = ["program.pl", "own_view.so", "printed"].map(|name| folder.join(name));
        fs::write(&script, PROGRAM).unwrap();
        compile(&library);
        let own = interpreter.arguments.iter().map(OsString::as_os_str);
        let arguments: Vec<&OsStr> = own.chain([script.as_os_str(), printed.as_os_str()]).collect();
        let mut child = Child::start_preloading(&library, &interpreter.program, &arguments);
        child.run();
        let mut kernel = Kernel::new();
        kernel.run(child.pid, &mappings(child.pid));
        let memory = ProcessMemory::of_file(File::open(format!("/proc/{}/mem", child.pid)).unwrap());
        Self { child, kernel, memory, printed }
    }

    /// Returns the Perl frames of the stopped program, leaf first, and true if some of them follow the native frames.
    fn walk(&mut self) -> (Vec<Line>, bool) {
        self.kernel.set_thread_base(self.child.thread_base());
        let (frames, ..) = self.kernel.sample(&self.child.registers());
        let is_drained = self.check_order(&frames);
        let functions = frames.into_iter().filter_map(|frame| {
            let UserFrame::Function { runtime, address, position, identity } = frame else { return None };
            let layout = self.kernel.runtimes.layout(runtime).unwrap();
            let function = Function::read(&self.memory, &layout, &Sources::default(), (address, position, identity));
            Some(function.map_or_else(
                || Line { function: format!("unknown function at {address:#x}"), file: String::new(), line: 0 },
                |function| {
                    let call = function.calls(&layout, position).remove(0);
                    Line { function: call.function, file: call.file, line: position }
                },
            ))
        });
        (functions.collect(), is_drained)
    }

    /// Checks that functions are on the stack only before a frame of the loop, or after all native frames. Returns true
    /// for the latter.
    fn check_order(&self, frames: &[UserFrame]) -> bool {
        let is_loop = |frame: &UserFrame| match frame {
            UserFrame::File { number, offset } => self.kernel.is_loop(*number, *offset),
            _ => false,
        };
        let is_function = |frame: &UserFrame| matches!(frame, UserFrame::Function { .. });
        let mut runs = frames.windows(2).filter(|pair| is_function(&pair[0]) && !is_function(&pair[1]));
        assert!(runs.all(|pair| is_loop(&pair[1])), "{frames:x?}");
        frames.last().is_some_and(is_function)
    }

    /// Returns the Perl frames that Perl itself sees at the same moment, leaf first; `None` if the copy crashed, which
    /// happens if the program was allocating memory.
    fn own_view(&mut self) -> Option<Vec<Line>> {
        fs::write(&self.printed, "").unwrap();
        self.child.deliver(libc::SIGUSR1);
        self.child.run();
        read_printed(&String::from_utf8_lossy(&fs::read(&self.printed).unwrap()))
    }
}

/// Compiles the library by which a copy of the program prints the stack.
fn compile(library: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/runtimes/languages/perl/tests/own_view.c");
    let mut command = Command::new("gcc");
    command.args(["-shared", "-fPIC", "-O1", "-std=gnu11", "-Wall", "-Werror", "-o"]).args([library, &source]);
    let output = command.output().expect("gcc, which scripts/install-build-tools installs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// True if all lines are equal. The line of a function that has just begun is not known, and Perl takes that of its
/// caller for it.
fn are_equal(walked: &[Line], expected: &[Line]) -> bool {
    let is_equal = |(walked, expected): (&Line, &Line)| {
        walked == expected || (walked.function == expected.function && walked.line == 0)
    };
    let unknown = walked.iter().skip(1).filter(|line| line.line == 0).count();
    unknown == 0 && walked.len() == expected.len() && walked.iter().zip(expected).all(is_equal)
}

/// True if an eval of a text is being entered, and only one of the two stacks has it.
/// Its context is on the stack before all of its fields are written. The others are those of an earlier context: its
/// line, and its operation, by which Perl tells a text from a block.
fn is_entering_eval(walked: &[Line], expected: &[Line]) -> bool {
    let has_one_more = |more: &[Line], fewer: &[Line]| {
        let ([eval, caller, outer @ ..], [leaf, rest @ ..]) = (more, fewer) else { return false };
        let has_a_line = leaf.line == eval.line || leaf.line == caller.line;
        eval.function == "(eval)" && leaf.function == caller.function && has_a_line && rest == outer
    };
    has_one_more(expected, walked) || has_one_more(walked, expected)
}

#[test]
fn an_eval_that_is_being_entered_may_be_on_one_of_the_stacks() {
    let line = |function: &str, line| Line { function: function.into(), file: String::new(), line };
    let with = [line("(eval)", 116), line("main::in_text", 110), line("<toplevel>", 168)];
    let without = [line("main::in_text", 116), line("<toplevel>", 168)];
    assert!(is_entering_eval(&with, &without) && is_entering_eval(&without, &with));
    assert!(!is_entering_eval(&with, &with[1..2]) && !is_entering_eval(&with[1..], &without));
    assert!(!is_entering_eval(&with, &[line("main::catches", 116), line("<toplevel>", 168)]));
    assert!(!is_entering_eval(&with, &[line("main::in_text", 117), line("<toplevel>", 168)]));
}

#[test]
fn stacks_of_stopped_perls_are_those_that_perl_sees() {
    let test = "stacks_of_stopped_perls_are_those_that_perl_sees";
    let (stops, seed) = (number("VARVE_STOPS", 100), number("VARVE_UNWIND_SEED", 1));
    let interpreters: Vec<_> = perls().into_iter().filter(|perl| !perl.is_for_musl()).collect();
    if interpreters.is_empty() {
        return report::skipped(test, "there is no Perl 5");
    }
    let mut random = SplitMix64::seed_from_u64(seed);
    for interpreter in interpreters {
        let folder = tempfile::tempdir().unwrap();
        let mut program = Program::start(&interpreter, folder.path());
        let (mut frames, mut unseen, mut drained, mut without_line, mut entered) = (0, 0, 0, 0, 0);
        for stop in 0..stops {
            program.child.run_for(Duration::from_micros(1 + below(&mut random, 3000) as u64));
            let (walked, is_drained) = program.walk();
            let Some(expected) = program.own_view() else {
                unseen += 1;
                continue;
            };
            let is_entered = is_entering_eval(&walked, &expected);
            let is_equal = is_entered || are_equal(&walked, &expected);
            assert!(is_equal, "{interpreter}: stop {stop}, seed {seed}: {walked:#?} instead of {expected:#?}");
            entered += u64::from(is_entered);
            frames += walked.len() as u64;
            drained += u64::from(is_drained);
            without_line += u64::from(walked[0].line == 0);
        }
        assert!(entered * 100 <= stops, "{interpreter}: {entered} evals are being entered");
        // Perl cannot show its own view while it allocates memory: at about 4 % of the stops.
        assert!(unseen * 8 <= stops, "{interpreter}: {unseen} stacks are unseen");
        assert!(drained * 100 <= stops, "{interpreter}: the functions of {drained} stacks follow the native frames");
        assert!(without_line * 4 <= stops, "{interpreter}: {without_line} leaves have no line");
        let equal = stops - unseen - entered;
        report::note(&format!(
            "{interpreter}: {equal} stacks with {frames} functions are equal, {drained} drained, {without_line} new, \
             {entered} entering an eval"
        ));
    }
}
