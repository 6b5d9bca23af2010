//! Conversion of the raw addresses of a sample to locations.
//!
//! Invariant: every stack gets at least one location, and a [`Marker`] replaces missing frames. So the weight of a
//! sample is never lost, and never attributed to the wrong code.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use ebpf::{KERNEL_FRAMES_MAX, Sample, UserEnd, UserFrame};
use foldhash::fast::RandomState;

use crate::names::kernel::Kernel;
use crate::names::location::{Location, LocationId, Marker};
use crate::names::process::Process;
use crate::names::shared_tables::SharedTables;
use crate::process::key::ProcessKey;
use crate::process::resource::Resource;
use crate::process::{procfs, sys};
use crate::runtimes::Runtimes;
use crate::runtimes::function_cache::FunctionKey;
use crate::runtimes::functions::Position;

/// Largest number of programs whose data is kept after an interval. Beyond it, the least recently sampled half is
/// forgotten.
const PROCESSES_MAX: usize = 8192;
/// Time without a sample, in nanoseconds, after which an ended program is forgotten. Until then, some of its samples
/// may still be in the ring buffer.
const ENDED_NS: u64 = 10_000_000_000;
/// Time without a sample, in nanoseconds, after which a running program is forgotten.
const IDLE_NS: u64 = 600_000_000_000;
/// Largest size of the mappings and descriptions of all processes, in bytes. Beyond this size, the least recently
/// sampled half of the processes is forgotten at once.
const PROCESSES_BYTES_MAX: usize = 16 << 20;
/// Largest size of all perf maps and functions of language runtimes, in bytes. Beyond this size, the least recently
/// sampled half of the processes is forgotten after the interval.
const FUNCTIONS_BYTES_MAX: usize = 32 << 20;
/// Largest number of addresses that are cached for all processes together, at 20 to 40 bytes each. Beyond this
/// number, all of them are forgotten after the interval.
const ADDRESSES_MAX: usize = 400_000;

/// The kernel function that takes the CPU from a thread.
const SCHEDULER: &str = "__schedule";

/// Locates samples. Keeps the processes that were sampled recently.
#[derive(Debug)]
pub(crate) struct Locator {
    kernel: Kernel,
    processes: HashMap<ProcessKey, Process, RandomState>,
    /// Bytes that the mappings and descriptions of all processes take.
    processes_bytes: usize,
    /// Largest number of kernel frames that the kernel returns.
    kernel_frames_max: usize,
    pub(crate) tables: SharedTables,
}

impl Locator {
    /// Creates a locator. `environment` lists the environment variables that become labels. `runtimes` has the language
    /// runtimes that BPF knows.
    pub(crate) fn new(environment: Arc<[String]>, runtimes: Runtimes) -> Self {
        Self {
            kernel: Kernel::load(),
            processes: HashMap::default(),
            processes_bytes: 0,
            kernel_frames_max: kernel_frames_max(),
            tables: SharedTables::new(environment, runtimes),
        }
    }

    /// Returns the description of the process of `sample`.
    pub(crate) fn resource(&mut self, sample: &Sample<'_>) -> Arc<Resource> {
        self.with_process(sample, |process, tables| process.resource(sample, tables))
    }

    /// Calls `look_up` with the process of `sample`. If the process is new, its description is read first. Updates
    /// `processes_bytes`, because either step may change the memory that the process takes.
    fn with_process<T>(
        &mut self,
        sample: &Sample<'_>,
        look_up: impl FnOnce(&mut Process, &mut SharedTables) -> T,
    ) -> T {
        if PROCESSES_BYTES_MAX < self.processes_bytes {
            self.forget_least_recent_half();
        }
        let process = match self.processes.entry(ProcessKey::of(sample)) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => {
                let process = entry.insert(Process::of(sample, &self.tables));
                self.processes_bytes += process.bytes();
                process
            }
        };
        let bytes_before = process.bytes();
        let result = look_up(process, &mut self.tables);
        self.processes_bytes = (self.processes_bytes + process.bytes()).saturating_sub(bytes_before);
        result
    }

    /// Looks for the contexts of a sampled process and its threads, if a search is due. Called for each sample, also if
    /// its stack is known: a busy program may have the same few stacks for a long time.
    pub(crate) fn search_context(&mut self, sample: &Sample<'_>) {
        if let Some(process) = self.processes.get_mut(&ProcessKey::of(sample)) {
            process.search_context(sample, &self.tables);
        }
    }

    /// Appends the whole stack of `sample` to `stack`, leaf first. Returns false if the same addresses may have another
    /// stack next time, because a mapping or a name was missing.
    pub(crate) fn locate(&mut self, sample: &Sample<'_>, stack: &mut Vec<LocationId>) -> bool {
        let start = stack.len();
        self.locate_kernel_part(sample, stack);
        let is_lasting = self.locate_user_part(sample, stack);
        // One marker stands for all consecutive frames that are missing for the same reason.
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
        let SharedTables { files, locations, .. } = &mut self.tables;
        let start = stack.len();
        for (index, address) in sample.kernel_frames().enumerate() {
            // All addresses but the leaf are return addresses. The byte before a return address lies in the call.
            let address = address.saturating_sub(u64::from(index != 0));
            stack.push(self.kernel.locate(address, sample.header.ktime_ns, files, locations));
        }
        if sample.header.chance != 0 {
            // The frames between the leaf and the scheduler are those of the sampler itself.
            let is_scheduler = |id: &LocationId| match locations.get(*id) {
                Some(Location::Named { name, .. }) => locations.name(name) == SCHEDULER,
                _ => false,
            };
            let above = stack[start..].iter().position(is_scheduler).unwrap_or_default();
            stack.drain(start..start + above);
        }
        if usize::from(sample.header.kernel_frames) == self.kernel_frames_max {
            stack.push(locations.insert(Location::Marker(Marker::TruncatedStack)));
        }
    }

    fn locate_user_part(&mut self, sample: &Sample<'_>, stack: &mut Vec<LocationId>) -> bool {
        self.with_process(sample, |process, tables| {
            process.refresh_mappings(sample.header.ktime_ns, &mut tables.checks);
            process.search_hotspot(sample, tables);
            locate_in_process(process, sample, tables, stack)
        })
    }

    /// Forgets processes and tables that are not needed any more. The ids of locations may be void afterwards. Returns
    /// true if the ids and numbers of files are void, too.
    pub(crate) fn end_interval(&mut self, ktime_ns: u64, sampled: impl Iterator<Item = ProcessKey>) -> bool {
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
        let is_full = FUNCTIONS_BYTES_MAX < total(Process::functions_bytes);
        self.processes_bytes = total(Process::bytes);
        if is_full || PROCESSES_MAX < self.processes.len() {
            self.forget_least_recent_half();
        }
        if ADDRESSES_MAX < addresses {
            self.processes.values_mut().for_each(Process::forget_locations);
        }
        let is_full = self.is_full();
        let forgets_files = is_full && self.tables.clear();
        if is_full {
            self.kernel.clear();
            self.processes.values_mut().for_each(Process::forget_locations);
        }
        self.kernel.follow_modules();
        forgets_files
    }

    /// True if the ids of locations will be void at the end of the interval.
    pub(crate) fn is_full(&self) -> bool {
        self.tables.is_full()
    }

    fn forget_least_recent_half(&mut self) {
        let mut times: Vec<_> = self.processes.values().map(|process| process.last_sample_ns).collect();
        let middle = times.len() / 2;
        let (_, median, _) = times.select_nth_unstable(middle);
        let median = *median;
        // Among equally recent processes, it does not matter which ones are forgotten. A forgotten process is read
        // again on its next sample.
        let mut surplus = self.processes.len() / 2;
        self.processes.retain(|_, process| {
            let is_forgotten = process.last_sample_ns <= median && 0 < surplus;
            surplus -= usize::from(is_forgotten);
            !is_forgotten
        });
        self.processes_bytes = self.processes.values().map(Process::bytes).sum();
    }
}

fn locate_in_process(
    process: &mut Process,
    sample: &Sample<'_>,
    tables: &mut SharedTables,
    stack: &mut Vec<LocationId>,
) -> bool {
    let no_mapping = tables.locations.insert(Location::Marker(Marker::NoMapping));
    process.find_functions(sample.user_frames().filter_map(position_of), sample.header.ktime_ns, tables);
    let (mut is_lasting, mut is_lost) = (true, false);
    for (index, frame) in sample.user_frames().enumerate() {
        if is_lost && !is_found_by_interpreter(frame, tables) {
            continue;
        }
        let (id, lasts) = match frame {
            UserFrame::File { number, offset } => tables.locate(number, offset),
            UserFrame::Address(address) => process.locate(address, sample.header.ktime_ns, tables),
            UserFrame::Function { runtime, address, position, identity } => {
                let at = Position { function: FunctionKey { runtime, address, identity }, position };
                process.locate_function(at, tables)
            }
        };
        is_lasting &= lasts;
        if index != 0 && id == no_mapping {
            // Not a return address: the frame pointer was wrong, and no native frame from here on is one.
            is_lost = true;
            stack.push(tables.locations.insert(Location::Marker(Marker::UnwindingFailed)));
        } else {
            stack.push(id);
        }
    }
    if is_lost {
        return is_lasting;
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

/// True for a function of an interpreter, which BPF found by the interpreter's own structures, not by native frames.
fn is_found_by_interpreter(frame: UserFrame, tables: &SharedTables) -> bool {
    match frame {
        UserFrame::Function { runtime, .. } => {
            tables.runtimes.layout(runtime).is_some_and(|layout| layout.is_of_interpreter())
        }
        UserFrame::File { .. } | UserFrame::Address(_) => false,
    }
}

/// Returns the position of a frame in a function of a language runtime; `None` for other frames.
fn position_of(frame: UserFrame) -> Option<Position> {
    match frame {
        UserFrame::Function { runtime, address, position, identity } => {
            Some(Position { function: FunctionKey { runtime, address, identity }, position })
        }
        UserFrame::File { .. } | UserFrame::Address(_) => None,
    }
}

/// Returns the largest number of kernel frames that the kernel records of a stack, from its setting.
fn kernel_frames_max() -> usize {
    let setting = procfs::read_at_most("/proc/sys/kernel/perf_event_max_stack", 32).unwrap_or_default();
    let setting = std::str::from_utf8(setting.trim_ascii()).ok().and_then(|text| text.parse().ok());
    setting.unwrap_or(KERNEL_FRAMES_MAX).min(KERNEL_FRAMES_MAX)
}

#[cfg(test)]
mod tests;
