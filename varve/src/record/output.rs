//! The output file of a recording or a download. At the start, a temporary file is created next to the final path, so
//! that errors show early. When the file is complete, it is renamed to the final path. An incomplete file is deleted.
//! Only the user of the process may read the file.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use tempfile::NamedTempFile;

/// An output file that is not complete yet.
pub(crate) struct Output {
    path: PathBuf,
    unfinished: NamedTempFile,
}

impl Output {
    /// Creates the temporary file. An error here means that the final file could not be written either.
    pub(crate) fn create(path: &Path) -> anyhow::Result<Self> {
        let named = path.display();
        // Only a regular file may be replaced. A device or a pipe must stay one. A link is not followed, because it
        // could lead anywhere in a folder where others may write.
        match fs::symlink_metadata(path) {
            Ok(metadata) if !metadata.is_file() => {
                bail!("{named} exists and is not a file: name a new file, or one to replace")
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("{named} cannot be written"));
            }
            _ => {}
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        // A temporary file is readable by its user alone. That is needed, because a recording shows processes of all
        // users.
        let unfinished = tempfile::Builder::new().prefix(".varve-record-").tempfile_in(folder);
        let unfinished = unfinished.with_context(|| format!("{named} cannot be written"))?;
        Ok(Self { path: path.to_owned(), unfinished })
    }

    /// Writes the content, renames the file to its final path, and returns this path.
    pub(crate) fn finish(mut self, bytes: &[u8]) -> anyhow::Result<String> {
        let path = self.path.display().to_string();
        let written = self.unfinished.write_all(bytes).and_then(|()| self.unfinished.as_file().sync_all());
        written.with_context(|| format!("writing {path}"))?;
        match self.unfinished.persist(&self.path) {
            Ok(_) => Ok(path),
            // The content is kept, because the recording took time.
            Err(refused) => {
                let (_, kept) = refused.file.keep().with_context(|| format!("writing {path}"))?;
                Err(refused.error)
                    .with_context(|| format!("{path} cannot be replaced; its new content is in {}", kept.display()))
            }
        }
    }
}
