//! Survey of the language runtimes that run on this host.

use std::collections::HashMap;
use std::fs::File;

use super::languages;
use super::reader::{Reader, Timed};
#[cfg(target_arch = "x86_64")]
use super::{languages::hotspot::process::HotSpot, memory::ProcessMemory};
use crate::names::jit::has_perf_map;
#[cfg(target_arch = "x86_64")]
use crate::process::file::table::open_mapping;
use crate::process::maps::{Backing, Maps, ProcessMapping};
use crate::process::procfs::{open_as_seen_by, open_mapped, read_at_most};

/// Largest number of bytes of a process's command name.
const COMMAND_BYTES_MAX: u64 = 64;

/// A language runtime in a process that runs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunningRuntime {
    /// The process.
    pub pid: u32,
    /// Name of its command, in at most 15 bytes.
    pub command: String,
    /// Name of the runtime, and its version if the agent records its functions by the runtime's structures.
    pub runtime: String,
    /// Reason why the functions of the language are missing, with a remedy if there is one. `None` if the agent records
    /// them.
    pub missing: Option<&'static str>,
}

/// Name of a runtime, and the reason why its functions are missing.
type Found = (String, Option<&'static str>);
/// Runtime of a file.
type OfFile = Option<Found>;

/// Returns the language runtimes of all processes, by pid. Processes that cannot be read are left out.
#[must_use]
pub fn survey() -> Vec<RunningRuntime> {
    let mut files = HashMap::new();
    let pids = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut found: Vec<RunningRuntime> = pids.flat_map(|pid| of_process(pid, &mut files)).collect();
    found.sort();
    found
}

/// Returns the runtimes of one process. `files` has the runtimes of the files that were read already, by device and
/// inode.
fn of_process(pid: u32, files: &mut HashMap<((u32, u32), u64), OfFile>) -> Vec<RunningRuntime> {
    let Ok(maps) = Maps::of_process(pid) else { return Vec::new() };
    let mut found = Vec::new();
    for mapping in maps.iter() {
        let Backing::File { device, inode, path } = &mapping.backing else { continue };
        let of_file = files.entry((*device, *inode)).or_insert_with(|| of_file(pid, mapping, path));
        if let Some((runtime, missing)) = of_file.clone().map(|found| in_process(pid, mapping, found)) {
            let command = read_at_most(format!("/proc/{pid}/comm"), COMMAND_BYTES_MAX).unwrap_or_default();
            let command = String::from_utf8_lossy(command.trim_ascii()).into_owned();
            let runtime = RunningRuntime { pid, command, runtime, missing };
            if !found.contains(&runtime) {
                found.push(runtime);
            }
        }
    }
    // The file of a program may have the name of the runtime, and the runtime itself may be in a library.
    let recorded: Vec<String> =
        found.iter().filter(|one| one.missing.is_none()).map(|one| one.runtime.clone()).collect();
    let is_recorded = |one: &RunningRuntime| recorded.iter().any(|runtime| runtime.starts_with(&one.runtime));
    found.retain(|one| one.missing.is_none() || !is_recorded(one));
    found
}

/// Returns what a process tells about the runtime in one of its files: the version of Java, and whether there is a perf
/// map. The process may keep a read waiting, so another thread reads.
fn in_process(pid: u32, mapping: &ProcessMapping, (runtime, missing): Found) -> Found {
    let mut reader = Reader::default();
    match (runtime.as_str(), missing) {
        (JAVA, None) => {
            let library = mapping.clone();
            match reader.run(move || hotspot_version(pid, &library)) {
                Ok(Timed { result: Some(version), .. }) => (format!("{JAVA} {version}"), None),
                _ => (runtime, Some(UNREAD_JAVA)),
            }
        }
        (_, Some(DOTNET | BEAM)) if reader.run(move || has_perf_map(pid)).is_ok_and(|read| read.result) => {
            (runtime, None)
        }
        _ => (runtime, missing),
    }
}

/// Returns the major version of the Java in a process; `None` if its functions are not recorded.
#[cfg(target_arch = "x86_64")]
fn hotspot_version(pid: u32, mapping: &ProcessMapping) -> Option<u32> {
    let file = open_mapping(pid, mapping).ok()?;
    let memory = ProcessMemory::of_process(pid)?;
    Some(HotSpot::read(&memory, &file, mapping.start, mapping.offset)?.layout.version)
}

#[cfg(not(target_arch = "x86_64"))]
fn hotspot_version(_pid: u32, _mapping: &ProcessMapping) -> Option<u32> {
    None
}

fn of_file(pid: u32, mapping: &ProcessMapping, path: &str) -> OfFile {
    let opened = open_mapped(pid, mapping.start, mapping.end).or_else(|_| open_as_seen_by(pid, path));
    let known = opened.ok().and_then(|(file, _)| version(&file, path));
    known.map(|version| (version, None)).or_else(|| without_functions(path))
}

/// Returns the name and version of the runtime in a file, if the agent records its functions.
fn version(file: &File, path: &str) -> Option<String> {
    #[cfg(target_arch = "x86_64")]
    return languages::recognise(file, path)
        .map(|(_, layout)| layout.version())
        .or_else(|| languages::hotspot::process::is_hotspot(file).then(|| JAVA.to_owned()));
    #[cfg(not(target_arch = "x86_64"))]
    {
        let _no_runtime_is_known = (file, path);
        None
    }
}

/// Name of the runtime whose version only a process tells.
const JAVA: &str = "Java";

/// Reason for a runtime whose versions are known in general.
const OTHER_VERSION: &str = "this version or build is not supported: docs/runtimes.md lists those that are";

const UNREAD_JAVA: &str =
    "its code could not be read now, or this build is not supported: docs/runtimes.md lists those that are";
const DOTNET: &str =
    "set DOTNET_PerfMapEnabled=1, or COMPlus_PerfMapEnabled=1 before .NET 6: its perf map then names functions";
const BEAM: &str = "start it with +JPperf true: its perf map then names functions, and stacks are whole";

const LUAJIT: &str = "its functions are not recorded, and it writes no perf map";
const DENO: &str = "its functions are not recorded: its file has no symbols that describe V8's objects";
const BUN: &str = "its functions are not recorded: it runs JavaScript in JavaScriptCore";

/// Beginnings of the names of files with a runtime whose functions are not recorded, and the reasons.
const WITHOUT_FUNCTIONS: [(&str, &str, &str); 13] = [
    ("libjvm.so", JAVA, OTHER_VERSION),
    ("node", "V8", OTHER_VERSION),
    ("libcoreclr.so", ".NET", DOTNET),
    ("libpython", "CPython", OTHER_VERSION),
    ("python", "CPython", OTHER_VERSION),
    ("libruby", "Ruby", OTHER_VERSION),
    ("php", "PHP", OTHER_VERSION),
    ("perl", "Perl", OTHER_VERSION),
    ("beam.smp", "BEAM", BEAM),
    ("luajit", "LuaJIT", LUAJIT),
    ("libluajit", "LuaJIT", LUAJIT),
    ("deno", "Deno", DENO),
    ("bun", "Bun", BUN),
];

/// Returns the runtime of a file by the file's name.
fn without_functions(path: &str) -> OfFile {
    let name = path.rsplit('/').next()?;
    // The name may go on with a version, but not with another word.
    let is_it = |beginning: &str| {
        let rest = name.strip_prefix(beginning)?;
        rest.bytes().all(|byte| byte.is_ascii_digit() || b".so-mdt".contains(&byte)).then_some(())
    };
    let (_, runtime, missing) = WITHOUT_FUNCTIONS.iter().find(|(beginning, ..)| is_it(beginning).is_some())?;
    Some(((*runtime).to_owned(), Some(*missing)))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn runtimes_without_functions_are_found_by_the_names_of_their_files() {
        for (path, runtime) in [
            ("/usr/lib/jvm/java-17/lib/server/libjvm.so", Some("Java")),
            ("/usr/bin/python2.7", Some("CPython")),
            ("/usr/lib/libpython3.5m.so.1.0", Some("CPython")),
            ("/usr/bin/perl5.36.0", Some("Perl")),
            ("/usr/bin/node", Some("V8")),
            ("/usr/bin/node_exporter", None),
            ("/usr/bin/phpmyadmin-helper", None),
            ("/usr/share/dotnet/shared/Microsoft.NETCore.App/8.0.1/libcoreclr.so", Some(".NET")),
            ("/usr/lib/erlang/erts-13.1.5/bin/beam.smp", Some("BEAM")),
            ("/usr/lib/x86_64-linux-gnu/libluajit-5.1.so.2.1.0", Some("LuaJIT")),
            ("/usr/local/lib/node_modules/deno/node_modules/@deno/linux-x64-glibc/deno", Some("Deno")),
            ("/root/.bun/bin/bun", Some("Bun")),
            ("/usr/bin/bundle", None),
            ("/usr/bin/bash", None),
        ] {
            assert_eq!(without_functions(path).map(|(runtime, _)| runtime).as_deref(), runtime, "{path}");
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn a_process_is_listed_with_its_runtime_and_version() {
        let test = "a_process_is_listed_with_its_runtime_and_version";
        let Some(interpreter) = testkit::interpreters::pythons().into_iter().next() else {
            return testkit::report::skipped(test, "there is no Python 3");
        };
        let printed = interpreter.command().arg("--version").output().unwrap();
        let version = String::from_utf8(printed.stdout).unwrap();
        // "Python 3.11.2" becomes "CPython 3.11".
        let expected = format!("C{}", version.trim().rsplit_once('.').unwrap().0);
        let script = ["-c", "import sys; print(flush=True); sys.stdin.read()"];
        let mut command: Command = interpreter.command();
        let mut child = command.args(script).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        // The line tells that the interpreter runs.
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        let of_child: Vec<_> = survey().into_iter().filter(|found| found.pid == child.id()).collect();
        drop(child.stdin.take());
        child.wait().unwrap();
        let [found] = of_child.as_slice() else { panic!("{of_child:?}") };
        assert_eq!((found.runtime.as_str(), found.missing), (expected.as_str(), None));
    }
}
