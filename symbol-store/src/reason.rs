//! Reasons why an address has no name, and what the user can do about it.

use std::time::Duration;

use thiserror::Error;

use crate::source::Source;

/// The reason why an address has no name. [`Reason::code`] is stable. The text is for people.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Reason {
    /// The profile has no build ID for the mapped file. The path of the file is not enough, because another version of
    /// the file may be there now.
    #[error(
        "the profile has no build ID for this file: link it with --build-id, or send profiles that carry build IDs"
    )]
    NoBuildId,
    /// No file with this build ID was uploaded or found on this host.
    #[error("no file with this build ID is known: run `varve upload` with the program or its debug file")]
    NoDebugFile,
    /// The file was found, but it is stripped and its debug file was not found. The start of the function may be known.
    #[error("the file has no symbols: install its debug package, or run `varve upload` with its debug file")]
    Stripped,
    /// The file was found, but could not be converted to a symbol table.
    #[error("the debug file cannot be used: {0}")]
    DebugFileUnusable(#[from] Unusable),
    /// The stored symbol table does not have its hash or size, or a newer version has written it.
    #[error(
        "the stored symbol table is damaged, or a newer varve has written it: \
         run `varve upload` again with the program or its debug file"
    )]
    DebugFileDamaged,
    /// The symbol table has no function at the address.
    #[error("no function at this address in {}", .source_kind.sentence())]
    NoSymbolAtAddress {
        /// Source of the names in the table.
        source_kind: Source,
    },
    /// The address is outside of the code of the file, so the profile must be wrong.
    #[error("the address is outside of the code of this file")]
    AddressOutsideFile,
    /// Only a debug file is known. It does not have the segments by which file offsets are converted to addresses.
    #[error(
        "only the debug file is known, which does not say where the program is loaded: \
         run `varve upload` with the program too"
    )]
    SegmentsUnknown,
    /// The symbol table is being made or fetched.
    #[error("the symbol table is being built: retry in a few seconds")]
    Converting,
    /// The directory or the bucket of the store cannot be read or written, or no process can be started. The error is
    /// in the log.
    #[error("the symbol store does not work: see the log for the error of the disk, S3 or the operating system")]
    StoreUnavailable,
}

impl Reason {
    /// Stable name of the reason in snake case, for APIs.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::NoBuildId => "no_build_id",
            Self::NoDebugFile => "no_debug_file",
            Self::Stripped => "stripped",
            Self::DebugFileUnusable(_) => "debug_file_unusable",
            Self::DebugFileDamaged => "debug_file_damaged",
            Self::NoSymbolAtAddress { .. } => "no_symbol_at_address",
            Self::AddressOutsideFile => "address_outside_file",
            Self::SegmentsUnknown => "segments_unknown",
            Self::Converting => "converting",
            Self::StoreUnavailable => "store_unavailable",
        }
    }
}

/// The reason why a file could not be converted to a symbol table. Another conversion of the same bytes would usually
/// fail again.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Unusable {
    /// The file is not ELF, or its headers contradict each other.
    #[error("it is not a valid ELF file")]
    Malformed,
    /// The file has no loaded segments, so it is an object file or a kernel module, whose addresses are not final.
    #[error("it is neither a program nor a library, nor the debug file of one")]
    NotLinked,
    /// The file is larger than the limit.
    #[error("it has {bytes} bytes, the limit is {bytes_max}")]
    TooLarge {
        /// Size of the file, in bytes.
        bytes: u64,
        /// Largest size that is allowed, in bytes.
        bytes_max: u64,
    },
    /// The conversion ran out of memory, or of stack.
    #[error("its conversion needs more than {bytes_max} bytes of memory, or nests too deeply")]
    MemoryExceeded {
        /// Limit of the memory, in bytes.
        bytes_max: u64,
    },
    /// The conversion took too long.
    #[error("its conversion takes more than {} s of CPU time or {} s in all", .cpu_max.as_secs(), .time_max.as_secs())]
    TimeExceeded {
        /// Limit of the CPU time.
        cpu_max: Duration,
        /// Limit of the elapsed time.
        time_max: Duration,
    },
    /// The symbol table became too large.
    #[error("its symbol table is larger than {bytes_max} bytes")]
    TableTooLarge {
        /// Largest size of a symbol table that is allowed, in bytes.
        bytes_max: u64,
    },
    /// The converter found an inconsistency that it does not handle.
    #[error("the converter failed with exit code {exit_code}")]
    GaveUp {
        /// Exit code; 101 is a panic.
        exit_code: i32,
    },
    /// The converter was killed.
    #[error("the converter was killed by signal {signal}")]
    Killed {
        /// Signal that killed the converter. Signal 9 comes from the kernel's out-of-memory killer if no limit was
        /// exceeded.
        signal: i32,
    },
    /// The file was modified while it was read.
    #[error("it was changed while it was read")]
    Changed,
}
