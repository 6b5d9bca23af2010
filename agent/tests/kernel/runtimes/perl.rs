//! Samples of Perl programs: the subs of each version, between native frames in the order of the calls.

use std::path::Path;
use std::process::Stdio;

use crate::support::agent::RunningAgent;
use crate::support::view::{Frame, Sample, are_nearly_all};
use testkit::interpreters::{Interpreter, perls};
use testkit::report;

/// Program with a known path of calls: through recursion, a method, a closure, the text of an eval, and C code that
/// calls a sub, once in an eval of its own.
const PROGRAM: &str = r#"
use strict;
use List::Util ();

sub spin {
    my $until = shift;
    my $total = 0;
    while (time < $until) {
        $total += $_ * $_ for 1 .. 2000;
    }
    return $total;
}

package Worker;
use overload '""' => sub { my $self = shift; return main::spin($self->{until}) . '' };
sub new { my ($class, $until) = @_; return bless { until => $until }, $class }
sub method { my $self = shift; my $text = "$self"; return $text }

package main;

sub in_text { my $worker = shift; my $total = eval '$worker->method . ""'; return $total }

sub called_from_c {
    my $until = shift;
    my $closure = sub { my $worker = shift; my $total = in_text($worker); return $total };
    my $found = List::Util::first(sub { my $total = $closure->($_); return $total }, Worker->new($until));
    return 0;
}

sub descend {
    my ($depth, $until) = @_;
    my $total = $depth ? descend($depth - 1, $until) : 0;
    return $total if $depth;
    my @sorted = sort { called_from_c($until) } 1, 2;
    return 1;
}

no warnings 'recursion';
descend(40, time + 10);
"#;

/// The functions on the stack of [`PROGRAM`], leaf first. The number is that of repetitions.
const STACK: [(&str, usize); 9] = [
    ("main::spin", 1),
    ("Worker::__ANON__", 1),
    ("Worker::method", 1),
    ("(eval)", 1),
    ("main::in_text", 1),
    ("main::__ANON__", 2),
    ("main::called_from_c", 1),
    ("main::descend", 41),
    ("<toplevel>", 1),
];

/// Calls of subs by C code: the function that C code called, and its caller.
const FROM_C: [(&str, &str); 3] = [
    ("Worker::__ANON__", "Worker::method"),
    ("main::__ANON__", "main::called_from_c"),
    ("main::called_from_c", "main::descend"),
];

/// Name of the native function that runs the operations of subs.
const LOOP: &str = "Perl_runops_standard";

fn is_perl(frame: &Frame) -> bool {
    frame.kind == "perl"
}

/// True if a sample has the functions of [`STACK`], and a loop and C code at each call of [`FROM_C`].
fn is_whole(sample: &Sample) -> bool {
    let functions = sample.frames.iter().filter(|frame| is_perl(frame)).map(|frame| frame.name.as_str());
    let expected = STACK.iter().flat_map(|(name, count)| std::iter::repeat_n(*name, *count));
    functions.eq(expected) && FROM_C.iter().all(|(inner, outer)| has_c_between(sample, inner, outer))
}

/// True if a sample has the loop that runs the function `inner`, and then C code, between it and its caller `outer`.
fn has_c_between(sample: &Sample, inner: &str, outer: &str) -> bool {
    let starts = (0..sample.frames.len()).filter(|at| sample.frames[*at].name == inner);
    let mut afters = starts.map(|at| &sample.frames[at + 1..]);
    afters.any(|after| {
        let end = after.iter().position(is_perl).unwrap_or_default();
        1 < end && after[0].name == LOOP && after[end].name == outer
    })
}

/// Samples a script with all interpreters at once, and returns the samples of each; `None` if this machine cannot
/// sample.
fn sampled(test: &str, script: &Path) -> Option<Vec<(Interpreter, Vec<Sample>)>> {
    let interpreters = perls();
    if interpreters.is_empty() {
        report::skipped(test, "there is no Perl 5");
        return None;
    }
    let agent = RunningAgent::start_with(test, 99, false)?;
    let start = |interpreter: Interpreter| {
        let child = interpreter.command().arg(script).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        (interpreter, child)
    };
    let mut children: Vec<_> = interpreters.into_iter().map(start).collect();
    for (interpreter, child) in &mut children {
        assert!(child.wait().unwrap().success(), "{interpreter}");
    }
    let (samples, _) = agent.stop(test);
    let of = |pid: u32| samples.iter().filter(move |sample| sample.is_of(pid)).cloned().collect();
    Some(children.into_iter().map(|(interpreter, child)| (interpreter, of(child.id()))).collect())
}

#[test]
fn subs_of_each_perl_are_on_the_stack_in_the_order_of_the_calls() {
    let test = "subs_of_each_perl_are_on_the_stack_in_the_order_of_the_calls";
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("program.pl");
    std::fs::write(&script, PROGRAM).unwrap();
    for (interpreter, samples) in sampled(test, &script).unwrap_or_default() {
        // The tables of the program's files are made by the first whole sample.
        let wholes = samples.iter().filter(|sample| is_whole(sample));
        let start = wholes.flat_map(|sample| &sample.times).min().copied().unwrap_or_default();
        let (mut whole, mut all) = (0, 0);
        let mut other = Vec::new();
        for sample in &samples {
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
