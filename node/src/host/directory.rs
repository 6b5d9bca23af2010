//! The data directory: its lock, its format and its size.
//!
//! ```text
//! <data_dir>/LOCK         locked (flock) while the node is open; holds the process id, for error messages
//! <data_dir>/FORMAT       version of the layout below, decimal
//! <data_dir>/raft/        the Raft logs of all shards of this node: one RocksDB with its WAL on
//! <data_dir>/raft-damaged/  a damaged log that was replaced, until the node's replicas are built again
//! <data_dir>/shard-0001/  one shard's state ([`shard`]); likewise shard-0002/ and so on
//! ```

pub(crate) mod shard;

use std::collections::HashSet;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use parking_lot::Mutex;

use crate::directory::shard::ShardDirectory;
use crate::error::NodeError;

/// Version of the layout of the data directory.
const FORMAT_VERSION: u32 = 7;

/// A locked data directory. [`DataDirectory::release`], dropping it, or the end of the process unlocks it. Work that
/// opens or repairs files in the directory therefore keeps a reference to it.
#[derive(Debug)]
pub(crate) struct DataDirectory {
    path: PathBuf,
    lock: Mutex<Option<File>>,
}

impl DataDirectory {
    /// Creates the directory if it does not exist, locks it, and checks or writes its format.
    pub(crate) fn open(path: &Path) -> Result<Self, NodeError> {
        let failed = |source| NodeError::Directory { directory: path.to_owned(), source };
        let missing = path.ancestors().take_while(|folder| !folder.exists()).count();
        fs::create_dir_all(path).map_err(failed)?;
        let lock = lock(path)?;
        check_format(path)?;
        let directory = Self { path: path.to_owned(), lock: Mutex::new(Some(lock)) };
        directory.make_folders(missing).map_err(failed)?;
        Ok(directory)
    }

    /// Makes the folder of the Raft logs, and syncs the folders above it, because a database syncs only its own files.
    ///
    /// `missing` is the number of folders that were just made for the path of the data directory, including that
    /// directory.
    fn make_folders(&self, missing: usize) -> io::Result<()> {
        fs::create_dir_all(self.raft())?;
        File::open(&self.path)?.sync_all()?;
        for above in self.path.canonicalize()?.ancestors().skip(1).take(missing.max(1)) {
            match File::open(above) {
                Ok(above) => above.sync_all()?,
                // This process may not open the folder, so another user made it earlier.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Makes the folder of a shard, and syncs the folder above it. Blocks.
    pub(crate) fn make_shard(&self, shard: u32) -> io::Result<()> {
        fs::create_dir_all(self.shard(shard).path())?;
        File::open(&self.path)?.sync_all()
    }

    /// Deletes the folder of a shard, if there is one, and syncs the folder above it. The shard must be closed. Blocks.
    pub(crate) fn remove_shard(&self, shard: u32) -> io::Result<()> {
        shard::remove(self.shard(shard).path())?;
        File::open(&self.path)?.sync_all()
    }

    /// Returns the numbers of the shards that have a folder, ascending.
    pub(crate) fn shards(&self) -> io::Result<Vec<u32>> {
        let mut shards = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let name = entry?.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("shard-")?.parse().ok());
            shards.extend(number.filter(|&number| self.shard(number).path().file_name() == Some(&name)));
        }
        shards.sort_unstable();
        Ok(shards)
    }

    /// Releases the lock, even if other threads still have references to `self`. All files in the directory must be
    /// closed before.
    pub(crate) fn release(&self) {
        if let Some(lock) = self.lock.lock().take() {
            // Closing the file does not suffice: a child process between its fork and its exec has the file open, too.
            let _closed_if_it_fails = lock.unlock();
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn raft(&self) -> PathBuf {
        self.path.join("raft")
    }

    fn damaged_raft(&self) -> PathBuf {
        self.path.join("raft-damaged")
    }

    /// Moves the damaged logs away, so that new ones can be made. The first damaged logs are kept: later ones were made
    /// after them, and hold nothing. Blocks.
    pub(crate) fn set_raft_aside(&self) -> io::Result<()> {
        if self.has_damaged_raft() {
            shard::remove(&self.raft())?;
        } else {
            fs::rename(self.raft(), self.damaged_raft())?;
        }
        fs::create_dir_all(self.raft())?;
        File::open(&self.path)?.sync_all()
    }

    /// Returns true if the logs were damaged. Until the cluster has accepted the new ones, the states of the shards are
    /// not used, because the votes that belong to them are lost.
    pub(crate) fn has_damaged_raft(&self) -> bool {
        self.damaged_raft().exists()
    }

    /// Deletes the states of all shards, and then the damaged logs. Blocks.
    pub(crate) fn remove_damaged(&self) -> io::Result<()> {
        for shard in self.shards()? {
            self.remove_shard(shard)?;
        }
        shard::remove(&self.damaged_raft())?;
        File::open(&self.path)?.sync_all()
    }

    pub(crate) fn shard(&self, shard: u32) -> ShardDirectory {
        ShardDirectory::new(self.path.join(format!("shard-{shard:04}")))
    }
}

impl Drop for DataDirectory {
    fn drop(&mut self) {
        self.release();
    }
}

fn lock(path: &Path) -> Result<File, NodeError> {
    let failed = |source| NodeError::Directory { directory: path.to_owned(), source };
    let options = File::options().read(true).write(true).create(true).truncate(false).clone();
    let mut file = options.open(path.join("LOCK")).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let mut holder = String::new();
            // The process id is only for the message: after an error it is unknown.
            let holder = file.read_to_string(&mut holder).ok().and_then(|_| holder.trim().parse().ok());
            return Err(NodeError::Held { directory: path.to_owned(), holder });
        }
        Err(TryLockError::Error(source)) => return Err(failed(source)),
    }
    // On a full disk the old process id stays, which affects only error messages.
    let written = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
    match written {
        Err(error) if error.kind() != io::ErrorKind::StorageFull => Err(failed(error)),
        _ => Ok(file),
    }
}

fn check_format(path: &Path) -> Result<(), NodeError> {
    let failed = |source| NodeError::Directory { directory: path.to_owned(), source };
    let file = path.join("FORMAT");
    match fs::read(&file) {
        Ok(bytes) => {
            let found = String::from_utf8_lossy(&bytes[..bytes.len().min(100)]).trim().to_owned();
            if found == FORMAT_VERSION.to_string() {
                return Ok(());
            }
            Err(NodeError::Format { directory: path.to_owned(), found, expected: FORMAT_VERSION })
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => write_format(path, &file).map_err(failed),
        Err(error) => Err(failed(error)),
    }
}

fn write_format(path: &Path, file: &Path) -> io::Result<()> {
    let new = path.join("FORMAT.new");
    let mut writer = File::create(&new)?;
    writeln!(writer, "{FORMAT_VERSION}")?;
    writer.sync_all()?;
    fs::rename(&new, file)?;
    // Without this sync a power cut could undo the rename.
    File::open(path)?.sync_all()
}

/// Returns the disk space of all files below `path`, in bytes. A file that is deleted during the walk does not count. A
/// file with several names, such as a table file of a checkpoint, counts once.
pub(crate) fn used_bytes(path: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    let mut linked = HashSet::new();
    let mut folders = vec![path.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = match fs::read_dir(&folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            match entry.metadata() {
                Ok(metadata) if metadata.is_dir() => folders.push(entry.path()),
                Ok(metadata) if metadata.nlink() > 1 && !linked.insert((metadata.dev(), metadata.ino())) => {}
                // `blocks` counts units of 512 bytes on every file system. Preallocated space counts, and holes do not.
                Ok(metadata) => bytes += metadata.blocks() * 512,
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_opener_is_refused_with_the_process_that_holds_it() {
        let folder = tempfile::tempdir().unwrap();
        let first = DataDirectory::open(folder.path()).unwrap();
        let error = DataDirectory::open(folder.path()).unwrap_err();
        assert!(matches!(error, NodeError::Held { holder: Some(pid), .. } if pid == std::process::id()), "{error}");
        first.release();
        DataDirectory::open(folder.path()).unwrap();
    }

    #[test]
    fn an_unknown_format_is_refused_and_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("FORMAT"), "1\n").unwrap();
        let error = DataDirectory::open(folder.path()).unwrap_err();
        assert!(matches!(&error, NodeError::Format { found, expected: FORMAT_VERSION, .. } if found == "1"), "{error}");
        assert_eq!(fs::read(folder.path().join("FORMAT")).unwrap(), b"1\n");
    }

    #[test]
    fn an_error_names_a_directory_that_cannot_be_made() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let error = DataDirectory::open(&file.join("below")).unwrap_err().to_string();
        assert!(error.contains("file/below"), "{error}");
    }

    #[test]
    fn used_bytes_are_those_of_all_files_below() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("a")).unwrap();
        fs::write(folder.path().join("a/b"), vec![1; 1 << 20]).unwrap();
        fs::write(folder.path().join("c"), vec![1; 1 << 20]).unwrap();
        let used = used_bytes(folder.path()).unwrap();
        assert!((2 << 20..3 << 20).contains(&used), "{used}");
        // A checkpoint takes no space for its hard links, also after the original is deleted.
        fs::create_dir(folder.path().join("d")).unwrap();
        fs::hard_link(folder.path().join("a/b"), folder.path().join("d/b")).unwrap();
        assert_eq!(used_bytes(folder.path()).unwrap(), used);
        fs::remove_file(folder.path().join("a/b")).unwrap();
        assert_eq!(used_bytes(folder.path()).unwrap(), used);
        assert_eq!(used_bytes(&folder.path().join("absent")).unwrap(), 0);
    }
}
