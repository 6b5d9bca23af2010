//! Reads function objects: the name, file and first line of a PHP function.
//!
//! The program may free or change a function object at any moment. Invariant: a function is returned only if its object
//! had the wanted identity before and after all other reads.

use super::layout::Layout;
use crate::names::location::{Call, NAME_BYTES_MAX};
use crate::runtimes::memory::ProcessMemory;

/// Factor of BPF's hash.
const HASH_FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// Bits of an address that tell the form of the frame, as in `ebpf/bpf/runtimes/php.h`.
const FORM_BITS: u64 = 7;

// In a function object.
const TYPE: u64 = 0;
const NAME: u64 = 8;
const CLASS: u64 = 16;
/// Type of the code that `eval` runs.
const EVAL: u8 = 4;

// In a string: its type, its hash, its length, and its bytes.
const STRING_TYPE: u64 = 4;
const STRING_HASH: u64 = 8;
const STRING_LENGTH: u64 = 16;
const STRING_BYTES: u64 = 24;
/// Type of a string, in the lower four bits.
const IS_STRING: u32 = 6;

/// In a class: its name.
const CLASS_NAME: u64 = 8;
/// Types of classes: of PHP itself, or of the program.
const CLASS_TYPES: [u8; 2] = [1, 2];

/// Form of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// A function of the program.
    User,
    /// Code that is no function: that of a file that is included, or of `eval`.
    Code,
    /// A function that is written in C.
    Internal,
    /// The code of the file with which the program begins.
    Main,
}

impl Form {
    fn of(address: u64) -> Option<Self> {
        match address & FORM_BITS {
            0 => Some(Self::User),
            1 => Some(Self::Code),
            2 => Some(Self::Internal),
            3 => Some(Self::Main),
            _ => None,
        }
    }
}

/// A function, as its object describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Function {
    name: String,
    /// Empty for a function that is written in C.
    file: String,
    first_line: u32,
}

impl Function {
    /// Reads a function object. `None` if it is gone, or if it cannot be read. The lower bits of the address tell the
    /// form of the frame.
    pub(crate) fn read(memory: &ProcessMemory, layout: &Layout, address: u64, identity: u32) -> Option<Self> {
        // BPF may have been unable to read the text.
        let has_identity = || {
            let is_it = |text: Text| identity_of(memory, layout, address, text) == Some(identity);
            is_it(Text::Read) || is_it(Text::Unread)
        };
        memory.read_same(has_identity, || Self::parts(memory, layout, address))
    }

    /// Returns the form of a frame, unless its function is written in C. PHP copies the object for each closure, and
    /// for the code of a cached file.
    pub(crate) fn copied_kind(address: u64) -> Option<u64> {
        Form::of(address).filter(|form| *form != Form::Internal).map(|_| address & FORM_BITS)
    }

    fn parts(memory: &ProcessMemory, layout: &Layout, address: u64) -> Option<Self> {
        let (form, object) = (Form::of(address)?, address & !FORM_BITS);
        let name = match form {
            Form::Main => "{main}".to_owned(),
            Form::Code if memory.array(object.checked_add(TYPE)?)? == [EVAL] => "{eval}".to_owned(),
            Form::Code => "{include}".to_owned(),
            Form::User | Form::Internal => qualified_name(memory, object)?,
        };
        let mut function = Self { name, file: String::new(), first_line: 0 };
        if form != Form::Internal {
            let file = object.checked_add(layout.file.into())?;
            function.file = text(memory, word(memory, file)?, Part::End)?;
            function.first_line = memory.array(file.checked_add(8)?).map(u32::from_ne_bytes)?;
        }
        Some(function)
    }

    /// Returns the function, and its line. `position` is as BPF reports it: the line, or 0 if it is not known.
    pub(crate) fn call(&self, position: u32) -> Call {
        let line = if position == 0 { self.first_line } else { position };
        Call { function: self.name.clone(), file: self.file.clone(), line, start_line: self.first_line }
    }

    /// Approximate memory, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>() + self.name.len() + self.file.len()
    }
}

/// The text that is a part of an identity: the name of a function, or of the file of code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Text {
    Read,
    /// The program has not read the page of the text yet, so BPF cannot read it.
    Unread,
}

/// Returns the identity of a function object, as BPF computes it (`php_identity` in `ebpf/bpf/runtimes/php.h`).
pub(crate) fn identity_of(memory: &ProcessMemory, layout: &Layout, address: u64, text: Text) -> Option<u32> {
    let (form, object) = (Form::of(address)?, address & !FORM_BITS);
    let at = |offset: u64| word(memory, object.checked_add(offset)?);
    let mut words = vec![at(NAME)?, at(CLASS)?];
    if form == Form::Internal {
        words.push(at(layout.handler.into())?);
    } else {
        let count = memory.array(object.checked_add(layout.count.into())?).map(u32::from_ne_bytes)?;
        let file = at(layout.file.into())?;
        let lines = at(u64::from(layout.file) + 8)?;
        words.extend([at(layout.instructions.into())?, count.into(), file, lines]);
        // Hash, length and first bytes of the name, or of the file's name.
        let start = if form == Form::User { at(NAME)? } else { file };
        let start: [u8; 24] = memory.array(start.checked_add(STRING_HASH)?)?;
        let is_read = text == Text::Read;
        words.extend(start.as_chunks::<8>().0.iter().map(|word| if is_read { u64::from_ne_bytes(*word) } else { 0 }));
    }
    let mixed = words.into_iter().fold(0_u64, |mixed, word| (mixed ^ word).wrapping_mul(HASH_FACTOR));
    Some((mixed >> 32) as u32 | 1)
}

/// Returns the name of a function, after that of its class if it is a method.
fn qualified_name(memory: &ProcessMemory, object: u64) -> Option<String> {
    let name = text(memory, word(memory, object.checked_add(NAME)?)?, Part::Start)?;
    let class = word(memory, object.checked_add(CLASS)?)?;
    if class == 0 {
        return Some(name);
    }
    if !CLASS_TYPES.contains(&memory.array::<1>(class)?[0]) {
        return None;
    }
    let mut qualified = text(memory, word(memory, class.checked_add(CLASS_NAME)?)?, Part::Start)?;
    qualified.push_str("::");
    qualified.push_str(&name);
    qualified.truncate(qualified.floor_char_boundary(NAME_BYTES_MAX));
    Some(qualified)
}

fn word(memory: &ProcessMemory, address: u64) -> Option<u64> {
    memory.array(address).map(u64::from_ne_bytes)
}

/// Part of a text that is read if the text is too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Start,
    End,
}

/// Reads a string, at most [`NAME_BYTES_MAX`] bytes of it. The name of an anonymous class ends at a zero byte, and the
/// place of the class follows.
fn text(memory: &ProcessMemory, string: u64, part: Part) -> Option<String> {
    let kind = memory.array(string.checked_add(STRING_TYPE)?).map(u32::from_ne_bytes)?;
    if kind & 0xf != IS_STRING {
        return None;
    }
    let length = word(memory, string.checked_add(STRING_LENGTH)?)?;
    let read = length.min(NAME_BYTES_MAX as u64);
    let first = if part == Part::End { length - read } else { 0 };
    let mut bytes = vec![0; read as usize];
    if !memory.read(string.checked_add(STRING_BYTES)?.checked_add(first)?, &mut bytes) {
        return None;
    }
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    let mut text = String::from_utf8_lossy(&bytes[..end]).into_owned();
    // Characters that take the place of wrong bytes are longer.
    if part == Part::End {
        text.drain(..text.ceil_char_boundary(text.len().saturating_sub(NAME_BYTES_MAX)));
    }
    text.truncate(text.floor_char_boundary(NAME_BYTES_MAX));
    Some(text)
}

#[cfg(test)]
mod tests;
