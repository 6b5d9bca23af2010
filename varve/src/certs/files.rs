//! Files of certificates and keys. A file appears complete, or not at all.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::Path;

use anyhow::{Context as _, bail};

/// Maximum size of a file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Content of a file, which determines who may read it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A certificate.
    Public,
    /// A private key, which only its owner may read.
    Secret,
    /// The private key of the CA, which also must not replace an existing file.
    NewSecret,
    /// The certificate of the CA, which must not replace an existing file.
    NewPublic,
}

/// Makes the directory, for its owner only, if it does not exist.
pub(super) fn make_directory(dir: &Path) -> anyhow::Result<()> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.with_context(|| format!("--dir {}", dir.display()))
}

/// Reads a file; `None` if it does not exist.
pub(super) fn read(path: &Path) -> anyhow::Result<Option<Vec<u8>>> {
    let shown = path.display();
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error).with_context(|| shown.to_string()),
    };
    let mut bytes = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).with_context(|| shown.to_string())?;
    if bytes.len() as u64 > FILE_BYTES_MAX {
        bail!("{shown} is larger than {FILE_BYTES_MAX} bytes");
    }
    Ok(Some(bytes))
}

/// Writes a file, syncs it, and puts it into its place.
pub(super) fn write(path: &Path, bytes: &[u8], kind: Kind) -> anyhow::Result<()> {
    let dir = path.parent().context("the path has no directory")?;
    let shown = || path.display().to_string();
    // A temporary file is readable only by its owner from the beginning.
    let mut file = tempfile::NamedTempFile::new_in(dir).with_context(shown)?;
    file.write_all(bytes).with_context(shown)?;
    if matches!(kind, Kind::Public | Kind::NewPublic) {
        fs::set_permissions(file.path(), Permissions::from_mode(0o644)).with_context(shown)?;
    }
    file.as_file().sync_all().with_context(shown)?;
    match kind {
        Kind::Public | Kind::Secret => file.persist(path).with_context(shown)?,
        Kind::NewPublic | Kind::NewSecret => file.persist_noclobber(path).with_context(shown)?,
    };
    Ok(())
}
