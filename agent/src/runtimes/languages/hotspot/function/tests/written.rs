//! Structures of HotSpot, as a test writes them into memory.

use super::*;
use crate::runtimes::languages::hotspot::fields::Integer;
use crate::runtimes::languages::hotspot::layout::{Metadata, Place, Source, TextLength};

/// Address of the first method, and distance of the methods.
pub(super) const METHODS: u64 = 0x1_0000;
pub(super) const METHOD_BYTES: u64 = 0x4000;
/// Places of the parts of a method.
const CONSTANT: u64 = 0x200;
const POOL: u64 = 0x2400;
const CLASS: u64 = 0x2600;
const TEXTS: u64 = 0x2a00;
const TEXT_BYTES: u64 = 0x400;
/// Address of the compiled code, and places of its parts.
pub(super) const BLOB: u64 = 0x4_0000;
const NAME: u64 = BLOB + 0x400;
const POINTERS: u64 = BLOB + 0x600;
const IMMUTABLE: u64 = BLOB + 0x1000;
const POSITIONS: u64 = 0x1000;
const SCOPES: u64 = 0x2000;
/// Offset of the first instruction in the blob.
pub(super) const CODE_OFFSET: u32 = 0x500;
const MEMORY_BYTES: usize = 0x5_0000;

/// A method, and its lines by their first bytecode.
#[derive(Clone, Debug)]
pub(super) struct WrittenMethod {
    pub(super) class: String,
    pub(super) name: String,
    pub(super) file: String,
    pub(super) lines: Vec<(u16, u16)>,
    pub(super) code_size: u16,
}

/// A bytecode of the method with this index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Inlined {
    pub(super) method: usize,
    pub(super) bytecode: Option<u32>,
}

/// Memory of a process.
pub(super) struct World {
    layout: Layout,
    pub(super) bytes: Vec<u8>,
}

impl World {
    pub(super) fn new(layout: Layout) -> Self {
        Self { layout, bytes: vec![0; MEMORY_BYTES] }
    }

    fn put(&mut self, address: u64, field: u16, bytes: &[u8]) {
        let at = usize::try_from(address).unwrap() + usize::from(field);
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn put_word(&mut self, address: u64, field: u16, word: u64) {
        self.put(address, field, &word.to_ne_bytes());
    }

    fn put_integer(&mut self, address: u64, field: Integer, number: u64) {
        self.put(address, field.offset, &number.to_ne_bytes()[..field.bytes.into()]);
    }

    fn put_text(&mut self, address: u64, text: &str) {
        match self.layout.method.text_length {
            TextLength::Short(offset) => self.put(address, offset, &(text.len() as u16).to_ne_bytes()),
            TextLength::UpperHalf(offset) => self.put(address, offset, &((text.len() as u32) << 16).to_ne_bytes()),
        }
        self.put(address, self.layout.method.text, text.as_bytes());
    }

    /// Writes the method with an index.
    pub(super) fn put_method(&mut self, index: usize, method: &WrittenMethod) {
        let of = self.layout.method;
        let at = METHODS + METHOD_BYTES * index as u64;
        let (constant, pool, class) = (at + CONSTANT, at + POOL, at + CLASS);
        let text = |number: u64| at + TEXTS + TEXT_BYTES * number;
        self.put_word(at, of.constant, constant);
        self.put_word(constant, of.pool, pool);
        self.put(constant, of.code_size, &method.code_size.to_ne_bytes());
        self.put(constant, of.name, &1_u16.to_ne_bytes());
        self.put(pool, of.pool_length, &3_i32.to_ne_bytes());
        self.put_word(pool, of.holder, class);
        self.put_word(class, of.class_name, text(0));
        self.put_text(text(0), &method.class);
        for (number, entry) in [(1, &method.name), (2, &method.file)] {
            self.put_word(pool + u64::from(of.pool_bytes) + 8 * number, 0, text(number));
            self.put_text(text(number), entry);
        }
        let file: u16 = if method.file.is_empty() { 0 } else { 2 };
        match of.source {
            Source::Pool(offset) => self.put(pool, offset, &file.to_ne_bytes()),
            Source::Class(offset) => self.put(class, offset, &file.to_ne_bytes()),
        }
        let table = line_table(&method.lines, self.layout.lowest_byte);
        self.put_integer(constant, of.flags, 1);
        let end = u64::from(of.bytes) + u64::from(method.code_size) + table.len() as u64;
        self.put(constant, of.words, &(end.div_ceil(8) as u32).to_ne_bytes());
        self.put(constant + u64::from(method.code_size), of.bytes, &table);
    }

    /// Writes a blob with debug information.
    pub(super) fn put_compiled(&mut self, name: &str, positions: &[(u32, Vec<Inlined>)]) {
        let Layout { blob, compiled, .. } = self.layout;
        self.put(BLOB - u64::from(blob.block_bytes), blob.used, &[1]);
        self.put_word(BLOB, blob.name, NAME);
        self.put(NAME, 0, name.as_bytes());
        if let Some(kind) = blob.kind {
            self.put(BLOB, kind, &[if name.contains("nmethod") { 1 } else { 2 }]);
        }
        match blob.code {
            Place::Address(offset) => self.put_word(BLOB, offset, BLOB + u64::from(CODE_OFFSET)),
            Place::Offset(integer) => self.put_integer(BLOB, integer, CODE_OFFSET.into()),
        }
        self.put_word(BLOB, compiled.method, METHODS);
        self.put(BLOB, compiled.compile_id, &77_u32.to_ne_bytes());
        // Debug information is in the blob, or in a structure of its own.
        let base = match compiled.immutable_data {
            Some(offset) => {
                self.put_word(BLOB, offset, IMMUTABLE);
                IMMUTABLE
            }
            None => BLOB,
        };
        match compiled.scopes {
            Place::Address(offset) => self.put_word(BLOB, offset, base + SCOPES),
            Place::Offset(integer) => self.put_integer(BLOB, integer, SCOPES),
        }
        let mut entries = vec![(-1_i32, 0_u32)];
        entries.extend(self.put_scopes(base + SCOPES, positions));
        entries.push((1 << 30, 0));
        self.put_integer(BLOB, compiled.pcs, POSITIONS);
        if compiled.immutable_data.is_none() {
            self.put_integer(BLOB, compiled.pcs_end, POSITIONS + 16 * entries.len() as u64);
        } else {
            // The scopes follow the positions at once.
            self.put_integer(BLOB, compiled.pcs, SCOPES - 16 * entries.len() as u64);
        }
        let first = if compiled.immutable_data.is_none() { POSITIONS } else { SCOPES - 16 * entries.len() as u64 };
        for (index, (position, scope)) in entries.into_iter().enumerate() {
            self.put(base + first + 16 * index as u64, 0, &position.to_ne_bytes());
            self.put(base + first + 16 * index as u64, 4, &scope.to_ne_bytes());
        }
        for index in 0..4 {
            self.put_word(POINTERS + 8 * index, 0, METHODS + METHOD_BYTES * index);
        }
        match compiled.metadata {
            Metadata::Mutable(pointer, relocations) => {
                self.put_word(BLOB, pointer, POINTERS - 24);
                self.put_integer(BLOB, relocations, 24);
            }
            Metadata::InBlob(offset, _) => self.put_integer(BLOB, offset, POINTERS - BLOB),
        }
    }

    /// Writes the scopes of all positions, and returns the positions with their scopes.
    fn put_scopes(&mut self, at: u64, positions: &[(u32, Vec<Inlined>)]) -> Vec<(i32, u32)> {
        let mut written = 1_u64;
        let mut entries = Vec::new();
        for (position, chain) in positions {
            let mut caller = 0;
            for (depth, Inlined { method, bytecode }) in chain.iter().rev().enumerate() {
                // The outermost method needs no pointer.
                let method = if depth == 0 { 0 } else { *method as u32 + 1 };
                let numbers = [caller, method, bytecode.map_or(0, |bytecode| bytecode + 1)];
                let bytes: Vec<u8> =
                    numbers.iter().flat_map(|number| encode(*number, self.layout.lowest_byte)).collect();
                self.put(at + written, 0, &bytes);
                caller = written as u32;
                written += bytes.len() as u64;
            }
            entries.push((position.cast_signed(), caller));
        }
        entries
    }
}

/// Encodes lines. Every third entry has the long form, also if it fits the short one.
fn line_table(lines: &[(u16, u16)], lowest: u8) -> Vec<u8> {
    let mut table = Vec::new();
    let mut before = (0_i32, 0_i32);
    for (index, (bytecode, line)) in lines.iter().enumerate() {
        let (bytecodes, lines) = (i32::from(*bytecode) - before.0, i32::from(*line) - before.1);
        let byte = (bytecodes << 3) + lines;
        // A byte of zero would end the table.
        if (0..31).contains(&bytecodes) && (0..8).contains(&lines) && byte != 0 && index % 3 != 0 {
            table.push(byte as u8);
        } else {
            table.push(0xff);
            for number in [bytecodes, lines] {
                let folded = if number < 0 { -2 * number - 1 } else { 2 * number };
                table.extend(encode(folded.cast_unsigned(), lowest));
            }
        }
        before = ((*bytecode).into(), (*line).into());
    }
    table.push(0);
    table
}

/// Encodes a number by division: a byte below the limit stands for itself, and else the rest is divided by 64.
fn encode(number: u32, lowest: u8) -> Vec<u8> {
    let limit = 192 - u64::from(lowest);
    let mut left = u64::from(number);
    let mut bytes = Vec::new();
    while limit <= left && bytes.len() < 4 {
        let low = limit + (left - limit) % 64;
        bytes.push(low as u8 + lowest);
        left = (left - low) / 64;
    }
    bytes.push(left as u8 + lowest);
    bytes
}
