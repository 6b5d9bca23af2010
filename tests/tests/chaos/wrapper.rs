//! A program that runs varve with environment variables that are different for each node.

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
            "#!/bin/sh\nvariables={folder}/node-$3\n\
             if [ \"$1 $2\" = 'node --node-id' ] && [ -f \"$variables\" ]; then\n\
             \x20 exec env $(cat \"$variables\") {varve} \"$@\"\nfi\nexec {varve} \"$@\"\n"
        );
        fs::write(wrapper.path(), script).unwrap();
        fs::set_permissions(wrapper.path(), fs::Permissions::from_mode(0o755)).unwrap();
        wrapper
    }

    /// Returns the path of the script.
    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("varve")
    }

    /// Sets the environment variables of a node, from its next start on. The values have no spaces.
    pub(crate) fn set_environment(&self, node: usize, variables: &[(String, String)]) {
        let text: String = variables.iter().map(|(name, value)| format!("{name}={value}\n")).collect();
        fs::write(self.folder.path().join(format!("node-{node}")), text).unwrap();
    }
}
