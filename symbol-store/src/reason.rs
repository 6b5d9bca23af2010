//! Why an address has no name, in words that say what to do about it.

use std::time::Duration;

use thiserror::Error;

use crate::table::Source;

/// Why an address has no name. [`Reason::code`] is stable; the sentence is for people.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Reason {
    /// The profile does not identify the mapped file; a path alone could name another version of it.
    #[error(
        "the profile has no build ID for this file: link it with --build-id, or send profiles that carry build IDs"
    )]
    NoBuildId,
    /// No file with this build ID was uploaded or is on this host.
    #[error("no file with this build ID is known: run `varve upload` with the program or its debug file")]
    NoDebugFile,
    /// The file was found, but it was stripped and its debug file was not found. Where its functions begin may be known.
    #[error("the file has no symbols: install its debug package, or run `varve upload` with its debug file")]
    Stripped,
    /// The file was found, but could not be made into a symbol table.
    #[error("the debug file cannot be used: {0}")]
    DebugFileUnusable(#[from] Unusable),
    /// The symbol table has no function there.
    #[error("no function at this address in {}", .source_kind.sentence())]
    NoSymbolAtAddress {
        /// Where the table's names come from.
        source_kind: Source,
    },
    /// The address is outside of the code of the file, so the profile's address cannot be right.
    #[error("the address is outside of the code of this file")]
    AddressOutsideFile,
    /// File offsets cannot be mapped to addresses: only a debug file is known, which lacks the segments.
    #[error(
        "only the debug file is known, which does not say where the program is loaded: run `varve upload` with the program too"
    )]
    SegmentsUnknown,
    /// The symbol table is being made.
    #[error("the symbol table is being made: ask again in some seconds")]
    Converting,
    /// The store's directory cannot be read or written, or no process can be started; the log says which.
    #[error("the symbol store cannot work: see the log for the error of the disk or the operating system")]
    StoreUnavailable,
}

impl Reason {
    /// A stable name in snake case, for APIs.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::NoBuildId => "no_build_id",
            Self::NoDebugFile => "no_debug_file",
            Self::Stripped => "stripped",
            Self::DebugFileUnusable(_) => "debug_file_unusable",
            Self::NoSymbolAtAddress { .. } => "no_symbol_at_address",
            Self::AddressOutsideFile => "address_outside_file",
            Self::SegmentsUnknown => "segments_unknown",
            Self::Converting => "converting",
            Self::StoreUnavailable => "store_unavailable",
        }
    }
}

/// Why a file could not be made into a symbol table. The same bytes will fail again.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Unusable {
    /// It is not ELF, or its headers contradict each other.
    #[error("it is no valid ELF file")]
    Malformed,
    /// It has no loaded segments: an object file or kernel module, whose addresses are not final.
    #[error("it is neither a program nor a library, nor the debug file of one")]
    NotLinked,
    /// It is larger than the limit.
    #[error("{bytes} bytes, the limit is {bytes_max}")]
    TooLarge {
        /// Its size.
        bytes: u64,
        /// The limit.
        bytes_max: u64,
    },
    /// The conversion ran out of memory, or of stack.
    #[error("its conversion needs more than {bytes_max} bytes of memory, or nests too deeply")]
    MemoryExceeded {
        /// The limit.
        bytes_max: u64,
    },
    /// The conversion took too long.
    #[error("its conversion takes more than {} s of CPU time or {} s in all", .cpu_max.as_secs(), .time_max.as_secs())]
    TimeExceeded {
        /// The limit of CPU time.
        cpu_max: Duration,
        /// The limit of time.
        time_max: Duration,
    },
    /// The symbol table became too large.
    #[error("its symbol table is larger than {bytes_max} bytes")]
    TableTooLarge {
        /// The limit.
        bytes_max: u64,
    },
    /// The converter found a contradiction that it does not handle.
    #[error("the converter gave up on it with exit code {exit_code}")]
    GaveUp {
        /// The exit code; 101 is a panic.
        exit_code: i32,
    },
    /// The converter was killed.
    #[error("the converter was killed by signal {signal}")]
    Killed {
        /// The signal; 9 without a limit exceeded is the kernel's out-of-memory killer.
        signal: i32,
    },
    /// Somebody wrote to the file while it was read.
    #[error("it was changed while it was read")]
    Changed,
}
