//! Samples of PHP programs: the functions of each version, between native frames in the order of the calls.

use std::ffi::OsString;

use super::python::{assert_whole, sampled};
use crate::support::view::{Frame, Sample};
use testkit::interpreters::{Interpreter, phps, phps_with_cache};

/// Program with a known path of calls: through recursion, generators, a method, a closure, and C code that calls PHP.
const PROGRAM: &str = r#"<?php
function spin($until) {
    $total = 0;
    while (microtime(true) < $until) {
        for ($i = 0; $i < 2000; $i++) {
            $total += $i * $i;
        }
    }
    return $total;
}

class Worker {
    function method($until) {
        return (function ($end) { return spin($end); })($until);
    }
}

function generator($until) { yield (new Worker())->method($until); }

function delegate($until) { yield from generator($until); }

function called_from_c($until) {
    foreach (delegate($until) as $total) {
        return $total;
    }
}

function descend($depth, $until) {
    if ($depth) {
        return descend($depth - 1, $until);
    }
    return array_map('called_from_c', [$until]);
}

function main() { descend(40, microtime(true) + 15); }

main();
"#;

/// Returns interpreters that compile code, and that this system can start without another dynamic linker: the functions
/// of compiled code are found from the program's executable, and a linker would be the executable.
pub(crate) fn compilers() -> Vec<Interpreter> {
    // PHP 7 has no compiler.
    let all = phps_with_cache(&COMPILER).into_iter().filter(|interpreter| !interpreter.to_string().contains("php7"));
    all.filter_map(|interpreter| without_linker(&interpreter)).collect()
}

/// Settings with which PHP compiles code.
pub(crate) const COMPILER: [&str; 3] =
    ["opcache.file_update_protection=0", "opcache.jit_buffer_size=32M", "opcache.jit=tracing"];

/// Returns the command that starts a PHP without another dynamic linker; `None` if this system cannot start it so.
pub(crate) fn without_linker(interpreter: &Interpreter) -> Option<Interpreter> {
    let program: OsString = interpreter.to_string().into();
    let own = interpreter.arguments.iter().position(|argument| argument == &program)?;
    let arguments = interpreter.arguments[own + 1..].to_vec();
    let direct = Interpreter { program: program.into(), arguments };
    let starts = direct.command().arg("-v").output().is_ok_and(|output| output.status.success());
    starts.then_some(direct)
}

/// Program that spends nearly all its time in compiled regular expressions.
const REGEX_PROGRAM: &str = r#"<?php
function search($text, $until) {
    while (microtime(true) < $until) {
        preg_match_all('/(\w+)\s+(?<number>\d+)/', $text, $matches);
        preg_match('/(?:a+b+)+c(?=d)|(\d{4})-(\d\d)-(\d\d)|<([a-z]+)>.*?<\/\5>/i', $text);
    }
}

search(str_repeat('abc 123 <li>n &amp; 5</li> 2026-11- ', 300), microtime(true) + 8);
"#;

/// Name of the native function that runs PHP functions.
const LOOP: &str = "execute_ex";

fn is_function(frame: &Frame) -> bool {
    frame.kind == "php"
}

/// True if a sample has all functions, in the order of the calls.
fn has_all_functions(sample: &Sample) -> bool {
    let mut names: Vec<&str> =
        sample.frames.iter().filter(|frame| is_function(frame)).map(|frame| frame.name.as_str()).collect();
    if names.first() == Some(&"microtime") {
        names.remove(0);
    }
    let Some((&["spin", closure, "Worker::method", "generator", "delegate", "called_from_c", "array_map"], outer)) =
        names.split_first_chunk()
    else {
        return false;
    };
    let Some((descends, ["main", "{main}"])) = outer.split_last_chunk() else { return false };
    closure.starts_with("Worker::{closure") && descends.len() == 41 && descends.iter().all(|name| *name == "descend")
}

/// True if a sample has the loop that runs the function `inner`, and then C code, between it and its caller `outer`.
fn has_c_between(sample: &Sample, inner: &str, outer: &str) -> bool {
    let of = |name| move |frame: &Frame| is_function(frame) && frame.name == name;
    let at = sample.frames.iter().position(of(inner));
    let Some((_, [first, between @ ..])) = at.and_then(|at| sample.frames.split_at_checked(at + 1)) else {
        return false;
    };
    let end = between.iter().position(of(outer));
    first.name == LOOP && end.is_some_and(|end| 0 < end && between[..end].iter().all(|frame| frame.kind == "native"))
}

#[test]
fn functions_of_each_php_are_on_the_stack_in_the_order_of_the_calls() {
    let test = "functions_of_each_php_are_on_the_stack_in_the_order_of_the_calls";
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("program.php");
    std::fs::write(&script, PROGRAM).unwrap();
    for (interpreter, samples) in sampled(test, [phps(), compilers()].concat(), &script, false).unwrap_or_default() {
        let is_whole = |sample: &Sample| {
            has_all_functions(sample)
                && has_c_between(sample, "generator", "delegate")
                && has_c_between(sample, "called_from_c", "array_map")
        };
        // The table of the program's file may be late on a busy machine.
        let has_loop = |sample: &&Sample| sample.frames.iter().any(|frame| frame.name == LOOP);
        let start = samples.iter().filter(has_loop).flat_map(|sample| &sample.times).min().copied();
        // At the end of the program, the interpreter runs without a function.
        let runs = |sample: &Sample| {
            let is_late = sample.times.iter().any(|time| start <= Some(*time));
            is_late && sample.frames.iter().any(|frame| frame.name == LOOP || frame.name.starts_with('['))
        };
        let running: Vec<Sample> = samples.into_iter().filter(runs).collect();
        assert_whole(&interpreter, &running, |sample| sample.times.len() as u64, is_whole);
    }
}

#[test]
fn callers_of_compiled_regular_expressions_are_on_the_stack() {
    let test = "callers_of_compiled_regular_expressions_are_on_the_stack";
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("program.php");
    std::fs::write(&script, REGEX_PROGRAM).unwrap();
    for (interpreter, samples) in sampled(test, phps(), &script, false).unwrap_or_default() {
        let functions = ["search", "{main}"];
        let is_whole = |sample: &Sample| {
            let names = sample.frames.iter().filter(|frame| is_function(frame)).map(|frame| frame.name.as_str());
            let names: Vec<&str> = names.collect();
            let place = |is_it: &dyn Fn(&Frame) -> bool| sample.frames.iter().position(is_it);
            // PCRE2 is a library, or part of PHP. The build with it has symbols, so the agent does not name its main().
            let places = [
                place(&|frame| frame.file.contains("libpcre2") || frame.file.ends_with("/sapi/cli/php")),
                place(&|frame| frame.name == "search"),
                place(&|frame| frame.name == LOOP),
                place(&|frame| frame.name == "main" || frame.file.ends_with("/libc.so")),
            ];
            names.ends_with(&functions) && places.iter().all(Option::is_some) && places.is_sorted()
        };
        let is_inside = |sample: &&Sample| sample.frames.iter().any(|frame| frame.name == "[anonymous code]");
        let inside: Vec<Sample> = samples.iter().filter(is_inside).cloned().collect();
        assert_whole(&interpreter, &inside, |sample| sample.times.len() as u64, is_whole);
    }
}
