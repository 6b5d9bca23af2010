//! The file /tmp/perf-<pid>.map, in which a JIT compiler names its code: `start size name` per line, the first two in
//! hexadecimal.
//!
//! The file grows while the process runs. A later line may name new code at the address of code that was discarded.
//! Each read continues where the last one ended. If the file was replaced or rewritten, it is read again from the
//! start.
//!
//! Invariant: entries do not overlap, because a later line replaces the entries that it covers. The number of entries
//! and the size of their names are bounded. A line beyond these limits adds no entry, but still removes the entries
//! that it covers.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};

use crate::names::location::{FrameType, NAME_BYTES_MAX};
use crate::process::procfs;

/// Largest number of entries that are kept for one process.
const ENTRIES_MAX: usize = 131_072;
/// Largest size of the names that are kept for one process, in bytes. Replaced names count until they are removed.
const NAMES_BYTES_MAX: usize = 8 << 20;
/// Smallest size of all replaced names together, in bytes, at which they are removed to make room.
const NAMES_BYTES_FREED_MIN: usize = NAMES_BYTES_MAX / 4;
/// Number of bytes that are read at once. A line that is longer is skipped.
const READ_BYTES: usize = 64 << 10;
/// Number of bytes of the file after which a refresh ends. The next refresh continues there. A refresh takes some tens
/// of milliseconds.
const REFRESH_BYTES_MAX: u64 = 4 << 20;

#[derive(Clone, Copy, Debug)]
struct Entry {
    end: u64,
    name_start: u32,
    name_bytes: u16,
}

/// The names of the JIT-compiled code of one process.
#[derive(Debug, Default)]
pub(crate) struct PerfMap {
    entries: BTreeMap<u64, Entry>,
    names: String,
    /// Number of bytes of `names` that entries use.
    names_in_use: usize,
    inode: u64,
    /// Number of bytes of the file that were read. They end at the end of a line, or within a line that is too long.
    consumed: u64,
    /// The last byte that was read.
    last_byte: u8,
    /// True if the last read ended within a line that is too long.
    is_in_long_line: bool,
}

impl PerfMap {
    /// Opens the perf map of `pid`, which has the pid `namespace_pid` in its own pid namespace.
    ///
    /// # Errors
    /// Any error of open(2), and [`io::ErrorKind::PermissionDenied`] if the owner is neither the user of the process
    /// nor root. Any user can write to /tmp, and could choose the names that others see.
    pub(crate) fn open(pid: u32, namespace_pid: u32) -> io::Result<File> {
        let (file, metadata) = procfs::open_as_seen_by(pid, &format!("/tmp/perf-{namespace_pid}.map"))?;
        let owner = std::fs::metadata(format!("/proc/{pid}"))?.uid();
        if metadata.uid() != 0 && metadata.uid() != owner {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "the perf map belongs to another user"));
        }
        Ok(file)
    }

    /// Reads new lines of the file. Returns true if there were any, or if the file was replaced or rewritten.
    ///
    /// # Errors
    /// Any error of read(2).
    pub(crate) fn refresh(&mut self, file: &File) -> io::Result<bool> {
        let metadata = file.metadata()?;
        let is_same = self.inode == metadata.ino() && self.consumed <= metadata.len() && self.is_continued(file)?;
        if !is_same {
            *self = Self { inode: metadata.ino(), ..Self::default() };
        }
        let start = self.consumed;
        let mut buffer = vec![0; READ_BYTES];
        let mut kept = 0;
        while self.consumed - start < REFRESH_BYTES_MAX {
            let offset = self.consumed + kept as u64;
            let read = file.read_at(&mut buffer[kept..], offset)?;
            if read == 0 {
                break;
            }
            let filled = kept + read;
            let newlines = buffer[..filled].iter().position(|&byte| byte == b'\n').map(|first| {
                (first + 1, buffer[..filled].iter().rposition(|&byte| byte == b'\n').map_or(0, |last| last + 1))
            });
            let used = match newlines {
                Some((first_line_end, lines_end)) => {
                    let start = if std::mem::take(&mut self.is_in_long_line) { first_line_end } else { 0 };
                    self.add_lines(&buffer[start..lines_end]);
                    lines_end
                }
                // A line that fills the whole buffer is skipped.
                None if filled == buffer.len() || self.is_in_long_line => {
                    self.is_in_long_line = true;
                    filled
                }
                None => 0,
            };
            if let Some(last) = used.checked_sub(1) {
                self.last_byte = buffer[last];
            }
            self.consumed += used as u64;
            buffer.copy_within(used..filled, 0);
            kept = filled - used;
        }
        Ok(!is_same || start < self.consumed)
    }

    /// True if the last byte that was read is still there. If not, the file was rewritten.
    fn is_continued(&self, file: &File) -> io::Result<bool> {
        let mut last = [0];
        let Some(at) = self.consumed.checked_sub(1) else { return Ok(true) };
        Ok(file.read_at(&mut last, at)? == 1 && last == [self.last_byte])
    }

    fn add_lines(&mut self, lines: &[u8]) {
        for line in lines.split(|&byte| byte == b'\n') {
            if let Some((start, end, name)) = parse_line(line) {
                self.add(start, end, &name);
            }
        }
    }

    fn add(&mut self, start: u64, end: u64, name: &str) {
        self.clear_range(start, end);
        if NAMES_BYTES_MAX < self.names.len() + name.len()
            && NAMES_BYTES_FREED_MIN <= self.names.len() - self.names_in_use
        {
            self.remove_unused_names();
        }
        if ENTRIES_MAX <= self.entries.len() || NAMES_BYTES_MAX < self.names.len() + name.len() {
            return;
        }
        let (Ok(name_start), Ok(name_bytes)) = (u32::try_from(self.names.len()), u16::try_from(name.len())) else {
            return;
        };
        self.names.push_str(name);
        self.names_in_use += name.len();
        self.entries.insert(start, Entry { end, name_start, name_bytes });
    }

    /// Removes the entries that begin in `start..end`, because their entry points were overwritten. An entry that
    /// reaches into the range from below is shortened.
    fn clear_range(&mut self, start: u64, end: u64) {
        if let Some((_, below)) = self.entries.range_mut(..start).next_back() {
            below.end = below.end.min(start);
        }
        while let Some((&covered, _)) = self.entries.range(start..end).next() {
            let removed = self.entries.remove(&covered);
            self.names_in_use -= removed.map_or(0, |entry| usize::from(entry.name_bytes));
        }
    }

    fn remove_unused_names(&mut self) {
        let mut names = String::with_capacity(NAMES_BYTES_MAX);
        for entry in self.entries.values_mut() {
            let name_start = entry.name_start as usize;
            let name = self.names.get(name_start..name_start + usize::from(entry.name_bytes)).unwrap_or_default();
            // The length fits u32, because the new string is shorter than the old one.
            entry.name_start = u32::try_from(names.len()).unwrap_or(u32::MAX);
            names.push_str(name);
        }
        self.names = names;
    }

    /// Returns the name of the code at `address`.
    pub(crate) fn find(&self, address: u64) -> Option<&str> {
        let (_, entry) = self.entries.range(..=address).next_back()?;
        let start = entry.name_start as usize;
        (address < entry.end).then(|| self.names.get(start..start + usize::from(entry.name_bytes)))?
    }

    /// Approximate memory that the map takes, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        // A node of the tree is about half full.
        self.names.capacity() + self.entries.len() * 2 * size_of::<(u64, Entry)>()
    }
}

/// Returns start, end and name of a line; `None` for a malformed line.
fn parse_line(line: &[u8]) -> Option<(u64, u64, String)> {
    let mut fields = line.splitn(3, |&byte| byte == b' ');
    let mut number = || {
        let digits = std::str::from_utf8(fields.next()?).ok()?;
        u64::from_str_radix(digits.strip_prefix("0x").unwrap_or(digits), 16).ok()
    };
    let start = number()?;
    let size = number()?;
    let end = start.checked_add(size).filter(|_| size != 0)?;
    let name = String::from_utf8_lossy(fields.next()?.trim_ascii());
    let name = &name[..name.floor_char_boundary(NAME_BYTES_MAX)];
    (!name.is_empty()).then(|| (start, end, name.to_owned()))
}

/// Returns the kind of the code with this name; `None` if the name does not show it. V8 and CPython mark the names that
/// they write.
pub(crate) fn frame_type_of(name: &str) -> Option<FrameType> {
    const V8: [&str; 11] = [
        "JS:",
        "LazyCompile:",
        "Function:",
        "Script:",
        "Eval:",
        "Builtin:",
        "BytecodeHandler:",
        "Stub:",
        "RegExp:",
        "Handler:",
        "Wasm",
    ];
    if V8.iter().any(|prefix| name.starts_with(prefix)) {
        return Some(FrameType::V8);
    }
    name.starts_with("py::").then_some(FrameType::Python)
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    struct Fixture {
        folder: tempfile::TempDir,
        map: PerfMap,
    }

    impl Fixture {
        fn new(text: &str) -> Self {
            let fixture = Self { folder: tempfile::tempdir().unwrap(), map: PerfMap::default() };
            std::fs::write(fixture.path(), text).unwrap();
            fixture
        }
        fn path(&self) -> std::path::PathBuf {
            self.folder.path().join("map")
        }
        fn append(&self, text: &str) {
            File::options().append(true).open(self.path()).unwrap().write_all(text.as_bytes()).unwrap();
        }
        fn refresh(&mut self) -> bool {
            self.map.refresh(&File::open(self.path()).unwrap()).unwrap()
        }
    }

    #[test]
    fn names_are_found_by_address() {
        let mut fixture = Fixture::new("1000 10 LazyCompile:*work /a b.js:3\n0x2000 20 Ljava/lang/Object;::<init>\n");
        assert!(fixture.refresh());
        let find = |address| fixture.map.find(address);
        assert_eq!(find(0x1000), Some("LazyCompile:*work /a b.js:3"));
        assert_eq!((find(0x100f), find(0x1010), find(0xfff)), (find(0x1000), None, None));
        assert_eq!(find(0x201f), Some("Ljava/lang/Object;::<init>"));
    }

    #[test]
    fn only_new_lines_are_read_and_an_incomplete_line_waits() {
        let mut fixture = Fixture::new("1000 10 a\n2000 10 b");
        assert!(fixture.refresh());
        assert_eq!((fixture.map.find(0x2000), fixture.map.consumed), (None, 10));
        assert!(!fixture.refresh());
        fixture.append("c\n3000 10 d\n");
        assert!(fixture.refresh());
        assert_eq!((fixture.map.find(0x2000), fixture.map.find(0x3000)), (Some("bc"), Some("d")));
    }

    #[test]
    fn a_rewritten_file_is_read_from_the_start() {
        let mut fixture = Fixture::new("1000 10 a\n2000 10 b\n");
        assert!(fixture.refresh());
        // The new content is shorter, and in the same inode.
        std::fs::write(fixture.path(), "5000 10 c\n").unwrap();
        assert!(fixture.refresh());
        assert_eq!((fixture.map.find(0x1000), fixture.map.find(0x5000)), (None, Some("c")));
        // The new content is longer, in the same inode, and its lines end elsewhere.
        std::fs::write(fixture.path(), "7000 10 longer_than_before\n8000 10 d\n").unwrap();
        assert!(fixture.refresh());
        assert_eq!((fixture.map.find(0x5000), fixture.map.find(0x7000)), (None, Some("longer_than_before")));
        // The file is replaced by another inode.
        std::fs::rename(fixture.path(), fixture.folder.path().join("old")).unwrap();
        std::fs::write(fixture.path(), "7000 10 longer_than_befora\n8000 10 d\n9000 10 e\n").unwrap();
        assert!(fixture.refresh());
        assert_eq!(fixture.map.find(0x7000), Some("longer_than_befora"));
    }

    #[test]
    fn a_later_line_replaces_the_entries_it_covers() {
        let mut fixture = Fixture::new("1000 100 a\n1200 100 b\n1400 100 c\n1080 200 new\n");
        fixture.refresh();
        let found: Vec<_> = [0x1000, 0x107f, 0x1080, 0x127f, 0x1280, 0x1400].map(|at| fixture.map.find(at)).into();
        assert_eq!(found, [Some("a"), Some("a"), Some("new"), Some("new"), None, Some("c")]);
    }

    #[test]
    fn hostile_lines_are_skipped() {
        let mut fixture = Fixture::new(&format!(
            "\n \n1000\n1000 10\n1000 10 \nzz 10 a\n1000 0 a\nffffffffffffffff 2 a\n1000 ffffffffffffffff a\n\
             2000 10 {}\n4000 10 {}\n3000 10 ok\n",
            "x".repeat(READ_BYTES * 3),
            "y".repeat(1000),
        ));
        fixture.refresh();
        assert_eq!((fixture.map.find(0x1000), fixture.map.find(0x3000)), (None, Some("ok")));
        assert_eq!(fixture.map.find(0x4000).map(str::len), Some(NAME_BYTES_MAX));
        assert_eq!(fixture.map.entries.len(), 2);
    }

    #[test]
    fn an_entry_beyond_the_limit_still_removes_the_names_it_covers() {
        use std::fmt::Write as _;
        let mut text = String::new();
        for index in 0..ENTRIES_MAX + 100 {
            writeln!(text, "{:x} 10 f{index}", index * 16).unwrap();
        }
        let mut fixture = Fixture::new(&text);
        fixture.refresh();
        assert_eq!(fixture.map.entries.len(), ENTRIES_MAX);
        assert_eq!((fixture.map.find(0x10), fixture.map.find(ENTRIES_MAX as u64 * 16)), (Some("f1"), None));
        // One entry replaces two, so one more fits.
        fixture.append("10 20 new\nffffff000 10 another\nfffffff00 10 over_limit\n");
        assert!(fixture.refresh());
        let found = [0x10, 0x20, 0x30, 0xf_ffff_f000, 0xf_ffff_ff00].map(|at| fixture.map.find(at));
        assert_eq!(found, [Some("new"), Some("new"), Some("f3"), Some("another"), None]);
    }

    #[test]
    fn the_bytes_of_replaced_names_are_reused() {
        let mut map = PerfMap::default();
        let long = "x".repeat(NAME_BYTES_MAX);
        for round in 0..=3 * NAMES_BYTES_MAX / NAME_BYTES_MAX {
            map.add(0x1000, 0x1010, &long);
            map.add(0x2000, 0x2010, &format!("kept{round}"));
        }
        let last = format!("kept{}", 3 * NAMES_BYTES_MAX / NAME_BYTES_MAX);
        assert_eq!((map.find(0x1000), map.find(0x2000)), (Some(&*long), Some(&*last)));
        assert_eq!(map.names_in_use, long.len() + last.len());
        assert!(map.names.capacity() <= NAMES_BYTES_MAX + NAME_BYTES_MAX, "{}", map.names.capacity());
        // If all names are in use, a new name does not fit, and the overwritten code has no name.
        for index in 0..2 * (NAMES_BYTES_MAX / NAME_BYTES_MAX) as u64 {
            map.add(0x10_0000 + index * 16, 0x10_0010 + index * 16, &long);
        }
        map.add(0x2000, 0x2010, &long);
        assert_eq!((map.find(0x1000), map.find(0x2000)), (Some(&*long), None));
    }

    #[test]
    fn a_line_that_is_too_long_is_skipped_while_it_grows() {
        let mut fixture = Fixture::new(&format!("1000 10 a\n2000 10 {}", "x".repeat(READ_BYTES * 2)));
        assert!(fixture.refresh());
        let consumed = fixture.map.consumed;
        assert!(READ_BYTES as u64 * 2 < consumed, "{consumed}");
        assert!(!fixture.refresh());
        fixture.append("5000 10 still_the_same_line");
        assert!(fixture.refresh());
        fixture.append(" 6000 10 still_the_same_line\n7000 10 b\n");
        assert!(fixture.refresh());
        let found = [0x1000, 0x2000, 0x5000, 0x6000, 0x7000].map(|at| fixture.map.find(at));
        assert_eq!(found, [Some("a"), None, None, None, Some("b")]);
        assert!(consumed < fixture.map.consumed);
    }

    #[test]
    fn a_perf_map_of_another_user_is_not_read() {
        let pid = std::process::id();
        let namespace_pid = u32::MAX;
        let path = format!("/tmp/perf-{namespace_pid}.map");
        std::fs::write(&path, "1000 10 a\n").unwrap();
        assert!(PerfMap::open(pid, namespace_pid).is_ok());
        match std::os::unix::fs::chown(&path, Some(65534), None) {
            Ok(()) => {
                let error = PerfMap::open(pid, namespace_pid).unwrap_err();
                assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
            }
            Err(error) => testkit::report::skipped("a_perf_map_of_another_user_is_not_read", error),
        }
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn the_runtime_is_recognized_by_its_names() {
        assert_eq!(frame_type_of("JS:*work /a.js:1"), Some(FrameType::V8));
        assert_eq!(frame_type_of("py::work:/a.py"), Some(FrameType::Python));
        assert_eq!(frame_type_of("Interpreter"), None);
    }
}
