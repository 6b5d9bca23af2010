//! A workshop with symbol stores: programs made by real tools, and stores that name their addresses.

use std::fs;
use std::io::ErrorKind;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use host_files::elf::ElfImage;
use proto::BuildId;
use symbol_store::convert::Converter;
use symbol_store::limits::Limits;
use symbol_store::{Address, Config, Frame, ObjectKey, Reason, SymbolStore};
use testkit::workshop::Workshop;

/// Time that is longer than any conversion in these tests takes on a slow machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until `happened` returns true.
pub(crate) fn until(what: &str, mut happened: impl FnMut() -> bool) {
    let started = Instant::now();
    while !happened() {
        assert!(started.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A workshop with a debug directory and a store in it.
pub(crate) struct StoreWorkshop(Workshop);

impl Deref for StoreWorkshop {
    type Target = Workshop;

    fn deref(&self) -> &Workshop {
        &self.0
    }
}

impl StoreWorkshop {
    pub(crate) fn new() -> Self {
        let workshop = Workshop::default();
        fs::create_dir(workshop.path("debug")).unwrap();
        Self(workshop)
    }

    /// Directory that replaces `/usr/lib/debug`.
    pub(crate) fn debug_directory(&self) -> PathBuf {
        self.path("debug")
    }

    pub(crate) fn config(&self, host_files: bool) -> Config {
        Config {
            directory: self.path("store"),
            converter: Converter { program: env!("CARGO_BIN_EXE_symbol-converter").into(), arguments: Vec::new() },
            host_files,
            debug_directory: self.debug_directory().to_str().unwrap().to_owned(),
            limits: Limits::DEFAULT,
        }
    }

    /// Opens a store that uses only uploads.
    pub(crate) fn store(&self) -> SymbolStore {
        open(self.config(false))
    }

    /// Opens another store with its own directory.
    pub(crate) fn store_at(&self, name: &str) -> SymbolStore {
        open(Config { directory: self.path(name), ..self.config(false) })
    }

    /// Opens a store that uses the files of this host.
    pub(crate) fn host_store(&self) -> SymbolStore {
        open(self.config(true))
    }
}

/// Opens a store that was just closed in this process. A child that another test has forked holds a copy of its lock
/// until it calls exec.
pub(crate) fn open(config: Config) -> SymbolStore {
    let mut store = None;
    until("the store is closed", || {
        store = match SymbolStore::open(config.clone()) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => None,
            opened => Some(opened.unwrap()),
        };
        store.is_some()
    });
    store.unwrap()
}

pub(crate) fn image(path: &Path) -> ElfImage {
    ElfImage::read(&fs::File::open(path).unwrap()).unwrap()
}

pub(crate) fn gnu_build_id(path: &Path) -> BuildId {
    BuildId::Gnu(image(path).gnu_build_id.unwrap())
}

/// The frames of one address of the file that runs from `path`.
pub(crate) fn symbolize(store: &SymbolStore, id: &BuildId, path: &Path, address: u64) -> Result<Vec<Frame>, Reason> {
    let object = ObjectKey { build_id: Some(id), file: path.to_str().unwrap() };
    let mut answers = store.symbolize(&object, &[Address::Virtual(address)], PATIENCE);
    assert_eq!(answers.len(), 1);
    answers.remove(0).map(|frames| frames.to_vec()).map_err(|nameless| nameless.reason)
}

/// The function names of one address, innermost first.
pub(crate) fn names(store: &SymbolStore, id: &BuildId, path: &Path, address: u64) -> Result<Vec<String>, Reason> {
    symbolize(store, id, path, address).map(|frames| frames.iter().map(|frame| frame.function.to_string()).collect())
}
