//! Lines of texts, compared with lines that are counted unit by unit.

use std::os::unix::fs::FileExt as _;

use proptest::prelude::*;

use super::*;
use crate::runtimes::languages::v8::function::tests::TYPES;
use crate::runtimes::languages::v8::layout::{FORMS, Layout};
use crate::runtimes::memory::ProcessMemory;

/// Returns the line of a position, from 1 on.
fn line_of(text: &[u16], position: usize) -> u32 {
    let is_end = |at: usize| match text[at] {
        10 | 0x2028 | 0x2029 => true,
        13 => text.get(at + 1) != Some(&10),
        _ => false,
    };
    1 + (0..position.min(text.len())).filter(|at| is_end(*at)).count() as u32
}

fn lines_of(pieces: &[Vec<u16>], is_narrow: bool) -> Lines {
    let mut scanner = Scanner::default();
    for piece in pieces {
        if is_narrow {
            scanner.add(Piece::Narrow(&piece.iter().map(|unit| *unit as u8).collect::<Vec<_>>()));
        } else {
            let units: Vec<[u8; 2]> = piece.iter().map(|unit| unit.to_ne_bytes()).collect();
            scanner.add(Piece::Wide(&units));
        }
    }
    Lines { starts: scanner.finish(), offset: 0 }
}

proptest! {
    #[test]
    fn lines_are_those_that_are_counted_in_any_division_of_the_text(
        pieces in prop::collection::vec(prop::collection::vec(
            prop_oneof![Just(10_u16), Just(13), Just(65), Just(0x28), Just(0x29)], 0..30), 0..6),
        has_returns: bool,
        is_narrow: bool,
    ) {
        let wide = |unit: u16| if [0x28, 0x29].contains(&unit) && !is_narrow { unit | 0x2000 } else { unit };
        let plain = |unit: u16| if unit == 13 && !has_returns { 65 } else { unit };
        let pieces: Vec<Vec<u16>> =
            pieces.iter().map(|piece| piece.iter().map(|unit| wide(plain(*unit))).collect()).collect();
        let lines = lines_of(&pieces, is_narrow);
        let text = pieces.concat();
        for position in 0..=text.len() {
            prop_assert_eq!(lines.line(position as u32), line_of(&text, position), "{}", position);
        }
    }
}

#[test]
fn lines_begin_after_those_that_the_script_has_before_it() {
    let lines = |offset| Lines { starts: vec![3, 7], offset };
    assert_eq!([0, 3, 6, 7].map(|position| lines(100).line(position)), [101, 102, 102, 103]);
    assert_eq!([0, 7].map(|position| lines(-2).line(position)), [0, 1]);
}

#[test]
fn many_scripts_with_one_long_source_have_limits_of_memory_and_work() {
    const UNITS: u32 = UNITS_MAX / 4;
    const SOURCE_AT: u64 = 8192;
    const SCRIPTS_AT: u64 = SOURCE_AT + 2 * UNITS as u64;
    let file = tempfile::tempfile().unwrap();
    let put = |at: u64, word: u64| file.write_all_at(&word.to_ne_bytes(), at).unwrap();
    // The map of narrow strings, whose type is 8, and a string of line feeds.
    put(4096 + 8, 8 << 32);
    put(SOURCE_AT, 4096 + 1);
    put(SOURCE_AT + 8, u64::from(UNITS) << 32);
    file.write_all_at(&vec![LINE_FEED as u8; UNITS as usize], SOURCE_AT + 16).unwrap();
    let scripts: Vec<Object> = (0..12).map(|number| Object(SCRIPTS_AT + 1024 * number)).collect();
    for (script, number) in scripts.iter().zip(0..) {
        put(script.0 + u64::from(SOURCE), SOURCE_AT + 1);
        put(script.0 + u64::from(LINE_OFFSET), 0);
        put(script.0 + u64::from(ID), number << 32);
    }
    let memory = ProcessMemory::of_file(file);
    let heap = Heap { memory: &memory, layout: &Layout { form: &FORMS[0], types: TYPES } };
    let sources = Sources::default();
    let mut all = Vec::new();
    for _ in 0..2 {
        let batch = sources.for_batch();
        let mut found = 0;
        for script in &scripts {
            let lines = batch.lines(&heap, *script);
            if let Some(lines) = lines.upgrade() {
                found += 1;
                assert_eq!(lines.line(7), 8);
                assert_eq!(lines.starts.len(), LINES_MAX);
            }
            all.push(lines);
        }
        // One batch goes through four sources of this length. The last scripts of the batch before are still known.
        assert!((4..6).contains(&found), "{found}");
    }
    let held: usize = all.iter().filter_map(Weak::upgrade).map(|lines| lines.bytes()).sum();
    assert!(0 < held && held <= BYTES_MAX && sources.bytes() <= BYTES_MAX, "{held}");
}
