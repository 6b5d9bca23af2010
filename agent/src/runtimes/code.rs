//! The code of a file: its functions, and the calls and jumps between them.
//!
//! Programs without `.symtab` have no symbols for functions that they do not export. The names of some of these
//! functions follow from the code: `main` is what the entry point passes to the C library, for example.

use std::fs::File;
use std::ops::Range;

use host_files::elf::{self, ElfImage, FunctionIndex};
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, Register};

/// Largest size of a function whose code is read, in bytes. The largest known loop of an interpreter has 60 KB.
const FUNCTION_BYTES_MAX: u64 = 1 << 20;
/// Number of bytes at the entry point that are read.
const ENTRY_BYTES: u64 = 64;

/// A function that has no symbol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LocalFunction {
    /// ELF virtual addresses. The end may be that of padding after the function.
    pub(crate) addresses: Range<u64>,
    pub(crate) name: &'static str,
}

/// Way in which the code of a function leads to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Branch {
    Call,
    Jump,
}

/// The code of a file. Addresses are ELF virtual addresses.
pub(crate) struct Code<'a> {
    file: &'a File,
    image: ElfImage,
    index: FunctionIndex,
}

impl<'a> Code<'a> {
    /// Reads the index of the file's functions. `None` if the file cannot be read.
    pub(crate) fn read(file: &'a File) -> Option<Self> {
        Some(Self { file, image: ElfImage::read(file).ok()?, index: FunctionIndex::read(file).ok()? })
    }

    /// Returns the function that begins at an address.
    pub(crate) fn function_at(&self, start: u64) -> Option<Range<u64>> {
        self.index.function_at(start)
    }

    /// Returns the function `main`, which the entry point of a program passes to the C library in a register.
    pub(crate) fn main_function(&self) -> Option<Range<u64>> {
        let entry = elf::entry(self.file).ok().filter(|entry| *entry != 0)?;
        let bytes = elf::loaded_bytes(self.file, &self.image, entry..entry.checked_add(ENTRY_BYTES)?)?;
        self.function_at(passed_function(&bytes, entry)?)
    }

    /// Returns the targets of the direct calls, or of the unconditional jumps, that lead out of a function. Empty if
    /// the function cannot be read.
    pub(crate) fn branches(&self, function: &Range<u64>, branch: Branch) -> Vec<u64> {
        let wanted = match branch {
            Branch::Call => FlowControl::Call,
            Branch::Jump => FlowControl::UnconditionalBranch,
        };
        let bytes = self.bytes(function);
        let taken = instructions(&bytes, function.start).filter(|instruction| instruction.flow_control() == wanted);
        taken.map(|instruction| instruction.near_branch_target()).filter(|target| !function.contains(target)).collect()
    }

    /// Returns the starts of the functions that a function calls directly, or to which it jumps in its end.
    pub(crate) fn functions_called(&self, function: &Range<u64>) -> Vec<u64> {
        let targets = [Branch::Call, Branch::Jump].map(|branch| self.branches(function, branch));
        let mut starts: Vec<u64> = targets.concat();
        starts.retain(|target| self.function_at(*target).is_some());
        starts.sort_unstable();
        starts.dedup();
        starts
    }

    /// Returns the number of indirect jumps in a function.
    pub(crate) fn indirect_jumps(&self, function: &Range<u64>) -> usize {
        let bytes = self.bytes(function);
        let is_jump = |instruction: &Instruction| instruction.flow_control() == FlowControl::IndirectBranch;
        instructions(&bytes, function.start).filter(is_jump).count()
    }

    /// Returns the places in the file's memory that a function reads or writes at fixed addresses, with their sizes in
    /// bytes. The size is 0 if the function only takes the address.
    pub(crate) fn fixed_operands(&self, function: &Range<u64>) -> Vec<(u64, usize)> {
        let bytes = self.bytes(function);
        let fixed = instructions(&bytes, function.start).filter(Instruction::is_ip_rel_memory_operand);
        fixed.map(|instruction| (instruction.memory_displacement64(), instruction.memory_size().size())).collect()
    }

    fn bytes(&self, function: &Range<u64>) -> Vec<u8> {
        let is_small = function.end.saturating_sub(function.start) <= FUNCTION_BYTES_MAX;
        is_small.then(|| elf::loaded_bytes(self.file, &self.image, function.clone())).flatten().unwrap_or_default()
    }
}

fn instructions(bytes: &[u8], start: u64) -> impl Iterator<Item = Instruction> {
    Decoder::with_ip(64, bytes, start, DecoderOptions::NONE).into_iter()
}

/// Returns the address that the code before the first call stores in the register of the first argument.
fn passed_function(code: &[u8], start: u64) -> Option<u64> {
    let mut passed = None;
    for instruction in instructions(code, start) {
        match (instruction.mnemonic(), instruction.flow_control()) {
            (Mnemonic::Lea, _) if instruction.op0_register() == Register::RDI => {
                passed = instruction.is_ip_rel_memory_operand().then(|| instruction.memory_displacement64());
            }
            (Mnemonic::Mov, _) if instruction.op0_register().full_register() == Register::RDI => {
                passed = instruction.try_immediate(1).ok();
            }
            (_, FlowControl::Next) => {}
            (_, FlowControl::Call | FlowControl::IndirectCall) => return passed,
            _ => return None,
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn main_is_what_the_entry_point_passes() {
        // xor %ebp, %ebp; mov %rdx, %r9; lea 0x100(%rip), %rdi; call *0x200(%rip)
        let pie = b"\x31\xed\x49\x89\xd1\x48\x8d\x3d\x00\x01\x00\x00\xff\x15\x00\x02\x00\x00";
        assert_eq!(passed_function(pie, 0x1000), Some(0x110c));
        // mov $0x401156, %rdi; call 0x401000
        let fixed = b"\x48\xc7\xc7\x56\x11\x40\x00\xe8\xf4\x0f\x00\x00";
        assert_eq!(passed_function(fixed, 0x40_0000), Some(0x40_1156));
        // mov %rsp, %rdi; call; and a jump before any call
        assert_eq!(passed_function(b"\x48\x89\xe7\xe8\x00\x00\x00\x00", 0), None);
        assert_eq!(passed_function(b"\x48\x8d\x3d\x00\x01\x00\x00\xe9\x00\x00\x00\x00", 0), None);
        assert_eq!(passed_function(b"", 0), None);
    }

    #[test]
    fn main_of_a_stripped_program_is_that_of_its_symbol() {
        let folder = tempfile::tempdir().unwrap();
        let [source, program, stripped] = ["main.c", "main", "stripped"].map(|name| folder.path().join(name));
        std::fs::write(&source, "int twice(int a) { return 2 * a; } int main(int a, char **b) { return twice(a); }")
            .unwrap();
        let run = |name: &str, arguments: &[&std::ffi::OsStr]| {
            let output = std::process::Command::new(name).args(arguments).output().expect(name);
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        for position in ["-pie", "-no-pie"] {
            run("gcc", &["-O2".as_ref(), position.as_ref(), "-o".as_ref(), program.as_ref(), source.as_ref()]);
            run("strip", &["-o".as_ref(), stripped.as_ref(), program.as_ref()]);
            let symbols = run("nm", &[program.as_ref()]);
            let expected = symbols.lines().find_map(|line| line.strip_suffix(" T main")).unwrap();
            let file = File::open(&stripped).unwrap();
            assert!(!elf::has_symbol_table(&file).unwrap());
            let main = Code::read(&file).unwrap().main_function().unwrap();
            assert_eq!(main.start, u64::from_str_radix(expected, 16).unwrap(), "{position}");
        }
    }
}
