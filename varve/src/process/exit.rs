//! The end of the process, with or without its exit handlers.

use std::process::ExitCode;

use super::error_chain;

/// Returns the exit status: 0 for success, 1 for an error. Prints an error to stderr with all its causes.
fn status(result: &anyhow::Result<()>) -> u8 {
    match result {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("varve: {}", error_chain::chain(error));
            1
        }
    }
}

/// Returns the exit code for `main`, and prints an error to stderr. When `main` returns, the process runs its exit
/// handlers, so all databases must be closed before.
pub(crate) fn code(result: &anyhow::Result<()>) -> ExitCode {
    ExitCode::from(status(result))
}

/// Ends the process at once, without its exit handlers.
///
/// Exit handlers destroy the static objects of RocksDB. A thread that uses or closes a database at that time would
/// abort the process. For the data, this is like `kill -9`: all acknowledged pushes are in the log.
#[allow(unsafe_code, reason = "_exit is a C call; the standard library has none that skips the exit handlers")]
pub(crate) fn at_once(result: &anyhow::Result<()>) -> ! {
    let status = status(result);
    // SAFETY: it takes a number and does not return.
    unsafe { libc::_exit(status.into()) }
}
