//! The known state of a function's frame before an instruction, and the changes that the instruction makes. Distances
//! are in bytes below the CFA, which is the stack pointer of the caller after the call has returned.

use iced_x86::{Instruction, InstructionInfoFactory, InstructionInfoOptions, Mnemonic, OpAccess, OpKind, Register};

use super::super::rule::{self, Cfa, Rule};

/// DWARF number of the stack pointer.
const SP: rule::Register = rule::Register(7);
/// DWARF number of the frame pointer.
const FP: rule::Register = rule::Register(6);

/// An operand of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operand {
    Register(Register),
    /// Memory, with its distance below the CFA if it is in the frame.
    Memory(Option<i32>),
    Immediate(i32),
    Other,
}

const RSP: Operand = Operand::Register(Register::RSP);
const RBP: Operand = Operand::Register(Register::RBP);
const RBX: Operand = Operand::Register(Register::RBX);

/// Size in bytes that a frame must not reach. All known frames are smaller.
const FRAME_BYTES_MAX: i64 = 1 << 24;

/// A contradiction: the code is not a function, or does not follow the calling convention.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Contradiction;

/// State of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Frame {
    /// True for the outermost function, which has no caller.
    pub(super) is_root: bool,
    /// Distance of the address that the stack pointer holds, if it is known.
    sp: Option<i32>,
    /// Distance of the address that the frame pointer holds, if this address is in the frame.
    fp: Option<i32>,
    callers_fp: Kept,
    callers_bx: Kept,
}

/// Location of a register that a function must restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kept {
    /// The register still holds the caller's value.
    InPlace,
    /// The register still holds the caller's value, and so does the stack slot at this distance.
    Saved(i32),
    /// Only the stack slot at this distance holds the caller's value. The register no longer does.
    OnlySaved(i32),
    /// The caller's value is at no known location.
    Lost,
}

impl Kept {
    fn save(&mut self, at: Option<i32>) {
        if let (Self::InPlace, Some(at)) = (*self, at.filter(|at| 8 < *at && at % 8 == 0)) {
            *self = Self::Saved(at);
        }
    }

    fn change(&mut self) {
        *self = match *self {
            Self::Saved(at) | Self::OnlySaved(at) => Self::OnlySaved(at),
            Self::InPlace | Self::Lost => Self::Lost,
        };
    }

    /// Applies a load of the register from memory at the distance `from`.
    fn load(&mut self, from: Option<i32>) {
        match *self {
            Self::Saved(at) | Self::OnlySaved(at) if from == Some(at) => *self = Self::Saved(at),
            _ => self.change(),
        }
    }

    /// Applies a move of the stack pointer to the distance `sp`. Memory below the stack pointer is not preserved.
    fn leave_above(&mut self, sp: i32) -> Result<(), Contradiction> {
        match *self {
            Self::OnlySaved(at) if sp < at => Err(Contradiction),
            Self::Saved(at) if sp < at => {
                *self = Self::InPlace;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn is_in_place(self) -> bool {
        matches!(self, Self::InPlace | Self::Saved(_))
    }

    fn join(self, other: Self) -> Self {
        match (self, other) {
            _ if self == other => self,
            (Self::InPlace, Self::Saved(_)) | (Self::Saved(_), Self::InPlace) => Self::InPlace,
            (Self::Saved(a), Self::Saved(b)) if a != b => Self::InPlace,
            (Self::Saved(a), Self::OnlySaved(b)) | (Self::OnlySaved(a), Self::Saved(b)) if a == b => Self::OnlySaved(a),
            _ => Self::Lost,
        }
    }

    fn place(self) -> rule::Saved {
        match self {
            Self::InPlace | Self::Saved(_) => rule::Saved::InPlace,
            Self::OnlySaved(at) => i16::try_from(-at / 8).map_or(rule::Saved::Lost, rule::Saved::AtCfa),
            Self::Lost => rule::Saved::Lost,
        }
    }
}

impl Frame {
    /// Frame at the start of a called function.
    pub(super) const CALLED: Self =
        Self { is_root: false, sp: Some(8), fp: None, callers_fp: Kept::InPlace, callers_bx: Kept::InPlace };
    /// Frame of the outermost function.
    pub(super) const ROOT: Self = Self { is_root: true, sp: None, ..Self::CALLED };

    /// True if stack and registers are as the caller left them, so that the function may return or continue as another
    /// one.
    pub(super) fn is_as_called(&self) -> bool {
        !self.is_root && self.sp == Some(8) && self.callers_fp.is_in_place() && self.callers_bx.is_in_place()
    }

    /// True if the stack is aligned for a call.
    pub(super) fn may_call(&self) -> bool {
        self.is_root || self.sp.is_none_or(|sp| sp % 16 == 0)
    }

    /// Returns what both frames have in common, as the frame at a point where two paths meet.
    pub(super) fn join(self, other: Self) -> Result<Self, Contradiction> {
        let fp = self.fp.filter(|_| self.fp == other.fp);
        let sp = self.sp.filter(|_| self.sp == other.sp);
        if self.is_root != other.is_root || !self.is_root && sp.or(fp).is_none() {
            return Err(Contradiction);
        }
        let callers_fp = self.callers_fp.join(other.callers_fp);
        let callers_bx = self.callers_bx.join(other.callers_bx);
        Ok(Self { is_root: self.is_root, sp, fp, callers_fp, callers_bx })
    }

    pub(super) fn rule(&self) -> Rule {
        let cfa = match *self {
            Self { is_root: true, .. } => return Rule::Root,
            Self { sp: Some(offset), .. } => Cfa::Register { base: SP, offset },
            Self { fp: Some(offset), .. } => Cfa::Register { base: FP, offset },
            _ => return Rule::Unknown,
        };
        Rule::Frame { cfa, fp: self.callers_fp.place(), bx: self.callers_bx.place(), return_address: -1 }
    }

    /// Applies an instruction that is not a jump, call or return. `may_be_root` is true if this could be the outermost
    /// function.
    pub(super) fn apply(
        &mut self,
        instruction: &Instruction,
        writes: &mut InstructionInfoFactory,
        may_be_root: bool,
    ) -> Result<(), Contradiction> {
        if self.is_root {
            return Ok(());
        }
        let [to, from] = [0, 1].map(|number| self.operand(instruction, number));
        if let Some(done) = self.move_stack(instruction, to, from) {
            return done;
        }
        if let Some(done) = self.move_register(instruction.mnemonic(), to, from, may_be_root) {
            return done;
        }
        self.write(instruction, writes)
    }

    /// Applies an instruction that moves the stack pointer in a known way; `None` for other instructions.
    fn move_stack(
        &mut self,
        instruction: &Instruction,
        to: Operand,
        from: Operand,
    ) -> Option<Result<(), Contradiction>> {
        let moved = match (instruction.mnemonic(), to, from) {
            (Mnemonic::Push, pushed, _) => {
                let sp = self.sp.map(|sp| i64::from(sp) - i64::from(instruction.stack_pointer_increment()));
                let moved = self.set_sp(sp);
                match pushed {
                    RBP => self.callers_fp.save(self.sp),
                    RBX => self.callers_bx.save(self.sp),
                    _ => {}
                }
                moved
            }
            (Mnemonic::Pop, RBP, _) => {
                self.fp = None;
                self.callers_fp.load(self.sp);
                self.pop()
            }
            (Mnemonic::Pop, RBX, _) => {
                self.callers_bx.load(self.sp);
                self.pop()
            }
            (Mnemonic::Pop, Operand::Register(popped), _) if popped.full_register() == Register::RSP => {
                self.set_sp(None)
            }
            (Mnemonic::Leave, ..) => {
                let fp = self.fp.take();
                self.callers_fp.load(fp);
                self.set_sp(fp.map(|fp| i64::from(fp) - 8))
            }
            (Mnemonic::Mov, RSP, RBP) => self.set_sp(self.fp.map(i64::from)),
            (Mnemonic::Lea, RSP, Operand::Memory(place)) => self.set_sp(place.map(i64::from)),
            (Mnemonic::Add, RSP, Operand::Immediate(bytes)) => {
                self.set_sp(self.sp.map(|sp| i64::from(sp) - i64::from(bytes)))
            }
            (Mnemonic::Sub, RSP, Operand::Immediate(bytes)) => {
                self.set_sp(self.sp.map(|sp| i64::from(sp) + i64::from(bytes)))
            }
            _ => return None,
        };
        Some(moved)
    }

    /// Applies an instruction that saves or loads a register of the caller, or sets the frame pointer; `None` for other
    /// instructions.
    fn move_register(
        &mut self,
        mnemonic: Mnemonic,
        to: Operand,
        from: Operand,
        may_be_root: bool,
    ) -> Option<Result<(), Contradiction>> {
        match (mnemonic, to, from) {
            (Mnemonic::Mov, RBP, RSP) => {
                self.callers_fp.change();
                self.fp = self.sp;
            }
            (Mnemonic::Lea, RBP, Operand::Memory(place)) => {
                self.callers_fp.change();
                self.fp = place;
            }
            (Mnemonic::Mov, Operand::Memory(place), RBP) => self.callers_fp.save(place),
            (Mnemonic::Mov, Operand::Memory(place), RBX) => self.callers_bx.save(place),
            (Mnemonic::Mov, RBP, Operand::Memory(place)) => {
                self.fp = None;
                self.callers_fp.load(place);
            }
            (Mnemonic::Mov, RBX, Operand::Memory(place)) => self.callers_bx.load(place),
            // The first function of a thread clears the frame pointer to mark that it has no caller. Any other function
            // would lose the frame pointer of its caller.
            (Mnemonic::Xor, Operand::Register(one), Operand::Register(other))
                if one == other && matches!(one, Register::RBP | Register::EBP) && self.callers_fp == Kept::InPlace =>
            {
                if !may_be_root {
                    return Some(Err(Contradiction));
                }
                *self = Self::ROOT;
                return Some(Ok(()));
            }
            _ => return None,
        }
        Some(if self.sp.or(self.fp).is_none() { Err(Contradiction) } else { Ok(()) })
    }

    /// Applies any other instruction by the registers and the memory that it writes.
    fn write(&mut self, instruction: &Instruction, writes: &mut InstructionInfoFactory) -> Result<(), Contradiction> {
        let popped = instruction.stack_pointer_increment();
        if popped != 0 {
            self.set_sp(self.sp.map(|sp| i64::from(sp) - i64::from(popped)))?;
        }
        let used = writes.info_options(instruction, InstructionInfoOptions::NO_MEMORY_USAGE);
        for register in used.used_registers() {
            let access = register.access();
            if !matches!(access, OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite)
            {
                continue;
            }
            match register.register().full_register() {
                Register::RSP if popped == 0 => self.set_sp(None)?,
                Register::RBP => {
                    self.fp = None;
                    self.callers_fp.change();
                }
                Register::RBX => self.callers_bx.change(),
                _ => {}
            }
        }
        if self.sp.or(self.fp).is_none() { Err(Contradiction) } else { Ok(()) }
    }

    fn operand(&self, instruction: &Instruction, number: u32) -> Operand {
        if instruction.op_count() <= number {
            return Operand::Other;
        }
        match instruction.op_kind(number) {
            OpKind::Register => Operand::Register(instruction.op_register(number)),
            OpKind::Memory => Operand::Memory(self.place(instruction)),
            _ => match instruction.try_immediate(number).map(|immediate| i32::try_from(immediate as i64)) {
                Ok(Ok(immediate)) => Operand::Immediate(immediate),
                _ => Operand::Other,
            },
        }
    }

    fn pop(&mut self) -> Result<(), Contradiction> {
        self.set_sp(self.sp.map(|sp| i64::from(sp) - 8))
    }

    /// Sets the distance of the stack pointer. The return address stays on the stack until the return.
    fn set_sp(&mut self, sp: Option<i64>) -> Result<(), Contradiction> {
        if sp.is_some_and(|sp| !(8..FRAME_BYTES_MAX).contains(&sp)) || sp.is_none() && self.fp.is_none() {
            return Err(Contradiction);
        }
        self.sp = sp.map(|sp| sp as i32);
        if let Some(sp) = self.sp {
            self.callers_fp.leave_above(sp)?;
            self.callers_bx.leave_above(sp)?;
        }
        Ok(())
    }

    /// Returns the distance of the memory operand of an instruction, if it is in the frame.
    fn place(&self, instruction: &Instruction) -> Option<i32> {
        let base = match instruction.memory_base() {
            Register::RSP => self.sp,
            Register::RBP => self.fp,
            _ => None,
        };
        let place = i64::from(base?).checked_sub(instruction.memory_displacement64() as i64)?;
        let is_in_frame = instruction.memory_index() == Register::None
            && instruction.segment_prefix() == Register::None
            && place.abs() < FRAME_BYTES_MAX;
        is_in_frame.then_some(place as i32)
    }
}

#[cfg(test)]
impl Frame {
    /// Returns the computation of the CFA from the stack pointer, and that from the frame pointer. Each is `None` if it
    /// is not possible.
    pub(super) fn cfas(&self) -> [Option<Cfa>; 2] {
        let by = |base| move |offset| Cfa::Register { base, offset };
        [self.sp.map(by(SP)), self.fp.map(by(FP))]
    }

    /// True if a saved register is below the stack pointer.
    pub(super) fn is_below_stack(&self, place: rule::Saved) -> bool {
        matches!((place, self.sp), (rule::Saved::AtCfa(words), Some(sp)) if sp < -i32::from(words) * 8)
    }

    /// Returns the locations of the caller's frame pointer and BX.
    pub(super) fn saved(&self) -> [Option<rule::Saved>; 2] {
        [self.callers_fp, self.callers_bx].map(|kept| match kept {
            Kept::Saved(at) => Some(Kept::OnlySaved(at).place()),
            _ => None,
        })
    }
}
