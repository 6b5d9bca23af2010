//! Recognises Ruby in a file, and describes it to BPF.

use std::collections::BTreeSet;
use std::fs::File;
use std::ops::Range;

use ebpf::{Runtime, RuntimeKind, ThreadPointer};
use host_files::elf::{self, ElfImage};

use super::LOOP;
use super::layout::{Layout, layout_of};
use super::method::NAMES;
use crate::runtimes::code::{Branch, Code, LocalFunction};
use crate::runtimes::function_parts::other_part;
use crate::runtimes::thread_getter::{self, returned_pointer};

/// Smallest number of indirect jumps in the function that runs instructions. Ruby has 200 kinds of instructions, and
/// each ends with a jump to the next one.
const INSTRUCTION_JUMPS_MIN: usize = 100;
/// Largest number of jumps from the exported function to the one that reads names.
const JUMPS_MAX: usize = 2;
/// Largest number of functions that are read after each of these jumps. There is one, and its other part.
const TARGETS_MAX: usize = 4;
/// Number of bytes of a version, such as `3.3.8`, that are read.
const VERSION_BYTES: u64 = 6;

/// Returns the description of the interpreter in a file, and its layout; `None` if the file has no interpreter of a
/// known version.
pub(crate) fn recognise(file: &File) -> Option<(Runtime, Layout)> {
    let names = [
        "ruby_version",
        "rb_iseq_eval",
        "rb_iseq_eval_main",
        "rb_thread_current",
        "ruby_current_execution_context_ptr",
        LOOP,
        "rb_id2str",
    ];
    let [version, eval, eval_main, getter, context, exec, name_of_symbol] = elf::exported(file, names).ok()?;
    let image = ElfImage::read(file).ok()?;
    let read = |range: Range<u64>| elf::loaded_bytes(file, &image, range);
    let at = |address: u64, bytes: u64| read(address..address.checked_add(bytes)?);
    let (major, minor) = version_of(&at(version?.start, VERSION_BYTES)?)?;
    let layout = layout_of(major, minor)?;
    let thread = if layout.has_global_context() {
        ThreadPointer::Global(context?.start)
    } else {
        let start = getter?.start;
        returned_pointer(&at(start, thread_getter::CODE_BYTES)?, start)?
    };
    let code = Code::read(file);
    let layout =
        layout.with_symbols(code.as_ref().zip(name_of_symbol).and_then(|(code, function)| symbols(code, &function)));
    let main = match exec.filter(|exec| !exec.is_empty()) {
        Some(exec) => exec,
        // Both functions end with a jump to the loop.
        None => {
            let code = code?;
            let target = common(&code.branches(&eval?, Branch::Jump), &code.branches(&eval_main?, Branch::Jump))?;
            code.function_at(target)?
        }
    };
    let loops = [main.clone(), other_part(file, &image, &main)];
    let threads = [Some(thread), None];
    // Its compiler is in the same file.
    let callers = 0..u64::MAX;
    let extra = layout.symbols.unwrap_or_default();
    Some((Runtime { kind: RuntimeKind::Ruby, loops, threads, callers, extra, offsets: layout.to_bpf() }, layout))
}

/// Returns the address of the table of symbols, which `function` reads, or a local one to which it jumps. The table
/// begins with a number of 4 bytes, and the names follow.
fn symbols(code: &Code<'_>, function: &Range<u64>) -> Option<u64> {
    let mut functions = vec![function.clone()];
    let (mut numbers, mut words) = (BTreeSet::new(), BTreeSet::new());
    for _ in 0..=JUMPS_MAX {
        for (at, bytes) in functions.iter().flat_map(|function| code.fixed_operands(function)) {
            match bytes {
                4 => numbers.insert(at),
                8 => words.insert(at),
                _ => false,
            };
        }
        let table = numbers.iter().find(|at| words.contains(&at.wrapping_add(NAMES)));
        if table.is_some() {
            return table.copied();
        }
        let targets: BTreeSet<u64> =
            functions.iter().flat_map(|function| code.branches(function, Branch::Jump)).collect();
        functions = targets.into_iter().filter_map(|start| code.function_at(start)).take(TARGETS_MAX).collect();
    }
    None
}

/// Returns the local functions of Ruby that are on most stacks: that which runs the main program, and that which runs
/// the instructions.
pub(crate) fn local_functions(file: &File, runtime: &Runtime) -> Vec<LocalFunction> {
    let Some(code) = Code::read(file) else { return Vec::new() };
    let of_program = || {
        // Both functions call the local one, and `ruby_init_stack`.
        let [run, exec, init] = elf::exported(file, ["ruby_run_node", "ruby_exec_node", "ruby_init_stack"]).ok()?;
        let mut called = code.functions_called(&run?);
        called.retain(|start| init.as_ref().is_none_or(|init| init.start != *start));
        code.function_at(common(&called, &code.functions_called(&exec?))?)
    };
    let called = code.functions_called(&runtime.loops[0]).into_iter().filter_map(|start| code.function_at(start));
    let of_instructions = || called.into_iter().find(|it| INSTRUCTION_JUMPS_MIN <= code.indirect_jumps(it));
    let found = [(of_program(), "rb_ec_exec_node"), (of_instructions(), "vm_exec_core")].into_iter();
    found.filter_map(|(addresses, name)| Some(LocalFunction { addresses: addresses?, name })).collect()
}

/// Returns the major and minor version in a text such as `3.3.8`.
fn version_of(text: &[u8]) -> Option<(u32, u32)> {
    let text = text.split(|byte| *byte == 0).next()?;
    let mut numbers = std::str::from_utf8(text).ok()?.split('.').map(|number| number.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

/// Returns the one number that both lists have.
fn common(one: &[u64], other: &[u64]) -> Option<u64> {
    let other: BTreeSet<&u64> = other.iter().collect();
    let mut both = one.iter().filter(|target| other.contains(target));
    let first = both.next()?;
    both.all(|target| target == first).then_some(*first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read() {
        assert_eq!(version_of(b"3.3.8\0"), Some((3, 3)));
        assert_eq!(version_of(b"2.5.10"), Some((2, 5)));
        assert_eq!(version_of(b"3\0....."), None);
        assert_eq!(version_of(b"\xff\xff"), None);
    }

    #[test]
    fn the_number_that_two_lists_share_is_found() {
        assert_eq!(common(&[1, 2, 2], &[2, 3]), Some(2));
        assert_eq!((common(&[1], &[2]), common(&[1, 2], &[2, 1])), (None, None));
    }

    #[test]
    fn code_with_very_many_operands_is_searched_in_bounded_time() {
        // Each of the functions has the largest size that is read, and jumps to the next one.
        let function = |name: &str, next: &str| {
            format!(
                ".globl {name}\n.type {name},@function\n{name}:\n.cfi_startproc\n\
                 .rept 170000\nadd %eax, 0x1000(%rip)\n.endr\njmp {next}\n.cfi_endproc\n.size {name},.-{name}\n"
            )
        };
        let folder = tempfile::tempdir().unwrap();
        let [source, library] = ["code.s", "library"].map(|name| folder.path().join(name));
        std::fs::write(&source, function("first", "second") + &function("second", "third") + &function("third", "0"))
            .unwrap();
        let mut command = std::process::Command::new("gcc");
        let status = command.args(["-shared", "-nostdlib", "-Wl,-Bsymbolic", "-o"]).arg(&library).arg(source).status();
        assert!(status.unwrap().success());
        let file = File::open(library).unwrap();
        let [first] = elf::exported(&file, ["first"]).unwrap();
        let code = Code::read(&file).unwrap();
        let mut limit = testkit::cost::Limit::new(std::time::Duration::from_secs(2), 64 << 20);
        assert_eq!(limit.check("the search", || symbols(&code, first.as_ref().unwrap())), None);
        testkit::report::note(&format!("the search takes {limit}"));
    }

    #[test]
    fn functions_of_stripped_rubies_have_names() {
        let print_maps = "puts File.read(%q(/proc/self/maps)).scan(%r([^ \\n]*libruby[^ \\n]*))";
        for ruby in testkit::interpreters::rubies() {
            let output = ruby.command().args(["-e", print_maps]).output().unwrap();
            let library = String::from_utf8(output.stdout).unwrap().lines().next().map(str::to_owned).unwrap();
            let file = File::open(library).unwrap();
            let (runtime, layout) = recognise(&file).unwrap();
            assert!(layout.symbols.is_some(), "{ruby}");
            let functions = local_functions(&file, &runtime);
            let names: Vec<&str> = functions.iter().map(|function| function.name).collect();
            // Ruby 2.5 has other functions around the main program.
            let expected = &["rb_ec_exec_node", "vm_exec_core"][usize::from(layout.version < (2, 6))..];
            assert_eq!(names, expected, "{ruby}: {functions:x?}");
        }
    }
}
