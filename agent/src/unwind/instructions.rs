//! Rules of undescribed code, such as musl's C library, derived from its instructions.
//!
//! A function begins at the target of a call, or after the end of another function if nothing calls it. The analysis
//! begins with the frame that a call leaves, follows every path through the function, and applies each instruction to
//! the frame. So it knows the frame before each instruction, and from the frame follows the rule.
//!
//! Invariants:
//! - A function has rules only if all paths found agree, and every return restores the stack and the registers.
//!   Otherwise its code has no rules.
//! - Only a function that is called, or that begins at the entry point, may be an outermost function.
//! - Work and memory are linear in the length of the code.

mod frame;

use std::collections::{BTreeMap, BTreeSet};

use foldhash::fast::RandomState;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic};
use indexmap::IndexSet;

use self::frame::{Contradiction, Frame};
use super::rule::{ENTRY_BYTES, Rule};

/// Number in [`Analysis::known`] of a byte whose frame is unknown.
const NOTHING: u16 = 0;
/// Number in [`Analysis::known`] of a byte within an instruction that begins before the byte.
const INSIDE: u16 = u16::MAX;
/// Largest number of instructions that are analysed per byte of code. An instruction counts each time that a path
/// reaches it.
const STEPS_PER_BYTE: usize = 4;
/// Alignment of functions, if a compiler aligns them.
const FUNCTION_ALIGNMENT: u64 = 16;
/// Code that a signal handler returns to: `mov $15, %rax; syscall`, or with `%eax`.
const RETURNS_FROM_SIGNAL: [&[u8]; 2] =
    [&[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05], &[0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05]];
/// Largest number of indirect jumps whose frames are tried for code that no path reaches. Such a jump may lead to this
/// code.
const JUMPS_TRIED: usize = 4;
/// Largest number of passes over all functions. Another pass is needed if a function that others call turns out not to
/// return.
const ROUNDS: usize = 4;

/// A range of code that no call frame information covers, and its ELF virtual address.
#[derive(Clone, Debug)]
pub(super) struct Stretch {
    pub(super) address: u64,
    pub(super) code: Vec<u8>,
}

/// Returns the rules of each stretch. Each rule holds from its address up to that of the next one. The last rule, at
/// the end of the stretch, is [`Rule::Unknown`]. `entry` is the entry point; 0 if the file is not a program.
pub(super) fn rules(stretches: &[Stretch], entry: u64) -> Vec<Vec<(u64, Rule)>> {
    let called: BTreeSet<u64> = stretches.iter().flat_map(called).collect();
    let rules = stretches.iter().map(|stretch| {
        let mut analysis = Analysis::new(stretch, &called);
        analysis.run(entry);
        analysis.rules()
    });
    rules.collect()
}

/// Returns the targets of calls.
fn called(from: &Stretch) -> Vec<u64> {
    let mut decoder = Decoder::with_ip(64, &from.code, from.address, DecoderOptions::NONE);
    let calls = decoder.iter().filter(Instruction::is_call_near);
    // A call of the next instruction only reads the program counter.
    calls.filter(|call| call.near_branch_target() != call.next_ip()).map(|call| call.near_branch_target()).collect()
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
    /// Offsets at which functions certainly begin.
    starts: BTreeSet<usize>,
    /// Offsets of the functions that do not return.
    endless: BTreeSet<usize>,
    /// Frames at indirect jumps with unknown targets, by the offset of the jump.
    jumps: BTreeMap<usize, Frame>,
    /// Earlier values of `known`, by offset, which are restored after a contradiction.
    journal: Vec<(usize, u16)>,
    /// Earlier values of `jumps`, by offset, which are restored after a contradiction.
    jumps_before: Vec<(usize, Option<Frame>)>,
    /// True for each byte whose frame was found when an earlier function was followed.
    is_settled: Vec<bool>,
    steps_left: usize,
}

/// Properties of a function, from the ends of all paths through it.
#[derive(Clone, Copy, Debug, Default)]
struct Ends {
    /// True if the function returns, or continues as another function that returns.
    returns: bool,
    /// True if a return, or known code, confirms the assumed frame.
    is_confirmed: bool,
    /// True if the code resembles a called function: it calls with an aligned stack, or is a single jump.
    is_likely: bool,
}

impl<'a> Analysis<'a> {
    fn new(stretch: &'a Stretch, called: &BTreeSet<u64>) -> Self {
        let Stretch { address, code } = stretch;
        let called = called.range(address..).map(|called| (called - address) as usize);
        Self {
            code,
            address: *address,
            decoder: Decoder::with_ip(64, code, *address, DecoderOptions::NONE),
            writes: InstructionInfoFactory::new(),
            known: vec![NOTHING; code.len()],
            frames: IndexSet::default(),
            starts: called.take_while(|called| *called < code.len()).collect(),
            endless: BTreeSet::new(),
            jumps: BTreeMap::new(),
            journal: Vec::new(),
            jumps_before: Vec::new(),
            is_settled: vec![false; code.len()],
            steps_left: code.len() * STEPS_PER_BYTE,
        }
    }

    fn run(&mut self, entry: u64) {
        let entry = self.offset(entry).filter(|_| entry != 0);
        self.starts.extend(entry);
        for _ in 0..ROUNDS {
            self.known.fill(NOTHING);
            self.is_settled.fill(false);
            self.jumps.clear();
            let endless = self.endless.len();
            for start in self.starts.clone() {
                let frame = if Some(start) == entry { Frame::ROOT } else { Frame::CALLED };
                if let Ok(Ends { returns: false, .. }) = self.follow(start, frame) {
                    self.endless.insert(start);
                }
            }
            if self.endless.len() == endless {
                break;
            }
        }
        self.guess_starts();
        // The entry point is the outermost function even if its code cannot be followed.
        if let Some(entry) = entry.filter(|entry| self.known[*entry] == NOTHING) {
            let root = self.number(Frame::ROOT);
            let end = self.code.len().min(entry + ENTRY_BYTES as usize);
            self.known[entry..end]
                .iter_mut()
                .filter(|known| **known == NOTHING)
                .for_each(|known| *known = root.unwrap_or(NOTHING));
        }
    }

    /// Follows code that no path has reached: functions that are called from other files, and targets of indirect
    /// jumps.
    fn guess_starts(&mut self) {
        let mut at = 0;
        let mut may_begin = true;
        while at < self.code.len() {
            if self.known[at] != NOTHING {
                (at, may_begin) = (at + 1, true);
                continue;
            }
            let instruction = self.decode(at);
            let is_padding = is_padding(&instruction);
            if !is_padding {
                if may_begin && self.guess(at) {
                    continue;
                }
                may_begin = false;
            }
            at += instruction.len().max(1);
            let is_aligned = (self.address + at as u64).is_multiple_of(FUNCTION_ALIGNMENT);
            may_begin |= is_aligned && (is_padding || ends(&instruction));
        }
    }

    fn guess(&mut self, at: usize) -> bool {
        if self.starts.contains(&at) {
            return false;
        }
        let jumps = self.jumps.range(..at).rev().take(JUMPS_TRIED).map(|(_, frame)| *frame);
        let guesses: Vec<Frame> = jumps.chain([Frame::CALLED]).collect();
        guesses.into_iter().any(|frame| self.follow(at, frame).is_ok())
    }

    /// Follows all paths from an offset on. After an error, nothing has changed. If necessary, calls before padding are
    /// taken as calls that do not return.
    fn follow(&mut self, start: usize, frame: Frame) -> Result<Ends, Contradiction> {
        self.try_to_follow(start, frame, false).or_else(|_| self.try_to_follow(start, frame, true))
    }

    fn try_to_follow(&mut self, start: usize, frame: Frame, ends_at_padding: bool) -> Result<Ends, Contradiction> {
        self.journal.clear();
        self.jumps_before.clear();
        let followed = self.follow_paths(start, frame, ends_at_padding);
        let is_credible =
            |ends: &Ends| ends.is_confirmed || ends.is_likely && frame == Frame::CALLED || self.starts.contains(&start);
        if let Some(ends) = followed.ok().filter(is_credible) {
            self.journal.iter().for_each(|(at, _)| self.is_settled[*at] = true);
            return Ok(ends);
        }
        for (at, before) in self.journal.iter().rev() {
            self.known[*at] = *before;
        }
        for (jump, before) in self.jumps_before.drain(..).rev() {
            match before {
                Some(frame) => self.jumps.insert(jump, frame),
                None => self.jumps.remove(&jump),
            };
        }
        Err(Contradiction)
    }

    fn follow_paths(&mut self, start: usize, frame: Frame, ends_at_padding: bool) -> Result<Ends, Contradiction> {
        let is_called = self.starts.contains(&start);
        let mut paths = vec![(start, frame)];
        let mut found = Ends::default();
        while let Some((mut at, mut frame)) = paths.pop() {
            while let Some(joined) = self.meet(at, frame, &mut found)? {
                frame = joined;
                self.step()?;
                let instruction = self.decode(at);
                if instruction.is_invalid() || self.return_from_signal(at).is_some() {
                    return Err(Contradiction);
                }
                let next = at + instruction.len();
                self.cover(at, next)?;
                match instruction.flow_control() {
                    FlowControl::Return => {
                        let is_plain = instruction.mnemonic() == Mnemonic::Ret && instruction.op_count() == 0;
                        if !frame.is_as_called() || !is_plain {
                            return Err(Contradiction);
                        }
                        (found.returns, found.is_confirmed) = (true, true);
                    }
                    FlowControl::IndirectBranch => {
                        // The code behind a jump of the outermost function may be any function, so this frame is not
                        // tried there.
                        if !frame.is_root {
                            let before = self.jumps.insert(at, frame);
                            self.jumps_before.push((at, before));
                        }
                        found.returns = true;
                        found.is_likely |= at == start;
                    }
                    FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch => {
                        match self.offset(instruction.near_branch_target()) {
                            Some(target) if target == start || !self.starts.contains(&target) => {
                                paths.push((target, frame));
                            }
                            function => self.becomes(function, &frame, &mut found)?,
                        }
                    }
                    _ if is_call(&instruction) => {
                        // Compilers may leave the stack unaligned for calls between functions of one file.
                        let is_function = instruction.near_branch_target() != instruction.next_ip();
                        if !is_function || !(frame.may_call() || is_called && ends_at_padding) {
                            return Err(Contradiction);
                        }
                        found.is_likely = true;
                    }
                    _ => frame.apply(&instruction, &mut self.writes, is_called)?,
                }
                let callee = self.offset(instruction.near_branch_target()).filter(|_| instruction.is_call_near());
                if ends(&instruction) || callee.is_some_and(|callee| self.endless.contains(&callee)) {
                    break;
                }
                if next != start && self.is_end(next) {
                    // Either the last call does not return, or the function continues as the next one.
                    if !is_call(&instruction) {
                        self.becomes(self.starts.get(&next).copied(), &frame, &mut found)?;
                    }
                    break;
                }
                let may_end = ends_at_padding || frame.is_root;
                if may_end && is_call(&instruction) && is_padding(&self.decode(next)) {
                    // If another function follows the padding, this call does not return.
                    let after = self.after_padding(next)?;
                    found.returns |= !self.is_end(after);
                    break;
                }
                at = next;
            }
        }
        Ok(found)
    }

    /// Marks the bytes of the instruction from `at` to `next`, except the first byte, as [`INSIDE`].
    fn cover(&mut self, at: usize, next: usize) -> Result<(), Contradiction> {
        for inside in at + 1..next {
            if ![NOTHING, INSIDE].contains(&self.known[inside]) {
                return Err(Contradiction);
            }
            self.know(inside, INSIDE);
        }
        Ok(())
    }

    /// True if a function must end at `at`: the code ends, or another function begins.
    fn is_end(&self, at: usize) -> bool {
        at == self.code.len() || self.starts.contains(&at)
    }

    fn step(&mut self) -> Result<(), Contradiction> {
        self.steps_left = self.steps_left.checked_sub(1).ok_or(Contradiction)?;
        Ok(())
    }

    /// Returns the offset after the padding that begins at `at`.
    fn after_padding(&mut self, mut at: usize) -> Result<usize, Contradiction> {
        while at < self.code.len() {
            self.step()?;
            let instruction = self.decode(at);
            if !is_padding(&instruction) {
                break;
            }
            at += instruction.len();
        }
        Ok(at)
    }

    fn return_from_signal(&self, at: usize) -> Option<&'static [u8]> {
        RETURNS_FROM_SIGNAL.into_iter().find(|code| self.code[at..].starts_with(code))
    }

    /// Handles a tail call: the current function continues as the function `other`, which is `None` if it is not known.
    fn becomes(&self, other: Option<usize>, frame: &Frame, found: &mut Ends) -> Result<(), Contradiction> {
        if !frame.is_root && !frame.is_as_called() {
            return Err(Contradiction);
        }
        found.is_confirmed = true;
        found.returns |= other.is_none_or(|other| !self.endless.contains(&other));
        Ok(())
    }

    /// Handles a path that reaches the instruction at `at` with `frame`. Returns the frame that is known there from now
    /// on; `None` if it was known before, so that the path need not be followed again.
    fn meet(&mut self, at: usize, frame: Frame, found: &mut Ends) -> Result<Option<Frame>, Contradiction> {
        let number = *self.known.get(at).ok_or(Contradiction)?;
        let joined = match number {
            NOTHING => frame,
            INSIDE => return Err(Contradiction),
            number => {
                let before = self.frame(number);
                let joined = before.join(frame)?;
                if joined == before {
                    // The path from here on was followed before.
                    found.is_confirmed |= self.is_settled[at];
                    found.returns |= self.is_settled[at];
                    return Ok(None);
                }
                joined
            }
        };
        let number = self.number(joined).ok_or(Contradiction)?;
        self.know(at, number);
        Ok(Some(joined))
    }

    /// Returns the number of a frame; `None` if there are too many.
    fn number(&mut self, frame: Frame) -> Option<u16> {
        u16::try_from(self.frames.insert_full(frame).0 + 1).ok().filter(|number| *number < INSIDE)
    }

    fn frame(&self, number: u16) -> Frame {
        self.frames[usize::from(number) - 1]
    }

    fn know(&mut self, at: usize, number: u16) {
        let before = std::mem::replace(&mut self.known[at], number);
        if before != number {
            self.journal.push((at, before));
        }
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
        let mut rules = Vec::<(u64, Rule)>::new();
        let mut trampoline_end = 0;
        for (at, number) in self.known.iter().enumerate().filter(|(_, number)| **number != INSIDE) {
            if *number == NOTHING
                && let Some(code) = self.return_from_signal(at)
            {
                trampoline_end = at + code.len();
            }
            let rule = match *number {
                NOTHING if at < trampoline_end => Rule::Signal,
                NOTHING => Rule::Unknown,
                number => self.frame(number).rule(),
            };
            if rules.last().is_none_or(|(_, last)| *last != rule) {
                rules.push((self.address + at as u64, rule));
            }
        }
        rules.push((self.address + self.known.len() as u64, Rule::Unknown));
        rules
    }
}

/// True for calls of functions, not for system calls.
fn is_call(instruction: &Instruction) -> bool {
    instruction.is_call_near() || instruction.is_call_near_indirect()
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

fn is_padding(instruction: &Instruction) -> bool {
    matches!(instruction.mnemonic(), Mnemonic::Nop | Mnemonic::Int3)
        || instruction.mnemonic() == Mnemonic::Xchg && instruction.op0_register() == instruction.op1_register()
}

#[cfg(test)]
mod tests;
