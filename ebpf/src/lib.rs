//! The BPF programs of the agent, as an object to load, and the layout of what they send.
//!
//! # Promise
//! Every sample of a running task is sent whole (kernel part and up to [`USER_FRAMES_MAX`] user frames) or counted in the map
//! [`DROPPED_MAP`]; a stack that is not whole says so in [`UserEnd`]. Waits of threads are recorded where that is asked for, and what is
//! recorded adds up to what was waited.
//! # Needs
//! Linux 6.1 (mappings in a maple tree, which the programs read) with BTF, on x86-64 or arm64. No kprobes, no tracefs, no raised memlock limit.
//! # Does not
//! Load anything: that is the agent's part. Nothing here is unsafe.
//! # Read in this order
//! `bpf/record.h` → `bpf/sampler.bpf.c` → `bpf/off_cpu.h` → `bpf/unwind.h` → `bpf/mapped.h` → `bpf/vma.h`, `bpf/tables.h` → [`record`].

mod file;
pub mod record;

pub use file::{
    BLOCK_BYTES, FILE_PARTS, FileEntry, FileKey, FilePart, FileSegment, GoLabels, NewFile, TableLayout, VDSO_KEY,
    used_at,
};
pub use record::{Record, RecordError, Sample, SampleHeader, UserEnd, UserFrame, WaitEnd};

/// Name of the program of type `perf_event`: attach it to a clock event of every CPU.
pub const SAMPLER_PROGRAM: &str = "sample_cpu";
/// Names of the programs of type `tp_btf` that record waits, each with its tracepoint; attach the second first.
pub const OFF_CPU_PROGRAMS: [(&str, &str); 2] = [("thread_switches", "sched_switch"), ("thread_wakes", "sched_wakeup")];
/// Names of the arrays that only those need.
pub const OFF_CPU_MAPS: [&str; 2] = ["waits", "sites"];
/// Waits that are recorded at a time, at most.
pub const WAITS_MAX: usize = 1 << 14;
/// Name of the variable with the time, in nanoseconds, in which a CPU walks [`WINDOW_WALKS`] stacks of threads that begin to wait.
pub const OFF_CPU_WINDOW: &str = "off_cpu_window_ns";
/// See [`OFF_CPU_WINDOW`].
pub const WINDOW_WALKS: u64 = 20;
/// Name of the ring buffer of records; its size (a power of two, in bytes) is set before loading.
pub const SAMPLES_MAP: &str = "samples";
/// Name of the per-CPU array of two u64: how many records did not fit the ring buffer, and for how many waits there was no place.
pub const DROPPED_MAP: &str = "dropped";

/// Name of the hash of files, by [`FileKey`].
pub const FILES_MAP: &str = "files";
/// Name of the array of unwind tables, each an array of blocks.
pub const TABLES_MAP: &str = "tables";
/// Name of the array of rules that were found lately: [`KNOWN_RULES_PER_CPU`] entries for each CPU that there may be.
pub const KNOWN_RULES_MAP: &str = "known_rules";
/// See [`KNOWN_RULES_MAP`].
pub const KNOWN_RULES_PER_CPU: u32 = 2048;
/// Name of the array of programs whose mappings are known: [`KNOWN_PROGRAMS_PER_CPU`] entries for each CPU that there may be.
pub const KNOWN_PROGRAMS_MAP: &str = "known_programs";
/// See [`KNOWN_PROGRAMS_MAP`].
pub const KNOWN_PROGRAMS_PER_CPU: u32 = 64;
/// Name of the array of one u32: an age. What the BPF programs remember from before is void.
pub const AGE_MAP: &str = "age";
/// Name of the ring buffer of [`NewFile`] records.
pub const NEW_FILES_MAP: &str = "new_files";
/// Tables that there may be.
pub const TABLES_MAX: u32 = 4096;
/// Flags of the arrays in [`TABLES_MAP`]: of any length each.
pub const BLOCKS_FLAGS: u32 = 0x1000;

/// Frames of the kernel part of a stack at most.
pub const KERNEL_FRAMES_MAX: usize = 127;
/// Frames of the user part of a stack at most.
pub const USER_FRAMES_MAX: usize = 1024;

/// ELF readers cast into the object, so it starts on a boundary that suits every ELF structure.
#[repr(C, align(16))]
struct Aligned<T: ?Sized>(T);

static OBJECT: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/sampler.bpf.o")));

/// The compiled programs: an ELF object with BTF, aligned to 16 bytes.
pub static PROGRAM: &[u8] = &OBJECT.0;

#[cfg(test)]
mod tests {
    #[test]
    fn what_is_known_of_waits_is_what_the_c_header_says() {
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
