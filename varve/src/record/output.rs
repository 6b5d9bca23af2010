//! The file of a recording: made beside its place when a recording begins, so that what cannot be written is known before, and renamed
//! when it is complete. Dropped before, it leaves nothing.

use std::fs::{self, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use tempfile::NamedTempFile;

/// A file that is not complete yet.
pub(super) struct Output {
    path: PathBuf,
    unfinished: NamedTempFile,
}

impl Output {
    /// Makes sure that the file can be written.
    pub(super) fn create(path: &Path) -> anyhow::Result<Self> {
        let named = path.display();
        // The file that a link leads to is replaced, and not the link.
        let path = match fs::canonicalize(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => path.to_owned(),
            other => other.with_context(|| format!("{named} cannot be written"))?,
        };
        // A device or a pipe would be replaced by a file.
        if fs::metadata(&path).is_ok_and(|metadata| !metadata.is_file()) {
            bail!("{named} is there and is no file: name a file that is new, or is to be replaced");
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let unfinished = tempfile::Builder::new()
            .prefix(".varve-record-")
            // As any new file: the user's mask takes away from it.
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(folder);
        let unfinished = unfinished.with_context(|| format!("{named} cannot be written"))?;
        Ok(Self { path, unfinished })
    }

    /// Writes all of it; returns its path.
    pub(super) fn finish(mut self, bytes: &[u8]) -> anyhow::Result<String> {
        let path = self.path.display().to_string();
        let written = self.unfinished.write_all(bytes).and_then(|()| self.unfinished.as_file().sync_all());
        written.with_context(|| format!("writing {path}"))?;
        self.unfinished.persist(&self.path).with_context(|| format!("writing {path}"))?;
        Ok(path)
    }
}
