//! Tables of distinct frames, from which a recording is built.

use std::collections::HashMap;
use std::hash::Hash;

use anyhow::Context as _;
use proto::otlp::common::v1::{AnyValue, any_value::Value};
use proto::otlp::profiles::v1development::ProfilesDictionary;

use super::recording::{Frames, Function, Location, Mapping, Node};

const BUILD_ID: &str = "process.executable.build_id.gnu";
const HTL_HASH: &str = "process.executable.build_id.htlhash";

/// Table of distinct entries. The ID of an entry is its index.
#[derive(Debug)]
pub(super) struct Table<T> {
    pub(super) entries: Vec<T>,
    ids: HashMap<T, u32>,
}

impl<T: Clone + Eq + Hash> Table<T> {
    pub(super) fn new() -> Self {
        Self { entries: Vec::new(), ids: HashMap::new() }
    }

    pub(super) fn id(&mut self, entry: T) -> anyhow::Result<u32> {
        if let Some(&id) = self.ids.get(&entry) {
            return Ok(id);
        }
        let id = u32::try_from(self.entries.len())?;
        self.entries.push(entry.clone());
        self.ids.insert(entry, id);
        Ok(id)
    }
}

/// Tables of a recording that is being built. `finish` converts them to [`Frames`].
#[derive(Debug)]
pub(crate) struct FrameTables {
    mappings: Table<Mapping>,
    functions: Table<Function>,
    locations: Table<Location>,
    nodes: Table<Node>,
}

impl FrameTables {
    pub(crate) fn new() -> Self {
        let mut nodes = Table::new();
        // The root has no entry in `ids`, so no lookup finds it.
        nodes.entries.push(Node { parent: 0, location: 0 });
        Self { mappings: Table::new(), functions: Table::new(), locations: Table::new(), nodes }
    }

    pub(crate) fn mapping(&mut self, mapping: Mapping) -> anyhow::Result<u32> {
        self.mappings.id(mapping)
    }

    pub(crate) fn function(&mut self, function: Function) -> anyhow::Result<u32> {
        self.functions.id(function)
    }

    pub(crate) fn location(&mut self, location: Location) -> anyhow::Result<u32> {
        self.locations.id(location)
    }

    /// Adds the stack of these locations, if it is new. Returns the stack, which is the ID of the node of its leaf.
    pub(crate) fn stack(&mut self, root_first: impl Iterator<Item = u32>) -> anyhow::Result<u32> {
        let mut at = 0;
        for location in root_first {
            at = self.nodes.id(Node { parent: at, location })?;
        }
        Ok(at)
    }

    pub(crate) fn finish(self) -> Frames {
        let Self { mappings, functions, locations, nodes } = self;
        let mappings = mappings.entries;
        let functions = functions.entries;
        Frames { mappings, functions, locations: locations.entries, nodes: nodes.entries }
    }
}

/// The dictionary of an export request, and its stacks that were already converted.
pub(crate) struct View<'a> {
    dictionary: &'a ProfilesDictionary,
    stacks: HashMap<i32, u32>,
}

impl<'a> View<'a> {
    pub(crate) fn new(dictionary: &'a ProfilesDictionary) -> Self {
        Self { dictionary, stacks: HashMap::new() }
    }

    /// Converts the request's stack with this index to a stack in `tables`. `tables` must be the same in every call.
    pub(crate) fn stack(&mut self, tables: &mut FrameTables, index: i32) -> anyhow::Result<u32> {
        if let Some(&stack) = self.stacks.get(&index) {
            return Ok(stack);
        }
        let indices = &at(&self.dictionary.stack_table, index)?.location_indices;
        let locations =
            indices.iter().rev().map(|&index| self.location(tables, index)).collect::<anyhow::Result<Vec<_>>>()?;
        let stack = tables.stack(locations.into_iter())?;
        self.stacks.insert(index, stack);
        Ok(stack)
    }

    fn location(&self, tables: &mut FrameTables, index: i32) -> anyhow::Result<u32> {
        let from = at(&self.dictionary.location_table, index)?;
        let mapping = at(&self.dictionary.mapping_table, from.mapping_index)?;
        let attributes = self.attributes(&mapping.attribute_indices)?;
        let build_id = attributes.get(BUILD_ID).or_else(|| attributes.get(HTL_HASH)).cloned().unwrap_or_default();
        let mapping = tables.mapping(Mapping { file: self.string(mapping.filename_strindex)?.to_owned(), build_id })?;
        let mut lines = Vec::new();
        for line in &from.lines {
            let function = at(&self.dictionary.function_table, line.function_index)?;
            let name = self.string(function.name_strindex)?;
            let file = self.string(function.filename_strindex)?;
            let start_line = function.start_line;
            let id = tables.function(Function { name: name.to_owned(), file: file.to_owned(), start_line })?;
            lines.push((id, line.line));
        }
        let mut attributes = self.attributes(&from.attribute_indices)?;
        let frame_type = attributes.remove("profile.frame.type").unwrap_or_default();
        // If a location has lines, its address is an address in one process, and is not part of the location's
        // identity.
        let address = if lines.is_empty() { from.address } else { 0 };
        tables.location(Location { mapping, address, frame_type, lines })
    }

    fn string(&self, index: i32) -> anyhow::Result<&'a str> {
        Ok(at(&self.dictionary.string_table, index)?)
    }

    pub(crate) fn attributes(&self, indices: &[i32]) -> anyhow::Result<HashMap<&'a str, String>> {
        let attribute = |&index: &i32| {
            let attribute = at(&self.dictionary.attribute_table, index)?;
            Ok((self.string(attribute.key_strindex)?, text(attribute.value.as_ref())))
        };
        indices.iter().map(attribute).collect()
    }
}

fn at<T>(table: &[T], index: i32) -> anyhow::Result<&T> {
    usize::try_from(index).ok().and_then(|index| table.get(index)).with_context(|| format!("index {index} dangles"))
}

pub(crate) fn text(value: Option<&AnyValue>) -> String {
    match value.and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        _ => String::new(),
    }
}
