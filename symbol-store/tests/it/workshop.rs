//! Helpers of these tests: a directory in which real tools make programs, and symbol stores that name the addresses of
//! these programs.

use std::fs;
use std::io::ErrorKind;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use host_files::elf::ElfImage;
use proto::{BuildId, TenantId};
use symbol_store::convert::Converter;
use symbol_store::limits::Limits;
use symbol_store::{Address, Config, Frame, ObjectKey, Reason, SymbolStore};
use testkit::workshop::Workshop;

/// Longest time to wait for a result. It is longer than any conversion in these tests takes on a slow machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until `happened` returns true. Fails after [`PATIENCE`], with `what` in the message.
pub(crate) fn until(what: &str, mut happened: impl FnMut() -> bool) {
    let started = Instant::now();
    while !happened() {
        assert!(started.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A temporary directory with programs, a debug directory and the directory of a store.
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
            bucket: None,
            limits: Limits::DEFAULT,
        }
    }

    /// Opens a store that makes tables only from uploaded files.
    pub(crate) fn store(&self) -> SymbolStore {
        open(self.config(false))
    }

    /// Opens a store with the directory `name`, which also makes tables only from uploaded files.
    pub(crate) fn store_at(&self, name: &str) -> SymbolStore {
        open(Config { directory: self.path(name), ..self.config(false) })
    }

    /// Opens a store that also makes tables from files of this host.
    pub(crate) fn host_store(&self) -> SymbolStore {
        open(self.config(true))
    }
}

/// Opens a store. Waits if a store with the same directory was just closed, because its lock may still be held: a child
/// that another test has forked holds a copy of the lock until it calls exec.
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

/// Returns the frames of one address of the file at `path`.
pub(crate) fn symbolize(store: &SymbolStore, id: &BuildId, path: &Path, address: u64) -> Result<Vec<Frame>, Reason> {
    let object = ObjectKey { tenant: &TenantId::default_tenant(), build_id: Some(id), file: path.to_str().unwrap() };
    let mut answers = store.symbolize(&object, &[Address::Virtual(address)], PATIENCE);
    assert_eq!(answers.len(), 1);
    answers.remove(0).map(|frames| frames.to_vec()).map_err(|nameless| nameless.reason)
}

/// Returns the function names of one address, innermost first.
pub(crate) fn names(store: &SymbolStore, id: &BuildId, path: &Path, address: u64) -> Result<Vec<String>, Reason> {
    symbolize(store, id, path, address).map(|frames| frames.iter().map(|frame| frame.function.to_string()).collect())
}
