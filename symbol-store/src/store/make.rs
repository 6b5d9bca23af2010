//! Creation of a symbol table from a program or debug file.

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;

use host_files::elf::{self, ElfImage, Segment};
use proto::BuildId;

use super::Shared;
use super::directory::Unfinished;
use super::jobs::Slot;
use crate::convert::{self, ConvertError};
use crate::reason::Unusable;
use crate::source::Source;
use crate::table::{Header, Table, TableError, VERSION};

/// A file to convert, with its headers and its debug file. The table gets the build IDs `ids` and the segments
/// `segments`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Input<'a> {
    pub(super) file: &'a File,
    pub(super) debug_file: Option<&'a File>,
    pub(super) image: &'a ElfImage,
    pub(super) ids: &'a [BuildId],
    pub(super) segments: &'a [Segment],
}

/// A complete table that is not yet stored under its build IDs.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) table: Unfinished,
    pub(super) functions: u64,
    pub(super) source: Source,
}

/// Returns the build IDs of a file, the best first: GNU, Go, htlhash.
///
/// The htlhash of a debug file is omitted, because a debug file does not have the bytes of the program.
pub(super) fn ids(image: &ElfImage, file: &File) -> io::Result<Vec<BuildId>> {
    let mut ids = Vec::new();
    ids.extend(image.gnu_build_id.clone().map(BuildId::Gnu));
    ids.extend(image.go_build_id.clone().map(BuildId::Go));
    if image.segments.iter().any(|segment| segment.executable && segment.file_size > 0) {
        ids.push(BuildId::Htlhash(elf::htlhash(file)?));
    }
    Ok(ids)
}

impl Shared {
    /// Makes the table of `input`. Releases `slot` when the converter has ended.
    pub(super) fn make(&self, input: &Input<'_>, slot: Slot<'_>) -> Result<Made, ConvertError> {
        if input.image.segments.is_empty() {
            return Err(Unusable::NotLinked.into());
        }
        let mut header = Header {
            version: VERSION,
            symcache_bytes: 0,
            symcache_hash: 0,
            source: Source::Dynsym,
            functions: 0,
            base: input.image.base(),
            ids: input.ids.to_vec(),
            segments: input.segments.to_vec(),
        };
        let before = stamp(input)?;
        let mut table = self.directory.unfinished()?;
        table.file.seek(SeekFrom::Start(header.symcache_at() as u64))?;
        let summary = convert::convert(&self.converter, &self.limits, input.file, input.debug_file, &table.file)?;
        drop(slot);
        // The headers were read before the child read the file. The file must not have changed in between.
        let is_same = ElfImage::read(input.file).is_ok_and(|image| image == *input.image);
        if !is_same || stamp(input)? != before {
            return Err(Unusable::Changed.into());
        }
        header.functions = summary.functions;
        header.source = summary.source;
        Table::seal(&table.file, header).map_err(|error| match error {
            TableError::Io(error) => ConvertError::Io(error),
            TableError::Damaged { .. } => Unusable::GaveUp { exit_code: 0 }.into(),
        })?;
        Ok(Made { table, functions: summary.functions, source: summary.source })
    }
}

/// Returns the size and the time of modification of each input file. If they are unchanged, the file was not written
/// to.
fn stamp(input: &Input<'_>) -> io::Result<Vec<(u64, i64, i64)>> {
    let files = [Some(input.file), input.debug_file].into_iter().flatten();
    files.map(|file| file.metadata().map(|now| (now.size(), now.mtime(), now.mtime_nsec()))).collect()
}
