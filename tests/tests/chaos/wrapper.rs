//! A program that runs varve after a few lines of shell that are different for each node.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// A script that replaces itself by varve, so that the process id is that of varve.
#[derive(Debug)]
pub(crate) struct Wrapper {
    folder: TempDir,
}

impl Wrapper {
    /// Makes a script that runs this varve.
    pub(crate) fn new(varve: &Path) -> Self {
        let wrapper = Self { folder: tempfile::tempdir().unwrap() };
        let folder = wrapper.folder.path().display();
        let varve = varve.display();
        let script = format!(
            "#!/bin/sh\nprelude={folder}/node-$3\n\
             if [ \"$1 $2\" = 'node --node-id' ] && [ -f \"$prelude\" ]; then . \"$prelude\"; fi\n\
             exec {varve} \"$@\"\n"
        );
        fs::write(wrapper.path(), script).unwrap();
        fs::set_permissions(wrapper.path(), fs::Permissions::from_mode(0o755)).unwrap();
        wrapper
    }

    /// Returns the path of the script.
    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("varve")
    }

    /// Sets the lines of shell that run before a node, from its next start on.
    pub(crate) fn set_prelude(&self, node: usize, lines: &str) {
        fs::write(self.folder.path().join(format!("node-{node}")), lines).unwrap();
    }
}
