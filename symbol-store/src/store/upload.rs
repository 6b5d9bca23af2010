//! Uploads of programs and debug files.

use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Instant;

use host_files::elf::{ElfError, ElfImage, Segment};
use proto::{BuildId, TenantId};
use thiserror::Error;

use super::cache::TableKey;
use super::directory::{Of, Origin, Unfinished};
use super::jobs::{Begun, Job, Slot};
use super::make::{self, Input, Made};
use super::staging::Reservation;
use super::{Shared, SymbolStore};
use crate::convert::ConvertError;
use crate::limits;
use crate::reason::Unusable;
use crate::source::Source;
use crate::table::counted_bytes;

/// The result of an upload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Added {
    /// Build ID under which the names of the file are found. The file may have other build IDs, too.
    pub build_id: BuildId,
    /// Number of functions in the file, not counting inlined calls.
    pub functions: u64,
    /// Best source of names in the file.
    pub source: Source,
    /// True if the names of the file are used from now on; false if an uploaded file with the same build ID has more
    /// symbols.
    pub is_used: bool,
}

/// The reason why an uploaded file was not added.
///
/// After [`AddError::Full`], [`AddError::Busy`] and [`AddError::Io`], a retry may succeed. After any other reason, a
/// retry of the same file would fail, too.
#[derive(Debug, Error)]
pub enum AddError {
    /// The headers of the file cannot be read.
    #[error("the file cannot be read as ELF")]
    Elf(#[from] ElfError),
    /// The file has neither a build ID nor code, so no profile can refer to it.
    #[error("the file has no build ID: link the program with --build-id and make its debug file again")]
    NoBuildId,
    /// The file has no functions with names.
    #[error("the file has no symbols: upload the program before it was stripped, or its debug file")]
    Stripped,
    /// The file cannot be converted.
    #[error("the file cannot be used: {0}")]
    Unusable(#[source] Unusable),
    /// The uploaded tables and the files that are being received would exceed the disk limit of the store.
    #[error("uploaded symbol tables and files in transfer would take {bytes} bytes, the limit is {bytes_max}")]
    Full {
        /// Disk space that would be needed, in bytes. A table counts with at least [`limits::TABLE_COUNTED_BYTES_MIN`].
        bytes: u64,
        /// Limit of the disk space, in bytes.
        bytes_max: u64,
    },
    /// Too many other files are being received or converted. The upload can be retried.
    #[error("too many files are being received or converted: try again later")]
    Busy,
    /// The disk or the bucket failed, or no process could be started. The upload can be retried.
    #[error("the symbol store cannot write its directory or bucket, or start its converter")]
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

/// A file that is being received. The caller writes the content to it, and then calls [`finish`](Self::finish). If this
/// value is dropped before, nothing is kept.
#[derive(Debug)]
pub struct Upload {
    store: SymbolStore,
    tenant: TenantId,
    received: Unfinished,
    bytes: u64,
    /// Disk space that is reserved for this file, in bytes. It is at least `bytes`.
    reserved: u64,
    /// Reservation of disk space. This field is dropped last, so that the file is deleted before its space is released.
    reservation: Reservation,
}

impl Upload {
    /// Makes the symbol table of the received file. Blocks for at most twice
    /// [`Limits::conversion_time_max`](crate::limits::Limits): once to wait for other conversions, and once for its
    /// own.
    ///
    /// # Errors
    ///
    /// Any [`AddError`].
    pub fn finish(self) -> Result<Added, AddError> {
        self.store.add_file(&self.tenant, &self.received.file)
    }
}

impl Write for Upload {
    /// Writes to the file. Fails with [`io::ErrorKind::FileTooLarge`] if the file would exceed
    /// [`Limits::input_bytes_max`](crate::limits::Limits), and with [`io::ErrorKind::StorageFull`] if it would exceed
    /// the disk limit.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let after = self.bytes.saturating_add(bytes.len() as u64);
        if after > self.store.shared.limits.input_bytes_max {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        if let Some(more) = after.checked_sub(self.reserved).filter(|more| *more > 0) {
            let more = more.max(limits::UPLOAD_STEP_BYTES);
            self.store.shared.reserve(&mut self.reservation, more)?;
            self.reserved += more;
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
    /// Begins to receive a file. Its names are only for `tenant`.
    ///
    /// # Errors
    ///
    /// [`AddError::Busy`] if [`limits::UPLOADS_MAX`] uploads are in progress. [`AddError::Io`] if the directory of
    /// the store cannot be written.
    pub fn upload(&self, tenant: &TenantId) -> Result<Upload, AddError> {
        let reservation = self.shared.staging.admit().ok_or(AddError::Busy)?;
        let received = self.shared.directory.unfinished()?;
        Ok(Upload { store: self.clone(), tenant: tenant.clone(), received, bytes: 0, reserved: 0, reservation })
    }

    /// Makes and keeps the symbol table of `file`, which is a program, library or debug file. The file itself is not
    /// kept. Blocks until the table is made and stored. Reads the whole file, whatever its position.
    ///
    /// # Errors
    ///
    /// Any [`AddError`].
    pub fn add_file(&self, tenant: &TenantId, file: &File) -> Result<Added, AddError> {
        let image = ElfImage::read(file)?;
        let ids = make::ids(&image, file)?;
        let build_id = ids.first().cloned().ok_or(AddError::NoBuildId)?;
        let shared = &self.shared;
        let deadline = Instant::now() + shared.limits.conversion_time_max;
        let _job = shared.only_job(&TableKey::of(tenant, &build_id), deadline)?;
        let slot = shared.jobs.slot_until(deadline).ok_or(AddError::Busy)?;
        let (made, is_used) = match &shared.bucket {
            Some(bucket) => shared.add_to_bucket(bucket, tenant, file, &image, &ids, slot)?,
            None => shared.add_to_directory(Of { tenant, id: &build_id }, file, &image, ids, slot)?,
        };
        let Made { functions, source, .. } = made;
        tracing::info!(%tenant, %build_id, functions, source = source.code(), is_used, "a debug file was uploaded");
        Ok(Added { build_id, functions, source, is_used })
    }
}

pub(super) fn has_file_offsets(segments: &[Segment]) -> bool {
    segments.iter().any(|segment| segment.executable && segment.file_size > 0)
}

impl Shared {
    /// Makes the table of an uploaded file, and keeps it in the directory of this store. Returns it, and whether its
    /// names are used.
    fn add_to_directory(
        &self,
        of: Of<'_>,
        file: &File,
        image: &ElfImage,
        mut ids: Vec<BuildId>,
        slot: Slot<'_>,
    ) -> Result<(Made, bool), AddError> {
        let known = self.directory.header(of, Origin::Uploaded);
        let mut segments = image.segments.clone();
        if let Some(known) = &known {
            // A program and its debug file have the same build ID and the same addresses. Only the program has segments
            // with file offsets, so the new table takes those of the known one if necessary. It also takes the known
            // build IDs, because both files may be requested by any of them.
            if !has_file_offsets(&segments) && known.has_file_offsets() {
                segments.clone_from(&known.segments);
            }
            ids.extend(known.ids.clone());
            ids.sort();
            ids.dedup();
            ids.truncate(limits::IDS_MAX);
        }
        let made = self.make_named(&Input { file, debug_file: None, image, ids: &ids, segments: &segments }, slot)?;
        let is_used = known.is_none_or(|known| known.source <= made.source);
        if is_used {
            self.publish_uploaded(of, &made.table, &ids)?;
        } else if has_file_offsets(&segments) {
            self.add_segments(of, segments)?;
        }
        Ok((made, is_used))
    }

    /// Makes the table of an uploaded file.
    pub(super) fn make_named(&self, input: &Input<'_>, slot: Slot<'_>) -> Result<Made, AddError> {
        let made = self.make(input, slot)?;
        // A table without names is useful for files of this host, but an upload must have names.
        if made.source == Source::CallFrames { Err(AddError::Stripped) } else { Ok(made) }
    }

    /// Reserves `more` bytes of disk space for an upload. Evicts tables of files of this host if necessary.
    fn reserve(&self, reservation: &mut Reservation, more: u64) -> io::Result<()> {
        let staged = reservation.grow(more);
        let bytes_max = self.limits.disk_bytes_max;
        let bytes = self.directory.shrink(bytes_max.saturating_sub(staged))?.saturating_add(staged);
        if bytes > bytes_max {
            return Err(io::Error::new(io::ErrorKind::StorageFull, AddError::Full { bytes, bytes_max }));
        }
        Ok(())
    }

    /// Returns the job for `key`. Waits while another caller has it.
    fn only_job(self: &Arc<Self>, key: &TableKey, deadline: Instant) -> Result<Job, AddError> {
        loop {
            match self.jobs.begin(key) {
                Begun::Mine(job) => return Ok(job),
                Begun::Pending if self.jobs.wait(key, deadline) => {}
                Begun::Pending | Begun::Full => return Err(AddError::Busy),
            }
        }
    }

    fn publish_uploaded(&self, of: Of<'_>, table: &Unfinished, ids: &[BuildId]) -> Result<(), AddError> {
        let bytes_max = self.limits.disk_bytes_max;
        let _publishing = self.publishing.lock();
        let others = self.directory.uploaded_bytes_without(of)?;
        let bytes = others.saturating_add(counted_bytes(table.file.metadata()?.len()));
        if bytes > bytes_max {
            return Err(AddError::Full { bytes, bytes_max });
        }
        self.directory.publish(of.tenant, table, ids, Origin::Uploaded)?;
        self.directory.shrink(self.table_bytes_max())?;
        self.forget(ids);
        Ok(())
    }

    /// Adds the segments of a program to the table of its debug file. That table has better names, but no file offsets
    /// in its segments.
    fn add_segments(&self, of: Of<'_>, segments: Vec<Segment>) -> Result<(), AddError> {
        let Ok(table) = self.directory.open_table(of, Origin::Uploaded) else { return Ok(()) };
        if table.header().has_file_offsets() {
            return Ok(());
        }
        let mut copy = self.directory.unfinished()?;
        table.copy_with_segments(&mut copy.file, segments)?;
        self.publish_uploaded(of, &copy, &table.header().ids)
    }
}
