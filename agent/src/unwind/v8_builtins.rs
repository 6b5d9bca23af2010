//! Rules of V8's builtin functions, which are machine code without call frame information.
//!
//! This code does not follow the calling convention of C: it preserves no register but the frame pointer, and returns
//! may remove arguments. In exchange, its frames are simple. Most functions have one with a frame pointer, and the
//! handlers of bytecodes have none. The state of the frame before each instruction follows from the instructions before
//! it. Where several paths meet, the first one counts.
//!
//! Invariant: work and memory are linear in the length of the code.

use std::collections::BTreeSet;

use foldhash::fast::RandomState;
use iced_x86::{
    Code, Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, InstructionInfoOptions, Mnemonic,
    OpAccess, OpKind, Register,
};
use indexmap::IndexSet;

use super::instructions::Stretch;
use super::rule::{self, Cfa, Rule, Saved};

/// Number in [`Analysis::known`] of a byte at which no known instruction begins.
const NOTHING: u16 = 0;
/// Alignment of functions.
const ALIGNMENT: u64 = 32;
/// DWARF numbers of the stack pointer and the frame pointer.
const SP: rule::Register = rule::Register(7);
const FP: rule::Register = rule::Register(6);
/// Size in bytes that the known part of a frame must not reach.
const FRAME_BYTES_MAX: i64 = 1 << 16;

/// State of a frame. Distances are in bytes below the CFA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Frame {
    /// Distance of the address that the stack pointer holds, if it is known.
    sp: Option<i32>,
    fp: FramePointer,
    /// Distance of the word that has the caller's frame pointer, and of that which has its BX.
    callers_fp: Option<i32>,
    callers_bx: Option<i32>,
    /// True after an instruction that pushes the frame pointer.
    is_pushed: bool,
}

/// Value of the frame pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum FramePointer {
    /// That of the caller.
    Callers,
    /// The address at this distance.
    Own(i32),
    Other,
}

/// The function ends a frame that it has not begun.
struct HasFrame;

impl Frame {
    /// Frame at the start of a called function.
    const CALLED: Self =
        Self { sp: Some(8), fp: FramePointer::Callers, callers_fp: None, callers_bx: None, is_pushed: false };
    /// Frame of code that continues in the frame of other code.
    const CONTINUED: Self = Self { sp: None, fp: FramePointer::Own(16), callers_fp: Some(16), ..Self::CALLED };
    /// Frame whose frame pointer was pushed and set. Functions that move their arguments move their return address,
    /// too, but it is always next to the frame pointer.
    const BEGUN: Self = Self { sp: Some(16), ..Self::CONTINUED };

    fn rule(&self) -> Rule {
        let saved = |at: Option<i32>| at.and_then(|at| i16::try_from(-at / 8).ok()).map(Saved::AtCfa);
        let (base, offset) = match *self {
            Self { fp: FramePointer::Own(offset), .. } => (FP, offset),
            Self { sp: Some(offset), .. } => (SP, offset),
            _ => return Rule::Unknown,
        };
        let fp = match self.fp {
            FramePointer::Callers => Saved::InPlace,
            _ => saved(self.callers_fp).unwrap_or(Saved::Lost),
        };
        let bx = saved(self.callers_bx).unwrap_or(Saved::InPlace);
        Rule::Frame { cfa: Cfa::Register { base, offset }, fp, bx, return_address: -1 }
    }

    fn move_sp(&mut self, bytes: i64) {
        let moved = self.sp.map(|sp| i64::from(sp) + bytes).filter(|sp| (0..FRAME_BYTES_MAX).contains(sp));
        self.sp = moved.and_then(|sp| i32::try_from(sp).ok());
    }

    /// Applies an instruction that is no jump, call or return.
    fn apply(&mut self, instruction: &Instruction, writes: &mut InstructionInfoFactory) -> Result<(), HasFrame> {
        let to = instruction.op0_register();
        let is_own = matches!(self.fp, FramePointer::Own(_));
        let is_pushed = std::mem::take(&mut self.is_pushed);
        match instruction.mnemonic() {
            Mnemonic::Push => {
                // A function that has popped its return address pushes it again somewhere.
                self.sp = self.sp.filter(|sp| 0 < *sp);
                self.is_pushed = to == Register::RBP;
                self.move_sp(-i64::from(instruction.stack_pointer_increment()));
                match to {
                    Register::RBP if self.fp == FramePointer::Callers => self.callers_fp = self.sp,
                    Register::RBX if self.callers_bx.is_none() => self.callers_bx = self.sp,
                    _ => {}
                }
            }
            Mnemonic::Pop if to == Register::RBP => {
                let is_saved = self.callers_fp.is_some() && (is_own || self.callers_fp == self.sp);
                if !is_saved {
                    return Err(HasFrame);
                }
                self.sp = self.callers_fp;
                self.move_sp(-8);
                (self.fp, self.callers_fp, self.callers_bx) = (FramePointer::Callers, None, None);
            }
            Mnemonic::Leave => {
                let FramePointer::Own(at) = self.fp else { return Err(HasFrame) };
                *self = Self { sp: Some(at - 8), ..Self::CALLED };
            }
            Mnemonic::Mov if instruction.code() == Code::Mov_r64_rm64 || instruction.code() == Code::Mov_rm64_r64 => {
                match (to, instruction.op1_register()) {
                    (Register::RSP, Register::RBP) => match self.fp {
                        FramePointer::Own(at) => self.sp = Some(at),
                        _ => return Err(HasFrame),
                    },
                    (Register::RBP, Register::RSP) if is_pushed => *self = Self::BEGUN,
                    (Register::RBP, Register::RSP) => self.fp = self.sp.map_or(FramePointer::Other, FramePointer::Own),
                    _ => self.write(instruction, writes),
                }
            }
            Mnemonic::Add | Mnemonic::Sub if to == Register::RSP && instruction.op1_kind() != OpKind::Register => {
                match (instruction.try_immediate(1), instruction.mnemonic()) {
                    (Ok(bytes), Mnemonic::Add) => self.move_sp((bytes as i64).saturating_neg()),
                    (Ok(bytes), _) => self.move_sp(bytes as i64),
                    _ => self.sp = None,
                }
            }
            Mnemonic::Lea
                if to == Register::RSP
                    && instruction.memory_base() == Register::RSP
                    && instruction.memory_index() == Register::None =>
            {
                self.move_sp((instruction.memory_displacement64() as i64).saturating_neg());
            }
            _ => self.write(instruction, writes),
        }
        Ok(())
    }

    /// Applies any other instruction, by the registers that it writes.
    fn write(&mut self, instruction: &Instruction, writes: &mut InstructionInfoFactory) {
        let popped = instruction.stack_pointer_increment();
        self.move_sp(-i64::from(popped));
        let used = writes.info_options(instruction, InstructionInfoOptions::NO_MEMORY_USAGE);
        for register in used.used_registers() {
            let is_read = matches!(register.access(), OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess);
            match register.register().full_register() {
                _ if is_read => {}
                Register::RSP if popped == 0 => self.sp = None,
                Register::RBP => self.fp = FramePointer::Other,
                _ => {}
            }
        }
    }
}

/// Returns the rules of a stretch of builtin functions. Each rule holds from its address up to that of the next one.
/// The last rule, at the end of the stretch, is [`Rule::Unknown`].
pub(super) fn rules(stretch: &Stretch) -> Vec<(u64, Rule)> {
    let mut analysis = Analysis::new(stretch);
    let starts = std::mem::take(&mut analysis.starts);
    for start in &starts {
        analysis.follow_function(*start, &starts);
    }
    analysis.follow_rest(&starts);
    analysis.rules()
}

struct Analysis<'a> {
    code: &'a [u8],
    address: u64,
    decoder: Decoder<'a>,
    writes: InstructionInfoFactory,
    /// One number per byte of code. At the first byte of an instruction, it is one more than the index in `frames` of
    /// the frame before the instruction.
    known: Vec<u16>,
    frames: IndexSet<Frame, RandomState>,
    /// Offsets at which functions begin: those of called code, and those after padding.
    starts: BTreeSet<usize>,
    /// Offsets that became known since the start of the current function.
    journal: Vec<usize>,
}

impl<'a> Analysis<'a> {
    fn new(stretch: &'a Stretch) -> Self {
        let Stretch { address, code } = stretch;
        let mut analysis = Self {
            code,
            address: *address,
            decoder: Decoder::with_ip(64, code, *address, DecoderOptions::NONE),
            writes: InstructionInfoFactory::new(),
            known: vec![NOTHING; code.len()],
            frames: IndexSet::default(),
            starts: BTreeSet::new(),
            journal: Vec::new(),
        };
        analysis.find_starts();
        analysis
    }

    fn find_starts(&mut self) {
        let (mut at, mut is_padding) = (0, true);
        // A failed check traps, and a conditional jump before the trap continues after it.
        let mut continues = 0;
        while at < self.code.len() {
            let instruction = self.decode(at);
            let is_aligned = (self.address + at as u64).is_multiple_of(ALIGNMENT);
            let is_trap = instruction.mnemonic() == Mnemonic::Int3;
            if is_padding && is_aligned && !is_trap && continues != instruction.ip() {
                self.starts.insert(at);
            }
            if instruction.flow_control() == FlowControl::ConditionalBranch {
                continues = instruction.near_branch_target();
            }
            if instruction.is_call_near() {
                self.starts.extend(self.offset(instruction.near_branch_target()));
            }
            is_padding = is_trap;
            at += instruction.len().max(1);
        }
    }

    /// Follows a function. If it ends a frame that it has not begun, it continues in another one's frame.
    fn follow_function(&mut self, start: usize, starts: &BTreeSet<usize>) {
        self.journal.clear();
        if self.follow(start, Frame::CALLED, starts).is_err() {
            for at in std::mem::take(&mut self.journal) {
                self.known[at] = NOTHING;
            }
            // No further frame can be without a beginning.
            self.follow(start, Frame::CONTINUED, starts).unwrap_or_default();
        }
    }

    /// Follows code that no path has reached, such as the targets of indirect jumps. The deoptimizer makes calls return
    /// to the start of a function that continues in the caller's frame. Such a return address minus one is in the
    /// padding before that function.
    fn follow_rest(&mut self, starts: &BTreeSet<usize>) {
        let (mut at, mut before) = (0, NOTHING);
        let continued = self.number(Frame::CONTINUED).unwrap_or(NOTHING);
        while at < self.code.len() {
            let instruction = self.decode(at);
            if self.known[at] == NOTHING && instruction.mnemonic() == Mnemonic::Int3 {
                self.known[at] = continued;
            } else if self.known[at] == NOTHING {
                let frame = self.frame(before).filter(|frame| matches!(frame.fp, FramePointer::Own(_)));
                match frame {
                    Some(frame) => self.follow(at, Frame { sp: None, ..frame }, starts).unwrap_or_default(),
                    None => self.follow_function(at, starts),
                }
            }
            before = self.known[at];
            at += instruction.len().max(1);
        }
    }

    /// Follows all paths from an offset on, up to code that is known.
    fn follow(&mut self, start: usize, frame: Frame, starts: &BTreeSet<usize>) -> Result<(), HasFrame> {
        let mut paths = vec![(start, frame)];
        while let Some((mut at, mut frame)) = paths.pop() {
            while self.known.get(at) == Some(&NOTHING) {
                let instruction = self.decode(at);
                let Some(number) = self.number(frame).filter(|_| !instruction.is_invalid()) else { break };
                self.known[at] = number;
                self.journal.push(at);
                let target = self.offset(instruction.near_branch_target());
                match instruction.flow_control() {
                    FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => {
                        // A function that another one continues with has its own start.
                        paths.extend(target.filter(|target| !starts.contains(target)).map(|target| (target, frame)));
                    }
                    FlowControl::Call | FlowControl::IndirectCall => {}
                    FlowControl::Next => frame.apply(&instruction, &mut self.writes)?,
                    _ => {}
                }
                if ends(&instruction) {
                    break;
                }
                at += instruction.len();
                if starts.contains(&at) {
                    break;
                }
            }
        }
        Ok(())
    }

    fn number(&mut self, frame: Frame) -> Option<u16> {
        u16::try_from(self.frames.insert_full(frame).0 + 1).ok()
    }

    fn frame(&self, number: u16) -> Option<Frame> {
        self.frames.get_index(usize::from(number).checked_sub(1)?).copied()
    }

    fn decode(&mut self, at: usize) -> Instruction {
        let mut instruction = Instruction::default();
        if self.decoder.set_position(at).is_ok() {
            self.decoder.set_ip(self.address + at as u64);
            self.decoder.decode_out(&mut instruction);
        }
        instruction
    }

    fn offset(&self, address: u64) -> Option<usize> {
        usize::try_from(address.checked_sub(self.address)?).ok().filter(|offset| *offset < self.code.len())
    }

    fn rules(&self) -> Vec<(u64, Rule)> {
        let mut rules = vec![(self.address, Rule::Unknown)];
        for (at, number) in self.known.iter().enumerate() {
            let Some(frame) = self.frame(*number) else { continue };
            let rule = frame.rule();
            if rules.last().is_none_or(|(_, last)| *last != rule) {
                rules.push((self.address + at as u64, rule));
            }
        }
        rules.push((self.address + self.known.len() as u64, Rule::Unknown));
        rules
    }
}

/// True if execution does not continue after the instruction.
fn ends(instruction: &Instruction) -> bool {
    matches!(instruction.mnemonic(), Mnemonic::Hlt | Mnemonic::Int3)
        || matches!(
            instruction.flow_control(),
            FlowControl::Return
                | FlowControl::UnconditionalBranch
                | FlowControl::IndirectBranch
                | FlowControl::Exception
        )
}

#[cfg(test)]
mod tests;
