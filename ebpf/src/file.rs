//! Records about files that processes run. `bpf/tables.h` and `bpf/mappings/new_file.h` define the layouts, and a test
//! compares them with this module.
//!
//! BPF numbers each file that it sees for the first time, and reports it ([`NewFile`]). User space stores the location
//! of the file's unwind table ([`FileEntry`]).

use crate::RecordError;

/// Key of a file in the map of files: its device, inode, size and modification time, encoded by BPF as a `struct
/// file_key`. A file gets another key when it changes.
pub type FileKey = [u8; 40];

/// Key of the vdso, the code of the kernel that is mapped into every process.
pub const VDSO_KEY: FileKey = [0; 40];

/// Size of a block of an unwind table, in bytes.
pub const BLOCK_BYTES: usize = 4096;
/// Largest number of executable parts of a file in a [`FileEntry`].
pub const FILE_PARTS: usize = 2;

const NEW_FILE_HEAD_BYTES: usize = 136;
const BUILD_ID_BYTES_MAX: usize = 32;
const FILE_ENTRY_BYTES: usize = 48 + 24 * FILE_PARTS;

/// Report of a file that BPF saw for the first time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewFile<'a> {
    /// Key of the file in the map of files.
    pub key: FileKey,
    /// Number by which frames refer to the file: 1 or more.
    pub number: u32,
    /// Pid of a process that has the file mapped, in the initial pid namespace.
    pub pid: u32,
    /// First address of the mapping.
    pub start: u64,
    /// First address after the mapping.
    pub end: u64,
    /// Offset in the file at which the mapping begins.
    pub offset: u64,
    /// The segment that is mapped, as described by the program headers in the memory of the process; `None` if it is
    /// not known.
    pub segment: Option<FileSegment>,
    /// GNU build ID, read from the memory of the process; empty if it is not known.
    pub build_id: &'a [u8],
    /// Names on the path: the file's own, that of its folder, and so on up to the root, each with a terminating zero.
    /// Empty if the path is not known.
    pub names: &'a [u8],
}

/// A loaded segment, as a program header describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSegment {
    /// Offset of the segment in the file.
    pub offset: u64,
    /// ELF virtual address of the segment.
    pub address: u64,
    /// Length of the segment in memory, in bytes.
    pub bytes: u64,
}

impl<'a> NewFile<'a> {
    /// Reads one record.
    ///
    /// # Errors
    /// [`RecordError::TooShort`] if the record is shorter than its header or than its lengths say.
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

    /// Returns the inode number of the file, as the kernel has it.
    #[must_use]
    pub fn inode(&self) -> u64 {
        u64::from_ne_bytes(std::array::from_fn(|index| self.key[index]))
    }

    /// True if the file has this inode number, length in bytes, and modification time in seconds and nanoseconds. Only
    /// the lower 32 bits of the inode number are compared, because a file system may show user space other upper bits
    /// than the kernel has.
    #[must_use]
    pub fn is(&self, inode: u64, bytes: u64, modified: (i64, i64)) -> bool {
        let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|index| self.key[at + index]));
        let nanoseconds = u32::from_ne_bytes(std::array::from_fn(|index| self.key[24 + index]));
        let has_inode = self.inode() & 0xffff_ffff == inode & 0xffff_ffff;
        has_inode && word(8) == bytes && (word(16).cast_signed(), i64::from(nanoseconds)) == modified
    }

    /// Returns the path from the root of the mount namespace, or only the end of a path that is too long. `None` if the
    /// path is not known.
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

/// An executable part of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilePart {
    /// Offset of the part in the file.
    pub start: u64,
    /// Offset after the part.
    pub end: u64,
    /// ELF virtual address minus offset in the file; may wrap around.
    pub bias: u64,
}

/// Layout of an unwind table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TableLayout {
    /// Number of the first page: its ELF virtual address divided by 4 KiB.
    pub first_page: u32,
    /// Number of pages of 4 KiB.
    pub pages: u32,
    /// Offset of the rules in the table, in bytes.
    pub rules_at: u32,
    /// Offset of the rows in the table, in bytes.
    pub rows_at: u32,
}

/// Offsets by which the running goroutine and its labels are found, in bytes. They depend on the version of Go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GoLabels {
    /// Offset, in Go's description of a thread, of the pointer to the goroutine that the thread runs.
    pub current: u16,
    /// Offset, in a goroutine, of the pointer to its labels.
    pub labels: u16,
    /// True if the labels are a map, false if they are a list.
    pub are_map: bool,
}

impl GoLabels {
    fn to_bits(self) -> u32 {
        u32::from(self.current & 0xfff) | u32::from(self.labels & 0xfff) << 12 | u32::from(self.are_map) << 31
    }
}

/// Value of a file in the map of files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileEntry {
    /// Number of the file, as in [`NewFile`].
    pub number: u32,
    /// Slot and layout of the file's unwind table, if it has one.
    pub table: Option<(u32, TableLayout)>,
    /// Offsets of the labels of goroutines, in a Go program whose version is known.
    pub go: Option<GoLabels>,
    /// Id of the language runtime whose code the file has; 0 if it has none.
    pub runtime: u16,
    /// Time of the last lookup of the table, in the units of [`used_at`]. BPF updates it once per epoch.
    pub used: u32,
    /// Executable parts of the file. The elements that are not used are empty.
    pub parts: [FilePart; FILE_PARTS],
}

impl FileEntry {
    /// Encodes the entry for the map of files.
    #[must_use]
    pub fn to_bytes(self) -> [u8; FILE_ENTRY_BYTES] {
        let mut bytes = [0; FILE_ENTRY_BYTES];
        let (table, layout) = self.table.unwrap_or_default();
        let TableLayout { first_page, pages, rules_at, rows_at } = layout;
        let has_table = u32::from(self.table.is_some());
        let go = self.go.map_or(0, GoLabels::to_bits);
        let head = [
            self.number,
            has_table,
            table,
            0,
            first_page,
            pages,
            rules_at,
            rows_at,
            go,
            self.runtime.into(),
            0,
            self.used,
        ];
        for (to, number) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(head) {
            *to = number.to_ne_bytes();
        }
        let parts = self.parts.iter().flat_map(|part| [part.start, part.end, part.bias]);
        for (to, number) in bytes[48..].as_chunks_mut::<8>().0.iter_mut().zip(parts) {
            *to = number.to_ne_bytes();
        }
        bytes
    }

    /// Returns the slot of the table of an encoded entry, if it has one.
    #[must_use]
    pub fn table_of(bytes: &[u8; FILE_ENTRY_BYTES]) -> Option<u32> {
        let number = |at: usize| u32::from_ne_bytes(std::array::from_fn(|index| bytes[at + index]));
        (number(4) != 0).then(|| number(8))
    }

    /// Returns the time at which the table of an encoded entry was last looked up, in the units of [`used_at`].
    #[must_use]
    pub fn used_of(bytes: &[u8; FILE_ENTRY_BYTES]) -> u32 {
        u32::from_ne_bytes(std::array::from_fn(|index| bytes[44 + index]))
    }
}

/// Converts a time on CLOCK_MONOTONIC to the units of [`FileEntry::used`]: 2^30 ns.
#[must_use]
pub fn used_at(ktime_ns: u64) -> u32 {
    (ktime_ns >> 30) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLES_H: &str = include_str!("../bpf/tables.h");
    const NEW_FILE_H: &str = include_str!("../bpf/mappings/new_file.h");

    #[test]
    fn layouts_are_those_of_the_c_headers() {
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
        let table = Some((1, TableLayout::default()));
        let go = None;
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
    fn a_file_is_identified_by_its_key() {
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
    fn fields_that_bpf_could_not_read_are_empty() {
        let bytes = record([9, 10, 0], b"", b"");
        let new = NewFile::read(&bytes).unwrap();
        assert_eq!((new.segment, new.build_id, new.path()), (None, &b""[..], None));
        let too_long = [1; BUILD_ID_BYTES_MAX + 1];
        assert!(NewFile::read(&record([0; 3], &too_long, b"")).is_err());
    }
}
