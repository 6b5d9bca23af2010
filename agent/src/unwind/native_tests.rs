//! The BPF unwinder in a plain process, without any privilege: the programs' C is compiled for it (`ebpf/native/kernel.c`), and walks the stacks
//! of children that stand still. What it finds is what framehop and gdb find, frame by frame and up to the root: at the deepest place of deep
//! programs, at every instruction of one that does all that programs do with stacks, and whenever it happens to be stopped.
//!
//! `VARVE_UNWIND_SEED` says when the latter is, as far as it can be said, and is told where a stack differs.
//!
//! Known to be lost: the stack of the last nine instructions of glibc's longjmp(3), whose caller's address is in a register. What gdb alone can
//! tell (see [`Framehop`]) is compared with it alone.

#![allow(unsafe_code, reason = "C is called, and children are stopped by ptrace")]

mod calls;
mod child;
mod kernel;
mod oracles;
mod programs;

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use ebpf::UserEnd;

use self::calls::Calls;
use self::child::{Child, Mapping, Registers, mappings};
use self::kernel::{Kernel, Walked};
use self::oracles::{Framehop, Gdb};
use self::programs::{BUSY, FUTURES, GO, Program, RECURSION, TEMPLATES};
use super::damage_tests::{Random, number};
use crate::report;

/// As in ebpf/bpf/record.h.
const FILE_NUMBERS: u32 = 1 << 22;

const FLAGS: [&str; 3] = ["-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls"];

/// Instructions of a Go program that are stepped through.
const GO_STEPS: usize = 3000;
/// Moments at which a busy program is stopped by a clock, and by gdb.
const MOMENTS: usize = 400;
const GDB_MOMENTS: usize = 150;
/// Instructions with which a busy program calls a function through its linkage table, has it bound, and some more.
const GDB_FIRST_STEPS: usize = 60;
/// Less than it takes once around.
const RUN_MAX: Duration = Duration::from_micros(400);
const GDB_STEPS_MAX: usize = 60;

/// A child, and who walks its stack.
struct Stopped {
    child: Child,
    mappings: Vec<Mapping>,
    kernel: Kernel,
    framehop: Framehop,
}

impl Stopped {
    /// Stops a program behind its first `int3`; a twin of it has its call frame information.
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

    /// Compares the stack with framehop's.
    fn compare(&mut self, moment: &dyn std::fmt::Display) -> Walked {
        let registers = self.child.registers();
        let told = self.framehop.tell(&self.child.memory, &registers);
        same(&mut self.kernel, &registers, &told, &self.mappings, moment)
    }
}

/// Walks a stack, which has to be the one that an oracle tells.
fn same(
    kernel: &mut Kernel,
    registers: &Registers,
    told: &[u64],
    mappings: &[Mapping],
    moment: &dyn std::fmt::Display,
) -> Walked {
    let walked = kernel.walk(registers);
    let differs = (0..).find(|&i| walked.frames.get(i) != told.get(i) || i == told.len()).unwrap_or_default();
    // What led there, and where.
    let places = |frames: &[u64]| {
        let there = frames.iter().skip(differs.saturating_sub(3)).take(8);
        there.map(|frame| place(*frame, mappings)).collect::<Vec<_>>().join("\n  ")
    };
    assert!(
        walked.frames == told,
        "{moment}: from the third frame before {differs} on, {:?} of\n  {}\nis, for the oracle,\n  {}",
        walked.end,
        places(&walked.frames),
        places(told)
    );
    walked
}

/// Where an address is, for people.
fn place(address: u64, mappings: &[Mapping]) -> String {
    let mapping = mappings.iter().find(|mapping| mapping.start <= address && address < mapping.end);
    mapping.map_or_else(
        || format!("{address:#x}"),
        |mapping| format!("{}+{:#x}", mapping.path, address - mapping.start + mapping.offset),
    )
}

/// Compares the stack at the first `int3` of a program with both oracles; it has at least so many frames.
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
            let (registers, mappings) = (gdb.registers(), mappings(gdb.pid));
            let told = gdb.tell(&registers);
            stopped.kernel.run(gdb.pid, &mappings);
            same(&mut stopped.kernel, &registers, &told, &mappings, &format_args!("{test}, gdb"));
        }
        Err(error) => report::skipped(test, &format_args!("gdb: {error}")),
    }
}

fn seed() -> u64 {
    number("VARVE_UNWIND_SEED", 1)
}

#[test]
fn deep_stacks_are_those_that_framehop_and_gdb_see() {
    let test = "deep_stacks_are_those_that_framehop_and_gdb_see";
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
            None => report::skipped(test, &format_args!("no {compiler}")),
        }
    }
}

/// musl describes none of its code, so that neither framehop nor gdb see what called main().
#[test]
fn deep_stacks_in_programs_of_musl_go_on_up_to_the_root() {
    let test = "deep_stacks_in_programs_of_musl_go_on_up_to_the_root";
    for linked in [&[][..], &["-static"], &["-static-pie"], &["-static", "-s"]] {
        let Some(program) = Program::compile("musl-gcc", RECURSION, &[&FLAGS, linked].concat()) else {
            return report::skipped(test, &"no musl-gcc");
        };
        let mut stopped = Stopped::start(program.path(), program.path());
        let registers = stopped.child.registers();
        let told = stopped.framehop.tell(&stopped.child.memory, &registers);
        let walked = stopped.kernel.walk(&registers);
        assert!(902 <= told.len() && walked.frames.starts_with(&told[..901]), "{linked:?}: {walked:x?}, not {told:x?}");
        let above_main = walked.frames.len() - 901;
        assert!(
            (2..=4).contains(&above_main) && (walked.end, walked.by_frame_pointer) == (UserEnd::Root, 0),
            "{linked:?}: {above_main} {walked:x?}"
        );
    }
}

#[test]
fn every_instruction_in_a_library_that_describes_nothing_has_the_stack_of_its_calls() {
    let test = "every_instruction_in_a_library_that_describes_nothing_has_the_stack_of_its_calls";
    for linked in [&[][..], &["-static", "-s"]] {
        let flags = [&FLAGS, linked, &["-DON_OTHER_STACK=0", "-DHAS_ALIGNED=1"]].concat();
        let Some(program) = Program::compile("musl-gcc", BUSY, &flags) else {
            return report::skipped(test, &"no musl-gcc");
        };
        let (mut child, mut kernel, mut calls, mut steps) =
            (Child::start(program.path()), Kernel::new(), Calls::default(), 0);
        child.run();
        let mappings = mappings(child.pid);
        kernel.run(child.pid, &mappings);
        let above_main = kernel.walk(&child.registers()).frames[1..].to_vec();
        while !child.is_at_breakpoint() {
            let told = [calls.tell(&child), above_main.clone()].concat();
            let walked =
                same(&mut kernel, &child.registers(), &told, &mappings, &format_args!("{linked:?}, step {steps}"));
            assert_eq!((walked.end, walked.by_frame_pointer), (UserEnd::Root, 0), "step {steps}: {walked:x?}");
            calls.step(&mut child);
            steps += 1;
        }
        assert!(3000 < steps, "{steps} instructions");
        report::said(&format!("{linked:?}: the stacks of {steps} instructions are those of the calls"));
    }
}

#[test]
fn every_instruction_of_a_busy_program_has_the_stack_that_framehop_sees() {
    for flags in [&["-DON_OTHER_STACK=1"][..], &["-DON_OTHER_STACK=0", "-no-pie", "-fcf-protection=none"]] {
        // What framehop is no oracle of.
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
        report::said(&format!("the stacks of {steps} instructions are those that framehop sees"));
    }
}

#[test]
fn a_busy_program_has_the_stack_that_framehop_sees_whenever_it_is_stopped() {
    let flags = [&FLAGS[..], &["-DON_OTHER_STACK=1", "-DHAS_ALIGNED=0", "-Wl,-z,now"]].concat();
    let program = Program::compile("gcc", BUSY, &flags).unwrap();
    let (mut stopped, mut random) = (Stopped::start(program.path(), program.path()), Random(seed()));
    for moment in 0..MOMENTS {
        stopped.child.run_for(Duration::from_nanos(random.below(RUN_MAX.as_nanos() as usize) as u64));
        let walked = stopped.compare(&format_args!("VARVE_UNWIND_SEED={}, moment {moment}", seed()));
        assert_eq!(walked.end, UserEnd::Root, "{walked:x?}");
    }
}

#[test]
fn a_stack_is_whole_where_the_numbers_of_files_begin_anew() {
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
fn tables_that_are_in_use_are_marked_once_in_an_age() {
    let flags = [&FLAGS[..], &["-DON_OTHER_STACK=1", "-DHAS_ALIGNED=0"]].concat();
    let program = Program::compile("gcc", BUSY, &flags).unwrap();
    let mut stopped = Stopped::start(program.path(), program.path());
    stopped.compare(&"first");
    assert!(2 <= stopped.kernel.used().len() && stopped.kernel.used().iter().all(|used| 90 < *used));
    stopped.kernel.set_unused();
    stopped.compare(&"in the same age");
    assert!(stopped.kernel.used().iter().all(|used| *used == 0), "what is remembered is not looked up");
    stopped.kernel.begin_age();
    stopped.compare(&"in the next one");
    assert!(stopped.kernel.used().iter().all(|used| 90 < *used), "{:?}", stopped.kernel.used());
}

#[test]
fn a_busy_program_has_the_stack_that_gdb_sees_wherever_it_is_stopped() {
    let test = "a_busy_program_has_the_stack_that_gdb_sees_wherever_it_is_stopped";
    let flags = [&FLAGS[..], &["-DON_OTHER_STACK=1", "-DHAS_ALIGNED=1", "-Wl,-z,lazy"]].concat();
    let program = Program::compile("gcc", BUSY, &flags).unwrap();
    let mut gdb = match Gdb::run(program.path(), program.path()) {
        Ok(gdb) => gdb,
        Err(error) => return report::skipped(test, &format_args!("gdb: {error}")),
    };
    let (mut kernel, mappings, mut random) = (Kernel::new(), mappings(gdb.pid), Random(seed()));
    kernel.run(gdb.pid, &mappings);
    for moment in 0..GDB_FIRST_STEPS + GDB_MOMENTS {
        gdb.step(if moment < GDB_FIRST_STEPS { 1 } else { 1 + random.below(GDB_STEPS_MAX) });
        let registers = gdb.registers();
        let told = gdb.tell(&registers);
        let moment = format!("VARVE_UNWIND_SEED={}, moment {moment}", seed());
        let walked = same(&mut kernel, &registers, &told, &mappings, &moment);
        assert_eq!(walked.end, UserEnd::Root, "{walked:x?}");
    }
}

#[test]
fn a_stripped_go_program_has_the_stack_that_its_call_frame_information_tells() {
    let test = "a_stripped_go_program_has_the_stack_that_its_call_frame_information_tells";
    let Some((program, twin)) = Program::go(GO) else { return report::skipped(test, &"no go") };
    compare_deepest(test, program.path(), &twin, 304);
    let mut stopped = Stopped::start(program.path(), &twin);
    for step in 0..GO_STEPS {
        let walked = stopped.compare(&format_args!("step {step}"));
        assert_eq!(walked.end, UserEnd::Root, "step {step}: {walked:x?}");
        stopped.child.step();
    }
}
