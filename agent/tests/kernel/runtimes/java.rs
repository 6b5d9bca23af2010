//! Samples of Java programs: the methods of each version, between native frames in the order of the calls.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::agent::RunningAgent;
use crate::support::view::{Frame, Sample, are_nearly_all};
use testkit::interpreters::{Interpreter, javas};
use testkit::report;

/// Program with a known path of calls: through recursion, and through native code that calls Java, which initialises a
/// class.
const PROGRAM: &str = "
public class Known {
    static volatile long sink;

    static class Work {
        static {
            long until = System.currentTimeMillis() + 10000;
            while (System.currentTimeMillis() < until) sink += spin((int) sink & 1);
        }

        static long spin(int x) {
            long sum = x;
            for (int i = 0; i < 100000; i++) sum = sum * 31 + i;
            return sum;
        }
    }

    static void load() throws Exception {
        Class.forName(\"Known$Work\");
    }

    static void descend(int depth) throws Exception {
        if (depth == 0) load();
        else descend(depth - 1);
    }

    public static void main(String[] arguments) throws Exception {
        descend(40);
        for (int i = 0; i < 100; i++) Thread.sleep(20);
    }
}
";

/// Native method through which the program comes to the initialisation of the class.
const NATIVE: &str = "java.lang.Class.forName0";

/// Compiles a program for Java 8 and later into a folder. Returns false if there is no compiler.
pub(crate) fn compile(file: &Path, classes: &Path) -> bool {
    let mut javac = Command::new("javac");
    let compiled = javac.args(["--release", "8", "-nowarn", "-d"]).args([classes, file]).output();
    assert!(compiled.as_ref().map_or(true, |compiled| compiled.status.success()), "{compiled:?}");
    compiled.is_ok()
}

/// Returns the samples of a program that each Java runs; `None` if this machine cannot sample.
fn sampled(test: &str, javas: Vec<Interpreter>, classes: &Path) -> Option<Vec<(Interpreter, Vec<Sample>)>> {
    let agent = RunningAgent::start_with(test, 99, true)?;
    let start = |java: Interpreter| {
        let mut command = java.command();
        command.arg("-cp").arg(classes).arg("Known").stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap();
        (java, child)
    };
    let mut children: Vec<_> = javas.into_iter().map(start).collect();
    for (java, child) in &mut children {
        assert!(child.wait().unwrap().success(), "{java}");
    }
    let (samples, _) = agent.stop(test);
    let of = |pid: u32| samples.iter().filter(|sample| sample.is_of(pid)).cloned().collect();
    Some(children.into_iter().map(|(java, child)| (java, of(child.id()))).collect())
}

fn is_java(frame: &Frame) -> bool {
    frame.kind == "jvm" && !frame.name.starts_with('[')
}

/// Returns the names of the program's own methods, leaf first.
fn methods(sample: &Sample) -> Vec<&str> {
    let own = sample.frames.iter().filter(|frame| is_java(frame) && frame.name.starts_with("Known"));
    own.map(|frame| frame.name.as_str()).collect()
}

/// True if the stack of a sample has all calls of the program, and native frames at the right places.
fn is_whole(sample: &Sample) -> bool {
    let names = methods(sample);
    let names = names.strip_prefix(&["Known$Work.spin"][..]).unwrap_or(&names);
    let [initialise, load, descend @ .., main] = names else { return false };
    let at = |name: &str| sample.frames.iter().position(|frame| is_java(frame) && frame.name == name);
    let (Some(inner), Some(outer), Some(root)) = (at("Known$Work.<clinit>"), at(NATIVE), at("Known.main")) else {
        return false;
    };
    let is_native = |frame: &Frame| frame.kind == "native" && !frame.name.starts_with('[');
    (*initialise, *load, *main) == ("Known$Work.<clinit>", "Known.load", "Known.main")
        && descend.len() == 41
        && descend.iter().all(|name| *name == "Known.descend")
        && sample.frames[inner..outer].iter().any(is_native)
        && sample.frames[root + 1..].iter().any(is_native)
        && sample.frames[inner..].iter().all(|frame| is_native(frame) || frame.kind == "jvm")
}

#[test]
fn methods_of_each_java_are_on_the_stack_in_the_order_of_the_calls() {
    let test = "methods_of_each_java_are_on_the_stack_in_the_order_of_the_calls";
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("Known.java");
    std::fs::write(&file, PROGRAM).unwrap();
    let javas = javas();
    if javas.is_empty() || !compile(&file, folder.path()) {
        return report::skipped(test, "there is no Java, or no javac");
    }
    let Some(sampled) = sampled(test, javas, folder.path()) else { return };
    let mut waits_seen = 0;
    for (java, samples) in sampled {
        let runs = |sample: &&Sample| methods(sample).first().is_some_and(|name| name.starts_with("Known$Work"));
        let (waits, cpu): (Vec<_>, Vec<_>) = samples.iter().partition(|sample| sample.kind.0 == "off_cpu");
        let running: Vec<&Sample> = cpu.into_iter().filter(runs).collect();
        let count = |samples: &[&Sample]| samples.iter().map(|sample| sample.times.len() as u64).sum::<u64>();
        let (whole, other): (Vec<_>, Vec<_>) = running.iter().partition(|sample| is_whole(sample));
        let (whole, all) = (count(&whole), count(&running));
        report::note(&format!("{java}: {whole} of {all} samples are whole"));
        assert!(20 <= whole && are_nearly_all(whole, all), "{java}: {whole} of {all}: {other:#?}");
        // At its end, the program sleeps in a native method.
        let sleeps =
            |sample: &&Sample| sample.frames.iter().any(|frame| frame.name.starts_with("java.lang.Thread.sleep"));
        let slept: Vec<&Sample> = waits.into_iter().filter(sleeps).collect();
        assert!(slept.iter().all(|sample| methods(sample) == ["Known.main"]), "{java}: {slept:#?}");
        waits_seen += slept.len();
    }
    // On a busy host, few waits are chosen.
    assert!(waits_seen != 0);
}
