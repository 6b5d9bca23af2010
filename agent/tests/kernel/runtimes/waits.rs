//! Waits in functions of each language: their stacks are those of samples of the CPU.

use std::process::{Child, Stdio};

use crate::support::agent::RunningAgent;
use crate::support::scripts::{self, Script};
use testkit::interpreters::Interpreter;
use testkit::report;

/// Programs that call `waits` 150 times for 20 ms.
const PROGRAMS: [Script; 5] = [
    ("cpython", "-c", "import time\ndef waits(): time.sleep(0.02)\nfor _ in range(150): waits()"),
    ("perl", "-e", "sub waits { select undef, undef, undef, 0.02 } waits() for 1 .. 150"),
    ("ruby", "-e", "def waits; sleep 0.02; end; 150.times { waits }"),
    ("php", "-r", "function waits() { usleep(20000); } for ($i = 0; $i < 150; $i++) waits();"),
    (
        "v8js",
        "-e",
        "const cell = new Int32Array(new SharedArrayBuffer(4));
         function waits() { Atomics.wait(cell, 0, 0, 20); }
         for (let i = 0; i < 150; i++) waits();",
    ),
];

/// Time that a program waits, in seconds.
const WAITED: f64 = 150.0 * 0.02;

#[test]
fn waits_have_the_functions_of_each_language() {
    let test = "waits_have_the_functions_of_each_language";
    let Some(agent) = RunningAgent::start_with(test, 20, true) else { return };
    let start = |interpreter: &Interpreter, arguments: [&str; 2]| -> Child {
        interpreter.command().args(arguments).stdout(Stdio::null()).spawn().unwrap()
    };
    let ended = scripts::run(test, PROGRAMS, start);
    let (samples, _) = agent.stop(test);
    for (interpreter, kind, pid) in ended {
        let waits = samples.iter().filter(|sample| sample.is_of(pid) && sample.kind.0 == "off_cpu");
        let has_function = waits.filter(|sample| {
            let mut own = sample.frames.iter().filter(|frame| frame.kind == kind);
            own.any(|frame| frame.name.rsplit(':').next() == Some("waits"))
        });
        let waited = has_function.flat_map(|sample| &sample.values).sum::<i64>() as f64 / 1e9;
        report::note(&format!("{interpreter}: {waited:.2} of {WAITED:.2} s"));
        assert!((0.9 * WAITED..1.5 * WAITED).contains(&waited), "{interpreter}: {waited:.2} of {WAITED:.2} s");
    }
}
