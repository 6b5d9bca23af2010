//! Programs with tens of thousands of functions: how quickly their functions have names, and what that costs.
//!
//! The figures are those of an optimized build: `cargo test --release -p agent --test kernel many_functions --
//! --ignored`.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;
use std::fs;
use std::io::Read as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::agent::RunningAgent;
use crate::support::view::Sample;
use testkit::interpreters::{javas, nodes};
use testkit::report;

/// Frequency of samples that the agent has by default.
const FREQUENCY_HZ: u32 = 20;
/// Number of functions of a chain: each calls the next one, and each does some work.
const CHAIN: usize = 10;
/// Rounds of calls of all functions after which they are compiled.
const ROUNDS: usize = 60;
/// Time for which a program is sampled. Names are forgotten after a minute, and read again.
const SAMPLED: Duration = Duration::from_secs(90);
/// Time from the first sample of a program after which all functions must have names.
const NAMED_NS: u64 = 2_000_000_000;
/// Largest part of the samples, after this time, that may have a function without a name.
const UNNAMED_PART_MAX: f64 = 0.01;
/// Largest part of a CPU that the agent and the test's server may use.
const CPU_MAX: f64 = 0.05;
/// Largest growth of the memory of the agent and the test's server, in bytes.
const GROWTH_BYTES_MAX: u64 = 64 << 20;

/// Writes a Java program with `classes` classes of 100 methods, and compiles it.
fn write_java(folder: &Path, classes: usize) {
    let mut calls = String::new();
    for class in 0..classes {
        let mut text = format!("class C{class} {{\n");
        for method in 0..100 {
            let next = if (method + 1) % CHAIN == 0 { "x".to_owned() } else { format!("m{}(x)", method + 1) };
            writeln!(
                text,
                "static long m{method}(long x) {{
                     for (int i = 0; i < 3000; i++) x = x * 31 + (i ^ {method});
                     return {next};
                 }}"
            )
            .unwrap();
        }
        let chains: String = (0..100).step_by(CHAIN).map(|method| format!("x = m{method}(x);")).collect();
        writeln!(text, "static long all(long x) {{ {chains} return x; }}\n}}").unwrap();
        fs::write(folder.join(format!("C{class}.java")), text).unwrap();
        write!(calls, "x = C{class}.all(x);").unwrap();
    }
    let program = format!(
        "public class Many {{
             static long all(long x) {{ {calls} return x; }}
             public static void main(String[] arguments) {{
                 long x = 0;
                 for (int round = 0; ; round++) {{
                     x = all(x);
                     if (round == {ROUNDS}) {{ System.out.println(x); System.out.flush(); }}
                 }}
             }}
         }}"
    );
    fs::write(folder.join("Many.java"), program).unwrap();
    let mut javac = Command::new("javac");
    javac.args(["-nowarn", "--release", "8", "-d"]).arg(folder).arg("-sourcepath").arg(folder);
    let output = javac.arg(folder.join("Many.java")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Writes a program of Node.js with `files` files of 1,000 functions.
fn write_node(folder: &Path, files: usize) {
    for file in 0..files {
        let mut text = String::from("'use strict';\n");
        for function in 0..1000 {
            let number = file * 1000 + function;
            let next = if (number + 1) % CHAIN == 0 { "x".to_owned() } else { format!("f{}(x)", number + 1) };
            writeln!(
                text,
                "function f{number}(x) {{
                   for (let i = 0; i < 1000; i++) x = (x * 31 + (i ^ {number})) | 0;
                   return {next};
                 }}"
            )
            .unwrap();
        }
        let chains: String =
            (0..1000).step_by(CHAIN).map(|function| format!("x = f{}(x);", file * 1000 + function)).collect();
        writeln!(text, "module.exports = function all{file}(x) {{ {chains} return x; }};").unwrap();
        fs::write(folder.join(format!("file{file}.js")), text).unwrap();
    }
    let program = format!(
        "'use strict';
         const all = Array.from({{ length: {files} }}, (_, file) => require(`./file${{file}}.js`));
         let x = 0;
         for (let round = 0; ; round++) {{
           for (const one of all) x = one(x);
           if (round === {ROUNDS}) require('fs').writeSync(1, `${{x}}\\n`);
         }}"
    );
    fs::write(folder.join("program.js"), program).unwrap();
}

/// CPU time of this process without its main thread, in seconds, and its memory, in bytes.
#[derive(Clone, Copy, Debug)]
struct Usage {
    cpu: f64,
    memory: u64,
}

/// Returns what the agent, and the server of the test, have used so far.
fn usage() -> Usage {
    let seconds = |path: &str| {
        let stat = fs::read_to_string(path).unwrap();
        // The name of the thread may have spaces. After it, the 12th and 13th fields are ticks of 10 ms.
        let fields: Vec<u64> =
            stat.rsplit(')').next().unwrap().split_whitespace().map(|field| field.parse().unwrap_or(0)).collect();
        (fields[11] + fields[12]) as f64 / 100.0
    };
    // The thread of the test writes the program and evaluates the samples.
    let cpu = seconds("/proc/self/stat") - seconds("/proc/thread-self/stat");
    let pages: Vec<u64> =
        fs::read_to_string("/proc/self/statm").unwrap().split_whitespace().map(|it| it.parse().unwrap()).collect();
    Usage { cpu, memory: pages[1] * 4096 }
}

/// A program that is stopped when it is dropped.
struct Running(Child);

impl Running {
    fn start(mut command: Command) -> Self {
        Self(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap())
    }

    /// Waits until the program prints something.
    fn wait_until_compiled(&mut self) {
        self.0.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Facts about the samples of a program.
#[derive(Debug, Default)]
struct Seen {
    /// Number of samples, those with a function that is gone, and those with one that was not read, by time in seconds
    /// from the first sample on.
    seconds: BTreeMap<u64, [u64; 3]>,
    /// Names of the program's own functions.
    names: HashSet<String>,
    first_ns: Option<u64>,
    /// Time from the first sample to the last one with a function that was not read, in nanoseconds.
    last_unread_ns: u64,
}

impl Seen {
    fn add(&mut self, samples: &[Sample], is_own: fn(&str) -> bool) {
        let earliest = samples.iter().flat_map(|sample| &sample.times).min().copied();
        self.first_ns = self.first_ns.or(earliest);
        let first_ns = self.first_ns.unwrap_or_default();
        for sample in samples {
            let has = |name: &str| sample.frames.iter().any(|frame| frame.name == name);
            let (is_gone, is_unread) = (has("[function gone]"), has("[function unread]"));
            let own = sample.frames.iter().filter(|frame| frame.kind != "native" && is_own(&frame.name));
            self.names.extend(own.map(|frame| frame.name.clone()));
            for time in &sample.times {
                let since_ns = time.saturating_sub(first_ns);
                let counts = self.seconds.entry(since_ns / 1_000_000_000).or_default();
                counts[0] += 1;
                counts[1] += u64::from(is_gone);
                counts[2] += u64::from(is_unread);
                if is_unread {
                    self.last_unread_ns = self.last_unread_ns.max(since_ns);
                }
            }
        }
    }

    /// Returns the number of samples from a second on, and the parts of them with a function that is gone, or unread.
    fn since(&self, second: u64) -> (u64, f64, f64) {
        let mut sums = [0; 3];
        for counts in self.seconds.range(second..).map(|(_, counts)| counts) {
            (0..3).for_each(|at| sums[at] += counts[at]);
        }
        let part = |count: u64| count as f64 / sums[0].max(1) as f64;
        (sums[0], part(sums[1]), part(sums[2]))
    }
}

/// Samples a program, and checks how quickly its functions have names. `is_own` is true for the names of its functions.
fn measure(test: &str, program: &str, command: impl Fn() -> Command, is_own: fn(&str) -> bool) {
    for is_first in [false, true] {
        let before = is_first.then(|| {
            let mut running = Running::start(command());
            running.wait_until_compiled();
            running
        });
        let Some(mut agent) = RunningAgent::start(test, FREQUENCY_HZ) else { return };
        let child = before.unwrap_or_else(|| Running::start(command()));
        let mut seen = Seen::default();
        let (start, began) = (usage(), Instant::now());
        let mut most = start.memory;
        while began.elapsed() < SAMPLED {
            std::thread::sleep(Duration::from_millis(500));
            let samples: Vec<_> = agent.take().into_iter().filter(|sample| sample.is_of(child.0.id())).collect();
            seen.add(&samples, is_own);
            most = most.max(usage().memory);
        }
        let end = usage();
        drop(child);
        agent.stop(test);
        let cpu = (end.cpu - start.cpu) / began.elapsed().as_secs_f64();
        let (all, gone, unread) = seen.since(0);
        let (_, gone_late, unread_late) = seen.since(NAMED_NS / 1_000_000_000);
        let order = if is_first { "program first" } else { "agent first" };
        report::note(&format!(
            "{program}, {order}: {all} samples, {} names, gone {:.3} % (later {:.3} %), \
             unread {:.3} % (later {:.3} %), last unread after {:.1} s, {:.2} % of a CPU, \
             memory {} MB before, {} MB at most, {} MB after",
            seen.names.len(),
            100.0 * gone,
            100.0 * gone_late,
            100.0 * unread,
            100.0 * unread_late,
            seen.last_unread_ns as f64 / 1e9,
            100.0 * cpu,
            start.memory >> 20,
            most >> 20,
            end.memory >> 20,
        ));
        assert!(unread_late + gone_late <= UNNAMED_PART_MAX, "{:?}", seen.seconds);
        assert!(cpu <= CPU_MAX && most <= start.memory + GROWTH_BYTES_MAX);
        assert!(1000 < seen.names.len(), "{}", seen.names.len());
    }
}

#[test]
#[ignore = "takes minutes, and its bars are those of an optimized build"]
fn a_java_program_with_20000_methods_has_names_within_two_seconds() {
    let test = "a_java_program_with_20000_methods_has_names_within_two_seconds";
    let Some(java) = javas().pop() else { return report::skipped(test, "there is no Java") };
    let folder = tempfile::tempdir().unwrap();
    write_java(folder.path(), 200);
    let command = || {
        let mut command = java.command();
        // Otherwise, each chain would become one method.
        command.args(["-XX:TieredStopAtLevel=1", "-XX:-Inline", "-cp"]).arg(folder.path()).arg("Many");
        command
    };
    measure(test, &format!("20,000 methods of {java}"), command, |name| name.starts_with('C') && name.contains(".m"));
}

#[test]
#[ignore = "takes minutes, and its bars are those of an optimized build"]
fn a_node_program_with_50000_functions_has_names_within_two_seconds() {
    let test = "a_node_program_with_50000_functions_has_names_within_two_seconds";
    let Some(node) = nodes().pop() else { return report::skipped(test, "there is no Node.js") };
    let folder = tempfile::tempdir().unwrap();
    write_node(folder.path(), 50);
    let command = || {
        let mut command = node.command();
        command.arg(folder.path().join("program.js"));
        command
    };
    let is_own = |name: &str| name.strip_prefix('f').is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_digit()));
    measure(test, &format!("50,000 functions of {node}"), command, is_own);
}
