//! The response of a shard: sums by group, bucket and stack, and the times that the sums do not cover.

use crate::dictionary::Dictionary;
use crate::formats::{deltas, from_deltas, wire};
use crate::label::LabelSet;
use crate::shard::error::SelectionError;
use crate::shard::selection::{Fold, Selection, Window};
use crate::tier::Tier;

/// The response of a shard to a [`Selection`].
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// Definitions of the locations that the router does not know, and of the entries that these locations refer to.
    pub dictionary: Dictionary,
    /// Labels and attributes of each group, sorted by name.
    pub groups: Vec<LabelSet>,
    /// Nodes of the tree of stacks. Node 0 is the root, and a parent has a lower index than its children.
    pub nodes: Vec<Node>,
    /// Sums of samples. Each combination of group, bucket and node occurs at most once.
    pub cells: Vec<Cell>,
    /// Times of the buckets of [`Fold::Points`] and [`Fold::Last`], ascending, in nanoseconds since 1970.
    pub bucket_times_ns: Vec<i64>,
    /// Number of samples that the sums include.
    pub samples: u64,
    /// Number of series that have at least one sample in the sums.
    pub series: u64,
    /// Number of stored sums and raw samples that were added up.
    pub rows: u64,
    /// For each tier, the number of windows that were read.
    pub windows_read: WindowsRead,
    /// Times with samples that the sums do not include, ascending. Either no tier still stores them at the resolution
    /// of the request, or stored values are damaged.
    pub missing: Vec<Missing>,
    /// Combinations of group and bucket that have samples, but no stack that meets the conditions; ascending.
    pub unpassed: Vec<Unpassed>,
    /// True if the response has no cells, because the conditions on some stacks depend on locations unknown to the
    /// router.
    pub lacks_locations: bool,
}

/// For each tier, the number of windows that were read for a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowsRead {
    /// Number of time ranges for which raw samples were read. Each range lies within one bucket and one partition.
    pub raw: u64,
    /// Number of windows of one minute.
    pub minutes: u64,
    /// Number of windows of one hour.
    pub hours: u64,
    /// Number of windows of one day.
    pub days: u64,
}

impl WindowsRead {
    /// Adds the numbers of `other`.
    pub fn extend(&mut self, other: Self) {
        let Self { raw, minutes, hours, days } = other;
        *self = Self {
            raw: self.raw + raw,
            minutes: self.minutes + minutes,
            hours: self.hours + hours,
            days: self.days + days,
        };
    }

    /// Adds a number of windows of one tier.
    pub fn add(&mut self, tier: Tier, windows: u64) {
        match tier {
            Tier::Raw => self.raw += windows,
            Tier::Minute => self.minutes += windows,
            Tier::Hour => self.hours += windows,
            Tier::Day => self.days += windows,
        }
    }
}

/// A time range whose samples a response does not include, or includes only in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    /// Time range whose samples are missing.
    pub window: Window,
    /// Finest tier that still stores this time, but only in windows that are too long for the request; [`Tier::Raw`] if
    /// no tier can be used. If the values are damaged: the tier of these values.
    pub finest: Tier,
    /// True if values of this time are damaged on disk. The sums may include some samples of this time.
    pub is_damaged: bool,
}

/// A label that some series had, and that one tier does not store.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DroppedLabel {
    /// Tier that does not store the label.
    pub tier: Tier,
    /// Name of the label.
    pub name: String,
}

/// A node of the tree of stacks. The children of the root are the outermost frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// Index of the node of the caller. 0 for the root.
    pub parent: u32,
    /// Location of the frame. `n` is the count of locations that the router knows. A value below `n` is the number of a
    /// known location. Any other value is `n` plus an ID of the response's dictionary. Meaningless for the root.
    pub location: u32,
}

/// Sum of the samples of one group and bucket whose stacks end at one node of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Index of the group.
    pub group: u32,
    /// Index of the bucket.
    pub bucket: u32,
    /// Index of the node at which the stacks end. 0 for `StackDetail::None` and for empty stacks.
    pub node: u32,
    /// Sum of the values, in the profile type's unit.
    pub sum: i128,
}

/// A combination of group and bucket that has samples, but no stack that meets the conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unpassed {
    /// Index of the group.
    pub group: u32,
    /// Index of the bucket.
    pub bucket: u32,
}

impl Answer {
    /// Approximate size of the response, in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.dictionary.memory_bytes()
            + self.groups.iter().map(LabelSet::memory_bytes).sum::<usize>()
            + self.nodes.len() * size_of::<Node>()
            + self.cells.len() * size_of::<Cell>()
            + self.bucket_times_ns.len() * size_of::<i64>()
            + self.missing.len() * size_of::<Missing>()
            + self.unpassed.len() * size_of::<Unpassed>()
    }

    /// Encodes the response.
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

    /// Decodes the response to `request`, and checks the indices in the response.
    ///
    /// # Errors
    /// Returns a [`SelectionError`] if the message contradicts itself or the request.
    pub fn from_wire(from: wire::SelectResponse, request: &Selection) -> Result<Self, SelectionError> {
        let dictionary = Dictionary::from_wire(&from.definitions.unwrap_or_default())?;
        let bucket_times_ns = from_deltas(&from.bucket_time_deltas_ns);
        let buckets = match &request.fold {
            Fold::Sum(windows) => windows.len(),
            Fold::Points(_) | Fold::Last(_) => bucket_times_ns.len(),
        };
        let nodes: Vec<Node> = from
            .node_parents
            .iter()
            .zip(&from.node_locations)
            .map(|(&parent, &location)| Node { parent, location })
            .collect();
        let locations = request.locations.known.count as usize + dictionary.locations.len();
        let badly_placed =
            |(i, node): (usize, &Node)| i > 0 && (node.parent as usize >= i || node.location as usize >= locations);
        if nodes.len() != from.node_parents.len().max(1) || nodes.iter().enumerate().any(badly_placed) {
            return Err(SelectionError::Inconsistent("a node of the response has no parent or no location"));
        }
        let count = from.cell_groups.len();
        if [from.cell_buckets.len(), from.cell_nodes.len(), from.cell_sums.len() / 16] != [count; 3] {
            return Err(SelectionError::Inconsistent("the columns of the cells differ in length"));
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
            return Err(SelectionError::Inconsistent("a cell of the response has no group, bucket or node"));
        }
        let unpassed = from.unpassed_groups.iter().zip(&from.unpassed_buckets);
        let unpassed: Vec<Unpassed> = unpassed.map(|(&group, &bucket)| Unpassed { group, bucket }).collect();
        if unpassed.iter().any(|one| one.group as usize >= from.groups.len() || one.bucket as usize >= buckets) {
            return Err(SelectionError::Inconsistent("an entry without cells has no group or bucket"));
        }
        let lacks_locations = from.lacks_locations;
        let statistics = from.statistics.unwrap_or_default();
        let groups = from.groups.into_iter().map(|group| LabelSet::from_wire(&group.labels)).collect();
        let wire::SelectStatistics { raw_read, minutes_read, hours_read, days_read, .. } = statistics;
        let windows_read = WindowsRead { raw: raw_read, minutes: minutes_read, hours: hours_read, days: days_read };
        let missing = statistics.missing.into_iter().map(Missing::from_wire).collect::<Result<_, _>>()?;
        Ok(Self {
            dictionary,
            groups,
            nodes,
            cells,
            bucket_times_ns,
            samples: statistics.samples,
            series: statistics.series,
            rows: statistics.rows,
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
    /// Encodes the time range.
    #[must_use]
    pub fn to_wire(&self) -> wire::MissingTime {
        let Self { window: Window { start_ns, end_ns }, finest, is_damaged } = *self;
        wire::MissingTime { start_ns, end_ns, finest_tier: finest.number().into(), is_damaged }
    }

    /// Decodes a time range.
    ///
    /// # Errors
    /// Returns a [`SelectionError`] if this version does not know the tier.
    pub fn from_wire(from: wire::MissingTime) -> Result<Self, SelectionError> {
        let window = Window { start_ns: from.start_ns, end_ns: from.end_ns };
        Ok(Self { window, finest: tier_from_wire(from.finest_tier)?, is_damaged: from.is_damaged })
    }
}

impl DroppedLabel {
    /// Encodes the label.
    #[must_use]
    pub fn to_wire(&self) -> wire::DroppedLabel {
        wire::DroppedLabel { tier: self.tier.number().into(), name: self.name.clone() }
    }

    /// Decodes a label.
    ///
    /// # Errors
    /// Returns a [`SelectionError`] if this version does not know the tier.
    pub fn from_wire(from: wire::DroppedLabel) -> Result<Self, SelectionError> {
        Ok(Self { tier: tier_from_wire(from.tier)?, name: from.name })
    }
}

fn tier_from_wire(number: u32) -> Result<Tier, SelectionError> {
    let tier = u8::try_from(number).ok().and_then(Tier::from_number);
    tier.ok_or(SelectionError::Inconsistent("unknown tier"))
}
