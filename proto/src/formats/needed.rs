//! The entries of a dictionary that its stacks and attribute sets need.
//!
//! The needed entries get new dense IDs, in the order in which [`Importer`](crate::Importer) would copy the entries.

use crate::dictionary::{AttributeValue, Dictionary, Function, Location, dense};

/// New IDs of the needed entries of a dictionary, one field for each table.
pub(crate) struct Needed {
    /// New IDs of the strings, including the empty string.
    pub(crate) strings: Renumbered,
    pub(crate) functions: Renumbered,
    pub(crate) mappings: Renumbered,
    pub(crate) locations: Renumbered,
}

/// New IDs of the needed entries of one table.
pub(crate) struct Renumbered {
    /// New ID by old ID.
    new: Vec<u32>,
    /// Old ID by new ID.
    old: Vec<u32>,
}

/// Marks an entry without a new ID.
const UNKNOWN: u32 = u32::MAX;

impl Renumbered {
    fn of_table(length: usize) -> Self {
        Self { new: vec![UNKNOWN; length], old: Vec::new() }
    }

    /// Old IDs of the needed entries, in the order of their new IDs.
    pub(crate) fn ids(&self) -> impl Iterator<Item = u32> + '_ {
        self.old.iter().copied()
    }

    /// Returns the new ID of a needed entry.
    #[inline]
    pub(crate) fn of(&self, id: u32) -> u32 {
        self.new[id as usize]
    }

    fn is_new(&self, id: u32) -> bool {
        self.new[id as usize] == UNKNOWN
    }

    fn add(&mut self, id: u32) {
        if self.is_new(id) {
            self.new[id as usize] = dense(self.old.len());
            self.old.push(id);
        }
    }
}

impl Needed {
    pub(crate) fn of(from: &Dictionary) -> Self {
        let mut needed = Self {
            strings: Renumbered::of_table(from.strings.len() as usize),
            functions: Renumbered::of_table(from.functions.len()),
            mappings: Renumbered::of_table(from.mappings.len()),
            locations: Renumbered::of_table(from.locations.len()),
        };
        needed.strings.add(0);
        for &location in from.stacks.iter().filter_map(|(_, stack)| stack).flatten() {
            if needed.locations.is_new(location) {
                needed.add_location(from, location);
            }
        }
        for attribute in from.attribute_sets.iter().flatten() {
            needed.strings.add(attribute.key);
            needed.strings.add(attribute.unit);
            if let AttributeValue::Text(text) | AttributeValue::Json(text) = attribute.value {
                needed.strings.add(text);
            }
        }
        needed
    }

    fn add_location(&mut self, from: &Dictionary, id: u32) {
        match &from.locations[id as usize] {
            Location::Address { mapping, frame_type, .. } => {
                if self.mappings.is_new(*mapping) {
                    self.strings.add(from.mappings[*mapping as usize].file);
                    self.mappings.add(*mapping);
                }
                self.strings.add(*frame_type);
            }
            Location::Lines { mapping_file, frame_type, lines } => {
                self.strings.add(*mapping_file);
                self.strings.add(*frame_type);
                for line in lines {
                    if self.functions.is_new(line.function) {
                        let Function { name, system_name, file, .. } = from.functions[line.function as usize];
                        [name, system_name, file].into_iter().for_each(|text| self.strings.add(text));
                        self.functions.add(line.function);
                    }
                }
            }
        }
        self.locations.add(id);
    }
}
