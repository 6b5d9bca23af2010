//! Converts the frames of a recording to definitions in a [`Dictionary`].

use proto::build_id::from_hex;
use proto::{Address, BuildId, Dictionary, Function, Line, Location, Mapping};

use crate::corpus::Frames;

const UNKNOWN: u32 = u32::MAX;

/// Defines the locations of one recording in a dictionary, and remembers their IDs.
#[derive(Debug)]
pub(crate) struct Definer<'a> {
    pub(crate) frames: &'a Frames,
    locations: Vec<u32>,
}

impl<'a> Definer<'a> {
    pub(crate) fn new(frames: &'a Frames) -> Self {
        Self { frames, locations: vec![UNKNOWN; frames.locations.len()] }
    }

    /// Defines a location of the recording in `to`, if it is new, and returns its ID in `to`. `to` must be the same
    /// dictionary in every call.
    pub(crate) fn location(&mut self, to: &mut Dictionary, id: u32) -> u32 {
        if self.locations[id as usize] == UNKNOWN {
            self.locations[id as usize] = define(self.frames, to, id);
        }
        self.locations[id as usize]
    }
}

fn define(frames: &Frames, to: &mut Dictionary, id: u32) -> u32 {
    let from = &frames.locations[id as usize];
    let mapping = &frames.mappings[from.mapping as usize];
    let file = to.strings.intern(&mapping.file);
    let frame_type = to.strings.intern(&from.frame_type);
    let location = if from.lines.is_empty() {
        let build_id = from_hex(&mapping.build_id).filter(|bytes| !bytes.is_empty()).map(BuildId::Gnu);
        let mapping = to.intern_mapping(Mapping { build_id, file });
        Location::Address { mapping, address: Address::Virtual(from.address), frame_type }
    } else {
        let lines = from.lines.iter().map(|&(function, line)| {
            let function = &frames.functions[function as usize];
            let name = to.strings.intern(&function.name);
            let file = to.strings.intern(&function.file);
            let function = Function { name, system_name: 0, file, start_line: function.start_line };
            Line { function: to.intern_function(function), line, column: 0 }
        });
        let lines = lines.collect();
        Location::Lines { mapping_file: file, frame_type, lines }
    };
    to.intern_location(location)
}
