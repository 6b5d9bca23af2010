//! Locations and their names, each kept once: everything downstream handles 4-byte ids.

use foldhash::fast::RandomState;
use indexmap::IndexSet;

use crate::file::FileId;

/// Locations kept before all is forgotten: bounds the memory of a host that runs ever new code, at about 60 bytes each.
pub(crate) const LOCATIONS_MAX: usize = 100_000;

/// A location of a [`LocationTable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LocationId(pub(crate) u32);

/// A name of a [`LocationTable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NameId(pub(crate) u32);

/// What runs at a location: the values of the attribute `profile.frame.type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum FrameType {
    Native,
    Kernel,
    Jvm,
    V8,
    Dotnet,
    Python,
}

impl FrameType {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Kernel => "kernel",
            Self::Jvm => "jvm",
            Self::V8 => "v8js",
            Self::Dotnet => "dotnet",
            Self::Python => "cpython",
        }
    }
}

/// Where code runs, as it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Location {
    /// An address of a file, as the file numbers it; named by whoever has its debug file.
    Native { file: FileId, address: u64 },
    /// A function that was named on this host.
    Named { name: NameId, file: Option<FileId>, frame_type: FrameType },
    /// What could not be found out, said in words in the place of the frames that are missing.
    Marker(Marker),
}

/// Why frames are missing. Each keeps the weight of its samples under a name of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Marker {
    /// The address is in no executable mapping, though it ran.
    NoMapping,
    /// The process ended before its mappings could be read.
    ProcessExited,
    /// The mappings of the process may not be read.
    MapsUnreadable,
    /// The mapped file cannot be opened or read.
    FileUnreadable,
    /// The mapped file does not load the bytes that ran.
    NoSegment,
    /// Code in memory without a file, and no perf map names it.
    AnonymousCode,
    /// The frame pointer led nowhere: the frames between here and the root are missing.
    UnwindingFailed,
    /// The stack is deeper than is recorded: the frames between here and the root are missing.
    TruncatedStack,
    /// The stack of a 32-bit program, which is not unwound.
    Stack32Bit,
    /// The kernel does not show its symbols.
    KernelSymbolsUnreadable,
    /// No symbol of the kernel is near the address.
    NoKernelSymbol,
}

impl Marker {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::NoMapping => "[no mapping]",
            Self::ProcessExited => "[process exited]",
            Self::MapsUnreadable => "[mappings unreadable]",
            Self::FileUnreadable => "[file unreadable]",
            Self::NoSegment => "[no segment]",
            Self::AnonymousCode => "[anonymous code]",
            Self::UnwindingFailed => "[unwinding failed]",
            Self::TruncatedStack => "[truncated stack]",
            Self::Stack32Bit => "[32-bit stack]",
            Self::KernelSymbolsUnreadable => "[kernel symbols unreadable]",
            Self::NoKernelSymbol => "[no kernel symbol]",
        }
    }

    /// Whose frames are missing.
    pub(crate) fn frame_type(self) -> FrameType {
        match self {
            Self::KernelSymbolsUnreadable | Self::NoKernelSymbol => FrameType::Kernel,
            _ => FrameType::Native,
        }
    }
}

/// Every location and name met so far.
#[derive(Debug, Default)]
pub(crate) struct LocationTable {
    locations: IndexSet<Location, RandomState>,
    names: IndexSet<Box<str>, RandomState>,
}

impl LocationTable {
    /// The id of `location`, the same for the same location.
    pub(crate) fn insert(&mut self, location: Location) -> LocationId {
        let (index, _) = self.locations.insert_full(location);
        LocationId(u32::try_from(index).unwrap_or(u32::MAX))
    }

    /// The id of a location with a function name.
    pub(crate) fn insert_named(&mut self, name: &str, file: Option<FileId>, frame_type: FrameType) -> LocationId {
        let name = self.name_id(name);
        self.insert(Location::Named { name, file, frame_type })
    }

    fn name_id(&mut self, name: &str) -> NameId {
        let index = self.names.get_index_of(name).unwrap_or_else(|| self.names.insert_full(name.into()).0);
        NameId(u32::try_from(index).unwrap_or(u32::MAX))
    }

    pub(crate) fn get(&self, id: LocationId) -> Option<Location> {
        self.locations.get_index(id.0 as usize).copied()
    }

    pub(crate) fn name(&self, id: NameId) -> &str {
        self.names.get_index(id.0 as usize).map_or("", |name| name)
    }

    /// Whether it is time to forget everything, which also makes every [`LocationId`] and [`NameId`] void.
    pub(crate) fn is_full(&self) -> bool {
        LOCATIONS_MAX <= self.locations.len()
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_location_has_one_id_and_another_has_another() {
        let mut table = LocationTable::default();
        let a = table.insert_named("f", None, FrameType::Kernel);
        assert_eq!(table.insert_named("f", None, FrameType::Kernel), a);
        assert_ne!(table.insert_named("f", None, FrameType::Native), a);
        assert_ne!(table.insert_named("f", Some(FileId(0)), FrameType::Kernel), a);
        let Some(Location::Named { name, .. }) = table.get(a) else { panic!("named") };
        assert_eq!(table.name(name), "f");
        table.clear();
        assert_eq!(table.get(a), None);
    }
}
