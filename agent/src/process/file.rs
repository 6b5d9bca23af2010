//! The files that processes have mapped: their identity (build IDs) and their layout (segments).

pub(crate) mod table;

use std::fs::File;
use std::io;

use ebpf::{FileSegment, NewFile};
use host_files::elf::{self, ElfError, ElfImage, Segment};
use proto::build_id::to_hex;

use super::maps::is_shared_memory;

/// Largest length of a file name, in bytes. A longer name is cut at its front. Paths can have 4 kB.
pub(crate) const FILE_NAME_BYTES_MAX: usize = 1024;

/// Name of the kernel's code in every process.
pub(crate) const VDSO: &str = "[vdso]";

/// Index of a file in a [`table::FileTable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FileId(pub(crate) u32);

/// A process that has a file mapped, and the file's path as that process sees it. Separate debug information may lie
/// beside the file.
#[derive(Clone, Debug)]
pub(crate) struct FileOrigin {
    pub(crate) pid: u32,
    pub(crate) path: String,
}

/// Kind of a build ID, in OpenTelemetry's semantic conventions for mappings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum BuildIdKind {
    Gnu,
    Go,
    Htlhash,
}

impl BuildIdKind {
    pub(crate) fn attribute(self) -> &'static str {
        match self {
            Self::Gnu => "process.executable.build_id.gnu",
            Self::Go => "process.executable.build_id.go",
            Self::Htlhash => "process.executable.build_id.htlhash",
        }
    }
}

/// A segment of a file that is loaded into memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LoadedPart {
    /// Offset of the segment in the file.
    pub(crate) offset: u64,
    /// ELF virtual address of the segment.
    pub(crate) address: u64,
    /// Length of the segment in memory.
    pub(crate) size: u64,
}

/// A mapped file, as it is exported.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MappedFile {
    pub(crate) name: Box<str>,
    /// The file's GNU and Go build IDs, or its htlhash if it has neither. A Go build ID is text, and the others are
    /// hexadecimal.
    pub(crate) build_ids: Vec<(BuildIdKind, Box<str>)>,
    /// Loaded segments. Empty for code that is in no file, and for a file that is not ELF, whose addresses are file
    /// offsets.
    pub(crate) parts: Vec<LoadedPart>,
}

impl MappedFile {
    /// Describes code that is in no file, such as the kernel's.
    pub(crate) fn pseudo(name: &str, gnu_build_id: Option<Box<str>>) -> Self {
        let build_ids = gnu_build_id.map(|id| (BuildIdKind::Gnu, id)).into_iter().collect();
        Self { name: name.into(), build_ids, parts: Vec::new() }
    }

    /// Describes an open file by its headers. If it has no build ID, also reads the parts of the file that an htlhash
    /// covers.
    fn identify(name: &str, file: &File) -> io::Result<Self> {
        let image = match ElfImage::read(file) {
            Ok(image) => image,
            Err(ElfError::Io(error)) => return Err(error),
            // A JIT compiler's cache, or a malformed file: it has no ELF addresses, but its hash identifies it.
            Err(_) => ElfImage { gnu_build_id: None, go_build_id: None, segments: Vec::new() },
        };
        let mut build_ids = Vec::new();
        build_ids.extend(image.gnu_build_id.map(|id| (BuildIdKind::Gnu, to_hex(&id).into())));
        build_ids.extend(image.go_build_id.map(|id| (BuildIdKind::Go, id.into())));
        if build_ids.is_empty() {
            build_ids.push((BuildIdKind::Htlhash, to_hex(&elf::htlhash(file)?).into()));
        }
        // Parts with code come first. If parts share bytes of the file, such as a page with the end of data and the
        // start of code, the part with code is the one that runs.
        let mut segments = image.segments;
        segments.sort_by_key(|segment| !segment.executable);
        let part = |segment: &Segment| LoadedPart {
            offset: segment.offset,
            address: segment.address,
            size: segment.memory_size.max(segment.file_size),
        };
        Ok(Self { name: short(name).into(), build_ids, parts: segments.iter().map(part).collect() })
    }

    /// Describes a file that cannot be opened, from BPF's report. Returns `None` if the report has no path.
    fn of_report(new: &NewFile<'_>) -> Option<Self> {
        let name = new.path()?;
        let part =
            |segment: FileSegment| LoadedPart { offset: segment.offset, address: segment.address, size: segment.bytes };
        // A build ID is of use only with ELF addresses, and these are not known without the segment.
        let build_id = (!new.build_id.is_empty() && new.segment.is_some()).then_some(new.build_id);
        Some(Self {
            name: short(&name).into(),
            build_ids: build_id.map(|id| (BuildIdKind::Gnu, to_hex(id).into())).into_iter().collect(),
            parts: new.segment.map(part).into_iter().collect(),
        })
    }

    /// Returns the ELF virtual address of the byte at `file_offset`, or the offset itself if the file is not ELF;
    /// `None` if no part of the file is loaded there.
    pub(crate) fn address(&self, file_offset: u64) -> Option<u64> {
        if self.parts.is_empty() {
            return Some(file_offset);
        }
        self.parts.iter().find_map(|part| {
            let within = file_offset.checked_sub(part.offset).filter(|within| *within < part.size)?;
            part.address.checked_add(within)
        })
    }

    /// True if this is the code of a JIT compiler, in memory that has only a name. Programs in such memory are ELF.
    pub(crate) fn is_memory(&self) -> bool {
        self.parts.is_empty() && is_shared_memory(self.name.as_bytes())
    }

    /// True if `other` describes the same file with the same or fewer details.
    fn includes(&self, other: &Self) -> bool {
        let has_all = !other.build_ids.is_empty() && other.build_ids.iter().all(|id| self.build_ids.contains(id));
        self.name == other.name && has_all && other.parts.iter().all(|part| self.parts.contains(part))
    }

    /// Returns the part that holds `address`.
    pub(crate) fn part(&self, address: u64) -> Option<LoadedPart> {
        let holds = |part: &&LoadedPart| address.checked_sub(part.address).is_some_and(|within| within < part.size);
        self.parts.iter().find(holds).copied()
    }
}

/// Returns the name, or its end if the name is too long.
fn short(name: &str) -> &str {
    &name[name.ceil_char_boundary(name.len().saturating_sub(FILE_NAME_BYTES_MAX))..]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::maps::{Backing, ProcessMapping};

    #[test]
    fn a_report_without_headers_has_a_path_and_no_addresses() {
        let mapping = ProcessMapping { start: 0x7000, end: 0x8000, offset: 0x1000, backing: Backing::Anonymous };
        let nothing = table::tests::new_file(&mapping, u32::MAX);
        assert_eq!(MappedFile::of_report(&nothing), None);
        let reported = MappedFile::of_report(&NewFile { names: b"a\0", build_id: &[1], ..nothing }).unwrap();
        assert_eq!((&*reported.name, reported.build_ids.len(), reported.address(0x1234)), ("/a", 0, Some(0x1234)));
    }

    #[test]
    fn only_loaded_bytes_have_addresses() {
        let parts = vec![
            LoadedPart { offset: 0x1000, address: 0x40_1000, size: 0x800 },
            LoadedPart { offset: 0, address: 0x40_0000, size: 0x1000 },
        ];
        let file = MappedFile { name: "x".into(), build_ids: Vec::new(), parts };
        assert_eq!(
            [0x1000, 0x17ff, 0x1800, 0xfff].map(|offset| file.address(offset)),
            [Some(0x40_1000), Some(0x40_17ff), None, Some(0x40_0fff)]
        );
        assert_eq!(file.part(0x40_1000).unwrap().offset, 0x1000);
        assert_eq!(file.part(0x40_1800), None);
    }
}
