//! Stacks of stopped PHP programs, compared with PHP's own view of them.
//!
//! The program is stopped at random moments, and the C code of the BPF programs walks its stack. Then the program gets
//! a signal, on which a library that the test has loaded into it starts a child. The child calls `debug_backtrace`, so
//! PHP sees the stack of that moment. `VARVE_STOPS` is the number of stops of each interpreter, and `VARVE_UNWIND_SEED`
//! chooses the moments as far as possible.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use ebpf::UserFrame;
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::SeedableRng as _;
use testkit::interpreters::{Interpreter, phps, phps_with_cache};
use testkit::report;

use super::recognise::recognise;
use crate::runtimes::languages::Function;
use crate::runtimes::languages::v8::source::Sources;
use crate::runtimes::memory::ProcessMemory;
use crate::unwind::tests::damage::{below, number};
use crate::unwind::tests::native::child::{Child, mappings};
use crate::unwind::tests::native::kernel::Kernel;

/// A line of a PHP function.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    function: String,
    /// Empty for a function that is written in C, which has no line either.
    file: String,
    line: u32,
}

/// The stack that PHP sees.
struct OwnView {
    /// Leaf first.
    lines: Vec<Line>,
    /// False if PHP does not see the line of the innermost function.
    has_place: bool,
}

/// Reads what PHP printed, leaf first: each line has a function, and the place from which it is called. The first one
/// is often the code that printed it.
fn read_printed(printed: &str) -> OwnView {
    let has_place = !printed.starts_with("without place\n");
    let entries: Vec<[&str; 3]> =
        printed.lines().filter_map(|line| line.split('\t').collect::<Vec<_>>().try_into().ok()).collect();
    let mut lines = Vec::new();
    let mut place = (String::new(), 0);
    for (index, [function, file, line]) in entries.into_iter().enumerate() {
        let name = match function {
            "include" | "include_once" | "require" | "require_once" => "{include}",
            "eval" => "{eval}",
            name => name.split('\0').next().unwrap_or_default(),
        };
        if index != 0 || !["{include}", "{eval}", "unknown"].contains(&name) {
            lines.push(Line { function: name.to_owned(), file: place.0, line: place.1 });
        }
        place = (file.to_owned(), line.parse().unwrap());
    }
    // While a fiber is suspended, it has no caller.
    if !place.0.is_empty() {
        lines.push(Line { function: "{main}".to_owned(), file: place.0, line: place.1 });
    }
    OwnView { lines, has_place }
}

/// Compiles the library that prints PHP's view of the stack into the file `printed`.
fn compile(library: &Path, interpreter: &Interpreter, printed: &Path) {
    let php = File::open(interpreter.to_string()).unwrap();
    let (runtime, layout) = recognise(&php).unwrap();
    let [main, other] = &runtime.loops;
    let numbers = [
        ("CURRENT", layout.current.into()),
        ("INSTRUCTIONS", layout.instructions.into()),
        ("COUNT", layout.count.into()),
        ("LOOP_BYTES", main.end - main.start),
        ("OTHER_PART", other.start.wrapping_sub(main.start)),
        ("OTHER_PART_BYTES", other.end - other.start),
    ];
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/runtimes/languages/php/tests/oracle.c");
    let output = Command::new("gcc")
        .args(["-shared", "-fPIC", "-O1", "-std=gnu11", "-Wall", "-Werror"])
        .args(numbers.map(|(name, number)| format!("-D{name}={number}ul")))
        .arg(format!("-DSTACK=\"{}\"", printed.display()))
        .arg("-o")
        .args([library, &source])
        .output()
        .expect("gcc, which scripts/install-build-tools installs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A PHP program that can be stopped.
struct Program {
    child: Child,
    kernel: Kernel,
    memory: ProcessMemory,
    executable: PathBuf,
    printed: PathBuf,
}

impl Program {
    fn start(interpreter: &Interpreter, folder: &Path) -> Self {
        let [script, library, printed] = ["program.php", "oracle.so", "printed"].map(|name| folder.join(name));
        fs::write(&script, include_str!("tests/program.php")).unwrap();
        fs::write(folder.join("included.php"), include_str!("tests/included.php")).unwrap();
        if !library.exists() {
            compile(&library, interpreter, &printed);
        }
        let preload = [OsStr::new("--preload"), library.as_os_str()];
        let own = interpreter.arguments.iter().map(OsString::as_os_str);
        let arguments: Vec<&OsStr> = preload.into_iter().chain(own).chain([script.as_os_str()]).collect();
        let mut child = Child::start_with(&interpreter.program, &arguments);
        child.run();
        let kernel = Kernel::new();
        let executable = interpreter.to_string().into();
        let memory = ProcessMemory::of_file(File::open(format!("/proc/{}/mem", child.pid)).unwrap());
        Self { child, kernel, memory, executable, printed }
    }

    /// Returns the frames of the stopped program, leaf first.
    fn sample(&mut self) -> Vec<UserFrame> {
        // PHP maps memory for code that it compiles.
        self.kernel.run(self.child.pid, &mappings(self.child.pid));
        // The program may be started by its dynamic linker, but usually the kernel starts it.
        self.kernel.set_executable(&self.executable);
        self.kernel.set_thread_base(self.child.thread_base());
        self.kernel.sample(&self.child.registers()).0
    }

    /// Returns the functions of PHP among the frames.
    fn functions(&self, frames: &[UserFrame]) -> Vec<Line> {
        let functions = frames.iter().filter_map(|frame| {
            let UserFrame::Function { runtime, address, position, identity } = *frame else { return None };
            let layout = self.kernel.runtimes.layout(runtime).unwrap();
            let function = Function::read(&self.memory, &layout, &Sources::default(), (address, position, identity));
            Some(function.map_or_else(
                || Line { file: String::new(), line: 0, function: format!("unknown function at {address:#x}") },
                |function| {
                    let [call] = function.calls(&layout, position).try_into().unwrap();
                    Line { file: call.file, line: call.line, function: call.function }
                },
            ))
        });
        functions.collect()
    }

    /// Checks that the functions of PHP are between native frames as the loops run them: each part of them is before a
    /// frame of the loop.
    fn check_order(&self, frames: &[UserFrame]) {
        let is_function = |frame: &UserFrame| matches!(frame, UserFrame::Function { .. });
        let is_loop = |frame: &UserFrame| match frame {
            UserFrame::File { number, offset } => self.kernel.is_loop(*number, *offset),
            _ => false,
        };
        let mut ends = frames.windows(2).filter(|pair| is_function(&pair[0]) && !is_function(&pair[1]));
        assert!(ends.all(|pair| is_loop(&pair[1])), "{frames:x?}");
    }

    /// Returns the functions that PHP itself sees at the same moment. `None` if the child crashed, or if an exception
    /// is on its way: PHP sees nothing but the place then.
    ///
    /// `None`, too, if the name of the innermost file is freed already. The name of the child's own code has taken its
    /// place then.
    fn own_view(&mut self) -> Option<OwnView> {
        fs::write(&self.printed, "").unwrap();
        self.child.deliver(libc::SIGUSR1);
        let began = Instant::now();
        loop {
            self.child.run_for(Duration::from_micros(200));
            let printed = fs::read_to_string(&self.printed).unwrap();
            if printed.ends_with("crashed\n") {
                return None;
            }
            if printed.ends_with("end\n") {
                return Some(read_printed(&printed))
                    .filter(|view| 1 < view.lines.len() && view.lines[0].file != "stack");
            }
            assert!(began.elapsed() < Duration::from_secs(10), "not a whole stack: {printed}");
        }
    }
}

/// Stops each interpreter at random moments, and compares its stacks.
fn compare(test: &str, interpreters: Vec<Interpreter>) {
    let (stops, seed) = (number("VARVE_STOPS", 100), number("VARVE_UNWIND_SEED", 1));
    if interpreters.is_empty() {
        return report::skipped(test, "there is no PHP");
    }
    let mut random = SplitMix64::seed_from_u64(seed);
    for interpreter in interpreters {
        let folder = tempfile::tempdir().unwrap();
        let mut program = Program::start(&interpreter, folder.path());
        let (mut frames, mut unseen, mut cut) = (0, 0, 0);
        for stop in 0..stops {
            program.child.run_for(Duration::from_micros(1 + below(&mut random, 3000) as u64));
            let sampled = program.sample();
            let walked = program.functions(&sampled);
            let Some(mut expected) = program.own_view() else {
                unseen += 1;
                continue;
            };
            // The code of a file is freed before its frame is.
            let is_code = ["{include}", "{eval}"].contains(&expected.lines[0].function.as_str());
            if is_code && walked.first().is_some_and(|line| line.function.starts_with("unknown")) {
                unseen += 1;
                continue;
            }
            if !expected.has_place && !walked.is_empty() {
                expected.lines[0] = Line { function: expected.lines[0].function.clone(), ..walked[0].clone() };
            }
            if walked.len() < expected.lines.len() && expected.lines.starts_with(&walked) {
                cut += 1;
                continue;
            }
            let at = format!("{interpreter}: stop {stop}, VARVE_UNWIND_SEED={seed}: {sampled:x?}");
            assert_eq!(walked, expected.lines, "{at}");
            program.check_order(&sampled);
            frames += walked.len();
        }
        assert!(unseen * 10 <= stops, "{interpreter}: {unseen} stacks are unseen");
        assert!(cut * 20 <= stops, "{interpreter}: {cut} stacks are cut");
        let equal = stops - unseen - cut;
        report::note(&format!("{interpreter}: {equal} stacks with {frames} functions are equal, {cut} are cut"));
    }
}

#[test]
fn stacks_of_stopped_phps_are_those_that_php_sees() {
    let interpreters = phps().into_iter().filter(|php| !php.is_for_musl()).collect();
    compare("stacks_of_stopped_phps_are_those_that_php_sees", interpreters);
}

#[test]
fn stacks_of_cached_code_are_those_that_php_sees() {
    let interpreters = phps_with_cache(&["opcache.file_update_protection=0"]);
    compare("stacks_of_cached_code_are_those_that_php_sees", interpreters);
}

#[test]
fn stacks_of_compiled_code_are_those_that_php_sees() {
    let test = "stacks_of_compiled_code_are_those_that_php_sees";
    for compiler in ["opcache.jit=tracing", "opcache.jit=function"] {
        let settings = ["opcache.file_update_protection=0", "opcache.jit_buffer_size=32M", compiler];
        let mut interpreters = phps_with_cache(&settings);
        // PHP 7 has no compiler.
        interpreters.retain(|interpreter| !interpreter.to_string().contains("php7"));
        compare(test, interpreters);
    }
}
