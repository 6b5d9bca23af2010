//! C programs that are compiled for a test, and the names of their addresses by their debug information.

use std::collections::{BTreeSet, HashMap};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use super::view::{Frame, Sample};

/// A compiled program.
pub(crate) struct Program {
    _folder: tempfile::TempDir,
    pub(crate) path: PathBuf,
}

impl Program {
    pub(crate) fn compile(source: &str) -> Self {
        Self::compile_with(source, &["-O1", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls"])
    }

    /// Compiles a program with these flags of gcc.
    pub(crate) fn compile_with(source: &str, flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("program");
        let source_path = folder.path().join("program.c");
        std::fs::write(&source_path, source).unwrap();
        let mut gcc = Command::new("gcc");
        gcc.args(["-g", "-pthread", "-o"]).args([&path, &source_path]).args(flags);
        let output = gcc.output().expect("gcc, which scripts/install-build-tools installs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Self { _folder: folder, path }
    }

    /// Moves the debug information into a separate file, to which the program refers.
    pub(crate) fn move_debug_information(&self) {
        let folder = self.path.parent().unwrap();
        let script = "objcopy --only-keep-debug program debug; strip -g program";
        let script = format!("{script}; objcopy --add-gnu-debuglink=debug program");
        assert!(Command::new("sh").args(["-ec", &script]).current_dir(folder).status().unwrap().success());
    }

    pub(crate) fn start(&self, environment: &[(&str, &str)]) -> Child {
        let mut command = Command::new(&self.path);
        command.envs(environment.iter().copied()).stdout(Stdio::piped()).spawn().unwrap()
    }

    /// Returns function and line of every address of this program in `samples`, from addr2line, which shares no code
    /// with the agent.
    pub(crate) fn functions(&self, samples: &[Sample]) -> HashMap<u64, (String, u32)> {
        let is_ours = |frame: &&Frame| frame.file == self.path.to_str().unwrap() && frame.name.is_empty();
        let addresses: BTreeSet<_> =
            samples.iter().flat_map(|sample| &sample.frames).filter(is_ours).map(|frame| frame.address).collect();
        let texts: Vec<_> = addresses.iter().map(|address| format!("{address:x}")).collect();
        let output = Command::new("addr2line").args(["-f", "-s", "-e"]).arg(&self.path).args(&texts).output().unwrap();
        let output = String::from_utf8(output.stdout).unwrap();
        let lines: Vec<_> = output.lines().collect();
        assert_eq!(lines.len(), 2 * addresses.len());
        let function_and_line = |pair: &[&str]| {
            let line = pair[1].rsplit(':').next().unwrap().split(' ').next().unwrap();
            (pair[0].to_owned(), line.parse().unwrap_or(0))
        };
        addresses.into_iter().zip(lines.chunks(2).map(function_and_line)).collect()
    }

    /// Returns the names of a stack's frames, leaf first: those of this program by addr2line, those of other files as
    /// `?`, and names of the agent unchanged.
    pub(crate) fn names(&self, sample: &Sample, functions: &HashMap<u64, (String, u32)>) -> Vec<String> {
        let name = |frame: &Frame| match functions.get(&frame.address) {
            _ if !frame.name.is_empty() => frame.name.clone(),
            Some((name, _)) if frame.file == self.path.to_str().unwrap() => name.clone(),
            _ => "?".to_owned(),
        };
        sample.frames.iter().map(name).collect()
    }
}

/// Waits for the program's end and returns the number that it printed.
pub(crate) fn printed_number(child: Child) -> u64 {
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap().trim().parse().unwrap()
}
