//! Rules of code that nothing describes, such as that of musl's C library, from its instructions. A function begins where a call goes; what
//! none calls begins behind the end of another one. Every way through it is followed, with the frame that is known in front of each
//! instruction, and what becomes of it there.
//!
//! Invariant: a function has rules only if all ways through it that are found agree, and all that return give back the stack and the
//! registers as they were. Else nothing is said of it. Only a function that is called, or the one that a program begins with, may be the
//! outermost one.
//! Work and memory are bounded by how long the code is.

mod frame;

use std::collections::{BTreeMap, BTreeSet};

use foldhash::fast::RandomState;
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic};
use indexmap::IndexSet;

use self::frame::{Contradiction, Frame};
use super::call_frames::ENTRY_BYTES;
use super::rule::Rule;

/// What is known of a byte.
const NOTHING: u16 = 0;
/// It is of an instruction that begins before.
const INSIDE: u16 = u16::MAX;
/// Instructions that are carried out for each byte of code at most.
const STEPS_PER_BYTE: usize = 4;
/// As compilers align functions, if they do.
const FUNCTION_ALIGNMENT: u64 = 16;
/// What a signal handler returns to: `mov $15, %rax; syscall`, or `%eax`.
const RETURNS_FROM_SIGNAL: [&[u8]; 2] =
    [&[0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05], &[0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05]];
/// Jumps to places that are known when they run, whose frames may be that of code where no way was found to.
const JUMPS_TRIED: usize = 4;
/// Times that all functions are looked through, again where one that others call turned out not to return.
const ROUNDS: usize = 4;

/// A stretch of code, and its address.
#[derive(Clone, Debug)]
pub(super) struct Stretch {
    pub(super) address: u64,
    pub(super) code: Vec<u8>,
}

/// The rules of each of these stretches, each from its address on up to the next one's, ascending; the last one, behind the end, is none.
/// `entry` is where the program begins, 0 of what is none.
pub(super) fn rules(stretches: &[Stretch], entry: u64) -> Vec<Vec<(u64, Rule)>> {
    let called: BTreeSet<u64> = stretches.iter().flat_map(called).collect();
    let rules = stretches.iter().map(|stretch| {
        let mut analysis = Analysis::new(stretch, &called);
        analysis.run(entry);
        analysis.rules()
    });
    rules.collect()
}

/// Where calls go.
fn called(from: &Stretch) -> Vec<u64> {
    let mut decoder = Decoder::with_ip(64, &from.code, from.address, DecoderOptions::NONE);
    let calls = decoder.iter().filter(Instruction::is_call_near);
    // A call of what is behind it reads where it is.
    calls.filter(|call| call.near_branch_target() != call.next_ip()).map(|call| call.near_branch_target()).collect()
}

struct Analysis<'a> {
    code: &'a [u8],
    address: u64,
    decoder: Decoder<'a>,
    writes: InstructionInfoFactory,
    /// Of each byte that an instruction begins with: the number of its frame, from 1 on.
    known: Vec<u16>,
    frames: IndexSet<Frame, RandomState>,
    /// Where functions begin for sure.
    starts: BTreeSet<usize>,
    /// Those that do not return.
    endless: BTreeSet<usize>,
    /// Jumps to where cannot be told.
    jumps: BTreeMap<usize, Frame>,
    /// What was known before of bytes and jumps, to take it back.
    journal: Vec<(usize, u16)>,
    jumps_before: Vec<(usize, Option<Frame>)>,
    /// Whether what is known of a byte was found before the function at hand.
    is_settled: Vec<bool>,
    steps_left: usize,
}

/// How the ways through a function end.
#[derive(Clone, Copy, Debug, Default)]
struct Ends {
    /// It returns, or becomes another function that does.
    returns: bool,
    /// Something bears out what was taken for granted: a return, or code that is known.
    is_confirmed: bool,
    /// It does what a function that was called may do: calls, with a stack that is aligned for that, or is a jump alone.
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
        // Where it cannot be followed, it begins there all the same.
        if let Some(entry) = entry.filter(|entry| self.known[*entry] == NOTHING) {
            let root = self.number(Frame::ROOT);
            let end = self.code.len().min(entry + ENTRY_BYTES as usize);
            self.known[entry..end]
                .iter_mut()
                .filter(|known| **known == NOTHING)
                .for_each(|known| *known = root.unwrap_or(NOTHING));
        }
    }

    /// Goes through the code to which no way was found: a function that is called from elsewhere begins there, or what a jump may go to.
    fn guess_starts(&mut self) {
        let (mut at, mut may_begin) = (0, true);
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

    /// Follows all ways from a place on; on an error, nothing is known that was not before. If need be, calls in front of padding are taken
    /// for ones that do not return.
    fn follow(&mut self, start: usize, frame: Frame) -> Result<Ends, Contradiction> {
        self.try_to_follow(start, frame, false).or_else(|_| self.try_to_follow(start, frame, true))
    }

    fn try_to_follow(&mut self, start: usize, frame: Frame, ends_at_padding: bool) -> Result<Ends, Contradiction> {
        self.journal.clear();
        self.jumps_before.clear();
        let followed = self.follow_ways(start, frame, ends_at_padding);
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

    fn follow_ways(&mut self, start: usize, frame: Frame, ends_at_padding: bool) -> Result<Ends, Contradiction> {
        let is_called = self.starts.contains(&start);
        let (mut ways, mut found) = (vec![(start, frame)], Ends::default());
        while let Some((mut at, mut frame)) = ways.pop() {
            while let Some(joined) = self.meet(at, frame, &mut found)? {
                frame = joined;
                self.step()?;
                let instruction = self.decode(at);
                if instruction.is_invalid() || self.return_from_signal(at).is_some() {
                    return Err(Contradiction);
                }
                let next = at + instruction.len();
                for inside in at + 1..next {
                    if ![NOTHING, INSIDE].contains(&self.known[inside]) {
                        return Err(Contradiction);
                    }
                    self.know(inside, INSIDE);
                }
                match instruction.flow_control() {
                    FlowControl::Return => {
                        let is_plain = instruction.mnemonic() == Mnemonic::Ret && instruction.op_count() == 0;
                        if !frame.is_as_called() || !is_plain {
                            return Err(Contradiction);
                        }
                        (found.returns, found.is_confirmed) = (true, true);
                    }
                    FlowControl::IndirectBranch => {
                        // What is behind a jump of the outermost function may be any other one.
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
                                ways.push((target, frame));
                            }
                            function => self.becomes(function, &frame, &mut found)?,
                        }
                    }
                    _ if is_call(&instruction) => {
                        // Compilers leave that out between functions of which they know all.
                        let is_function = instruction.near_branch_target() != instruction.next_ip();
                        if !is_function || !(frame.may_call() || is_called && ends_at_padding) {
                            return Err(Contradiction);
                        }
                        found.is_likely = true;
                    }
                    _ => frame.carry_out(&instruction, &mut self.writes, is_called)?,
                }
                let callee = self.offset(instruction.near_branch_target()).filter(|_| instruction.is_call_near());
                if ends(&instruction) || callee.is_some_and(|callee| self.endless.contains(&callee)) {
                    break;
                }
                if next != start && self.is_end(next) {
                    // Either the last call does not return, or the function goes on as the next one.
                    if !is_call(&instruction) {
                        self.becomes(self.starts.get(&next).copied(), &frame, &mut found)?;
                    }
                    break;
                }
                let may_end = ends_at_padding || frame.is_root;
                if may_end && is_call(&instruction) && is_padding(&self.decode(next)) {
                    // If another function is behind it, this call is known not to return.
                    let behind = self.behind_padding(next)?;
                    found.returns |= !self.is_end(behind);
                    break;
                }
                at = next;
            }
        }
        Ok(found)
    }

    /// Whether a function has to end there: the code does, or another one begins.
    fn is_end(&self, at: usize) -> bool {
        at == self.code.len() || self.starts.contains(&at)
    }

    fn step(&mut self) -> Result<(), Contradiction> {
        self.steps_left = self.steps_left.checked_sub(1).ok_or(Contradiction)?;
        Ok(())
    }

    fn behind_padding(&mut self, mut at: usize) -> Result<usize, Contradiction> {
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

    /// Goes on as another function; which one, may not be known.
    fn becomes(&self, other: Option<usize>, frame: &Frame, found: &mut Ends) -> Result<(), Contradiction> {
        if !frame.is_root && !frame.is_as_called() {
            return Err(Contradiction);
        }
        found.is_confirmed = true;
        found.returns |= other.is_none_or(|other| !self.endless.contains(&other));
        Ok(())
    }

    /// Comes to an instruction with a frame; returns the one that is known there from now on, if it is another than before.
    fn meet(&mut self, at: usize, frame: Frame, found: &mut Ends) -> Result<Option<Frame>, Contradiction> {
        let number = *self.known.get(at).ok_or(Contradiction)?;
        let joined = match number {
            NOTHING => frame,
            INSIDE => return Err(Contradiction),
            number => {
                let before = self.frame(number);
                let joined = before.join(frame)?;
                if joined == before {
                    // What becomes of it there is not looked at again.
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

    /// The number of a frame; `None` if there are too many.
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
        let (mut rules, mut behind_signal) = (Vec::<(u64, Rule)>::new(), 0);
        for (at, number) in self.known.iter().enumerate().filter(|(_, number)| **number != INSIDE) {
            if *number == NOTHING
                && let Some(code) = self.return_from_signal(at)
            {
                behind_signal = at + code.len();
            }
            let rule = match *number {
                NOTHING if at < behind_signal => Rule::Signal,
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

/// System calls are none.
fn is_call(instruction: &Instruction) -> bool {
    instruction.is_call_near() || instruction.is_call_near_indirect()
}

/// Whether what is behind an instruction does not follow it.
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
