//! The symbol store of a role.

use std::path::Path;

use anyhow::Context as _;
use symbol_store::SymbolStore;
use symbol_store::convert::Converter;
use symbol_store::limits::Limits;

/// Name of the hidden subcommand that parses one debug file in a separate process.
pub(crate) const CONVERT_DEBUG_FILE: &str = "convert-debug-file";

/// Folder in which the distribution installs separate debug files.
const DEBUG_DIRECTORY: &str = "/usr/lib/debug";

/// Opens the symbol store in a data directory.
pub(crate) fn open_symbols(data_dir: &Path, limits: Limits) -> anyhow::Result<SymbolStore> {
    let directory = data_dir.join("symbols");
    let config = symbol_store::Config {
        directory: directory.clone(),
        converter: Converter { program: "/proc/self/exe".into(), arguments: vec![CONVERT_DEBUG_FILE.to_owned()] },
        host_files: true,
        debug_directory: DEBUG_DIRECTORY.into(),
        limits,
    };
    SymbolStore::open(config).with_context(|| format!("symbol tables in {}", directory.display()))
}
