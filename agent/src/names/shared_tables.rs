//! Tables of files and locations that all processes share.

use std::collections::HashMap;
use std::sync::Arc;

use ebpf::NewFile;
use foldhash::fast::RandomState;

use super::go::programs::GoPrograms;
use super::location::{Call, FrameType, Location, LocationId, LocationTable, Marker};
use crate::process::file::table::{FileTable, Reported, Unopened};
use crate::process::file::{FileId, MappedFile, VDSO};
use crate::process::key::ProcessKey;
use crate::process::rate_limit::RateLimit;
use crate::runtimes::Runtimes;
use crate::runtimes::functions::family::Families;
use crate::runtimes::read_limit::ReadLimit;
use crate::runtimes::reader::Reader;

/// Largest number of frames whose location is cached, at 30 bytes each. Only frames in files are cached.
const FRAMES_MAX: usize = 200_000;

/// Tables that all processes share.
#[derive(Debug)]
pub(crate) struct SharedTables {
    pub(crate) files: FileTable,
    pub(crate) locations: LocationTable,
    go_programs: GoPrograms,
    pub(crate) runtimes: Runtimes,
    /// Reads functions of runtimes.
    pub(crate) reader: Reader,
    pub(crate) families: Families,
    /// Programs that freed functions before their names were read, and a number that is new each time.
    pub(crate) eager: Vec<(ProcessKey, u64)>,
    /// Limit of all reads of functions.
    pub(crate) function_reads: ReadLimit,
    /// Limit of the other work to name samples: 2 % of the time.
    pub(crate) reads: RateLimit,
    /// Limit of the work to check that names are still right: 0.1 % of the time.
    pub(crate) checks: RateLimit,
    /// Names of the environment variables that become labels.
    pub(crate) environment: Arc<[String]>,
    /// Locations of frames in files, by the file's number and the offset.
    frames: HashMap<(u32, u64), LocationId, RandomState>,
    /// Value of [`Runtimes::changes`] when the oldest location of `frames` was found.
    runtime_changes: u64,
}

impl SharedTables {
    /// Creates empty tables. `environment` lists the environment variables that become labels.
    pub(crate) fn new(environment: Arc<[String]>, runtimes: Runtimes) -> Self {
        Self {
            files: FileTable::default(),
            locations: LocationTable::default(),
            go_programs: GoPrograms::default(),
            runtimes,
            reader: Reader::default(),
            families: Families::default(),
            eager: Vec::new(),
            function_reads: ReadLimit::of_all(),
            reads: RateLimit::new(50),
            checks: RateLimit::new(1000),
            environment,
            frames: HashMap::default(),
            runtime_changes: 0,
        }
    }

    /// Opens a file that BPF reports, so that its frames can be located.
    pub(crate) fn open_file(&mut self, new: &NewFile<'_>) -> Reported {
        let reported = self.files.report(new);
        if let Reported::Opened(opened) = &reported
            && opened.is_new
        {
            self.go_programs.insert(opened.id, &opened.file);
        }
        reported
    }

    /// Returns the location of a frame in a file, and true if the same frame will have the same location next time.
    pub(crate) fn locate(&mut self, number: u32, offset: u64) -> (LocationId, bool) {
        let changes = self.runtimes.changes();
        if self.runtime_changes != changes {
            self.runtime_changes = changes;
            self.frames.clear();
        }
        if let Some(&id) = self.frames.get(&(number, offset)) {
            return (id, true);
        }
        match self.files.of_number(number) {
            Some(Ok(file)) => {
                let id = self.locate_in_file(number, file, offset);
                let is_lasting = !self.files.is_unopened(file);
                if is_lasting && self.frames.len() < FRAMES_MAX {
                    self.frames.insert((number, offset), id);
                }
                (id, is_lasting)
            }
            Some(Err(Unopened::Exited)) => (self.locations.insert(Location::Marker(Marker::ProcessExited)), false),
            Some(Err(Unopened::Unreadable)) | None => {
                (self.locations.insert(Location::Marker(Marker::FileUnreadable)), false)
            }
        }
    }

    fn locate_in_file(&mut self, number: u32, file: FileId, offset: u64) -> LocationId {
        let mapped = self.files.get(file);
        if mapped.is_some_and(|mapped| *mapped.name == *VDSO) {
            return self.locations.insert_named(VDSO, Some(file), FrameType::Native);
        }
        // The walk took it for a file until the collector had seen it.
        if mapped.is_some_and(MappedFile::is_memory) {
            return self.locations.insert(Location::Marker(Marker::AnonymousCode));
        }
        let Some(address) = mapped.and_then(|mapped| mapped.address(offset)) else {
            return self.locations.insert(Location::Marker(Marker::NoSegment));
        };
        if let Some(function) = self.runtimes.native_name(number, address) {
            let call = Call { function: function.to_owned(), ..Call::default() };
            return self.locations.insert_calls(Some((file, address)), &[call], FrameType::Native);
        }
        let calls = self.go_programs.lookup(file, address);
        self.locations.insert_calls(Some((file, address)), &calls, FrameType::Go)
    }

    /// True if a table is full. The caller must then clear it.
    pub(crate) fn is_full(&self) -> bool {
        self.locations.is_full() || self.files.is_full()
    }

    /// Forgets every location, which makes their ids void. Also forgets every file if there are too many, or if the
    /// locations of a Go program that was closed could not be found again. Returns true if the ids and numbers of files
    /// are void, too.
    pub(crate) fn clear(&mut self) -> bool {
        self.locations.clear();
        self.frames.clear();
        let forgets_files = self.files.is_full() || self.go_programs.has_closed;
        if forgets_files {
            self.files.clear();
            self.go_programs.clear();
        }
        forgets_files
    }
}
