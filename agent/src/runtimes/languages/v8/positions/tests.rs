//! Tables that are encoded here, as V8 does.

use proptest::prelude::*;

use super::*;
use crate::runtimes::languages::v8::bytecodes::V14_1;

fn put(mut number: u64, to: &mut Vec<u8>) {
    while 0x80 <= number {
        to.push(number as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}

fn put_signed(number: i64, to: &mut Vec<u8>) {
    let magnitude = number.unsigned_abs();
    put(if number < 0 { magnitude * 2 - 1 } else { magnitude * 2 }, to);
}

/// Encodes entries of an offset in the code, a position and whether a statement begins there.
fn encode(entries: &[(u32, u64, bool)], form: PositionsForm) -> Vec<u8> {
    let mut bytes = Vec::new();
    let (mut offset, mut position) = (i64::from(form.start), 0_i64);
    for (at, value, is_statement) in entries {
        let step = i64::from(*at) - offset;
        match (form.has_flags, is_statement) {
            (true, _) => put(step as u64 * 4 + u64::from(*is_statement), &mut bytes),
            (false, true) => put_signed(step, &mut bytes),
            (false, false) => put_signed(-step - 1, &mut bytes),
        }
        put_signed(value.cast_signed() - position, &mut bytes);
        (offset, position) = ((*at).into(), value.cast_signed());
    }
    bytes
}

proptest! {
    #[test]
    fn the_position_is_that_of_the_last_entry_before_the_offset(
        steps in prop::collection::vec((1_u32..5000, 0_u32..1 << 29, 0_u64..100, any::<bool>(), 0..10_u32), 0..60),
        form in prop_oneof![Just((0, false)), Just((-1, false)), Just((-1, true))],
        wanted in 0_u32..300_000,
    ) {
        let form = PositionsForm { start: form.0, has_flags: form.1 };
        let mut at = 0;
        let entries: Vec<_> = steps.iter().map(|(step, offset, inlined, is_statement, external)| {
            at += step;
            // One in ten is in a source of V8's own.
            let value = inlined << 31 | u64::from(*offset) << 1 | u64::from(*external == 0);
            (at, value, *is_statement)
        }).collect();
        let table = encode(&entries, form);
        let mut expected = None;
        for ((at, ..), (_, offset, inlined, _, external)) in entries.iter().zip(&steps) {
            if *at <= wanted && *external != 0 {
                let inlined = if *inlined == 0 { None } else { Some((*inlined - 1) as u16) };
                expected = Some(SourcePosition { offset: *offset, inlined });
            }
        }
        prop_assert_eq!(position_at(&table, form, wanted), expected);
        let all: Vec<_> = Entries::new(&table, form).map(|(at, value)| (at as u32, value)).collect();
        prop_assert_eq!(all, entries.iter().map(|(at, value, _)| (*at, *value)).collect::<Vec<_>>());
    }

    #[test]
    fn bytecodes_begin_where_the_sizes_of_their_code_add_up(
        bytecodes in prop::collection::vec((0_u8..180, prop::option::of(0_u8..4), 1_u32..300), 1..60),
        before in 0_u32..100,
    ) {
        let sizes = crate::runtimes::languages::v8::bytecodes::V12_4;
        let (mut code, mut table, mut expected) = (Vec::new(), Vec::new(), Vec::new());
        let mut end = before;
        put(before.into(), &mut table);
        for (bytecode, prefix, size) in bytecodes {
            // Prefixes are no bytecodes of their own.
            let start = code.len();
            code.extend(prefix);
            code.push(bytecode.max(4));
            let Some(length) = sizes.of(&code[start..]) else {
                code.truncate(start);
                continue;
            };
            code.resize(start + length, 0);
            expected.push((end, start as u32));
            end += size;
            put(size.into(), &mut table);
        }
        expected.push((end, code.len() as u32));
        prop_assert_eq!(&*baseline_starts(&table, &code, sizes), &*expected);
    }

    #[test]
    fn any_bytes_are_read_to_an_end(bytes in prop::collection::vec(any::<u8>(), 0..300), offset: u32) {
        for has_flags in [false, true] {
            let form = PositionsForm { start: -1, has_flags };
            prop_assert!(Entries::new(&bytes, form).count() <= bytes.len() / 2);
            let _position = position_at(&bytes, form, offset);
        }
        prop_assert!(baseline_starts(&bytes, &bytes, V14_1).len() <= bytes.len());
    }
}
