//! A recording as a gzipped pprof profile. Every stack has its samples, its CPU time and, if recorded, its waiting
//! time. Process and thread are labels, named as in varve's queries.
//!
//! Locations without a name have an address and no lines: pprof tools name them from local files. A mapping is a whole
//! file from address 0 without an end, so that tools take addresses as ELF virtual addresses.

use std::collections::HashMap;
use std::io::{self, Write as _};
use std::time::UNIX_EPOCH;

use flate2::Compression;
use flate2::write::GzEncoder;
use foldhash::fast::RandomState;
use indexmap::{IndexMap, IndexSet};
use prost::Message as _;
use proto::otlp::common::v1::AnyValue;
use proto::otlp::profiles::v1development as otlp;
use proto::pprof::{Function, Label, Line, Location, Mapping, Profile, Sample, ValueType};

use super::names::{self, MappedFile};
use super::{NamedRecording, Recording, number, text};

/// Number of values of a sample: samples, CPU time, waiting time.
const VALUES: usize = 3;
/// Attribute that is omitted, because the CPU of a sample would split every stack.
const CPU: &str = "cpu.logical_number";

impl NamedRecording<'_> {
    /// Encodes the recording as a gzipped pprof profile.
    ///
    /// # Errors
    /// Any error of the compressor. None is known to occur.
    pub fn pprof(&self) -> io::Result<Vec<u8>> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(&Writer::new(self).write().encode_to_vec())?;
        encoder.finish()
    }
}

struct Writer<'a> {
    named: &'a NamedRecording<'a>,
    strings: IndexSet<String, RandomState>,
    /// Ids of functions, by name, system name, file and first line. Ids count from 1.
    functions: HashMap<[i64; 4], u64, RandomState>,
    locations: HashMap<usize, u64, RandomState>,
    mappings: HashMap<MappedFile<'a>, u64, RandomState>,
    profile: Profile,
}

impl<'a> Writer<'a> {
    fn new(named: &'a NamedRecording<'a>) -> Self {
        Self {
            named,
            strings: IndexSet::from_iter([String::new()]),
            functions: HashMap::default(),
            locations: HashMap::default(),
            mappings: HashMap::default(),
            profile: Profile::default(),
        }
    }

    fn write(mut self) -> Profile {
        let Recording { started, duration, off_cpu, .. } = self.named.recording;
        let mut types = vec![self.value_type("samples", "count"), self.value_type("cpu", "nanoseconds")];
        if *off_cpu {
            types.push(self.value_type("off_cpu", "nanoseconds"));
        }
        let values = types.len();
        let mut sums: IndexMap<(i32, Vec<Label>), [i64; VALUES], RandomState> = IndexMap::default();
        for (resource, profile) in self.named.recording.profiles() {
            if !Recording::is_of_waits(profile) {
                self.profile.period = profile.period;
            }
            let attributes = resource.resource.iter().flat_map(|resource| &resource.attributes);
            let of_process = attributes.filter_map(|it| self.label(&it.key, it.value.as_ref())).collect::<Vec<_>>();
            for sample in &profile.samples {
                let mut labels = of_process.clone();
                for index in &sample.attribute_indices {
                    let attribute = self.named.attribute(*index).filter(|(key, _)| *key != CPU);
                    let label = attribute.and_then(|(key, value)| self.label(key, value));
                    // A label of the program may have the name of one of the agent's attributes.
                    labels.extend(label.filter(|label| labels.iter().all(|known| known.key != label.key)));
                }
                add(sums.entry((sample.stack_index, labels)).or_default(), profile, sample);
            }
        }
        for ((stack, label), sums) in sums {
            let location_id = self.named.stack(stack).map(|location| self.location(location)).collect();
            self.profile.sample.push(Sample { location_id, value: sums[..values].to_vec(), label });
        }
        self.profile.sample_type = types;
        self.profile.period_type = Some(self.value_type("cpu", "nanoseconds"));
        self.profile.default_sample_type = self.string("cpu");
        let nanoseconds = |nanoseconds: u128| i64::try_from(nanoseconds).unwrap_or(i64::MAX);
        self.profile.time_nanos = nanoseconds(started.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos());
        self.profile.duration_nanos = nanoseconds(duration.as_nanos());
        self.profile.string_table = self.strings.into_iter().collect();
        self.profile
    }

    fn string(&mut self, text: &str) -> i64 {
        let index = self.strings.get_index_of(text).unwrap_or_else(|| self.strings.insert_full(text.to_owned()).0);
        i64::try_from(index).unwrap_or(i64::MAX)
    }

    fn value_type(&mut self, kind: &str, unit: &str) -> ValueType {
        ValueType { kind: self.string(kind), unit: self.string(unit) }
    }

    fn label(&mut self, key: &str, value: Option<&AnyValue>) -> Option<Label> {
        let (text, number) = match (text(value), number(value)) {
            (Some(text), _) => (self.string(text), 0),
            (None, number) => (0, number?),
        };
        Some(Label { key: self.string(&key.replace('.', "_")), text, number })
    }

    fn location(&mut self, index: usize) -> u64 {
        if let Some(id) = self.locations.get(&index) {
            return *id;
        }
        let named = self.named;
        let lines = named.lines(index);
        let (mapping_id, address) = match named.dictionary.location_table.get(index) {
            Some(location) => {
                let is_named = !lines.is_empty() && !named.is_nameless(index);
                (self.mapping(location, &lines, is_named), location.address)
            }
            None => (0, 0),
        };
        let line = lines.iter().map(|line| Line { function_id: self.function(line), line: line.line, column: 0 });
        let line = line.collect();
        let id = self.profile.location.len() as u64 + 1;
        self.profile.location.push(Location { id, mapping_id, address, line });
        self.locations.insert(index, id);
        id
    }

    fn function(&mut self, line: &names::Line<'_>) -> u64 {
        let [name, system_name, filename] = [line.function, line.system_name, line.file].map(|it| self.string(it));
        let id = self.profile.function.len() as u64 + 1;
        *self.functions.entry([name, system_name, filename, line.start_line]).or_insert_with(|| {
            let start_line = line.start_line;
            self.profile.function.push(Function { id, name, system_name, filename, start_line });
            id
        })
    }

    /// Returns the id of the mapping of a location; 0 if the location has none. The flags of a mapping are set only if
    /// they hold for all its locations.
    fn mapping(&mut self, location: &otlp::Location, lines: &[names::Line<'_>], is_named: bool) -> u64 {
        let Some(file) = self.named.file(location) else { return 0 };
        let id = match self.mappings.get(&file) {
            Some(id) => *id,
            None => {
                let id = self.profile.mapping.len() as u64 + 1;
                let filename = self.string(file.path);
                let build_id = self.string(&file.plain_build_id());
                let mut mapping = Mapping { id, memory_limit: 0, filename, build_id, ..Mapping::default() };
                (mapping.has_functions, mapping.has_filenames) = (true, true);
                (mapping.has_line_numbers, mapping.has_inline_frames) = (true, true);
                self.profile.mapping.push(mapping);
                self.mappings.insert(file, id);
                id
            }
        };
        // Ids count from 1 in the order of the mappings.
        if let Some(mapping) = usize::try_from(id).ok().and_then(|id| self.profile.mapping.get_mut(id - 1)) {
            mapping.has_functions &= is_named;
            mapping.has_filenames &= is_named && lines.iter().all(|line| !line.file.is_empty());
            mapping.has_line_numbers &= is_named && lines.iter().all(|line| line.line != 0);
            mapping.has_inline_frames &= is_named;
        }
        id
    }
}

fn add(sums: &mut [i64; VALUES], profile: &otlp::Profile, sample: &otlp::Sample) {
    let [samples, cpu, waited] = sums;
    if Recording::is_of_waits(profile) {
        *waited = sample.values.iter().fold(*waited, |sum, value| sum.saturating_add(*value));
    } else {
        let count = i64::try_from(sample.timestamps_unix_nano.len()).unwrap_or(i64::MAX);
        *samples = samples.saturating_add(count);
        *cpu = cpu.saturating_add(count.saturating_mul(profile.period));
    }
}
