//! Files that processes run, as the programs and user space speak of them: the layouts are `bpf/tables.h` and `bpf/new_file.h`, and a test
//! holds them together.
//!
//! BPF gives each file that it meets for the first time a number and tells so ([`NewFile`]). User space answers with where the file
//! has its unwind table ([`FileEntry`]).

use crate::RecordError;

/// Which file it is, and which state of it: opaque, as BPF wrote it.
pub type FileKey = [u8; 40];

/// That of the vdso: the kernel's own code in every process.
pub const VDSO_KEY: FileKey = [0; 40];

/// Bytes of a block of an unwind table.
pub const BLOCK_BYTES: usize = 4096;
/// Parts of a file that a [`FileEntry`] has.
pub const FILE_PARTS: usize = 2;

const NEW_FILE_HEAD_BYTES: usize = 136;
const BUILD_ID_BYTES_MAX: usize = 32;
const FILE_ENTRY_BYTES: usize = 40 + 24 * FILE_PARTS;

/// A file that was met for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewFile<'a> {
    /// What the map of files knows it by.
    pub key: FileKey,
    /// Its number in frames, from 1 on.
    pub number: u32,
    /// A process, in the initial pid namespace, that has it mapped...
    pub pid: u32,
    /// ...from this address...
    pub start: u64,
    /// ...up to this...
    pub end: u64,
    /// ...from this offset of the file on.
    pub offset: u64,
    /// The segment that is mapped there, as the process has the program headers in its memory.
    pub segment: Option<FileSegment>,
    /// The GNU build ID, as the process has it in its memory; empty: not known.
    pub build_id: &'a [u8],
    /// Its path: names from its own up to the root, each with a zero behind it; empty: not known.
    pub names: &'a [u8],
}

/// A loaded segment, as a program header describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSegment {
    /// Where it begins in the file.
    pub offset: u64,
    /// The address at which it begins, as the file numbers addresses.
    pub address: u64,
    /// Its length in memory.
    pub bytes: u64,
}

impl<'a> NewFile<'a> {
    /// Reads one record.
    ///
    /// # Errors
    /// It is too short, or shorter than it says.
    pub fn read(record: &'a [u8]) -> Result<Self, RecordError> {
        let error = RecordError::TooShort { bytes: record.len(), header_bytes: NEW_FILE_HEAD_BYTES };
        let (key, rest) = record.split_first_chunk::<40>().ok_or(error)?;
        let (numbers, rest) = rest.split_first_chunk::<8>().ok_or(error)?;
        let (words, rest) = rest.split_first_chunk::<48>().ok_or(error)?;
        let (lengths, rest) = rest.split_first_chunk::<8>().ok_or(error)?;
        let (build_id, names) = rest.split_first_chunk::<BUILD_ID_BYTES_MAX>().ok_or(error)?;
        let [number, pid] = pair(numbers);
        let [build_id_bytes, path_bytes] = pair(lengths).map(|bytes| bytes as usize);
        let mut read = [0; 6];
        for (word, bytes) in read.iter_mut().zip(words.as_chunks::<8>().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        let [start, end, offset, segment_offset, address, bytes] = read;
        let segment = (bytes != 0).then_some(FileSegment { offset: segment_offset, address, bytes });
        let build_id = build_id.get(..build_id_bytes).ok_or(error)?;
        let names = names.get(..path_bytes).ok_or(error)?;
        Ok(Self { key: *key, number, pid, start, end, offset, segment, build_id, names })
    }

    /// Its inode number, as the kernel has it of the file itself.
    #[must_use]
    pub fn inode(&self) -> u64 {
        u64::from_ne_bytes(std::array::from_fn(|index| self.key[index]))
    }

    /// Whether it has this inode number, length in bytes and time of its last change, in seconds and nanoseconds: as the kernel has them of
    /// the file itself. A file system may show other inode numbers, of which the lower 32 bits are looked at.
    #[must_use]
    pub fn is(&self, inode: u64, bytes: u64, modified: (i64, i64)) -> bool {
        let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|index| self.key[at + index]));
        let nanoseconds = u32::from_ne_bytes(std::array::from_fn(|index| self.key[24 + index]));
        let has_inode = self.inode() & 0xffff_ffff == inode & 0xffff_ffff;
        has_inode && word(8) == bytes && (word(16).cast_signed(), i64::from(nanoseconds)) == modified
    }

    /// Its path from the root of all that is mounted where it is, however deep a process may see it; `None`: not known. Of one that is too
    /// long, the end.
    #[must_use]
    pub fn path(&self) -> Option<String> {
        let mut path = String::new();
        for name in self.names.split(|byte| *byte == 0).rev().filter(|name| !name.is_empty()) {
            path.push('/');
            path += &String::from_utf8_lossy(name);
        }
        (!path.is_empty()).then_some(path)
    }
}

fn pair(bytes: &[u8; 8]) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = *bytes;
    [u32::from_ne_bytes([a, b, c, d]), u32::from_ne_bytes([e, f, g, h])]
}

/// A part of a file that is loaded to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilePart {
    /// The offset at which it begins.
    pub start: u64,
    /// The offset behind it.
    pub end: u64,
    /// What is to be added to an offset to have the address as the file numbers it; may wrap around.
    pub bias: u64,
}

/// How an unwind table is laid out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableLayout {
    /// Number of the first page of 4 KiB that it knows, by the file's addresses.
    pub first_page: u32,
    /// How many there are.
    pub pages: u32,
    /// Where its rules begin, in bytes.
    pub rules_at: u32,
    /// Where its rows begin, in bytes.
    pub rows_at: u32,
}

/// Where the running goroutine and its labels are, by the version of Go: offsets in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GoLabels {
    /// Of a thread: the goroutine that it runs.
    pub current: u16,
    /// Of a goroutine.
    pub labels: u16,
    /// Whether they are a map; else they are a list.
    pub are_map: bool,
}

impl GoLabels {
    fn to_bits(self) -> u32 {
        u32::from(self.current & 0xfff) | u32::from(self.labels & 0xfff) << 12 | u32::from(self.are_map) << 31
    }
}

/// What BPF is told of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileEntry {
    /// As [`NewFile`] said.
    pub number: u32,
    /// Number of its table in the map of tables, and its layout; `None`: it has none.
    pub table: Option<(u32, TableLayout)>,
    /// Where a Go program has its goroutines' labels, if they are to be read.
    pub go: Option<GoLabels>,
    /// When its table was looked up last, by [`used_at`]. The programs keep it, once in an age.
    pub used: u32,
    /// Its parts; those of no length are none.
    pub parts: [FilePart; FILE_PARTS],
}

impl FileEntry {
    /// As the map of files has it.
    #[must_use]
    pub fn to_bytes(self) -> [u8; FILE_ENTRY_BYTES] {
        let mut bytes = [0; FILE_ENTRY_BYTES];
        let (table, layout) = self.table.unwrap_or_default();
        let TableLayout { first_page, pages, rules_at, rows_at } = layout;
        let has_table = u32::from(self.table.is_some());
        let go = self.go.map_or(0, GoLabels::to_bits);
        let head = [self.number, has_table, table, 0, first_page, pages, rules_at, rows_at, go, self.used];
        for (to, number) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(head) {
            *to = number.to_ne_bytes();
        }
        let parts = self.parts.iter().flat_map(|part| [part.start, part.end, part.bias]);
        for (to, number) in bytes[40..].as_chunks_mut::<8>().0.iter_mut().zip(parts) {
            *to = number.to_ne_bytes();
        }
        bytes
    }

    /// When the table of an entry was looked up last, by [`used_at`].
    #[must_use]
    pub fn used_of(bytes: &[u8; FILE_ENTRY_BYTES]) -> u32 {
        u32::from_ne_bytes(std::array::from_fn(|index| bytes[36 + index]))
    }
}

/// A time of CLOCK_MONOTONIC, as [`FileEntry::used`] has it: whole units of 2^30 ns.
#[must_use]
pub fn used_at(ktime_ns: u64) -> u32 {
    (ktime_ns >> 30) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLES_H: &str = include_str!("../bpf/tables.h");
    const NEW_FILE_H: &str = include_str!("../bpf/new_file.h");

    #[test]
    fn layouts_are_those_that_the_c_compiler_checked() {
        for (what, bytes) in [("file_entry", FILE_ENTRY_BYTES), ("file_key", 40)] {
            let assertion = format!("_Static_assert(sizeof(struct {what}) == {bytes}, \"\");");
            assert!(TABLES_H.contains(&assertion), "{assertion}");
        }
        let head = format!("_Static_assert(__builtin_offsetof(struct new_file, path) == {NEW_FILE_HEAD_BYTES}, \"\");");
        assert!(NEW_FILE_H.contains(&head));
        assert!(NEW_FILE_H.contains(&format!("#define BUILD_ID_BYTES_MAX {BUILD_ID_BYTES_MAX}\n")));
        assert!(TABLES_H.contains(&format!("#define BLOCK_BYTES {BLOCK_BYTES}\n")));
        assert!(TABLES_H.contains(&format!("#define FILE_PARTS {FILE_PARTS}\n")));
        assert!(TABLES_H.contains("#define USED_AT(ktime_ns) ((u32)((ktime_ns) >> 30))"));
        let (table, go) = (Some((1, TableLayout::default())), None);
        assert_eq!(
            FileEntry::used_of(&FileEntry { number: 2, table, go, used: 3, ..FileEntry::default() }.to_bytes()),
            3
        );
    }

    fn record(segment: [u64; 3], build_id: &[u8], names: &[u8]) -> Vec<u8> {
        let mut record = [7; 40].to_vec();
        let u32s = |numbers: [usize; 2]| numbers.map(|number| u32::try_from(number).unwrap().to_ne_bytes()).concat();
        record.extend(u32s([3, 4]));
        record.extend([5, 6, 8].iter().chain(&segment).flat_map(|number: &u64| number.to_ne_bytes()));
        record.extend(u32s([build_id.len(), names.len()]));
        record.extend(build_id);
        record.resize(NEW_FILE_HEAD_BYTES, 0xee);
        record.extend(names);
        record
    }

    #[test]
    fn a_new_file_is_read_as_it_was_written() {
        let bytes = record([9, 10, 11], b"id", b"sh\0bin\0usr\0");
        let segment = Some(FileSegment { offset: 9, address: 10, bytes: 11 });
        let wanted = NewFile {
            key: [7; 40],
            number: 3,
            pid: 4,
            start: 5,
            end: 6,
            offset: 8,
            segment,
            build_id: b"id",
            names: b"sh\0bin\0usr\0",
        };
        assert_eq!(NewFile::read(&bytes), Ok(wanted));
        assert_eq!(wanted.path().unwrap(), "/usr/bin/sh");
        assert!((0..bytes.len()).all(|length| NewFile::read(&bytes[..length]).is_err()));
    }

    #[test]
    fn a_file_is_told_from_others_by_its_key() {
        let mut key = [0; 40];
        key[..8].copy_from_slice(&(7_u64 << 32 | 5).to_ne_bytes());
        key[8..16].copy_from_slice(&6_u64.to_ne_bytes());
        key[16..24].copy_from_slice(&(-7_i64).to_ne_bytes());
        key[24..28].copy_from_slice(&8_u32.to_ne_bytes());
        let bytes = record([0; 3], b"", b"");
        let new = NewFile { key, ..NewFile::read(&bytes).unwrap() };
        assert!(new.is(5, 6, (-7, 8)));
        assert!(!(new.is(4, 6, (-7, 8)) || new.is(5, 7, (-7, 8)) || new.is(5, 6, (7, 8)) || new.is(5, 6, (-7, 9))));
    }

    #[test]
    fn what_bpf_could_not_read_is_not_made_up() {
        let bytes = record([9, 10, 0], b"", b"");
        let new = NewFile::read(&bytes).unwrap();
        assert_eq!((new.segment, new.build_id, new.path()), (None, &b""[..], None));
        let too_long = [1; BUILD_ID_BYTES_MAX + 1];
        assert!(NewFile::read(&record([0; 3], &too_long, b"")).is_err());
    }
}
