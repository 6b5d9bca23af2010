//! The BPF programs of the agent, as an object to load, and the layout of the records that they send.
//!
//! # Promise
//! - Every sample of a running task is sent whole, with its kernel part and up to [`USER_FRAMES_MAX`] user frames, or
//!   counted in the map [`DROPPED_MAP`]. [`UserEnd`] shows whether the stack is complete.
//! - If waits of threads are recorded, the durations divided by the inclusion probabilities add up to an unbiased
//!   estimate of the time waited.
//!
//! # Needs
//! Linux 6.1 with BTF, on x86-64 or arm64: the programs read mappings from the kernel's maple tree. Neither kprobes nor
//! tracefs nor a raised memlock limit are needed.
//!
//! # Limits
//! This crate does not load the programs, which the agent does, and has no unsafe code.
//!
//! # Read in this order
//! `bpf/record.h`, `bpf/sampler.bpf.c`, `bpf/off_cpu.h`, `bpf/scratch.h`, `bpf/unwind.h`, `bpf/step.h`,
//! `bpf/mappings/mapped.h`, `bpf/mappings/vma.h`, `bpf/tables.h`, `bpf/window.h`, `bpf/runtimes.h`,
//! `bpf/runtimes/loops.h`, `bpf/runtimes/compiled.h`, [`record`].

mod file;
mod hotspot;
mod program;
pub mod record;
mod runtime;

pub use file::{
    BLOCK_BYTES, FILE_PARTS, FileEntry, FileKey, FilePart, FileSegment, GoLabels, NewFile, TableLayout, VDSO_KEY,
    used_at,
};
pub use hotspot::{
    HOTSPOT_HEAPS, HOTSPOT_KEY_BYTES, HOTSPOT_PROCESS_BYTES, HOTSPOT_PROCESSES_MAP, HotSpotHeap, HotSpotProcess,
    hotspot_key,
};
pub use program::{PROGRAM_BYTES, PROGRAMS_MAP, Program};
pub use record::{Link, Record, RecordError, Sample, SampleHeader, UserEnd, UserFrame, WaitEnd};
pub use runtime::{
    LOOP_PARTS, Libc, RUNTIME_BYTES, RUNTIME_GENERATIONS, RUNTIME_OFFSETS, RUNTIMES_MAX, Runtime, RuntimeKind,
    THREAD_POINTERS, ThreadPointer,
};

/// Name of the program of type `perf_event`, to be attached to a clock event of every CPU.
pub const SAMPLER_PROGRAM: &str = "sample_cpu";
/// Names of the programs of type `tp_btf` that record waits, each with its tracepoint. The second program must be
/// attached first, so that no end of a wait is missed.
pub const OFF_CPU_PROGRAMS: [(&str, &str); 2] = [("thread_switches", "sched_switch"), ("thread_wakes", "sched_wakeup")];
/// Names of the arrays that only the programs for waits use.
pub const OFF_CPU_MAPS: [&str; 2] = ["waits", "sites"];
/// Largest number of recorded waits that are in progress at the same time.
pub const WAITS_MAX: usize = 1 << 14;
/// Name of the variable that holds the length of a time window, in nanoseconds. A CPU that walks [`WINDOW_WALKS`]
/// stacks of waiting threads within one window chooses fewer waits from then on.
pub const OFF_CPU_WINDOW: &str = "off_cpu_window_ns";
/// Number of stacks of waiting threads that a CPU may walk in one time window ([`OFF_CPU_WINDOW`]) before it chooses
/// fewer waits.
pub const WINDOW_WALKS: u64 = 20;
/// Name of the ring buffer of records. Its size, a power of two in bytes, is set before loading.
pub const SAMPLES_MAP: &str = "samples";
/// Name of the per-CPU array of two u64: records that did not fit the ring buffer, and waits for which no slot was
/// free.
pub const DROPPED_MAP: &str = "dropped";

/// Name of the hash map of files, by [`FileKey`].
pub const FILES_MAP: &str = "files";
/// Number of numbers that BPF gives to files, one after another, before it gives them again.
pub const FILE_NUMBERS: u32 = 1 << 22;
/// Name of the array of unwind tables, each an array of blocks.
pub const TABLES_MAP: &str = "tables";
/// Name of the array of language runtimes, each an encoded [`Runtime`].
pub const RUNTIMES_MAP: &str = "runtimes";
/// Name of the array that caches rules, with [`KNOWN_RULES_PER_CPU`] entries for each possible CPU.
pub const KNOWN_RULES_MAP: &str = "known_rules";
/// Number of entries of [`KNOWN_RULES_MAP`] for each possible CPU.
pub const KNOWN_RULES_PER_CPU: u32 = 2048;
/// Name of the array that caches the mappings of programs, with [`KNOWN_PROGRAMS_PER_CPU`] entries for each possible
/// CPU.
pub const KNOWN_PROGRAMS_MAP: &str = "known_programs";
/// Number of entries of [`KNOWN_PROGRAMS_MAP`] for each possible CPU.
pub const KNOWN_PROGRAMS_PER_CPU: u32 = 64;
/// Name of the array of one u32: the current epoch. Lookups that the BPF programs cached in earlier epochs are void.
pub const EPOCH_MAP: &str = "epoch";
/// Name of the ring buffer of [`NewFile`] records.
pub const NEW_FILES_MAP: &str = "new_files";
/// Number of slots of [`TABLES_MAP`], each for one unwind table.
pub const TABLES_MAX: u32 = 4096;
/// Flags of the arrays in [`TABLES_MAP`]: each may have its own length.
pub const BLOCKS_FLAGS: u32 = 0x1000;

/// Largest number of frames of the kernel part.
pub const KERNEL_FRAMES_MAX: usize = 127;
/// Largest number of frames of the user part.
pub const USER_FRAMES_MAX: usize = 1024;
/// Largest number of words that the frames of the user part take. Frames of language runtimes take two words.
pub const USER_WORDS_MAX: usize = 2048;

/// ELF readers cast references into the object, so its start is aligned for every ELF structure.
#[repr(C, align(16))]
struct Aligned<T: ?Sized>(T);

static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/sampler.bpf.o")));

/// The compiled programs: an ELF object with BTF, aligned to 16 bytes.
pub static PROGRAM: &[u8] = &OBJECT.0;

#[cfg(test)]
mod tests {
    #[test]
    fn constants_of_waits_are_those_of_the_c_header() {
        let header = include_str!("../bpf/off_cpu.h");
        assert!(header.contains(&format!("#define WAITS_BITS {}\n", super::WAITS_MAX.ilog2())));
        assert!(super::WAITS_MAX.is_power_of_two());
        assert!(header.contains(&format!("#define WINDOW_WALKS {}\n", super::WINDOW_WALKS)));
        assert!(header.contains(&format!("const volatile u64 {} =", super::OFF_CPU_WINDOW)));
        for map in super::OFF_CPU_MAPS {
            assert!(header.contains(&format!("}} {map} SEC(\".maps\");")), "{map}");
        }
        let programs = include_str!("../bpf/sampler.bpf.c");
        for (program, tracepoint) in super::OFF_CPU_PROGRAMS {
            assert!(programs.contains(&format!("SEC(\"tp_btf/{tracepoint}\")\nint {program}(")), "{program}");
        }
    }

    #[test]
    fn the_object_is_an_aligned_elf_file_for_bpf() {
        assert_eq!(super::PROGRAM.as_ptr() as usize % 16, 0);
        assert_eq!(&super::PROGRAM[..6], b"\x7fELF\x02\x01");
        // e_machine: EM_BPF.
        assert_eq!(super::PROGRAM[18..20], 247u16.to_le_bytes());
    }
}
