//! Limits of this crate, each with its reason.

use std::time::Duration;

/// Limits that the program which opens a store can set. [`Limits::DEFAULT`] has the defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest size of a program or debug file that is read, in bytes. The debug file of a browser has 2 GB.
    pub input_bytes_max: u64,
    /// Largest amount of memory of one conversion in addition to its mapped input, in bytes. `RLIMIT_AS` of the child
    /// is the sum of both. A Rust program of 100 MB with full debug information needs 0.4 GB.
    pub conversion_memory_bytes_max: u64,
    /// Longest CPU time of one conversion (`RLIMIT_CPU` of the child, in whole seconds). A Rust program of 100 MB needs
    /// 2 s.
    pub conversion_cpu_max: Duration,
    /// Longest elapsed time of one conversion, including waits for the disk and the CPU. The child is then killed.
    pub conversion_time_max: Duration,
    /// Niceness of a conversion, as in nice(2): 0 is normal priority.
    pub conversion_niceness: i32,
    /// Largest size of a symbol table, in bytes (`RLIMIT_FSIZE` of the child). The format of a table can address less
    /// than 4 GiB of strings.
    pub table_bytes_max: u64,
    /// Largest total size of all symbol tables on disk and all files that are being received, in bytes. If the total is
    /// larger, tables of files of this host are evicted, the least recently used first. If that is not enough, uploads
    /// are refused. Tables that are being made do not count.
    pub disk_bytes_max: u64,
    /// Largest total size of the symbol tables of one tenant in a bucket, in bytes. Further uploads of the tenant are
    /// refused. A tenant whose uploads arrive at several routers at the same time may exceed it by these uploads.
    pub tenant_bytes_max: u64,
    /// Largest total size of the symbol tables that stay mapped between queries, in bytes. Mapped tables are in the
    /// page cache and not in memory of the process, but a host with thousands of binaries must not map all of their
    /// tables forever.
    pub mapped_bytes_max: u64,
    /// Time for which a failed search is remembered. Until it has passed, the same build ID is not searched for again
    /// at the same path, so that queries stay fast.
    pub failure_remembered: Duration,
    /// Shortest time between two searches for a better debug file. They take place if a table was made from a file of
    /// this host without DWARF, because a debug file may be installed later.
    pub improvement_interval: Duration,
}

impl Limits {
    /// The default limits, which suit a host with 4 GB of memory or more.
    pub const DEFAULT: Self = Self {
        input_bytes_max: 4 << 30,
        conversion_memory_bytes_max: 4 << 30,
        conversion_cpu_max: Duration::from_secs(120),
        conversion_time_max: Duration::from_secs(300),
        conversion_niceness: 10,
        table_bytes_max: 2 << 30,
        disk_bytes_max: 16 << 30,
        tenant_bytes_max: 16 << 30,
        mapped_bytes_max: 4 << 30,
        failure_remembered: Duration::from_secs(60),
        improvement_interval: Duration::from_secs(600),
    };
}

/// Largest size of the cache of frames by address, in bytes. About 100,000 addresses fit into this size; a hundred
/// services have fewer. A cache that would become larger is cleared.
pub const NAMED_BYTES_MAX: usize = 48 << 20;

/// Maximum number of conversions at one time. Each may use a CPU and gigabytes of memory.
pub const CONVERSIONS_MAX: usize = 2;

/// Maximum number of build IDs that are searched for or wait for a conversion at one time. Each of them needs a thread.
/// A request for a further build ID gets [`crate::Reason::Converting`], and must be repeated.
pub const JOBS_MAX: usize = 64;

/// Maximum number of uploads at one time, from the first byte until the table is made. Each may block a thread, and
/// need disk space of [`Limits::input_bytes_max`].
pub const UPLOADS_MAX: usize = 4;

/// Smallest amount of disk space that an upload reserves at a time, in bytes. The amount is large, because each
/// reservation must add up the sizes of all tables on disk.
pub const UPLOAD_STEP_BYTES: u64 = 16 << 20;

/// Smallest size with which a table counts toward the limits of disk space and mapped bytes, in bytes. So these limits
/// also restrict the number of tables. That is needed because the sizes of tables are added up from a list of all their
/// file names in memory. Also, each mapped table uses one of the 65,530 mappings that a process may have.
pub const TABLE_COUNTED_BYTES_MIN: u64 = 256 << 10;

/// Maximum number of tables that are fetched from a bucket at one time. More would only share the network.
pub const FETCHES_MAX: usize = 8;

/// Longest time of one fetch from a bucket, including the wait for other fetches. A table of 2 GiB needs 17 MiB/s.
pub const FETCH_TIME_MAX: Duration = Duration::from_secs(120);

/// Time for which a failed fetch is remembered. Until it has passed, the table is not fetched again, so that queries
/// stay fast while the bucket does not work.
pub const FETCH_FAILURE_REMEMBERED: Duration = Duration::from_secs(10);

/// Longest time to add a table to a bucket or to remove tables from it.
pub const PUBLISH_TIME_MAX: Duration = Duration::from_secs(300);

/// Longest time to list the names in a bucket. S3 needs 0.1 s for each thousand.
pub const LIST_TIME_MAX: Duration = Duration::from_secs(120);

/// Maximum number of objects in a bucket for an upload. A router holds all of their names, with up to 400 bytes each.
pub const BUCKET_OBJECTS_MAX: usize = 262_144;

/// Maximum number of failed searches that are remembered. Each takes up to 150 bytes of memory.
pub const FAILURES_MAX: usize = 65_536;

/// Largest size of a section of debug information after decompression, in bytes. It is compared with the size that the
/// header of a compressed section states.
pub const SECTION_UNPACKED_BYTES_MAX: usize = 3 << 30;

/// Largest size of a `.gnu_debugdata` section after decompression, in bytes. The section holds one `.symtab`, which has
/// 20 MB in a large program.
pub const DEBUGDATA_UNPACKED_BYTES_MAX: u64 = 256 << 20;

/// Length of the longest function name, mangled or not, in bytes. Longer names are truncated, and end in `…`. Names of
/// templates reach 5 kB. A demangler can make gigabytes from a hostile name.
pub const NAME_BYTES_MAX: usize = 16 << 10;

/// Length of the longest path of a file, in bytes, as in Linux.
pub const PATH_BYTES_MAX: usize = 4 << 10;

/// Largest size that is assumed for a function whose symbol has no size, in bytes. Such functions are written in
/// assembly and short. Code that is further from the start does not get the name of the function.
pub const UNSIZED_FUNCTION_BYTES_MAX: u64 = 64 << 10;

/// Largest number of frames that are read for one address: a function and the calls that are inlined into it. GCC and
/// LLVM stay below 100. The limit is needed because a table that was damaged after the check of its checksum could have
/// a cycle.
pub const INLINE_DEPTH_MAX: usize = 256;

/// Maximum number of frames in a response, divided by the number of addresses. Optimized C++ and Rust have three to
/// eight frames at an address. The limit is needed because a hostile program can have [`INLINE_DEPTH_MAX`] frames at
/// every address, and a query can have millions of addresses.
pub const FRAMES_PER_ADDRESS_MAX: usize = 16;

/// Number of frames that every response may have, even if they are more than [`FRAMES_PER_ADDRESS_MAX`] for each
/// address.
pub const FRAMES_MIN: usize = 64 << 10;

/// Maximum number of build IDs of one symbol table: one GNU ID, one Go ID, and an htlhash for each way in which the
/// program was stripped.
pub const IDS_MAX: usize = 8;

/// Largest size of the header of a symbol table, in bytes. The header holds build IDs and up to
/// [`PROGRAM_HEADERS_MAX`](host_files::limits::PROGRAM_HEADERS_MAX) segments.
pub const TABLE_HEADER_BYTES_MAX: u32 = 64 << 10;

/// Maximum number of bytes that are read from one `/proc/<pid>/maps`. A process may have 65,530 mappings with 100 bytes
/// each.
pub const MAPS_BYTES_MAX: u64 = 16 << 20;

/// Maximum number of distinct mapped files, of all processes together, that are remembered between two searches.
pub const MAPPED_FILES_MAX: usize = 100_000;

/// Maximum number of processes that are remembered for one mapped file. Several are remembered, because a process may
/// end before the file is opened through it.
pub const OWNERS_MAX: usize = 4;

/// Maximum number of files with the same path whose build IDs are compared in one search. There may be many, because
/// each container may have its own libc.
pub const CANDIDATES_MAX: usize = 256;

/// Time for which the list of mapped files is reused. Reading the list takes 0.1 ms for each process.
pub const MAPPED_FILES_AGE_MAX: Duration = Duration::from_secs(5);
