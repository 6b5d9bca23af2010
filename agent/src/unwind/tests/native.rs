//! The BPF unwinder in a plain process, without privileges.
//!
//! The C code of the BPF programs is compiled for such a process (`ebpf/native/kernel.c`), and walks the stacks of
//! stopped children.
//!
//! The stacks are compared with those of framehop and gdb, frame by frame up to the root. They are taken at the deepest
//! point of deep programs, at every instruction of a program that uses stacks in every way, and at random moments.
//! `VARVE_UNWIND_SEED` chooses these moments, as far as possible, and is printed if a stack differs.
//!
//! Known fault: the stack is lost in the last nine instructions of glibc's longjmp(3), which hold the address of the
//! caller in a register. Stacks that only gdb can unwind ([`Framehop`]) are compared with gdb alone.

#![allow(unsafe_code, reason = "C is called, and children are stopped by ptrace")]

mod calls;
pub(crate) mod child;
pub(crate) mod kernel;
mod oracles;
mod programs;
mod windows;

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use ebpf::{FILE_NUMBERS, UserEnd};
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::SeedableRng as _;

use self::calls::Calls;
use self::child::{Child, Mapping, Registers, mappings};
use self::kernel::{Kernel, Walked};
use self::oracles::{Framehop, Gdb};
use self::programs::{BUSY, FUTURES, GO, Program, RECURSION, TEMPLATES};
use super::damage::{below, number};
use testkit::report;

const FLAGS: [&str; 3] = ["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"];

/// Number of instructions of a Go program that are stepped through.
const GO_STEPS: usize = 3000;
/// Number of moments at which a busy program is stopped by a clock.
const MOMENTS: usize = 400;
/// Number of moments at which a busy program is stopped by gdb.
const GDB_MOMENTS: usize = 150;
/// Number of instructions that gdb steps through one by one. In them, a busy program calls a function through its PLT
/// and binds it.
const GDB_FIRST_STEPS: usize = 60;
/// Longest time for which a busy program runs between two stops. One round of the program takes longer.
const RUN_MAX: Duration = Duration::from_micros(400);
const GDB_STEPS_MAX: usize = 60;

/// A stopped child, and the unwinders that walk its stack.
struct Stopped {
    child: Child,
    mappings: Vec<Mapping>,
    kernel: Kernel,
    framehop: Framehop,
}

impl Stopped {
    /// Starts a program and stops it after its first `int3`. `twin` is a copy with call frame information.
    fn start(program: &Path, twin: &Path) -> Self {
        let mut child = Child::start(program);
        child.run();
        let mappings = mappings(child.pid);
        let twins = HashMap::from([(program.to_str().unwrap().to_owned(), twin)]);
        let framehop = Framehop::new(child.pid, &mappings, &twins);
        let mut kernel = Kernel::new();
        kernel.run(child.pid, &mappings);
        Self { child, mappings, kernel, framehop }
    }

    /// Compares the stack with that of framehop.
    fn compare(&mut self, moment: &dyn std::fmt::Display) -> Walked {
        let registers = self.child.registers();
        let expected = self.framehop.unwind(&self.child.memory, &registers);
        assert_same(&mut self.kernel, &registers, &expected, &self.mappings, moment)
    }
}

/// Walks a stack, and asserts that it is `expected`.
fn assert_same(
    kernel: &mut Kernel,
    registers: &Registers,
    expected: &[u64],
    mappings: &[Mapping],
    moment: &dyn std::fmt::Display,
) -> Walked {
    let walked = kernel.walk(registers);
    let differs = (0..).find(|&i| walked.frames.get(i) != expected.get(i) || i == expected.len()).unwrap_or_default();
    // The frames around the first difference.
    let places = |frames: &[u64]| {
        let there = frames.iter().skip(differs.saturating_sub(3)).take(8);
        there.map(|frame| place(*frame, mappings)).collect::<Vec<_>>().join("\n  ")
    };
    assert!(
        walked.frames == expected,
        "{moment}: the stack ({:?}) differs at frame {differs}; from three frames before:\n  {}\nexpected:\n  {}",
        walked.end,
        places(&walked.frames),
        places(expected)
    );
    walked
}

/// Describes an address by file and offset.
fn place(address: u64, mappings: &[Mapping]) -> String {
    let mapping = mappings.iter().find(|mapping| mapping.start <= address && address < mapping.end);
    mapping.map_or_else(
        || format!("{address:#x}"),
        |mapping| format!("{}+{:#x}", mapping.path, address - mapping.start + mapping.offset),
    )
}

/// Compares the stack at the first `int3` of a program with framehop and gdb. The stack must have at least `frames_min`
/// frames.
fn compare_deepest(test: &str, program: &Path, twin: &Path, frames_min: usize) {
    let mut stopped = Stopped::start(program, twin);
    let walked = stopped.compare(&test);
    assert!(
        frames_min <= walked.frames.len() && walked.end == UserEnd::Root,
        "{} {:?}",
        walked.frames.len(),
        walked.end
    );
    match Gdb::run(program, twin) {
        Ok(mut gdb) => {
            let registers = gdb.registers();
            let mappings = mappings(gdb.pid);
            let expected = gdb.unwind(&registers);
            stopped.kernel.run(gdb.pid, &mappings);
            assert_same(&mut stopped.kernel, &registers, &expected, &mappings, &format_args!("{test}, gdb"));
        }
        Err(error) => report::skipped(test, format_args!("gdb: {error}")),
    }
}

fn seed() -> u64 {
    number("VARVE_UNWIND_SEED", 1)
}

#[test]
fn deep_stacks_equal_those_of_framehop_and_gdb() {
    let test = "deep_stacks_equal_those_of_framehop_and_gdb";
    let c = |flags: &[&'static str]| [&FLAGS, flags].concat();
    let cases = [
        ("gcc", RECURSION, c(&[]), 904),
        ("gcc", RECURSION, c(&["-static"]), 904),
        ("gcc", RECURSION, c(&["-static-pie"]), 904),
        ("g++", TEMPLATES, c(&["-std=c++17"]), 304),
        ("rustc", FUTURES, vec!["-O", "--edition=2024", "-C", "strip=debuginfo"], 200),
    ];
    for (compiler, source, flags, frames_min) in cases {
        let what = format!("{test}: {compiler} {}", flags.join(" "));
        match Program::compile(compiler, source, &flags) {
            Some(program) => compare_deepest(&what, program.path(), program.path(), frames_min),
            None => report::skipped(test, format_args!("no {compiler}")),
        }
    }
}

/// musl has no call frame information, so neither framehop nor gdb find the caller of main().
#[test]
fn deep_stacks_of_musl_programs_reach_the_root() {
    let test = "deep_stacks_of_musl_programs_reach_the_root";
    for linked in [&[][..], &["-static"], &["-static-pie"], &["-static", "-s"]] {
        let Some(program) = Program::compile("musl-gcc", RECURSION, &[&FLAGS, linked].concat()) else {
            return report::skipped(test, "no musl-gcc");
        };
        let mut stopped = Stopped::start(program.path(), program.path());
        let registers = stopped.child.registers();
        let expected = stopped.framehop.unwind(&stopped.child.memory, &registers);
        let walked = stopped.kernel.walk(&registers);
        assert!(
            902 <= expected.len() && walked.frames.starts_with(&expected[..901]),
            "{linked:?}: {walked:x?}, not {expected:x?}"
        );
        let above_main = walked.frames.len() - 901;
        assert!(
            (2..=4).contains(&above_main) && (walked.end, walked.by_frame_pointer) == (UserEnd::Root, 0),
            "{linked:?}: {above_main} {walked:x?}"
        );
    }
}

#[test]
fn every_instruction_of_undescribed_code_has_the_stack_of_its_calls() {
    let test = "every_instruction_of_undescribed_code_has_the_stack_of_its_calls";
    for linked in [&[][..], &["-static", "-s"]] {
        let flags = [&FLAGS, linked, &["-DON_OTHER_STACK=0", "-DHAS_ALIGNED=1"]].concat();
        let Some(program) = Program::compile("musl-gcc", BUSY, &flags) else {
            return report::skipped(test, "no musl-gcc");
        };
        let mut child = Child::start(program.path());
        let mut kernel = Kernel::new();
        let mut calls = Calls::default();
        let mut steps = 0;
        child.run();
        let mappings = mappings(child.pid);
        kernel.run(child.pid, &mappings);
        let above_main = kernel.walk(&child.registers()).frames[1..].to_vec();
        while !child.is_at_breakpoint() {
            let expected = [calls.frames(&child), above_main.clone()].concat();
            let walked = assert_same(
                &mut kernel,
                &child.registers(),
                &expected,
                &mappings,
                &format_args!("{linked:?}, step {steps}"),
            );
            assert_eq!((walked.end, walked.by_frame_pointer), (UserEnd::Root, 0), "step {steps}: {walked:x?}");
            calls.step(&mut child);
            steps += 1;
        }
        assert!(3000 < steps, "{steps} instructions");
        report::note(&format!("{linked:?}: the stacks of {steps} instructions equal their calls"));
    }
}

#[test]
fn every_instruction_of_a_busy_program_has_the_stack_of_framehop() {
    for flags in [&["-DON_OTHER_STACK=1"][..], &["-DON_OTHER_STACK=0", "-no-pie", "-fcf-protection=none"]] {
        // The last two flags leave out code that framehop cannot unwind.
        let flags = [&FLAGS, flags, &["-DHAS_ALIGNED=0", "-Wl,-z,now"]].concat();
        let program = Program::compile("gcc", BUSY, &flags).unwrap();
        let mut stopped = Stopped::start(program.path(), program.path());
        let mut steps = 0;
        while !stopped.child.is_at_breakpoint() {
            let walked = stopped.compare(&format_args!("step {steps}"));
            assert_eq!((walked.end, walked.by_frame_pointer), (UserEnd::Root, 0), "step {steps}: {walked:x?}");
            stopped.child.step();
            steps += 1;
        }
        assert!(3000 < steps, "{steps} instructions");
        report::note(&format!("the stacks of {steps} instructions equal those of framehop"));
    }
}

#[test]
fn a_busy_program_has_the_stack_of_framehop_at_any_moment() {
    let flags = [&FLAGS[..], &["-DON_OTHER_STACK=1", "-DHAS_ALIGNED=0", "-Wl,-z,now"]].concat();
    let program = Program::compile("gcc", BUSY, &flags).unwrap();
    let mut stopped = Stopped::start(program.path(), program.path());
    let mut random = SplitMix64::seed_from_u64(seed());
    for moment in 0..MOMENTS {
        stopped.child.run_for(Duration::from_nanos(below(&mut random, RUN_MAX.as_nanos() as usize) as u64));
        let walked = stopped.compare(&format_args!("VARVE_UNWIND_SEED={}, moment {moment}", seed()));
        assert_eq!(walked.end, UserEnd::Root, "{walked:x?}");
    }
}

#[test]
fn a_stack_is_complete_when_the_numbers_of_files_wrap_around() {
    let flags = [&FLAGS[..], &["-DON_OTHER_STACK=1", "-DHAS_ALIGNED=0", "-Wl,-z,now"]].concat();
    let program = Program::compile("gcc", BUSY, &flags).unwrap();
    let mut stopped = Stopped::start(program.path(), program.path());
    let before = stopped.compare(&"before");
    stopped.kernel.forget_files(FILE_NUMBERS - 1);
    assert_eq!(stopped.compare(&"after"), before);
    let mut numbers: Vec<u32> = stopped.kernel.numbers().collect();
    numbers.sort_unstable();
    assert!(numbers.starts_with(&[1]) && numbers.ends_with(&[FILE_NUMBERS]), "{numbers:?}");
}

#[test]
fn tables_in_use_are_marked_once_per_epoch() {
    let flags = [&FLAGS[..], &["-DON_OTHER_STACK=1", "-DHAS_ALIGNED=0"]].concat();
    let program = Program::compile("gcc", BUSY, &flags).unwrap();
    let mut stopped = Stopped::start(program.path(), program.path());
    stopped.compare(&"first");
    assert!(2 <= stopped.kernel.used().len() && stopped.kernel.used().iter().all(|used| 90 < *used));
    stopped.kernel.set_unused();
    stopped.compare(&"in the same epoch");
    assert!(stopped.kernel.used().iter().all(|used| *used == 0), "cached rules are not looked up");
    stopped.kernel.begin_epoch();
    stopped.compare(&"in the next one");
    assert!(stopped.kernel.used().iter().all(|used| 90 < *used), "{:?}", stopped.kernel.used());
}

#[test]
fn a_busy_program_has_the_stack_of_gdb_at_any_instruction() {
    let test = "a_busy_program_has_the_stack_of_gdb_at_any_instruction";
    let flags = [&FLAGS[..], &["-DON_OTHER_STACK=1", "-DHAS_ALIGNED=1", "-Wl,-z,lazy"]].concat();
    let program = Program::compile("gcc", BUSY, &flags).unwrap();
    let mut gdb = match Gdb::run(program.path(), program.path()) {
        Ok(gdb) => gdb,
        Err(error) => return report::skipped(test, format_args!("gdb: {error}")),
    };
    let mut kernel = Kernel::new();
    let mappings = mappings(gdb.pid);
    let mut random = SplitMix64::seed_from_u64(seed());
    kernel.run(gdb.pid, &mappings);
    for moment in 0..GDB_FIRST_STEPS + GDB_MOMENTS {
        gdb.step(if moment < GDB_FIRST_STEPS { 1 } else { 1 + below(&mut random, GDB_STEPS_MAX) });
        let registers = gdb.registers();
        let expected = gdb.unwind(&registers);
        let moment = format!("VARVE_UNWIND_SEED={}, moment {moment}", seed());
        let walked = assert_same(&mut kernel, &registers, &expected, &mappings, &moment);
        assert_eq!(walked.end, UserEnd::Root, "{walked:x?}");
    }
}

#[test]
fn a_stripped_go_program_has_the_stack_of_its_call_frame_information() {
    let test = "a_stripped_go_program_has_the_stack_of_its_call_frame_information";
    let Some((program, twin)) = Program::go(GO) else { return report::skipped(test, "no go") };
    compare_deepest(test, program.path(), &twin, 304);
    let mut stopped = Stopped::start(program.path(), &twin);
    for step in 0..GO_STEPS {
        let walked = stopped.compare(&format_args!("step {step}"));
        assert_eq!(walked.end, UserEnd::Root, "step {step}: {walked:x?}");
        stopped.child.step();
    }
}
