//! Conversion of raw addresses to locations: build IDs and addresses in files, and names that only this host knows.

pub(crate) mod go;
pub(crate) mod jit;
pub(crate) mod kernel;
pub(crate) mod kernel_symbols;
pub(crate) mod location;
pub(crate) mod locator;
pub(crate) mod perf_map;
pub(crate) mod process;
pub(crate) mod shared_tables;
