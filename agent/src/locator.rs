//! From a sample's raw addresses to locations.
//!
//! Invariant: every stack gets at least one location, and where frames are missing a [`Marker`] stands in their place. So the
//! weight of a sample is never lost and never shown as something it is not.

use std::collections::HashMap;
use std::sync::Arc;

use ebpf::{KERNEL_FRAMES_MAX, Sample, UserEnd};
use foldhash::fast::RandomState;

use crate::file::FileTable;
use crate::kernel::Kernel;
use crate::location::{Location, LocationId, LocationTable, Marker};
use crate::pace::Pace;
use crate::process::{Process, ProcessKey, Tables};
use crate::resource::Resource;
use crate::sys;

/// Programs remembered.
const PROCESSES_MAX: usize = 8192;
/// A program that has ended is forgotten after this long without a sample: some may still be in the ring buffer.
const ENDED_NS: u64 = 10_000_000_000;
/// A program that runs is forgotten after this long without a sample.
const IDLE_NS: u64 = 600_000_000_000;
/// Of all processes together: mappings, at 90 bytes each, and bytes of perf maps. Over it, the less recently sampled half of the
/// processes is forgotten.
const MAPPINGS_MAX: usize = 200_000;
const PERF_MAPS_BYTES_MAX: usize = 32 << 20;
/// Addresses remembered of all processes together, at 20 bytes each; over it, they are forgotten.
const ADDRESSES_MAX: usize = 400_000;

/// Knows every process that was sampled lately.
#[derive(Debug)]
pub(crate) struct Locator {
    kernel: Kernel,
    processes: HashMap<ProcessKey, Process, RandomState>,
    pub(crate) tables: Tables,
}

impl Locator {
    pub(crate) fn new() -> Self {
        let tables = Tables { files: FileTable::default(), locations: LocationTable::default(), pace: Pace::new() };
        Self { kernel: Kernel::load(), processes: HashMap::default(), tables }
    }

    /// What is known of the process of `sample`.
    pub(crate) fn resource(&mut self, sample: &Sample<'_>) -> Arc<Resource> {
        self.processes.entry(ProcessKey::of(sample)).or_insert_with(|| Process::of(sample)).resource(sample)
    }

    /// Appends the whole stack of `sample` to `stack`, leaf first. Returns whether the same addresses will have the same stack next
    /// time: not so where a mapping or a name was missing, which may come.
    pub(crate) fn locate(&mut self, sample: &Sample<'_>, stack: &mut Vec<LocationId>) -> bool {
        let start = stack.len();
        self.locate_kernel_part(sample, stack);
        let is_lasting = self.locate_user_part(sample, stack);
        // Several frames in a row that are missing for one reason say no more than one.
        let is_marker = |id| matches!(self.tables.locations.get(id), Some(Location::Marker(_)));
        let mut kept = start;
        for index in start..stack.len() {
            if index == start || stack[index] != stack[kept - 1] || !is_marker(stack[index]) {
                stack[kept] = stack[index];
                kept += 1;
            }
        }
        stack.truncate(kept);
        is_lasting
    }

    fn locate_kernel_part(&mut self, sample: &Sample<'_>, stack: &mut Vec<LocationId>) {
        let Tables { files, locations, .. } = &mut self.tables;
        for (index, address) in sample.kernel_frames().enumerate() {
            // All but the leaf are return addresses; one less lies in the call.
            stack.push(self.kernel.locate(address.saturating_sub(u64::from(index != 0)), files, locations));
        }
        if usize::from(sample.header.kernel_frames) == KERNEL_FRAMES_MAX {
            stack.push(locations.insert(Location::Marker(Marker::TruncatedStack)));
        }
    }

    fn locate_user_part(&mut self, sample: &Sample<'_>, stack: &mut Vec<LocationId>) -> bool {
        let process = self.processes.entry(ProcessKey::of(sample)).or_insert_with(|| Process::of(sample));
        let tables = &mut self.tables;
        let no_mapping = tables.locations.insert(Location::Marker(Marker::NoMapping));
        let mut is_lasting = true;
        for (index, address) in sample.user_frames().enumerate() {
            let (id, lasts) = process.locate(address, sample.header.ktime_ns, tables);
            is_lasting &= lasts;
            if index != 0 && id == no_mapping {
                // No return address: the frame pointer was something else, and nothing from here on is a frame.
                stack.push(tables.locations.insert(Location::Marker(Marker::UnwindingFailed)));
                return is_lasting;
            }
            stack.push(id);
        }
        let end = match sample.user_end {
            UserEnd::None | UserEnd::Root => return is_lasting,
            UserEnd::Broken => Marker::UnwindingFailed,
            UserEnd::Truncated => Marker::TruncatedStack,
            UserEnd::Compat => Marker::Stack32Bit,
        };
        stack.push(tables.locations.insert(Location::Marker(end)));
        is_lasting
    }

    /// Forgets what is not needed any more. All ids may be void afterwards.
    pub(crate) fn end_interval(&mut self, ktime_ns: u64, sampled: impl Iterator<Item = ProcessKey>) {
        for key in sampled {
            if let Some(process) = self.processes.get_mut(&key) {
                process.last_sample_ns = ktime_ns;
            }
        }
        self.processes.retain(|key, process| match ktime_ns.saturating_sub(process.last_sample_ns) {
            idle_ns if idle_ns < ENDED_NS => true,
            idle_ns => idle_ns < IDLE_NS && sys::exists(key.pid),
        });
        let total = |size: fn(&Process) -> usize| self.processes.values().map(size).sum::<usize>();
        let addresses = total(Process::addresses);
        if PROCESSES_MAX < self.processes.len()
            || MAPPINGS_MAX < total(Process::mappings)
            || PERF_MAPS_BYTES_MAX < total(Process::perf_map_bytes)
        {
            self.forget_least_recent_half();
        }
        if ADDRESSES_MAX < addresses {
            self.processes.values_mut().for_each(Process::forget_locations);
        }
        if self.tables.locations.is_full() || self.tables.files.is_full() {
            self.tables.locations.clear();
            self.tables.files.clear();
            self.kernel.clear();
            self.processes.values_mut().for_each(Process::forget_files);
        }
        self.kernel.follow_modules();
    }

    fn forget_least_recent_half(&mut self) {
        let mut times: Vec<_> = self.processes.values().map(|process| process.last_sample_ns).collect();
        let middle = times.len() / 2;
        let (_, median, _) = times.select_nth_unstable(middle);
        let median = *median;
        // Of equally recent ones, half at random: a process that is forgotten is read again on its next sample.
        let mut surplus = self.processes.len() / 2;
        self.processes.retain(|_, process| {
            let goes = process.last_sample_ns <= median && 0 < surplus;
            surplus -= usize::from(goes);
            !goes
        });
    }
}

#[cfg(test)]
mod tests;
