//! Names of a recording's native addresses, from files of this host. Files with the most samples come first, because
//! there may not be time for all of them on a busy host.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use indexmap::IndexMap;
use proto::build_id::from_hex;
use proto::otlp::profiles::v1development::{self as otlp, ProfilesDictionary};
use proto::{BuildId, TenantId, build_id};
use symbol_store::{Address, Frame, Nameless, ObjectKey, Reason, SymbolStore};
use tokio_util::sync::CancellationToken;

use super::{Recording, text};
use crate::process::file::BuildIdKind;

/// Number of files whose symbol tables are requested in advance, because several can be made at a time.
const AHEAD: usize = 4;
/// Longest time to wait for a symbol table before the next check for cancellation.
const WAIT: Duration = Duration::from_millis(200);
/// Largest number of addresses that are looked up at once. It is small enough that the store returns all of their
/// inlined calls.
const ADDRESSES_MAX: usize = symbol_store::limits::FRAMES_MIN / symbol_store::limits::INLINE_DEPTH_MAX;

/// A mapped file without names, or, if there was no time, with names for some addresses only.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unnamed {
    /// Path of the file.
    pub file: String,
    /// Reason why names are missing.
    pub reason: Reason,
}

/// A [`Recording`] with names.
#[derive(Debug)]
pub struct NamedRecording<'a> {
    pub(super) recording: &'a Recording,
    pub(super) dictionary: &'a ProfilesDictionary,
    /// Frames by the location's index; `None` if the location has lines of its own, or no name.
    found: Vec<Option<Arc<[Frame]>>>,
    /// Indices of the locations in functions without a name. Such a function is named by its start address.
    nameless: HashSet<usize, RandomState>,
    unnamed: Vec<Unnamed>,
}

/// A function at a location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Line<'a> {
    pub(super) function: &'a str,
    pub(super) system_name: &'a str,
    pub(super) file: &'a str,
    /// Line in the source file; 0 if unknown.
    pub(super) line: i64,
    /// First line of the function; 0 if unknown.
    pub(super) start_line: i64,
}

impl<'a> Line<'a> {
    fn of(frame: &'a Frame) -> Self {
        let Frame { function, system_name, file, line, start_line, .. } = frame;
        Self { function, system_name, file, line: (*line).into(), start_line: (*start_line).into() }
    }
}

/// Identity of a mapped file: its build ID and its path.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct MappedFile<'a> {
    pub(super) build_id: Option<BuildId>,
    pub(super) path: &'a str,
}

impl MappedFile<'_> {
    /// Returns the build ID as in pprof, without its kind.
    pub(super) fn plain_build_id(&self) -> String {
        match &self.build_id {
            None => String::new(),
            Some(BuildId::Gnu(bytes)) => build_id::to_hex(bytes),
            Some(BuildId::Go(text)) => text.clone(),
            Some(BuildId::Htlhash(bytes)) => build_id::to_hex(bytes),
        }
    }
}

impl<'a> NamedRecording<'a> {
    pub(super) fn new(
        recording: &'a Recording,
        symbols: &SymbolStore,
        stop: &CancellationToken,
        mut progress: impl FnMut(usize, usize),
    ) -> Self {
        static NOTHING: ProfilesDictionary = ProfilesDictionary {
            mapping_table: Vec::new(),
            location_table: Vec::new(),
            function_table: Vec::new(),
            link_table: Vec::new(),
            string_table: Vec::new(),
            attribute_table: Vec::new(),
            stack_table: Vec::new(),
        };
        let dictionary = recording.request.dictionary.as_ref().unwrap_or(&NOTHING);
        let found = vec![None; dictionary.location_table.len()];
        let mut named = Self { recording, dictionary, found, nameless: HashSet::default(), unnamed: Vec::new() };
        let files = named.nameless();
        for (done, (file, locations)) in files.iter().enumerate() {
            if stop.is_cancelled() {
                named.unnamed.push(Unnamed { file: file.path.to_owned(), reason: Reason::Converting });
                continue;
            }
            progress(done, files.len());
            for (file, _) in files.iter().skip(done).take(AHEAD) {
                // A call without addresses and without time to wait only requests the symbol table.
                let _begun = symbols.symbolize(&key(&TenantId::default_tenant(), file), &[], Duration::ZERO);
            }
            named.name(file, locations, symbols, stop);
        }
        progress(files.len(), files.len());
        named
    }

    /// Returns the locations without lines, by file. Files with the most samples come first.
    fn nameless(&self) -> Vec<(MappedFile<'a>, Vec<usize>)> {
        let mut of_location = vec![0_usize; self.dictionary.location_table.len()];
        for sample in self.recording.profiles().flat_map(|(_, profile)| &profile.samples) {
            for location in self.stack(sample.stack_index) {
                if let Some(samples) = of_location.get_mut(location) {
                    *samples += sample.timestamps_unix_nano.len();
                }
            }
        }
        let mut files: IndexMap<_, (usize, Vec<usize>), RandomState> = IndexMap::default();
        for (index, (location, samples)) in self.dictionary.location_table.iter().zip(of_location).enumerate() {
            if location.lines.is_empty()
                && let Some(file) = self.file(location)
            {
                let (of_file, locations) = files.entry(file).or_default();
                *of_file += samples;
                locations.push(index);
            }
        }
        files.sort_by(|_, (a, _), _, (b, _)| b.cmp(a));
        files.into_iter().map(|(file, (_, locations))| (file, locations)).collect()
    }

    /// Returns the file of a location.
    pub(super) fn file(&self, location: &otlp::Location) -> Option<MappedFile<'a>> {
        let mapping = usize::try_from(location.mapping_index).ok().filter(|index| *index != 0)?;
        let mapping = self.dictionary.mapping_table.get(mapping)?;
        let value = |kind: BuildIdKind| {
            let mut attributes = mapping.attribute_indices.iter().filter_map(|index| self.attribute(*index));
            attributes.find(|(key, _)| *key == kind.attribute()).and_then(|(_, value)| text(value))
        };
        let gnu = || value(BuildIdKind::Gnu).and_then(from_hex).map(BuildId::Gnu);
        let go = || value(BuildIdKind::Go).map(|id| BuildId::Go(id.to_owned()));
        let htlhash = || from_hex(value(BuildIdKind::Htlhash)?)?.try_into().ok().map(BuildId::Htlhash);
        let build_id = gnu().or_else(go).or_else(htlhash);
        Some(MappedFile { build_id, path: self.string(mapping.filename_strindex) })
    }

    fn name(&mut self, file: &MappedFile<'_>, locations: &[usize], symbols: &SymbolStore, stop: &CancellationToken) {
        let mut reason = None;
        let mut has_names = false;
        for locations in locations.chunks(ADDRESSES_MAX) {
            if stop.is_cancelled() {
                (has_names, reason) = (false, Some(Reason::Converting));
                break;
            }
            let address = |index: &usize| self.dictionary.location_table.get(*index).map_or(0, |it| it.address);
            let addresses: Vec<_> = locations.iter().map(address).map(Address::Virtual).collect();
            let results = loop {
                let results = symbols.symbolize(&key(&TenantId::default_tenant(), file), &addresses, WAIT);
                if !matches!(results.first(), Some(Err(Nameless { reason: Reason::Converting, .. })))
                    || stop.is_cancelled()
                {
                    break results;
                }
            };
            for (index, result) in locations.iter().zip(results) {
                match result {
                    Ok(frames) => {
                        has_names = true;
                        self.found[*index] = Some(frames);
                    }
                    Err(Nameless { reason: why, function_start, .. }) => {
                        reason = reason.or(Some(why));
                        if let Some(start) = function_start {
                            self.nameless.insert(*index);
                            self.found[*index] = Some(Arc::from([nameless_function(file.path, start)]));
                        }
                    }
                }
            }
        }
        if let (false, Some(reason)) = (has_names, reason) {
            self.unnamed.push(Unnamed { file: file.path.to_owned(), reason });
        }
    }

    /// Returns the files without names.
    #[must_use]
    pub fn unnamed(&self) -> &[Unnamed] {
        &self.unnamed
    }

    /// True if the function at a location has no name of its own.
    pub(super) fn is_nameless(&self, index: usize) -> bool {
        self.nameless.contains(&index)
    }

    /// Returns the functions at a location, innermost first; empty if the location has no name.
    pub(super) fn lines(&self, index: usize) -> Vec<Line<'_>> {
        if let Some(Some(frames)) = self.found.get(index) {
            return frames.iter().map(Line::of).collect();
        }
        let line = |line: &otlp::Line| {
            let function = usize::try_from(line.function_index).ok()?;
            let function = self.dictionary.function_table.get(function)?;
            let name = self.string(function.name_strindex);
            // A function that was named while it was sampled has only one name.
            let file = self.string(function.filename_strindex);
            Some(Line { function: name, system_name: name, file, line: line.line, start_line: function.start_line })
        };
        let location = self.dictionary.location_table.get(index);
        location.map_or(&[][..], |location| &location.lines).iter().filter_map(line).collect()
    }

    /// Returns the locations of a stack, leaf first.
    pub(super) fn stack(&self, index: i32) -> impl Iterator<Item = usize> + 'a {
        let stack = usize::try_from(index).ok().and_then(|index| self.dictionary.stack_table.get(index));
        let locations = stack.map_or(&[][..], |stack| &stack.location_indices);
        locations.iter().filter_map(|index| usize::try_from(*index).ok())
    }

    /// Returns the key and the value of an attribute.
    pub(super) fn attribute(&self, index: i32) -> Option<(&'a str, Option<&'a proto::otlp::common::v1::AnyValue>)> {
        let attribute = self.dictionary.attribute_table.get(usize::try_from(index).ok()?)?;
        Some((self.string(attribute.key_strindex), attribute.value.as_ref()))
    }

    fn string(&self, index: i32) -> &'a str {
        usize::try_from(index).ok().and_then(|index| self.dictionary.string_table.get(index)).map_or("", String::as_str)
    }
}

/// Returns the displayed name of an address without a function name, as in the router: `binary+0xaddress`.
pub(super) fn unnamed_name(path: &str, address: u64) -> String {
    let base = path.rsplit('/').next().filter(|base| !base.is_empty()).unwrap_or("[unknown]");
    format!("{base}+{address:#x}")
}

/// Returns the frame of a function of which only the start is known.
fn nameless_function(path: &str, start: u64) -> Frame {
    let function: Arc<str> = Arc::from(unnamed_name(path, start));
    let system_name = Arc::clone(&function);
    Frame { function, system_name, file: Arc::from(""), line: 0, start_line: 0, is_cut: false }
}

fn key<'a>(tenant: &'a TenantId, file: &'a MappedFile<'_>) -> ObjectKey<'a> {
    ObjectKey { tenant, build_id: file.build_id.as_ref(), file: file.path }
}
