//! Every bound of this crate, with its reason.

use std::time::Duration;

/// The bounds that an operator can change. [`Limits::DEFAULT`] has the defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest program or debug file that is read, in bytes. The debug file of a browser has 2 GB.
    pub input_bytes_max: u64,
    /// Memory of one conversion in addition to its mapped input, in bytes (`RLIMIT_AS` of the child). A Rust program of
    /// 100 MB with full debug information needs 0.4 GB.
    pub conversion_memory_bytes_max: u64,
    /// CPU time of one conversion (`RLIMIT_CPU` of the child, in whole seconds). A Rust program of 100 MB needs 2 s.
    pub conversion_cpu_max: Duration,
    /// Elapsed time of one conversion, after which the child is killed. It includes waits for the disk and the CPU.
    pub conversion_time_max: Duration,
    /// Niceness of a conversion, as in nice(2): 0 is normal priority.
    pub conversion_niceness: i32,
    /// Largest symbol table, in bytes (`RLIMIT_FSIZE` of the child). Its format addresses less than 4 GiB of strings.
    pub table_bytes_max: u64,
    /// Largest size of all symbol tables on disk and all files that are being received, in bytes. Beyond this size, the
    /// least recently used host-made tables are evicted. If that is not enough, uploads are refused. Tables that are
    /// being made do not count.
    pub disk_bytes_max: u64,
    /// Largest size of symbol tables that stay mapped between queries, in bytes. Mapped tables are page cache and not
    /// memory of the process, but a host with thousands of binaries must not map all of their tables forever.
    pub mapped_bytes_max: u64,
    /// Time for which a build ID that has no usable file is not searched for again, so that queries stay fast.
    pub failure_remembered: Duration,
    /// Interval between searches for a debug file of a host-made table without DWARF, because one may have been
    /// installed meanwhile.
    pub improvement_interval: Duration,
}

impl Limits {
    /// Defaults, which suit a host with 4 GB of memory or more.
    pub const DEFAULT: Self = Self {
        input_bytes_max: 4 << 30,
        conversion_memory_bytes_max: 4 << 30,
        conversion_cpu_max: Duration::from_secs(120),
        conversion_time_max: Duration::from_secs(300),
        conversion_niceness: 10,
        table_bytes_max: 2 << 30,
        disk_bytes_max: 16 << 30,
        mapped_bytes_max: 4 << 30,
        failure_remembered: Duration::from_secs(60),
        improvement_interval: Duration::from_secs(600),
    };
}

/// Largest size of the cache of frames by address, in bytes. It holds about 100,000 addresses, which is more than a
/// hundred services have. Beyond this size, the cache is cleared.
pub const NAMED_BYTES_MAX: usize = 48 << 20;

/// Maximum number of conversions at one time. Each may use a CPU and gigabytes of memory.
pub const CONVERSIONS_MAX: usize = 2;

/// Maximum number of build IDs that are searched for or wait for a conversion at one time. Each takes a waiting thread.
/// A query with more build IDs gets [`crate::Reason::Converting`] for the rest of them, and must be repeated.
pub const JOBS_MAX: usize = 64;

/// Maximum number of uploads at one time, from the first byte until the table is made. Each may block a thread, and
/// take as much disk space as the largest input.
pub const UPLOADS_MAX: usize = 4;

/// Disk space that an upload reserves at a time, in bytes. It is large, because each reservation adds up the sizes of
/// all tables.
pub const UPLOAD_STEP_BYTES: u64 = 16 << 20;

/// Smallest size with which a table counts toward the budgets of disk space and mapped bytes. So the budgets also bound
/// the number of tables. Their names are held in memory to count them, and each mapped table takes one of the 65,530
/// mappings of a process.
pub const TABLE_COUNTED_BYTES_MIN: u64 = 256 << 10;

/// Maximum number of failures that are remembered. Each takes 150 bytes.
pub const FAILURES_MAX: usize = 65_536;

/// Largest section of debug information after decompression, in bytes. The header of a compressed section has this
/// size.
pub const SECTION_UNPACKED_BYTES_MAX: usize = 3 << 30;

/// Largest `.gnu_debugdata` after decompression, in bytes. It holds one symbol table; that of a large program has 20
/// MB.
pub const DEBUGDATA_UNPACKED_BYTES_MAX: u64 = 256 << 20;

/// Longest function name, mangled or not, in bytes. Longer ones are truncated and end in `…`. Names of templates reach
/// 5 kB. From a hostile name, a demangler can make gigabytes.
pub const NAME_BYTES_MAX: usize = 16 << 10;

/// Longest path of a source file, in bytes, as in Linux.
pub const PATH_BYTES_MAX: usize = 4 << 10;

/// Longest function without a size, in bytes. Such functions are assembly and short. Code further after the start of
/// such a function belongs to no function.
pub const UNSIZED_FUNCTION_BYTES_MAX: u64 = 64 << 10;

/// Deepest chain of inlined calls in a response. GCC and LLVM stay below 100. The limit is needed because a table that
/// was damaged after the check of its checksum could have a cycle.
pub const INLINE_DEPTH_MAX: usize = 256;

/// Maximum number of frames for each address of a response, on average. Optimized C++ and Rust have three to eight. The
/// limit is needed because a hostile program can have [`INLINE_DEPTH_MAX`] frames at every address, and a query can
/// have millions of addresses.
pub const FRAMES_PER_ADDRESS_MAX: usize = 16;

/// Number of frames that every response may have, even if it has more than [`FRAMES_PER_ADDRESS_MAX`] per address.
pub const FRAMES_MIN: usize = 64 << 10;

/// Maximum number of build IDs of one symbol table: one GNU ID, one Go ID, and an htlhash for each way in which the
/// program was stripped.
pub const IDS_MAX: usize = 8;

/// Largest header of a symbol table, in bytes: build IDs and segments of
/// [`PROGRAM_HEADERS_MAX`](host_files::limits::PROGRAM_HEADERS_MAX).
pub const TABLE_HEADER_BYTES_MAX: u32 = 64 << 10;

/// Maximum number of bytes that are read of one `/proc/<pid>/maps`. A process may have 65,530 mappings with 100 bytes
/// each.
pub const MAPS_BYTES_MAX: u64 = 16 << 20;

/// Maximum number of distinct mapped files, of all processes together, that are remembered between two searches.
pub const MAPPED_FILES_MAX: usize = 100_000;

/// Maximum number of processes that are remembered for one mapped file. There are several, because a process may have
/// ended before the file is opened through it.
pub const OWNERS_MAX: usize = 4;

/// Maximum number of files with the same path whose build IDs are compared in one search. There may be many, because
/// each container may have its own libc.
pub const CANDIDATES_MAX: usize = 256;

/// Time for which the list of mapped files is reused. Reading the list takes 0.1 ms for each process.
pub const MAPPED_FILES_AGE_MAX: Duration = Duration::from_secs(5);
