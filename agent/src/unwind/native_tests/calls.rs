//! The calls of a program that have not returned, noted at every instruction that it carries out: an oracle that needs no description of
//! code.

use std::os::unix::fs::FileExt as _;

use iced_x86::{Decoder, DecoderOptions};

use super::child::{Child, PC, SP, is_in_call};

/// The longest instruction.
const INSTRUCTION_BYTES_MAX: usize = 15;
/// Where the kernel leaves the registers that a signal struck, from where the handler's return address is: `uc_mcontext.gregs`.
const STRUCK_REGISTERS: u64 = 8 + 40;

/// What goes on when the stack pointer is above a place.
#[derive(Debug)]
struct Waiting {
    place: u64,
    /// As [`super::kernel::Walked`] has it.
    frame: u64,
}

#[derive(Debug, Default)]
pub(super) struct Calls {
    /// The last one last.
    waiting: Vec<Waiting>,
}

impl Calls {
    /// Has a child go on by an instruction, or into a signal handler.
    pub(super) fn step(&mut self, child: &mut Child) {
        let before = child.registers();
        let mut code = [0; INSTRUCTION_BYTES_MAX];
        child.memory.read_exact_at(&mut code, before[PC]).unwrap();
        let instruction = Decoder::with_ip(64, &code, before[PC], DecoderOptions::NONE).decode();
        child.step();
        let after = child.registers();
        self.waiting.retain(|waiting| after[SP] <= waiting.place);
        if instruction.is_call_near() || instruction.is_call_near_indirect() {
            self.waiting.push(Waiting { place: after[SP], frame: instruction.next_ip() - 1 });
        } else if after[SP] + STRUCK_REGISTERS < before[SP] && after[PC] != instruction.next_ip() {
            let word = |at| child.word(at).unwrap();
            let struck = |register: libc::c_int| word(after[SP] + STRUCK_REGISTERS + register as u64 * 8);
            // They are struck code's again where the stack pointer is.
            self.waiting.push(Waiting { place: struck(libc::REG_RSP) - 1, frame: struck(libc::REG_RIP) });
            self.waiting.push(Waiting { place: after[SP], frame: word(after[SP]) });
        }
    }

    /// The frames of the stack, up to the function that was stepped first.
    pub(super) fn tell(&self, child: &Child) -> Vec<u64> {
        let registers = child.registers();
        let first = registers[PC] - u64::from(is_in_call(&registers));
        [first].into_iter().chain(self.waiting.iter().rev().map(|waiting| waiting.frame)).collect()
    }
}
