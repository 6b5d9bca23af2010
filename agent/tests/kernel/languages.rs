//! Shares of CPU time and whole call paths in programs of all languages.
//!
//! A program goes through its cases in rounds. A case is a path of calls that ends in work of a random duration, which
//! the program measures with the clock of the thread. By default, the oldest and the newest version of each language
//! run. `VARVE_ALL_RUNTIMES` selects all versions, and `VARVE_SHARES_SECONDS` sets the duration of each.

mod fpm;
mod report;
mod verdict;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use crate::runtimes::{COMPILER, compile, compilers, without_linker};
use crate::support::agent::RunningAgent;
use report::Report;
use testkit::interpreters::{
    Interpreter, java_with_collector, javas, nodes, perls, php_fpm, phps, pythons, rubies, rubies_that_compile,
};
use testkit::report::skipped;
use verdict::Verdict;

/// Samples per second of a CPU.
const FREQUENCY_HZ: u32 = 199;

/// Functions of a language in samples of its program.
struct Language {
    /// Frame type of the functions.
    kind: &'static str,
    /// Name of the program's source file.
    file: &'static str,
    /// True if functions of the runtime itself that no case names may be on the stack.
    has_own_functions: bool,
}

const fn language(kind: &'static str, file: &'static str, has_own_functions: bool) -> Language {
    Language { kind, file, has_own_functions }
}

/// Returns the path of a program in this folder.
fn program(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernel/languages").join(file)
}

/// Returns the first three numbers that an interpreter prints as its version.
fn version(interpreter: &Interpreter) -> Vec<u32> {
    // Java 8 knows only the second spelling, and most others only the first.
    let outputs = ["--version", "-version"].map(|option| interpreter.command().arg(option).output().unwrap());
    let output = outputs.into_iter().find(|output| output.status.success()).unwrap();
    let text = [output.stdout, output.stderr].concat();
    let numbers = text.split(|byte| !byte.is_ascii_digit()).filter(|digits| !digits.is_empty());
    numbers.take(3).map(|digits| String::from_utf8_lossy(digits).parse().unwrap()).collect()
}

fn runs_all() -> bool {
    std::env::var_os("VARVE_ALL_RUNTIMES").is_some()
}

/// Returns the oldest and the newest version, or all if the environment says so, oldest first.
fn selected(interpreters: Vec<Interpreter>) -> Vec<(String, Interpreter)> {
    let mut all: Vec<_> = interpreters.into_iter().map(|interpreter| (version(&interpreter), interpreter)).collect();
    all.sort();
    if !runs_all() && 2 < all.len() {
        all.drain(1..all.len() - 1);
    }
    let name = |version: Vec<u32>| version.iter().map(ToString::to_string).collect::<Vec<_>>().join(".");
    let named = |(version, interpreter): (Vec<u32>, Interpreter)| {
        let libc = if interpreter.is_for_musl() { " with musl" } else { "" };
        (name(version) + libc, interpreter)
    };
    all.into_iter().map(named).collect()
}

/// Runs a program with these interpreters. Checks the shares of its cases, and that their stacks are whole.
/// `arguments` are those of an interpreter before the number of seconds.
fn check(test: &str, language: &Language, interpreters: Vec<(String, Interpreter)>, arguments: &[OsString]) {
    if interpreters.is_empty() {
        return skipped(test, "no such interpreter is installed");
    }
    let seconds = seconds();
    // More programs at once than CPUs would have few samples each.
    let at_once = if runs_all() { std::thread::available_parallelism().unwrap().get() } else { interpreters.len() };
    let Some(agent) = RunningAgent::start(test, FREQUENCY_HZ) else { return };
    let mut ended = Vec::new();
    for group in interpreters.chunks(at_once) {
        let start = |(version, interpreter): &(String, Interpreter)| {
            let mut command = interpreter.command();
            let child = command.args(arguments).arg(&seconds).stdout(Stdio::piped()).spawn().unwrap();
            (version.clone(), child)
        };
        for (version, child) in group.iter().map(start).collect::<Vec<_>>() {
            let pid = child.id();
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "{version}");
            ended.push((version, pid, Report::parse(&String::from_utf8(output.stdout).unwrap())));
        }
    }
    judge(test, agent, language, &ended);
}

/// Number of seconds that each program runs.
fn seconds() -> String {
    let seconds = std::env::var("VARVE_SHARES_SECONDS");
    seconds.unwrap_or_else(|_| if runs_all() { "20" } else { "8" }.to_owned())
}

/// Stops the agent. Checks its samples of programs, each with its version, pid and report.
fn judge(test: &str, agent: RunningAgent, language: &Language, ended: &[(String, u32, Report)]) {
    let (samples, _) = agent.stop(test);
    let mut verdict = Verdict::default();
    for (version, pid, report) in ended {
        let own: Vec<_> = samples.iter().filter(|sample| sample.is_of(*pid)).cloned().collect();
        verdict.add(&format!("{} {version}", language.kind), report, &report.count(&own, language));
    }
    verdict.check();
}

#[test]
fn cases_of_each_python_have_their_shares_and_whole_paths() {
    let test = "cases_of_each_python_have_their_shares_and_whole_paths";
    let python = language("cpython", "program.py", false);
    check(test, &python, selected(pythons()), &[program(python.file).into()]);
}

#[test]
fn cases_of_each_perl_have_their_shares_and_whole_paths() {
    let test = "cases_of_each_perl_have_their_shares_and_whole_paths";
    let perl = language("perl", "program.pl", false);
    check(test, &perl, selected(perls()), &[program(perl.file).into()]);
}

#[test]
fn cases_of_each_ruby_have_their_shares_and_whole_paths() {
    let test = "cases_of_each_ruby_have_their_shares_and_whole_paths";
    let compiling = selected(rubies_that_compile());
    let compiling = compiling.into_iter().map(|(version, ruby)| (format!("{version} with YJIT"), ruby));
    let interpreters = selected(rubies()).into_iter().chain(compiling).collect();
    let ruby = language("ruby", "program.rb", false);
    check(test, &ruby, interpreters, &[program(ruby.file).into()]);
}

#[test]
fn cases_of_each_php_have_their_shares_and_whole_paths() {
    let test = "cases_of_each_php_have_their_shares_and_whole_paths";
    let compiling = selected(compilers()).into_iter().map(|(version, php)| (format!("{version} with JIT"), php));
    let interpreters = selected(phps()).into_iter().chain(compiling).collect();
    let php = language("php", "program.php", false);
    check(test, &php, interpreters, &[program(php.file).into()]);
}

#[test]
fn cases_of_php_fpm_have_their_shares_and_whole_paths() {
    let test = "cases_of_php_fpm_have_their_shares_and_whole_paths";
    let cached = php_fpm(&["opcache.file_update_protection=0"]).map(|php| ("FPM with cache".to_owned(), php));
    let compiling = php_fpm(&COMPILER).and_then(|php| without_linker(&php));
    if cached.is_none() || compiling.is_none() {
        skipped(test, "PHP-FPM is not unpacked, or this system cannot start it without another dynamic linker");
    }
    let all: Vec<_> = cached.into_iter().chain(compiling.map(|php| ("FPM with JIT".to_owned(), php))).collect();
    let php = language("php", "program.php", false);
    let Some(agent) = RunningAgent::start(test, FREQUENCY_HZ) else { return };
    let servers: Vec<_> = all.iter().map(|(version, fpm)| (version, fpm::Server::start(fpm))).collect();
    for (version, server) in &servers {
        let status = server.value_of("[opcache_get_status()['opcache_enabled'], opcache_get_status()['jit']['on']]");
        let expected = [true, version.contains("JIT")];
        assert_eq!(status.matches("true").count(), expected.iter().filter(|is| **is).count(), "{version}: {status}");
    }
    let query = format!("seconds={}", seconds());
    let requests: Vec<_> = servers.iter().map(|(_, server)| server.request(&program(php.file), &query)).collect();
    let ended: Vec<_> = servers
        .iter()
        .zip(requests)
        .map(|((version, server), request)| {
            let report = Report::parse(&request.response());
            ((*version).clone(), server.worker(), report)
        })
        .collect();
    judge(test, agent, &php, &ended);
}

#[test]
fn cases_of_each_node_have_their_shares_and_whole_paths() {
    let test = "cases_of_each_node_have_their_shares_and_whole_paths";
    let node = language("v8js", "program.js", true);
    // Without a clock of the thread, the program reads that of the process, which also runs in threads that compile.
    let with_options = |(version, mut node): (String, Interpreter)| {
        let program = "process.exit(process.threadCpuUsage ? 0 : 1)";
        if !node.command().args(["-e", program]).status().unwrap().success() {
            node.arguments.push("--no-concurrent-recompilation".into());
        }
        (version, node)
    };
    let nodes = selected(nodes()).into_iter().map(with_options).collect();
    check(test, &node, nodes, &["--expose-gc".into(), program(node.file).into()]);
}

#[test]
fn cases_of_each_java_have_their_shares_and_whole_paths() {
    let test = "cases_of_each_java_have_their_shares_and_whole_paths";
    let java = language("jvm", "Program.java", true);
    let folder = tempfile::tempdir().unwrap();
    if !compile(&program(java.file), folder.path()) {
        return skipped(test, "there is no javac");
    }
    let arguments = ["-cp".into(), folder.path().into(), "Program".into()];
    let mut interpreters = selected(javas());
    if runs_all()
        && let Some((version, newest)) = interpreters.last().cloned()
    {
        let with_collector =
            |name: &str| Some((format!("{version} with {name}GC"), java_with_collector(&newest, name)?));
        interpreters.extend(["Serial", "Parallel", "Shenandoah", "Z"].into_iter().filter_map(with_collector));
    }
    check(test, &java, interpreters, &arguments);
}
