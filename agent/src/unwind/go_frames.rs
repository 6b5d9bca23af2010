//! Rules from Go's own table, which has, for every function and address, the number of bytes by which the function has
//! moved the stack pointer.
//!
//! - For a function that changes stacks, the table has no useful numbers. Go keeps frame pointers across such changes,
//!   so they lead to the caller ([`Rule::Unknown`]).
//! - The scheduler's stack begins in the function [`SCHEDULER`]. The goroutine that ran before is suspended, and is not
//!   the caller of the scheduler.
//! - The caller of the function [`GROWS`], which makes a stack larger, is the goroutine of that stack. It is found by
//!   its saved position.

use super::rule::Rule;
use super::table::{TableBuilder, TableError};
use crate::names::go::{Budget, FileReader, Function, GoError, GoTable};

/// Number of bytes of the file that are read at once. Functions that follow each other in the code mostly do so in the
/// table, too.
const READ_BYTES: usize = 32 << 10;
/// Largest number of steps through Go's tables of values for one program. The largest known programs need a tenth of
/// that.
const STEPS_MAX: u32 = 1 << 24;

/// Functions that signal handlers return to, by name.
const SIGNAL_RETURNS: [&str; 2] = ["runtime.sigreturn__sigaction", "runtime.sigreturn"];
/// Signal handlers, which the kernel calls. Go marks them as outermost functions, but they return to one of the
/// functions above.
const SIGNAL_HANDLERS: [&str; 2] = ["runtime.sigtramp", "runtime.cgoSigtramp"];
/// Function that switches to the scheduler's stack.
const SCHEDULER: &str = "runtime.mcall";
/// Function that makes a stack larger.
const GROWS: &str = "runtime.morestack";

/// Adds the rules of a program's Go code. Code whose numbers cannot be read gets [`Rule::Unknown`].
///
/// # Errors
/// The table would be too large.
pub(crate) fn add_to(go: &GoTable, table: &mut TableBuilder) -> Result<(), TableError> {
    let code = go.code();
    table.push(code.start, Rule::Unknown)?;
    let [mut index, mut records, mut values, mut names] =
        [READ_BYTES, READ_BYTES, READ_BYTES, 0].map(|size| go.reader(size));
    let mut budget = Budget(STEPS_MAX);
    for number in 0..go.functions_count() {
        let Ok(function) = go.function(number, &mut index, &mut records) else { break };
        match whole_rule(go, &function, &mut names) {
            Ok(Some(rule)) => table.push(function.start, rule)?,
            Ok(None) => add_rows(go, &function, &mut values, &mut budget, table)?,
            Err(_) => break,
        }
    }
    table.push(code.end, Rule::Unknown)
}

/// Returns the rule of a function that has one rule for all of its code; `None` if the rule changes with the stack
/// pointer.
fn whole_rule(go: &GoTable, function: &Function, names: &mut FileReader<'_>) -> Result<Option<Rule>, GoError> {
    let flags = function.flags;
    if !(flags.is_assembly() || flags.is_outermost() || flags.sets_stack_pointer()) {
        return Ok(None);
    }
    let name = go.name(function, names)?;
    let is_one_of = |names: [&str; 2]| names.contains(&name.as_str());
    Ok(if is_one_of(SIGNAL_RETURNS) {
        Some(Rule::Signal)
    } else if name == GROWS {
        Some(Rule::Grows)
    } else if name == SCHEDULER || flags.is_outermost() && !is_one_of(SIGNAL_HANDLERS) {
        Some(Rule::Root)
    } else if flags.sets_stack_pointer() {
        Some(Rule::Unknown)
    } else {
        None
    })
}

/// Adds the rules of a function: one for each change of the stack pointer.
fn add_rows(
    go: &GoTable,
    function: &Function,
    reader: &mut FileReader<'_>,
    budget: &mut Budget,
    table: &mut TableBuilder,
) -> Result<(), TableError> {
    let mut start = function.start;
    let mut values = go.stack(function, reader);
    while start < function.end
        && let Ok(Some((moved, end))) = values.next(budget)
    {
        table.push(start, rule(moved))?;
        start = end.clamp(start, function.end);
    }
    if start < function.end {
        table.push(start, Rule::Unknown)?;
    }
    Ok(())
}

/// Returns the rule for code at which the function has moved the stack pointer by `moved` bytes. The return address
/// lies above these bytes. The first word below the return address is the caller's frame pointer.
#[cfg(target_arch = "x86_64")]
fn rule(moved: i32) -> Rule {
    use super::rule::{Cfa, Register, Saved};

    const STACK_POINTER: Register = Register(7);
    const RETURN_ADDRESS_BYTES: i32 = 8;
    if moved < 0 || moved % 8 != 0 {
        return Rule::Unknown;
    }
    let fp = if moved == 0 { Saved::InPlace } else { Saved::AtCfa(-2) };
    let cfa = Cfa::Register { base: STACK_POINTER, offset: moved.saturating_add(RETURN_ADDRESS_BYTES) };
    Rule::Frame { cfa, fp, bx: Saved::Lost, return_address: -1 }
}

/// Returns [`Rule::Unknown`], because Go's frame pointers lead to the caller on other machines.
#[cfg(not(target_arch = "x86_64"))]
fn rule(_moved: i32) -> Rule {
    Rule::Unknown
}

#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod tests {
    use std::fs::File;

    use object::{Object as _, ObjectSection as _};

    use super::super::call_frames::CallFrames;
    use super::super::table::UnwindTable;
    use super::*;
    use crate::names::go::test_program::{self, KINDS, Kind};

    fn table(frames: CallFrames<'_>) -> UnwindTable {
        let mut builder = TableBuilder::default();
        frames.add_to(&mut builder, || None, |_| None).unwrap();
        builder.finish().unwrap()
    }

    /// Builds a program with the call frame information that Go's linker makes from the same numbers.
    fn program(test: &str) -> Option<(tempfile::TempDir, Vec<u8>, GoTable)> {
        let folder = tempfile::tempdir().unwrap();
        let kind = Kind { arguments: &["-ldflags=-compressdwarf=false"], ..KINDS[0] };
        let (_, program) = test_program::build(test, folder.path(), (0, "go"), kind)?;
        let go = GoTable::open(&File::open(&program).unwrap()).unwrap().unwrap();
        Some((folder, std::fs::read(program).unwrap(), go))
    }

    #[test]
    fn go_code_has_the_rules_of_its_call_frame_information() {
        let test = "go_code_has_the_rules_of_its_call_frame_information";
        let Some((_folder, bytes, go)) = program(test) else { return };
        let file = object::File::parse(&*bytes).unwrap();
        let section = file.section_by_name(".debug_frame").unwrap();
        let debug_frame = Some(section.data().unwrap());
        let wanted = table(CallFrames { debug_frame, ..CallFrames::default() });
        let got = table(CallFrames { debug_frame, go: Some(&go), ..CallFrames::default() });
        let mut compared = 0;
        let mut whole = 0;
        for address in go.code().step_by(3) {
            let wanted = wanted.rule(address);
            let got = got.rule(address);
            if [Rule::Unknown, Rule::Root, Rule::Grows, Rule::Signal].iter().any(|rule| rule.to_bytes() == got) {
                whole += 1;
                continue;
            }
            compared += 1;
            // Kind, register and offset of the CFA, and the place of the return address.
            let cfa = |rule: [u8; 16]| (rule[0], rule[1], rule[8..10].to_vec(), rule[12..].to_vec());
            assert_eq!(cfa(got), cfa(wanted), "{address:#x}: {:?}", go.lookup(address));
        }
        // Functions that change stacks, and padding, have one whole rule. They are few.
        assert!(whole * 10 < compared, "{whole} of {compared}");
    }

    #[test]
    fn functions_that_end_or_change_stacks_are_known_by_name() {
        let Some((_folder, bytes, go)) = program("functions_that_end_or_change_stacks_are_known_by_name") else {
            return;
        };
        let file = object::File::parse(&*bytes).unwrap();
        let got = table(CallFrames { go: Some(&go), ..CallFrames::default() });
        let symbols = file.symbols().filter_map(|symbol| {
            use object::ObjectSymbol as _;
            Some((symbol.name().ok()?, symbol.address()))
        });
        let symbols: std::collections::HashMap<_, _> = symbols.collect();
        let rule = |name: &str| {
            let address = symbols.get(name).or_else(|| symbols.get(&*format!("{name}.abi0"))).copied();
            got.rule(address.unwrap_or_else(|| panic!("{name}")))
        };
        for name in ["runtime.goexit", "runtime.mstart", "runtime.rt0_go", "runtime.mcall"] {
            assert_eq!(rule(name), Rule::Root.to_bytes(), "{name}");
        }
        assert_eq!(rule("runtime.morestack"), Rule::Grows.to_bytes());
        assert_eq!(rule("runtime.sigreturn__sigaction"), Rule::Signal.to_bytes());
        assert_eq!(rule("runtime.systemstack"), Rule::Unknown.to_bytes());
        let first = super::rule(0).to_bytes();
        assert_eq!([rule("runtime.sigtramp"), rule("main.main")], [first; 2]);
    }
}
