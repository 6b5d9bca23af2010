//! Samples of programs whose compiled code is named by a perf map: .NET and Erlang. If there is no perf map, or if the
//! runtime writes none, as LuaJIT, frames say so.

use std::fs;
use std::process::{Command, Stdio};

use crate::support::agent::RunningAgent;
use crate::support::view::{Frame, Sample};
use testkit::interpreters::{dotnet, erlang, luajit};
use testkit::report;

/// Program with a known path of calls: `Main`, `Descend` 21 times, `Spin`.
const CSHARP: &str = "
using System;
public class Work {
    static double sink;
    static double Spin(long until) {
        double total = 0;
        while (DateTime.UtcNow.Ticks < until)
            for (int i = 0; i < 20000; i++) total += i * (double)i;
        return total;
    }
    static double Descend(int depth, long until) {
        return depth == 0 ? Spin(until) : Descend(depth - 1, until) + 1;
    }
    public static void Main() {
        sink = Descend(20, DateTime.UtcNow.Ticks + 100000000L);
    }
}
";

/// The same in Erlang. `count/2` calls itself in place of a loop.
const ERLANG: &str = "
-module(work).
-export([main/0]).
spin(Until, Total) ->
    case erlang:monotonic_time(millisecond) < Until of
        true -> spin(Until, count(20000, Total));
        false -> Total
    end.
count(0, Total) -> Total;
count(N, Total) -> count(N - 1, (Total * 31 + N) band 16#ffffff).
descend(0, Until) -> 1 + spin(Until, 0);
descend(Depth, Until) -> descend(Depth - 1, Until) + 1.
main() ->
    descend(20, erlang:monotonic_time(millisecond) + 10000),
    halt().
";

/// Time in which the tables of a program's files are made and its perf map is read, in nanoseconds.
const START_NS: u64 = 3_000_000_000;

/// A loop that LuaJIT compiles.
const LUA: &str = "
local function spin(stop)
    local total = 0
    while os.clock() < stop do
        for i = 1, 1000000 do total = (total * 31 + i) % 16777213 end
    end
    return total
end
print(spin(10))
";

/// True if a frame has this name and this type.
fn has_frame(sample: &Sample, name: &str, kind: &str) -> bool {
    sample.frames.iter().any(|frame| frame.name == name && frame.kind == kind)
}

/// Runs a program while the agent samples, and returns its samples without those of its start; `None` if this machine
/// cannot sample.
fn sampled(test: &str, mut command: Command) -> Option<Vec<Sample>> {
    let agent = RunningAgent::start(test, 99)?;
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    assert!(child.wait().unwrap().success());
    let (samples, _) = agent.stop(test);
    let mut own: Vec<Sample> = samples.into_iter().filter(|sample| sample.is_of(child.id())).collect();
    let start = own.iter().flat_map(|sample| &sample.times).min().copied().unwrap_or_default();
    own.iter_mut().for_each(|sample| sample.times.retain(|time| start + START_NS < *time));
    own.retain(|sample| !sample.times.is_empty());
    Some(own)
}

/// Returns the number of samples for which `is_it` is true, and the number of all.
fn count(samples: &[Sample], is_it: impl Fn(&Sample) -> bool) -> (usize, usize) {
    let sum = |samples: &mut dyn Iterator<Item = &Sample>| samples.map(|sample| sample.times.len()).sum();
    (sum(&mut samples.iter().filter(|sample| is_it(sample))), sum(&mut samples.iter()))
}

/// Checks that nearly all `samples` are as `is_it` says.
fn assert_nearly_all(what: &str, samples: &[Sample], is_it: impl Fn(&Sample) -> bool) {
    let (right, all) = count(samples, &is_it);
    report::note(&format!("{what}: {right} of {all} samples"));
    let text = |sample: &Sample| {
        let frames = sample.frames.iter().map(|frame| format!("{}:{}@{}", frame.kind, frame.name, frame.file));
        format!("{} of {}", sample.times.len(), frames.collect::<Vec<_>>().join(";"))
    };
    let wrong: Vec<_> = samples.iter().filter(|sample| !is_it(sample)).map(text).collect();
    assert!(100 < right && all * 98 <= right * 100, "{what}: {right} of {all}: {wrong:#?}");
}

/// Returns the frames of a sample that have a type, after the innermost ones that are not `descend`.
fn calls<'a>(frames: &'a [Frame], kind: &str, descend: &str) -> Vec<&'a str> {
    let own = frames.iter().filter(|frame| frame.kind == kind).map(|frame| frame.name.as_str());
    own.skip_while(|name| *name != descend).collect()
}

#[test]
fn functions_of_dotnet_are_named_by_its_perf_map() {
    let test = "functions_of_dotnet_are_named_by_its_perf_map";
    let Some(dotnet) = dotnet() else { return report::skipped(test, "there is no .NET, or no compiler of C#") };
    let folder = tempfile::tempdir().unwrap();
    dotnet.compile(CSHARP, folder.path());
    let run = |setting| {
        let mut command = dotnet.command(folder.path());
        command.env("COMPlus_PerfMapEnabled", setting);
        let samples = sampled(test, command)?;
        // Other threads compile and wait.
        let is_code = |frame: &Frame| frame.kind == "dotnet" || frame.name == "[anonymous code]";
        let has_code = |sample: &Sample| sample.frames.iter().any(is_code);
        Some(samples.into_iter().filter(has_code).collect::<Vec<_>>())
    };
    let ends_in_native = |sample: &Sample| {
        let last = sample.frames.last().unwrap();
        last.kind == "native" && !last.name.starts_with('[')
    };
    let descend = "float64 [program] Work::Descend(int32,int64)[QuickJitted]";
    let expected = [vec![descend; 21], vec!["void [program] Work::Main()[QuickJitted]"]].concat();
    // On a busy host, the table of the virtual machine comes late.
    let check_ends = |samples: &[Sample]| {
        let (whole, all) = count(samples, ends_in_native);
        report::note(&format!("{whole} of {all} samples have the native callers of compiled code"));
        assert!(0 < whole);
    };
    let Some(samples) = run("1") else { return };
    assert_nearly_all(".NET with a perf map", &samples, |sample| calls(&sample.frames, "dotnet", descend) == expected);
    check_ends(&samples);
    let Some(samples) = run("0") else { return };
    assert_nearly_all(".NET without one", &samples, |sample| has_frame(sample, "[no .NET perf map]", "dotnet"));
    check_ends(&samples);
}

#[test]
fn functions_of_erlang_are_named_by_its_perf_map() {
    let test = "functions_of_erlang_are_named_by_its_perf_map";
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("work.erl"), ERLANG).unwrap();
    let run = |setting| {
        let mut command = erlang()?;
        command.current_dir(folder.path()).args(["+JPperf", setting, "-noshell", "-eval", "c:c(work), work:main()."]);
        sampled(test, command)
    };
    if erlang().is_none() {
        return report::skipped(test, "there is no Erlang");
    }
    let Some(samples) = run("true") else { return };
    // Between two processes of Erlang, only BEAM itself runs.
    let is_process = |frame: &Frame| frame.kind == "beam" && frame.name != "global::process_main";
    let is_beam = |sample: &Sample| sample.frames.iter().any(is_process);
    let samples: Vec<_> = samples.into_iter().filter(is_beam).collect();
    let expected = [vec!["work:descend/2"; 21], vec!["work:main/0"]].concat();
    assert_nearly_all("Erlang with a perf map", &samples, |sample| {
        calls(&sample.frames, "beam", "work:descend/2").starts_with(&expected)
            && sample.frames.last().is_some_and(|frame| frame.kind == "beam")
    });
    let Some(samples) = run("false") else { return };
    let (unnamed, all) = count(&samples, |sample| has_frame(sample, "[no BEAM perf map]", "beam"));
    report::note(&format!("Erlang without one: {unnamed} of {all} samples say that there is none"));
    assert!(100 < unnamed && all * 9 <= unnamed * 10, "{unnamed} of {all}");
}

#[test]
fn code_that_luajit_compiles_has_a_frame_of_its_own() {
    let test = "code_that_luajit_compiles_has_a_frame_of_its_own";
    let Some(luajit) = luajit() else { return report::skipped(test, "there is no LuaJIT") };
    let mut command = luajit.command();
    command.args(["-e", LUA]);
    let Some(samples) = sampled(test, command) else { return };
    assert_nearly_all("LuaJIT", &samples, |sample| has_frame(sample, "[LuaJIT code]", "luajit"));
}
