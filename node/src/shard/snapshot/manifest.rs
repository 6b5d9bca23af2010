//! The manifest of a snapshot: its position, and the name, length and hash of each file.
//!
//! ```text
//! manifest | version u8 | shard u32 | index u64 | log_id_len u8 | log_id | membership | files u32 | file … | crc u32 |
//! membership | is_present u8 | len u32 | membership |
//! file     | name_len u8 | name | bytes u64 | SHA-256 32 |
//! ```
//!
//! Integers are big-endian, and `crc` is the CRC-32C of the bytes before it. Names are ascending.
//!
//! Invariant: decoding returns a manifest exactly as it was encoded, or an error. A name is one component of a path,
//! and never leads out of its folder.

use bytes::{Buf as _, BufMut as _, Bytes, TryGetError};
use sha2::{Digest as _, Sha256};
use storage_engine::{Flushed, Position};

use crate::error::RecordError;

/// Version of the manifest.
const VERSION: u8 = 1;
const RECORD: &str = "manifest";
const CRC_BYTES: usize = 4;
/// Smallest size of a file in the manifest.
const FILE_BYTES_MIN: usize = 42;
/// Largest number of files. RocksDB's table files have 64 MiB, so these are terabytes.
const FILES_MAX: usize = 65_536;
/// Longest name of a file. RocksDB's longest names have about 30 bytes.
const NAME_BYTES_MAX: usize = 64;
/// Largest manifest: the most files with the longest names, and a membership of thousands of nodes.
pub(crate) const MANIFEST_BYTES_MAX: usize = FILES_MAX * (FILE_BYTES_MIN + NAME_BYTES_MAX) + (1 << 20);
/// Largest chunk in which a file is hashed.
const HASHED_BYTES: usize = 1 << 20;

/// SHA-256 of a file.
pub(crate) type FileHash = [u8; 32];

/// A file of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SnapshotFile {
    pub(crate) name: String,
    pub(crate) bytes: u64,
    pub(crate) hash: FileHash,
}

/// Description of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Manifest {
    pub(crate) shard: u32,
    /// Position of the last entry in the snapshot.
    pub(crate) position: Position,
    /// Membership of the group at this position.
    pub(crate) membership: Option<Bytes>,
    /// Files, ascending by name.
    pub(crate) files: Vec<SnapshotFile>,
}

impl Manifest {
    /// Returns the state that the snapshot holds.
    pub(crate) fn state(&self) -> Flushed {
        Flushed { position: Some(self.position.clone()), membership: self.membership.clone() }
    }

    /// Total size of all files, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    pub(crate) fn file(&self, name: &str) -> Option<&SnapshotFile> {
        let at = self.files.binary_search_by(|file| file.name.as_str().cmp(name)).ok()?;
        self.files.get(at)
    }

    /// Encodes the manifest.
    ///
    /// # Errors
    /// [`RecordError::Content`]: a limit is exceeded or a name is not allowed, so the manifest would not decode.
    pub(crate) fn encode(&self) -> Result<Bytes, RecordError> {
        let too_large = |_overflow| RecordError::Content { record: RECORD };
        let mut out = vec![VERSION];
        out.put_u32(self.shard);
        out.put_u64(self.position.index);
        out.put_u8(u8::try_from(self.position.log_id.len()).map_err(too_large)?);
        out.put_slice(&self.position.log_id);
        let membership = self.membership.as_deref().unwrap_or_default();
        out.put_u8(u8::from(self.membership.is_some()));
        out.put_u32(u32::try_from(membership.len()).map_err(too_large)?);
        out.put_slice(membership);
        out.put_u32(u32::try_from(self.files.len()).map_err(too_large)?);
        for SnapshotFile { name, bytes, hash } in &self.files {
            out.put_u8(u8::try_from(name.len()).map_err(too_large)?);
            out.put_slice(name.as_bytes());
            out.put_u64(*bytes);
            out.put_slice(hash);
        }
        out.put_u32(crc32c::crc32c(&out));
        self.check()?;
        if out.len() > MANIFEST_BYTES_MAX {
            return Err(RecordError::Length { record: RECORD });
        }
        Ok(out.into())
    }

    /// Decodes a manifest.
    ///
    /// # Errors
    /// [`RecordError`]: the bytes are no manifest that [`Manifest::encode`] returns.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let length = RecordError::Length { record: RECORD };
        let short = |_short: TryGetError| RecordError::Length { record: RECORD };
        let content = || RecordError::Content { record: RECORD };
        if bytes.len() > MANIFEST_BYTES_MAX {
            return Err(length);
        }
        match bytes.first() {
            Some(&VERSION) => {}
            Some(&found) => return Err(RecordError::Version { record: RECORD, found, expected: VERSION }),
            None => return Err(length),
        }
        let (mut rest, crc) = bytes.split_last_chunk::<CRC_BYTES>().ok_or(length)?;
        if crc32c::crc32c(rest) != u32::from_be_bytes(*crc) {
            return Err(RecordError::Checksum { record: RECORD });
        }
        let _version = rest.try_get_u8().map_err(short)?;
        let shard = rest.try_get_u32().map_err(short)?;
        let index = rest.try_get_u64().map_err(short)?;
        let log_id_len = rest.try_get_u8().map_err(short)?;
        let log_id = Bytes::copy_from_slice(take(&mut rest, log_id_len.into())?);
        let is_present = rest.try_get_u8().map_err(short)?;
        let membership_len = rest.try_get_u32().map_err(short)?;
        let membership = take(&mut rest, membership_len as usize)?;
        let membership = match is_present {
            0 if membership.is_empty() => None,
            1 => Some(Bytes::copy_from_slice(membership)),
            _ => return Err(content()),
        };
        let count = rest.try_get_u32().map_err(short)? as usize;
        // No more memory than the bytes justify.
        let mut files = Vec::with_capacity(count.min(rest.len() / FILE_BYTES_MIN));
        for _ in 0..count {
            let name_len = rest.try_get_u8().map_err(short)?;
            let name =
                std::str::from_utf8(take(&mut rest, name_len.into())?).map_err(|_not_utf8| content())?.to_owned();
            let bytes = rest.try_get_u64().map_err(short)?;
            let mut hash = FileHash::default();
            rest.try_copy_to_slice(&mut hash).map_err(short)?;
            files.push(SnapshotFile { name, bytes, hash });
        }
        if !rest.is_empty() {
            return Err(RecordError::Length { record: RECORD });
        }
        let manifest = Self { shard, position: Position { index, log_id }, membership, files };
        manifest.check()?;
        Ok(manifest)
    }

    fn check(&self) -> Result<(), RecordError> {
        let is_ascending = self.files.windows(2).all(|pair| pair[0].name < pair[1].name);
        let total = self.files.iter().try_fold(0_u64, |total, file| total.checked_add(file.bytes));
        let is_valid = is_ascending
            && total.is_some()
            && self.files.len() <= FILES_MAX
            && self.files.iter().all(|file| is_name(&file.name));
        if is_valid { Ok(()) } else { Err(RecordError::Content { record: RECORD }) }
    }
}

fn take<'a>(rest: &mut &'a [u8], bytes: usize) -> Result<&'a [u8], RecordError> {
    let (taken, after) = rest.split_at_checked(bytes).ok_or(RecordError::Length { record: RECORD })?;
    *rest = after;
    Ok(taken)
}

/// Returns true if RocksDB could have given a file this name.
fn is_name(name: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
    (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(is_allowed)
}

/// Returns the length and the hash of all that a reader returns. `pause` is called with the number of bytes after each
/// piece.
pub(super) fn hash(reader: &mut impl std::io::Read, mut pause: impl FnMut(usize)) -> std::io::Result<(u64, FileHash)> {
    let mut hasher = Sha256::new();
    let mut piece = vec![0; HASHED_BYTES];
    let mut bytes = 0;
    loop {
        match reader.read(&mut piece) {
            Ok(0) => return Ok((bytes, hasher.finalize().into())),
            Ok(read) => {
                hasher.update(&piece[..read]);
                bytes += read as u64;
                pause(read);
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn manifest() -> impl Strategy<Value = Manifest> {
        let bytes = |max| prop::collection::vec(any::<u8>(), 0..max).prop_map(Bytes::from);
        let files = prop::collection::btree_map("[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}", any::<(u32, FileHash)>(), 0..20);
        (any::<u32>(), any::<u64>(), bytes(64), prop::option::of(bytes(200)), files).prop_map(
            |(shard, index, log_id, membership, files)| Manifest {
                shard,
                position: Position { index, log_id },
                membership,
                files: files
                    .into_iter()
                    .map(|(name, (bytes, hash))| SnapshotFile { name, bytes: bytes.into(), hash })
                    .collect(),
            },
        )
    }

    fn named(names: &[&str]) -> Manifest {
        let file = |name: &&str| SnapshotFile { name: (*name).to_owned(), bytes: 1, hash: [7; 32] };
        let files = names.iter().map(file).collect();
        Manifest { shard: 1, position: Position { index: 5, log_id: Bytes::new() }, membership: None, files }
    }

    /// Encodes a manifest without the checks of its content, as a hostile sender could.
    fn unchecked(manifest: &Manifest) -> Vec<u8> {
        let valid = Manifest { files: Vec::new(), ..manifest.clone() }.encode().unwrap();
        let mut out = valid[..valid.len() - 2 * CRC_BYTES].to_vec();
        out.put_u32(manifest.files.len() as u32);
        for SnapshotFile { name, bytes, hash } in &manifest.files {
            out.put_u8(name.len() as u8);
            out.put_slice(name.as_bytes());
            out.put_u64(*bytes);
            out.put_slice(hash);
        }
        out.put_u32(crc32c::crc32c(&out));
        out
    }

    proptest! {
        #[test]
        fn a_manifest_decodes_to_itself(manifest in manifest()) {
            let encoded = manifest.encode().unwrap();
            prop_assert_eq!(Manifest::decode(&encoded).unwrap(), manifest);
        }

        #[test]
        fn a_changed_or_short_manifest_is_refused(
            manifest in manifest(),
            at in any::<prop::sample::Index>(),
            bit in 0..8_u8,
        ) {
            let mut bytes = manifest.encode().unwrap().to_vec();
            prop_assert!(Manifest::decode(&bytes[..at.index(bytes.len())]).is_err());
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            prop_assert!(Manifest::decode(&bytes).is_err());
        }

        #[test]
        fn arbitrary_bytes_never_decode_to_an_invalid_manifest(
            mut bytes in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            if let Some(version) = bytes.first_mut() {
                *version = VERSION;
            }
            bytes.put_u32(crc32c::crc32c(&bytes));
            if let Ok(manifest) = Manifest::decode(&bytes) {
                prop_assert_eq!(&manifest.encode().unwrap()[..], &bytes[..]);
            }
        }
    }

    #[test]
    fn names_that_lead_out_of_the_folder_are_refused() {
        let long = "a".repeat(NAME_BYTES_MAX + 1);
        for name in ["", ".", "..", "../a", "a/b", "/a", ".hidden", "a\0b", "a b", "ä", "a\n", &long] {
            let error = Manifest::decode(&unchecked(&named(&[name]))).unwrap_err();
            assert!(matches!(error, RecordError::Content { .. }), "{name:?}: {error}");
            assert!(named(&[name]).encode().is_err(), "{name:?}");
        }
        assert!(Manifest::decode(&unchecked(&named(&["000123.sst", "CURRENT", "MANIFEST-000005"]))).is_ok());
    }

    #[test]
    fn a_name_that_occurs_twice_is_refused() {
        for names in [["a", "a"], ["b", "a"]] {
            assert!(Manifest::decode(&unchecked(&named(&names))).is_err());
        }
    }

    #[test]
    fn lengths_that_overflow_or_exceed_the_bytes_are_refused() {
        let mut manifest = named(&["a", "b"]);
        manifest.files.iter_mut().for_each(|file| file.bytes = u64::MAX);
        assert!(Manifest::decode(&unchecked(&manifest)).is_err());
        // A count of files without the files.
        let mut bytes = named(&[]).encode().unwrap().to_vec();
        bytes.truncate(bytes.len() - 2 * CRC_BYTES);
        bytes.put_u32(u32::MAX);
        bytes.put_u32(crc32c::crc32c(&bytes));
        assert!(matches!(Manifest::decode(&bytes).unwrap_err(), RecordError::Length { .. }));
        assert!(Manifest::decode(&vec![VERSION; MANIFEST_BYTES_MAX + 1]).is_err());
    }
}
