//! Tables of exits that are encoded here, as V8 does.

use proptest::prelude::*;

use super::*;

/// Encodes an entry of a packed table: the offset, the index of the deoptimization plus one, the exit plus one, and the
/// registers.
fn packed(offset: u32, exit: Option<u32>, widths: (usize, usize, usize), is_maglev: bool) -> Vec<u8> {
    let (registers, offsets, index) = widths;
    let exit = exit.map_or(0, |exit| exit + 1);
    let middle = if is_maglev { &[7][..] } else { &[] };
    [&offset.to_le_bytes()[..offsets], &7_u32.to_le_bytes()[..index], &exit.to_le_bytes()[..offsets], middle]
        .concat()
        .into_iter()
        .chain(vec![9; registers])
        .collect()
}

proptest! {
    #[test]
    fn exits_are_those_that_were_encoded(
        offset in 0_u32..0x00ff_ffff,
        exit in prop::option::of(1_u32..0x00ff_fff0),
        registers in 0_usize..5,
        index in 0_usize..4,
        is_maglev: bool,
    ) {
        let config = 1 | (registers as u32) << 1 | 3 << 4 | (index as u32) << 7;
        let entry = Entry::packed(config, is_maglev);
        let bytes = packed(offset, exit, (registers, 3, index), is_maglev);
        prop_assert_eq!(entry.bytes, bytes.len());
        prop_assert_eq!(entry.decode(&bytes), exit.map(|exit| (exit, offset)));
        let ints = [offset.to_le_bytes(), [1; 4], exit.map_or(-1, u32::cast_signed).to_le_bytes()].concat();
        prop_assert_eq!(Entry::INTS.decode(&ints), exit.map(|exit| (exit, offset)));
    }

    #[test]
    fn any_table_is_decoded_within_its_bytes(
        config: u32,
        is_maglev: bool,
        bytes in prop::collection::vec(any::<u8>(), 0..40),
    ) {
        let _exit = Entry::packed(config, is_maglev).decode(&bytes);
    }
}
