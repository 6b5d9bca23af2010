//! Methods: names, source files and lines.
//!
//! A program may unload the class of a method at any moment. HotSpot then often places a method of another class at the
//! same addresses. Invariant: a method is returned only if it had the same identity before and after all other reads.

use super::fields::{int, mix, pointer, short, word};
use super::layout::{Layout, Source, TextLength};
use super::unsigned5::Numbers;
use crate::names::location::{Call, NAME_BYTES_MAX};
use crate::runtimes::memory::ProcessMemory;

/// Largest size of a method's tables, in bytes. Bytecodes have at most 64 KB, and lines take less.
const TABLES_BYTES_MAX: u64 = 256 << 10;
/// Largest size of a line table that is read.
const LINES_BYTES_MAX: u64 = 64 << 10;
/// Flag of a method that has a line table. It is the same in all versions.
const HAS_LINES: i64 = 1;
/// First byte of an entry of the line table that does not fit one byte.
const LONG_ENTRY: u8 = 0xff;

/// A method, as the virtual machine describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Method {
    /// Name with that of the class, such as `java.lang.String.trim`.
    name: String,
    file: String,
    lines: Box<[u8]>,
    lowest_byte: u8,
}

impl Method {
    /// Reads a method; `None` if there is none at this address, or if it has another identity.
    pub(super) fn read(memory: &ProcessMemory, layout: &Layout, address: u64, identity: u32) -> Option<Self> {
        let has_identity = || identity_of(memory, layout, address) == Some(identity);
        memory.read_same(has_identity, || Self::parts(memory, layout, address))
    }

    /// Reads a method to which a compiled method refers.
    pub(super) fn of_compiled(memory: &ProcessMemory, layout: &Layout, address: u64) -> Option<Self> {
        Self::read(memory, layout, address, identity_of(memory, layout, address)?)
    }

    fn parts(memory: &ProcessMemory, layout: &Layout, address: u64) -> Option<Self> {
        let of = &layout.method;
        let constant = pointer(memory, address, of.constant)?;
        let pool = pointer(memory, constant, of.pool)?;
        let entries = int(memory, pool, of.pool_length).and_then(|length| u64::try_from(length).ok())?;
        let entry = |index: u16| {
            let at = pool.checked_add(of.pool_bytes.into())?.checked_add(8 * u64::from(index))?;
            let text = (0 < index && u64::from(index) < entries).then(|| word(memory, at, 0))??;
            symbol(memory, layout, text)
        };
        let holder = pointer(memory, pool, of.holder)?;
        let class = symbol(memory, layout, word(memory, holder, of.class_name)?)?;
        let own = entry(short(memory, constant, of.name)?)?;
        let file = match of.source {
            Source::Pool(offset) => short(memory, pool, offset)?,
            Source::Class(offset) => short(memory, holder, offset)?,
        };
        let mut name = format!("{}.{own}", class_name(&class));
        if of.has_parameters
            && let Some(signature) = short(memory, constant, of.signature).and_then(entry)
        {
            name.push_str(&parameters(&signature));
        }
        name.truncate(name.floor_char_boundary(NAME_BYTES_MAX));
        let file = if file == 0 { String::new() } else { entry(file).unwrap_or_default() };
        let lines = lines(memory, layout, constant).unwrap_or_default();
        Some(Self { name, file, lines, lowest_byte: layout.lowest_byte })
    }

    /// Returns the method, and the line of a bytecode. `bytecode` is `None` if the frame is at none of them.
    pub(super) fn call(&self, bytecode: Option<u32>) -> Call {
        let line = line(&self.lines, self.lowest_byte, bytecode);
        Call { function: self.name.clone(), file: self.file.clone(), line, start_line: 0 }
    }

    /// Approximate memory, in bytes.
    pub(super) fn bytes(&self) -> usize {
        size_of::<Self>() + self.name.len() + self.file.len() + self.lines.len()
    }
}

/// Returns the identity of a method, as BPF computes it (`read_method` in `ebpf/bpf/runtimes/hotspot.h`).
pub(super) fn identity_of(memory: &ProcessMemory, layout: &Layout, address: u64) -> Option<u32> {
    let of = &layout.method;
    let constant = pointer(memory, address, of.constant)?;
    let pool = pointer(memory, constant, of.pool)?;
    let first = word(memory, constant, of.code_size & !7)?;
    let second = word(memory, constant, (of.code_size & !7) + 8)?;
    let holder = pointer(memory, pool, of.holder)?;
    let class = word(memory, holder, of.class_name)?;
    // The number of references changes.
    let mask = if of.is_count_second { 0xffff_ffff_0000_ffff } else { 0xffff_ffff_ffff_0000 };
    Some(mix([constant, pool, first, second, class, word(memory, class, 0)? & mask]))
}

/// Reads a text of the virtual machine, at most [`NAME_BYTES_MAX`] bytes of it.
fn symbol(memory: &ProcessMemory, layout: &Layout, address: u64) -> Option<String> {
    let length = match layout.method.text_length {
        TextLength::Short(offset) => usize::from(short(memory, address, offset)?),
        TextLength::UpperHalf(offset) => (int(memory, address, offset)?.cast_unsigned() >> 16) as usize,
    };
    let mut bytes = vec![0; length.min(NAME_BYTES_MAX)];
    let read = memory.read(address.checked_add(layout.method.text.into())?, &mut bytes);
    read.then(|| String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the name of a class as Java prints it. Classes that the virtual machine makes get a number, which is
/// different in each process. It is removed, so that the functions of all processes have the same names.
fn class_name(internal: &str) -> String {
    let numbered = internal.split_once("+0x").or_else(|| internal.split_once("/0x"));
    let mut name = numbered.map_or(internal, |(name, _)| name);
    if let Some(at) = name.find("$$Lambda$") {
        name = &name[..at + "$$Lambda".len()];
    }
    name.replace('/', ".")
}

/// Returns the types of the parameters in a signature, as Java writes them, without packages:
/// `(ILjava/lang/String;[J)V` becomes `(int, String, long[])`. Dots stand for what is cut off or malformed.
fn parameters(signature: &str) -> String {
    let mut rest = signature.strip_prefix('(').unwrap_or_default();
    let mut types = Vec::new();
    loop {
        let element = rest.trim_start_matches('[');
        let dimensions = rest.len() - element.len();
        let (name, after) = match (element.as_bytes().first(), element.get(1..)) {
            (Some(b'B'), Some(after)) => ("byte", after),
            (Some(b'C'), Some(after)) => ("char", after),
            (Some(b'D'), Some(after)) => ("double", after),
            (Some(b'F'), Some(after)) => ("float", after),
            (Some(b'I'), Some(after)) => ("int", after),
            (Some(b'J'), Some(after)) => ("long", after),
            (Some(b'S'), Some(after)) => ("short", after),
            (Some(b'Z'), Some(after)) => ("boolean", after),
            (Some(b'L'), Some(class)) => {
                let Some((class, after)) = class.split_once(';') else { break };
                (class.rsplit('/').next().unwrap_or(class), after)
            }
            _ => break,
        };
        types.push(name.to_owned() + &"[]".repeat(dimensions));
        rest = after;
    }
    if !rest.starts_with(')') {
        types.push("...".to_owned());
    }
    format!("({})", types.join(", "))
}

/// Reads the line table of the method whose constant part is at `constant`.
fn lines(memory: &ProcessMemory, layout: &Layout, constant: u64) -> Option<Box<[u8]>> {
    let of = &layout.method;
    if of.flags.read(memory, constant)? & HAS_LINES == 0 {
        return None;
    }
    let start = u64::from(of.bytes) + u64::from(short(memory, constant, of.code_size)?);
    let end = 8 * u64::try_from(int(memory, constant, of.words)?).ok()?;
    let bytes = end.checked_sub(start).filter(|_| end <= TABLES_BYTES_MAX)?.min(LINES_BYTES_MAX);
    let mut table = vec![0; usize::try_from(bytes).ok()?];
    if !memory.read(constant.checked_add(start)?, &mut table) {
        return None;
    }
    // Other tables may follow.
    let length = length_of(&table, layout.lowest_byte);
    table.truncate(length);
    Some(table.into())
}

/// An entry of a line table: the first bytecode of the line, and the line.
type Entry = (i64, i64);

fn next_entry(numbers: &mut Numbers<'_>, before: Entry) -> Option<Entry> {
    let (bytecodes, lines) = match numbers.byte()? {
        0 => return None,
        LONG_ENTRY => (numbers.signed()?.into(), numbers.signed()?.into()),
        byte => (i64::from(byte >> 3), i64::from(byte & 7)),
    };
    Some((before.0 + bytecodes, before.1 + lines))
}

fn entries(table: &[u8], lowest_byte: u8) -> impl Iterator<Item = Entry> {
    let mut numbers = Numbers::new(table, lowest_byte);
    let mut entry = (0, 0);
    std::iter::from_fn(move || {
        entry = next_entry(&mut numbers, entry)?;
        Some(entry)
    })
}

/// Returns the number of bytes of the line table that begins with `table`.
fn length_of(table: &[u8], lowest_byte: u8) -> usize {
    let mut numbers = Numbers::new(table, lowest_byte);
    let mut entry = (0, 0);
    while let Some(next) = next_entry(&mut numbers, entry) {
        entry = next;
    }
    table.len() - numbers.left()
}

/// Returns the line of a bytecode: that of the last entry at or before it. Without a bytecode, returns the first line.
fn line(table: &[u8], lowest_byte: u8, bytecode: Option<u32>) -> u32 {
    let mut best: Option<Entry> = None;
    for entry in entries(table, lowest_byte) {
        let Some(bytecode) = bytecode else {
            best = Some(entry);
            break;
        };
        if entry.0 <= i64::from(bytecode) && best.is_none_or(|best| best.0 < entry.0) {
            best = Some(entry);
        }
    }
    best.and_then(|best| u32::try_from(best.1).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns a type in a signature, and as Java writes it.
    fn of_type() -> impl Strategy<Value = (String, String)> {
        let primitive = prop::sample::select(vec![
            ("B", "byte"),
            ("C", "char"),
            ("D", "double"),
            ("F", "float"),
            ("I", "int"),
            ("J", "long"),
            ("S", "short"),
            ("Z", "boolean"),
        ]);
        let primitive = primitive.prop_map(|(code, name)| (code.to_owned(), name.to_owned()));
        let class = ("([a-zé]{1,8}/){0,4}", "[A-Z$é][A-Za-z0-9_$é]{0,12}")
            .prop_map(|(package, name)| (format!("L{package}{name};"), name));
        (0_usize..4, prop_oneof![primitive, class])
            .prop_map(|(arrays, (code, name))| ("[".repeat(arrays) + &code, name + &"[]".repeat(arrays)))
    }

    proptest! {
        #[test]
        fn parameters_of_any_signature_are_written_as_in_java(
            types in prop::collection::vec(of_type(), 0..10),
            result in prop_oneof![Just("V".to_owned()), of_type().prop_map(|(code, _)| code)],
        ) {
            let (codes, names): (Vec<_>, Vec<_>) = types.into_iter().unzip();
            let signature = format!("({}){result}", codes.concat());
            prop_assert_eq!(parameters(&signature), format!("({})", names.join(", ")));
        }

        #[test]
        fn any_text_has_parameters_of_bounded_length(text in r"\(?[\[BLIJ;/é)]{0,100}") {
            prop_assert!(parameters(&text).len() <= 10 * text.len() + 7);
        }
    }

    #[test]
    fn a_signature_that_is_cut_off_shows_it() {
        assert_eq!(parameters("(I[Ljava/lang/Str"), "(int, ...)");
        assert_eq!(parameters("()V"), "()");
    }
}
