//! The spool: requests that could not be sent at once. They stay on disk until this run of the agent or a later one
//! sends them.
//!
//! ```text
//! lock                                      held with flock(2) by the agent that uses the folder, until it ends
//! new                                       a file that is being written; renamed when it is complete
//! <number, 16 hex digits>-<samples>.export  one request; smaller numbers are older
//!
//! | magic 8 | checksum u64 | run u128 | number u64 | profiles u32 |
//! | samples of each profile u32 ... | OTLP request ... |
//! ```
//!
//! All integers are little-endian. `checksum` is XXH3-64 of all bytes after it. `run` and `number` are the idempotency
//! key, so that the receiver counts a request once even if its response was lost.
//!
//! Invariants:
//! - A request is read as it was written. If that fails, its samples, whose number is in the file name, are counted as
//!   dropped.
//! - No content of the folder makes the agent fail. Files with other names are not touched.
//! - All files together take no more bytes than the limit.
//!
//! Nothing is fsynced: `kill -9` does not affect the page cache. After a power cut, the newest files may be torn or
//! missing, which the checksum detects. The task that sends also writes and reads the files, which have a few megabytes
//! at most.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use prost::bytes::{Buf as _, BufMut as _, Bytes, TryGetError};
use xxhash_rust::xxh3::xxh3_64;

use crate::config::SpoolConfig;
use crate::export::client::{Export, IdempotencyKey};
use crate::export::request::{EncodedRequest, REQUEST_BYTES_MAX};
use crate::status::{DropReason, Status};

const MAGIC: &[u8; 8] = b"varvesp1";
const LOCK: &str = "lock";
const NEW: &str = "new";
/// Largest length of a file, in bytes: that of a request and of the numbers of samples, which take far fewer bytes than
/// the request. This limit bounds the memory that a foreign file can make the agent allocate.
const FILE_BYTES_MAX: u64 = 2 * REQUEST_BYTES_MAX as u64;
/// Length of a block, in bytes. Sizes of files are rounded up to blocks, as on file systems, so the limit of bytes also
/// bounds the number of files.
const BLOCK_BYTES: u64 = 4096;
/// Exclusive upper bound of a file's number. The agent counts requests from one, so no file of the agent reaches it.
const NUMBER_MAX: u64 = 1 << 62;

/// Reason why a folder cannot be used as a spool.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SpoolError {
    #[error("{dir:?} is in use by another agent: each agent needs its own folder")]
    InUse { dir: PathBuf },
    #[error("{dir:?} cannot be used")]
    Folder {
        dir: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Reason why a file cannot be read.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error("it is too short or too long")]
    Length,
    #[error("its first bytes are not those of a spool file")]
    Magic,
    #[error("its checksum is wrong")]
    Checksum,
    #[error("it is not a regular file")]
    Kind,
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl From<TryGetError> for ReadError {
    fn from(_: TryGetError) -> Self {
        Self::Length
    }
}

/// The end of the spool, oldest or newest, from which a request is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Oldest,
    Newest,
}

impl End {
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Oldest => Self::Newest,
            Self::Newest => Self::Oldest,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct SpoolFile {
    /// Size of the file, in bytes, rounded up to whole blocks.
    bytes: u64,
    samples: u32,
}

/// An open spool.
#[derive(Debug)]
pub(crate) struct Spool {
    dir: PathBuf,
    bytes_max: u64,
    /// Files of requests, by the number of the request.
    files: BTreeMap<u64, SpoolFile>,
    /// Bytes of all files, including those that could not be removed or read.
    bytes: u64,
    next_number: u64,
    /// Number of the request that is being sent, if there is one. This request is not dropped when the spool is full.
    sending: Option<u64>,
    status: Status,
    _lock: File,
}

impl Spool {
    /// Opens the folder with the requests of earlier runs of the agent. Creates the folder if it is missing.
    pub(crate) fn open(config: &SpoolConfig, status: Status) -> Result<Self, SpoolError> {
        let SpoolConfig { dir, bytes_max } = config.clone();
        let unusable = |source| SpoolError::Folder { dir: dir.clone(), source };
        // Only the owner may read the profiles.
        DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(unusable)?;
        let lock = open_options().write(true).create(true).truncate(false).open(dir.join(LOCK)).map_err(unusable)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(SpoolError::InUse { dir }),
            Err(TryLockError::Error(source)) => return Err(unusable(source)),
        }
        let files = BTreeMap::new();
        let mut spool =
            Self { dir: dir.clone(), bytes_max, files, bytes: 0, next_number: 1, sending: None, status, _lock: lock };
        spool.read_dir().map_err(unusable)?;
        spool.status.set_spool_bytes_max(bytes_max);
        tracing::info!(dir = ?spool.dir, requests = spool.files.len(), bytes = spool.bytes, "opened the spool");
        Ok(spool)
    }

    fn read_dir(&mut self) -> io::Result<()> {
        remove_if_there(&self.dir.join(NEW))?;
        let mut foreign = 0_u64;
        for entry in fs::read_dir(&self.dir)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some((number, samples)) = name.to_str().and_then(parse_name) else {
                foreign += u64::from(name != LOCK);
                continue;
            };
            // Metadata of the link itself, not of its target.
            let Ok(metadata) = entry.metadata() else { continue };
            if !metadata.is_file() {
                foreign += 1;
                continue;
            }
            let file = SpoolFile { bytes: blocks(metadata.len().min(FILE_BYTES_MAX)), samples };
            self.next_number = self.next_number.max(number + 1);
            self.add(number, file);
            if FILE_BYTES_MAX < metadata.len() {
                self.discard(number, file, &ReadError::Length);
            }
            // Files beyond the limit are dropped at once, so that the list of files in memory stays bounded.
            while self.bytes_max < self.bytes && self.drop_oldest() {}
        }
        if foreign != 0 {
            tracing::warn!(dir = ?self.dir, files = foreign, "the spool has other files, which are ignored");
        }
        Ok(())
    }

    /// Returns the number of requests in the spool.
    pub(crate) fn len(&self) -> usize {
        self.files.len()
    }

    /// Writes a request. Drops the oldest requests if the spool is full. Returns the number of the new request.
    pub(crate) fn push(&mut self, export: &Export) -> io::Result<u64> {
        let head = encode_head(export);
        let body = &export.request.bytes;
        let len = (head.len() + body.len()) as u64;
        let bytes = blocks(len);
        if self.bytes_max < bytes || FILE_BYTES_MAX < len {
            return Err(io::Error::new(
                io::ErrorKind::FileTooLarge,
                "the request is larger than the limit of the spool",
            ));
        }
        while self.bytes_max < self.bytes + bytes {
            if !self.drop_oldest() {
                return Err(io::Error::new(
                    io::ErrorKind::QuotaExceeded,
                    "the spool is full of files that cannot be removed",
                ));
            }
        }
        let number = self.next_number;
        let new = self.dir.join(NEW);
        let file = SpoolFile { bytes, samples: u32::try_from(export.request.samples()).unwrap_or(u32::MAX) };
        let written = write_new(&new, &head, body).and_then(|()| fs::rename(&new, self.path(number, file)));
        if written.is_err() {
            // Only the first error is reported. On a full disk, a partial file would only take space.
            remove_if_there(&new).unwrap_or_default();
        }
        written?;
        self.next_number += 1;
        self.add(number, file);
        Ok(number)
    }

    /// Returns the request at one end, and marks it as being sent. A damaged file is removed. A file that cannot be
    /// read is skipped until the agent is restarted.
    pub(crate) fn start(&mut self, end: End) -> Option<Export> {
        loop {
            let (&number, &file) = match end {
                End::Oldest => self.files.first_key_value()?,
                End::Newest => self.files.last_key_value()?,
            };
            match read(&self.path(number, file)) {
                Ok(export) => {
                    self.sending = Some(number);
                    return Some(export);
                }
                Err(ReadError::Io(error)) if error.kind() != io::ErrorKind::NotFound => {
                    self.status.count_spool_error();
                    // The next start of the agent tries the file again.
                    tracing::error!(file = ?self.path(number, file), "cannot read a spooled request: {error}");
                    self.files.remove(&number);
                }
                Err(error) => self.discard(number, file, &error),
            }
        }
    }

    /// Marks a request that was just pushed as being sent.
    pub(crate) fn mark_sending(&mut self, number: u64) {
        self.sending = Some(number);
    }

    /// Removes the request that is being sent. Returns false if there is none.
    pub(crate) fn finish(&mut self) -> bool {
        let Some(number) = self.sending.take() else { return false };
        self.remove(number);
        true
    }

    /// Keeps the request that was being sent, for another try. Returns false if there is none.
    pub(crate) fn put_back(&mut self) -> bool {
        self.sending.take().is_some()
    }

    /// Drops the oldest request that is not being sent. Returns false if there is none.
    fn drop_oldest(&mut self) -> bool {
        let oldest = self.files.iter().find(|(number, _)| Some(**number) != self.sending);
        let Some((&number, &SpoolFile { samples, .. })) = oldest else { return false };
        self.status.count_dropped(DropReason::SpoolFull, samples.into());
        self.remove(number);
        true
    }

    fn discard(&mut self, number: u64, file: SpoolFile, error: &ReadError) {
        let samples = file.samples;
        tracing::error!(file = ?self.path(number, file), samples, "a spooled request is damaged and dropped: {error}");
        self.status.count_dropped(DropReason::SpoolDamaged, samples.into());
        self.remove(number);
    }

    fn add(&mut self, number: u64, file: SpoolFile) {
        self.files.insert(number, file);
        self.bytes += file.bytes;
        self.status.set_spool_bytes(self.bytes);
    }

    fn remove(&mut self, number: u64) {
        let Some(file) = self.files.remove(&number) else { return };
        let path = self.path(number, file);
        match remove_if_there(&path) {
            Ok(()) => self.bytes -= file.bytes,
            // The file still takes its bytes. The next start of the agent sends the request again, with the same key.
            Err(error) => {
                self.status.count_spool_error();
                tracing::error!(file = ?path, "cannot remove a file of the spool: {error}");
            }
        }
        self.status.set_spool_bytes(self.bytes);
    }

    fn path(&self, number: u64, file: SpoolFile) -> PathBuf {
        self.dir.join(file_name(number, file.samples))
    }
}

fn file_name(number: u64, samples: u32) -> String {
    format!("{number:016x}-{samples}.export")
}

/// Parses a file name. Returns the number of the request and the number of its samples; `None` if the name does not
/// have exactly the format of [`file_name`].
fn parse_name(name: &str) -> Option<(u64, u32)> {
    let (number, samples) = name.strip_suffix(".export")?.split_once('-')?;
    let number = u64::from_str_radix(number, 16).ok()?;
    let samples = samples.parse().ok()?;
    (number < NUMBER_MAX && file_name(number, samples) == name).then_some((number, samples))
}

fn blocks(bytes: u64) -> u64 {
    bytes.next_multiple_of(BLOCK_BYTES)
}

/// Returns options to open a file without following links or blocking on a pipe.
fn open_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).mode(0o600).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    options
}

fn write_new(path: &Path, head: &[u8], body: &[u8]) -> io::Result<()> {
    remove_if_there(path)?;
    let mut file = open_options().write(true).create_new(true).open(path)?;
    file.write_all(head)?;
    file.write_all(body)
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Encodes the part of a file before the request itself.
fn encode_head(export: &Export) -> Vec<u8> {
    let EncodedRequest { bytes, profile_samples } = &export.request;
    let mut head = Vec::with_capacity(64 + 4 * profile_samples.len());
    head.put_slice(MAGIC);
    head.put_u64_le(0);
    head.put_u128_le(export.key.run);
    head.put_u64_le(export.key.number);
    head.put_u32_le(u32::try_from(profile_samples.len()).unwrap_or(u32::MAX));
    for samples in profile_samples {
        head.put_u32_le(u32::try_from(*samples).unwrap_or(u32::MAX));
    }
    let mut hasher = xxhash_rust::xxh3::Xxh3Default::new();
    hasher.update(&head[16..]);
    hasher.update(bytes);
    head[8..16].copy_from_slice(&hasher.digest().to_le_bytes());
    head
}

fn read(path: &Path) -> Result<Export, ReadError> {
    let file = open_options().open(path)?;
    if !file.metadata()?.is_file() {
        return Err(ReadError::Kind);
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if FILE_BYTES_MAX < bytes.len() as u64 {
        return Err(ReadError::Length);
    }
    decode(bytes.into())
}

/// Decodes a whole file. The checksum is verified before any byte after it is used.
fn decode(mut bytes: Bytes) -> Result<Export, ReadError> {
    if bytes.len() < MAGIC.len() {
        return Err(ReadError::Length);
    }
    if bytes.split_to(MAGIC.len()) != MAGIC[..] {
        return Err(ReadError::Magic);
    }
    if bytes.try_get_u64_le()? != xxh3_64(&bytes) {
        return Err(ReadError::Checksum);
    }
    let key = IdempotencyKey { run: bytes.try_get_u128_le()?, number: bytes.try_get_u64_le()? };
    let profiles = bytes.try_get_u32_le()?;
    let mut profile_samples = Vec::new();
    // The loop ends when the bytes end, however large the number of profiles is.
    for _ in 0..profiles {
        profile_samples.push(bytes.try_get_u32_le()?.into());
    }
    Ok(Export { key, request: EncodedRequest { bytes, profile_samples: profile_samples.into() } })
}

#[cfg(test)]
mod tests;
