//! /proc/<pid>/maps, of which only executable mappings are kept.
//!
//! `start-end perms offset major:minor inode [path]`, numbers in hexadecimal but the inode, sorted by start. A path may hold
//! spaces; the kernel writes a newline in it as `\012` and appends ` (deleted)` when the file has no name any more.
//!
//! Invariant: the mappings of a [`Maps`] are sorted and do not overlap, whatever was read. A line that is not understood is
//! left out and counted, never guessed at.

use std::io::{self, BufRead, Read as _};

/// Executable mappings kept of one process; a runtime that maps every compiled function on its own has a few thousand.
pub(crate) const MAPPINGS_MAX: usize = 65_536;
/// Bytes read of one file: 10^5 mappings with long paths. A process can make its maps arbitrarily long.
const BYTES_MAX: u64 = 32 << 20;
/// A line holds a path of up to 4,096 bytes, in which every byte may be escaped as four.
const LINE_BYTES_MAX: usize = 4 * 4096 + 128;

/// What a mapping shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Backing {
    /// A file, named as the process sees it.
    File { inode: u64, path: Box<str> },
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
#[derive(Debug, Default)]
pub(crate) struct Maps {
    mappings: Vec<Mapping>,
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

    fn read(mut lines: impl BufRead) -> io::Result<Self> {
        let mut maps = Self::default();
        let mut line = Vec::with_capacity(256);
        let mut bytes = 0;
        while bytes < BYTES_MAX {
            line.clear();
            let read = (&mut lines).take(LINE_BYTES_MAX as u64).read_until(b'\n', &mut line)?;
            if read == 0 {
                break;
            }
            bytes += read as u64;
            match parse_line(&line) {
                Some(None) => {}
                Some(Some(mapping)) if maps.mappings.len() < MAPPINGS_MAX => maps.mappings.push(mapping),
                _ => maps.lines_skipped += 1,
            }
        }
        maps.sort();
        Ok(maps)
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

    /// The mapping that holds `address`, and its number among the mappings.
    pub(crate) fn find(&self, address: u64) -> Option<(usize, &Mapping)> {
        let index = self.mappings.partition_point(|mapping| mapping.end <= address);
        let mapping = self.mappings.get(index)?;
        (mapping.start <= address).then_some((index, mapping))
    }

    pub(crate) fn get(&self, index: usize) -> Option<&Mapping> {
        self.mappings.get(index)
    }

    pub(crate) fn len(&self) -> usize {
        self.mappings.len()
    }

    /// Whether a file of this name (its last path component starts with it) is mapped: tells the runtime of a process.
    pub(crate) fn has_file(&self, name: &str) -> bool {
        self.mappings.iter().any(|mapping| match &mapping.backing {
            Backing::File { path, .. } => path.rsplit('/').next().is_some_and(|last| last.starts_with(name)),
            Backing::Vdso | Backing::Anonymous => false,
        })
    }
}

/// `None`: not understood. `Some(None)`: understood, and not executable.
fn parse_line(line: &[u8]) -> Option<Option<Mapping>> {
    let line = line.strip_suffix(b"\n")?;
    // Numbers are ASCII; only the path may be anything.
    let mut fields = line.splitn(6, |&byte| byte == b' ');
    let mut field = || fields.next().and_then(|field| std::str::from_utf8(field).ok());
    let (start, end) = field()?.split_once('-')?;
    let (start, end) = (hex(start)?, hex(end)?);
    let permissions = field()?;
    let offset = hex(field()?)?;
    let (major, minor) = field()?.split_once(':')?;
    let (_, _) = (hex(major)?, hex(minor)?);
    let inode = decimal(field()?)?;
    let path = fields.next().map(|path| String::from_utf8_lossy(path.trim_ascii_start())).unwrap_or_default();
    if permissions.len() != 4 || end <= start {
        return None;
    }
    if permissions.as_bytes()[2] != b'x' {
        return Some(None);
    }
    Some(Some(Mapping { start, end, offset, backing: backing(inode, &path) }))
}

fn backing(inode: u64, path: &str) -> Backing {
    if path == "[vdso]" {
        return Backing::Vdso;
    }
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    // Memory shared without a file of the user's has an inode all the same, on a file system of the kernel's own: JIT
    // compilers map such memory twice, to write at one address and run at another.
    let unnamed = ["/memfd:", "/dev/zero", "/SYSV", "/anon_hugepage"];
    if inode == 0 || !path.starts_with('/') || unnamed.iter().any(|prefix| path.starts_with(prefix)) {
        return Backing::Anonymous;
    }
    Backing::File { inode, path: path.into() }
}

fn hex(digits: &str) -> Option<u64> {
    // from_str_radix also takes a sign.
    digits.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| u64::from_str_radix(digits, 16).ok())?
}

fn decimal(digits: &str) -> Option<u64> {
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Maps {
        Maps::read(text.as_bytes()).unwrap()
    }

    fn path_at(maps: &Maps, address: u64) -> Option<String> {
        maps.find(address).map(|(_, mapping)| match &mapping.backing {
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
        assert_eq!(maps.find(0x2fff).unwrap().1.offset, 0x1000);
        let found: Vec<_> = [0x1fff, 0x2000, 0x3000, 0x5fff, 0x7000, 0x9000, 0xb000, 0xffffffffff600000]
            .map(|address| path_at(&maps, address).unwrap_or_default())
            .into();
        assert_eq!(found, ["", "/bin/a", "", "/lib/with space", "Anonymous", "Vdso", "Anonymous", "Anonymous"]);
        assert!(maps.has_file("with") && !maps.has_file("b"));
    }

    #[test]
    fn hostile_lines_are_skipped_and_counted() {
        let endless = "x".repeat(LINE_BYTES_MAX * 2);
        let lines = [
            "",
            "garbage",
            "1000-2000",
            "-1000-2000 r-xp 0 0:0 0 ",
            "+1000-2000 r-xp 0 0:0 0 ",
            "2000-1000 r-xp 0 0:0 0 ",
            "1000-1000 r-xp 0 0:0 0 ",
            "1000-2000 x 0 0:0 0 ",
            "1000-2000 r-xp zz 0:0 0 ",
            "1000-2000 r-xp 0 00 0 ",
            "1000-2000 r-xp 0 0:0 -1 ",
            "11112222333344445-2 r-xp 0 0:0 0 ",
        ];
        let maps =
            read(&format!("{}\n{endless}\n4000-5000 r-xp 0 0:0 1 /ok\n6000-7000 r-xp 0 0:0 1 /cut", lines.join("\n")));
        // The endless line is read in three pieces, and the last line has no end.
        assert_eq!((maps.len(), maps.lines_skipped), (1, lines.len() + 3 + 1));
        assert_eq!(path_at(&maps, 0x4000).unwrap(), "/ok");
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
