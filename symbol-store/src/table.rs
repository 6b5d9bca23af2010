//! A symbol table: the names of one program or debug file, immutable and memory-mapped.
//!
//! | magic 8 | version u32 | header_len u32 | header_hash u64 | header | zeros to 64 | symcache of symbolic |
//!
//! All integers are little-endian. `header_hash` is the xxh3-64 of the header, which has `header_len` bytes. The header
//! begins with the length and the xxh3-64 of the symcache (see [`header`]). Before a reader uses any other field, it
//! checks these fields in this order: magic, version, `header_len` against [`crate::limits::TABLE_HEADER_BYTES_MAX`],
//! `header_hash`, the length of the symcache, and its hash.
//!
//! A symcache maps addresses to functions, files, lines and inlined calls. Addresses in it are relative to `base`.
//! Function names in it are entries (see [`entry`]), which hold demangled names, so no name is demangled outside of the
//! child.
//!
//! Invariant: a table is used only for the build IDs in its header, which were read from the converted file.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use host_files::elf::{self, Segment};
use proto::Address;
use symbolic_common::ByteView;
use symbolic_symcache::SymCache;
use thiserror::Error;
use xxhash_rust::xxh3::xxh3_64;

use crate::frame::{Frame, Nameless};
use crate::limits;
use crate::reason::Reason;
use crate::source::Source;

pub(crate) mod entry;
mod header;

pub(crate) use header::Header;

const MAGIC: [u8; 8] = *b"varvesym";
/// Version of new tables. Version 2 added functions of which only the start is known, and the source
/// [`Source::CallFrames`].
pub(crate) const VERSION: u32 = 2;
/// Oldest supported version. Tables that are older than [`VERSION`] are supported, because uploaded files are not kept,
/// so their tables cannot be made again.
const VERSION_MIN: u32 = 1;
const PREAMBLE_BYTES: usize = 24;

/// The reason why a file in the store is not a symbol table.
#[derive(Debug, Error)]
pub(crate) enum TableError {
    /// The file cannot be read.
    #[error("cannot read the symbol table")]
    Io(#[from] io::Error),
    /// The file has an unsupported version, is damaged or truncated. The table must be made again.
    #[error("the symbol table is damaged or of another version: {check} does not match")]
    Damaged {
        /// The check that failed.
        check: &'static str,
    },
}

/// Number of tables that this process has opened.
static TABLES_OPENED: AtomicU64 = AtomicU64::new(0);

/// A mapped symbol table.
#[derive(Debug)]
pub(crate) struct Table {
    /// Number of this table. No other table that this process opens gets the same number.
    number: u64,
    header: Header,
    bytes: ByteView<'static>,
    symcache_at: usize,
}

impl Table {
    /// Maps and checks the table at `path`. Reads the whole file.
    pub(crate) fn open(path: &Path) -> Result<Self, TableError> {
        let file = File::open(path)?;
        let (header, symcache_at) = Header::read(&file)?;
        let number = TABLES_OPENED.fetch_add(1, Ordering::Relaxed);
        let table = Self { number, header, bytes: ByteView::map_file(file)?, symcache_at };
        let symcache = table.bytes.get(symcache_at..).unwrap_or_default();
        if symcache.len() as u64 != table.header.symcache_bytes || xxh3_64(symcache) != table.header.symcache_hash {
            return Err(TableError::Damaged { check: "symcache hash" });
        }
        table.symcache()?;
        Ok(table)
    }

    /// Completes the table in `file`, in which the child has written the symcache at [`Header::symcache_at`]. Checks
    /// and hashes the symcache, writes the header, and syncs the file.
    pub(crate) fn seal(file: &File, mut header: Header) -> Result<(), TableError> {
        let symcache_at = header.symcache_at();
        {
            let bytes = ByteView::map_file_ref(file)?;
            let symcache = bytes.get(symcache_at..).unwrap_or_default();
            SymCache::parse(symcache).map_err(|_unreadable| TableError::Damaged { check: "symcache" })?;
            header.symcache_bytes = symcache.len() as u64;
            header.symcache_hash = xxh3_64(symcache);
        }
        file.write_all_at(&header.encode(), 0)?;
        file.sync_all()?;
        Ok(())
    }

    /// Writes this table with other segments into the empty file `to`, and syncs it.
    pub(crate) fn copy_with_segments(&self, to: &mut File, segments: Vec<Segment>) -> io::Result<()> {
        let header = Header { segments, ..self.header.clone() };
        to.write_all(&header.encode())?;
        to.write_all(self.bytes.get(self.symcache_at..).unwrap_or_default())?;
        to.sync_all()
    }

    /// Number of this table. No other table has the same number, not even one with the same build ID.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn header(&self) -> &Header {
        &self.header
    }

    /// Copies the segments from `other`, the header of another table for the same build ID, if this table has none.
    pub(crate) fn take_segments(&mut self, other: &Header) {
        if !self.header.has_file_offsets() && other.has_file_offsets() {
            self.header.segments.clone_from(&other.segments);
        }
    }

    /// Size with which this table counts toward the budget of mapped bytes, in bytes.
    pub(crate) fn mapped_bytes(&self) -> u64 {
        counted_bytes(self.bytes.len() as u64)
    }

    fn symcache(&self) -> Result<SymCache<'_>, TableError> {
        let bytes = self.bytes.get(self.symcache_at..).unwrap_or_default();
        SymCache::parse(bytes).map_err(|_unreadable| TableError::Damaged { check: "symcache" })
    }

    /// Returns the frames of each address, innermost first, or the reason why there are none. `known` holds the cached
    /// frames of each address. New frames are added to `found`.
    pub(crate) fn symbolize(
        &self,
        addresses: &[Address],
        known: Vec<Option<Arc<[Frame]>>>,
        found: &mut Vec<(Address, Arc<[Frame]>)>,
    ) -> Vec<Result<Arc<[Frame]>, Nameless>> {
        let Ok(symcache) = self.symcache() else {
            return vec![Err(Reason::StoreUnavailable.into()); addresses.len()];
        };
        let frames_left = addresses.len().saturating_mul(limits::FRAMES_PER_ADDRESS_MAX).max(limits::FRAMES_MIN);
        let mut lookup =
            Lookup { table: self, symcache, functions: HashMap::new(), files: HashMap::new(), frames_left };
        addresses
            .iter()
            .zip(known)
            .map(|(address, known)| lookup.frames_within_budget(*address, known, found))
            .collect()
    }

    /// Returns the reason why an address in the code has no name.
    fn reason(&self) -> Reason {
        match self.header.source {
            Source::CallFrames => Reason::Stripped,
            source_kind => Reason::NoSymbolAtAddress { source_kind },
        }
    }

    /// Converts an address to one that is relative to `base`. Fails if the address is not in the code of the file.
    fn relative(&self, address: Address) -> Result<u64, Reason> {
        let segments = &self.header.segments;
        let address = match address {
            Address::Virtual(address) => address,
            Address::FileOffset(_) if !self.header.has_file_offsets() => return Err(Reason::SegmentsUnknown),
            Address::FileOffset(offset) => elf::virtual_address(segments, offset).ok_or(Reason::AddressOutsideFile)?,
        };
        let within = |segment: &Segment| {
            segment.executable
                && address.checked_sub(segment.address).is_some_and(|offset| offset < segment.memory_size)
        };
        if !segments.iter().any(within) {
            return Err(Reason::AddressOutsideFile);
        }
        address.checked_sub(self.header.base).ok_or(Reason::AddressOutsideFile)
    }
}

/// Size with which a table of `bytes` bytes counts toward a budget, in bytes.
pub(crate) fn counted_bytes(bytes: u64) -> u64 {
    bytes.max(limits::TABLE_COUNTED_BYTES_MIN)
}

/// The lookups of one request. Texts that occur in many frames are allocated once.
struct Lookup<'a> {
    table: &'a Table,
    symcache: SymCache<'a>,
    /// Parts of each function name. The key is the position of the name in the mapped table, which holds each name
    /// once.
    functions: HashMap<*const u8, FunctionNames>,
    files: HashMap<String, Arc<str>>,
    /// Number of frames that the response may still have. At 0, each further address gets only the function that exists
    /// in the binary, without inlined calls.
    frames_left: usize,
}

/// The parts of a function's entry in the table.
#[derive(Clone)]
struct FunctionNames {
    function: Arc<str>,
    system_name: Arc<str>,
    start_line: u32,
}

impl Lookup<'_> {
    /// Returns the frames of an address, or only the outermost frame if the budget of frames is exhausted.
    fn frames_within_budget(
        &mut self,
        address: Address,
        known: Option<Arc<[Frame]>>,
        found: &mut Vec<(Address, Arc<[Frame]>)>,
    ) -> Result<Arc<[Frame]>, Nameless> {
        let is_new = known.is_none();
        let frames = match known {
            Some(frames) => frames,
            None => self.frames(address)?,
        };
        let returned = match frames.last() {
            // The frames that the response lacks are not cached either, so the cache grows at most by the size of the
            // response.
            Some(outermost) if frames.len() > self.frames_left => {
                Arc::from([Frame { is_cut: frames.len() > 1, ..outermost.clone() }])
            }
            _ => {
                found.extend(is_new.then(|| (address, Arc::clone(&frames))));
                frames
            }
        };
        self.frames_left = self.frames_left.saturating_sub(returned.len());
        Ok(returned)
    }

    /// Returns all frames that the table has for an address.
    fn frames(&mut self, address: Address) -> Result<Arc<[Frame]>, Nameless> {
        let relative = self.table.relative(address)?;
        let symcache = self.symcache.clone();
        let mut function_start = None;
        let mut frame = |location: symbolic_symcache::SourceLocation<'_, '_>| {
            function_start = entry::only_start(location.function().name());
            if function_start.is_some() { None } else { self.frame(&location) }
        };
        let locations = symcache.lookup(relative).take(limits::INLINE_DEPTH_MAX);
        let frames: Arc<[Frame]> = locations.filter_map(&mut frame).collect();
        if frames.is_empty() {
            let virtual_address = relative.checked_add(self.table.header.base);
            return Err(Nameless { reason: self.table.reason(), virtual_address, function_start });
        }
        Ok(frames)
    }

    fn frame(&mut self, location: &symbolic_symcache::SourceLocation<'_, '_>) -> Option<Frame> {
        let function = location.function();
        // An inlined function may have no name, for example after dwz. Its caller still has one.
        let name = Some(function.name()).filter(|name| !name.is_empty())?;
        let names = self.functions.entry(name.as_ptr()).or_insert_with(|| FunctionNames::new(name)).clone();
        let FunctionNames { function, system_name, start_line } = names;
        Some(Frame {
            function,
            system_name,
            start_line,
            file: self.file(location),
            line: location.line(),
            is_cut: false,
        })
    }

    fn file(&mut self, location: &symbolic_symcache::SourceLocation<'_, '_>) -> Arc<str> {
        let path = location.file().map(|file| file.full_path()).unwrap_or_default();
        if let Some(known) = self.files.get(&path) {
            return Arc::clone(known);
        }
        let new: Arc<str> = Arc::from(path.as_str());
        self.files.insert(path, Arc::clone(&new));
        new
    }
}

impl FunctionNames {
    fn new(name: &str) -> Self {
        let (function, system_name, start_line) = entry::parts(name);
        let shared: Arc<str> = Arc::from(function);
        let system_name = if system_name == function { Arc::clone(&shared) } else { Arc::from(system_name) };
        Self { function: shared, system_name, start_line }
    }
}
