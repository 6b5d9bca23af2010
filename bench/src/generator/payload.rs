//! Reads stacks from pprof and OTLP payloads in the folder `shared/data`, which may exist beside a checkout.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use flate2::read::GzDecoder;
use prost::Message as _;
use proto::otlp::collector::profiles::v1development::ExportProfilesServiceRequest;

use super::donor::{Donor, by_frequency};
use crate::corpus::{FrameTables, Function, Location, Mapping, View};

/// Largest size of a decompressed payload, in bytes. The file `large_cpp.cpu` has 2.5 MB.
const BYTES_MAX: u64 = 64 << 20;

/// Returns the folder of payloads; `None` if it does not exist.
pub(crate) fn folder() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data");
    folder.is_dir().then_some(folder)
}

/// The fields of a pprof that are used, with their numbers in profile.proto.
#[derive(Clone, PartialEq, prost::Message)]
struct Pprof {
    #[prost(message, repeated, tag = "2")]
    sample: Vec<PprofSample>,
    #[prost(message, repeated, tag = "3")]
    mapping: Vec<PprofMapping>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<PprofLocation>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<PprofFunction>,
    #[prost(string, repeated, tag = "6")]
    strings: Vec<String>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PprofSample {
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PprofMapping {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "5")]
    file: i64,
    #[prost(int64, tag = "6")]
    build_id: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PprofLocation {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(uint64, tag = "2")]
    mapping_id: u64,
    #[prost(uint64, tag = "3")]
    address: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<PprofLine>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PprofLine {
    #[prost(uint64, tag = "1")]
    function_id: u64,
    #[prost(int64, tag = "2")]
    line: i64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct PprofFunction {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "4")]
    file: i64,
    #[prost(int64, tag = "5")]
    start_line: i64,
}

/// Reads all stacks of a pprof.
pub(crate) fn pprof(path: &Path) -> anyhow::Result<Donor> {
    let mut bytes = Vec::new();
    GzDecoder::new(File::open(path)?).take(BYTES_MAX).read_to_end(&mut bytes)?;
    let from = Pprof::decode(bytes.as_slice())?;
    let mut tables = FrameTables::new();
    let text = |index: i64| {
        let text = usize::try_from(index).ok().and_then(|index| from.strings.get(index));
        text.cloned().with_context(|| format!("string {index} is not there"))
    };
    let mut mappings = HashMap::from([(0, tables.mapping(Mapping::default())?)]);
    for mapping in &from.mapping {
        let entry = Mapping { file: text(mapping.file)?, build_id: text(mapping.build_id)? };
        mappings.insert(mapping.id, tables.mapping(entry)?);
    }
    let mut functions = HashMap::new();
    for function in &from.function {
        let name = text(function.name)?;
        let file = text(function.file)?;
        let start_line = function.start_line;
        functions.insert(function.id, tables.function(Function { name, file, start_line })?);
    }
    let mut locations = HashMap::new();
    for location in &from.location {
        let line = |line: &PprofLine| {
            let function = functions.get(&line.function_id).context("a line's function is not there")?;
            Ok((*function, line.line))
        };
        let lines = location.line.iter().map(line).collect::<anyhow::Result<Vec<_>>>()?;
        let mapping = *mappings.get(&location.mapping_id).context("a location's mapping is not there")?;
        let address = if lines.is_empty() { location.address } else { 0 };
        let entry = Location { mapping, address, frame_type: "native".to_owned(), lines };
        locations.insert(location.id, tables.location(entry)?);
    }
    let mut samples = Vec::new();
    for sample in &from.sample {
        let ids: Option<Vec<u32>> = sample.location_id.iter().rev().map(|id| locations.get(id).copied()).collect();
        let stack = tables.stack(ids.context("a sample's location is not there")?.into_iter())?;
        samples.push((stack, sample.value.first().copied().unwrap_or_default()));
    }
    donor(path, tables, samples)
}

/// Reads an OTLP request of the current layout. Returns the stacks that have a frame of this type.
pub(crate) fn otlp(path: &Path, frame_type: &str) -> anyhow::Result<Donor> {
    let mut bytes = Vec::new();
    File::open(path)?.take(BYTES_MAX).read_to_end(&mut bytes)?;
    let request = ExportProfilesServiceRequest::decode(bytes.as_slice())?;
    let mut view = View::new(request.dictionary.as_ref().context("no dictionary")?);
    let mut tables = FrameTables::new();
    let mut samples = Vec::new();
    let scopes = request.resource_profiles.iter().flat_map(|resource| &resource.scope_profiles);
    for sample in scopes.flat_map(|scope| &scope.profiles).flat_map(|profile| &profile.samples) {
        let stack = view.stack(&mut tables, sample.stack_index)?;
        samples.push((stack, i64::try_from(sample.timestamps_unix_nano.len())?));
    }
    let mut donor = donor(path, tables, samples)?;
    let frames = &donor.frames;
    let has_type = |stack: u32| {
        frames.leaf_first(stack).any(|location| frames.locations[location as usize].frame_type == frame_type)
    };
    donor.stacks = donor.stacks.iter().copied().filter(|&stack| has_type(stack)).collect();
    if donor.stacks.is_empty() {
        bail!("no stack of type {frame_type}");
    }
    Ok(donor)
}

fn donor(path: &Path, tables: FrameTables, samples: Vec<(u32, i64)>) -> anyhow::Result<Donor> {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(Donor { name, frames: tables.finish(), stacks: by_frequency(samples.into_iter()) })
}
