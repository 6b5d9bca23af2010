//! The calls of a program that have not returned, tracked by stepping through its instructions. This needs no
//! description of the code.

use std::os::unix::fs::FileExt as _;

use iced_x86::{Decoder, DecoderOptions};

use super::child::{Child, PC, SP, is_in_call};

/// Length of the longest possible instruction, in bytes.
const INSTRUCTION_BYTES_MAX: usize = 15;
/// Number of bytes from a signal handler's return address up to the registers of the interrupted code
/// (`uc_mcontext.gregs`).
const INTERRUPTED_REGISTERS: u64 = 8 + 40;

/// The frame of a function that has called another. The call has returned once the stack pointer is above `address`.
#[derive(Debug)]
struct Waiting {
    address: u64,
    /// Address of the frame, as in [`super::kernel::Walked`].
    frame: u64,
}

/// The calls that have not returned.
#[derive(Debug, Default)]
pub(super) struct Calls {
    /// Frames that wait for a return, outermost first.
    waiting: Vec<Waiting>,
}

impl Calls {
    /// Steps a child by one instruction, or into a signal handler.
    pub(super) fn step(&mut self, child: &mut Child) {
        let before = child.registers();
        let mut code = [0; INSTRUCTION_BYTES_MAX];
        child.memory.read_exact_at(&mut code, before[PC]).unwrap();
        let instruction = Decoder::with_ip(64, &code, before[PC], DecoderOptions::NONE).decode();
        child.step();
        let after = child.registers();
        self.waiting.retain(|waiting| after[SP] <= waiting.address);
        if instruction.is_call_near() || instruction.is_call_near_indirect() {
            self.waiting.push(Waiting { address: after[SP], frame: instruction.next_ip() - 1 });
        } else if after[SP] + INTERRUPTED_REGISTERS < before[SP] && after[PC] != instruction.next_ip() {
            let word = |at| child.word(at).unwrap();
            let interrupted = |register: libc::c_int| word(after[SP] + INTERRUPTED_REGISTERS + register as u64 * 8);
            // The interrupted code continues when its stack pointer is restored.
            self.waiting.push(Waiting { address: interrupted(libc::REG_RSP) - 1, frame: interrupted(libc::REG_RIP) });
            self.waiting.push(Waiting { address: after[SP], frame: word(after[SP]) });
        }
    }

    /// Returns the frames of the stack, up to the function that was stepped first.
    pub(super) fn frames(&self, child: &Child) -> Vec<u64> {
        let registers = child.registers();
        let first = registers[PC] - u64::from(is_in_call(&registers));
        [first].into_iter().chain(self.waiting.iter().rev().map(|waiting| waiting.frame)).collect()
    }
}
