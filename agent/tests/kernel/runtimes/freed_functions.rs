//! Samples of programs that free a function, and then make another one with another name and the same shape. The new
//! function often has the address of the earlier one. Its samples must not have the earlier name.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::support::agent::RunningAgent;
use crate::support::view::Sample;
use testkit::interpreters::{Interpreter, perls, pythons, rubies};
use testkit::report;

/// Each program makes a function for each request, runs it for 20 ms of CPU time, and frees it. The names of all
/// functions have the same length.
const PYTHON: &str = r#"
import time
CODE = """
def request_{0}(until):
    while time.process_time() < until:
        sum(range(200))
request_{0}(time.process_time() + 0.02)
"""
number = 100000
while time.process_time() < 2:
    names = {"time": time}
    exec(compile(CODE.format(number), "request", "exec"), names)
    names.clear()
    number += 1
"#;

const PERL: &str = r#"
sub now { my ($user, $system) = times; return $user + $system }
my $number = 100000;
while (now() < 2) {
    eval "sub request_$number { my \$until = shift; while (now() < \$until) { \$_ * \$_ for 1 .. 2000 } }";
    &{"request_$number"}(now() + 0.02);
    undef &{"request_$number"};
    delete $main::{"request_$number"};
    $number++;
}
"#;

const RUBY: &str = r#"
def now() Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID) end
number = 100000
while now < 2
  eval "def request_#{number}(last) total = 0; while now < last; 200.times { |i| total += i }; end end"
  send("request_#{number}", now + 0.02)
  Object.send(:remove_method, "request_#{number}")
  GC.start
  number += 1
end
"#;

/// PHP frees the functions of a request when it ends.
const PHP: &str = r#"<?php
$number = $_GET['number'];
eval("function request_$number(\$until) { while (hrtime(true) < \$until) { for (\$i = 0; \$i < 200; \$i++) {} } }");
("request_$number")(hrtime(true) + 20000000);
"#;

/// Programs that make a closure for each call, which runs for a millisecond and is freed then.
const PHP_CLOSURES: &str = r#"
function called($closure) { return $closure(); }
$end = hrtime(true) + 4e9;
while (hrtime(true) < $end) {
    called(function () use ($end) { $until = hrtime(true) + 1e6; while (hrtime(true) < $until) {} });
}
"#;

const PERL_CLOSURES: &str = r#"
sub called { return $_[0]->() }
my $end = time + 4;
while (time < $end) {
    my $count = 2000;
    called(sub { for my $number (1 .. $count) { $number * $number } });
}
"#;

/// Largest number of requests of the PHP server.
const REQUESTS: u32 = 100;

/// Returns the numbers of the requests, in the order of the samples' times.
fn requests_of(samples: &[Sample]) -> Vec<u32> {
    let number = |sample: &Sample| {
        let of = |name: &str| name.rsplit(['#', ':']).next()?.strip_prefix("request_")?.parse().ok();
        sample.frames.iter().find_map(|frame| of(&frame.name))
    };
    let mut all: Vec<(u64, u32)> = Vec::new();
    for sample in samples {
        all.extend(number(sample).into_iter().flat_map(|number| sample.times.iter().map(move |time| (*time, number))));
    }
    all.sort_unstable();
    all.into_iter().map(|(_, number)| number).collect()
}

fn count(samples: &[Sample], name: &str) -> usize {
    let has_name = |sample: &&Sample| sample.frames.iter().any(|frame| frame.name.starts_with(name));
    samples.iter().filter(has_name).map(|sample| sample.times.len()).sum()
}

/// Checks that each sample has the name of the request that was answered at its time.
fn assert_ascending(program: &str, samples: &[Sample]) {
    let numbers = requests_of(samples);
    let (gone, unread) = (count(samples, "[function gone]"), count(samples, "[function unread]"));
    report::note(&format!(
        "{program}: {} samples have the name of a request, {gone} gone, {unread} unread",
        numbers.len()
    ));
    assert!(numbers.is_sorted(), "{program}: {numbers:?}");
    // A request takes two samples on average. With the name of an earlier one, many would have the same number.
    let requests = numbers.chunk_by(|one, other| one == other).count();
    assert!(numbers.len() <= 5 * requests, "{program}: {numbers:?}");
    // The first functions are gone before BPF knows that the agent has to be woken.
    assert!(20 < numbers.len() && gone * 4 <= numbers.len(), "{program}: {} named, {gone} gone", numbers.len());
}

fn start(interpreter: &Interpreter, option: &str, script: &str) -> Child {
    let mut command = interpreter.command();
    command.args([option, script]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

#[test]
fn samples_never_have_the_name_of_a_freed_function() {
    let test = "samples_never_have_the_name_of_a_freed_function";
    let programs = [(pythons(), "-c", PYTHON), (perls(), "-e", PERL), (rubies(), "-e", RUBY)];
    // One language after the other, because each function runs only if its program has a CPU.
    for (interpreters, option, script) in programs {
        let Some(agent) = RunningAgent::start_with(test, 99, false) else { return };
        let mut children: Vec<_> = interpreters.iter().map(|interpreter| start(interpreter, option, script)).collect();
        for (interpreter, child) in interpreters.iter().zip(&mut children) {
            assert!(child.wait().unwrap().success(), "{interpreter}");
        }
        let (samples, _) = agent.stop(test);
        for (interpreter, child) in interpreters.iter().zip(children) {
            let own: Vec<Sample> = samples.iter().filter(|sample| sample.is_of(child.id())).cloned().collect();
            assert_ascending(&interpreter.to_string(), &own);
        }
    }
}

/// Requests a page. `None` if the server does not answer.
fn get(address: &str, path: &str) -> Option<()> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    answer.contains(" 200 ").then_some(())
}

#[test]
fn samples_never_have_the_name_of_a_function_of_an_earlier_request_of_php() {
    let test = "samples_never_have_the_name_of_a_function_of_an_earlier_request_of_php";
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("request.php"), PHP).unwrap();
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let Ok(mut server) = Command::new("php")
        .args(["-S", &address, "-t"])
        .arg(folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
    else {
        return report::skipped(test, "there is no PHP");
    };
    let Some(agent) = RunningAgent::start_with(test, 99, false) else { return };
    while get(&address, "/request.php?number=99999").is_none() {
        std::thread::sleep(Duration::from_millis(20));
    }
    (100_000..100_000 + REQUESTS).for_each(|number| get(&address, &format!("/request.php?number={number}")).unwrap());
    let (samples, _) = agent.stop(test);
    server.kill().unwrap();
    server.wait().unwrap();
    let own: Vec<Sample> = samples.into_iter().filter(|sample| sample.is_of(server.id())).collect();
    assert_ascending("php", &own);
}

#[test]
fn closures_that_are_freed_after_each_call_have_names() {
    let test = "closures_that_are_freed_after_each_call_have_names";
    let programs = [("php", "-r", PHP_CLOSURES, "{closure"), ("perl", "-e", PERL_CLOSURES, "main::__ANON__")];
    for (program, option, script, name) in programs {
        let Some(agent) = RunningAgent::start_with(test, 99, false) else { return };
        let Ok(mut child) = Command::new(program).args([option, script]).spawn() else {
            report::skipped(test, format!("there is no {program}"));
            continue;
        };
        assert!(child.wait().unwrap().success(), "{program}");
        let (samples, _) = agent.stop(test);
        let own: Vec<Sample> = samples.into_iter().filter(|sample| sample.is_of(child.id())).collect();
        let (named, gone) = (count(&own, name), count(&own, "[function gone]"));
        report::note(&format!("{program}: {named} samples have the name of the closure, {gone} do not"));
        assert!(100 < named && gone * 20 <= named, "{program}: {named} named, {gone} gone");
    }
}
