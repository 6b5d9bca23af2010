//! The BPF sampler: loaded, attached to the clock of every CPU, and read through its ring buffers.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::AsFd as _;
use std::time::Duration;

use aya::maps::{Array, ArrayOfMaps, HashMap as BpfMap, MapData, MapError, PerCpuArray, RingBuf};
use aya::programs::perf_event::{PerfEventConfig, PerfEventLinkId, PerfEventScope, SamplePolicy, SoftwareEvent};
use aya::programs::tp_btf::BtfTracePointLinkId;
use aya::programs::{BtfTracePoint, PerfEvent, ProgramError};
use aya::util::{nr_cpus, online_cpus};
use aya::{Btf, BtfError, Ebpf, EbpfError, EbpfLoader};
use ebpf::{
    DROPPED_MAP, EPOCH_MAP, FILES_MAP, HOTSPOT_PROCESSES_MAP, KERNEL_FRAMES_MAX, KNOWN_PROGRAMS_MAP,
    KNOWN_PROGRAMS_PER_CPU, KNOWN_RULES_MAP, KNOWN_RULES_PER_CPU, NEW_FILES_MAP, OFF_CPU_MAPS, OFF_CPU_PROGRAMS,
    OFF_CPU_WINDOW, PROGRAM, PROGRAM_BYTES, PROGRAMS_MAP, Program, RUNTIMES_MAP, SAMPLER_PROGRAM, SAMPLES_MAP,
    SampleHeader, TABLES_MAP, USER_FRAMES_MAX, WINDOW_WALKS,
};

use crate::config::Sampling;
use crate::process::key::ProcessKey;
use crate::process::sys;
use crate::runtimes::Runtimes;
use crate::sampling::trim::trim_memory;
use crate::status::{Status, causes};
use crate::unwind::bpf_tables::{BpfTables, UnwindMaps};

/// Smallest size of the ring buffer of records, in bytes; a power of two. It is enough for two CPUs at 20 Hz with the
/// deepest stacks.
const RING_BYTES_MIN: u64 = 512 << 10;
/// Largest size of the ring buffer of records, in bytes; a power of two.
const RING_BYTES_MAX: u64 = 16 << 20;

/// Largest number of stacks of waiting threads that are walked per second, on all CPUs together. One walk takes about
/// 10 us, so all walks take 1 % of one CPU.
const WAITS_PER_SECOND: u64 = 1000;

/// Error that keeps sampling from starting or continuing.
#[derive(Debug, thiserror::Error)]
pub enum SamplerError {
    /// The object file with the programs was refused.
    #[error("cannot load the BPF object")]
    Load(#[source] EbpfError),
    /// The kernel's BTF cannot be read.
    #[error("cannot read /sys/kernel/btf/vmlinux")]
    Btf(#[source] BtfError),
    /// The verifier refused the program, or the CPU clock could not be opened.
    #[error("cannot load or attach the BPF program")]
    Program(#[source] ProgramError),
    /// A map cannot be used.
    #[error("cannot use a BPF map")]
    Map(#[source] MapError),
    /// A map or program that this crate uses is missing from the object file.
    #[error("the BPF object has no {name}: agent and ebpf were built from different sources")]
    Missing {
        /// Name of the map or program.
        name: &'static str,
    },
    /// The list of possible or online CPUs cannot be read.
    #[error("cannot read {path}")]
    Cpus {
        /// Path of the list.
        path: String,
        /// Error of the read.
        #[source]
        source: io::Error,
    },
    /// The thread that makes unwind tables could not be started.
    #[error("cannot start a thread")]
    Thread(#[source] io::Error),
    /// Waiting for samples failed.
    #[error("cannot wait for samples")]
    Wait(#[source] io::Error),
}

/// Numbers of records and waits that were lost because a buffer was full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dropped {
    /// Records that did not fit the ring buffer: samples, starts of waits and ends of waits.
    pub(crate) records: u64,
    /// Waits for which the table of waits had no free slot.
    pub(crate) waits: u64,
}

/// A message from BPF.
pub(crate) enum Message<'a> {
    /// An encoded [`ebpf::NewFile`], and the BPF maps to which the file's unwind table is to be added.
    NewFile(&'a [u8], &'a BpfTables),
    /// An encoded [`ebpf::Record`].
    Record(&'a [u8]),
}

/// A running sampler; sampling ends when it is dropped.
pub(crate) struct Sampler {
    bpf: Ebpf,
    ring: RingBuf<MapData>,
    new_files: RingBuf<MapData>,
    pub(crate) tables: BpfTables,
    programs: BpfMap<MapData, u32, [u8; PROGRAM_BYTES]>,
    dropped: PerCpuArray<MapData, u64>,
    dropped_before: Dropped,
    period_ns: u64,
    attached: BTreeMap<u32, PerfEventLinkId>,
    /// Online CPUs to whose clock the program could not be attached. Each is tried again in every interval, and logged
    /// once.
    unattached: BTreeSet<u32>,
    off_cpu: Vec<(&'static str, BtfTracePointLinkId)>,
}

impl Sampler {
    /// Loads the programs and starts sampling every online CPU. `status` receives the counters of the unwind tables.
    pub(crate) fn start(sampling: Sampling, runtimes: Runtimes, status: Status) -> Result<Self, SamplerError> {
        let cpus = read_online_cpus()?;
        Self::start_on(&cpus, sampling, ring_bytes(cpus.len() as u64, sampling), runtimes, status)
    }

    fn start_on(
        cpus: &[u32],
        sampling: Sampling,
        ring_bytes: u32,
        runtimes: Runtimes,
        status: Status,
    ) -> Result<Self, SamplerError> {
        let Sampling { period_ns, off_cpu, .. } = sampling;
        let possible_cpus = u32::try_from(nr_cpus().map_err(unread)?).unwrap_or(u32::MAX);
        let window_ns = cpus.len() as u64 * WINDOW_WALKS * 1_000_000_000 / WAITS_PER_SECOND;
        // Loading reads all BTF types of the kernel, 20 MB for a moment: unused memory is returned first.
        trim_memory();
        let mut loader = EbpfLoader::new();
        loader
            .override_global(OFF_CPU_WINDOW, &window_ns, true)
            .map_max_entries(SAMPLES_MAP, ring_bytes)
            .map_max_entries(KNOWN_RULES_MAP, KNOWN_RULES_PER_CPU.saturating_mul(possible_cpus))
            .map_max_entries(KNOWN_PROGRAMS_MAP, KNOWN_PROGRAMS_PER_CPU.saturating_mul(possible_cpus));
        if !off_cpu {
            for map in OFF_CPU_MAPS {
                loader.map_max_entries(map, 1);
            }
        }
        let mut bpf = loader.load(PROGRAM).map_err(SamplerError::Load)?;
        let mut map = |name| bpf.take_map(name).ok_or(SamplerError::Missing { name });
        let ring = RingBuf::try_from(map(SAMPLES_MAP)?).map_err(SamplerError::Map)?;
        let dropped = PerCpuArray::try_from(map(DROPPED_MAP)?).map_err(SamplerError::Map)?;
        let new_files = RingBuf::try_from(map(NEW_FILES_MAP)?).map_err(SamplerError::Map)?;
        let files = BpfMap::try_from(map(FILES_MAP)?).map_err(SamplerError::Map)?;
        let tables = ArrayOfMaps::try_from(map(TABLES_MAP)?).map_err(SamplerError::Map)?;
        let epoch = Array::try_from(map(EPOCH_MAP)?).map_err(SamplerError::Map)?;
        let described = Array::try_from(map(RUNTIMES_MAP)?).map_err(SamplerError::Map)?;
        let programs = BpfMap::try_from(map(PROGRAMS_MAP)?).map_err(SamplerError::Map)?;
        let hotspot = BpfMap::try_from(map(HOTSPOT_PROCESSES_MAP)?).map_err(SamplerError::Map)?;
        let maps = UnwindMaps { files, tables, epoch, runtimes: described, hotspot };
        let tables = BpfTables::start(maps, runtimes, status).map_err(SamplerError::Thread)?;
        program(&mut bpf)?.load().map_err(SamplerError::Program)?;
        let mut sampler = Self {
            bpf,
            ring,
            new_files,
            tables,
            programs,
            dropped,
            dropped_before: Dropped::default(),
            period_ns,
            attached: BTreeMap::new(),
            unattached: BTreeSet::new(),
            off_cpu: Vec::new(),
        };
        if off_cpu {
            sampler.attach_off_cpu()?;
        }
        sampler.attach(cpus)?;
        Ok(sampler)
    }

    fn attach_off_cpu(&mut self) -> Result<(), SamplerError> {
        // A tracepoint is identified by the number of its type in the BTF.
        let kernel_types = &Btf::from_sys_fs().map_err(SamplerError::Btf)?;
        // The program that sees the ends of waits comes first: a wait whose end is missed would seem to last.
        for (name, tracepoint) in OFF_CPU_PROGRAMS.into_iter().rev() {
            let program = off_cpu_program(&mut self.bpf, name)?;
            program.load(tracepoint, kernel_types).map_err(SamplerError::Program)?;
            self.off_cpu.push((name, program.attach().map_err(SamplerError::Program)?));
        }
        Ok(())
    }

    /// Begins to sample CPUs that came online, and forgets CPUs that went offline, whose clock events ended then.
    pub(crate) fn follow_cpus(&mut self) -> Result<(), SamplerError> {
        let cpus = read_online_cpus()?;
        if self.attached.keys().eq(cpus.iter()) {
            return Ok(());
        }
        self.attach(&cpus)
    }

    fn attach(&mut self, cpus: &[u32]) -> Result<(), SamplerError> {
        let program = program(&mut self.bpf)?;
        let gone: Vec<_> = self.attached.keys().copied().filter(|cpu| !cpus.contains(cpu)).collect();
        for link in gone.iter().filter_map(|cpu| self.attached.remove(cpu)) {
            program.detach(link).map_err(SamplerError::Program)?;
        }
        let mut failure = None;
        for &cpu in cpus {
            if self.attached.contains_key(&cpu) {
                continue;
            }
            let clock = PerfEventConfig::Software(SoftwareEvent::CpuClock);
            let scope = PerfEventScope::AllProcessesOneCpu { cpu };
            match program.attach(clock, scope, SamplePolicy::Period(self.period_ns), false) {
                Ok(link) => {
                    self.unattached.remove(&cpu);
                    self.attached.insert(cpu, link);
                }
                // The CPU may have gone offline since the list was read.
                Err(error) => {
                    if self.unattached.insert(cpu) {
                        tracing::warn!(cpu, "a CPU cannot be sampled and will be tried again: {}", causes(&error));
                    }
                    failure = Some(error);
                }
            }
        }
        self.unattached.retain(|cpu| cpus.contains(cpu));
        match failure {
            Some(error) if self.attached.is_empty() => Err(SamplerError::Program(error)),
            _ => Ok(()),
        }
    }

    /// Ends sampling. Records that were taken can still be read.
    pub(crate) fn detach(&mut self) -> Result<(), SamplerError> {
        for (name, link) in self.off_cpu.drain(..).rev() {
            off_cpu_program(&mut self.bpf, name)?.detach(link).map_err(SamplerError::Program)?;
        }
        self.attach(&[])
    }

    /// Waits until BPF wakes the reader, or `timeout` has passed.
    pub(crate) fn wait(&self, timeout: Duration) -> Result<(), SamplerError> {
        sys::wait_readable(self.ring.as_fd(), timeout).map_err(SamplerError::Wait)
    }

    /// Passes up to `records_max` records to `take`, each after the new files that it refers to. Returns true if there
    /// may be more.
    pub(crate) fn read(&mut self, records_max: usize, mut take: impl FnMut(Message<'_>)) -> bool {
        for _ in 0..records_max {
            let record = self.ring.next();
            while let Some(new_file) = self.new_files.next() {
                take(Message::NewFile(&new_file, &self.tables));
            }
            let Some(record) = record else { return false };
            take(Message::Record(&record));
        }
        true
    }

    /// Makes BPF wake the reader for each new function of a program, until BPF forgets the program. All functions are
    /// new for a new number.
    pub(crate) fn read_eagerly(&mut self, program: ProcessKey, number: u64) {
        let ProcessKey { pid, start_boottime_ns, exec_id } = program;
        let program = Program { start_boottime_ns, exec_id, context: None, eager: number };
        self.set_program(pid, &program);
    }

    /// Adds to what BPF knows of a program that was sampled.
    pub(crate) fn set_program(&mut self, pid: u32, program: &Program) {
        let mut bytes = program.to_bytes();
        if let Ok(known) = self.programs.get(&pid, 0) {
            Program::keep(&mut bytes, &known);
        }
        if let Err(error) = self.programs.insert(pid, bytes, 0) {
            tracing::warn!(pid, "samples may lack spans and names of functions: {}", causes(&error));
        }
    }

    /// Returns the numbers of records and waits that were lost since the last call.
    pub(crate) fn take_dropped(&mut self) -> Result<Dropped, SamplerError> {
        let total = |what: u32| Ok(self.dropped.get(&what, 0).map_err(SamplerError::Map)?.iter().sum::<u64>());
        let total = Dropped { records: total(0)?, waits: total(1)? };
        let before = std::mem::replace(&mut self.dropped_before, total);
        Ok(Dropped { records: total.records - before.records, waits: total.waits - before.waits })
    }
}

fn program(bpf: &mut Ebpf) -> Result<&mut PerfEvent, SamplerError> {
    let program = bpf.program_mut(SAMPLER_PROGRAM).ok_or(SamplerError::Missing { name: SAMPLER_PROGRAM })?;
    program.try_into().map_err(SamplerError::Program)
}

fn off_cpu_program<'a>(bpf: &'a mut Ebpf, name: &'static str) -> Result<&'a mut BtfTracePoint, SamplerError> {
    let program = bpf.program_mut(name).ok_or(SamplerError::Missing { name })?;
    program.try_into().map_err(SamplerError::Program)
}

fn read_online_cpus() -> Result<Vec<u32>, SamplerError> {
    online_cpus().map_err(unread)
}

fn unread((path, source): (&str, io::Error)) -> SamplerError {
    SamplerError::Cpus { path: path.to_owned(), source }
}

/// Returns the size of the ring buffer, in bytes. It holds the deepest stacks of native frames of all CPUs for one
/// second, and those of other frames for half a second, although it is read four times a second. It also has room for
/// two shallow stacks for each wait that may begin in that second.
fn ring_bytes(cpus: u64, sampling: Sampling) -> u32 {
    let record_bytes = size_of::<SampleHeader>() + (KERNEL_FRAMES_MAX + USER_FRAMES_MAX) * size_of::<u64>();
    let waits_bytes = if sampling.off_cpu { 2 * WAITS_PER_SECOND * 512 } else { 0 };
    let bytes = cpus * (1_000_000_000 / sampling.period_ns.max(1)) * record_bytes as u64 + waits_bytes;
    let bytes = bytes.next_power_of_two().clamp(RING_BYTES_MIN, RING_BYTES_MAX);
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests;
