//! Writer of a flame graph as a gzipped pprof file: whole locations with their inlined calls, mappings with their build
//! IDs, samples with their labels. Comments in the file report missing data.
//!
//! An address in no known function becomes a location without lines, and pprof tools look for its name in local files.
//! A function whose name is unknown becomes a line. Its mapping does not claim to have functions, so that tools still
//! look for names. Every mapping begins at 0, so that addresses are relative to the file. A mapping has an end only if
//! its addresses are file offsets: `go tool pprof` distinguishes offsets from virtual addresses in this way.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use indexmap::IndexSet;
use prost::Message as _;
use proto::pprof::{Function, Label, Line, Location, Mapping, Profile, Sample, ValueType};
use proto::{Address, Answer, BuildId, LabelSet, Location as Stored, ProfileType, build_id};

use crate::query::error::QueryError;
use crate::query::flamegraph::prune::{NodeKind, PrunedTree};
use crate::query::flamegraph::stack_tree::LocationKeys;
use crate::query::flamegraph::summary::Summary;
use crate::query::naming::frame::{FrameTable, Frames, NamedLine};
use crate::query::naming::named_answers::NamedAnswer;

/// Maximum number of location IDs of all samples together. They take 512 MiB of memory.
const LOCATION_IDS_MAX: usize = 64 << 20;

/// End of a mapping whose addresses are file offsets. It is beyond the end of any file.
const OFFSETS_END: u64 = 1 << 47;

/// Flag in a node's key: the node stands for labels instead of a location. The stacks with these labels end at the
/// node's parent.
const LABELS: u32 = 1 << 31;

/// Distinct locations and label sets of all responses. Their indices are the keys of the tree's nodes.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    locations: IndexSet<LocationKey>,
    mappings: IndexSet<MappingKey>,
    /// Label sets that are not empty. Labels with the value "" are skipped.
    label_sets: IndexSet<LabelSet>,
}

/// Identity of a location.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct LocationKey {
    /// Lines, innermost first. Empty if the location has no name.
    lines: Box<[NamedLine]>,
    mapping: usize,
    /// Address of the location; 0 if the sender gave lines.
    address: u64,
}

/// Identity of a mapping.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct MappingKey {
    file: String,
    build_id: String,
    of_offsets: bool,
}

impl Keys {
    /// Returns the key of each group of a response; `None` for a group without labels.
    pub(crate) fn groups(&mut self, answer: &Answer) -> Vec<Option<u32>> {
        let mut key = |group: &LabelSet| {
            let labels = LabelSet::new(group.iter().filter(|label| !label.value.is_empty()).cloned().collect());
            let id = (!labels.is_empty()).then(|| self.label_sets.insert_full(labels).0)?;
            u32::try_from(id).ok().filter(|id| *id < LABELS).map(|id| id | LABELS)
        };
        answer.groups.iter().map(&mut key).collect()
    }

    /// Returns whether any group of any response has labels.
    pub(crate) fn has_labels(&self) -> bool {
        !self.label_sets.is_empty()
    }

    fn label_set(&self, key: u32) -> Option<&LabelSet> {
        (key & LABELS != 0).then(|| self.label_sets.get_index((key & !LABELS) as usize))?
    }

    /// Returns the key of each location, which is the index of the location in [`Keys`].
    pub(crate) fn locations(&mut self, answer: &NamedAnswer<'_>, frames: Frames<'_>) -> LocationKeys {
        let mut keys = LocationKeys::default();
        for (i, (dictionary, location)) in (0..).zip(answer.definitions()) {
            if answer.locations.is_folded(i) {
                keys.push(std::iter::empty());
                continue;
            }
            let mut lines = answer.locations.lines(i);
            let (mapping, address) = match location {
                Stored::Lines { mapping_file, .. } => {
                    let file = dictionary.strings.get(*mapping_file).to_owned();
                    (MappingKey { file, build_id: String::new(), of_offsets: false }, 0)
                }
                Stored::Address { mapping, address, .. } => {
                    // Only an address in no known function loses its line. A function without a name keeps its line, so
                    // that the addresses of the function stay together.
                    if lines.first().is_some_and(|line| line.system_name == 0 && is_unnamed(line, frames)) {
                        lines = &[];
                    }
                    let (build_id, file) = dictionary.mapping(*mapping);
                    let build_id = build_id.map(plain_build_id).unwrap_or_default();
                    let (address, of_offsets) = match *address {
                        Address::Virtual(address) => (address, false),
                        Address::FileOffset(offset) => (offset, true),
                    };
                    (MappingKey { file: file.to_owned(), build_id, of_offsets }, address)
                }
            };
            let mapping = self.mappings.insert_full(mapping).0;
            let key = LocationKey { lines: Box::from(lines), mapping, address };
            let id = self.locations.insert_full(key).0;
            keys.push(std::iter::once(u32::try_from(id).unwrap_or(u32::MAX)));
        }
        keys
    }

    /// Compares two locations, or two label sets, by their content.
    pub(crate) fn order(&self, a: u32, b: u32, table: &FrameTable) -> Ordering {
        let line = |line: &NamedLine| {
            let texts = table.key(line.frame).map(|key| table.texts(key));
            (texts, line.line, line.column, table.text(line.system_name))
        };
        if (a | b) & LABELS != 0 {
            return (self.label_set(a), a & LABELS).cmp(&(self.label_set(b), b & LABELS));
        }
        let (Some(a), Some(b)) = (self.locations.get_index(a as usize), self.locations.get_index(b as usize)) else {
            return a.cmp(&b);
        };
        let mapping = |location: &LocationKey| self.mappings.get_index(location.mapping);
        let lines = a.lines.iter().map(line).cmp(b.lines.iter().map(line));
        lines.then_with(|| (mapping(a), a.address).cmp(&(mapping(b), b.address)))
    }
}

/// Returns whether the frame of a line has no name.
fn is_unnamed(line: &NamedLine, frames: Frames<'_>) -> bool {
    let why = frames.get(line.frame).and_then(|frame| frame.unnamed);
    why.is_some_and(|why| !frames.table.unnamed[why as usize].has_name())
}

/// Returns a build ID in pprof's form, without its kind. GNU build IDs are hexadecimal.
fn plain_build_id(id: &BuildId) -> String {
    match id {
        BuildId::Gnu(bytes) => build_id::to_hex(bytes),
        BuildId::Go(text) => text.clone(),
        BuildId::Htlhash(bytes) => build_id::to_hex(bytes),
    }
}

/// Writes a tree whose keys are locations and label sets. `comments` are sentences about the profile.
///
/// # Errors
/// Returns [`QueryError::ValueTooLarge`] for a sum of more than 64 bits, and [`QueryError::TooLarge`] for too many
/// location IDs.
pub(crate) fn write(
    tree: &PrunedTree,
    keys: &Keys,
    frames: Frames<'_>,
    summary: &Summary,
    comments: &[String],
) -> Result<Vec<u8>, QueryError> {
    let mut writer = Writer { keys, frames, ids: Ids::default(), profile: Profile::default() };
    writer.string("");
    writer.header(summary, tree);
    writer.profile.comment = comments.iter().map(|comment| writer.string(comment)).collect();
    let mut id_of_node: Vec<u64> = Vec::with_capacity(tree.nodes.len());
    let mut location_ids = 0;
    for node in &tree.nodes {
        let labels = match node.kind {
            NodeKind::Key(key) => keys.label_set(key),
            NodeKind::Root | NodeKind::Other => None,
        };
        let id = match node.kind {
            NodeKind::Root => 0,
            NodeKind::Key(_) if labels.is_some() => 0,
            NodeKind::Key(location) => writer.location(location),
            NodeKind::Other => writer.other(),
        };
        id_of_node.push(id);
        if !node.has_own {
            continue;
        }
        let mut stack = Vec::new();
        let mut kind = node.kind;
        let mut id = id;
        let mut above = node.parent;
        while kind != NodeKind::Root {
            // A node of labels has ID 0, because labels are not a location.
            stack.extend((id != 0).then_some(id));
            let Some(parent) = tree.nodes.get(above as usize) else { break };
            id = id_of_node.get(above as usize).copied().unwrap_or(0);
            (kind, above) = (parent.kind, parent.parent);
        }
        location_ids += stack.len();
        if location_ids > LOCATION_IDS_MAX {
            return Err(QueryError::TooLarge {
                what: "location ids in a pprof (max_nodes bounds them)",
                max: LOCATION_IDS_MAX,
            });
        }
        let value = i64::try_from(node.own).map_err(|_overflow| QueryError::ValueTooLarge)?;
        let label = labels.into_iter().flat_map(LabelSet::iter).map(|label| writer.label(label)).collect();
        writer.profile.sample.push(Sample { location_id: stack, value: vec![value], label });
    }
    compress(&writer.profile)
}

/// Returns the period of the profile, in the unit of its type; 0 if unknown.
///
/// Shards do not return the period. In a CPU or wall time profile, the period is assumed to be the mean value of a
/// sample, if each value is a multiple of this mean.
fn period(summary: &Summary, tree: &PrunedTree) -> i64 {
    let is_of_period =
        |kind: &ProfileType| kind.sample() == kind.period() && matches!(kind.sample().kind.as_str(), "cpu" | "wall");
    if !summary.profile_type.as_ref().is_some_and(is_of_period) || summary.has_stack_matchers || summary.samples < 2 {
        return 0;
    }
    let values = || tree.nodes.iter().map(|node| node.own);
    let total: i128 = values().sum();
    let samples = i128::from(summary.samples);
    let mean = total / samples;
    let is_known = mean > 0 && mean * samples == total && values().all(|value| value % mean == 0);
    if is_known { i64::try_from(mean).unwrap_or(0) } else { 0 }
}

fn compress(profile: &Profile) -> Result<Vec<u8>, QueryError> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::new(6));
    // Writing to memory cannot fail.
    let written = encoder.write_all(&profile.encode_to_vec()).and_then(|()| encoder.finish());
    written.map_err(|error| {
        tracing::error!(%error, "a pprof could not be compressed");
        QueryError::Broken
    })
}

/// IDs of the entries that are already written.
#[derive(Default)]
struct Ids {
    strings: HashMap<String, i64>,
    functions: HashMap<(u32, u32), u64>,
    locations: HashMap<u32, u64>,
    mappings: HashMap<usize, u64>,
    other: Option<u64>,
}

struct Writer<'a> {
    keys: &'a Keys,
    frames: Frames<'a>,
    ids: Ids,
    profile: Profile,
}

impl Writer<'_> {
    fn header(&mut self, summary: &Summary, tree: &PrunedTree) {
        if let Some(profile_type) = &summary.profile_type {
            let sample = profile_type.sample();
            let period = profile_type.period();
            let sample = ValueType { kind: self.string(&sample.kind), unit: self.string(&sample.unit) };
            let period = ValueType { kind: self.string(&period.kind), unit: self.string(&period.unit) };
            self.profile.sample_type.push(sample);
            self.profile.period_type = Some(period);
        }
        self.profile.period = self::period(summary, tree);
        self.profile.time_nanos = summary.window.start_ns;
        self.profile.duration_nanos = summary.window.end_ns.saturating_sub(summary.window.start_ns);
    }

    fn string(&mut self, text: &str) -> i64 {
        if let Some(&id) = self.ids.strings.get(text) {
            return id;
        }
        let id = i64::try_from(self.profile.string_table.len()).unwrap_or(i64::MAX);
        self.profile.string_table.push(text.to_owned());
        self.ids.strings.insert(text.to_owned(), id);
        id
    }

    fn location(&mut self, key: u32) -> u64 {
        if let Some(&id) = self.ids.locations.get(&key) {
            return id;
        }
        let keys = self.keys;
        let Some(location) = keys.locations.get_index(key as usize) else { return 0 };
        let mapping_id = self.mapping(location);
        let line: Vec<Line> = location.lines.iter().map(|line| self.line(line)).collect();
        let id = self.next_location();
        self.profile.location.push(Location { id, mapping_id, address: location.address, line });
        self.ids.locations.insert(key, id);
        id
    }

    /// Returns the ID of the location that stands for pruned nodes.
    fn other(&mut self) -> u64 {
        if let Some(id) = self.ids.other {
            return id;
        }
        let function = Function { id: self.next_function(), name: self.string("(other)"), ..Function::default() };
        self.profile.function.push(function);
        let id = self.next_location();
        let line = vec![Line { function_id: function.id, line: 0, column: 0 }];
        self.profile.location.push(Location { id, mapping_id: 0, address: 0, line });
        self.ids.other = Some(id);
        id
    }

    fn label(&mut self, label: &proto::Label) -> Label {
        Label { key: self.string(&label.name), text: self.string(&label.value), number: 0 }
    }

    fn next_location(&self) -> u64 {
        self.profile.location.len() as u64 + 1
    }

    fn next_function(&self) -> u64 {
        self.profile.function.len() as u64 + 1
    }

    fn line(&mut self, line: &NamedLine) -> Line {
        Line { function_id: self.function(line), line: line.line, column: line.column }
    }

    fn function(&mut self, line: &NamedLine) -> u64 {
        let key = (line.frame, line.system_name);
        if let Some(&id) = self.ids.functions.get(&key) {
            return id;
        }
        let table = self.frames.table;
        let Some(frame) = self.frames.get(line.frame) else { return 0 };
        let function = Function {
            id: self.next_function(),
            name: self.string(table.text(frame.key.name)),
            system_name: self.string(table.text(line.system_name)),
            filename: self.string(table.text(frame.key.file)),
            start_line: frame.start_line,
        };
        self.profile.function.push(function);
        self.ids.functions.insert(key, function.id);
        function.id
    }

    /// Returns the ID of a location's mapping, or 0 if nothing is known about the mapping. The mapping claims
    /// functions, files or lines only if all its locations have them.
    fn mapping(&mut self, location: &LocationKey) -> u64 {
        let keys = self.keys;
        let Some(key) = keys.mappings.get_index(location.mapping) else { return 0 };
        if key.file.is_empty() && key.build_id.is_empty() {
            return 0;
        }
        let id = match self.ids.mappings.get(&location.mapping) {
            Some(&id) => id,
            None => {
                let id = self.profile.mapping.len() as u64 + 1;
                let filename = self.string(&key.file);
                let build_id = self.string(&key.build_id);
                let memory_limit = if key.of_offsets { OFFSETS_END } else { 0 };
                let mut mapping = Mapping { id, memory_limit, filename, build_id, ..Mapping::default() };
                mapping.has_functions = true;
                mapping.has_filenames = true;
                mapping.has_line_numbers = true;
                mapping.has_inline_frames = true;
                self.profile.mapping.push(mapping);
                self.ids.mappings.insert(location.mapping, id);
                id
            }
        };
        let named = location.lines.first().is_some_and(|line| !is_unnamed(line, self.frames));
        let has_file = |line: &NamedLine| self.frames.table.key(line.frame).is_some_and(|key| key.file != 0);
        let has_files = named && location.lines.iter().all(has_file);
        let has_numbers = named && location.lines.iter().all(|line| line.line != 0);
        // IDs count from 1, in the order of the mappings.
        if let Some(mapping) = usize::try_from(id).ok().and_then(|id| self.profile.mapping.get_mut(id - 1)) {
            mapping.has_functions &= named;
            mapping.has_filenames &= has_files;
            mapping.has_line_numbers &= has_numbers;
            mapping.has_inline_frames &= named;
        }
        id
    }
}
