//! Every bound of this crate, with what it bounds and why.

use std::time::Duration;

/// The bounds an operator may move; [`Limits::DEFAULT`] says what they are otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest program or debug file that is read, in bytes. The debug file of a browser has 2 GB.
    pub input_bytes_max: u64,
    /// Memory of one conversion beside its mapped input, in bytes (`RLIMIT_AS` of the child). 100 MB of Rust with full
    /// debug information need 0.4 GB.
    pub conversion_memory_bytes_max: u64,
    /// CPU time of one conversion (`RLIMIT_CPU` of the child, in whole seconds). 100 MB of Rust need 2 s.
    pub conversion_cpu_max: Duration,
    /// Time from start to end of one conversion, after which the child is killed: it may wait for the disk or the CPU.
    pub conversion_time_max: Duration,
    /// How far a conversion stands back behind what else runs on the host, as nice(2) counts: 0 is not at all.
    pub conversion_niceness: i32,
    /// Largest symbol table, in bytes (`RLIMIT_FSIZE` of the child). Its format addresses less than 4 GiB of strings.
    pub table_bytes_max: u64,
    /// All symbol tables on disk and all files that are being received, in bytes. Over it the host-made tables that were
    /// not used for longest go; an upload that would not fit even then is refused. Beside it are only the tables that
    /// are being made.
    pub disk_bytes_max: u64,
    /// Symbol tables that stay mapped between queries, in bytes. They are page cache, not our memory, but a host with
    /// thousands of binaries must not have them all mapped for ever.
    pub mapped_bytes_max: u64,
    /// How long a build ID that has no usable file is not looked for again, so that queries over it stay fast.
    pub failure_remembered: Duration,
    /// How long a host-made table without DWARF is used before a debug file is looked for again: one may have been
    /// installed meanwhile.
    pub improvement_interval: Duration,
}

impl Limits {
    /// What is right for a host with 4 GB of memory and more.
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

/// Frames that are remembered of addresses that were asked for, in bytes: 100,000 addresses, more than a hundred services
/// have. Over it all are forgotten and looked up again.
pub const NAMED_BYTES_MAX: usize = 48 << 20;

/// Most conversions at one time: each may use a CPU and gigabytes of memory beside the work it is for.
pub const CONVERSIONS_MAX: usize = 2;

/// Most build IDs that are looked for or wait for a conversion at one time; each is a waiting thread. A query over more
/// gets [`crate::Reason::Converting`] for the rest and asks again.
pub const JOBS_MAX: usize = 64;

/// Most uploads at one time, from their first byte until their table is made. Each may hold a blocking thread, and as
/// much of the disk as the largest input.
pub const UPLOADS_MAX: usize = 4;

/// Room on the disk that an upload takes at a time, in bytes: each time all tables are counted.
pub const UPLOAD_ROOM_STEP_BYTES: u64 = 16 << 20;

/// What the smallest table counts as, on disk and mapped, in bytes. So the budgets of bytes bound the number of tables
/// too: the names of which are held in memory to count them, and each of which is one of a process' 65,530 mappings.
pub const TABLE_COUNTED_BYTES_MIN: u64 = 256 << 10;

/// Most failures that are remembered, at 150 bytes.
pub const FAILURES_MAX: usize = 65_536;

/// Largest unpacked section of debug information, in bytes. A compressed section says how large it becomes.
pub const SECTION_UNPACKED_BYTES_MAX: usize = 3 << 30;

/// Largest unpacked `.gnu_debugdata`, in bytes: it holds one symbol table; that of a large program has 20 MB.
pub const DEBUGDATA_UNPACKED_BYTES_MAX: u64 = 256 << 20;

/// Longest function name that is kept, mangled or not, in bytes; a longer one is cut and ends in `…`. Templates of 5 kB
/// are real; a demangler can make gigabytes of a hostile name.
pub const NAME_BYTES_MAX: usize = 16 << 10;

/// Longest directory or file name that is kept, in bytes: what Linux allows in a path.
pub const PATH_BYTES_MAX: usize = 4 << 10;

/// Longest function without a size, in bytes: assembly is short, and what lies between two symbols that are further apart
/// belongs to neither.
pub const UNSIZED_FUNCTION_BYTES_MAX: u64 = 64 << 10;

/// Deepest chain of inlined calls that is returned; GCC and LLVM stay below 100. A table that was damaged after its
/// checksum was checked could have a cycle.
pub const INLINE_DEPTH_MAX: usize = 256;

/// Frames that an answer may have for each address, on average. Optimized C++ and Rust have three to eight; a hostile
/// program can have [`INLINE_DEPTH_MAX`] everywhere, and a query asks for millions of addresses.
pub const FRAMES_PER_ADDRESS_MAX: usize = 16;

/// Frames that an answer about few addresses may have, whatever their average.
pub const FRAMES_MIN: usize = 64 << 10;

/// Most identities of one symbol table: one GNU, one Go, and a hash for each way in which the program was stripped.
pub const IDS_MAX: usize = 8;

/// Largest header of a symbol table, in bytes: build IDs and segments of
/// [`PROGRAM_HEADERS_MAX`](host_files::limits::PROGRAM_HEADERS_MAX).
pub const TABLE_HEADER_BYTES_MAX: u32 = 64 << 10;

/// Most bytes read of one `/proc/<pid>/maps`. A process may have 65,530 mappings of 100 bytes.
pub const MAPS_BYTES_MAX: u64 = 16 << 20;

/// Most distinct mapped files of all processes that are kept between two searches.
pub const MAPPED_FILES_MAX: usize = 100_000;

/// Processes remembered for one mapped file: one may have ended when it is asked for the file.
pub const OWNERS_MAX: usize = 4;

/// Files of one name whose build ID is compared in one search: as many containers may each have their own libc.
pub const CANDIDATES_MAX: usize = 256;

/// How long what all processes map is used for further searches: reading it takes 0.1 ms a process.
pub const MAPPED_FILES_AGE_MAX: Duration = Duration::from_secs(5);
