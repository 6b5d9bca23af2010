//! Copying of needed entries from one [`Dictionary`] to another.

use crate::dictionary::Dictionary;
use crate::dictionary::attribute::{Attribute, AttributeValue};
use crate::dictionary::location::{Function, Line, Location, Mapping};
use crate::dictionary::pairs::StackPair;

/// Copies entries of one dictionary to another. Copies each entry once, together with the entries that it refers to.
#[derive(Debug)]
pub struct Importer<'a> {
    from: &'a Dictionary,
    copied: Copied,
    /// Buffer for the locations of the stack that is being copied.
    locations: Vec<u32>,
}

/// Progress of an [`Importer`]. Maps the ID of each copied entry in the source to the ID of the copy in the target.
#[derive(Debug, Default)]
pub struct Copied {
    strings: Vec<u32>,
    functions: Vec<u32>,
    mappings: Vec<u32>,
    locations: Vec<u32>,
    stacks: Vec<u32>,
    attribute_sets: Vec<u32>,
    pairs: Vec<u32>,
}

/// Marks an entry that was not copied. The limits of a dictionary are far below this ID.
const UNKNOWN: u32 = u32::MAX;

impl<'a> Importer<'a> {
    /// Creates an importer that has copied nothing. All calls of its methods must have the same target.
    #[must_use]
    pub fn new(from: &'a Dictionary) -> Self {
        Self::resume(from, Copied::default())
    }

    /// Continues the work of an earlier importer between the same two dictionaries. Both may have grown in the
    /// meantime.
    #[must_use]
    pub fn resume(from: &'a Dictionary, mut copied: Copied) -> Self {
        copied.strings.resize(from.strings.len() as usize, UNKNOWN);
        copied.functions.resize(from.functions.len(), UNKNOWN);
        copied.mappings.resize(from.mappings.len(), UNKNOWN);
        copied.locations.resize(from.locations.len(), UNKNOWN);
        copied.stacks.resize(from.stacks.len(), UNKNOWN);
        copied.attribute_sets.resize(from.attribute_sets.len(), UNKNOWN);
        copied.pairs.resize(from.pairs.len(), UNKNOWN);
        Self { from, copied, locations: Vec::new() }
    }

    /// Returns the progress, for [`Importer::resume`].
    #[must_use]
    pub fn stop(self) -> Copied {
        self.copied
    }

    /// Copies a text; returns its ID in `to`.
    pub fn string(&mut self, to: &mut Dictionary, id: u32) -> u32 {
        let known = &mut self.copied.strings[id as usize];
        if *known == UNKNOWN {
            *known = to.strings.intern_hashed(self.from.strings.hash(id), self.from.strings.get(id));
        }
        *known
    }

    fn function(&mut self, to: &mut Dictionary, id: u32) -> u32 {
        if self.copied.functions[id as usize] == UNKNOWN {
            let from = self.from;
            let hash = from.functions.hash(id);
            self.copied.functions[id as usize] = to.functions.find(hash).unwrap_or_else(|| {
                let Function { name, system_name, file, start_line } = from.functions[id as usize];
                let [name, system_name, file] = [name, system_name, file].map(|text| self.string(to, text));
                to.functions.intern(hash, Function { name, system_name, file, start_line })
            });
        }
        self.copied.functions[id as usize]
    }

    fn mapping(&mut self, to: &mut Dictionary, id: u32) -> u32 {
        if self.copied.mappings[id as usize] == UNKNOWN {
            let from = self.from;
            let Mapping { build_id, file } = &from.mappings[id as usize];
            let file = self.string(to, *file);
            self.copied.mappings[id as usize] = to.intern_mapping(Mapping { build_id: build_id.clone(), file });
        }
        self.copied.mappings[id as usize]
    }

    /// Copies a location; returns its ID in `to`.
    pub fn location(&mut self, to: &mut Dictionary, id: u32) -> u32 {
        if self.copied.locations[id as usize] == UNKNOWN {
            let from = self.from;
            let hash = from.locations.hash(id);
            if let Some(known) = to.locations.find(hash) {
                self.copied.locations[id as usize] = known;
                return known;
            }
            let copy = match &from.locations[id as usize] {
                Location::Address { mapping, address, frame_type } => Location::Address {
                    mapping: self.mapping(to, *mapping),
                    address: *address,
                    frame_type: self.string(to, *frame_type),
                },
                Location::Lines { mapping_file, frame_type, lines } => Location::Lines {
                    mapping_file: self.string(to, *mapping_file),
                    frame_type: self.string(to, *frame_type),
                    lines: lines
                        .iter()
                        .map(|line| Line { function: self.function(to, line.function), ..*line })
                        .collect(),
                },
            };
            self.copied.locations[id as usize] = to.intern_hashed(hash, copy);
        }
        self.copied.locations[id as usize]
    }

    /// Copies a stack; returns its ID in `to`.
    ///
    /// Does not copy locations if the source has only the stack's hash, or if `to` already has the stack's locations.
    pub fn stack(&mut self, to: &mut Dictionary, id: u32) -> u32 {
        if self.copied.stacks[id as usize] == UNKNOWN {
            let from = self.from;
            let hash = from.stacks.hash(id);
            let known = to.stacks.find(&hash);
            self.copied.stacks[id as usize] = match (known, from.stacks.get(id)) {
                (Some(known), stack) if stack.is_none() || to.stacks.get(known).is_some() => known,
                (_, Some(locations)) => {
                    let mut copies = std::mem::take(&mut self.locations);
                    copies.clear();
                    copies.extend(locations.iter().map(|&location| self.location(to, location)));
                    let copy = to.intern_stack(hash, Some(&copies));
                    self.locations = copies;
                    copy
                }
                (_, None) => to.intern_stack(hash, None),
            };
        }
        self.copied.stacks[id as usize]
    }

    /// Copies an attribute set; returns its ID in `to`.
    pub fn attributes(&mut self, to: &mut Dictionary, id: u32) -> u32 {
        if self.copied.attribute_sets[id as usize] == UNKNOWN {
            let from = self.from;
            let copy = from
                .attribute_sets
                .get(id)
                .map(|attribute| Attribute {
                    key: self.string(to, attribute.key),
                    unit: self.string(to, attribute.unit),
                    value: match attribute.value {
                        AttributeValue::Text(text) => AttributeValue::Text(self.string(to, text)),
                        AttributeValue::Json(text) => AttributeValue::Json(self.string(to, text)),
                        value => value,
                    },
                })
                .collect();
            self.copied.attribute_sets[id as usize] = to.intern_attributes(copy);
        }
        self.copied.attribute_sets[id as usize]
    }

    /// Copies a pair; returns its ID in `to`.
    pub fn pair(&mut self, to: &mut Dictionary, id: u32) -> u32 {
        if self.copied.pairs[id as usize] == UNKNOWN {
            let StackPair { user, kernel } = self.from.pairs[id as usize];
            let copy = StackPair { user: self.stack(to, user), kernel: self.stack(to, kernel) };
            self.copied.pairs[id as usize] = to.intern_pair(copy);
        }
        self.copied.pairs[id as usize]
    }
}
