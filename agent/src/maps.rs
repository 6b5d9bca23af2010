//! The executable mappings of a process, from /proc/<pid>/maps.
//!
//! Invariant: the mappings of a [`Maps`] are sorted, do not overlap and take [`PROCESS_BYTES_MAX`] at most, whatever was read. A
//! line that is not understood or does not fit is left out and counted, never guessed at.

use std::collections::HashSet;
use std::io::{self, BufRead};
use std::sync::Arc;

use foldhash::fast::RandomState;
use symbol_store::maps::{self, MapsLine};

/// Executable mappings kept of one process; a runtime that maps every compiled function on its own has a few thousand.
pub(crate) const MAPPINGS_MAX: usize = 65_536;
/// What the mappings of one process may take, in bytes: as many as there may be, of a few hundred files with long paths.
pub(crate) const PROCESS_BYTES_MAX: usize = 8 << 20;
/// Bytes read of one file. A process can make its maps arbitrarily long.
const BYTES_MAX: u64 = 16 << 20;
/// What a mapping takes besides its path: itself, and what is known of its file.
const MAPPING_BYTES: usize = size_of::<Mapping>() + 16;
/// What a path takes besides its text: two counts, and its place in the table of paths.
const PATH_BYTES: usize = 48;

/// What a mapping shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Backing {
    /// A file, named as the process sees it.
    File { device: (u32, u32), inode: u64, path: Arc<str> },
    /// The code that the kernel gives to every process.
    Vdso,
    /// Memory without a file: what a JIT compiler writes code to.
    Anonymous,
}

/// One executable mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mapping {
    pub(crate) start: u64,
    /// The first address behind it.
    pub(crate) end: u64,
    /// Where `start` is in the file.
    pub(crate) offset: u64,
    pub(crate) backing: Backing,
}

/// The executable mappings of one process at one moment.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Maps {
    mappings: Vec<Mapping>,
    bytes: usize,
    /// Lines that were not understood, or did not fit the limits.
    pub(crate) lines_skipped: usize,
}

impl Maps {
    /// Reads the mappings of a process.
    ///
    /// # Errors
    /// What open(2) or read(2) says: the process is gone, or may not be looked at.
    pub(crate) fn of_process(pid: u32) -> io::Result<Self> {
        let file = std::fs::File::open(format!("/proc/{pid}/maps"))?;
        // The kernel fills one page per read, so a larger buffer would gain nothing.
        Self::read(io::BufReader::with_capacity(4096, file))
    }

    fn read(lines: impl BufRead) -> io::Result<Self> {
        let mut maps = Self::default();
        let mut paths = Paths::default();
        maps::each_line(lines, BYTES_MAX, |line| match line {
            Some(line) if !line.executable => {}
            Some(line) if maps.mappings.len() < MAPPINGS_MAX && maps.bytes < PROCESS_BYTES_MAX => {
                maps.push(&line, &mut paths);
            }
            _ => maps.lines_skipped += 1,
        })?;
        maps.sort();
        Ok(maps)
    }

    fn push(&mut self, line: &MapsLine<'_>, paths: &mut Paths) {
        let (backing, path_bytes) = backing(line, paths);
        if PROCESS_BYTES_MAX < self.bytes + MAPPING_BYTES + path_bytes {
            self.lines_skipped += 1;
            return;
        }
        self.bytes += MAPPING_BYTES + path_bytes;
        self.mappings.push(Mapping { start: line.start, end: line.end, offset: line.offset, backing });
    }

    /// The file is not read in one go, so a mapping that moves meanwhile can be met twice: the later line is the truer one.
    fn sort(&mut self) {
        let in_order = |pair: &[Mapping]| pair[0].end <= pair[1].start;
        if self.mappings.windows(2).all(in_order) {
            self.mappings.shrink_to_fit();
            return;
        }
        let mut kept: Vec<Mapping> = Vec::with_capacity(self.mappings.len());
        let mut newest_first: Vec<_> = std::mem::take(&mut self.mappings).into_iter().enumerate().collect();
        newest_first.sort_by_key(|(index, mapping)| (mapping.start, std::cmp::Reverse(*index)));
        for (_, mapping) in newest_first {
            if kept.last().is_none_or(|last| last.end <= mapping.start) {
                kept.push(mapping);
            } else {
                self.lines_skipped += 1;
            }
        }
        self.mappings = kept;
    }

    /// The mapping that holds `address`.
    pub(crate) fn find(&self, address: u64) -> Option<&Mapping> {
        let index = self.mappings.partition_point(|mapping| mapping.end <= address);
        self.mappings.get(index).filter(|mapping| mapping.start <= address)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Mapping> {
        self.mappings.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.mappings.len()
    }

    /// About how much memory this takes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether a file of this name (its last path component starts with it) is mapped: tells the runtime of a process.
    pub(crate) fn has_file(&self, name: &str) -> bool {
        self.mappings.iter().any(|mapping| match &mapping.backing {
            Backing::File { path, .. } => path.rsplit('/').next().is_some_and(|last| last.starts_with(name)),
            Backing::Vdso | Backing::Anonymous => false,
        })
    }
}

/// The paths of one process, each kept once: a runtime may map one file thousands of times.
type Paths = HashSet<Arc<str>, RandomState>;

/// What a mapping shows, and how much memory its path adds.
fn backing(line: &MapsLine<'_>, paths: &mut Paths) -> (Backing, usize) {
    if line.path == b"[vdso]" {
        return (Backing::Vdso, 0);
    }
    // Memory shared without a file of the user's has an inode all the same, on a file system of the kernel's own: JIT
    // compilers map such memory twice, to write at one address and run at another.
    let unnamed: [&[u8]; 4] = [b"/memfd:", b"/dev/zero", b"/SYSV", b"/anon_hugepage"];
    if line.inode == 0 || !line.path.starts_with(b"/") || unnamed.iter().any(|prefix| line.path.starts_with(prefix)) {
        return (Backing::Anonymous, 0);
    }
    let text = String::from_utf8_lossy(line.path);
    let (path, path_bytes) = match paths.get(&*text) {
        Some(path) => (Arc::clone(path), 0),
        None => {
            let path: Arc<str> = text.into();
            paths.insert(Arc::clone(&path));
            let path_bytes = path.len() + PATH_BYTES;
            (path, path_bytes)
        }
    };
    (Backing::File { device: line.device, inode: line.inode, path }, path_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Maps {
        Maps::read(text.as_bytes()).unwrap()
    }

    fn path_at(maps: &Maps, address: u64) -> Option<String> {
        maps.find(address).map(|mapping| match &mapping.backing {
            Backing::File { path, .. } => path.to_string(),
            other => format!("{other:?}"),
        })
    }

    #[test]
    fn executable_mappings_are_found_by_address_and_others_are_not() {
        let maps = read(
            "\
            1000-2000 r--p 00000000 08:01 5 /bin/a\n\
            2000-3000 r-xp 00001000 08:01 5 /bin/a\n\
            3000-4000 rw-p 00002000 08:01 5 /bin/a\n\
            5000-6000 r-xp 00000000 08:01 6     /lib/with space (deleted)\n\
            7000-8000 rwxp 00000000 00:00 0 \n\
            9000-a000 r-xp 00000000 00:00 0                          [vdso]\n\
            b000-c000 rwxp 00000000 00:01 7 /memfd:jit (deleted)\n\
            ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]\n",
        );
        assert_eq!(maps.lines_skipped, 0);
        assert_eq!(maps.find(0x2fff).unwrap().offset, 0x1000);
        let found: Vec<_> = [0x1fff, 0x2000, 0x3000, 0x5fff, 0x7000, 0x9000, 0xb000, 0xffffffffff600000]
            .map(|address| path_at(&maps, address).unwrap_or_default())
            .into();
        assert_eq!(found, ["", "/bin/a", "", "/lib/with space", "Anonymous", "Vdso", "Anonymous", "Anonymous"]);
        assert!(maps.has_file("with") && !maps.has_file("b"));
    }

    #[test]
    fn hostile_lines_are_skipped_and_counted() {
        let maps = read("garbage\n2000-1000 r-xp 0 0:0 0 \n4000-5000 r-xp 0 0:0 1 /ok\n6000-7000 r-xp 0 0:0 1 /cut");
        assert_eq!((maps.len(), maps.lines_skipped), (1, 3));
        assert_eq!(path_at(&maps, 0x4000).unwrap(), "/ok");
    }

    #[test]
    fn endless_paths_take_bounded_memory_and_one_path_is_kept_once() {
        use std::fmt::Write as _;
        let maps = |path: &dyn Fn(u64) -> String| {
            let mut text = String::new();
            for index in 0..3_000_u64 {
                let start = 0x1000 * (index + 1);
                writeln!(text, "{start:x}-{:x} r-xp 0 8:1 {} {}", start + 0x1000, index + 1, path(index)).unwrap();
            }
            read(&text)
        };
        let endless = "x".repeat(4_000);
        let own = maps(&|index| format!("/{index}/{endless}"));
        assert!((PROCESS_BYTES_MAX - 8_192..=PROCESS_BYTES_MAX).contains(&own.bytes()), "{}", own.bytes());
        assert_eq!(own.len() + own.lines_skipped, 3_000);
        let shared = maps(&|_| format!("/{endless}"));
        assert_eq!((shared.len(), shared.lines_skipped), (3_000, 0));
        assert!(shared.bytes() < 300_000, "{}", shared.bytes());
    }

    #[test]
    fn bytes_that_are_no_text_are_kept_readable() {
        let maps = Maps::read(&b"1000-2000 r-xp 0 8:1 5 /a\xff\xfeb\\012c\n"[..]).unwrap();
        assert_eq!(path_at(&maps, 0x1000).unwrap(), "/a\u{fffd}\u{fffd}b\\012c");
    }

    #[test]
    fn of_mappings_that_overlap_the_later_line_stays() {
        let maps = read(
            "1000-3000 r-xp 0 8:1 5 /old\n5000-6000 r-xp 0 8:1 5 /b\n1000-4000 r-xp 0 8:1 6 /new\n2000-5800 r-xp 0 8:1 6 /c\n",
        );
        assert_eq!(path_at(&maps, 0x1000).unwrap(), "/new");
        assert_eq!(path_at(&maps, 0x5900).unwrap(), "/b");
        assert_eq!((maps.len(), maps.lines_skipped), (2, 2));
    }

    #[test]
    fn a_hundred_thousand_mappings_are_read_in_linear_time() {
        use std::fmt::Write as _;
        let mut text = String::new();
        for index in 0..100_000u64 {
            let start = 0x1000_0000 + index * 0x2000;
            let permissions = if index % 4 == 0 { "r-xp" } else { "r--p" };
            writeln!(text, "{start:x}-{:x} {permissions} 0 08:01 {index} /lib/{index}.so", start + 0x1000).unwrap();
        }
        let started = std::time::Instant::now();
        let maps = read(&text);
        assert_eq!((maps.len(), maps.lines_skipped), (25_000, 0));
        assert_eq!(path_at(&maps, 0x1000_0000 + 99_996 * 0x2000).unwrap(), "/lib/99996.so");
        assert!(started.elapsed().as_secs() < 5, "{:?}", started.elapsed());
    }

    #[test]
    fn mappings_beyond_the_limit_are_counted() {
        let mut text = String::new();
        for index in 0..MAPPINGS_MAX + 3 {
            text += &format!("{:x}-{:x} r-xp 0 0:0 0 \n", index * 2 + 2, index * 2 + 3);
        }
        let maps = read(&text);
        assert_eq!((maps.len(), maps.lines_skipped), (MAPPINGS_MAX, 3));
    }

    #[test]
    fn the_code_of_this_test_is_in_a_mapping_of_this_process() {
        let maps = Maps::of_process(std::process::id()).unwrap();
        let address = the_code_of_this_test_is_in_a_mapping_of_this_process as *const () as u64;
        assert_eq!(path_at(&maps, address).unwrap(), std::env::current_exe().unwrap().to_str().unwrap());
    }
}
