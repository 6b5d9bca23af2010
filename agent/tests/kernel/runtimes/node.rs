//! Samples of Node.js programs: the functions of each version, between native frames in the order of the calls.

use std::process::Stdio;

use crate::support::agent::RunningAgent;
use crate::support::view::{Frame, Sample};
use testkit::interpreters::nodes;
use testkit::report;

/// Program with a known path of calls: through recursion, a method, a generator, and C++ code that calls JavaScript.
const PROGRAM: &str = "
'use strict';
function spin(until) {
  let total = 0;
  while (Date.now() < until) {
    for (let i = 0; i < 2000; i++) {
      total += i * i;
    }
  }
  return total;
}
class Worker {
  method(until) { return ((end) => spin(end) + 1)(until) + 1; }
}
function* generator(until) { yield new Worker().method(until); }
const called = { toJSON() { return [...generator(called.until)][0]; } };
function descend(depth, until) {
  if (depth) {
    return descend(depth - 1, until) + 1;
  }
  called.until = until;
  return JSON.stringify(called).length;
}
function main() { return descend(40, Date.now() + 30000); }
main();
";

/// Time from the first JavaScript frame on in which all files of a program get their tables, in nanoseconds.
const START_NS: u64 = 2_000_000_000;

/// Returns the names of the JavaScript functions of a sample that have one, leaf first, up to `main`.
fn functions(sample: &Sample) -> Vec<&str> {
    let names = sample.frames.iter().filter(|frame| frame.kind == "v8js").map(|frame| frame.name.as_str());
    let names: Vec<_> = names.skip_while(|name| *name != "spin").collect();
    let end = names.iter().position(|name| *name == "main").map_or(names.len(), |main| main + 1);
    names[..end].iter().copied().filter(|name| !name.starts_with('(') && *name != "next").collect()
}

/// True if native code is between the functions `inner` and `outer`.
fn has_native_between(frames: &[Frame], inner: &str, outer: &str) -> bool {
    let at = |name: &str| frames.iter().position(|frame| frame.kind == "v8js" && frame.name == name);
    let (Some(inner), Some(outer)) = (at(inner), at(outer)) else { return false };
    frames.get(inner..outer).is_some_and(|between| between.iter().any(|frame| frame.kind == "native"))
}

#[test]
fn functions_of_each_node_are_on_the_stack_in_the_order_of_the_calls() {
    let test = "functions_of_each_node_are_on_the_stack_in_the_order_of_the_calls";
    // The tables of these large files take seconds to make without optimization, so every fourth version is sampled.
    let nodes: Vec<_> = nodes().into_iter().step_by(4).collect();
    if nodes.is_empty() {
        return report::skipped(test, "there is no Node.js");
    }
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("program.js");
    std::fs::write(&script, PROGRAM).unwrap();
    let Some(agent) = RunningAgent::start_with(test, 99, false) else { return };
    let start = |node| {
        let node: testkit::interpreters::Interpreter = node;
        let child = node.command().arg(&script).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        (node, child)
    };
    let mut children: Vec<_> = nodes.into_iter().map(start).collect();
    for (node, child) in &mut children {
        assert!(child.wait().unwrap().success(), "{node}");
    }
    let (samples, _) = agent.stop(test);
    let mut seen = 0;
    for (node, child) in children {
        let of_child = || samples.iter().filter(|sample| sample.is_of(child.id()));
        let has_functions = |sample: &&Sample| sample.frames.iter().any(|frame| frame.kind == "v8js");
        let began =
            of_child().filter(has_functions).flat_map(|sample| &sample.times).min().copied().unwrap_or_default();
        let (mut whole, mut all) = (0, 0);
        let mut others = Vec::new();
        for sample in of_child() {
            let times = sample.times.iter().filter(|time| began + START_NS < **time).count();
            let frames = &sample.frames;
            // Other threads compile and collect garbage, and at the end of the program nothing calls `spin`.
            if times == 0 || !has_functions(&sample) {
                continue;
            }
            let names = functions(sample);
            let expected = ["spin", "method", "generator", "toJSON"];
            let is_whole = names.starts_with(&expected)
                && names.len() == expected.len() + 42
                && names[expected.len()..names.len() - 1].iter().all(|name| *name == "descend")
                && has_native_between(frames, "toJSON", "descend");
            all += times;
            whole += if is_whole { times } else { 0 };
            if !is_whole {
                let frames = frames.iter().map(|frame| format!("{}:{}+{:#x}", frame.kind, frame.name, frame.address));
                others.push(frames.take(30).collect::<Vec<_>>().join(";"));
            }
        }
        // On a busy machine, the tables of other programs are made first.
        report::note(&format!("{node}: {whole} of {all} samples are whole"));
        assert!(all * 97 <= whole * 100, "{node}: {whole} of {all}: {others:#?}");
        seen += whole;
    }
    if seen == 0 {
        report::skipped(test, "the agent made the tables of other programs first");
    }
}
