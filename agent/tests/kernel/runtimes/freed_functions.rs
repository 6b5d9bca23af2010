//! Samples of programs that free a function, and then make another one with another name and the same shape. The new
//! function often has the address of the earlier one. Its samples must not have the earlier name.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

use crate::support::agent::RunningAgent;
use crate::support::view::Sample;
use testkit::interpreters::{Interpreter, perls, pythons, rubies};
use testkit::report;

/// Each program makes a function for each request, runs it for 20 ms of CPU time, and frees it. Then it prints the
/// request's number, begin and end, in nanoseconds of Unix time. The names of all functions have the same length.
const PYTHON: &str = r#"
import time
def now():
    return int(time.time() * 1e9)
CODE = """
def request_{0}(until):
    while time.process_time() < until:
        sum(range(200))
request_{0}(time.process_time() + 0.02)
"""
number = 100000
while time.process_time() < 2:
    names = {"time": time}
    begin = now()
    exec(compile(CODE.format(number), "request", "exec"), names)
    print(number, begin, now())
    names.clear()
    number += 1
"#;

const PERL: &str = r#"
use Time::HiRes;
sub now { my ($user, $system) = times; return $user + $system }
sub unix_time { return sprintf '%.0f', Time::HiRes::time() * 1e9 }
my $number = 100000;
while (now() < 2) {
    eval "sub request_$number { my \$until = shift; while (now() < \$until) { \$_ * \$_ for 1 .. 2000 } }";
    my $begin = unix_time();
    &{"request_$number"}(now() + 0.02);
    print "$number $begin ", unix_time(), "\n";
    undef &{"request_$number"};
    delete $main::{"request_$number"};
    $number++;
}
"#;

const RUBY: &str = r#"
def now() Process.clock_gettime(Process::CLOCK_PROCESS_CPUTIME_ID) end
def unix_time() Process.clock_gettime(Process::CLOCK_REALTIME, :nanosecond) end
number = 100000
while now < 2
  eval "def request_#{number}(last) total = 0; while now < last; 200.times { |i| total += i }; end end"
  first = unix_time
  send("request_#{number}", now + 0.02)
  puts [number, first, unix_time].join(' ')
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

/// Largest difference between the clocks of the samples and of the programs, in nanoseconds.
const CLOCKS_NS_MAX: u64 = 1_000_000;

/// Begin and end of each request, in nanoseconds of Unix time, by its number.
type Requests = HashMap<u32, (u64, u64)>;

fn read_requests(printed: &str) -> Requests {
    let numbers = |line: &str| line.split(' ').map(|word| word.parse().unwrap()).collect::<Vec<u64>>();
    let request = |line| match numbers(line)[..] {
        [number, begin, end] => (u32::try_from(number).unwrap(), (begin, end)),
        _ => panic!("{line}"),
    };
    printed.lines().map(request).collect()
}

/// Returns the number of the request that a sample has, with each of its times.
fn requests_of(samples: &[Sample]) -> Vec<(u32, u64)> {
    let number = |sample: &Sample| {
        let of = |name: &str| name.rsplit(['#', ':']).next()?.strip_prefix("request_")?.parse().ok();
        sample.frames.iter().find_map(|frame| of(&frame.name))
    };
    let times = |sample| number(sample).map(|number| (number, sample)).into_iter();
    let all = samples.iter().flat_map(times);
    all.flat_map(|(number, sample)| sample.times.iter().map(move |time| (number, *time))).collect()
}

fn count(samples: &[Sample], name: &str) -> usize {
    let has_name = |sample: &&Sample| sample.frames.iter().any(|frame| frame.name.starts_with(name));
    samples.iter().filter(has_name).map(|sample| sample.times.len()).sum()
}

/// Checks that each sample has the name of the request that ran at its time.
fn assert_names(program: &str, samples: &[Sample], requests: &Requests) {
    let named = requests_of(samples);
    let (gone, unread) = (count(samples, "[function gone]"), count(samples, "[function unread]"));
    report::note(&format!(
        "{program}: {} samples have the name of a request, {gone} gone, {unread} unread",
        named.len()
    ));
    for (number, time) in &named {
        let Some((begin, end)) = requests.get(number) else { panic!("{program}: no request {number}") };
        let is_within = begin - CLOCKS_NS_MAX <= *time && *time <= end + CLOCKS_NS_MAX;
        assert!(
            is_within,
            "{program}: request {number} ran from {begin} to {end}, and a sample at {time} has its name"
        );
    }
    // The first functions are gone before BPF knows that the agent has to be woken.
    assert!(20 < named.len() && gone * 4 <= named.len(), "{program}: {} named, {gone} gone", named.len());
}

fn start(interpreter: &Interpreter, option: &str, script: &str) -> Child {
    let mut command = interpreter.command();
    command.args([option, script]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

#[test]
fn samples_never_have_the_name_of_a_freed_function() {
    let test = "samples_never_have_the_name_of_a_freed_function";
    let programs = [(pythons(), "-c", PYTHON), (perls(), "-e", PERL), (rubies(), "-e", RUBY)];
    // One language after the other, because each function runs only if its program has a CPU.
    for (interpreters, option, script) in programs {
        let Some(agent) = RunningAgent::start_with(test, 99, false) else { return };
        let mut children: Vec<_> = interpreters.iter().map(|interpreter| start(interpreter, option, script)).collect();
        let mut printed = vec![String::new(); children.len()];
        for ((interpreter, child), printed) in interpreters.iter().zip(&mut children).zip(&mut printed) {
            child.stdout.take().unwrap().read_to_string(printed).unwrap();
            assert!(child.wait().unwrap().success(), "{interpreter}");
        }
        let (samples, _) = agent.stop(test);
        for ((interpreter, child), printed) in interpreters.iter().zip(children).zip(printed) {
            let own: Vec<Sample> = samples.iter().filter(|sample| sample.is_of(child.id())).cloned().collect();
            assert_names(&interpreter.to_string(), &own, &read_requests(&printed));
        }
    }
}

fn unix_time_ns() -> u64 {
    u64::try_from(SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos()).unwrap()
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
    let begin = unix_time_ns();
    while get(&address, "/request.php?number=99999").is_none() {
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut requests = Requests::from([(99_999, (begin, unix_time_ns()))]);
    let request = |number| {
        let begin = unix_time_ns();
        get(&address, &format!("/request.php?number={number}")).unwrap();
        (number, (begin, unix_time_ns()))
    };
    requests.extend((100_000..100_000 + REQUESTS).map(request));
    let (samples, _) = agent.stop(test);
    server.kill().unwrap();
    server.wait().unwrap();
    let own: Vec<Sample> = samples.into_iter().filter(|sample| sample.is_of(server.id())).collect();
    assert_names("php", &own, &requests);
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
