//! The rows: one kind of fault each.

mod clocks;
mod comparisons;
mod damaged_files;
mod eio;
mod full_disks;
mod kills;
mod little_memory;
mod partitions;
mod pauses;
mod power_cuts;
mod routers;
mod slow_disks;
mod unreadable_blocks;

use crate::memory_limit;
use crate::run::{Kit, Run};

/// A row.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) name: &'static str,
    /// Number of faults at the sizes `ci` and `night`.
    pub(crate) ci: usize,
    pub(crate) night: usize,
    /// Parts of the cluster that the row needs.
    pub(crate) kit: Kit,
    /// Injects this number of faults.
    pub(crate) inject: fn(&mut Run, usize),
    /// Returns the reason why this machine cannot run the row, if there is one.
    pub(crate) obstacle: fn() -> Option<&'static str>,
}

/// All rows.
pub(crate) const ROWS: [Row; 13] = [
    Row { name: "R1", ci: 6, night: 150, kit: Kit::Plain, inject: kills::inject, obstacle: nothing },
    Row { name: "R2", ci: 3, night: 60, kit: Kit::LoopDisks, inject: power_cuts::inject, obstacle: not_root },
    Row { name: "R6", ci: 4, night: 40, kit: Kit::MemoryLimits, inject: little_memory::inject, obstacle: no_groups },
    Row { name: "R7", ci: 5, night: 100, kit: Kit::Plain, inject: damaged_files::inject, obstacle: nothing },
    Row { name: "R8", ci: 3, night: 180, kit: Kit::Plain, inject: eio::inject, obstacle: no_strace },
    Row { name: "R9", ci: 3, night: 12, kit: Kit::Plain, inject: slow_disks::inject, obstacle: no_strace },
    Row { name: "R10", ci: 2, night: 20, kit: Kit::SmallDisks, inject: full_disks::inject, obstacle: not_root },
    Row { name: "R11", ci: 3, night: 60, kit: Kit::Plain, inject: unreadable_blocks::inject, obstacle: nothing },
    Row { name: "R12", ci: 10, night: 60, kit: Kit::Network, inject: partitions::inject, obstacle: nothing },
    Row { name: "R14", ci: 4, night: 60, kit: Kit::Network, inject: pauses::inject, obstacle: nothing },
    Row { name: "R15", ci: 4, night: 60, kit: Kit::Clocks, inject: clocks::inject, obstacle: nothing },
    Row { name: "R18", ci: 6, night: 60, kit: Kit::Plain, inject: routers::inject, obstacle: nothing },
    Row { name: "R21", ci: 3, night: 60, kit: Kit::Plain, inject: comparisons::inject, obstacle: nothing },
];

/// Returns the row with this name.
pub(crate) fn named(name: &str) -> Option<&'static Row> {
    static ALL: [Row; 13] = ROWS;
    ALL.iter().find(|row| row.name == name)
}

fn nothing() -> Option<&'static str> {
    None
}

fn no_strace() -> Option<&'static str> {
    tests::shared::tool("strace").is_none().then_some("strace is not installed")
}

fn no_groups() -> Option<&'static str> {
    let is_allowed = memory_limit::is_allowed();
    (!is_allowed)
        .then_some("the memory of processes cannot be limited: root and control groups of version 1 are needed")
}

fn not_root() -> Option<&'static str> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let is_root = status.lines().any(|line| line.starts_with("Uid:\t0\t0"));
    (!is_root).then_some("file systems cannot be mounted: root is needed")
}
