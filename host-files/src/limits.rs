//! Every bound of this crate, with its reason.

/// Maximum number of program headers of one file. Linkers write about a dozen. A file with more than the limit is
/// refused.
pub const PROGRAM_HEADERS_MAX: usize = 1024;

/// Maximum number of section headers that are read from one file. A linked file has about 40. Further section headers
/// are ignored.
pub const SECTION_HEADERS_MAX: usize = 16_384;

/// Maximum number of bytes of one note segment or section that are searched for a build ID. The note of a build ID has
/// 36 bytes.
pub const NOTE_BYTES_MAX: u64 = 64 << 10;

/// Maximum number of bytes of a dynamic section that are read. 40 entries of 16 bytes are already many.
pub const DYNAMIC_BYTES_MAX: u64 = 16 << 10;

/// Largest section of call frame information, in bytes: ten times that of the largest libraries seen.
pub const CALL_FRAME_BYTES_MAX: u64 = 64 << 20;

/// Largest `.gnu_debugdata` from which call frame information is read, in bytes, before and after decompression.
pub const MINI_DEBUG_FILE_BYTES_MAX: u64 = 32 << 20;

/// Largest window of a zstd stream of call frame information, as a power of two: 8 MiB. Only levels of `--ultra`
/// exceed it.
pub const ZSTD_WINDOW_LOG_MAX: u32 = 23;

/// Largest debug file whose checksum is computed for its call frame information, in bytes. Larger debug files belong to
/// programs with build IDs.
pub const CHECKSUM_BYTES_MAX: u64 = 256 << 20;

/// Maximum number of bytes of the section of section names that are read. A linked file has about 400 bytes of names.
pub const SECTION_NAMES_BYTES_MAX: u64 = 1 << 20;

/// Maximum number of bytes of a `.gnu_debuglink` section that are read. It holds one file name and a checksum.
pub const DEBUG_LINK_BYTES_MAX: u64 = 4 << 10;

/// Longest GNU build ID, in bytes. Linkers write 8, 16 or 20; `--build-id=0x...` sets any length.
pub const GNU_BUILD_ID_BYTES_MAX: usize = 64;

/// Longest Go build ID, in bytes. The Go linker writes four base64 hashes of 20 characters, and three slashes.
pub const GO_BUILD_ID_BYTES_MAX: usize = 256;

/// Memory of the xz decoder, in KiB. The largest preset has a dictionary of 64 MiB.
pub const XZ_MEMORY_KIB_MAX: u32 = 128 << 10;
