//! The header of a symbol table.
//!
//! | symcache_bytes u64 | symcache_hash u64 | source u8 | functions u64 | base u64 |
//! | ids u8 | id_len u16, id as the text of `BuildId` ... |
//! | segments u16 | offset u64, file_size u64, address u64, memory_size u64, executable u8 ... |
//!
//! `source` is an index into [`Source::ALL`]. In version 1, which has no [`Source::CallFrames`], index 0 is
//! [`Source::Dynsym`].

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use host_files::elf::Segment;
use proto::BuildId;
use xxhash_rust::xxh3::xxh3_64;

use super::{MAGIC, PREAMBLE_BYTES, TableError, VERSION, VERSION_MIN};
use crate::limits;
use crate::source::Source;

/// The header of a symbol table: everything but the names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    /// Version of the format of the file; [`VERSION`] for a new table.
    pub(crate) version: u32,
    pub(crate) symcache_bytes: u64,
    /// xxh3-64 of the symcache.
    pub(crate) symcache_hash: u64,
    pub(crate) source: Source,
    /// Number of functions in the file, not counting inlined calls.
    pub(crate) functions: u64,
    /// Virtual address to which the addresses in the symcache are relative.
    pub(crate) base: u64,
    /// Build IDs of the file, the best first.
    pub(crate) ids: Vec<BuildId>,
    pub(crate) segments: Vec<Segment>,
}

impl Header {
    /// Offset of the symcache in the file, in bytes. The crate symbolic requires an alignment of 8 bytes. The offset is
    /// aligned to a cache line, which is 64 bytes.
    pub(crate) fn symcache_at(&self) -> usize {
        (PREAMBLE_BYTES + self.body().len()).next_multiple_of(64)
    }

    /// Returns whether the segments can convert file offsets to addresses. Those of a debug file cannot, because they
    /// only have addresses.
    pub(crate) fn has_file_offsets(&self) -> bool {
        self.segments.iter().any(|segment| segment.executable && segment.file_size > 0)
    }

    /// Returns whether no other file with this build ID can have more symbols.
    pub(crate) fn is_best(&self) -> bool {
        self.source == Source::Dwarf && !self.is_old()
    }

    /// Returns whether the table has an older version of the format, so that a new table of the same file would be
    /// better.
    pub(crate) fn is_old(&self) -> bool {
        self.version < VERSION
    }

    /// Returns whether the table has no names.
    pub(crate) fn is_nameless(&self) -> bool {
        self.source == Source::CallFrames
    }

    /// Encodes everything before the symcache.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let body = self.body();
        let mut bytes = Vec::with_capacity(self.symcache_at());
        bytes.extend(MAGIC);
        bytes.extend(self.version.to_le_bytes());
        // `ElfImage` bounds the build IDs and segments, so the body is far smaller than 4 GiB.
        bytes.extend(u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes());
        bytes.extend(xxh3_64(&body).to_le_bytes());
        bytes.extend(body);
        bytes.resize(bytes.len().next_multiple_of(64), 0);
        bytes
    }

    fn body(&self) -> Vec<u8> {
        let mut body = Vec::new();
        body.extend(self.symcache_bytes.to_le_bytes());
        body.extend(self.symcache_hash.to_le_bytes());
        body.push((self.source as u8).saturating_sub(first_source(self.version)));
        body.extend(self.functions.to_le_bytes());
        body.extend(self.base.to_le_bytes());
        let ids: Vec<String> = self.ids.iter().map(ToString::to_string).collect();
        body.push(u8::try_from(ids.len()).unwrap_or(u8::MAX));
        for id in ids {
            body.extend(u16::try_from(id.len()).unwrap_or(u16::MAX).to_le_bytes());
            body.extend(id.as_bytes());
        }
        body.extend(u16::try_from(self.segments.len()).unwrap_or(u16::MAX).to_le_bytes());
        for segment in &self.segments {
            for number in [segment.offset, segment.file_size, segment.address, segment.memory_size] {
                body.extend(number.to_le_bytes());
            }
            body.push(u8::from(segment.executable));
        }
        body
    }

    /// Reads and checks the header of `file`. Returns the header and the offset of the symcache, in bytes.
    pub(crate) fn read(file: &File) -> Result<(Self, usize), TableError> {
        let damaged = |check| TableError::Damaged { check };
        let mut preamble = [0; PREAMBLE_BYTES];
        file.read_exact_at(&mut preamble, 0).map_err(|_short| damaged("length"))?;
        let mut rest = Reader(&preamble);
        let magic = rest.array();
        let version = rest.u32().filter(|version| (VERSION_MIN..=VERSION).contains(version));
        let (Some(MAGIC), Some(version)) = (magic, version) else { return Err(damaged("magic or version")) };
        let length = rest.u32().filter(|length| *length <= limits::TABLE_HEADER_BYTES_MAX);
        let length = length.ok_or_else(|| damaged("header length"))? as usize;
        let mut body = vec![0; length];
        file.read_exact_at(&mut body, PREAMBLE_BYTES as u64).map_err(|_short| damaged("length"))?;
        if rest.u64() != Some(xxh3_64(&body)) {
            return Err(damaged("header hash"));
        }
        let header = Self::decode(version, &mut Reader(&body)).ok_or_else(|| damaged("header"))?;
        Ok((header, (PREAMBLE_BYTES + length).next_multiple_of(64)))
    }

    fn decode(version: u32, body: &mut Reader<'_>) -> Option<Self> {
        let mut header = Self {
            version,
            symcache_bytes: body.u64()?,
            symcache_hash: body.u64()?,
            source: Source::ALL.get(usize::from(body.u8()?.checked_add(first_source(version))?)).copied()?,
            functions: body.u64()?,
            base: body.u64()?,
            ids: Vec::new(),
            segments: Vec::new(),
        };
        for _ in 0..body.u8()? {
            let length = body.u16()?;
            header.ids.push(BuildId::parse(std::str::from_utf8(body.take(usize::from(length))?).ok()?)?);
        }
        for _ in 0..body.u16()? {
            header.segments.push(Segment {
                offset: body.u64()?,
                file_size: body.u64()?,
                address: body.u64()?,
                memory_size: body.u64()?,
                executable: body.u8()? != 0,
            });
        }
        Some(header)
    }
}

/// Index in [`Source::ALL`] of the first source that a version of the format has. In headers of that version, `source`
/// counts from this index.
fn first_source(version: u32) -> u8 {
    if version == 1 { 1 } else { 0 }
}

/// Reader of little-endian integers. Every read returns `None` if too few bytes are left.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.first_chunk().copied()
    }

    fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn header() -> Header {
        Header {
            version: VERSION,
            symcache_bytes: 7,
            symcache_hash: 8,
            source: Source::Symtab,
            functions: 9,
            base: 0x40_0000,
            ids: vec![BuildId::Gnu(vec![1; 20]), BuildId::Go("a/b".into()), BuildId::Htlhash([3; 16])],
            segments: vec![Segment { offset: 1, file_size: 2, address: 3, memory_size: 4, executable: true }],
        }
    }

    #[test]
    fn a_header_is_decoded_from_its_own_bytes() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&header().encode()).unwrap();
        let (read, symcache_at) = Header::read(&file).unwrap();
        assert_eq!(read, header());
        assert_eq!(symcache_at, header().symcache_at());
        assert_eq!(symcache_at, header().encode().len());
    }

    #[test]
    fn a_header_of_version_1_is_read() {
        for source in Source::ALL.into_iter().skip(1) {
            let mut file = tempfile::tempfile().unwrap();
            let old = Header { version: 1, source, ..header() };
            // The source follows 24 bytes of preamble, and 16 bytes of the body.
            assert_eq!(usize::from(old.encode()[PREAMBLE_BYTES + 16]) + 1, source as usize);
            file.write_all(&old.encode()).unwrap();
            let (read, _) = Header::read(&file).unwrap();
            assert_eq!((read.source, read.is_old(), read.is_best()), (source, true, false));
        }
    }

    #[test]
    fn every_flipped_bit_and_every_prefix_is_refused() {
        let bytes = header().encode();
        let used = PREAMBLE_BYTES + header().body().len();
        let refused = |bytes: &[u8]| {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(bytes).unwrap();
            Header::read(&file).is_err()
        };
        for length in 0..used {
            assert!(refused(&bytes[..length]), "{length} bytes");
        }
        for bit in 0..used * 8 {
            let mut changed = bytes.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(refused(&changed), "bit {bit}");
        }
    }
}
