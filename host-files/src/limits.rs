//! Every bound of this crate, with its reason.

/// Most program headers read from one file: linkers write about a dozen; a file with more is refused.
pub const PROGRAM_HEADERS_MAX: usize = 1024;

/// Most section headers read from one file: a linked file has 40. More are not looked at.
pub const SECTION_HEADERS_MAX: usize = 16_384;

/// Largest note segment or section that is searched for a build ID, in bytes: a build ID note has 36.
pub const NOTE_BYTES_MAX: u64 = 64 << 10;

/// Most of a dynamic section that is read, in bytes: 40 entries of 16 bytes are many.
pub const DYNAMIC_BYTES_MAX: u64 = 16 << 10;

/// Bytes of one section of call frame information: ten times what the largest libraries known here have.
pub const CALL_FRAME_BYTES_MAX: u64 = 64 << 20;

/// Largest unpacked `.gnu_debugdata` of which the call frame information is read, in bytes; packed, it is smaller.
pub const MINI_DEBUG_FILE_BYTES_MAX: u64 = 32 << 20;

/// Largest window of a zstd stream of call frame information, as a power of two: 8 MiB, which no level below `--ultra` exceeds.
pub const ZSTD_WINDOW_LOG_MAX: u32 = 23;

/// Largest debug file whose checksum is computed for its call frame information, in bytes: those that are larger have build IDs.
pub const CHECKSUM_BYTES_MAX: u64 = 256 << 20;

/// Most of the section of section names that is read, in bytes: a linked file has 400.
pub const SECTION_NAMES_BYTES_MAX: u64 = 1 << 20;

/// Largest `.gnu_debuglink` section, in bytes: it holds one file name and a checksum.
pub const DEBUG_LINK_BYTES_MAX: u64 = 4 << 10;

/// Longest GNU build ID, in bytes: linkers write 8, 16 or 20; `--build-id=0x...` may be anything.
pub const GNU_BUILD_ID_BYTES_MAX: usize = 64;

/// Longest Go build ID, in bytes: the Go linker writes four base64 hashes of 20 characters and three slashes.
pub const GO_BUILD_ID_BYTES_MAX: usize = 256;

/// Memory of the xz decoder, in KiB: its largest preset has a dictionary of 64 MiB.
pub const XZ_MEMORY_KIB_MAX: u32 = 128 << 10;
