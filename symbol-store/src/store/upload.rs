//! Debug files that somebody sends.

use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Instant;

use host_files::elf::{ElfError, ElfImage, Segment};
use proto::BuildId;
use thiserror::Error;

use super::directory::{Origin, Unfinished};
use super::jobs::{Begun, Job};
use super::make::{self, Input};
use super::staging::Place;
use super::{Shared, SymbolStore};
use crate::convert::ConvertError;
use crate::limits;
use crate::reason::Unusable;
use crate::table::{Source, counted_bytes};

/// What became of an uploaded file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Added {
    /// The identity under which its names are found; it may have others too.
    pub build_id: BuildId,
    /// The functions in it that are not inlined.
    pub functions: u64,
    /// The best that it has.
    pub source: Source,
    /// Whether its names are used from now on: false if an uploaded file of the same build ID says more.
    pub is_used: bool,
}

/// Why an uploaded file was not added. All but [`AddError::Full`], [`AddError::Busy`] and [`AddError::Io`] are final
/// for this file, whoever sends it.
#[derive(Debug, Error)]
pub enum AddError {
    /// Its headers cannot be read.
    #[error("the file cannot be read as ELF")]
    Elf(#[from] ElfError),
    /// It has neither a build ID nor code, so that nothing would ever refer to it.
    #[error("the file has no build ID: link the program with --build-id and make its debug file again")]
    NoBuildId,
    /// It has no functions.
    #[error("the file has no symbols: upload the program before it was stripped, or its debug file")]
    Stripped,
    /// It cannot be converted.
    #[error("the file cannot be used: {0}")]
    Unusable(#[source] Unusable),
    /// The store's budget on disk is spent on uploaded tables.
    #[error(
        "uploaded symbol tables and files that are being received would have {bytes} bytes, the limit is {bytes_max}"
    )]
    Full {
        /// What they would have; the smallest table counts as [`limits::TABLE_COUNTED_BYTES_MIN`].
        bytes: u64,
        /// The limit.
        bytes_max: u64,
    },
    /// Other files are being received or converted; the same file may be sent again later.
    #[error("too many files are being received or converted: try again later")]
    Busy,
    /// The disk failed, or no process could be started; the same file may be sent again later.
    #[error("the symbol store cannot write its directory or start its converter")]
    Io(#[from] io::Error),
}

impl From<ConvertError> for AddError {
    fn from(error: ConvertError) -> Self {
        match error {
            ConvertError::Stripped => Self::Stripped,
            ConvertError::Unusable(why) => Self::Unusable(why),
            ConvertError::Io(error) => Self::Io(error),
        }
    }
}

/// A file that is being received. Write to it, then [`finish`](Self::finish); if it is dropped before, nothing is kept.
#[derive(Debug)]
pub struct Upload {
    store: SymbolStore,
    received: Unfinished,
    bytes: u64,
    /// Up to which size it may grow until it has more room.
    room: u64,
    /// Dropped last: the file is gone before its place is free.
    place: Place,
}

impl Upload {
    /// Makes the symbol table of what was received. Blocks until it is done, for at most twice
    /// [`Limits::conversion_time_max`](crate::limits::Limits), half of it to wait for its turn.
    ///
    /// # Errors
    ///
    /// Any [`AddError`].
    pub fn finish(self) -> Result<Added, AddError> {
        self.store.add_file(&self.received.file)
    }
}

impl Write for Upload {
    /// Fails with [`io::ErrorKind::FileTooLarge`] past [`Limits::input_bytes_max`](crate::limits::Limits), and with
    /// [`io::ErrorKind::StorageFull`] where the budget on disk has no room for it.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let after = self.bytes.saturating_add(bytes.len() as u64);
        if after > self.store.shared.limits.input_bytes_max {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        if let Some(more) = after.checked_sub(self.room).filter(|more| *more > 0) {
            let more = more.max(limits::UPLOAD_ROOM_STEP_BYTES);
            self.store.shared.make_room(&mut self.place, more)?;
            self.room += more;
        }
        let written = self.received.file.write(bytes)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.received.file.flush()
    }
}

impl SymbolStore {
    /// Begins to receive a file.
    ///
    /// # Errors
    ///
    /// [`AddError::Busy`] where [`limits::UPLOADS_MAX`] others are in flight, or that the store's directory cannot be
    /// written.
    pub fn upload(&self) -> Result<Upload, AddError> {
        let place = self.shared.staging.enter().ok_or(AddError::Busy)?;
        Ok(Upload { store: self.clone(), received: self.shared.directory.unfinished()?, bytes: 0, room: 0, place })
    }

    /// Makes the symbol table of `file`, a program, library or debug file, and keeps it; the file itself is not kept.
    /// Blocks until it is done, and reads it whole whatever its position.
    ///
    /// # Errors
    ///
    /// Any [`AddError`].
    pub fn add_file(&self, file: &File) -> Result<Added, AddError> {
        let image = ElfImage::read(file)?;
        let mut ids = make::ids(&image, file)?;
        let build_id = ids.first().cloned().ok_or(AddError::NoBuildId)?;
        let shared = &self.shared;
        let deadline = Instant::now() + shared.limits.conversion_time_max;
        let _job = shared.only_job(&build_id, deadline)?;
        let turn = shared.jobs.slot_until(deadline).ok_or(AddError::Busy)?;
        let known = shared.directory.header(&build_id, Origin::Uploaded);
        let mut segments = image.segments.clone();
        if let Some(known) = &known {
            // Files of one build ID have the same addresses: the program knows where it is loaded from, the debug file
            // does not, and each has names by which the other is found too.
            if !has_file_offsets(&segments) && known.has_file_offsets() {
                segments.clone_from(&known.segments);
            }
            ids.extend(known.ids.clone());
            ids.sort();
            ids.dedup();
            ids.truncate(limits::IDS_MAX);
        }
        let input = Input { file, debug_file: None, image: &image, ids: &ids, segments: &segments };
        let made = shared.make(&input, turn)?;
        let (functions, source) = (made.functions, made.source);
        // Where functions begin helps those who have the file; whoever uploads one expects names.
        if source == Source::CallFrames {
            return Err(AddError::Stripped);
        }
        let is_used = known.is_none_or(|known| known.source <= source);
        if is_used {
            shared.publish_uploaded(&build_id, &made.table, &ids)?;
        } else if has_file_offsets(&segments) {
            shared.add_segments(&build_id, segments)?;
        }
        tracing::info!(%build_id, functions, source = source.code(), is_used, "a debug file was uploaded");
        Ok(Added { build_id, functions, source, is_used })
    }
}

fn has_file_offsets(segments: &[Segment]) -> bool {
    segments.iter().any(|segment| segment.executable && segment.file_size > 0)
}

impl Shared {
    /// Takes more room for a file that is being received, from host-made tables where nothing else is left.
    fn make_room(&self, place: &mut Place, more: u64) -> io::Result<()> {
        let (staged, bytes_max) = (place.take(more), self.limits.disk_bytes_max);
        let bytes = self.directory.shrink(bytes_max.saturating_sub(staged))?.saturating_add(staged);
        if bytes > bytes_max {
            return Err(io::Error::new(io::ErrorKind::StorageFull, AddError::Full { bytes, bytes_max }));
        }
        Ok(())
    }

    /// The job for `id`, waiting for the one that there is.
    fn only_job(self: &Arc<Self>, id: &BuildId, deadline: Instant) -> Result<Job, AddError> {
        loop {
            match self.jobs.begin(id) {
                Begun::Mine(job) => return Ok(job),
                Begun::Pending if self.jobs.wait(id, deadline) => {}
                Begun::Pending | Begun::Full => return Err(AddError::Busy),
            }
        }
    }

    fn publish_uploaded(&self, build_id: &BuildId, table: &Unfinished, ids: &[BuildId]) -> Result<(), AddError> {
        let bytes_max = self.limits.disk_bytes_max;
        let _fits_until_it_is_there = self.publishing.lock();
        let others = self.directory.uploaded_bytes_without(build_id)?;
        let bytes = others.saturating_add(counted_bytes(table.file.metadata()?.len()));
        if bytes > bytes_max {
            return Err(AddError::Full { bytes, bytes_max });
        }
        self.directory.publish(table, ids, Origin::Uploaded)?;
        self.directory.shrink(self.table_bytes_max())?;
        self.forget(ids);
        Ok(())
    }

    /// Adds what a program says to the table of its debug file, which says more but for this.
    fn add_segments(&self, build_id: &BuildId, segments: Vec<Segment>) -> Result<(), AddError> {
        let Ok(table) = self.directory.open_table(build_id, Origin::Uploaded) else { return Ok(()) };
        if table.header().has_file_offsets() {
            return Ok(());
        }
        let mut copy = self.directory.unfinished()?;
        table.copy_with_segments(&mut copy.file, segments)?;
        self.publish_uploaded(build_id, &copy, &table.header().ids)
    }
}
