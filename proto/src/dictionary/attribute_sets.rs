//! Table of attribute sets with dense IDs. Each set is stored once, and all sets are packed into one list of bytes.
//!
//! A host that starts many processes has millions of attribute sets, one for each thread.
//!
//! ```text
//! each attribute: | key varint | unit varint | kind u8 | value: ID or zigzag varint, u8 or 8 bytes, by its kind |
//! ```

use prost::encoding::{decode_varint, encode_varint};
use xxhash_rust::xxh3::xxh3_128;

use crate::dictionary::attribute::{Attribute, AttributeValue};
use crate::dictionary::ids::{Ids, dense, kept};

const TEXT: u8 = 0;
const INTEGER: u8 = 1;
const BOOLEAN: u8 = 2;
const DOUBLE: u8 = 3;
const JSON: u8 = 4;

/// Largest capacity, in bytes, with which the buffer for searches is kept for the next search. So one very large set
/// does not hold a large buffer forever.
const PACKED_BYTES_MAX: usize = 1 << 16;

/// Upper bound of the number of bytes that an attribute takes in the wire form beyond its packed form: its tags and
/// lengths, minus the byte of the kind.
const WIRE_BYTES_MORE: usize = 4;

/// Table of attribute sets with dense IDs.
#[derive(Clone, Debug, Default)]
pub struct AttributeSets {
    bytes: Vec<u8>,
    /// Offset of the end of each set in `bytes`. A set begins at the end of the previous set.
    ends: Vec<usize>,
    /// Total number of attributes in all sets.
    attributes: usize,
    ids: Ids,
    /// Buffer for the packed form of the set that is being searched for.
    packed: Vec<u8>,
}

/// Iterator over the attributes of one set, in the order of the set.
#[derive(Clone, Debug)]
pub struct Attributes<'a> {
    packed: &'a [u8],
}

impl AttributeSets {
    /// Number of sets.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns whether there are no sets.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Attributes of a set. Panics if the table has no such ID.
    #[must_use]
    pub fn get(&self, id: u32) -> Attributes<'_> {
        Attributes { packed: self.packed(id as usize) }
    }

    /// Attributes of all sets, by ID.
    pub fn iter(&self) -> impl Iterator<Item = Attributes<'_>> {
        (0..self.len()).map(|id| Attributes { packed: self.packed(id) })
    }

    /// Returns the ID of an attribute set. Adds the set if it is new.
    pub(crate) fn intern(&mut self, attributes: &[Attribute]) -> u32 {
        let mut packed = std::mem::take(&mut self.packed);
        packed.clear();
        attributes.iter().for_each(|attribute| pack(attribute, &mut packed));
        let hash = kept(xxh3_128(&packed));
        let new = dense(self.len());
        let Self { ids, bytes, ends, .. } = self;
        let id = ids.find_or_insert(hash, new, |id| packed_at(bytes, ends, id as usize) == packed.as_slice());
        if id == new {
            bytes.extend_from_slice(&packed);
            ends.push(bytes.len());
            self.attributes += attributes.len();
        }
        if packed.capacity() <= PACKED_BYTES_MAX {
            self.packed = packed;
        }
        id
    }

    /// Returns the ID of an attribute set; `None` if the table does not have the set.
    pub(crate) fn find(&self, attributes: &[Attribute]) -> Option<u32> {
        let mut packed = Vec::new();
        attributes.iter().for_each(|attribute| pack(attribute, &mut packed));
        self.ids.find(kept(xxh3_128(&packed)), |id| self.packed(id as usize) == packed.as_slice())
    }

    fn packed(&self, id: usize) -> &[u8] {
        packed_at(&self.bytes, &self.ends, id)
    }

    /// Allocates memory for further sets, whose packed form takes about `bytes` bytes.
    pub(crate) fn reserve(&mut self, additional: usize, bytes: usize) {
        self.bytes.reserve(bytes);
        self.ends.reserve(additional);
        self.ids.reserve(additional);
    }

    /// Upper bound of the number of bytes that all sets take in the wire form beyond their size in memory.
    pub(crate) fn wire_bytes_more(&self) -> usize {
        self.attributes * WIRE_BYTES_MORE
    }

    /// Size in memory, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.bytes.capacity() + self.ends.capacity() * size_of::<usize>() + self.ids.memory_bytes()
    }
}

fn packed_at<'a>(bytes: &'a [u8], ends: &[usize], id: usize) -> &'a [u8] {
    let start = id.checked_sub(1).map_or(0, |before| ends[before]);
    &bytes[start..ends[id]]
}

fn pack(attribute: &Attribute, out: &mut Vec<u8>) {
    encode_varint(attribute.key.into(), out);
    encode_varint(attribute.unit.into(), out);
    let (kind, number) = match attribute.value {
        AttributeValue::Text(id) => (TEXT, u64::from(id)),
        AttributeValue::Json(id) => (JSON, u64::from(id)),
        AttributeValue::Integer(value) => (INTEGER, ((value << 1) ^ (value >> 63)).cast_unsigned()),
        AttributeValue::Boolean(value) => (BOOLEAN, u64::from(value)),
        AttributeValue::Double(bits) => {
            out.push(DOUBLE);
            return out.extend_from_slice(&bits.to_le_bytes());
        }
    };
    out.push(kind);
    encode_varint(number, out);
}

impl Iterator for Attributes<'_> {
    type Item = Attribute;

    fn next(&mut self) -> Option<Attribute> {
        let id = |number: u64| u32::try_from(number).ok();
        let mut number = || decode_varint(&mut self.packed).ok();
        let key = id(number()?)?;
        let unit = id(number()?)?;
        let (&kind, rest) = self.packed.split_first()?;
        self.packed = rest;
        let value = if kind == DOUBLE {
            let (bits, rest) = self.packed.split_first_chunk::<8>()?;
            self.packed = rest;
            AttributeValue::Double(u64::from_le_bytes(*bits))
        } else {
            let number = decode_varint(&mut self.packed).ok()?;
            match kind {
                TEXT => AttributeValue::Text(id(number)?),
                JSON => AttributeValue::Json(id(number)?),
                BOOLEAN => AttributeValue::Boolean(number != 0),
                _ => AttributeValue::Integer((number >> 1).cast_signed() ^ -(number & 1).cast_signed()),
            }
        };
        Some(Attribute { key, unit, value })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn attribute() -> impl Strategy<Value = Attribute> {
        let id = || prop_oneof![0..4_u32, any::<u32>()];
        let value = prop_oneof![
            id().prop_map(AttributeValue::Text),
            id().prop_map(AttributeValue::Json),
            prop_oneof![-3..3_i64, any::<i64>()].prop_map(AttributeValue::Integer),
            any::<bool>().prop_map(AttributeValue::Boolean),
            any::<u64>().prop_map(AttributeValue::Double),
        ];
        (id(), id(), value).prop_map(|(key, unit, value)| Attribute { key, unit, value })
    }

    proptest! {
        #[test]
        fn every_attribute_set_is_read_back_and_has_one_id(
            sets in prop::collection::vec(prop::collection::vec(attribute(), 0..4), 0..40)
        ) {
            let mut packed = AttributeSets::default();
            let mut seen: Vec<Vec<Attribute>> = Vec::new();
            for set in &sets {
                let wanted = seen.iter().position(|of| of == set);
                prop_assert_eq!(packed.find(set), wanted.map(|id| id as u32));
                prop_assert_eq!(packed.intern(set) as usize, wanted.unwrap_or(seen.len()));
                if wanted.is_none() {
                    seen.push(set.clone());
                }
            }
            prop_assert_eq!(packed.len(), seen.len());
            prop_assert_eq!(packed.iter().map(Iterator::collect::<Vec<_>>).collect::<Vec<_>>(), seen.clone());
            for (id, set) in (0..).zip(&seen) {
                prop_assert_eq!(&packed.get(id).collect::<Vec<_>>(), set);
            }
        }
    }

    #[test]
    fn the_attribute_set_of_a_thread_takes_less_than_48_bytes() {
        let mut packed = AttributeSets::default();
        for thread in 0..100_000 {
            let of = |key, value| Attribute { key, unit: 0, value };
            packed.intern(&[of(3, AttributeValue::Integer(thread)), of(4, AttributeValue::Text(9))]);
        }
        assert!(packed.memory_bytes() < 100_000 * 48, "{}", packed.memory_bytes());
    }
}
