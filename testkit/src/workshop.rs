//! Programs that real compilers and linkers make in a temporary directory.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::report;

/// Returns true if all of `tools` are installed. Otherwise reports that the running test is skipped; the test must then
/// return.
#[must_use]
pub fn have(tools: &[&str]) -> bool {
    let missing: Vec<_> = tools.iter().filter(|tool| !is_installed(tool)).collect();
    if !missing.is_empty() {
        skip(&format!("not installed: {missing:?}"));
    }
    missing.is_empty()
}

/// Reports that the running test is skipped, and the reason.
pub fn skip(reason: &str) {
    report::skipped(std::thread::current().name().unwrap_or_default(), reason);
}

fn is_installed(tool: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|directory| directory.join(tool).is_file()))
}

/// A temporary directory in which programs are made.
#[derive(Debug)]
pub struct Workshop {
    directory: TempDir,
}

impl Default for Workshop {
    fn default() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }
}

impl Workshop {
    /// Returns the path of a file in the directory.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes a file, and makes the directories above it. Returns the path of the file.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    /// Runs a command line in the directory, and returns its standard output. The words of the command line are
    /// separated by spaces.
    pub fn run(&self, command_line: &str) -> String {
        let mut words = command_line.split_whitespace();
        let mut command = Command::new(words.next().unwrap());
        let output = command.args(words).current_dir(self.directory.path()).stdin(Stdio::null()).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command_line}: {}\n{errors}", output.status);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Builds the Go file `source` into `program`, without the network and without the user's configuration.
    pub fn go_build(&self, source: &str, program: &str) {
        let output = Command::new("go")
            .args(["build", "-o", program, source])
            .env("GOFLAGS", "-mod=mod")
            .env("GOPROXY", "off")
            .env("GOTOOLCHAIN", "local")
            .current_dir(self.directory.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Returns the virtual address of a function in `file`, as `nm` prints it.
    #[must_use]
    pub fn address_of(&self, file: &str, function: &str) -> u64 {
        let lines = self.run(&format!("nm {file}"));
        let line = lines.lines().find(|line| line.split(' ').next_back() == Some(function)).unwrap();
        u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap()
    }
}

/// C source of a program in which `innermost` is inlined into `middle`, and `middle` into `outer`. Tests rely on the
/// text of its lines.
pub const NESTED: &str = r"static volatile int sink;

__attribute__((always_inline)) static inline int innermost(int x) {
    sink += x;
    return x * 3;
}

__attribute__((always_inline)) static inline int middle(int x) {
    int y = innermost(x + 1);
    return y + innermost(x * 2);
}

__attribute__((noinline)) int outer(int n) {
    int sum = 0;
    for (int i = 0; i < n; i++)
        sum += middle(i);
    return sum;
}

__attribute__((noinline)) static int hidden(int n) {
    return n + outer(n + 1);
}

int main(int argc, char **argv) {
    (void)argv;
    return hidden(argc * 10);
}
";
