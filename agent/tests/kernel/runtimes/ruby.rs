//! Samples of Ruby programs: the functions of each version, between native frames in the order of the calls.

use std::process::Stdio;

use crate::support::agent::RunningAgent;
use crate::support::view::{Frame, Sample, are_nearly_all};
use testkit::interpreters::{Interpreter, rubies, rubies_that_compile};
use testkit::report;

/// Program with a known path of calls: through recursion, blocks, and C code that calls methods.
const PROGRAM: &str = r#"
def work
  total = i = 0
  while i < 20_000
    total += i & 7
    i += 1
  end
  total
end

def spin(stop)
  total = 0
  total += work while Process.clock_gettime(Process::CLOCK_MONOTONIC) < stop
  total
end

class Worker
  def initialize(stop)
    @stop = stop
  end

  def <=>(other)
    [1].inject(0) do |sum, _|
      sum + spin(@stop)
    end
  end
end

def sorts(stop)
  [Worker.new(stop), Worker.new(stop)].sort
end

def descend(depth, stop)
  depth > 0 ? descend(depth - 1, stop) : sorts(stop)
end

descend(40, Process.clock_gettime(Process::CLOCK_MONOTONIC) + 10)
"#;

/// Functions that [`PROGRAM`] calls in turn. Before Ruby 2.6, operators of bits are methods like others.
const INNER: [&str; 3] = ["&", "work", "clock_gettime"];

/// The functions that are on its stack all the time, leaf first, with the number of repetitions.
const STACK: [(&str, usize); 9] = [
    ("spin", 1),
    ("block in <=>", 1),
    ("each", 1),
    ("inject", 1),
    ("<=>", 1),
    ("sort", 1),
    ("sorts", 1),
    ("descend", 41),
    ("<main>", 1),
];

/// Name of the native function that runs Ruby functions.
const LOOP: &str = "rb_vm_exec";

/// Name of the frame of code that Ruby has compiled.
const COMPILED: &str = "[anonymous code]";

fn is_ruby(frame: &Frame) -> bool {
    frame.kind == "ruby"
}

/// True if a sample has the functions of [`STACK`], a loop and C code where C code called a function, and native frames
/// up to the root.
fn is_whole(sample: &Sample) -> bool {
    let functions = sample.frames.iter().filter(|frame| is_ruby(frame)).map(|frame| frame.name.as_str());
    let functions = functions.skip_while(|name| INNER.contains(name));
    let expected = STACK.iter().flat_map(|(name, count)| std::iter::repeat_n(*name, *count));
    let has_loops = [("block in <=>", "each"), ("<=>", "sort")].iter().all(|(inner, outer)| {
        let at = sample.frames.iter().position(|frame| is_ruby(frame) && frame.name == *inner);
        let after = at.map_or(&[][..], |at| &sample.frames[at + 1..]);
        let end = after.iter().position(is_ruby).unwrap_or_default();
        1 < end && after[0].name == LOOP && after[end].name == *outer
    });
    let outermost = sample.frames.iter().rposition(is_ruby).unwrap_or_default();
    let has_root = sample.frames[outermost..].iter().any(|frame| frame.name == "main");
    let is_broken = sample.frames.iter().any(|frame| frame.name == "[unwinding failed]");
    functions.eq(expected) && has_loops && has_root && !is_broken
}

/// True if a sample is whole, and compiled code runs its innermost function.
fn is_whole_and_compiled(sample: &Sample) -> bool {
    let innermost = sample.frames.iter().find(|frame| frame.kind != "kernel");
    is_whole(sample) && innermost.is_some_and(|frame| frame.name == COMPILED)
}

#[test]
fn functions_of_each_ruby_are_on_the_stack_in_the_order_of_the_calls() {
    // The agent does not name `main` of programs for musl, which have symbols here.
    let rubies = rubies().into_iter().filter(|interpreter| !interpreter.is_for_musl()).collect();
    check("functions_of_each_ruby_are_on_the_stack_in_the_order_of_the_calls", rubies, is_whole);
}

#[test]
fn functions_that_ruby_has_compiled_are_on_the_stack() {
    let test = "functions_that_ruby_has_compiled_are_on_the_stack";
    check(test, rubies_that_compile(), is_whole_and_compiled);
}

/// Samples the program in these interpreters, and checks that nearly all samples are whole.
fn check(test: &str, interpreters: Vec<Interpreter>, is_whole: fn(&Sample) -> bool) {
    if interpreters.is_empty() {
        return report::skipped(test, "there is no Ruby");
    }
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("program.rb");
    std::fs::write(&script, PROGRAM).unwrap();
    let Some(agent) = RunningAgent::start_with(test, 99, false) else { return };
    let mut children = Vec::new();
    for interpreter in interpreters {
        let child = interpreter.command().arg(&script).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        children.push((interpreter, child));
    }
    for (interpreter, child) in &mut children {
        assert!(child.wait().unwrap().success(), "{interpreter}");
    }
    let (all_samples, _) = agent.stop(test);
    for (interpreter, child) in children {
        let samples = all_samples.iter().filter(|sample| sample.is_of(child.id()));
        // The tables of the program's files are made by the first whole sample.
        let wholes = samples.clone().filter(|sample| is_whole(sample));
        let start = wholes.flat_map(|sample| &sample.times).min().copied().unwrap_or_default();
        let (mut whole, mut all) = (0, 0);
        let mut other = Vec::new();
        for sample in samples {
            let times = sample.times.iter().filter(|time| start <= **time).count() as u64;
            all += times;
            if is_whole(sample) {
                whole += times;
            } else if times != 0 {
                other.push(sample.frames.iter().map(|frame| frame.name.as_str()).collect::<Vec<_>>().join(";"));
            }
        }
        assert!(4 < whole && are_nearly_all(whole, all), "{interpreter}: {whole} of {all}: {other:#?}");
        report::note(&format!("{interpreter}: {whole} of {all} samples are whole"));
    }
}
