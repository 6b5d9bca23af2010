//! The capabilities that `scripts/run` puts on the binary: they arrive permitted and not effective, so what a user
//! names on the command line (config and token files) is read with the user's own rights. Sampling takes them up; all
//! else gives them away.

use anyhow::Context as _;
use caps::{CapSet, CapsHashSet};

use crate::command::Command;

/// Takes up what sampling needs, or gives everything away; before any thread is started, since threads inherit it.
/// Root keeps what it has: its files are its own.
pub(crate) fn restrict(command: &Command) -> anyhow::Result<()> {
    if is_root() {
        return Ok(());
    }
    let samples = match command {
        Command::Up(options) => !options.no_agent,
        Command::Agent(_) => true,
        _ => false,
    };
    let wanted = if samples { caps::read(None, CapSet::Permitted)? } else { CapsHashSet::new() };
    caps::set(None, CapSet::Effective, &wanted).context("taking up capabilities")?;
    caps::set(None, CapSet::Permitted, &wanted).context("giving capabilities away")
}

#[allow(unsafe_code, reason = "geteuid is a C call; libc has no safe form of it")]
pub(crate) fn is_root() -> bool {
    // SAFETY: takes nothing, touches no memory, cannot fail.
    unsafe { libc::geteuid() == 0 }
}
