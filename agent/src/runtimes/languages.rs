//! Languages whose runtimes are known: a variant of each type here, and a folder for each. PCRE2 is only a compiler.

pub(crate) mod hotspot;
#[cfg(target_arch = "x86_64")]
pub(crate) mod pcre;
pub(crate) mod perl;
pub(crate) mod php;
pub(crate) mod python;
pub(crate) mod ruby;
pub(crate) mod v8;

use std::fs::File;

#[cfg(target_arch = "x86_64")]
use ebpf::{Libc, Runtime, RuntimeKind};
#[cfg(target_arch = "x86_64")]
use host_files::elf;

use self::v8::source::Sources;
#[cfg(target_arch = "x86_64")]
use super::code::{Code, LocalFunction};
use super::memory::ProcessMemory;
use crate::names::location::{Call, FrameType};

/// Layout of the structures of a runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    HotSpot(hotspot::layout::Layout),
    Python(python::layout::Layout),
    Perl(perl::layout::Layout),
    Ruby(ruby::layout::Layout),
    Php(php::layout::Layout),
    V8(v8::layout::Layout),
}

impl Layout {
    /// True if the functions on a stack are found by structures of an interpreter, and not by their native frames.
    pub(crate) fn is_of_interpreter(&self) -> bool {
        match self {
            Self::Python(_) | Self::Perl(_) | Self::Ruby(_) | Self::Php(_) => true,
            Self::HotSpot(_) | Self::V8(_) => false,
        }
    }

    /// Returns the name and the version of the runtime.
    pub(crate) fn version(&self) -> String {
        match self {
            Self::HotSpot(layout) => format!("Java {}", layout.version),
            Self::Python(layout) => {
                let suffix = if layout.is_free_threaded { "t" } else { "" };
                format!("CPython 3.{}{suffix}", layout.minor)
            }
            Self::Perl(layout) => format!("Perl 5.{}", layout.minor),
            Self::Ruby(layout) => format!("Ruby {}.{}", layout.version.0, layout.version.1),
            Self::Php(layout) => format!("PHP {}.{}", layout.version.major, layout.version.minor),
            Self::V8(layout) => format!("V8 {}.{}", layout.form.version.0, layout.form.version.1),
        }
    }

    /// Returns the name of a part of the loop that runs the functions of the language. `None` if its name is that of
    /// its symbol, or if it is in no file.
    pub(crate) fn loop_name(&self, part: usize) -> Option<&'static str> {
        match self {
            Self::Python(_) => Some(python::LOOP),
            Self::Perl(_) => perl::LOOPS.get(part).copied(),
            Self::Ruby(_) => Some(ruby::LOOP),
            Self::Php(_) => Some(php::LOOP),
            Self::V8(_) | Self::HotSpot(_) => None,
        }
    }

    /// Returns the position for which the function of a frame is to be read; 0 if the function has all positions.
    pub(crate) fn read_position(&self, address: u64, position: u32) -> u32 {
        match self {
            Self::HotSpot(_) if hotspot::function::Function::is_of_position(address) => position,
            Self::Ruby(_) if ruby::function::Function::is_of_position(address) => position,
            _ => 0,
        }
    }

    /// Returns the kind of a function, by its address, if the program makes copies of its object, such as closures.
    /// Copies have the same identity.
    pub(crate) fn copied_kind(&self, address: u64) -> Option<u64> {
        match self {
            Self::Php(_) => php::function::Function::copied_kind(address),
            Self::Perl(_) => perl::functions::Sub::copied_kind(address),
            Self::HotSpot(_) | Self::Python(_) | Self::Ruby(_) | Self::V8(_) => None,
        }
    }

    /// True if the identity of a function has a hash of its name. Two processes that were forked from one program then
    /// have no different functions with the same address and the same identity. That of CPython until 3.11 has only a
    /// hash of the plain name, which different functions often have.
    pub(crate) fn identities_have_names(&self) -> bool {
        matches!(self, Self::Php(_))
    }

    /// Returns the type of the frames of the language.
    pub(crate) fn frame_type(&self) -> FrameType {
        match self {
            Self::HotSpot(_) => FrameType::Jvm,
            Self::Python(_) => FrameType::Python,
            Self::Perl(_) => FrameType::Perl,
            Self::Ruby(_) => FrameType::Ruby,
            Self::Php(_) => FrameType::Php,
            Self::V8(_) => FrameType::V8,
        }
    }
}

/// Recognises the runtime whose code a file has; `None` if it has none. `path` is the path of the file.
#[cfg(target_arch = "x86_64")]
pub(crate) fn recognise(file: &File, path: &str) -> Option<(Runtime, Layout)> {
    let (mut runtime, layout) = recognise_for_glibc(file, path)?;
    if elf::needed_libraries(file).is_ok_and(|libraries| libraries.iter().any(|library| is_musl(library))) {
        runtime.threads = runtime.threads.map(|thread| thread.map(|thread| thread.with_libc(Libc::Musl)));
    }
    Some((runtime, layout))
}

/// True if a library is musl's: `libc.so`, or `libc.musl-x86_64.so.1` in Alpine Linux. glibc's is `libc.so.6`.
#[cfg(target_arch = "x86_64")]
fn is_musl(library: &str) -> bool {
    library == "libc.so" || library.starts_with("libc.musl-")
}

/// Recognises the runtime in a file, as if its C library were glibc.
#[cfg(target_arch = "x86_64")]
fn recognise_for_glibc(file: &File, path: &str) -> Option<(Runtime, Layout)> {
    if let Some((runtime, layout)) = python::recognise::recognise(file, path) {
        return Some((runtime, Layout::Python(layout)));
    }
    if let Some((runtime, layout)) = v8::recognise::recognise(file) {
        return Some((runtime, Layout::V8(layout)));
    }
    if let Some((runtime, layout)) = perl::recognise::recognise(file) {
        return Some((runtime, Layout::Perl(layout)));
    }
    if let Some((runtime, layout)) = ruby::recognise::recognise(file) {
        return Some((runtime, Layout::Ruby(layout)));
    }
    let (runtime, layout) = php::recognise::recognise(file)?;
    Some((runtime, Layout::Php(layout)))
}

/// Returns functions of a file that have no symbol, and whose names follow from the code. Empty if the file has a table
/// of its symbols, or if no function is found. `runtime` is that of the file.
#[cfg(target_arch = "x86_64")]
pub(crate) fn local_functions(file: &File, runtime: Option<&Runtime>) -> Vec<LocalFunction> {
    if elf::has_symbol_table(file).unwrap_or(true) {
        return Vec::new();
    }
    let main = Code::read(file).and_then(|code| code.main_function());
    let main = main.map(|addresses| LocalFunction { addresses, name: "main" });
    let own = match runtime {
        Some(runtime) if runtime.kind == RuntimeKind::Ruby => ruby::recognise::local_functions(file, runtime),
        Some(runtime) if runtime.kind == RuntimeKind::Php => php::recognise::local_functions(file),
        _ => Vec::new(),
    };
    main.into_iter().chain(own).collect()
}

/// A function that was read from the memory of its process.
#[derive(Clone, Debug)]
pub(crate) enum Function {
    HotSpot(hotspot::function::Function),
    Python(python::code::Code),
    Perl(perl::functions::Sub),
    Ruby(ruby::function::Function),
    Php(php::function::Function),
    V8(v8::function::Function),
}

impl Function {
    /// Reads the function of a frame. The arguments are the runtime's layout, the scripts that are known, and the
    /// numbers that BPF recorded. `None` if the function is gone, or if it cannot be read.
    pub(crate) fn read(
        memory: &ProcessMemory,
        layout: &Layout,
        sources: &Sources,
        (address, position, identity): (u64, u32, u32),
    ) -> Option<Self> {
        match layout {
            Layout::HotSpot(layout) => {
                hotspot::function::Function::read(memory, layout, address, position, identity).map(Self::HotSpot)
            }
            Layout::V8(layout) => {
                let at = (address, position, identity);
                v8::function::Function::read(memory, layout, sources, at).map(Self::V8)
            }
            Layout::Python(layout) => python::code::Code::read(memory, layout, address, identity).map(Self::Python),
            Layout::Perl(layout) => perl::functions::Sub::read(memory, layout, address, identity).map(Self::Perl),
            Layout::Ruby(layout) => {
                let at = (address, position, identity);
                ruby::function::Function::read(memory, layout, at).map(Self::Ruby)
            }
            Layout::Php(layout) => php::function::Function::read(memory, layout, address, identity).map(Self::Php),
        }
    }

    /// Returns the function at a position and the calls inlined there, innermost first. `layout` is that of
    /// [`Function::read`].
    pub(crate) fn calls(&self, layout: &Layout, position: u32) -> Vec<Call> {
        match (self, layout) {
            (Self::HotSpot(function), _) => function.calls(position),
            (Self::Python(code), Layout::Python(layout)) => vec![code.call(layout, position)],
            (Self::Perl(sub), _) => vec![sub.call(position)],
            (Self::Ruby(function), _) => vec![function.call(position)],
            (Self::Php(function), Layout::Php(_)) => vec![function.call(position)],
            (Self::V8(function), Layout::V8(layout)) => function.calls(layout, position),
            _ => Vec::new(),
        }
    }

    /// True if the function was read with all that [`Function::calls`] needs at a position.
    pub(crate) fn covers(&self, position: u32) -> bool {
        match self {
            Self::Python(_) | Self::Perl(_) | Self::Ruby(_) | Self::Php(_) | Self::HotSpot(_) => true,
            Self::V8(function) => function.covers(position),
        }
    }

    /// True if everything that was read is the same in all copies of the function.
    pub(crate) fn is_that_of_copies(&self) -> bool {
        match self {
            Self::Perl(sub) => sub.is_nameless(),
            _ => true,
        }
    }

    /// Approximate memory, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Self::HotSpot(function) => function.bytes(),
            Self::Python(code) => code.bytes(),
            Self::Perl(sub) => sub.bytes(),
            Self::Ruby(function) => function.bytes(),
            Self::Php(function) => function.bytes(),
            Self::V8(function) => function.bytes(),
        }
    }
}

#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod tests;
