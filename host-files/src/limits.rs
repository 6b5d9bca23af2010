//! Limits on the sizes and counts that this crate reads from files, each with its reason.

/// Maximum number of program headers of one file. Linkers write about a dozen. A file with more than the limit is
/// refused.
pub const PROGRAM_HEADERS_MAX: usize = 1024;

/// Maximum number of section headers that are read from one file. A linked file has about 40. Further section headers
/// are ignored.
pub const SECTION_HEADERS_MAX: usize = 16_384;

/// Maximum number of bytes of one note segment or section that are searched for a build ID. The note of a build ID has
/// 36 bytes.
pub const NOTE_BYTES_MAX: u64 = 64 << 10;

/// Maximum number of bytes that are read of a dynamic section. A section with 40 entries of 16 bytes is already large.
pub const DYNAMIC_BYTES_MAX: u64 = 16 << 10;

/// Longest name of a needed library that is read, in bytes, with its final zero. Most names have about 20 bytes.
pub const LIBRARY_NAME_BYTES_MAX: u64 = 256;

/// Largest size of a section of call frame information that is read, in bytes. It is ten times the largest section seen
/// in a library.
pub const CALL_FRAME_BYTES_MAX: u64 = 64 << 20;

/// Largest size of a `.gnu_debugdata` section from which call frame information is read, in bytes. The limit applies to
/// the compressed section and again to the decompressed one.
pub const MINI_DEBUG_FILE_BYTES_MAX: u64 = 32 << 20;

/// Base-2 logarithm of the largest window, in bytes, with which zstd may decompress call frame information. The window
/// thus has at most 8 MiB. Only the levels that `zstd --ultra` enables need a larger window.
pub const ZSTD_WINDOW_LOG_MAX: u32 = 23;

/// Largest size of a debug file that is read as a whole to compare its checksum, before its call frame information is
/// used, in bytes. Programs with larger debug files have build IDs, and need no checksum.
pub const CHECKSUM_BYTES_MAX: u64 = 256 << 20;

/// Maximum number of bytes that are read of the section that holds the names of all sections. A linked file has about
/// 400 bytes of names.
pub const SECTION_NAMES_BYTES_MAX: u64 = 1 << 20;

/// Maximum number of bytes that are read of a `.gnu_debuglink` section. The section holds one file name and a checksum.
pub const DEBUG_LINK_BYTES_MAX: u64 = 4 << 10;

/// Length of the longest GNU build ID that is accepted, in bytes. Linkers write 8, 16 or 20 bytes; their option
/// `--build-id=0x...` sets any length.
pub const GNU_BUILD_ID_BYTES_MAX: usize = 64;

/// Length of the longest Go build ID that is accepted, in bytes. The Go linker writes four base64 hashes of 20
/// characters, and three slashes.
pub const GO_BUILD_ID_BYTES_MAX: usize = 256;

/// Largest amount of memory that the xz decoder may allocate, in KiB. The largest preset of xz needs a dictionary of 64
/// MiB.
pub const XZ_MEMORY_KIB_MAX: u32 = 128 << 10;

/// Largest number of bytes of the table of exported symbols that are read. Node.js 20 has 2 MB.
pub const SYMBOL_TABLE_BYTES_MAX: u64 = 64 << 20;

/// Largest number of bytes of the names of exported symbols that are read. Node.js 20 has 5 MB.
pub const SYMBOL_NAMES_BYTES_MAX: u64 = 128 << 20;

/// Largest number of bytes of each table of relocations that are read, to find those of a thread-local variable. A
/// hundred thousand relocations take 2 MB.
pub const RELOCATIONS_BYTES_MAX: u64 = 64 << 20;

/// Number of occurrences of the searched names, in a string table, after which the search ends. A linker writes each
/// name once.
pub const SYMBOLS_FOUND_MAX: usize = 256;
