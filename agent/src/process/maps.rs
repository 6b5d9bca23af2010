//! The executable mappings of a process, and the address of its published context, from /proc/<pid>/maps.
//!
//! Invariant: for any file content, mappings are sorted, do not overlap, and take at most [`PROCESS_BYTES_MAX`]. A line
//! that is malformed or beyond the limits is skipped and counted.

use std::collections::HashSet;
use std::io::{self, BufRead};
use std::sync::Arc;

use foldhash::fast::RandomState;
use host_files::maps::{self, MapsLine};

/// Largest number of executable mappings that are kept for one process. A runtime that maps every compiled function by
/// itself has a few thousand.
pub(crate) const MAPPINGS_MAX: usize = 65_536;
/// Largest size of the mappings of one process, in bytes: enough for [`MAPPINGS_MAX`] mappings of a few hundred files
/// with long paths.
pub(crate) const PROCESS_BYTES_MAX: usize = 8 << 20;
/// Largest number of bytes that are read from one maps file. A process can make it arbitrarily long.
const BYTES_MAX: u64 = 16 << 20;
/// Approximate number of bytes of memory that a mapping takes besides its path.
const MAPPING_BYTES: usize = size_of::<ProcessMapping>() + 16;
/// Approximate number of bytes of memory that a path takes besides its text: two reference counts, and its entry in
/// [`Paths`].
const PATH_BYTES: usize = 48;

/// Names of the mapping in which a program publishes its context (OTEP 4719). It has the second or third name if the
/// kernel can name memory.
const CONTEXT_NAMES: [&[u8]; 3] = [b"/memfd:OTEL_CTX", b"[anon_shmem:OTEL_CTX]", b"[anon:OTEL_CTX]"];

/// The memory that a mapping shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Backing {
    /// A file, with its path as the process sees it.
    File { device: (u32, u32), inode: u64, path: Arc<str> },
    /// The vdso: code of the kernel that is mapped into every process.
    Vdso,
    /// Memory without a file, such as the code of a JIT compiler.
    Anonymous,
}

/// One executable mapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ProcessMapping {
    pub(crate) start: u64,
    /// Address after the mapping.
    pub(crate) end: u64,
    /// Offset of `start` in the file.
    pub(crate) offset: u64,
    pub(crate) backing: Backing,
}

/// The executable mappings of one process at one moment.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Maps {
    mappings: Vec<ProcessMapping>,
    bytes: usize,
    /// Address of the first mapping that is named as the context of a process.
    pub(crate) context: Option<u64>,
    /// Number of lines that were skipped, because they were malformed or beyond the limits.
    pub(crate) lines_skipped: usize,
}

impl Maps {
    /// Reads the mappings of a process.
    ///
    /// # Errors
    /// Any error of open(2) or read(2): the process has ended, or may not be read.
    pub(crate) fn of_process(pid: u32) -> io::Result<Self> {
        let file = std::fs::File::open(format!("/proc/{pid}/maps"))?;
        // The kernel fills one page per read, so a larger buffer would gain nothing.
        Self::read(io::BufReader::with_capacity(4096, file))
    }

    pub(crate) fn read(lines: impl BufRead) -> io::Result<Self> {
        let mut maps = Self::default();
        let mut paths = Paths::default();
        maps::each_line(lines, BYTES_MAX, |line| match line {
            Some(line) if !line.executable => {
                if maps.context.is_none() && CONTEXT_NAMES.contains(&line.path) {
                    maps.context = Some(line.start);
                }
            }
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
        self.mappings.push(ProcessMapping { start: line.start, end: line.end, offset: line.offset, backing });
    }

    /// Sorts the mappings. The maps file is read in parts, so a mapping that moves meanwhile can occur twice. The later
    /// line is kept then.
    fn sort(&mut self) {
        let in_order = |pair: &[ProcessMapping]| pair[0].end <= pair[1].start;
        if self.mappings.windows(2).all(in_order) {
            self.mappings.shrink_to_fit();
            return;
        }
        let mut kept: Vec<ProcessMapping> = Vec::with_capacity(self.mappings.len());
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

    /// True if the executable mappings are the same.
    pub(crate) fn has_same_code(&self, other: &Self) -> bool {
        self.mappings == other.mappings && self.lines_skipped == other.lines_skipped
    }

    /// Returns the mapping that holds `address`.
    pub(crate) fn find(&self, address: u64) -> Option<&ProcessMapping> {
        let index = self.mappings.partition_point(|mapping| mapping.end <= address);
        self.mappings.get(index).filter(|mapping| mapping.start <= address)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &ProcessMapping> {
        self.mappings.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.mappings.len()
    }

    /// Approximate memory that the mappings take, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the first mapping of a file whose last path component is `name`.
    pub(crate) fn find_file(&self, name: &str) -> Option<&ProcessMapping> {
        self.mappings.iter().find(|mapping| match &mapping.backing {
            Backing::File { path, .. } => path.rsplit('/').next() == Some(name),
            Backing::Vdso | Backing::Anonymous => false,
        })
    }

    /// True if a file is mapped whose last path component starts with `name`. This identifies the runtime of a process.
    pub(crate) fn has_file(&self, name: &str) -> bool {
        self.mappings.iter().any(|mapping| match &mapping.backing {
            Backing::File { path, .. } => path.rsplit('/').next().is_some_and(|last| last.starts_with(name)),
            Backing::Vdso | Backing::Anonymous => false,
        })
    }
}

/// The paths of one process, each stored once: a runtime may map one file thousands of times.
type Paths = HashSet<Arc<str>, RandomState>;

/// True if a path is that of shared memory, which has an inode on an internal file system of the kernel. JIT compilers
/// map such memory twice, to write at one address and run at another.
pub(crate) fn is_shared_memory(path: &[u8]) -> bool {
    let names: [&[u8]; 4] = [b"/memfd:", b"/dev/zero", b"/SYSV", b"/anon_hugepage"];
    names.iter().any(|name| path.starts_with(name))
}

/// Returns the memory that a mapping shows, and the number of bytes that its path adds to [`Maps::bytes`].
fn backing(line: &MapsLine<'_>, paths: &mut Paths) -> (Backing, usize) {
    if line.path == b"[vdso]" {
        return (Backing::Vdso, 0);
    }
    if line.inode == 0 || !line.path.starts_with(b"/") || is_shared_memory(line.path) {
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
    fn the_context_of_a_process_is_its_first_mapping_with_one_of_three_names() {
        let context = |lines: &str| read(lines).context;
        let other = "1000-2000 rw-p 00000000 00:01 7 /memfd:OTEL_CTX2 (deleted)\n";
        for name in ["/memfd:OTEL_CTX (deleted)", "[anon_shmem:OTEL_CTX]", "[anon:OTEL_CTX]"] {
            let lines = format!("{other}3000-4000 rw-p 00000000 00:01 8 {name}\n5000-6000 rw-p 0 00:01 9 {name}\n");
            assert_eq!(context(&lines), Some(0x3000), "{name}");
            assert_eq!(context(&format!("3000-4000 r-xp 00000000 00:01 8 {name}\n")), None, "code: {name}");
            assert!(read(&lines).has_same_code(&read(other)) && read(&lines) != read(other));
        }
        assert_eq!(context(other), None);
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
    fn long_paths_take_bounded_memory_and_each_is_stored_once() {
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
    fn a_path_that_is_not_text_is_kept_readable() {
        let maps = Maps::read(&b"1000-2000 r-xp 0 8:1 5 /a\xff\xfeb\\012c\n"[..]).unwrap();
        assert_eq!(path_at(&maps, 0x1000).unwrap(), "/a\u{fffd}\u{fffd}b\\012c");
    }

    #[test]
    fn the_later_line_of_overlapping_mappings_is_kept() {
        let maps = read(
            "1000-3000 r-xp 0 8:1 5 /old\n5000-6000 r-xp 0 8:1 5 /b\n\
             1000-4000 r-xp 0 8:1 6 /new\n2000-5800 r-xp 0 8:1 6 /c\n",
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
