//! Files that `varve upload` sends: the files on its command line, and the programs and libraries in the directories on
//! its command line.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

/// Largest number of files that one command sends. The paths of the files are held in memory until the files are sent.
const FILES_MAX: usize = 100_000;

/// First bytes of an ELF file. At the offset [`ELF_TYPE`], the file has its type: 2 for programs with fixed addresses,
/// and 3 for other programs and for libraries.
const ELF_MAGIC: &[u8] = b"\x7fELF";
const ELF_TYPE: usize = 16;
const ELF_TYPES: [u16; 2] = [2, 3];

/// A file to send.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) path: PathBuf,
    /// True if the file was found in a directory, and was not named on the command line. Only such a file may lack
    /// symbols.
    pub(super) is_found: bool,
}

/// Returns the files that a command line names, in its order. Files of a directory are ordered by name.
pub(super) fn candidates(paths: &[PathBuf]) -> anyhow::Result<Vec<Candidate>> {
    let mut all = Vec::new();
    for path in paths {
        if !path.is_dir() {
            all.push(Candidate { path: path.clone(), is_found: false });
            continue;
        }
        let before = all.len();
        add_directory(path, &mut all)?;
        if all.len() == before {
            bail!("{} has no programs or libraries (ELF files) in it: name a directory that has", path.display());
        }
    }
    Ok(all)
}

/// Adds the ELF files below a directory. Links are not followed, because they could form cycles or repeat files.
fn add_directory(directory: &Path, all: &mut Vec<Candidate>) -> anyhow::Result<()> {
    let entries = fs::read_dir(directory).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let mut entries = entries.with_context(|| format!("reading the directory {}", directory.display()))?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        let Ok(kind) = entry.file_type() else { continue };
        if kind.is_dir() {
            add_directory(&path, all)?;
        } else if kind.is_file() && is_elf(&path) {
            if all.len() == FILES_MAX {
                bail!("more than {FILES_MAX} files: upload {} in parts", directory.display());
            }
            all.push(Candidate { path, is_found: true });
        }
    }
    Ok(())
}

/// Returns true if a file is an ELF program, library or debug file.
fn is_elf(path: &Path) -> bool {
    let mut start = [0; ELF_TYPE + 2];
    let Ok(mut file) = File::open(path) else { return false };
    if file.read_exact(&mut start).is_err() || !start.starts_with(ELF_MAGIC) {
        return false;
    }
    let kind = [start[ELF_TYPE], start[ELF_TYPE + 1]];
    ELF_TYPES.contains(&u16::from_le_bytes(kind)) || ELF_TYPES.contains(&u16::from_be_bytes(kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_stands_for_the_programs_and_libraries_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::create_dir_all(path("b/c")).unwrap();
        let elf = |kind: u8| [b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0", &[kind, 0][..], b"rest"].concat();
        for (name, kind) in [("z", 2), ("b/library.so", 3), ("b/c/program.debug", 3), ("object.o", 1), ("core", 4)] {
            fs::write(path(name), elf(kind)).unwrap();
        }
        fs::write(path("text"), "not ELF, and long enough").unwrap();
        fs::write(path("short"), "\x7fELF").unwrap();
        std::os::unix::fs::symlink(folder.path(), path("b/circle")).unwrap();
        let found: Vec<_> = candidates(&[folder.path().to_owned()]).unwrap().into_iter().map(|it| it.path).collect();
        assert_eq!(found, ["b/c/program.debug", "b/library.so", "z"].map(path));
        assert_eq!(candidates(&[path("text")]).unwrap(), [Candidate { path: path("text"), is_found: false }]);
        fs::create_dir(path("empty")).unwrap();
        let error = candidates(&[path("empty")]).unwrap_err().to_string();
        assert!(error.contains("empty") && error.contains("ELF"), "{error}");
    }
}
