//! Programs to find names in, made by the real tools, and stores to find them with.

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use proto::BuildId;
use symbol_store::convert::Converter;
use symbol_store::elf::ElfImage;
use symbol_store::limits::Limits;
use symbol_store::{Address, Config, Frame, ObjectKey, Reason, SymbolStore};
use tempfile::TempDir;

/// More than any conversion in these tests takes, on a slow machine too.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Whether all of `tools` are here. If not, the test says so past the capture of the test runner, and is to return.
pub(crate) fn have(tools: &[&str]) -> bool {
    let missing: Vec<_> = tools.iter().filter(|tool| !is_installed(tool)).collect();
    if !missing.is_empty() {
        skip(&format!("not installed: {missing:?}"));
    }
    missing.is_empty()
}

/// Says that the running test does not test, and why.
pub(crate) fn skip(why: &str) {
    let name = std::thread::current().name().unwrap_or_default().to_owned();
    // Not `eprintln`, which the test runner shows of failed tests only.
    std::io::stderr().write_all(format!("SKIPPED {name}: {why}\n").as_bytes()).unwrap();
}

/// Waits for what happens in the background.
pub(crate) fn until(what: &str, mut happened: impl FnMut() -> bool) {
    let started = Instant::now();
    while !happened() {
        assert!(started.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn is_installed(tool: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|directory| directory.join(tool).is_file()))
}

/// A temporary directory with a debug directory and a store in it.
pub(crate) struct Workshop {
    directory: TempDir,
}

impl Workshop {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("debug")).unwrap();
        Self { directory }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Stands for `/usr/lib/debug`.
    pub(crate) fn debug_directory(&self) -> PathBuf {
        self.path("debug")
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        path
    }

    /// Runs a command line in this directory; words are split at spaces.
    pub(crate) fn run(&self, command_line: &str) -> String {
        let mut words = command_line.split_whitespace();
        let mut command = Command::new(words.next().unwrap());
        let output = command.args(words).current_dir(self.directory.path()).stdin(Stdio::null()).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command_line}: {}\n{errors}", output.status);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    pub(crate) fn config(&self, host_files: bool) -> Config {
        Config {
            directory: self.path("store"),
            converter: converter(),
            host_files,
            debug_directory: self.debug_directory().to_str().unwrap().to_owned(),
            limits: Limits::DEFAULT,
        }
    }

    /// A store that has uploads only.
    pub(crate) fn store(&self) -> SymbolStore {
        open(self.config(false))
    }

    /// Another one, in a directory of its own.
    pub(crate) fn store_at(&self, name: &str) -> SymbolStore {
        open(Config { directory: self.path(name), ..self.config(false) })
    }

    /// A store that uses the files of this host.
    pub(crate) fn host_store(&self) -> SymbolStore {
        open(self.config(true))
    }

    /// The address of a function, as `nm` says.
    pub(crate) fn address_of(&self, file: &str, function: &str) -> u64 {
        let lines = self.run(&format!("nm {file}"));
        let line = lines.lines().find(|line| line.split(' ').next_back() == Some(function)).unwrap();
        u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap()
    }
}

/// Opens a store that another one in this process may just have closed: until a program that another test starts is
/// executed, it has a copy of every lock of this process.
pub(crate) fn open(config: Config) -> SymbolStore {
    let mut store = None;
    until("the store is closed", || {
        store = match SymbolStore::open(config.clone()) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            opened => Some(opened.unwrap()),
        };
        store.is_some()
    });
    store.unwrap()
}

/// The example of this crate that `cargo test` builds beside its tests.
fn converter() -> Converter {
    let test = std::env::current_exe().unwrap();
    let program = test.parent().and_then(Path::parent).unwrap().join("examples/convert");
    // Cargo leaves it as it was when only some tests are asked for by name.
    let built = fs::metadata(&program).and_then(|metadata| metadata.modified());
    let changed = newest(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    let is_current = built.is_ok_and(|built| changed <= built);
    assert!(is_current, "{} is missing or old: run `cargo build -p symbol-store --examples`", program.display());
    Converter { program, arguments: Vec::new() }
}

/// When the newest file below `directory` was changed.
fn newest(directory: &Path) -> SystemTime {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let changed =
        |path: PathBuf| if path.is_dir() { newest(&path) } else { path.metadata().unwrap().modified().unwrap() };
    entries.map(changed).max().unwrap()
}

pub(crate) fn image(path: &Path) -> ElfImage {
    ElfImage::read(&fs::File::open(path).unwrap()).unwrap()
}

pub(crate) fn gnu_build_id(path: &Path) -> BuildId {
    BuildId::Gnu(image(path).gnu_build_id.unwrap())
}

/// What the store says about one address of the file that runs from `path`.
pub(crate) fn ask(store: &SymbolStore, id: &BuildId, path: &Path, address: u64) -> Result<Vec<Frame>, Reason> {
    let object = ObjectKey { build_id: Some(id), file: path.to_str().unwrap() };
    let mut answers = store.symbolize(&object, &[Address::Virtual(address)], PATIENCE);
    assert_eq!(answers.len(), 1);
    answers.remove(0).map(|frames| frames.to_vec()).map_err(|nameless| nameless.reason)
}

/// The function names of one address, innermost first.
pub(crate) fn names(store: &SymbolStore, id: &BuildId, path: &Path, address: u64) -> Result<Vec<String>, Reason> {
    ask(store, id, path, address).map(|frames| frames.iter().map(|frame| frame.function.to_string()).collect())
}

/// Builds a Go program without asking the network or the user's configuration.
pub(crate) fn go_build(workshop: &Workshop, source: &str, program: &str) {
    let directory = workshop.path("");
    let output = Command::new("go")
        .args(["build", "-o", program, source])
        .env("GOFLAGS", "-mod=mod")
        .env("GOPROXY", "off")
        .env("GOTOOLCHAIN", "local")
        .current_dir(directory)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// A program whose calls are inlined three deep, with every function's lines known.
pub(crate) const NESTED: &str = r"static volatile int sink;

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
