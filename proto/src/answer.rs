//! What a shard answers: sums by group, bucket and node of a tree of stacks, and what is left out of them.

use crate::batch::{deltas, from_deltas};
use crate::dictionary::Dictionary;
use crate::label::LabelSet;
use crate::selection::{Fold, Selection, SelectionError, Window};
use crate::tier::Tier;
use crate::wire;

/// The answer of one shard.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// The locations of the tree that the router did not know, and all they refer to.
    pub dictionary: Dictionary,
    /// The labels and attributes of each group, sorted by name.
    pub groups: Vec<LabelSet>,
    /// Node 0 is the root; each node's parent stands before it.
    pub nodes: Vec<Node>,
    /// Each (group, bucket, node) at most once.
    pub cells: Vec<Cell>,
    /// `Points` and `Last`: the time of each bucket, ascending.
    pub bucket_times_ns: Vec<i64>,
    /// Samples that were summed.
    pub samples: u64,
    /// Series that had any.
    pub series: u64,
    /// Sums of stacks, and samples, that were added up for it.
    pub rows: u64,
    /// What was read for it.
    pub windows_read: WindowsRead,
    /// Times that the sums miss, ascending: no tier holds them so finely any more, or values are damaged.
    pub missing: Vec<Missing>,
    /// Where there are samples and no cell, ascending.
    pub unpassed: Vec<Unpassed>,
    /// There are stacks of which the sets do not tell whether they pass, so there are no cells.
    pub lacks_locations: bool,
}

/// How many windows of each tier were planned for an answer; of raw samples, intervals between edges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowsRead {
    /// Intervals of raw samples.
    pub raw: u64,
    /// Minutes.
    pub minutes: u64,
    /// Hours.
    pub hours: u64,
    /// Days.
    pub days: u64,
}

impl WindowsRead {
    /// Adds what another counted.
    pub fn extend(&mut self, other: Self) {
        let Self { raw, minutes, hours, days } = other;
        *self = Self {
            raw: self.raw + raw,
            minutes: self.minutes + minutes,
            hours: self.hours + hours,
            days: self.days + days,
        };
    }

    /// Counts windows of a tier.
    pub fn add(&mut self, tier: Tier, windows: u64) {
        match tier {
            Tier::Raw => self.raw += windows,
            Tier::Minute => self.minutes += windows,
            Tier::Hour => self.hours += windows,
            Tier::Day => self.days += windows,
        }
    }
}

/// A time that is left out of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Which.
    pub window: Window,
    /// The finest tier that holds it still: its edges are not on that tier's windows. Raw samples: none can answer.
    /// For a damaged time, the tier whose values are damaged.
    pub finest: Tier,
    /// Values of this time are damaged on disk. The answer may hold some of its samples.
    pub is_damaged: bool,
}

/// A label of series that a tier has not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeftOutLabel {
    /// Whose windows.
    pub tier: Tier,
    /// Its name.
    pub name: String,
}

/// A node of the tree of stacks; a child of the root is an outermost frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// Index of the caller's node; the root's is 0.
    pub parent: u32,
    /// Below the count of known locations, the number of one of those; else that count more than an id of the answer's dictionary.
    /// The root's means nothing.
    pub location: u32,
}

/// The sum of what one group has in one bucket in stacks that end at one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Index into the groups.
    pub group: u32,
    /// Index into the buckets.
    pub bucket: u32,
    /// Index into the nodes; 0 with `StackDetail::None`, and for empty stacks.
    pub node: u32,
    /// In the profile type's unit.
    pub sum: i128,
}

/// A group that has samples in a bucket, but none whose stack passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unpassed {
    /// Index into the groups.
    pub group: u32,
    /// Index into the buckets.
    pub bucket: u32,
}

impl Answer {
    /// As it is sent.
    #[must_use]
    pub fn to_wire(&self) -> wire::SelectResponse {
        wire::SelectResponse {
            definitions: Some(self.dictionary.to_wire()),
            groups: self.groups.iter().map(|group| wire::Group { labels: group.to_wire() }).collect(),
            node_parents: self.nodes.iter().map(|node| node.parent).collect(),
            node_locations: self.nodes.iter().map(|node| node.location).collect(),
            cell_groups: self.cells.iter().map(|cell| cell.group).collect(),
            cell_buckets: self.cells.iter().map(|cell| cell.bucket).collect(),
            cell_nodes: self.cells.iter().map(|cell| cell.node).collect(),
            cell_sums: self.cells.iter().flat_map(|cell| cell.sum.to_le_bytes()).collect(),
            bucket_time_deltas_ns: deltas(&self.bucket_times_ns),
            statistics: Some(self.statistics_to_wire()),
            lacks_locations: self.lacks_locations,
            unpassed_groups: self.unpassed.iter().map(|unpassed| unpassed.group).collect(),
            unpassed_buckets: self.unpassed.iter().map(|unpassed| unpassed.bucket).collect(),
        }
    }

    /// What was sent, its indices checked; how many buckets a `Sum` has and how many locations are known, is known to who asked.
    ///
    /// # Errors
    /// [`SelectionError`] where it does not add up.
    pub fn from_wire(from: wire::SelectResponse, asked: &Selection) -> Result<Self, SelectionError> {
        let dictionary = Dictionary::from_wire(&from.definitions.unwrap_or_default())?;
        let bucket_times_ns = from_deltas(&from.bucket_time_deltas_ns);
        let buckets = match &asked.fold {
            Fold::Sum(windows) => windows.len(),
            Fold::Points(_) | Fold::Last(_) => bucket_times_ns.len(),
        };
        let nodes: Vec<Node> = from
            .node_parents
            .iter()
            .zip(&from.node_locations)
            .map(|(&parent, &location)| Node { parent, location })
            .collect();
        let locations = asked.locations.known.count as usize + dictionary.locations.len();
        let badly_placed =
            |(i, node): (usize, &Node)| i > 0 && (node.parent as usize >= i || node.location as usize >= locations);
        if nodes.len() != from.node_parents.len().max(1) || nodes.iter().enumerate().any(badly_placed) {
            return Err(SelectionError::Inconsistent("a node of the answer has no parent or no location"));
        }
        let count = from.cell_groups.len();
        if [from.cell_buckets.len(), from.cell_nodes.len(), from.cell_sums.len() / 16] != [count; 3] {
            return Err(SelectionError::Inconsistent("columns of cells differ in length"));
        }
        let sums = from
            .cell_sums
            .chunks_exact(16)
            .map(|bytes| bytes.iter().rev().fold(0, |sum, &byte| sum << 8 | i128::from(byte)));
        let ids = from.cell_groups.iter().zip(&from.cell_buckets).zip(&from.cell_nodes);
        let cells: Vec<Cell> =
            ids.zip(sums).map(|(((&group, &bucket), &node), sum)| Cell { group, bucket, node, sum }).collect();
        let dangles = |cell: &Cell| {
            cell.group as usize >= from.groups.len()
                || cell.bucket as usize >= buckets
                || cell.node as usize >= nodes.len()
        };
        if cells.iter().any(dangles) {
            return Err(SelectionError::Inconsistent("a cell of the answer dangles"));
        }
        let unpassed = from.unpassed_groups.iter().zip(&from.unpassed_buckets);
        let unpassed: Vec<Unpassed> = unpassed.map(|(&group, &bucket)| Unpassed { group, bucket }).collect();
        if unpassed.iter().any(|one| one.group as usize >= from.groups.len() || one.bucket as usize >= buckets) {
            return Err(SelectionError::Inconsistent("a bucket without a stack that passes dangles"));
        }
        let lacks_locations = from.lacks_locations;
        let statistics = from.statistics.unwrap_or_default();
        let groups = from.groups.into_iter().map(|group| LabelSet::from_wire(group.labels)).collect();
        let (samples, series) = (statistics.samples, statistics.series);
        let wire::SelectStatistics { raw_read, minutes_read, hours_read, days_read, .. } = statistics;
        let windows_read = WindowsRead { raw: raw_read, minutes: minutes_read, hours: hours_read, days: days_read };
        let missing = statistics.missing.into_iter().map(Missing::from_wire).collect::<Result<_, _>>()?;
        let rows = statistics.rows;
        Ok(Self {
            dictionary,
            groups,
            nodes,
            cells,
            bucket_times_ns,
            samples,
            series,
            rows,
            windows_read,
            missing,
            unpassed,
            lacks_locations,
        })
    }

    fn statistics_to_wire(&self) -> wire::SelectStatistics {
        let WindowsRead { raw, minutes, hours, days } = self.windows_read;
        wire::SelectStatistics {
            samples: self.samples,
            series: self.series,
            raw_read: raw,
            minutes_read: minutes,
            hours_read: hours,
            days_read: days,
            missing: self.missing.iter().map(Missing::to_wire).collect(),
            rows: self.rows,
        }
    }
}

impl Missing {
    /// As it is sent.
    #[must_use]
    pub fn to_wire(&self) -> wire::MissingTime {
        let Self { window: Window { start_ns, end_ns }, finest, is_damaged } = *self;
        wire::MissingTime { start_ns, end_ns, finest_tier: finest.number().into(), is_damaged }
    }

    /// What was sent.
    ///
    /// # Errors
    /// A tier that this version does not know.
    pub fn from_wire(from: wire::MissingTime) -> Result<Self, SelectionError> {
        let window = Window { start_ns: from.start_ns, end_ns: from.end_ns };
        Ok(Self { window, finest: tier_from_wire(from.finest_tier)?, is_damaged: from.is_damaged })
    }
}

impl LeftOutLabel {
    /// As it is sent.
    #[must_use]
    pub fn to_wire(&self) -> wire::LeftOutLabel {
        wire::LeftOutLabel { tier: self.tier.number().into(), name: self.name.clone() }
    }

    /// What was sent.
    ///
    /// # Errors
    /// A tier that this version does not know.
    pub fn from_wire(from: wire::LeftOutLabel) -> Result<Self, SelectionError> {
        Ok(Self { tier: tier_from_wire(from.tier)?, name: from.name })
    }
}

fn tier_from_wire(number: u32) -> Result<Tier, SelectionError> {
    let tier = u8::try_from(number).ok().and_then(Tier::from_number);
    tier.ok_or(SelectionError::Inconsistent("unknown tier"))
}
