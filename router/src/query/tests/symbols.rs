//! An empty symbol store for tests.

use symbol_store::convert::Converter;
use symbol_store::limits::Limits;
use symbol_store::{Config, SymbolStore};

/// Makes a symbol store without any symbol table.
pub(crate) fn symbols() -> (tempfile::TempDir, SymbolStore) {
    let directory = tempfile::tempdir().unwrap();
    let symbols = SymbolStore::open(Config {
        directory: directory.path().join("symbols"),
        converter: Converter { program: "/bin/false".into(), arguments: Vec::new() },
        host_files: false,
        debug_directory: directory.path().join("debug").display().to_string(),
        bucket: None,
        limits: Limits::DEFAULT,
    });
    (directory, symbols.unwrap())
}
