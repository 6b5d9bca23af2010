//! Stacks of stopped Java programs.
//!
//! A program writes its own stack as Java sees it, and then waits for a byte. The C code of the BPF programs walks the
//! stack of the waiting thread, and all frames must be equal. Another program is stopped at random moments, and all of
//! its calls must be on the stack. `VARVE_STOPS` is the number of stops of each program, and `VARVE_UNWIND_SEED`
//! chooses the moments as far as possible.

mod program;

use std::path::Path;
use std::time::Duration;

use ebpf::UserEnd;
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::SeedableRng as _;
use testkit::interpreters::{Interpreter, java_with_collector, javas};
use testkit::report;

use self::program::{Program, UNKNOWN, Walked, compile, wait_for};
use crate::unwind::tests::damage::{below, number};
use crate::unwind::tests::native::kernel::Kernel;

const CALLS: &str = include_str!("tests/Calls.java");
const BUSY: &str = include_str!("tests/Busy.java");
const TYPES: &str = include_str!("tests/Types.java");
/// Calls between the methods of the busy program, with the classes of Java between some of them: each method, and those
/// that call it.
const CALLERS: [(&str, &[&str]); 20] = [
    ("Busy.spin", &["Busy.third", "Busy.compare", "Busy$Square.area", "Busy$Circle.area", "Busy$Triangle.area"]),
    ("Busy.third", &["Busy.second"]),
    ("Busy.second", &["Busy.first"]),
    ("Busy.first", &["Busy.recurse", "Busy.raise"]),
    ("Busy.recurse", &["Busy.recurse", "Busy.run"]),
    ("Busy$Square.area", &["Busy.shapes"]),
    ("Busy$Circle.area", &["Busy.shapes"]),
    ("Busy$Triangle.area", &["Busy.shapes"]),
    ("Busy.shapes", &["Busy.run"]),
    ("Busy.compare", &["Busy.lambda$sort"]),
    ("Busy.lambda$sort", &["Busy.sort"]),
    ("Busy.sort", &["Busy.run"]),
    ("Busy.raise", &["Busy.fail"]),
    ("Busy.fail", &["Busy.run"]),
    ("Busy.texts", &["Busy.run"]),
    ("Busy.copy", &["Busy.lambda$maps"]),
    ("Busy.lambda$maps", &["Busy.maps"]),
    ("Busy.maps", &["Busy.run"]),
    ("Busy.waits", &["Busy.run"]),
    ("Busy.run", &[]),
];
/// Stacks of the program that calls stubs, leaf first.
const STACKS: [&[&str]; 7] = [
    &["Types.run"],
    &["Types.types", "Types.run"],
    &["Types.check", "Types.types", "Types.run"],
    &["Types.fail", "Types.run"],
    &["Types.second", "Types.fail", "Types.run"],
    &["Types.third", "Types.second", "Types.fail", "Types.run"],
    &["Types.raise", "Types.third", "Types.second", "Types.fail", "Types.run"],
];
/// Garbage collectors. They differ in the code that a method begins and ends with.
const COLLECTORS: [&str; 5] = ["Serial", "Parallel", "G1", "Shenandoah", "Z"];
/// Largest part of the stops that may have a wrong stack, besides two: one of so many. Some stubs move the stack
/// pointer in ways that no rule knows.
const WRONG_PART: u64 = 50;

/// Compares the stacks of a program that waits with those that it writes.
fn compare_waiting((name, java): (&str, &Interpreter), classes: &Path, kernel: &mut Kernel, stops: u64) {
    let options = ["-XX:+UnlockDiagnosticVMOptions", "-XX:+ShowHiddenFrames"];
    let mut program = Program::start(java, classes, "Calls", "calls", &options, kernel);
    let mut frames = 0;
    for stop in 0..stops {
        let expected = program.printed();
        let Walked { lines, end, .. } = program.walk_waiting(kernel);
        let above = lines.iter().position(|line| line.function == "Calls.stop");
        let walked = above.map_or(&[][..], |above| &lines[above + 1..]);
        assert_eq!(walked, &expected[1..], "{name}: stop {stop}");
        assert_eq!(end, UserEnd::Root, "{name}: stop {stop}");
        frames += walked.len();
        program.go_on();
    }
    report::note(&format!("{name}: {stops} stacks with {frames} functions are equal"));
}

/// Returns the reason why a stack cannot be that of the busy program; `None` if it can be.
fn fault(walked: &Walked) -> Option<String> {
    // Compilers number lambdas.
    let plain = |name: &'_ str| name.trim_end_matches(|last: char| last == '$' || last.is_ascii_digit()).to_owned();
    let names = walked.lines.iter().filter(|line| is_own(&line.function));
    let own: Vec<String> = names.map(|line| plain(&line.function)).collect();
    let own: Vec<&str> = own.iter().map(String::as_str).collect();
    let is_call = |pair: &[&str]| {
        let callers = CALLERS.iter().find(|(name, _)| *name == pair[0]).map_or(&[][..], |(_, callers)| callers);
        callers.contains(&pair[1])
    };
    let wrong = own.windows(2).find(|pair| !is_call(pair)).map(|pair| format!("{} calls {}", pair[1], pair[0]));
    let depth = own.iter().filter(|name| **name == "Busy.recurse").count();
    let mut outer = walked.lines[walked.innermost..].iter();
    let is_in_first = outer.any(|line| line.function == "Busy.first") && depth != 0;
    let ends = || (walked.end != UserEnd::Root).then(|| format!("{:?}", walked.end));
    let begins = || (own.last() != Some(&"Busy.run")).then(|| format!("{:?} is the outermost method", own.last()));
    let misses = || (is_in_first && depth != 31).then(|| format!("{depth} frames of the recursion"));
    let unknown = walked.lines.iter().find(|line| line.function.starts_with(UNKNOWN));
    let unknown = unknown.map(|line| line.function.clone());
    unknown.or(wrong).or_else(ends).or_else(begins).or_else(misses)
}

/// True for a method of the busy program. Classes that the virtual machine makes for lambdas are none.
fn is_own(name: &str) -> bool {
    name.starts_with("Busy") && !name.contains("$$Lambda")
}

/// Starts a program, and waits until a method is on the stack of its thread.
fn start_busy(
    java: &Interpreter,
    classes: &Path,
    (class, thread, method): (&str, &str, &str),
    options: &[&str],
    kernel: &mut Kernel,
) -> Program {
    let program = Program::start(java, classes, class, thread, options, kernel);
    wait_for(|| program.walk(kernel).lines.iter().any(|line| line.function == method).then_some(()));
    program
}

/// Checks the stacks of a busy program at random moments. Prints the wrong ones.
fn check_busy(
    (name, java): (&str, &Interpreter),
    classes: &Path,
    kernel: &mut Kernel,
    stops: u64,
    random: &mut SplitMix64,
) {
    let (mut wrong, mut frames) = (0, 0);
    let program = start_busy(java, classes, ("Busy", "busy", "Busy.run"), &[], kernel);
    for _ in 0..stops {
        std::thread::sleep(Duration::from_micros(1 + below(random, 3000) as u64));
        let walked = program.walk(kernel);
        frames += walked.lines.len();
        if let Some(fault) = fault(&walked) {
            report::note(&format!("{name}: {fault}: {:?}", walked.lines));
            wrong += 1;
        }
    }
    report::note(&format!("{name}: {} of {stops} stacks are right, with {frames} functions", stops - wrong));
    assert!(wrong <= 2 + stops / WRONG_PART, "{name}: {wrong} of {stops} stacks are wrong");
}

#[test]
fn stacks_of_stopped_java_programs_are_those_that_java_sees() {
    let test = "stacks_of_stopped_java_programs_are_those_that_java_sees";
    let (stops, seed) = (number("VARVE_STOPS", 100), number("VARVE_UNWIND_SEED", 1));
    let statements = (0..700).map(|i| format!("x = x * 31 + {} ^ (x >>> {});\n", i % 97, 1 + i % 13));
    let calls = CALLS.replace("/* STATEMENTS */", &statements.collect::<String>());
    let folder = tempfile::tempdir().unwrap();
    let classes = folder.path();
    if !compile(classes, &[("Calls", &calls), ("Busy", BUSY)]) {
        return report::skipped(test, "there is no javac");
    }
    let mut random = SplitMix64::seed_from_u64(seed);
    let mut kernel = Kernel::new();
    for java in javas() {
        for collector in COLLECTORS {
            let name = format!("{java} with {collector}GC");
            let Some(java) = java_with_collector(&java, collector) else {
                // Every Java has this one.
                assert_ne!(collector, "Serial", "{name}: it does not start");
                report::note(&format!("{name}: it does not start"));
                continue;
            };
            compare_waiting((&name, &java), classes, &mut kernel, stops);
            check_busy((&name, &java), classes, &mut kernel, stops, &mut random);
        }
    }
}

#[test]
fn names_have_the_types_of_parameters_if_they_are_wanted() {
    let test = "names_have_the_types_of_parameters_if_they_are_wanted";
    let folder = tempfile::tempdir().unwrap();
    let classes = folder.path();
    if !compile(classes, &[("Types", TYPES)]) {
        return report::skipped(test, "there is no javac");
    }
    let mut kernel = Kernel::new();
    let options = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"];
    for java in javas() {
        let mut program = start_busy(&java, classes, ("Types", "types", "Types.check"), &options, &mut kernel);
        program.has_parameters = true;
        let wanted = ["Types.check(Object)", "Types.types(int)"];
        report::note(&java.to_string());
        // The thread may not have run between two stops.
        wait_for(|| {
            let Walked { lines, .. } = program.walk(&mut kernel);
            wanted.iter().all(|name| lines.iter().any(|line| line.function == *name)).then_some(())
        });
    }
}

/// In code of HotSpot's first compiler, these methods call stubs that have no frame, with arguments on the stack.
#[test]
fn stubs_without_a_frame_are_left_to_their_callers() {
    let test = "stubs_without_a_frame_are_left_to_their_callers";
    let (stops, seed) = (number("VARVE_STOPS", 100), number("VARVE_UNWIND_SEED", 1));
    let folder = tempfile::tempdir().unwrap();
    let classes = folder.path();
    if !compile(classes, &[("Types", TYPES)]) {
        return report::skipped(test, "there is no javac");
    }
    let mut random = SplitMix64::seed_from_u64(seed);
    let mut kernel = Kernel::new();
    let options = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"];
    for java in javas() {
        let program = start_busy(&java, classes, ("Types", "types", "Types.check"), &options, &mut kernel);
        let (mut stop, mut checks) = (0, 0);
        // The thread may not have run between two stops, so the number in the method that calls the stub varies.
        while stop < stops || checks * 4 < stops {
            std::thread::sleep(Duration::from_micros(1 + below(&mut random, 3000) as u64));
            let Walked { lines, end, .. } = program.walk(&mut kernel);
            let own: Vec<&str> = lines.iter().map(|line| line.function.as_str()).collect();
            let own = &own[own.iter().position(|name| name.starts_with("Types.")).unwrap_or(own.len())..];
            let own = &own[..own.iter().position(|name| *name == "Types.run").map_or(own.len(), |at| at + 1)];
            let is_known = STACKS.contains(&own);
            assert!(is_known && end == UserEnd::Root, "{java}: stop {stop}: {end:?} {lines:?}");
            checks += u64::from(own[0] == "Types.check");
            stop += 1;
            assert!(stop < stops * 40, "{java}: only {checks} stops are in the method that calls the stub");
        }
    }
}
