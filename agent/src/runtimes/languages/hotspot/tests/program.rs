//! A Java program whose threads are stopped and walked.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use ebpf::{UserEnd, UserFrame};
use testkit::interpreters::Interpreter;

use crate::process::key::ProcessKey;
use crate::runtimes::languages::hotspot::process::{HotSpot, LIBRARY};
use crate::runtimes::languages::v8::source::Sources;
use crate::runtimes::languages::{Function, Layout};
use crate::runtimes::memory::ProcessMemory;
use crate::unwind::tests::native::child::{StoppedThread, mappings};
use crate::unwind::tests::native::kernel::Kernel;

/// Longest time for which a program is waited for.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Beginning of the name of a function that cannot be read.
pub(super) const UNKNOWN: &str = "unknown function";

/// A line of a Java method.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) function: String,
    pub(super) file: String,
    pub(super) line: u32,
}

/// The Java part of a stack, leaf first, and the end of the whole stack.
#[derive(Debug)]
pub(super) struct Walked {
    pub(super) lines: Vec<Line>,
    /// Number of lines of the innermost frame. They may be those of an instruction nearby.
    pub(super) innermost: usize,
    pub(super) end: UserEnd,
}

/// Compiles classes for Java 8. Returns false if there is no compiler.
pub(super) fn compile(folder: &Path, classes: &[(&str, &str)]) -> bool {
    let mut javac = Command::new("javac");
    javac.args(["--release", "8", "-nowarn", "-J-XX:TieredStopAtLevel=1", "-d"]).arg(folder);
    for (class, source) in classes {
        let file = folder.join(format!("{class}.java"));
        fs::write(&file, source).unwrap();
        javac.arg(file);
    }
    let Ok(output) = javac.output() else { return false };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    true
}

/// A running Java program. Dropping this value kills it.
pub(super) struct Program {
    child: Child,
    output: BufReader<ChildStdout>,
    memory: ProcessMemory,
    file: File,
    /// Thread that is walked.
    tid: u32,
    /// True if names are to have the types of parameters.
    pub(super) has_parameters: bool,
}

impl Program {
    /// Starts a class. `thread` is the name of the thread that is walked.
    pub(super) fn start(
        java: &Interpreter,
        classes: &Path,
        class: &str,
        thread: &str,
        options: &[&str],
        kernel: &mut Kernel,
    ) -> Self {
        let mut command = java.command();
        command.args(["-XX:-UsePerfData", "-XX:CICompilerCount=2"]).args(options);
        command.arg("-cp").arg(classes).arg(class).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let pid = child.id();
        let tid = wait_for(|| thread_named(pid, thread));
        let memory = || File::open(format!("/proc/{pid}/mem")).unwrap();
        let library =
            || mappings(pid).into_iter().find(|mapping| mapping.is_executable && mapping.path.ends_with(LIBRARY));
        let library = wait_for(library);
        let program = Self {
            child,
            output,
            memory: ProcessMemory::of_file(memory()),
            file: memory(),
            tid,
            has_parameters: false,
        };
        let file = File::open(&library.path).unwrap();
        let hotspot = wait_for(|| HotSpot::read(&program.memory, &file, library.start, library.offset));
        kernel.run(pid, &mappings(pid));
        kernel.add_hotspot(ProcessKey { pid, start_boottime_ns: 0, exec_id: 0 }, hotspot);
        program
    }

    /// Returns the stack that the program writes, leaf first.
    pub(super) fn printed(&mut self) -> Vec<Line> {
        let mut lines = Vec::new();
        loop {
            let mut text = String::new();
            assert_ne!(self.output.read_line(&mut text).unwrap(), 0, "the program ended");
            if text == "end\n" {
                return lines;
            }
            let [class, method, file, line] = *text.trim_end().split('\t').collect::<Vec<_>>() else {
                panic!("{text}");
            };
            let line: i32 = line.parse().unwrap();
            // Native methods have negative lines. Hidden methods have a bytecode plus a million in place of a line.
            let line = if (0..1_000_000).contains(&line) { line.cast_unsigned() } else { 0 };
            let file = if file == "null" || file == "<Unknown>" { "" } else { file };
            lines.push(Line { function: format!("{}.{method}", without_number(class)), file: file.to_owned(), line });
        }
    }

    /// Waits until the thread reads its input, and walks its stack.
    pub(super) fn walk_waiting(&self, kernel: &mut Kernel) -> Walked {
        let call = format!("/proc/{}/task/{}/syscall", self.child.id(), self.tid);
        wait_for(|| fs::read_to_string(&call).ok().filter(|call| call.starts_with("0 0x0 ")));
        self.walk(kernel)
    }

    /// Stops the thread at this moment, and walks its stack.
    pub(super) fn walk(&self, kernel: &mut Kernel) -> Walked {
        let pid = self.child.id();
        let stopped = StoppedThread::stop(self.tid).unwrap();
        let registers = stopped.registers(&self.file);
        kernel.run(pid, &mappings(pid));
        let (frames, end, _) = kernel.sample(&registers);
        let innermost = frames.first().map_or(0, |frame| self.lines(*frame, kernel).len());
        let lines = frames.into_iter().flat_map(|frame| self.lines(frame, kernel)).collect();
        drop(stopped);
        Walked { lines, innermost, end }
    }

    fn lines(&self, frame: UserFrame, kernel: &Kernel) -> Vec<Line> {
        let UserFrame::Function { runtime, address, position, identity } = frame else { return Vec::new() };
        let mut layout = (*kernel.runtimes.layout(runtime).unwrap()).clone();
        if let Layout::HotSpot(layout) = &mut layout {
            layout.method.has_parameters = self.has_parameters;
        }
        let function = Function::read(&self.memory, &layout, &Sources::default(), (address, position, identity));
        let Some(function) = function else {
            let unknown = format!("{UNKNOWN} {address:#x}+{position:#x}");
            return vec![Line { function: unknown, file: String::new(), line: 0 }];
        };
        let calls = function.calls(&layout, position).into_iter().filter(|call| !call.function.starts_with('['));
        calls.map(|call| Line { function: call.function, file: call.file, line: call.line }).collect()
    }

    /// Continues a program that waits for a byte.
    pub(super) fn go_on(&mut self) {
        let input = self.child.stdin.as_mut().unwrap();
        input.write_all(b"x").unwrap();
        input.flush().unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ended = self.child.kill();
        let _status = self.child.wait();
    }
}

/// Removes the number that the virtual machine adds to the name of a class.
fn without_number(class: &str) -> String {
    let class = class.split(['/', '+']).next().unwrap_or_default();
    let class = class.split(".0x").next().unwrap_or_default();
    match class.split_once("$$Lambda") {
        Some((outer, _)) => format!("{outer}$$Lambda"),
        None => class.to_owned(),
    }
}

fn thread_named(pid: u32, name: &str) -> Option<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let tids = threads.flatten().filter_map(|thread| thread.file_name().to_str()?.parse().ok());
    tids.into_iter().find(|tid: &u32| {
        let named = fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm"));
        named.is_ok_and(|named| named.trim_end() == name)
    })
}

/// Waits until something is ready, and returns it.
pub(super) fn wait_for<T>(mut ready: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(value) = ready() {
            return value;
        }
        assert!(began.elapsed() < WAIT_MAX, "the program is not ready");
        std::thread::sleep(Duration::from_millis(1));
    }
}
