//! Reads Perl's names: those of globs and packages, and C strings. Offsets are those of all known versions.
//!
//! The program may change all of these structures at any moment, so the type of a scalar is checked before its fields
//! are read. Nothing is followed more than once, and all lengths are bounded.

use super::layout::Layout;
use crate::names::location::NAME_BYTES_MAX;
use crate::runtimes::memory::ProcessMemory;

/// Largest length of a path, in bytes.
const PATH_BYTES_MAX: usize = 4096;
/// Number of bytes of a C string that are read at once. It divides the size of a page, and such a piece does not cross
/// pages.
const PIECE_BYTES: usize = 64;

// Types of scalars, in the lowest byte of their flags.
const GLOB: u32 = 9;
const HASH: u32 = 12;
const SUB: u32 = 13;
const FORMAT: u32 = 14;

/// Flag of a hash that has a name.
const HAS_NAME: u32 = 0x0200_0000;

pub(super) fn word(memory: &ProcessMemory, address: u64, offset: u64) -> Option<u64> {
    memory.array(address.checked_add(offset)?).map(u64::from_ne_bytes)
}

pub(super) fn int(memory: &ProcessMemory, address: u64, offset: u64) -> Option<u32> {
    memory.array(address.checked_add(offset)?).map(u32::from_ne_bytes)
}

/// Returns the body and the flags of a scalar.
fn scalar(memory: &ProcessMemory, address: u64) -> Option<(u64, u32)> {
    Some((word(memory, address, 0)?, int(memory, address, 12)?))
}

/// Returns the body of a sub or format.
pub(super) fn sub_body(memory: &ProcessMemory, address: u64) -> Option<u64> {
    let (body, flags) = scalar(memory, address)?;
    matches!(flags & 0xff, SUB | FORMAT).then_some(body)
}

/// Returns the package and the name of a glob, with the names that it had when it was made: an imported glob is part of
/// the package that exports it.
pub(super) fn glob_name(memory: &ProcessMemory, layout: &Layout, address: u64) -> Option<(String, String)> {
    let (mut body, flags) = scalar(memory, address)?;
    if flags & 0xff != GLOB {
        return None;
    }
    let original = word(memory, word(memory, address, 16)?, 0x38)?;
    if let Some((original, flags)) = scalar(memory, original)
        && flags & 0xff == GLOB
    {
        body = original;
    }
    Some((package_name(memory, layout, word(memory, body, 0x28)?)?, key(memory, word(memory, body, 0x20)?)?))
}

/// Returns the name of a package, which is a hash.
pub(super) fn package_name(memory: &ProcessMemory, layout: &Layout, address: u64) -> Option<String> {
    let (body, flags) = scalar(memory, address)?;
    if flags & 0xff != HASH || flags & HAS_NAME == 0 {
        return None;
    }
    let names = if layout.is_name_in_body {
        body.checked_add(0x20)?
    } else {
        let slots = word(memory, body, 0x18)?.checked_add(1)?;
        word(memory, address, 16)?.checked_add(slots.checked_mul(8)?)?
    };
    let name = word(memory, names, 0)?;
    // A package with several names has an array of them.
    key(memory, if int(memory, names, 0x1c)? == 0 { name } else { word(memory, name, 0)? })
}

/// Reads a key of a hash: at most [`NAME_BYTES_MAX`] bytes of it.
pub(super) fn key(memory: &ProcessMemory, address: u64) -> Option<String> {
    let length = usize::try_from(int(memory, address, 4)?.cast_signed()).ok()?;
    let mut bytes = vec![0; length.min(NAME_BYTES_MAX)];
    let start = address.checked_add(8)?;
    let [is_utf8] = memory.array(start.checked_add(length as u64 + 1)?)?;
    if !memory.read(start, &mut bytes) {
        return None;
    }
    // Other keys are Latin-1, whose bytes are the first characters of Unicode.
    let latin = |bytes: &[u8]| bytes.iter().copied().map(char::from).collect();
    Some(if is_utf8 & 1 == 0 { latin(&bytes) } else { String::from_utf8_lossy(&bytes).into_owned() })
}

/// Reads a C string. `None` if it has no end within [`PATH_BYTES_MAX`].
pub(super) fn c_string(memory: &ProcessMemory, address: u64) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    while text.len() < PATH_BYTES_MAX {
        let at = address.checked_add(text.len() as u64)?;
        let mut piece = vec![0; PIECE_BYTES - at as usize % PIECE_BYTES];
        if !memory.read(at, &mut piece) {
            return None;
        }
        let end = piece.iter().position(|byte| *byte == 0);
        text.extend_from_slice(&piece[..end.unwrap_or(piece.len())]);
        if end.is_some() {
            return Some(text);
        }
    }
    None
}
