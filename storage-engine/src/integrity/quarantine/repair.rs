//! Repair of a state database that has table files with damaged blocks. A repair is necessary because RocksDB refuses
//! all writes after a compaction that read a damaged block.
//!
//! When a damaged file is found, its number is written to the file `DAMAGED` in the state's directory. When the state
//! is opened the next time, it is rebuilt in another directory, with hard links to all other files. The old and the new
//! database are compared, and the readable values of the damaged files are written to the new one. Keys that cannot be
//! read are recorded (`key::lost`), and quarantined when the state is opened.
//!
//! Invariant: the old directory does not change until the new one is complete. Then two renames replace it. If the
//! process ends between them, the next start makes the second one.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use rocksdb::{DB, LiveFile, WriteBatch};

use crate::Config;
use crate::database::frame;
use crate::database::key;
use crate::database::{self, Item, Snapshot, unlogged};
use crate::error::{EngineError, is_corruption};
use crate::integrity::quarantine::damaged_keys::{DamagedKeys, Walk};

/// Name of the file with the numbers of damaged files, in the state's directory.
const LIST: &str = "DAMAGED";
/// Name of the file that marks a rebuilt directory as complete.
const COMPLETE: &str = "COMPLETE";
/// Name of the file that every RocksDB database has.
const CURRENT: &str = "CURRENT";
/// Size, in bytes, at which a piece of copied values is written.
const PIECE_BYTES: usize = 1 << 20;
/// RocksDB's tag of a deleted file in its list of files.
const DELETED_FILE: u64 = 6;

/// Result of the repair of a state.
pub(crate) enum Repair {
    /// No file is listed as damaged.
    Unneeded,
    /// The readable values of the damaged files are in new files.
    Done,
    /// Damage makes the repair impossible. The state can still be served.
    Failed(EngineError),
}

/// Returns the number of the table file that an error text of RocksDB names.
pub(crate) fn file_named(text: &str) -> Option<u64> {
    let (before, _) = text.split_once(".sst")?;
    let digits = before.len() - before.bytes().rev().take_while(u8::is_ascii_digit).count();
    before.get(digits..)?.parse().ok()
}

/// Adds a file to the list of damaged files. Returns true if it was not listed before.
pub(crate) fn note_file(directory: &Path, number: u64) -> io::Result<bool> {
    let mut numbers = listed(directory)?;
    if numbers.contains(&number) {
        return Ok(false);
    }
    numbers.push(number);
    let text: String = numbers.iter().map(|number| format!("{number}\n")).collect();
    let new = directory.join("DAMAGED.new");
    fs::write(&new, text)?;
    File::open(&new)?.sync_all()?;
    fs::rename(&new, directory.join(LIST))?;
    Ok(true)
}

/// Returns the numbers of the files that are listed as damaged.
pub(crate) fn listed(directory: &Path) -> io::Result<Vec<u64>> {
    match fs::read_to_string(directory.join(LIST)) {
        Ok(text) => Ok(text.lines().filter_map(|line| line.parse().ok()).collect()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// Returns a path beside the state's directory: the directory's path with a suffix.
fn beside(directory: &Path, suffix: &str) -> PathBuf {
    let mut name = directory.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Rebuilds the state without the files that are listed as damaged.
pub(crate) fn repair(config: &Config) -> Result<Repair, EngineError> {
    finish(&config.directory).map_err(EngineError::Files)?;
    let numbers = listed(&config.directory).map_err(EngineError::Files)?;
    if numbers.is_empty() {
        return Ok(Repair::Unneeded);
    }
    match rebuild(config, &numbers) {
        Ok(()) => Ok(Repair::Done),
        Err(error) => {
            finish(&config.directory).map_err(EngineError::Files)?;
            // The state is then served unrepaired, and nothing is compacted.
            if error.is_damage() { Ok(Repair::Failed(error)) } else { Err(error) }
        }
    }
}

/// Completes or undoes a repair that was interrupted.
fn finish(directory: &Path) -> io::Result<()> {
    let old = beside(directory, ".damaged");
    let new = beside(directory, ".repaired");
    // The node makes the state's directory before the state is opened, so an empty directory is no state. A rename
    // replaces it.
    if !directory.join(CURRENT).exists() && old.exists() {
        fs::rename(if new.join(COMPLETE).exists() { &new } else { &old }, directory)?;
    }
    for left in [old, new] {
        if left.exists() {
            fs::remove_dir_all(left)?;
        }
    }
    remove(&directory.join(COMPLETE))
}

fn remove(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

fn rebuild(config: &Config, numbers: &[u64]) -> Result<(), EngineError> {
    let directory = &config.directory;
    let replaced = beside(directory, ".damaged");
    let new = beside(directory, ".repaired");
    let mut options = database::options(config);
    // Without this option, a single file that cannot be opened would prevent opening the whole database.
    options.set_paranoid_checks(false);
    let old = DB::open_for_read_only(&options, directory, false)?;
    let files: Vec<LiveFile> = old.live_files()?;
    let is_damaged = |file: &&LiveFile| file_named(&file.name).is_some_and(|number| numbers.contains(&number));
    let damaged: Vec<LiveFile> = files.into_iter().filter(|file| is_damaged(&file)).collect();
    if damaged.is_empty() {
        drop(old);
        return remove(&directory.join(LIST)).map_err(EngineError::Files);
    }
    copy_without(directory, &new, &damaged).map_err(EngineError::Files)?;
    let mut options = database::options(config);
    options.set_disable_auto_compactions(true);
    let repaired = DB::open(&options, &new)?;
    // Written last: the keys of the records may lie in a range that is made equal to the old database.
    let mut lost = WriteBatch::default();
    for (from, end) in ranges(&damaged) {
        copy_readable(&old, &repaired, &from, &end, &mut lost)?;
    }
    repaired.write_opt(lost, &unlogged())?;
    repaired.flush()?;
    drop((old, repaired));
    let swap = || {
        File::create(new.join(COMPLETE))?.sync_all()?;
        File::open(&new)?.sync_all()?;
        fs::rename(directory, &replaced)?;
        fs::rename(&new, directory)?;
        if let Some(parent) = directory.parent() {
            File::open(parent)?.sync_all()?;
        }
        finish(directory)
    };
    swap().map_err(EngineError::Files)
}

/// Links and copies all files of a database except the damaged ones, which are removed from its list of files.
fn copy_without(from: &Path, to: &Path, damaged: &[LiveFile]) -> io::Result<()> {
    fs::create_dir(to)?;
    let numbers: Vec<u64> = damaged.iter().filter_map(|file| file_named(&file.name)).collect();
    for file in fs::read_dir(from)? {
        let file = file?;
        let name = file.file_name();
        let text = name.to_string_lossy();
        if text.ends_with(".sst") {
            if !file_named(&text).is_some_and(|number| numbers.contains(&number)) {
                fs::hard_link(file.path(), to.join(&name))?;
            }
        } else if [CURRENT, "IDENTITY"].contains(&&*text) || text.starts_with("MANIFEST") || text.starts_with("OPTIONS")
        {
            fs::copy(file.path(), to.join(&name))?;
        }
    }
    let mut edit = Vec::new();
    for file in damaged {
        let level = u64::try_from(file.level).unwrap_or_default();
        for number in [DELETED_FILE, level, file_named(&file.name).unwrap_or_default()] {
            crate::encoding::varint::put(&mut edit, number);
        }
    }
    let current = fs::read_to_string(to.join(CURRENT))?;
    rocksdb_files::record_file::append(&to.join(current.trim_end()), &edit)
}

/// Returns the key ranges of files. Ranges that overlap or touch are joined.
fn ranges(files: &[LiveFile]) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut of_files: BTreeMap<Vec<u8>, Vec<u8>> = BTreeMap::new();
    for file in files {
        let (Some(start), Some(end)) = (&file.start_key, &file.end_key) else { continue };
        let after = [end.as_slice(), &[0]].concat();
        let known = of_files.entry(start.clone()).or_default();
        *known = after.max(std::mem::take(known));
    }
    let mut joined: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    for (start, end) in of_files {
        match joined.last_mut() {
            Some(last) if start <= last.1 => last.1 = end.max(std::mem::take(&mut last.1)),
            _ => joined.push((start, end)),
        }
    }
    joined
}

/// Makes a key range of the new database equal to the readable part of the old one. Deletes values that only the new
/// database has: the damaged files held deletions of these values, or newer values that are lost. Adds records of
/// the keys that cannot be read to `lost`.
fn copy_readable(old: &DB, new: &DB, from: &[u8], end: &[u8], lost: &mut WriteBatch) -> Result<(), EngineError> {
    let mut of_old = Walk::on(old, from.to_vec(), end.to_vec());
    let mut of_new = Walk::on(new, from.to_vec(), end.to_vec());
    let mut batch = WriteBatch::default();
    let mut before = next(&mut of_old, lost)?;
    let mut after = next(&mut of_new, &mut WriteBatch::default())?;
    while before.is_some() || after.is_some() {
        let order = match (&before, &after) {
            (Some(before), Some(after)) => before.0.cmp(&after.0),
            (Some(_), None) => std::cmp::Ordering::Less,
            _ => std::cmp::Ordering::Greater,
        };
        if let Some((key, value)) = before.as_ref().filter(|_| order.is_le())
            && after.as_ref().filter(|_| order.is_eq()).is_none_or(|after| after.1 != *value)
        {
            batch.put(key, value);
        }
        if let Some((key, value)) = after.as_ref().filter(|_| order.is_gt())
            && let found = lookup(old, key)?
            && found.as_ref() != Some(value)
        {
            match found {
                Some(found) => batch.put(key, found),
                None => batch.delete(key),
            }
        }
        if order.is_le() {
            before = next(&mut of_old, lost)?;
        }
        if order.is_ge() {
            after = next(&mut of_new, &mut WriteBatch::default())?;
        }
        if batch.size_in_bytes() >= PIECE_BYTES {
            new.write_opt(std::mem::take(&mut batch), &unlogged())?;
        }
    }
    Ok(new.write_opt(batch, &unlogged())?)
}

/// Returns the value of a key; `None` if it is missing or cannot be read. An iterator fails at a damaged block of an
/// older file, but a lookup still finds the value in a newer file.
fn lookup(database: &DB, key: &[u8]) -> Result<Option<Box<[u8]>>, EngineError> {
    match database.get(key) {
        Ok(found) => Ok(found.map(Vec::into_boxed_slice)),
        Err(error) if is_corruption(&error) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Returns the next key and value. Records the keys before it that cannot be read.
fn next(walk: &mut Walk<'_>, batch: &mut WriteBatch) -> Result<Option<Item>, EngineError> {
    loop {
        match walk.next()? {
            None => return Ok(None),
            Some(Ok(item)) => return Ok(Some(item)),
            Some(Err(keys)) => record_lost(keys, batch)?,
        }
    }
}

fn record_lost(DamagedKeys { from, to, error }: DamagedKeys, batch: &mut WriteBatch) -> Result<(), EngineError> {
    // Keys before the stale marks are essential, for example the applied position, the names of tenants,
    // and the labels that sums drop.
    if from.as_slice() < key::stale().as_slice() {
        return Err(error.into());
    }
    let at = key::lost(&from);
    let length = u32::try_from(to.len()).unwrap_or_default();
    database::put(batch, &at, &[length.to_be_bytes().as_slice(), &to, error.as_ref().as_bytes()].concat());
    Ok(())
}

/// A range of keys that a repair lost.
pub(crate) struct Lost {
    pub(crate) from: Vec<u8>,
    /// End of the range, exclusive.
    pub(crate) to: Vec<u8>,
    pub(crate) what: String,
}

/// Returns the key ranges that repairs lost and that are not quarantined yet, each with the key of its record.
pub(crate) fn read_lost(snapshot: &Snapshot<'_>) -> Result<Vec<(Vec<u8>, Lost)>, EngineError> {
    let mut lost = Vec::new();
    let mut walk = Walk::new(snapshot, key::losses().to_vec());
    while let Some(item) = walk.next()? {
        // If a block with records is damaged, the keys of the block are themselves treated as lost when the engine is
        // opened.
        let Ok((at, value)) = item else { continue };
        let note = match frame::open(&at, &value) {
            Ok(note) => note,
            Err(damage) => {
                let to = [&at, [0].as_slice()].concat();
                lost.push((at.to_vec(), Lost { from: at.to_vec(), to, what: damage.to_string() }));
                continue;
            }
        };
        let Some((length, rest)) = note.split_first_chunk::<4>() else { continue };
        let Some((to, what)) = rest.split_at_checked(u32::from_be_bytes(*length) as usize) else { continue };
        let from = at.get(1..).unwrap_or_default().to_vec();
        let what = String::from_utf8_lossy(what).into_owned();
        lost.push((at.to_vec(), Lost { from, to: to.to_vec(), what }));
    }
    Ok(lost)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_named_by_an_error_is_listed_once() {
        let text = "Corruption: block checksum mismatch: stored = 1, computed = 2, type = 4  \
                    in /data/shard-0001/000123.sst offset 9 size 8";
        assert_eq!(file_named(text), Some(123));
        assert_eq!(file_named("Corruption: bad"), None);
        let folder = tempfile::tempdir().unwrap();
        assert!(note_file(folder.path(), 123).unwrap() && note_file(folder.path(), 7).unwrap());
        assert!(!note_file(folder.path(), 123).unwrap());
        assert_eq!(listed(folder.path()).unwrap(), [123, 7]);
    }

    #[test]
    fn an_interrupted_repair_leaves_either_the_old_or_the_new_state() {
        for (is_complete, is_made) in [(false, false), (false, true), (true, false), (true, true)] {
            let folder = tempfile::tempdir().unwrap();
            let state = folder.path().join("state");
            let old = beside(&state, ".damaged");
            let new = beside(&state, ".repaired");
            fs::create_dir(&old).unwrap();
            fs::create_dir(&new).unwrap();
            fs::write(old.join(CURRENT), "old").unwrap();
            fs::write(new.join(CURRENT), "new").unwrap();
            if is_complete {
                fs::write(new.join(COMPLETE), "").unwrap();
            }
            // A node makes the directories of its data before it opens them.
            if is_made {
                fs::create_dir(&state).unwrap();
            }
            finish(&state).unwrap();
            let which = fs::read_to_string(state.join(CURRENT)).unwrap();
            assert_eq!(which, if is_complete { "new" } else { "old" });
            assert!(!old.exists() && !new.exists() && !state.join(COMPLETE).exists());
        }
    }
}
