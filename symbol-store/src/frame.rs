//! Parts of a request to the symbol store, and of its response.

use std::sync::Arc;

use proto::{BuildId, TenantId};
use thiserror::Error;

use crate::reason::Reason;

/// The mapped file to which addresses belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ObjectKey<'a> {
    /// Tenant whose uploaded files may give names, beside the files of this host.
    pub tenant: &'a TenantId,
    /// Build ID of the file; `None` if the profile has none, so that the addresses get no names.
    pub build_id: Option<&'a BuildId>,
    /// Path of the file as the profile gives it; empty if unknown. The path only helps to find the file on this host. A
    /// file is accepted by its build ID alone.
    pub file: &'a str,
}

/// A function that was running at an address.
///
/// The innermost frame is the function whose code is at the address. Each further frame is the caller into which the
/// previous one was inlined. The last frame is the function that exists in the binary.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// Demangled name of the function, without parameters and return type. Never empty.
    pub function: Arc<str>,
    /// Mangled name, as the linker knows the function; equal to `function` if the name is not mangled.
    pub system_name: Arc<str>,
    /// Path of the source file as the compiler wrote it; empty if unknown.
    pub file: Arc<str>,
    /// Line in `file`, or 0 if unknown. In the frame of a caller, it is the line of the call.
    pub line: u32,
    /// Line in `file` on which the function is declared, or 0 if unknown.
    pub start_line: u32,
    /// True if inlined calls are missing, because the response would exceed
    /// [`crate::limits::FRAMES_PER_ADDRESS_MAX`].
    pub is_cut: bool,
}

/// An address without a name.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{reason}")]
pub struct Nameless {
    /// Reason why the address has no name.
    pub reason: Reason,
    /// The address, converted to a virtual address; `None` if it is not in the code of a known file.
    pub virtual_address: Option<u64>,
    /// Virtual address at which the function around the address begins; `None` if the call frame information of the
    /// file does not have it.
    pub function_start: Option<u64>,
}

impl From<Reason> for Nameless {
    fn from(reason: Reason) -> Self {
        Self { reason, virtual_address: None, function_start: None }
    }
}
