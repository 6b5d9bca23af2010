//! The kernel part of a stack: named here, on the host whose kernel it is.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use proto::build_id::to_hex;

use crate::file::{FileId, FileTable, MappedFile};
use crate::kallsyms::{self, KernelSymbols};
use crate::location::{FrameType, Location, LocationId, LocationTable, Marker};
use crate::procfs;

/// What the kernel itself is called where mapped files have names.
const KERNEL_FILE: &str = "[kernel.kallsyms]";
/// Addresses remembered.
const ADDRESSES_MAX: usize = 65_536;
/// The list of modules is a few kilobytes.
const MODULES_BYTES_MAX: u64 = 1 << 20;

/// Names the addresses of the running kernel.
#[derive(Debug)]
pub(crate) struct Kernel {
    /// `None` where the kernel does not show them.
    symbols: Option<KernelSymbols>,
    modules: Vec<u8>,
    locations: HashMap<u64, LocationId, RandomState>,
    files: HashMap<Box<str>, FileId, RandomState>,
}

impl Kernel {
    pub(crate) fn load() -> Self {
        let symbols =
            KernelSymbols::load().inspect_err(|error| tracing::warn!("kernel frames have no names: {error}")).ok();
        Self { symbols, modules: loaded_modules(), locations: HashMap::default(), files: HashMap::default() }
    }

    /// The location of a kernel address.
    pub(crate) fn locate(&mut self, address: u64, files: &mut FileTable, locations: &mut LocationTable) -> LocationId {
        if let Some(id) = self.locations.get(&address) {
            return *id;
        }
        let id = match self.symbols.as_ref().map(|symbols| symbols.find(address)) {
            None => locations.insert(Location::Marker(Marker::KernelSymbolsUnreadable)),
            Some(None) => locations.insert(Location::Marker(Marker::NoKernelSymbol)),
            Some(Some((name, module))) => {
                let file = match self.files.get(module) {
                    Some(file) => *file,
                    None => {
                        let file = files.insert(module_file(module));
                        self.files.insert(module.into(), file);
                        file
                    }
                };
                locations.insert_named(name, Some(file), FrameType::Kernel)
            }
        };
        if self.locations.len() < ADDRESSES_MAX {
            self.locations.insert(address, id);
        }
        id
    }

    /// Reads the symbols again if modules were loaded or unloaded.
    pub(crate) fn follow_modules(&mut self) {
        if self.symbols.is_some() && self.modules != loaded_modules() {
            *self = Self::load();
        }
    }

    /// Forgets every id.
    pub(crate) fn clear(&mut self) {
        self.locations.clear();
        self.files.clear();
    }
}

fn module_file(module: &str) -> MappedFile {
    let build_id = kallsyms::build_id(module).map(|id| to_hex(&id).into());
    if module.is_empty() {
        return MappedFile::pseudo(KERNEL_FILE, build_id);
    }
    MappedFile::pseudo(&format!("[{module}]"), build_id)
}

/// Name, size and address of every module, without the use counts that change all the time. Empty for a kernel without modules.
fn loaded_modules() -> Vec<u8> {
    let modules = procfs::read_at_most("/proc/modules", MODULES_BYTES_MAX).unwrap_or_default();
    let mut kept = Vec::new();
    for line in modules.split(|&byte| byte == b'\n') {
        let fields: Vec<_> = line.split(|&byte| byte == b' ').collect();
        if let [name, size, _uses, _users, state, address, ..] = fields[..] {
            kept.extend([name, size, state, address].concat());
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(symbols: Option<KernelSymbols>) -> Kernel {
        Kernel { symbols, modules: Vec::new(), locations: HashMap::default(), files: HashMap::default() }
    }

    #[test]
    fn a_kernel_that_hides_its_symbols_has_a_frame_that_says_so() {
        let (mut files, mut locations) = (FileTable::default(), LocationTable::default());
        let id = kernel(None).locate(0xffff_ffff_8100_0000, &mut files, &mut locations);
        assert_eq!(locations.get(id), Some(Location::Marker(Marker::KernelSymbolsUnreadable)));
    }

    #[test]
    fn two_addresses_of_one_function_are_one_location() {
        let Ok(symbols) = KernelSymbols::load() else {
            return crate::report::skipped("two_addresses_of_one_function_are_one_location", &"kallsyms");
        };
        let address = symbols.address_of("schedule").expect("every kernel has schedule()");
        let mut kernel = kernel(Some(symbols));
        let (mut files, mut locations) = (FileTable::default(), LocationTable::default());
        let first = kernel.locate(address, &mut files, &mut locations);
        assert_eq!(kernel.locate(address + 4, &mut files, &mut locations), first);
        let Some(Location::Named { name, file: Some(file), frame_type: FrameType::Kernel }) = locations.get(first)
        else {
            panic!("{:?}", locations.get(first));
        };
        assert_eq!((locations.name(name), &*files.get(file).unwrap().name), ("schedule", KERNEL_FILE));
        let other = kernel.locate(0x1000, &mut files, &mut locations);
        assert_eq!(locations.get(other), Some(Location::Marker(Marker::NoKernelSymbol)));
    }
}
