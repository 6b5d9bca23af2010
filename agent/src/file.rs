//! The files that processes have mapped: who they are (build IDs) and how they are laid out (segments).

pub(crate) mod table;

use std::fs::File;
use std::io;

use ebpf::{FileSegment, NewFile};
use proto::build_id::to_hex;
use symbol_store::elf::{self, ElfError, ElfImage, Segment};

/// A longer file name is cut, from the front: paths can be 4 kB.
pub(crate) const FILE_NAME_BYTES_MAX: usize = 1024;

/// Name of the kernel's own code in every process.
pub(crate) const VDSO: &str = "[vdso]";

/// A file of a [`FileTable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FileId(pub(crate) u32);

/// The kind of a build ID, as the semantic conventions for mappings name it.
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

/// A part of a file that is loaded into memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LoadedPart {
    /// Where it begins in the file.
    pub(crate) offset: u64,
    /// Its ELF virtual address.
    pub(crate) address: u64,
    /// Its length in memory.
    pub(crate) size: u64,
}

/// What is sent about a mapped file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct MappedFile {
    pub(crate) name: Box<str>,
    /// GNU and Go build IDs as far as the file has them, else its htlhash; hexadecimal or text.
    pub(crate) build_ids: Vec<(BuildIdKind, Box<str>)>,
    /// Empty for a file that is no ELF file, whose addresses are file offsets, and for code that is in no file.
    pub(crate) parts: Vec<LoadedPart>,
}

impl MappedFile {
    /// Code that is in no file, such as the kernel's.
    pub(crate) fn pseudo(name: &str, gnu_build_id: Option<Box<str>>) -> Self {
        let build_ids = gnu_build_id.map(|id| (BuildIdKind::Gnu, id)).into_iter().collect();
        Self { name: name.into(), build_ids, parts: Vec::new() }
    }

    /// Reads the headers of `file`, and nothing else of it unless it has no build ID.
    fn identify(name: &str, file: &File) -> io::Result<Self> {
        let image = match ElfImage::read(file) {
            Ok(image) => image,
            Err(ElfError::Io(error)) => return Err(error),
            // A JIT's cache, or a broken file: it has no addresses of its own, but it can be told from others.
            Err(_) => ElfImage { gnu_build_id: None, go_build_id: None, segments: Vec::new() },
        };
        let mut build_ids = Vec::new();
        build_ids.extend(image.gnu_build_id.map(|id| (BuildIdKind::Gnu, to_hex(&id).into())));
        build_ids.extend(image.go_build_id.map(|id| (BuildIdKind::Go, id.into())));
        if build_ids.is_empty() {
            build_ids.push((BuildIdKind::Htlhash, to_hex(&elf::htlhash(file)?).into()));
        }
        // Code first: of parts that share bytes of the file (a page of code behind a page of data), it is the code that runs.
        let mut segments = image.segments;
        segments.sort_by_key(|segment| !segment.executable);
        let part = |segment: &Segment| LoadedPart {
            offset: segment.offset,
            address: segment.address,
            size: segment.memory_size.max(segment.file_size),
        };
        Ok(Self { name: short(name).into(), build_ids, parts: segments.iter().map(part).collect() })
    }

    /// What BPF read of a file that cannot be opened; `None`: nothing that would tell it from others.
    fn told(new: &NewFile<'_>) -> Option<Self> {
        let name = new.path()?;
        let part =
            |segment: FileSegment| LoadedPart { offset: segment.offset, address: segment.address, size: segment.bytes };
        // Without its segment, it has no addresses that its build ID would give names to.
        let build_id = (!new.build_id.is_empty() && new.segment.is_some()).then_some(new.build_id);
        Some(Self {
            name: short(&name).into(),
            build_ids: build_id.map(|id| (BuildIdKind::Gnu, to_hex(id).into())).into_iter().collect(),
            parts: new.segment.map(part).into_iter().collect(),
        })
    }

    /// The ELF virtual address of the byte at `file_offset`; the offset itself where the file is no ELF file, and `None`
    /// where no part of it is loaded there.
    pub(crate) fn address(&self, file_offset: u64) -> Option<u64> {
        if self.parts.is_empty() {
            return Some(file_offset);
        }
        self.parts.iter().find_map(|part| {
            let within = file_offset.checked_sub(part.offset).filter(|within| *within < part.size)?;
            part.address.checked_add(within)
        })
    }

    /// Whether what `other` says of a file is a part of this.
    fn includes(&self, other: &Self) -> bool {
        let has_all = !other.build_ids.is_empty() && other.build_ids.iter().all(|id| self.build_ids.contains(id));
        self.name == other.name && has_all && other.parts.iter().all(|part| self.parts.contains(part))
    }

    /// The part that holds `address`.
    pub(crate) fn part(&self, address: u64) -> Option<LoadedPart> {
        let holds = |part: &&LoadedPart| address.checked_sub(part.address).is_some_and(|within| within < part.size);
        self.parts.iter().find(holds).copied()
    }
}

/// The end of a name, if it is long.
fn short(name: &str) -> &str {
    &name[name.ceil_char_boundary(name.len().saturating_sub(FILE_NAME_BYTES_MAX))..]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maps::{Backing, Mapping};

    #[test]
    fn of_a_file_without_headers_its_path_is_told_and_no_addresses() {
        let mapping = Mapping { start: 0x7000, end: 0x8000, offset: 0x1000, backing: Backing::Anonymous };
        let nothing = table::tests::new_file(&mapping, u32::MAX);
        assert_eq!(MappedFile::told(&nothing), None);
        let told = MappedFile::told(&NewFile { names: b"a\0", build_id: &[1], ..nothing }).unwrap();
        assert_eq!((&*told.name, told.build_ids.len(), told.address(0x1234)), ("/a", 0, Some(0x1234)));
    }

    #[test]
    fn an_address_is_given_only_for_bytes_that_are_loaded() {
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
