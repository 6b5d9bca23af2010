//! Index of the files that the processes of this host map as code.
//!
//! Invariant: the index uses at most [`BYTES_MAX`] of memory, and one process adds at most [`PROCESS_BYTES_MAX`]. The
//! limits are needed because any user may map 65,530 files with names of 4 kB.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader};

use host_files::maps::{self, MapsLine};

use crate::limits;

/// Largest approximate size of the index in memory, in bytes. A host with hundreds of containers needs two megabytes.
const BYTES_MAX: usize = 16 << 20;
/// Maximum number of bytes that the mappings of one process may add to the index.
const PROCESS_BYTES_MAX: usize = 1 << 20;

/// A process that maps a file, and the address range of the mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    pub(super) pid: u32,
    pub(super) start: u64,
    pub(super) end: u64,
}

/// A mapped file. Several files may have one path, in different mount namespaces or because one replaced another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MappedFile {
    device: (u32, u32),
    inode: u64,
    /// Some of the processes that map the file, at most [`limits::OWNERS_MAX`].
    pub(super) owners: Vec<Owner>,
}

/// Mapped files by path.
#[derive(Debug, Default)]
pub(super) struct MappedFiles {
    by_path: HashMap<String, Vec<MappedFile>>,
    count: usize,
    bytes: usize,
}

impl MappedFiles {
    /// Reads the mappings of all processes that this process may inspect. Of a process that ends meanwhile, the
    /// mappings that were already read are kept.
    pub(super) fn read() -> Self {
        let mut mapped = Self::default();
        let Ok(processes) = std::fs::read_dir("/proc") else { return mapped };
        for process in processes.flatten() {
            let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            if let Ok(file) = File::open(format!("/proc/{pid}/maps")) {
                // The error means that the process has ended. The mappings that were already read are kept, because any
                // other owner may end before its file is opened, too.
                let _ended = mapped.add(pid, BufReader::with_capacity(4096, file));
            }
        }
        mapped
    }

    /// Files that are or were at `path`, as seen in the root of a process that maps them.
    pub(super) fn of_path(&self, path: &str) -> &[MappedFile] {
        self.by_path.get(path).map_or(&[], Vec::as_slice)
    }

    fn add(&mut self, pid: u32, lines: impl BufRead) -> io::Result<()> {
        let bytes_max = BYTES_MAX.min(self.bytes + PROCESS_BYTES_MAX);
        maps::each_line(lines, limits::MAPS_BYTES_MAX, |line| {
            let Some(line) = line.filter(|line| line.executable && line.path.starts_with(b"/")) else { return };
            let owner = Owner { pid, start: line.start, end: line.end };
            self.add_owner(&line, owner, bytes_max);
        })
    }

    fn add_owner(&mut self, line: &MapsLine<'_>, owner: Owner, bytes_max: usize) {
        let path = String::from_utf8_lossy(line.path);
        let files = self.by_path.get_mut(&*path);
        let is_new_path = files.is_none();
        if let Some(files) = files
            && let Some(file) = files.iter_mut().find(|file| file.inode == line.inode && file.device == line.device)
        {
            if file.owners.len() < limits::OWNERS_MAX {
                file.owners.push(owner);
            }
            return;
        }
        // The size covers a file with the maximum number of owners, its entry in the map, and the overhead of the
        // allocator.
        let path_bytes = if is_new_path { path.len() + size_of::<(String, Vec<MappedFile>)>() } else { 0 };
        let bytes = path_bytes + size_of::<MappedFile>() + limits::OWNERS_MAX * size_of::<Owner>() + 64;
        if limits::MAPPED_FILES_MAX <= self.count || bytes_max < self.bytes + bytes {
            return;
        }
        let file = MappedFile { device: line.device, inode: line.inode, owners: vec![owner] };
        self.by_path.entry(path.into_owned()).or_default().push(file);
        self.count += 1;
        self.bytes += bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(mapped: &mut MappedFiles, pid: u32, maps: &str) {
        mapped.add(pid, maps.as_bytes()).unwrap();
    }

    #[test]
    fn long_paths_take_bounded_memory_and_leave_some_for_other_processes() {
        use std::fmt::Write as _;
        let mut mapped = MappedFiles::default();
        for pid in 1..=3 {
            let mut maps = String::new();
            for index in 0..2_000_u64 {
                let start = 0x1000 * (index + 1);
                writeln!(
                    maps,
                    "{start:x}-{:x} r-xp 0 8:2 {index} /{pid}/{index}/{}",
                    start + 0x1000,
                    "x".repeat(4_000)
                )
                .unwrap();
            }
            add(&mut mapped, pid, &maps);
            assert!(mapped.bytes <= PROCESS_BYTES_MAX * pid as usize, "{}", mapped.bytes);
        }
        add(&mut mapped, 4, "1000-2000 r-xp 0 8:2 1 /usr/bin/innocent\n");
        assert_eq!(mapped.of_path("/usr/bin/innocent").len(), 1);
        let kept: usize = mapped.by_path.keys().map(String::len).sum();
        assert!(PROCESS_BYTES_MAX < kept && kept < mapped.bytes, "{kept} {}", mapped.bytes);
    }

    #[test]
    fn files_of_one_path_are_distinguished_and_have_all_their_owners() {
        let mut mapped = MappedFiles::default();
        add(
            &mut mapped,
            1,
            "00400000-00452000 r-xp 00000000 08:02 173521      /usr/bin/a b (deleted)\n\
             00651000-00652000 r--p 00051000 08:02 173521      /usr/bin/a b (deleted)\n\
             7ffc0000-7ffc2000 r-xp 00000000 00:00 0           [vdso]\n\
             7ffd0000-7ffd2000 rwxp 00000000 00:00 0 \n\
             nonsense\n",
        );
        for pid in 2..20 {
            add(&mut mapped, pid, "1000-2000 r-xp 00000000 08:02 5 /usr/bin/a b\n");
        }
        let owners: Vec<Vec<u32>> = mapped
            .of_path("/usr/bin/a b")
            .iter()
            .map(|file| file.owners.iter().map(|owner| owner.pid).collect())
            .collect();
        assert_eq!(owners, [vec![1], vec![2, 3, 4, 5]]);
        assert_eq!(mapped.of_path("/usr/bin/a b")[0].owners[0].start, 0x40_0000);
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
