//! What the processes of this host map as code, from `/proc/<pid>/maps`:
//!
//! `7f1a2c000000-7f1a2c195000 r-xp 00026000 08:02 173521    /usr/lib/libc.so.6 (deleted)`

use std::collections::HashMap;
use std::fs::File;
use std::io::Read as _;

use crate::limits;

/// A process that maps a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) pid: u32,
    /// The addresses as `/proc/<pid>/map_files` names them.
    pub(super) range: String,
}

/// One file, whatever its path: several of the same path are in different mount namespaces, or replaced each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MappedFile {
    device: String,
    inode: String,
    /// At most [`limits::OWNERS_MAX`] of the processes that map it.
    pub(super) owners: Vec<Owner>,
}

/// The mapped files by path.
#[derive(Debug, Default)]
pub(super) struct MappedFiles {
    by_path: HashMap<String, Vec<MappedFile>>,
    count: usize,
}

impl MappedFiles {
    /// Reads what all processes map that we may look at. A process that ends meanwhile is left out.
    pub(super) fn read() -> Self {
        let mut mapped = Self::default();
        let Ok(processes) = std::fs::read_dir("/proc") else { return mapped };
        for process in processes.flatten() {
            let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            let mut maps = Vec::new();
            let read = File::open(format!("/proc/{pid}/maps"))
                .and_then(|file| file.take(limits::MAPS_BYTES_MAX).read_to_end(&mut maps));
            if read.is_ok() {
                mapped.add(pid, &String::from_utf8_lossy(&maps));
            }
        }
        mapped
    }

    /// The files that are or were at `path`, in the root of whoever maps them.
    pub(super) fn of_path(&self, path: &str) -> &[MappedFile] {
        self.by_path.get(path).map_or(&[], Vec::as_slice)
    }

    fn add(&mut self, pid: u32, maps: &str) {
        for line in maps.lines() {
            let mut fields = line.splitn(6, ' ');
            let (Some(range), Some(rights), Some(_offset), Some(device), Some(inode), Some(path)) =
                (fields.next(), fields.next(), fields.next(), fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            let path = path.trim_start();
            if !rights.contains('x') || !path.starts_with('/') {
                continue;
            }
            let path = path.strip_suffix(" (deleted)").unwrap_or(path);
            self.add_owner(path, device, inode, Owner { pid, range: range.to_owned() });
        }
    }

    fn add_owner(&mut self, path: &str, device: &str, inode: &str, owner: Owner) {
        let is_full = self.count >= limits::MAPPED_FILES_MAX;
        if is_full && !self.by_path.contains_key(path) {
            return;
        }
        let files = self.by_path.entry(path.to_owned()).or_default();
        match files.iter_mut().find(|file| file.inode == inode && file.device == device) {
            Some(file) if file.owners.len() < limits::OWNERS_MAX => file.owners.push(owner),
            Some(_) => {}
            None if is_full => {}
            None => {
                files.push(MappedFile { device: device.to_owned(), inode: inode.to_owned(), owners: vec![owner] });
                self.count += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_one_path_are_told_apart_and_their_owners_collected() {
        let mut mapped = MappedFiles::default();
        mapped.add(
            1,
            "00400000-00452000 r-xp 00000000 08:02 173521      /usr/bin/a b (deleted)\n\
             00651000-00652000 r--p 00051000 08:02 173521      /usr/bin/a b (deleted)\n\
             7ffc0000-7ffc2000 r-xp 00000000 00:00 0           [vdso]\n\
             7ffd0000-7ffd2000 rwxp 00000000 00:00 0 \n\
             nonsense\n",
        );
        mapped.add(2, "1000-2000 r-xp 00000000 08:02 5 /usr/bin/a b\n");
        for pid in 3..20 {
            mapped.add(pid, "1000-2000 r-xp 00000000 08:02 5 /usr/bin/a b\n");
        }
        let owners: Vec<Vec<u32>> = mapped
            .of_path("/usr/bin/a b")
            .iter()
            .map(|file| file.owners.iter().map(|owner| owner.pid).collect())
            .collect();
        assert_eq!(owners, [vec![1], vec![2, 3, 4, 5]]);
        assert_eq!(mapped.of_path("/usr/bin/a b")[0].owners[0].range, "00400000-00452000");
        assert_eq!(mapped.by_path.len(), 1);
    }

    #[test]
    fn this_process_is_among_the_owners_of_its_program() {
        let program = std::env::current_exe().unwrap();
        let mapped = MappedFiles::read();
        let files = mapped.of_path(program.to_str().unwrap());
        assert!(files.iter().any(|file| file.owners.iter().any(|owner| owner.pid == std::process::id())));
    }
}
