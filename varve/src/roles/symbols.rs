//! The symbol store of a role.
//!
//! Invariant: only a process that samples this host, or that runs beside its agent, reads files of this host.

use std::path::Path;

use anyhow::Context as _;
use symbol_store::convert::Converter;
use symbol_store::limits::Limits;
use symbol_store::{Config, SymbolStore};

/// Name of the hidden subcommand that parses one debug file in a separate process.
pub(crate) const CONVERT_DEBUG_FILE: &str = "convert-debug-file";

/// Folder in which the distribution installs separate debug files.
const DEBUG_DIRECTORY: &str = "/usr/lib/debug";

/// Opens the symbol store in a data directory. It also names addresses with files of this host.
pub(crate) fn open_symbols_of_host(data_dir: &Path, limits: Limits) -> anyhow::Result<SymbolStore> {
    open(Config { host_files: true, limits, ..config(data_dir) })
}

/// Opens the symbol store of a router in a data directory. It names addresses only with uploaded files, which it shares
/// with other routers through the bucket at the URL `bucket`.
pub(crate) fn open_symbols_of_router(data_dir: &Path, bucket: Option<String>) -> anyhow::Result<SymbolStore> {
    let Some(url) = bucket.clone() else {
        tracing::warn!("other routers do not get the debug files uploaded here: set --debug-files on all routers");
        return open(config(data_dir));
    };
    open(Config { bucket, ..config(data_dir) }).with_context(|| format!("--debug-files {url}"))
}

fn config(data_dir: &Path) -> Config {
    Config {
        directory: data_dir.join("symbols"),
        converter: Converter { program: "/proc/self/exe".into(), arguments: vec![CONVERT_DEBUG_FILE.to_owned()] },
        host_files: false,
        debug_directory: DEBUG_DIRECTORY.into(),
        bucket: None,
        limits: Limits::DEFAULT,
    }
}

fn open(config: Config) -> anyhow::Result<SymbolStore> {
    let directory = config.directory.clone();
    SymbolStore::open(config).with_context(|| format!("symbol tables in {}", directory.display()))
}
