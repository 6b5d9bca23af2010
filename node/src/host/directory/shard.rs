//! The directory of one shard. Each incarnation of the shard's state has a folder of its own, and a pointer names the
//! current one.
//!
//! ```text
//! shard-0001/CURRENT         the pointer: | version u8 | incarnation u64 | crc u32 |
//! shard-0001/state-1/        the state of incarnation 1; beside it `.repaired` and `.damaged` during a repair
//! shard-0001/staging/        a snapshot that is being received
//! shard-0001/leases/         checkpoints that other members are reading
//! ```
//!
//! Integers are big-endian. `crc` is the CRC-32C of the bytes before it.
//!
//! Invariant: the pointer changes by one rename, after all that it names is synced. An installation that is interrupted
//! therefore leaves the old state or the new one.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::error::{RecordError, ReplicaError};

const POINTER: &str = "CURRENT";
const POINTER_NEW: &str = "CURRENT.new";
/// Version of the pointer.
const POINTER_VERSION: u8 = 1;
const POINTER_BYTES: usize = 13;
const STATE: &str = "state-";
const STAGING: &str = "staging";
const LEASES: &str = "leases";
/// Number of the incarnation that the first start makes.
const FIRST: u64 = 1;

/// The directory of a shard.
#[derive(Clone, Debug)]
pub(crate) struct ShardDirectory {
    path: PathBuf,
}

/// An incarnation of a shard's state whose files are complete and synced. It is not the current one yet.
#[derive(Debug)]
pub(crate) struct Incarnation {
    number: u64,
    path: PathBuf,
}

impl Incarnation {
    /// Returns the folder of the state.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl ShardDirectory {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Folder of the snapshot that is being received.
    pub(crate) fn staging(&self) -> PathBuf {
        self.path.join(STAGING)
    }

    /// Folder of the checkpoints that other members are reading.
    pub(crate) fn leases(&self) -> PathBuf {
        self.path.join(LEASES)
    }

    fn state(&self, incarnation: u64) -> PathBuf {
        self.path.join(format!("{STATE}{incarnation}"))
    }

    /// Prepares the directory for opening the shard. The first call makes the first incarnation. Deletes incarnations
    /// that are not the current one, and all leases. Returns the folder of the current state. Only the current
    /// incarnation may be open.
    ///
    /// # Errors
    /// [`ReplicaError::Directory`]: the disk fails. [`ReplicaError::Pointer`]: the pointer is damaged, or is missing
    /// although there is a state.
    pub(crate) fn recover(&self) -> Result<PathBuf, ReplicaError> {
        let failed = |source| self.failed(source);
        let current = match self.current()? {
            Some(current) => current,
            None => {
                // The first start may have been interrupted, but only before anything was written to a state.
                if self.has_state().map_err(failed)? {
                    return Err(self.pointer(RecordError::Absent { record: "pointer" }));
                }
                fs::create_dir_all(self.state(FIRST)).and_then(|()| self.point_to(FIRST)).map_err(failed)?;
                FIRST
            }
        };
        self.remove_replaced()?;
        let recovered = || {
            remove(&self.leases())?;
            // A repair that was interrupted continues also if the folder is empty.
            fs::create_dir_all(self.state(current))?;
            File::open(&self.path)?.sync_all()
        };
        recovered().map_err(failed)?;
        Ok(self.state(current))
    }

    /// Moves a folder with the synced files of a state to the next incarnation. The current one stays the same, also if
    /// its pointer is damaged.
    pub(crate) fn adopt(&self, files: &Path) -> Result<Incarnation, ReplicaError> {
        let numbers = self.states().map_err(|source| self.failed(source))?.into_iter();
        let last = numbers.filter_map(|(number, _path)| number).max().unwrap_or_default();
        let number = match self.current() {
            Ok(Some(current)) => current + 1,
            _ => last.checked_add(1).ok_or_else(|| self.pointer(RecordError::Content { record: "pointer" }))?,
        };
        let path = self.state(number);
        let adopted = || {
            // Left by an installation that failed before.
            remove(&path)?;
            fs::rename(files, &path)?;
            File::open(&self.path)?.sync_all()
        };
        adopted().map_err(|source| self.failed(source))?;
        Ok(Incarnation { number, path })
    }

    /// Makes an incarnation the current one.
    pub(crate) fn switch_to(&self, incarnation: &Incarnation) -> Result<(), ReplicaError> {
        self.point_to(incarnation.number).map_err(|source| self.failed(source))
    }

    /// Deletes all incarnations except the current one. Their engines must be closed.
    pub(crate) fn remove_replaced(&self) -> Result<(), ReplicaError> {
        let Some(current) = self.current()? else { return Ok(()) };
        let remove_others = || {
            for (number, path) in self.states()? {
                if number != Some(current) {
                    remove(&path)?;
                }
            }
            Ok(())
        };
        remove_others().map_err(|source| self.failed(source))
    }

    /// Returns the number of the current incarnation; `None` if there is no pointer.
    fn current(&self) -> Result<Option<u64>, ReplicaError> {
        match fs::read(self.path.join(POINTER)) {
            Ok(bytes) => decode_pointer(&bytes).map(Some).map_err(|error| self.pointer(error)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.failed(error)),
        }
    }

    fn point_to(&self, incarnation: u64) -> io::Result<()> {
        let new = self.path.join(POINTER_NEW);
        fs::write(&new, encode_pointer(incarnation))?;
        File::open(&new)?.sync_all()?;
        // The folder of the state must not be missing where the pointer is there.
        File::open(&self.path)?.sync_all()?;
        fs::rename(&new, self.path.join(POINTER))?;
        File::open(&self.path)?.sync_all()
    }

    /// Returns true if a folder of a state has files.
    fn has_state(&self) -> io::Result<bool> {
        for (_, path) in self.states()? {
            if fs::read_dir(path)?.next().is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the folders of states, with the numbers of their incarnations.
    fn states(&self) -> io::Result<Vec<(Option<u64>, PathBuf)>> {
        let mut states = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let name = entry.file_name();
            let Some(rest) = name.to_str().and_then(|name| name.strip_prefix(STATE)) else { continue };
            // A repair makes folders with a suffix.
            let number = rest.split('.').next().and_then(|number| number.parse().ok());
            states.push((number, entry.path()));
        }
        Ok(states)
    }

    fn failed(&self, source: io::Error) -> ReplicaError {
        ReplicaError::Directory { directory: self.path.clone(), source }
    }

    fn pointer(&self, source: RecordError) -> ReplicaError {
        ReplicaError::Pointer { file: self.path.join(POINTER), source }
    }
}

/// Deletes a folder with all its content, if there is one.
pub(crate) fn remove(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

fn encode_pointer(incarnation: u64) -> [u8; POINTER_BYTES] {
    let mut out = [0; POINTER_BYTES];
    out[0] = POINTER_VERSION;
    out[1..9].copy_from_slice(&incarnation.to_be_bytes());
    let crc = crc32c::crc32c(&out[..9]);
    out[9..].copy_from_slice(&crc.to_be_bytes());
    out
}

fn decode_pointer(bytes: &[u8]) -> Result<u64, RecordError> {
    let record = "pointer";
    let bytes: &[u8; POINTER_BYTES] = bytes.try_into().map_err(|_length| RecordError::Length { record })?;
    if bytes[0] != POINTER_VERSION {
        return Err(RecordError::Version { record, found: bytes[0], expected: POINTER_VERSION });
    }
    if crc32c::crc32c(&bytes[..9]).to_be_bytes() != bytes[9..] {
        return Err(RecordError::Checksum { record });
    }
    let mut incarnation = [0; 8];
    incarnation.copy_from_slice(&bytes[1..9]);
    Ok(u64::from_be_bytes(incarnation))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn directory() -> (tempfile::TempDir, ShardDirectory) {
        let folder = tempfile::tempdir().unwrap();
        let directory = ShardDirectory::new(folder.path().to_owned());
        (folder, directory)
    }

    /// Makes a folder with one file of this content.
    fn filled(path: &Path, content: &str) {
        fs::create_dir_all(path).unwrap();
        fs::write(path.join("file"), content).unwrap();
    }

    fn content(path: &Path) -> String {
        fs::read_to_string(path.join("file")).unwrap()
    }

    #[test]
    fn a_new_directory_gets_a_state_that_later_starts_keep() {
        let (_folder, directory) = directory();
        let state = directory.recover().unwrap();
        filled(&state, "old");
        filled(&directory.leases(), "lease");
        filled(&directory.staging(), "staged");
        fs::write(directory.path().join("other"), "").unwrap();
        assert_eq!(content(&directory.recover().unwrap()), "old");
        assert!(!directory.leases().exists());
        assert!(directory.staging().exists() && directory.path().join("other").exists());
    }

    #[test]
    fn an_interrupted_installation_leaves_the_old_state_or_the_new() {
        for steps in 0..=4 {
            let (_folder, directory) = directory();
            filled(&directory.recover().unwrap(), "old");
            let staged = directory.path().join("staging");
            filled(&staged, "new");
            if steps == 1 {
                // A crash left a new pointer that is torn.
                fs::write(directory.path().join(POINTER_NEW), [1]).unwrap();
            }
            if steps >= 2 {
                let incarnation = directory.adopt(&staged).unwrap();
                assert_eq!(content(incarnation.path()), "new");
                if steps >= 3 {
                    directory.switch_to(&incarnation).unwrap();
                }
            }
            if steps == 4 {
                directory.remove_replaced().unwrap();
            }
            let expected = if steps >= 3 { "new" } else { "old" };
            let state = directory.recover().unwrap();
            assert_eq!(content(&state), expected, "after {steps} steps");
            let states = directory.states().unwrap();
            assert_eq!(states.iter().map(|(_, path)| path).collect::<Vec<_>>(), [&state], "after {steps} steps");
        }
    }

    #[test]
    fn a_repair_of_the_current_state_can_continue() {
        let (_folder, directory) = directory();
        let state = directory.recover().unwrap();
        let damaged = directory.path().join("state-1.damaged");
        fs::rename(&state, &damaged).unwrap();
        filled(&damaged, "old");
        filled(&directory.path().join("state-2.repaired"), "left over");
        directory.recover().unwrap();
        assert_eq!(content(&damaged), "old");
        assert!(!directory.path().join("state-2.repaired").exists());
    }

    #[test]
    fn a_state_without_a_pointer_is_refused_and_kept() {
        let (_folder, directory) = directory();
        let state = directory.recover().unwrap();
        fs::remove_file(directory.path().join(POINTER)).unwrap();
        // An empty state is that of a first start that was interrupted.
        directory.recover().unwrap();
        filled(&state, "old");
        for damage in [None, Some(&b""[..]), Some(&[1; 13]), Some(&[2; 13]), Some(&[1; 14])] {
            fs::remove_file(directory.path().join(POINTER)).unwrap_or_default();
            if let Some(bytes) = damage {
                fs::write(directory.path().join(POINTER), bytes).unwrap();
            }
            let error = directory.recover().unwrap_err();
            assert!(matches!(error, ReplicaError::Pointer { .. }), "{error}");
            assert!(error.to_string().contains("CURRENT"), "{error}");
            assert_eq!(content(&state), "old");
        }
    }

    proptest! {
        #[test]
        fn a_pointer_decodes_to_its_incarnation(incarnation in any::<u64>(), at in 0..POINTER_BYTES, bit in 0..8_u8) {
            let mut bytes = encode_pointer(incarnation);
            prop_assert_eq!(decode_pointer(&bytes).unwrap(), incarnation);
            bytes[at] ^= 1 << bit;
            prop_assert!(decode_pointer(&bytes).is_err());
        }
    }
}
