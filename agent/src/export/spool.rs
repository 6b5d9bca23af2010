//! Requests on disk: what could not be sent at once, until it is sent, also by a later run of the agent.
//!
//! ```text
//! lock                                      held with flock(2) by the one agent that uses the folder, however that ends
//! new                                       a file that is being written: it is renamed when it is whole
//! <number, 16 hex digits>-<samples>.export  one request; the smaller the number, the older
//!
//! | magic 8 | checksum u64 | run u128 | number u64 | profiles u32 | samples of each profile u32 ... | OTLP request ... |
//! ```
//!
//! All integers are little-endian. `checksum` is XXH3-64 of all that follows it; `run` and `number` are the request's
//! idempotency key, so that a request which arrived although its answer was lost counts once.
//!
//! Invariants: a request is read as it was written, or not at all, and then its samples, which the name tells, are counted as
//! dropped; no bytes in the folder make the agent fail; files of other names are left alone; all files together take no more
//! than the limit.
//!
//! Nothing is fsynced: `kill -9` leaves the page cache as it is. After a power cut the newest files may be torn or missing,
//! which the checksum finds. Files are written and read in place, by the task that sends: they are of a few megabytes at most.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use prost::bytes::{Buf as _, BufMut as _, Bytes, TryGetError};
use xxhash_rust::xxh3::xxh3_64;

use crate::config::SpoolConfig;
use crate::export::Export;
use crate::export::client::IdempotencyKey;
use crate::export::request::{EncodedRequest, REQUEST_BYTES_MAX};
use crate::status::{DropReason, Status};

const MAGIC: &[u8; 8] = b"varvesp1";
const LOCK: &str = "lock";
const NEW: &str = "new";
/// Longest file: a request, and numbers about its profiles, each of which takes far more bytes in the request. Bounds the
/// memory that a foreign file can make us allocate.
const FILE_BYTES_MAX: u64 = 2 * REQUEST_BYTES_MAX as u64;
/// What a file takes is counted in blocks, as file systems do. So the limit also bounds how many files there are.
const BLOCK_BYTES: u64 = 4096;
/// Numbers from here on are not ours: counting up from one never gets here.
const NUMBER_MAX: u64 = 1 << 62;

/// Why a folder cannot be used as a spool.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SpoolError {
    #[error("{dir:?} is in use by another agent: each needs a folder of its own")]
    InUse { dir: PathBuf },
    #[error("{dir:?} cannot be used")]
    Folder {
        dir: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Why a file cannot be read.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error("it ends too early, or is longer than any")]
    Length,
    #[error("it does not begin as such a file does")]
    Magic,
    #[error("its checksum is another")]
    Checksum,
    #[error("it is no regular file")]
    Kind,
    #[error("{0}")]
    Io(#[from] io::Error),
}

impl From<TryGetError> for ReadError {
    fn from(_: TryGetError) -> Self {
        Self::Length
    }
}

/// The end of the spool from which a request is taken.
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
    /// In whole blocks.
    bytes: u64,
    samples: u32,
}

/// A folder of requests, and which of them is being sent.
#[derive(Debug)]
pub(crate) struct Spool {
    dir: PathBuf,
    bytes_max: u64,
    /// By number.
    files: BTreeMap<u64, SpoolFile>,
    /// What they take, and what files take that could not be removed or read.
    bytes: u64,
    next_number: u64,
    /// On its way: it is not dropped to make room.
    sending: Option<u64>,
    status: Status,
    _lock: File,
}

impl Spool {
    /// Opens the folder, which is made if it is not there, with what an earlier run left in it.
    pub(crate) fn open(config: &SpoolConfig, status: Status) -> Result<Self, SpoolError> {
        let SpoolConfig { dir, bytes_max } = config.clone();
        let unusable = |source| SpoolError::Folder { dir: dir.clone(), source };
        // Stacks and command lines are nobody else's business.
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
        tracing::info!(dir = ?spool.dir, requests = spool.files.len(), bytes = spool.bytes, "what cannot be sent is kept on disk");
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
            // Not of what a link points to.
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
            // At once, so that no more files are remembered than there is room for.
            while self.bytes_max < self.bytes && self.drop_oldest() {}
        }
        if foreign != 0 {
            tracing::warn!(dir = ?self.dir, files = foreign, "the spool has files that are not the agent's: they are left alone");
        }
        Ok(())
    }

    /// How many requests there are.
    pub(crate) fn len(&self) -> usize {
        self.files.len()
    }

    /// Writes a request, at the cost of the oldest ones if need be. Tells its number.
    pub(crate) fn push(&mut self, export: &Export) -> io::Result<u64> {
        let (head, body) = (encode_head(export), &export.request.bytes);
        let len = (head.len() + body.len()) as u64;
        let bytes = blocks(len);
        if self.bytes_max < bytes || FILE_BYTES_MAX < len {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "the request is larger than the spool may be"));
        }
        while self.bytes_max < self.bytes + bytes {
            if !self.drop_oldest() {
                return Err(io::Error::new(
                    io::ErrorKind::QuotaExceeded,
                    "the spool is full of what cannot be removed",
                ));
            }
        }
        let (number, new) = (self.next_number, self.dir.join(NEW));
        let file = SpoolFile { bytes, samples: u32::try_from(export.request.samples()).unwrap_or(u32::MAX) };
        let written = write_new(&new, &head, body).and_then(|()| fs::rename(&new, self.path(number, file)));
        if written.is_err() {
            // The error that counts is the first; on a full disk a part of a file would only take space.
            remove_if_there(&new).unwrap_or_default();
        }
        written?;
        self.next_number += 1;
        self.add(number, file);
        Ok(number)
    }

    /// The request at one end, which is then on its way. Files that cannot be read are passed over, for good.
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
                    tracing::error!(file = ?self.path(number, file), "a request on disk is left to the next start: {error}");
                    self.files.remove(&number);
                }
                Err(error) => self.discard(number, file, &error),
            }
        }
    }

    /// Says that a request which was just pushed is already on its way.
    pub(crate) fn is_sending(&mut self, number: u64) {
        self.sending = Some(number);
    }

    /// Removes the request that is on its way, if one of these is: it arrived, or will never.
    pub(crate) fn finish(&mut self) -> bool {
        let Some(number) = self.sending.take() else { return false };
        self.remove(number);
        true
    }

    /// The request that is on its way, if one of these is, did not arrive.
    pub(crate) fn put_back(&mut self) -> bool {
        self.sending.take().is_some()
    }

    /// Whether there was one that could go.
    fn drop_oldest(&mut self) -> bool {
        let oldest = self.files.iter().find(|(number, _)| Some(**number) != self.sending);
        let Some((&number, &SpoolFile { samples, .. })) = oldest else { return false };
        self.status.count_dropped(DropReason::SpoolFull, samples.into());
        self.remove(number);
        true
    }

    fn discard(&mut self, number: u64, file: SpoolFile, error: &ReadError) {
        let samples = file.samples;
        tracing::error!(file = ?self.path(number, file), samples, "a request on disk is damaged and dropped: {error}");
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
            // It still takes its bytes; the next start sends it again, with its key.
            Err(error) => {
                self.status.count_spool_error();
                tracing::error!(file = ?path, "a file of the spool cannot be removed: {error}");
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

/// Number and samples of a file that has such a name, to the letter.
fn parse_name(name: &str) -> Option<(u64, u32)> {
    let (number, samples) = name.strip_suffix(".export")?.split_once('-')?;
    let (number, samples) = (u64::from_str_radix(number, 16).ok()?, samples.parse().ok()?);
    (number < NUMBER_MAX && file_name(number, samples) == name).then_some((number, samples))
}

fn blocks(bytes: u64) -> u64 {
    bytes.next_multiple_of(BLOCK_BYTES)
}

/// Neither links are followed, nor does a pipe make us wait.
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

/// All of a file but the request itself.
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

/// The request of a whole file. The checksum is checked before anything behind it is believed.
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
    // It ends with the bytes, whatever number it is.
    for _ in 0..profiles {
        profile_samples.push(bytes.try_get_u32_le()?.into());
    }
    Ok(Export { key, request: EncodedRequest { bytes, profile_samples: profile_samples.into() } })
}

#[cfg(test)]
mod tests;
