//! Names of the objects in a bucket.
//!
//! ```text
//! tables/<tenant>/<file>/<source>-<uploaded>-<program|debug>-<sha256>
//! aliases/<tenant>/<file>/<other file>
//! ```
//!
//! `<file>` is the [`FileName`] of a build ID, `<uploaded>` 16 hexadecimal digits, and `<sha256>` 64 of them.
//!
//! Invariant: every name that is written is read back as the same value, and no other name is read. A name has no part
//! that a client chose, except hexadecimal digits and the name of a tenant.

use std::fmt;

use object_store::path::Path;
use proto::{BuildId, TenantId};
use sha2::{Digest as _, Sha256};

use crate::source::Source;

/// Longest name of a file, in bytes. File systems allow 255.
const FILE_NAME_BYTES_MAX: usize = 200;

/// The name under which a build ID is stored: `gnu-<hex>`, `htlhash-<hex>`, or `go-` and a hash, because a Go build ID
/// has slashes. A GNU build ID that is too long for the name of a file is hashed, too.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct FileName(String);

impl FileName {
    pub(crate) fn of(id: &BuildId) -> Self {
        let hash = |text: &[u8]| proto::build_id::to_hex(&Sha256::digest(text));
        Self(match id {
            BuildId::Gnu(bytes) if bytes.len() * 2 > FILE_NAME_BYTES_MAX - 4 => format!("gnuhash-{}", hash(bytes)),
            BuildId::Gnu(bytes) => format!("gnu-{}", proto::build_id::to_hex(bytes)),
            BuildId::Go(text) => format!("go-{}", hash(text.as_bytes())),
            BuildId::Htlhash(bytes) => format!("htlhash-{}", proto::build_id::to_hex(bytes)),
        })
    }

    fn parse(text: &str) -> Option<Self> {
        let (kind, digits) = text.split_once('-')?;
        let is_hex = !digits.is_empty() && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let is_known = matches!(kind, "gnu" | "gnuhash" | "go" | "htlhash");
        (is_known && is_hex && text.len() <= FILE_NAME_BYTES_MAX).then(|| Self(text.to_owned()))
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A symbol table in a bucket. The order is from the worst table of one file to the best: a better source is better,
/// and of the same source, a later upload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct TableName {
    pub(crate) source: Source,
    /// Time of the upload, in milliseconds since 1970.
    pub(crate) uploaded_ms: u64,
    /// True if the table has the segments of a program, which convert file offsets to addresses.
    pub(crate) has_file_offsets: bool,
    /// SHA-256 of the table.
    pub(crate) sha256: [u8; 32],
}

impl TableName {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let source = Source::from_code(parts.next()?)?;
        let uploaded = parts.next()?;
        let has_file_offsets = match parts.next()? {
            "program" => true,
            "debug" => false,
            _ => return None,
        };
        let sha256 = proto::build_id::from_hex(parts.next()?)?.try_into().ok()?;
        let table = Self { source, uploaded_ms: u64::from_str_radix(uploaded, 16).ok()?, has_file_offsets, sha256 };
        // Other spellings of the same value, such as capital digits, are not names.
        (parts.next().is_none() && table.to_string() == text).then_some(table)
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { source, uploaded_ms, has_file_offsets, sha256 } = self;
        let segments = if *has_file_offsets { "program" } else { "debug" };
        write!(f, "{}-{uploaded_ms:016x}-{segments}-{}", source.code(), proto::build_id::to_hex(sha256))
    }
}

/// The name of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ObjectName {
    /// A symbol table.
    Table {
        tenant: TenantId,
        /// The first build ID of the file.
        file: FileName,
        table: TableName,
    },
    /// An empty object: `file` also has the build ID `alias`.
    Alias { tenant: TenantId, alias: FileName, file: FileName },
}

impl ObjectName {
    /// Returns the path of the object under the path of the bucket.
    pub(crate) fn path(&self, bucket: &Path) -> Path {
        let parts = match self {
            Self::Table { tenant, file, table } => {
                ["tables", tenant.as_str(), &file.0, &table.to_string()].map(ToOwned::to_owned)
            }
            Self::Alias { tenant, alias, file } => {
                ["aliases", tenant.as_str(), &alias.0, &file.0].map(ToOwned::to_owned)
            }
        };
        parts.into_iter().fold(bucket.clone(), |path, part| path.join(part))
    }

    /// Reads the name of an object from its path. `None` if it is the path of another object.
    pub(crate) fn parse(bucket: &Path, path: &Path) -> Option<Self> {
        let parts: Vec<_> = path.prefix_match(bucket)?.collect();
        let [kind, tenant, file, last] = parts.as_slice() else { return None };
        let tenant = TenantId::new(tenant.as_ref()).ok()?;
        let file = FileName::parse(file.as_ref())?;
        match kind.as_ref() {
            "tables" => Some(Self::Table { tenant, file, table: TableName::parse(last.as_ref())? }),
            "aliases" => Some(Self::Alias { tenant, alias: file, file: FileName::parse(last.as_ref())? }),
            _ => None,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    fn build_id() -> impl Strategy<Value = BuildId> {
        prop_oneof![
            proptest::collection::vec(any::<u8>(), 1..150).prop_map(BuildId::Gnu),
            ".{1,40}".prop_map(BuildId::Go),
            any::<[u8; 16]>().prop_map(BuildId::Htlhash),
        ]
    }

    prop_compose! {
        pub(crate) fn table_name()(
            source in 0..Source::ALL.len(),
            uploaded_ms in any::<u64>(),
            has_file_offsets in any::<bool>(),
            sha256 in any::<[u8; 32]>(),
        ) -> TableName {
            TableName { source: Source::ALL[source], uploaded_ms, has_file_offsets, sha256 }
        }
    }

    fn object_name() -> impl Strategy<Value = ObjectName> {
        let tenant = "[a-zA-Z0-9_-]{1,64}".prop_map(|name| TenantId::new(&name).unwrap());
        (tenant, build_id(), build_id(), table_name(), any::<bool>()).prop_map(
            |(tenant, one, other, table, is_table)| {
                let file = FileName::of(&one);
                match is_table {
                    true => ObjectName::Table { tenant, file, table },
                    false => ObjectName::Alias { tenant, alias: FileName::of(&other), file },
                }
            },
        )
    }

    proptest! {
        #[test]
        fn names_read_back_as_they_were(name in object_name(), bucket in "([a-z]{1,5}(/[a-z]{1,5}){0,2})?") {
            let bucket = Path::parse(bucket).unwrap();
            let path = name.path(&bucket);
            prop_assert_eq!(ObjectName::parse(&bucket, &path), Some(name));
            for part in path.parts() {
                prop_assert!(part.as_ref().len() <= 255, "{}", path);
            }
            prop_assert_eq!(ObjectName::parse(&bucket.clone().join("other"), &path), None);
        }

        #[test]
        fn changed_names_are_refused_or_read_back(
            name in object_name(), at in any::<prop::sample::Index>(), to in any::<char>(),
        ) {
            let mut text: Vec<char> = name.path(&Path::default()).to_string().chars().collect();
            let at = at.index(text.len());
            text[at] = to;
            let Ok(path) = Path::parse(text.into_iter().collect::<String>()) else { return Ok(()) };
            if let Some(read) = ObjectName::parse(&Path::default(), &path) {
                prop_assert_eq!(read.path(&Path::default()), path);
            }
        }
    }

    #[test]
    fn hostile_build_ids_stay_within_their_folder() {
        let bucket = Path::parse("names").unwrap();
        let tenant = TenantId::new("a").unwrap();
        for id in ["../../b", "/etc/passwd", "a/b/c", "..", "\0", "%2e%2e"] {
            let alias = FileName::of(&BuildId::Go(id.to_owned()));
            let name = ObjectName::Alias { tenant: tenant.clone(), alias: alias.clone(), file: alias };
            let path = name.path(&bucket).to_string();
            assert!(path.starts_with("names/aliases/a/go-") && path.split('/').count() == 5, "{path}");
        }
        for path in ["tables/../gnu-00/x", "tables/a/gnu-/x", "tables/a/gnu-00/symtab-1-debug-00", "changed"] {
            if let Ok(path) = Path::parse(path) {
                assert_eq!(ObjectName::parse(&Path::default(), &path), None, "{path}");
            }
        }
    }
}
