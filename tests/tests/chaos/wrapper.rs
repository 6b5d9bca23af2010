//! A program that runs varve after a few lines of shell that are different for each node.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use tempfile::TempDir;
use tests::shared::varve_binary;

/// A script that replaces itself by varve, so that the process id is that of varve.
#[derive(Debug)]
pub(crate) struct Wrapper {
    folder: TempDir,
}

impl Wrapper {
    pub(crate) fn new() -> Self {
        let wrapper = Self { folder: tempfile::tempdir().unwrap() };
        let folder = wrapper.folder.path().display();
        let varve = varve_binary();
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
