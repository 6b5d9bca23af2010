//! Which layout a request has: senders do not say, and the same field numbers mean different things.
//!
//! ```text
//! Sample          1.8, 1.9              1.10, 1.11
//! field 2         values, packed        attribute_indices, packed
//! field 3         attribute_indices     link_index, varint
//! field 4         link_index, varint    values, packed
//! ```
//!
//! So field 3 packed or field 4 varint is old, field 3 varint or field 4 packed is new. A sample with neither is ambiguous:
//! the request's other samples decide, else whether its field 2 can be attribute indices. `Profile` moved too, from 1.8 to
//! 1.9: `profile_id` is field 8 in 1.8 and field 7 later, and what follows it is one lower.

use crate::ingest::protobuf::{Fields, Value};

/// Field numbers inside `Sample`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// 1.8 and 1.9.
    Old,
    /// 1.10 and later.
    New,
}

impl Layout {
    pub(crate) fn values(self) -> u32 {
        match self {
            Self::Old => 2,
            Self::New => 4,
        }
    }

    pub(crate) fn attribute_indices(self) -> u32 {
        match self {
            Self::Old => 3,
            Self::New => 2,
        }
    }

    pub(crate) fn link_index(self) -> u32 {
        match self {
            Self::Old => 4,
            Self::New => 3,
        }
    }
}

/// The layout of a request's samples; `attributes`: entries of its attribute table.
pub(crate) fn detect(samples: &[&[u8]], attributes: usize) -> Layout {
    let (mut old, mut new) = (0_usize, 0_usize);
    let mut field_2_fits_attributes = true;
    let mut packed = Vec::new();
    for sample in samples {
        for (number, value) in Fields::new(sample).map_while(Result::ok) {
            match (number, value) {
                (3, Value::Bytes(_)) | (4, Value::Varint(_)) => old += 1,
                (3, Value::Varint(_)) | (4, Value::Bytes(_)) => new += 1,
                (2, value) if old + new == 0 => {
                    packed.clear();
                    let readable = value.varints(2, &mut packed).is_ok();
                    field_2_fits_attributes &= readable && packed.iter().all(|&i| 0 < i && i < attributes as u64);
                }
                _ => {}
            }
        }
    }
    match old.cmp(&new) {
        std::cmp::Ordering::Greater => Layout::Old,
        std::cmp::Ordering::Less => Layout::New,
        std::cmp::Ordering::Equal if field_2_fits_attributes => Layout::New,
        std::cmp::Ordering::Equal => Layout::Old,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// (number, packed?, values) of each field.
    fn sample(fields: &[(u8, bool, &[u8])]) -> Vec<u8> {
        fields
            .iter()
            .flat_map(|&(number, packed, values)| {
                let mut bytes = vec![number << 3 | if packed { 2 } else { 0 }];
                if packed {
                    bytes.push(values.len() as u8);
                }
                bytes.extend(values);
                bytes
            })
            .collect()
    }

    #[test]
    fn the_shapes_of_fields_3_and_4_tell() {
        for (fields, want) in [
            (&[(1, false, &[1][..]), (2, true, &[7]), (3, true, &[1])][..], Layout::Old),
            (&[(2, true, &[7]), (4, false, &[1])], Layout::Old),
            (&[(2, true, &[1]), (4, true, &[7])], Layout::New),
            (&[(2, true, &[1]), (3, false, &[1])], Layout::New),
        ] {
            assert_eq!(detect(&[&sample(fields)], 3), want, "{fields:?}");
        }
    }

    #[test]
    fn an_ambiguous_sample_goes_with_the_others_or_by_what_its_numbers_can_be() {
        let ambiguous = sample(&[(1, false, &[1]), (2, true, &[2])]);
        let new = sample(&[(4, true, &[7])]);
        let old = sample(&[(3, true, &[1])]);
        assert_eq!(detect(&[&ambiguous, &old], 3), Layout::Old);
        assert_eq!(detect(&[&ambiguous, &new], 1), Layout::New);
        assert_eq!(detect(&[&ambiguous], 3), Layout::New);
        assert_eq!(detect(&[&ambiguous], 2), Layout::Old);
        assert_eq!(detect(&[], 0), Layout::New);
    }
}
