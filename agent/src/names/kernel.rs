//! Names of the kernel part of a stack. Only this host has the kernel's symbols, so the names are found here.

use std::collections::HashMap;

use foldhash::fast::RandomState;

use proto::build_id::to_hex;

use crate::names::kernel_symbols::{self, KernelSymbols};
use crate::names::location::{FrameType, Location, LocationId, LocationTable, Marker};
use crate::process::file::table::FileTable;
use crate::process::file::{FileId, MappedFile};
use crate::process::procfs;
use crate::process::sys::{self, Clock};

/// File name of the kernel itself.
const KERNEL_FILE: &str = "[kernel.kallsyms]";
/// Largest number of cached addresses.
const ADDRESSES_MAX: usize = 65_536;
/// Age of the symbols, in nanoseconds, at which an address in transient code causes another read. Transient code, such
/// as BPF programs and trampolines, appears and vanishes without a change of any list. A read takes 30 ms of CPU. A
/// name is wrong for at most this time.
const STALE_NS: u64 = 30_000_000_000;
/// Largest number of bytes that are read from the list of modules, which has a few kilobytes.
const MODULES_BYTES_MAX: u64 = 1 << 20;

/// Finds the locations of addresses in the running kernel.
#[derive(Debug)]
pub(crate) struct Kernel {
    /// Symbols of the kernel; `None` if the kernel hides them.
    symbols: Option<KernelSymbols>,
    modules: Vec<u8>,
    locations: HashMap<u64, LocationId, RandomState>,
    /// Locations of transient code; void when the symbols are read again.
    transient_locations: HashMap<u64, LocationId, RandomState>,
    stale_after_ns: u64,
    files: HashMap<Box<str>, FileId, RandomState>,
}

impl Kernel {
    pub(crate) fn load() -> Self {
        let symbols =
            KernelSymbols::load().inspect_err(|error| tracing::warn!("kernel frames have no names: {error}")).ok();
        Self::new(symbols)
    }

    fn new(symbols: Option<KernelSymbols>) -> Self {
        Self {
            symbols,
            modules: loaded_modules(),
            locations: HashMap::default(),
            transient_locations: HashMap::default(),
            stale_after_ns: sys::clock_ns(Clock::Monotonic) + STALE_NS,
            files: HashMap::default(),
        }
    }

    /// Returns the location of a kernel address, which was sampled at `ktime_ns`.
    pub(crate) fn locate(
        &mut self,
        address: u64,
        ktime_ns: u64,
        files: &mut FileTable,
        locations: &mut LocationTable,
    ) -> LocationId {
        if let Some(id) = self.locations.get(&address) {
            return *id;
        }
        let Some(symbols) = &self.symbols else {
            return locations.insert(Location::Marker(Marker::KernelSymbolsUnreadable));
        };
        let is_transient = symbols.is_transient(address);
        if is_transient && self.stale_after_ns <= ktime_ns {
            self.read_again(ktime_ns);
        }
        let known = if is_transient { &mut self.transient_locations } else { &mut self.locations };
        if let Some(id) = known.get(&address) {
            return *id;
        }
        let id = match self.symbols.as_ref().and_then(|symbols| symbols.find(address)) {
            None => locations.insert(Location::Marker(Marker::NoKernelSymbol)),
            Some((name, module)) => {
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
        if known.len() < ADDRESSES_MAX {
            known.insert(address, id);
        }
        id
    }

    /// Reads the symbols again. If that fails, the old symbols are kept, because they are still right for the kernel
    /// itself.
    fn read_again(&mut self, ktime_ns: u64) {
        let started_ns = sys::clock_ns(Clock::Monotonic);
        if let Ok(symbols) = KernelSymbols::load() {
            self.symbols = Some(symbols);
        }
        self.transient_locations.clear();
        let took_ns = sys::clock_ns(Clock::Monotonic).saturating_sub(started_ns);
        self.stale_after_ns = ktime_ns + STALE_NS.max(took_ns * 1000);
    }

    /// Reads the symbols again if modules were loaded or unloaded.
    pub(crate) fn follow_modules(&mut self) {
        if self.symbols.is_some() && self.modules != loaded_modules() {
            *self = Self::load();
        }
    }

    /// Forgets every location id.
    pub(crate) fn clear(&mut self) {
        self.locations.clear();
        self.transient_locations.clear();
        self.files.clear();
    }
}

fn module_file(module: &str) -> MappedFile {
    let build_id = kernel_symbols::build_id(module).map(|id| to_hex(&id).into());
    if module.is_empty() {
        return MappedFile::pseudo(KERNEL_FILE, build_id);
    }
    MappedFile::pseudo(&format!("[{module}]"), build_id)
}

/// Returns name, size, state and address of every module, without the use counts, which change all the time. The result
/// is empty for a kernel without modules.
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

    #[test]
    fn a_kernel_that_hides_its_symbols_has_a_marker() {
        let mut files = FileTable::default();
        let mut locations = LocationTable::default();
        let id = Kernel::new(None).locate(0xffff_ffff_8100_0000, 0, &mut files, &mut locations);
        assert_eq!(locations.get(id), Some(Location::Marker(Marker::KernelSymbolsUnreadable)));
    }

    #[test]
    fn two_addresses_of_one_function_are_one_location() {
        let Ok(symbols) = KernelSymbols::load() else {
            return testkit::report::skipped("two_addresses_of_one_function_are_one_location", "kallsyms");
        };
        let address = symbols.address_of("schedule").expect("every kernel has schedule()");
        let mut kernel = Kernel::new(Some(symbols));
        let mut files = FileTable::default();
        let mut locations = LocationTable::default();
        let first = kernel.locate(address, 0, &mut files, &mut locations);
        assert_eq!(kernel.locate(address + 4, 0, &mut files, &mut locations), first);
        let Some(Location::Named { name, file: Some(file), frame_type: FrameType::Kernel }) = locations.get(first)
        else {
            panic!("{:?}", locations.get(first));
        };
        assert_eq!((locations.name(name), &*files.get(file).unwrap().name), ("schedule", KERNEL_FILE));
        let other = kernel.locate(0x1000, 0, &mut files, &mut locations);
        assert_eq!(locations.get(other), Some(Location::Marker(Marker::NoKernelSymbol)));
    }

    #[test]
    fn old_symbols_are_read_again_for_transient_code() {
        let Ok(symbols) = KernelSymbols::load() else {
            return testkit::report::skipped("old_symbols_are_read_again_for_transient_code", "kallsyms");
        };
        let schedule = symbols.address_of("schedule").expect("every kernel has schedule()");
        // These symbols are old: they name a BPF program that was loaded at this address before.
        let program = 0x1000_1000;
        let text = "10001000 t bpf_prog_old\t[bpf]\n";
        let text = format!("ffff000000000000 T _stext\nffffffffffffffff T _etext\n{text}");
        let mut kernel = Kernel::new(Some(KernelSymbols::of_text(&text)));
        let mut files = FileTable::default();
        let mut locations = LocationTable::default();
        let mut name = |address, ktime_ns| {
            let id = kernel.locate(address, ktime_ns, &mut files, &mut locations);
            match locations.get(id) {
                Some(Location::Named { name, .. }) => locations.name(name).to_owned(),
                other => format!("{other:?}"),
            }
        };
        let late_ns = sys::clock_ns(Clock::Monotonic) + STALE_NS + 1;
        assert_eq!(name(program, 0), "bpf_prog_old");
        assert_ne!(name(schedule, late_ns), "schedule", "the kernel's own code does not cause a read");
        assert_ne!(name(program, late_ns), "bpf_prog_old");
        assert_eq!(name(schedule + 1, late_ns), "schedule");
    }
}
