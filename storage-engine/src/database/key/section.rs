//! Sections of a partition.

/// Kind of the values of a partition. The keys of one kind are adjacent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Section {
    Chunks,
    Events,
    Head,
    BatchIds,
    Series,
    Dictionary,
    DroppedNames,
    Windows,
}

impl Section {
    pub(crate) const ALL: [Self; 8] = [
        Self::Chunks,
        Self::Events,
        Self::Head,
        Self::BatchIds,
        Self::Series,
        Self::Dictionary,
        Self::DroppedNames,
        Self::Windows,
    ];

    /// Returns the name of the section in reports and metrics.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Chunks => "sums and totals",
            Self::Events => "events",
            Self::Head => "head",
            Self::BatchIds => "batch ids",
            Self::Series => "series",
            Self::Dictionary => "dictionary",
            Self::DroppedNames => "dropped names",
            Self::Windows => "windows",
        }
    }

    /// Returns the byte that stands for the section in keys.
    pub(super) fn tag(self) -> u8 {
        match self {
            Self::Chunks => b'c',
            Self::Events => b'e',
            Self::Head => b'h',
            Self::BatchIds => b'i',
            Self::Series => b's',
            Self::Dictionary => b'd',
            Self::DroppedNames => b'n',
            Self::Windows => b'w',
        }
    }
}
