//! The kernel's types (BTF, /sys/kernel/btf/vmlinux), as far as the BPF programs need them.
//!
//! A kernel describes 150,000 types in 5 MB; parsed, they take 30 MB, which would be the most that the agent ever takes. The programs
//! read fields of a dozen structures. So what is parsed is another BTF, made of those alone.
//!
//! ```text
//! | magic u16 | version u8 | flags u8 | header length u32 | types at, length u32 | strings at, length u32 |      of the machine's byte order
//! types:   | name u32 | count of members u16, kind u8 (5 bits), flag (1 bit) in a u32 | size, or type u32 | by kind ... | ...
//! strings: | "" | text, 0 | ...                                                      types are numbered from 1, and 0 is void
//! ```
//!
//! Invariant: a structure that is asked for has the size, and each of its fields the place, that the kernel says. What a pointer points to is
//! left out, and so are the fields of structures that were not asked for and have names.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read as _};

use foldhash::fast::RandomState;

const PATH: &str = "/sys/kernel/btf/vmlinux";
/// It is 5 to 10 MB.
const BYTES_MAX: u64 = 64 << 20;

const HEADER_BYTES: usize = 24;
/// The magic number, version 1, no flags.
const MAGIC: u16 = 0xeb9f;
const VERSION: u8 = 1;

/// Kinds of types.
const INT: u32 = 1;
const POINTER: u32 = 2;
const ARRAY: u32 = 3;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const ENUM: u32 = 6;
const TYPEDEF: u32 = 8;
const RESTRICT: u32 = 11;
const FUNCTION_PROTOTYPE: u32 = 13;
const VARIABLE: u32 = 14;
const DATA_SECTION: u32 = 15;
const DECLARATION_TAG: u32 = 17;
const TYPE_TAG: u32 = 18;
const ENUM_64: u32 = 19;

/// Of a member: its name, type, and place.
const MEMBER_BYTES: usize = 12;
/// Types within types within types: those of a kernel are less deep.
const DEPTH_MAX: usize = 64;

/// Reads what the kernel says of the structures of these names, as a BTF of its own.
///
/// # Errors
/// What open(2) and read(2) say; [`io::ErrorKind::InvalidData`] where it is no BTF, or makes no sense.
pub(crate) fn read(names: &[&str]) -> io::Result<Vec<u8>> {
    let file = File::open(PATH)?;
    let mut bytes = Vec::with_capacity(usize::try_from(file.metadata()?.len().min(BYTES_MAX)).unwrap_or_default() + 1);
    file.take(BYTES_MAX).read_to_end(&mut bytes)?;
    reduced(&bytes, names).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it is no BTF, or makes no sense"))
}

fn reduced(bytes: &[u8], names: &[&str]) -> Option<Vec<u8>> {
    let types = Types::of(bytes)?;
    let mut reduction =
        Reduction { types: &types, names, ids: HashMap::default(), out: Vec::new(), strings: vec![0], count: 0 };
    for id in 1..=types.starts.len() {
        let id = u32::try_from(id).ok()?;
        if reduction.is_wanted(&types.get(id)?) {
            reduction.keep(id, 0)?;
        }
    }
    Some(reduction.finish())
}

/// All types of a BTF, where they are.
struct Types<'a> {
    bytes: &'a [u8],
    strings: &'a [u8],
    /// Of type 1 and all behind it.
    starts: Vec<u32>,
}

/// A type.
#[derive(Clone, Copy)]
struct Type<'a> {
    name: u32,
    info: u32,
    /// Or the type that it is made of.
    size: u32,
    /// What stands behind it.
    rest: &'a [u8],
}

impl Type<'_> {
    fn kind(&self) -> u32 {
        self.info >> 24 & 0x1f
    }

    fn is_composite(&self) -> bool {
        matches!(self.kind(), STRUCT | UNION)
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// How long what stands behind a type is; `None`: it is of no kind that is known.
fn rest_bytes(kind: u32, count: usize) -> Option<usize> {
    Some(match kind {
        INT | VARIABLE | DECLARATION_TAG => 4,
        ARRAY => 12,
        STRUCT | UNION | DATA_SECTION | ENUM_64 => count * MEMBER_BYTES,
        ENUM | FUNCTION_PROTOTYPE => count * 8,
        1..=TYPE_TAG => 0,
        _ => return None,
    })
}

impl<'a> Types<'a> {
    fn of(bytes: &'a [u8]) -> Option<Self> {
        let [low, high, version, _flags] = *bytes.first_chunk()?;
        if u16::from_ne_bytes([low, high]) != MAGIC || version != VERSION {
            return None;
        }
        let header = word(bytes, 4)? as usize;
        let part = |at: usize| {
            let (start, length) = (header.checked_add(word(bytes, at)? as usize)?, word(bytes, at + 4)? as usize);
            bytes.get(start..start.checked_add(length)?)
        };
        let (bytes, strings) = (part(8)?, part(16)?);
        let (mut starts, mut at) = (Vec::new(), 0);
        while at < bytes.len() {
            starts.push(u32::try_from(at).ok()?);
            let info = word(bytes, at + 4)?;
            at += 12 + rest_bytes(info >> 24 & 0x1f, (info & 0xffff) as usize)?;
        }
        Some(Self { bytes, strings, starts })
    }

    fn get(&self, id: u32) -> Option<Type<'a>> {
        let at = *self.starts.get((id as usize).checked_sub(1)?)? as usize;
        let (name, info, size) = (word(self.bytes, at)?, word(self.bytes, at + 4)?, word(self.bytes, at + 8)?);
        let rest = rest_bytes(info >> 24 & 0x1f, (info & 0xffff) as usize)?;
        Some(Type { name, info, size, rest: self.bytes.get(at + 12..at + 12 + rest)? })
    }

    fn name(&self, at: u32) -> Option<&'a [u8]> {
        let text = self.strings.get(at as usize..)?;
        text.split(|&byte| byte == 0).next()
    }
}

/// A BTF that is being made of another's types.
struct Reduction<'a> {
    types: &'a Types<'a>,
    names: &'a [&'a str],
    /// Numbers of types here, by those there.
    ids: HashMap<u32, u32, RandomState>,
    out: Vec<u8>,
    strings: Vec<u8>,
    count: u32,
}

impl<'a> Reduction<'a> {
    fn is_wanted(&self, of: &Type<'a>) -> bool {
        let is_named = |name: &[u8]| self.names.iter().any(|wanted| wanted.as_bytes() == name);
        of.is_composite() && of.name != 0 && self.types.name(of.name).is_some_and(is_named)
    }

    /// The number of a type here; it is added if it is not there yet.
    fn keep(&mut self, id: u32, depth: usize) -> Option<u32> {
        if id == 0 || DEPTH_MAX < depth {
            return Some(0);
        }
        if let Some(&kept) = self.ids.get(&id) {
            return Some(kept);
        }
        let of = self.types.get(id)?;
        let kind = of.kind();
        let (size, rest) = match kind {
            STRUCT | UNION if of.name == 0 || self.is_wanted(&of) => (of.size, self.members(&of, depth)?),
            // What is not known of it does not count, but its size.
            STRUCT | UNION => (of.size, Vec::new()),
            ENUM | ENUM_64 => (of.size, Vec::new()),
            ARRAY => {
                let (element, index) = (word(of.rest, 0)?, word(of.rest, 4)?);
                let kept = [self.keep(element, depth + 1)?, self.keep(index, depth + 1)?, word(of.rest, 8)?];
                (of.size, kept.iter().flat_map(|word| word.to_ne_bytes()).collect())
            }
            POINTER => (0, Vec::new()),
            TYPEDEF..=RESTRICT | TYPE_TAG => (self.keep(of.size, depth + 1)?, Vec::new()),
            _ => (of.size, of.rest.to_vec()),
        };
        let name = self.string(of.name)?;
        // A type that has lost its members has none.
        let count = if of.is_composite() {
            rest.len() / MEMBER_BYTES
        } else if rest.is_empty() {
            0
        } else {
            (of.info & 0xffff) as usize
        };
        let info = of.info & !0xffff | u32::try_from(count).ok()?;
        [name, info, size].iter().for_each(|word| self.out.extend(word.to_ne_bytes()));
        self.out.extend(rest);
        self.count += 1;
        self.ids.insert(id, self.count);
        Some(self.count)
    }

    fn members(&mut self, of: &Type<'a>, depth: usize) -> Option<Vec<u8>> {
        let mut members = Vec::with_capacity(of.rest.len());
        for member in of.rest.chunks_exact(MEMBER_BYTES) {
            let kept = [self.string(word(member, 0)?)?, self.keep(word(member, 4)?, depth + 1)?, word(member, 8)?];
            kept.iter().for_each(|word| members.extend(word.to_ne_bytes()));
        }
        Some(members)
    }

    fn string(&mut self, at: u32) -> Option<u32> {
        if at == 0 {
            return Some(0);
        }
        let here = u32::try_from(self.strings.len()).ok()?;
        self.strings.extend(self.types.name(at)?);
        self.strings.push(0);
        Some(here)
    }

    fn finish(self) -> Vec<u8> {
        let length = |bytes: &[u8]| u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let (types, strings) = (length(&self.out), length(&self.strings));
        let mut bytes = Vec::with_capacity(HEADER_BYTES + self.out.len() + self.strings.len());
        bytes.extend(MAGIC.to_ne_bytes());
        bytes.extend([VERSION, 0]);
        [HEADER_BYTES as u32, 0, types, types, strings].iter().for_each(|word| bytes.extend(word.to_ne_bytes()));
        bytes.extend(self.out);
        bytes.extend(self.strings);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use aya::Btf;
    use ebpf::KERNEL_STRUCTURES;

    use super::*;

    /// Of each field of a structure that has a name: its place in bits. Of those in structures without names, too.
    fn fields(types: &Types<'_>, id: u32, at: u32, found: &mut Vec<(String, u32)>) {
        let of = types.get(id).unwrap();
        for member in of.rest.chunks_exact(MEMBER_BYTES) {
            let [name, id, place] = [0, 4, 8].map(|at| word(member, at).unwrap());
            // Fields of bits have their count above.
            let place = at + (place & 0xff_ffff);
            if name == 0 {
                fields(types, id, place, found);
            } else {
                found.push((String::from_utf8(types.name(name).unwrap().to_vec()).unwrap(), place));
            }
        }
    }

    fn structure(bytes: &[u8], name: &str) -> Vec<(u32, Vec<(String, u32)>)> {
        let types = Types::of(bytes).unwrap();
        let ids = 1..=types.starts.len() as u32;
        let named = ids.filter(|id| {
            let of = types.get(*id).unwrap();
            of.is_composite() && types.name(of.name) == Some(name.as_bytes())
        });
        let described = named.map(|id| {
            let mut found = Vec::new();
            fields(&types, id, 0, &mut found);
            (types.get(id).unwrap().size, found)
        });
        described.collect()
    }

    #[test]
    fn fields_are_where_the_kernel_says() {
        let Ok(whole) = std::fs::read(PATH) else {
            return crate::report::skipped("fields_are_where_the_kernel_says", &PATH);
        };
        let reduced = read(&KERNEL_STRUCTURES).unwrap();
        Btf::parse(&reduced, aya::Endianness::default()).unwrap();
        assert!(reduced.len() < 100_000, "{}", reduced.len());
        for name in KERNEL_STRUCTURES {
            let found = structure(&reduced, name);
            assert_eq!(found, structure(&whole, name), "{name}");
            assert!(!found.is_empty() && found.iter().all(|(size, fields)| 0 < *size && !fields.is_empty()), "{name}");
        }
    }

    #[test]
    fn what_is_no_btf_is_refused_and_never_a_panic() {
        let Ok(whole) = read(&["maple_tree"]) else {
            return crate::report::skipped("what_is_no_btf_is_refused_and_never_a_panic", &PATH);
        };
        assert!(reduced(&whole, &["maple_tree"]).is_some());
        for length in 0..whole.len() {
            assert!(reduced(&whole[..length], &["maple_tree"]).is_none(), "{length}");
        }
        for at in 0..whole.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut damaged = whole.clone();
                damaged[at] = value;
                let _any = reduced(&damaged, &["maple_tree"]);
            }
        }
    }
}
