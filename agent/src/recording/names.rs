//! A recording's native addresses with the names that files of this host have for them, file by file: those with the most samples first,
//! since on a busy host there may not be the time for all.

use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use indexmap::IndexMap;
use proto::build_id::from_hex;
use proto::otlp::profiles::v1development::{self as otlp, ProfilesDictionary};
use proto::{BuildId, build_id};
use symbol_store::{Address, Frame, ObjectKey, Reason, SymbolStore};
use tokio_util::sync::CancellationToken;

use super::{Recording, text};
use crate::file::BuildIdKind;

/// Files whose symbol tables are begun before they are needed: more are made at one time than one.
const AHEAD: usize = 4;
/// How long is waited for a symbol table before it is looked whether anybody still wants it.
const WAIT: Duration = Duration::from_millis(200);
/// Addresses asked for at one time: so few have all the calls that are inlined into them.
const ADDRESSES_MAX: usize = symbol_store::limits::FRAMES_MIN / symbol_store::limits::INLINE_DEPTH_MAX;

/// A mapped file none of whose addresses has a name, or, where there was no time for more, not all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unnamed {
    /// Its path.
    pub file: String,
    /// Why.
    pub reason: Reason,
}

/// A [`Recording`] with names.
#[derive(Debug)]
pub struct NamedRecording<'a> {
    pub(super) recording: &'a Recording,
    pub(super) dictionary: &'a ProfilesDictionary,
    /// By the location's index; none where it came with lines, or has no name.
    found: Vec<Option<Arc<[Frame]>>>,
    unnamed: Vec<Unnamed>,
}

/// A function that was running at a location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Line<'a> {
    pub(super) function: &'a str,
    pub(super) system_name: &'a str,
    pub(super) file: &'a str,
    /// 0 if unknown.
    pub(super) line: i64,
    /// 0 if unknown.
    pub(super) start_line: i64,
}

impl<'a> Line<'a> {
    fn of(frame: &'a Frame) -> Self {
        let Frame { function, system_name, file, line, start_line, .. } = frame;
        Self { function, system_name, file, line: (*line).into(), start_line: (*start_line).into() }
    }
}

/// What tells a mapped file from others: its identity and its path.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct MappedFile<'a> {
    pub(super) build_id: Option<BuildId>,
    pub(super) path: &'a str,
}

impl MappedFile<'_> {
    /// As pprof has it: without saying what kind it is.
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
        let mut named = Self { recording, dictionary, found, unnamed: Vec::new() };
        let files = named.nameless();
        for (done, (file, locations)) in files.iter().enumerate() {
            if stop.is_cancelled() {
                named.unnamed.push(Unnamed { file: file.path.to_owned(), reason: Reason::Converting });
                continue;
            }
            progress(done, files.len());
            for (file, _) in files.iter().skip(done).take(AHEAD) {
                // No address and no time: it is only begun.
                let _begun = symbols.symbolize(&key(file), &[], Duration::ZERO);
            }
            named.name(file, locations, symbols, stop);
        }
        progress(files.len(), files.len());
        named
    }

    /// Locations without lines, by their files, those first whose locations are in the most samples.
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

    /// The file in which a location is.
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
            let told = loop {
                let told = symbols.symbolize(&key(file), &addresses, WAIT);
                if !matches!(told.first(), Some(Err(Reason::Converting))) || stop.is_cancelled() {
                    break told;
                }
            };
            for (index, told) in locations.iter().zip(told) {
                match told {
                    Ok(frames) => {
                        has_names = true;
                        self.found[*index] = Some(frames);
                    }
                    Err(why) => reason = reason.or(Some(why)),
                }
            }
        }
        if let (false, Some(reason)) = (has_names, reason) {
            self.unnamed.push(Unnamed { file: file.path.to_owned(), reason });
        }
    }

    /// Files whose addresses have no names.
    #[must_use]
    pub fn unnamed(&self) -> &[Unnamed] {
        &self.unnamed
    }

    /// The functions at a location, innermost first; none if it has no name.
    pub(super) fn lines(&self, index: usize) -> Vec<Line<'_>> {
        if let Some(Some(frames)) = self.found.get(index) {
            return frames.iter().map(Line::of).collect();
        }
        let line = |line: &otlp::Line| {
            let function = usize::try_from(line.function_index).ok()?;
            let function = self.dictionary.function_table.get(function)?;
            let name = self.string(function.name_strindex);
            // What was named on this host has no other name.
            let file = self.string(function.filename_strindex);
            Some(Line { function: name, system_name: name, file, line: line.line, start_line: function.start_line })
        };
        let location = self.dictionary.location_table.get(index);
        location.map_or(&[][..], |location| &location.lines).iter().filter_map(line).collect()
    }

    /// The locations of a stack, leaf first.
    pub(super) fn stack(&self, index: i32) -> impl Iterator<Item = usize> + 'a {
        let stack = usize::try_from(index).ok().and_then(|index| self.dictionary.stack_table.get(index));
        let locations = stack.map_or(&[][..], |stack| &stack.location_indices);
        locations.iter().filter_map(|index| usize::try_from(*index).ok())
    }

    /// An attribute's key and value.
    pub(super) fn attribute(&self, index: i32) -> Option<(&'a str, Option<&'a proto::otlp::common::v1::AnyValue>)> {
        let attribute = self.dictionary.attribute_table.get(usize::try_from(index).ok()?)?;
        Some((self.string(attribute.key_strindex), attribute.value.as_ref()))
    }

    fn string(&self, index: i32) -> &'a str {
        usize::try_from(index).ok().and_then(|index| self.dictionary.string_table.get(index)).map_or("", String::as_str)
    }
}

fn key<'a>(file: &'a MappedFile<'_>) -> ObjectKey<'a> {
    ObjectKey { build_id: file.build_id.as_ref(), file: file.path }
}
