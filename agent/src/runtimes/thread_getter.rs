//! Finds where a program keeps a pointer of each thread, from the code of a function that returns this pointer.
//!
//! Compilers use a thread-local variable in one of these ways:
//!
//! ```text
//! mov %fs:offset, %rax                                                     fixed offset from the thread's base
//! mov slot(%rip), %rax; mov %fs:(%rax), %rax                               the word `slot` has the offset
//! lea pair(%rip), %rdi; call __tls_get_addr; mov displacement(%rax), %rax  `pair` is a library and an offset
//! mov key(%rip), %edi; jmp to a function that calls pthread_getspecific    the int `key` is the key
//! mov %fs:0, %rax; lea offset(%rax), %rax; mov displacement(%rax), %rax    the sum is the offset
//! mov %fs:0, %rax; add slot(%rip), %rax; mov (%rax), %rax                  the word `slot` has the offset
//! ```
//!
//! The third way is used in libraries that may be loaded at any time. A linker makes the last two ways of it, in
//! programs that contain such a library. All are in ELF Handling For Thread-Local Storage, by Ulrich Drepper.

use ebpf::{Libc, ThreadPointer};
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};

/// Number of instructions that are read. A function that returns the pointer has four to seven.
const INSTRUCTIONS_MAX: usize = 12;
/// Number of bytes of code that hold these instructions.
pub(crate) const CODE_BYTES: u64 = 64;

/// Returns where the pointer is that the function with this code returns, in a program with glibc; `None` if the code
/// has another form. `address` is the virtual address of the code.
pub(crate) fn returned_pointer(code: &[u8], address: u64) -> Option<ThreadPointer> {
    let (mut slot, mut pair, mut block, mut base) = (None, None, None, None);
    for instruction in Decoder::with_ip(64, code, address, DecoderOptions::NONE).into_iter().take(INSTRUCTIONS_MAX) {
        let displacement = instruction.memory_displacement64();
        let of_base = base.and_then(|base: ThreadBase| base.at(&instruction));
        if instruction.mnemonic() == Mnemonic::Mov && instruction.op1_kind() == OpKind::Memory {
            if let Some(base) = of_base {
                return base.pointer();
            }
            match (instruction.memory_segment(), instruction.memory_base()) {
                (_, Register::RIP) if instruction.op0_register() == Register::EDI => {
                    return Some(ThreadPointer::Key(displacement, Libc::Glibc));
                }
                (Register::FS, Register::None) if displacement == 0 => {
                    base = Some(ThreadBase { register: instruction.op0_register(), offset: 0, slot: None });
                }
                (Register::FS, Register::None) => return Some(ThreadPointer::Fixed(displacement.cast_signed())),
                (Register::FS, base) if slot_of(slot, base).is_some() && displacement == 0 => {
                    return slot_of(slot, base).map(ThreadPointer::Slot);
                }
                (_, Register::RIP) => slot = Some((instruction.op0_register(), displacement)),
                (_, Register::RAX) => {
                    let (pair, displacement) = (block?, displacement.cast_signed());
                    return Some(ThreadPointer::Dynamic { pair, displacement, libc: Libc::Glibc });
                }
                _ => return None,
            }
        } else if instruction.mnemonic() == Mnemonic::Lea && of_base.is_some() {
            base = of_base.map(|base| ThreadBase { register: instruction.op0_register(), ..base });
        } else if instruction.mnemonic() == Mnemonic::Lea && is_argument(&instruction) {
            pair = Some(displacement);
        } else if instruction.mnemonic() == Mnemonic::Add && instruction.memory_base() == Register::RIP {
            base = base.filter(|base| base.register == instruction.op0_register());
            base = base.map(|base| ThreadBase { slot: Some(displacement), ..base });
        } else {
            match instruction.flow_control() {
                // A check that the variable is set comes first.
                FlowControl::Next | FlowControl::ConditionalBranch => {}
                FlowControl::Call => block = pair.take(),
                _ => return None,
            }
        }
    }
    None
}

/// A register that has the thread's base, plus an offset, plus the word in a slot.
#[derive(Clone, Copy)]
struct ThreadBase {
    register: Register,
    offset: i64,
    slot: Option<u64>,
}

impl ThreadBase {
    /// Returns the same with the displacement of an operand that is relative to the register; `None` for others.
    fn at(self, instruction: &Instruction) -> Option<Self> {
        let is_relative = instruction.memory_base() == self.register && instruction.memory_segment() != Register::FS;
        let offset = self.offset.checked_add(instruction.memory_displacement64().cast_signed())?;
        is_relative.then_some(Self { offset, ..self })
    }

    fn pointer(self) -> Option<ThreadPointer> {
        match self.slot {
            None => Some(ThreadPointer::Fixed(self.offset)),
            Some(slot) => (self.offset == 0).then_some(ThreadPointer::Slot(slot)),
        }
    }
}

/// Returns the address of the word that was loaded into a register.
fn slot_of(slot: Option<(Register, u64)>, register: Register) -> Option<u64> {
    slot.filter(|(loaded, _)| *loaded == register).map(|(_, address)| address)
}

/// True if the instruction sets the first argument of a call to an address in the file.
fn is_argument(instruction: &Instruction) -> bool {
    instruction.op0_register() == Register::RDI && instruction.memory_base() == Register::RIP
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_to_use_a_variable_is_read() {
        // endbr64; mov %fs:-24, %rax; ret
        let fixed = b"\xf3\x0f\x1e\xfa\x64\x48\x8b\x04\x25\xe8\xff\xff\xff\xc3";
        assert_eq!(returned_pointer(fixed, 0x1000), Some(ThreadPointer::Fixed(-24)));
        // mov 0x100(%rip), %rdx; mov %fs:(%rdx), %rax; ret
        let slot = b"\x48\x8b\x15\x00\x01\x00\x00\x64\x48\x8b\x02\xc3";
        assert_eq!(returned_pointer(slot, 0x1000), Some(ThreadPointer::Slot(0x1107)));
        // sub $8, %rsp; lea 0x4454e1(%rip), %rdi; call; mov 8(%rax), %rax; add $8, %rsp; ret
        let dynamic =
            b"\x48\x83\xec\x08\x48\x8d\x3d\xe1\x54\x44\x00\xe8\x9c\x0c\xd4\xff\x48\x8b\x40\x08\x48\x83\xc4\x08\xc3";
        let expected = ThreadPointer::Dynamic { pair: 0x7a_6530, displacement: 8, libc: Libc::Glibc };
        assert_eq!(returned_pointer(dynamic, 0x36_1044), Some(expected));
        // sub $8, %rsp; mov %fs:0, %rax; lea -8(%rax), %rax; mov (%rax), %rax; add $8, %rsp; ret
        let linked = b"\x48\x83\xec\x08\x64\x48\x8b\x04\x25\x00\x00\x00\x00\x48\x8d\x80\xf8\xff\xff\xff\
                       \x48\x8b\x00\x48\x83\xc4\x08\xc3";
        assert_eq!(returned_pointer(linked, 0x23_0c70), Some(ThreadPointer::Fixed(-8)));
        // mov %fs:0, %rax; add 0x100(%rip), %rax; mov (%rax), %rax; ret
        let linked = b"\x64\x48\x8b\x04\x25\x00\x00\x00\x00\x48\x03\x05\x00\x01\x00\x00\x48\x8b\x00\xc3";
        assert_eq!(returned_pointer(linked, 0x1000), Some(ThreadPointer::Slot(0x1110)));
        // cmpq $0, 0x18a170(%rip); je; mov 0x138180(%rip), %edi; jmp
        let key = b"\x48\x83\x3d\x70\xa1\x18\x00\x00\x74\x0e\x8b\x3d\x80\x81\x13\x00\xe9\x4b\xa7\xee\xff";
        assert_eq!(returned_pointer(key, 0x17_4d70), Some(ThreadPointer::Key(0x2a_cf00, Libc::Glibc)));
    }

    #[test]
    fn code_of_another_form_is_refused() {
        // The register of the second load is not that of the first.
        assert_eq!(returned_pointer(b"\x48\x8b\x15\x00\x01\x00\x00\x64\x48\x8b\x01\xc3", 0), None);
        // mov %fs:0, %rax; mov 8(%rdx), %rax; the same with add 0x100(%rip), %rdx before
        assert_eq!(returned_pointer(b"\x64\x48\x8b\x04\x25\x00\x00\x00\x00\x48\x8b\x42\x08\xc3", 0), None);
        let other = b"\x64\x48\x8b\x04\x25\x00\x00\x00\x00\x48\x03\x15\x00\x01\x00\x00\x48\x8b\x00\xc3";
        assert_eq!(returned_pointer(other, 0), None);
        // mov 8(%rax), %rax without a call; a jump; nothing
        assert_eq!(returned_pointer(b"\x48\x8b\x40\x08\xc3", 0), None);
        assert_eq!(returned_pointer(b"\xeb\x02\x64\x48\x8b\x04\x25\xe8\xff\xff\xff", 0), None);
        assert_eq!(returned_pointer(b"", 0), None);
    }
}
