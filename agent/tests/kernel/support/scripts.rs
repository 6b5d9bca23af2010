//! Short programs in five languages, which run at once.

use std::process::Child;

use testkit::interpreters::{Interpreter, nodes, perls, phps, pythons, rubies};
use testkit::report;

/// Type of the frames of a program's functions, the option of the interpreter before the text, and the text.
pub(crate) type Script = (&'static str, &'static str, &'static str);

/// Runs programs for the last CPython, Perl, Ruby, PHP and Node.js, with `start`. Returns each interpreter with the
/// type of its frames and its pid. Missing interpreters are reported.
///
/// The programs run twice, because the tables of the interpreters' files are made the first time.
pub(crate) fn run(
    test: &str,
    scripts: [Script; 5],
    start: impl Fn(&Interpreter, [&str; 2]) -> Child,
) -> Vec<(Interpreter, &'static str, u32)> {
    let mut known = Vec::new();
    let interpreters = [pythons(), perls(), rubies(), phps(), nodes()].map(|mut all| all.pop());
    for (interpreter, script) in interpreters.into_iter().zip(scripts) {
        match interpreter {
            Some(interpreter) => known.push((interpreter, script)),
            None => report::skipped(test, format!("there is no interpreter for {}", script.0)),
        }
    }
    let run_all = || {
        let started = known.iter().map(|(interpreter, (_, option, code))| start(interpreter, [option, code]));
        let wait = |mut child: Child| {
            assert!(child.wait().unwrap().success(), "process {}", child.id());
            child.id()
        };
        started.collect::<Vec<_>>().into_iter().map(wait).collect::<Vec<_>>()
    };
    run_all();
    let pids = run_all();
    known.into_iter().zip(pids).map(|((interpreter, (kind, ..)), pid)| (interpreter, kind, pid)).collect()
}
