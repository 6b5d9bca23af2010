//! Capabilities of the process. `scripts/run` sets them on the binary as permitted but not effective, so config and
//! token files are read with the user's own rights. Commands that sample this host make them effective. All other
//! commands drop them.

use anyhow::Context as _;
use caps::{CapSet, CapsHashSet};

use crate::command::Command;

/// Makes the capabilities of the process effective if `command` samples this host; otherwise drops all of them. Threads
/// that start afterwards inherit the capabilities. Earlier ones do not get them, such as the one that watches the token
/// file of an agent. A process of root keeps its capabilities.
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
