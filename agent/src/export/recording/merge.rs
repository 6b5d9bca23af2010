//! Merging of the export requests of one agent into one request.
//!
//! The result has one dictionary, one profile per process and kind, and each sample identity once, with all its times.
//!
//! The invariants are those of a request that the agent sends, except for its size (`export::request`,
//! `export::dictionary`). Equal entries are merged: each is looked up by its encoded form, in which it refers to other
//! entries by their new indices.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use foldhash::fast::RandomState;
use indexmap::IndexMap;
use prost::Message;
use proto::otlp::collector::profiles::v1development::ExportProfilesServiceRequest;
use proto::otlp::common::v1::InstrumentationScope;
use proto::otlp::profiles::v1development::{
    Function, KeyValueAndUnit, Link, Location, Mapping, Profile, ProfilesDictionary, ResourceProfiles, Sample,
    ScopeProfiles, Stack, ValueType,
};
use proto::otlp::resource::v1::Resource;

/// Approximate number of bytes that an entry takes besides its content. The content is stored twice: decoded and
/// encoded.
const ENTRY_BYTES: usize = 128;
/// Approximate number of bytes that a sample takes besides its times, values and attributes. They include its entry in
/// [`Merged::samples`].
const SAMPLE_BYTES: usize = 256;

/// A merged request under construction.
#[derive(Debug)]
pub(super) struct Merge {
    strings: Table<String>,
    attributes: Table<KeyValueAndUnit>,
    links: Table<Link>,
    mappings: Table<Mapping>,
    functions: Table<Function>,
    locations: Table<Location>,
    stacks: Table<Stack>,
    profiles: IndexMap<ProfileKey, Merged, RandomState>,
    /// Approximate memory that samples and profiles take, in bytes.
    bytes: usize,
    bytes_max: usize,
}

/// Key of a profile. Profiles with equal keys are merged.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ProfileKey {
    /// The encoded resource.
    resource: Vec<u8>,
    sample_type: ValueType,
}

#[derive(Debug)]
struct Merged {
    resource: Option<Resource>,
    scope: Option<InstrumentationScope>,
    profile: Profile,
    /// Indices of samples, by stack, link and attributes.
    samples: HashMap<(i32, i32, Vec<i32>), usize, RandomState>,
}

impl Merge {
    /// Creates an empty request, which is full at about `bytes_max` bytes of memory.
    pub(super) fn new(bytes_max: usize) -> Self {
        Self {
            strings: Table::new(),
            attributes: Table::new(),
            // Zero-filled rather than empty, as in the requests.
            links: Table::with_zero(Link { trace_id: vec![0; 16], span_id: vec![0; 8] }),
            mappings: Table::new(),
            functions: Table::new(),
            locations: Table::new(),
            stacks: Table::new(),
            profiles: IndexMap::default(),
            bytes: 0,
            bytes_max,
        }
    }

    /// True if nothing was added.
    pub(super) fn is_empty(&self) -> bool {
        self.profiles.is_empty()
    }

    /// True if no more requests should be added.
    pub(super) fn is_full(&self) -> bool {
        let tables = [
            self.strings.bytes,
            self.attributes.bytes,
            self.links.bytes,
            self.mappings.bytes,
            self.functions.bytes,
            self.locations.bytes,
            self.stacks.bytes,
        ];
        self.bytes_max <= self.bytes + tables.iter().sum::<usize>()
    }

    /// Adds a request.
    pub(super) fn add(&mut self, request: ExportProfilesServiceRequest) {
        let indices = self.add_dictionary(request.dictionary.unwrap_or_default());
        for resource_profiles in request.resource_profiles {
            let resource = resource_profiles.resource;
            for ScopeProfiles { scope, profiles, .. } in resource_profiles.scope_profiles {
                for profile in profiles {
                    self.add_profile(resource.as_ref(), scope.as_ref(), profile, &indices);
                }
            }
        }
    }

    /// Adds all entries of a dictionary. Each table is added after the tables to which it refers.
    fn add_dictionary(&mut self, dictionary: ProfilesDictionary) -> NewIndices {
        let strings = self.strings.add(dictionary.string_table);
        let attribute = |attribute: KeyValueAndUnit| KeyValueAndUnit {
            key_strindex: of(&strings, attribute.key_strindex),
            unit_strindex: of(&strings, attribute.unit_strindex),
            ..attribute
        };
        let attributes = self.attributes.add(dictionary.attribute_table.into_iter().map(attribute));
        let links = self.links.add(dictionary.link_table);
        let mapping = |mapping: Mapping| Mapping {
            filename_strindex: of(&strings, mapping.filename_strindex),
            attribute_indices: all_of(&attributes, &mapping.attribute_indices),
            ..mapping
        };
        let mappings = self.mappings.add(dictionary.mapping_table.into_iter().map(mapping));
        let function = |function: Function| Function {
            name_strindex: of(&strings, function.name_strindex),
            system_name_strindex: of(&strings, function.system_name_strindex),
            filename_strindex: of(&strings, function.filename_strindex),
            ..function
        };
        let functions = self.functions.add(dictionary.function_table.into_iter().map(function));
        let location = |mut location: Location| {
            location.mapping_index = of(&mappings, location.mapping_index);
            location.attribute_indices = all_of(&attributes, &location.attribute_indices);
            for line in &mut location.lines {
                line.function_index = of(&functions, line.function_index);
            }
            location
        };
        let locations = self.locations.add(dictionary.location_table.into_iter().map(location));
        let stack = |stack: Stack| Stack { location_indices: all_of(&locations, &stack.location_indices) };
        let stacks = self.stacks.add(dictionary.stack_table.into_iter().map(stack));
        NewIndices { strings, attributes, links, stacks }
    }

    fn add_profile(
        &mut self,
        resource: Option<&Resource>,
        scope: Option<&InstrumentationScope>,
        mut profile: Profile,
        indices: &NewIndices,
    ) {
        for value_type in [&mut profile.sample_type, &mut profile.period_type].into_iter().flatten() {
            value_type.type_strindex = of(&indices.strings, value_type.type_strindex);
            value_type.unit_strindex = of(&indices.strings, value_type.unit_strindex);
        }
        let samples = std::mem::take(&mut profile.samples);
        let resource_bytes = resource.map(Resource::encode_to_vec).unwrap_or_default();
        let key = ProfileKey { resource: resource_bytes, sample_type: profile.sample_type.unwrap_or_default() };
        let start = profile.time_unix_nano;
        let end = profile.time_unix_nano.saturating_add(profile.duration_nano);
        let merged = self.profiles.entry(key).or_insert_with_key(|key| {
            self.bytes += key.resource.len() + profile.encoded_len() + ENTRY_BYTES;
            Merged { resource: resource.cloned(), scope: scope.cloned(), profile, samples: HashMap::default() }
        });
        let known_end = merged.profile.time_unix_nano.saturating_add(merged.profile.duration_nano);
        merged.profile.time_unix_nano = merged.profile.time_unix_nano.min(start);
        merged.profile.duration_nano = known_end.max(end).saturating_sub(merged.profile.time_unix_nano);
        for sample in samples {
            self.bytes += size_of::<u64>() * (sample.timestamps_unix_nano.len() + sample.values.len());
            // The attributes are stored both in the sample and in its key.
            let attributes_bytes = 2 * size_of::<i32>() * sample.attribute_indices.len();
            if merged.add(sample, indices) {
                self.bytes += SAMPLE_BYTES + attributes_bytes;
            }
        }
    }

    /// Returns the merged request.
    pub(super) fn finish(self) -> ExportProfilesServiceRequest {
        let of_resource = |merged: Merged| ResourceProfiles {
            resource: merged.resource,
            scope_profiles: vec![ScopeProfiles {
                scope: merged.scope,
                profiles: vec![merged.profile],
                schema_url: String::new(),
            }],
            schema_url: String::new(),
        };
        ExportProfilesServiceRequest {
            resource_profiles: self.profiles.into_values().map(of_resource).collect(),
            dictionary: Some(ProfilesDictionary {
                mapping_table: self.mappings.entries,
                location_table: self.locations.entries,
                function_table: self.functions.entries,
                link_table: self.links.entries,
                string_table: self.strings.entries,
                attribute_table: self.attributes.entries,
                stack_table: self.stacks.entries,
            }),
        }
    }
}

impl Merged {
    /// Adds a sample. Returns true if its identity is new.
    fn add(&mut self, sample: Sample, indices: &NewIndices) -> bool {
        let stack_index = of(&indices.stacks, sample.stack_index);
        let attribute_indices = all_of(&indices.attributes, &sample.attribute_indices);
        let link_index = of(&indices.links, sample.link_index);
        match self.samples.entry((stack_index, link_index, attribute_indices)) {
            Entry::Occupied(known) => {
                if let Some(known) = self.profile.samples.get_mut(*known.get()) {
                    known.timestamps_unix_nano.extend(sample.timestamps_unix_nano);
                    known.values.extend(sample.values);
                }
                false
            }
            Entry::Vacant(new) => {
                let attribute_indices = new.key().2.clone();
                new.insert(self.profile.samples.len());
                self.profile.samples.push(Sample { stack_index, link_index, attribute_indices, ..sample });
                true
            }
        }
    }
}

/// A table of distinct entries. The first entry is the zero value.
#[derive(Debug)]
struct Table<T> {
    entries: Vec<T>,
    /// Indices of the entries, by their encoded form.
    indices: HashMap<Vec<u8>, i32, RandomState>,
    /// Approximate memory that the table takes, in bytes.
    bytes: usize,
}

impl<T: Message + Default> Table<T> {
    fn new() -> Self {
        Self::with_zero(T::default())
    }

    /// Creates a table with this zero value.
    fn with_zero(zero: T) -> Self {
        let mut table = Self { entries: Vec::new(), indices: HashMap::default(), bytes: 0 };
        table.intern(zero);
        table
    }

    /// Returns the index of each entry, and adds the entries that are new.
    fn add(&mut self, entries: impl IntoIterator<Item = T>) -> Vec<i32> {
        entries.into_iter().map(|entry| self.intern(entry)).collect()
    }

    fn intern(&mut self, entry: T) -> i32 {
        match self.indices.entry(entry.encode_to_vec()) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => {
                self.bytes += 2 * new.key().len() + ENTRY_BYTES;
                // Tables are bounded by the bytes of a recording, far below the limit of i32.
                let index = *new.insert(i32::try_from(self.entries.len()).unwrap_or(i32::MAX));
                self.entries.push(entry);
                index
            }
        }
    }
}

/// For each table that samples and profiles refer to: the new index of each entry of a request, by its old index.
struct NewIndices {
    strings: Vec<i32>,
    attributes: Vec<i32>,
    links: Vec<i32>,
    stacks: Vec<i32>,
}

/// Returns the new index of an entry; 0, the zero value, for an index out of range.
fn of(new_indices: &[i32], index: i32) -> i32 {
    usize::try_from(index).ok().and_then(|index| new_indices.get(index)).copied().unwrap_or(0)
}

fn all_of(new_indices: &[i32], indices: &[i32]) -> Vec<i32> {
    indices.iter().map(|index| of(new_indices, *index)).collect()
}
