//! Detection of a request's layout. Senders do not declare the layout, and the same field numbers have several
//! meanings.
//!
//! ```text
//! Sample          1.8, 1.9              1.10, 1.11
//! field 2         values, packed        attribute_indices, packed
//! field 3         attribute_indices     link_index, varint
//! field 4         link_index, varint    values, packed
//! ```
//!
//! A sample is old (1.8, 1.9) if field 3 is packed or field 4 is a varint. A sample is new (1.10, 1.11) if field 3 is a
//! varint or field 4 is packed. A sample with neither field is ambiguous. Then the other samples of the request decide:
//! by majority, or as soon as one layout has 64 samples more than the other.
//!
//! If all samples are ambiguous, there are three cases, in this order. The layout is new if field 2 can hold the
//! attribute indices of samples that have timestamps and no values. It is old if field 2 can hold values: either one
//! value, or one for each timestamp. Otherwise it is new.
//!
//! `Profile` changed from 1.8 to 1.9: `profile_id` is field 8 in 1.8 and field 7 in later versions. The number of each
//! field after it also decreased by one.

use crate::ingest::decode::protobuf::{Fields, Value};

/// Version of the field numbers in the message `Sample`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// The field numbers of 1.8 and 1.9.
    Old,
    /// The field numbers of 1.10 and later.
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

/// Lead, in samples, at which one layout wins before all samples are read. All samples of one sender have the same
/// layout.
const LEAD: usize = 64;

/// Detects the layout of these samples. `attributes` is the number of entries in the attribute table.
pub(crate) fn detect(samples: &[&[u8]], attributes: usize) -> Layout {
    let mut old = 0_usize;
    let mut new = 0_usize;
    let mut can_be = Ambiguous { old: true, new: true };
    let mut field_2 = Vec::new();
    for sample in samples {
        if old.abs_diff(new) >= LEAD {
            break;
        }
        field_2.clear();
        let mut readable = true;
        let mut times = 0;
        for (number, value) in Fields::new(sample).map_while(Result::ok) {
            match (number, value) {
                (3, Value::Bytes(_)) | (4, Value::Varint(_)) => old += 1,
                (3, Value::Varint(_)) | (4, Value::Bytes(_)) => new += 1,
                (2, value) if old + new == 0 => readable &= value.varints(2, &mut field_2).is_ok(),
                (5, value) if old + new == 0 => match value.fixed64_count(5) {
                    Ok(count) => times += count,
                    Err(_unreadable) => readable = false,
                },
                _ => {}
            }
        }
        if old + new == 0 && !field_2.is_empty() {
            let is_attribute = |&index: &u64| 0 < index && index < attributes as u64;
            can_be.new &= readable && times > 0 && field_2.iter().all(is_attribute);
            can_be.old &= readable && (field_2.len() == times || (field_2.len() == 1 && times == 0));
        }
    }
    match old.cmp(&new) {
        std::cmp::Ordering::Greater => Layout::Old,
        std::cmp::Ordering::Less => Layout::New,
        std::cmp::Ordering::Equal if can_be.new || !can_be.old => Layout::New,
        std::cmp::Ordering::Equal => Layout::Old,
    }
}

/// The layouts that field 2 of all ambiguous samples allows.
struct Ambiguous {
    old: bool,
    new: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Encodes a sample. Each field is given by its number, whether it is packed, and its values.
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
    fn the_wire_types_of_fields_3_and_4_decide() {
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
    fn ambiguous_samples_follow_the_others_or_their_own_numbers() {
        let time = 5 << 3 | 1;
        let ambiguous = [sample(&[(1, false, &[1]), (2, true, &[2])]), vec![time, 1, 2, 3, 4, 5, 6, 7, 8]].concat();
        let new = sample(&[(4, true, &[7])]);
        let old = sample(&[(3, true, &[1])]);
        assert_eq!(detect(&[&ambiguous, &old], 3), Layout::Old);
        assert_eq!(detect(&[&ambiguous, &new], 1), Layout::New);
        assert_eq!(detect(&[&ambiguous], 3), Layout::New);
        assert_eq!(detect(&[&ambiguous], 2), Layout::Old);
        // Without timestamps, field 2 does not count as attribute indices. With one timestamp, two numbers cannot be
        // values.
        assert_eq!(detect(&[&ambiguous[..ambiguous.len() - 9]], 3), Layout::Old);
        let two = [sample(&[(2, true, &[200, 1, 2])]), ambiguous[ambiguous.len() - 9..].to_vec()].concat();
        assert_eq!(detect(&[&two], 3), Layout::New);
        assert_eq!(detect(&[], 0), Layout::New);
    }

    #[test]
    fn the_majority_or_the_first_long_lead_decides() {
        let old = sample(&[(3, true, &[1])]);
        let new = sample(&[(4, true, &[7])]);
        let of = |parts: &[(&Vec<u8>, usize)]| {
            let samples: Vec<&[u8]> =
                parts.iter().flat_map(|&(sample, count)| std::iter::repeat_n(sample.as_slice(), count)).collect();
            detect(&samples, 0)
        };
        assert_eq!(of(&[(&new, LEAD - 1), (&old, LEAD)]), Layout::Old);
        assert_eq!(of(&[(&new, LEAD), (&old, 3 * LEAD)]), Layout::New);
    }
}
