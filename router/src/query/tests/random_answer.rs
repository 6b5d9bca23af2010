//! Random responses of shards: trees in any order, inlined calls, recursion, equal names in different files, and
//! weights that are equal or cancel out.

use proptest::prelude::*;
use proto::answer::{Cell, Node};
use proto::{Address, Answer, BuildId, Dictionary, Function, LabelSet, Line, Location, Mapping};

const NAMES: [&str; 7] = ["", "f", "g", "h", "a;b\n", "app+0x1", "[unknown]"];
const FILES: [&str; 3] = ["", "/src/a.rs", "/src/b.rs"];
const BINARIES: [&str; 4] = ["", "/bin/app", "/lib/app", "x"];
const TYPES: [&str; 3] = ["", "native", "go"];

/// Random numbers from which one location is made.
type Seed = (u8, u8, u8, u64, Vec<(u8, u8, i64, i64)>);

fn location(to: &mut Dictionary, (kind, binary, frame_type, address, lines): Seed) {
    let text =
        |to: &mut Dictionary, texts: &[&str], number: u8| to.strings.intern(texts[number as usize % texts.len()]);
    let file = text(to, &BINARIES, binary);
    let frame_type = text(to, &TYPES, frame_type);
    let build_id = match kind % 6 {
        0 => BuildId::parse("gnu:aabb"),
        1 => BuildId::parse("gnu:ccdd"),
        2 => None,
        _ => {
            let line = |(name, file, start_line, line): (u8, u8, i64, i64)| {
                let system_name = text(to, &NAMES, name / 7);
                let name = text(to, &NAMES, name);
                let file = text(to, &FILES, file);
                Line { function: to.intern_function(Function { name, system_name, file, start_line }), line, column: 0 }
            };
            let lines = lines.into_iter().map(line).collect();
            to.intern_location(Location::Lines { mapping_file: file, frame_type, lines });
            return;
        }
    };
    let mapping = to.intern_mapping(Mapping { build_id, file });
    let address = if kind < 6 { Address::Virtual(address) } else { Address::FileOffset(address) };
    to.intern_location(Location::Address { mapping, address, frame_type });
}

fn any_weight() -> impl Strategy<Value = i128> {
    prop_oneof![20 => 0_i128..4, 2 => -3_i128..0, 1 => Just(i128::from(i64::MAX)), 1 => Just(1 << 100)]
}

/// Returns a random response of one shard.
pub(super) fn any_answer() -> impl Strategy<Value = Answer> {
    let lines = proptest::collection::vec((any::<u8>(), 0_u8..3, 0_i64..3, -1_i64..3), 1..4);
    let locations = proptest::collection::vec((0_u8..12, 0_u8..4, 0_u8..3, 0_u64..3, lines), 1..12);
    let nodes = proptest::collection::vec((any::<u32>(), any::<bool>(), any::<u32>()), 0..120);
    let cells = proptest::collection::vec((any::<u32>(), any_weight()), 0..80);
    (locations, nodes, cells).prop_map(|(locations, shape, weights)| {
        let mut answer = Answer { nodes: vec![Node { parent: 0, location: 0 }], ..Answer::default() };
        answer.groups.push(LabelSet::default());
        locations.into_iter().for_each(|seed| location(&mut answer.dictionary, seed));
        let locations = answer.dictionary.locations.len() as u32;
        for (parent, is_deep, location) in shape {
            let before = answer.nodes.len() as u32;
            let parent = if is_deep { before - 1 - parent % before.min(3) } else { parent % before };
            answer.nodes.push(Node { parent, location: location % locations });
        }
        let count = answer.nodes.len() as u32;
        let mut cells: Vec<_> = weights.into_iter().map(|(node, sum)| (node % count, sum)).collect();
        cells.sort_unstable();
        cells.dedup_by_key(|(node, _)| *node);
        let cell = |(node, sum)| Cell { group: 0, bucket: 0, node, sum };
        answer.cells = cells.into_iter().map(cell).collect();
        answer
    })
}
