//! The calls of a program that have not returned, noted at every instruction that it carries out: an oracle that needs no description of
//! code. Signals it does not know.

use std::os::unix::fs::FileExt as _;

use iced_x86::{Decoder, DecoderOptions};

use super::child::{Child, PC, SP, is_in_call};

/// The longest instruction.
const INSTRUCTION_BYTES_MAX: usize = 15;

#[derive(Debug, Default)]
pub(super) struct Calls {
    /// Where each return address is on the stack, and the address; of the last call last.
    open: Vec<(u64, u64)>,
}

impl Calls {
    /// Has a child go on by an instruction.
    pub(super) fn step(&mut self, child: &mut Child) {
        let before = child.registers();
        let mut code = [0; INSTRUCTION_BYTES_MAX];
        child.memory.read_exact_at(&mut code, before[PC]).unwrap();
        let instruction = Decoder::with_ip(64, &code, before[PC], DecoderOptions::NONE).decode();
        child.step();
        let after = child.registers();
        self.open.retain(|(place, _)| after[SP] <= *place);
        if instruction.is_call_near() || instruction.is_call_near_indirect() {
            self.open.push((after[SP], instruction.next_ip()));
        }
    }

    /// The frames of the stack as [`super::kernel::Walked`] has them, up to the function that was stepped first.
    pub(super) fn tell(&self, child: &Child) -> Vec<u64> {
        let registers = child.registers();
        let first = registers[PC] - u64::from(is_in_call(&registers));
        [first].into_iter().chain(self.open.iter().rev().map(|(_, address)| address - 1)).collect()
    }
}
