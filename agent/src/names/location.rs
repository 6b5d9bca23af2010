//! Locations and their names, each stored once: all other code uses their 4-byte ids.

use foldhash::fast::RandomState;
use indexmap::IndexSet;

use crate::process::file::FileId;

/// Number of locations at which all locations are forgotten. Each takes about 60 bytes. This limit bounds the memory on
/// a host that always runs new code.
pub(crate) const LOCATIONS_MAX: usize = 100_000;

/// Size of all names together, in bytes, at which all names and locations are forgotten. A program has a few megabytes
/// of names at most.
const NAMES_BYTES_MAX: usize = 16 << 20;

/// Largest number of bytes that the lines of one location take in a request, with their names. If a location has more
/// inlined calls than fit, those in the middle are omitted. Nearly all locations have fewer than ten calls.
pub(crate) const LINES_BYTES_MAX: usize = 1800;
/// Largest length of the name of a function or of its source file, in bytes. Longer names are truncated:
/// JVM signatures can be very long.
pub(crate) const NAME_BYTES_MAX: usize = 512;
/// Number of bytes that a line and its function take in a request, without names.
pub(crate) const LINE_BYTES: usize = 80;

/// Index of a location in a [`LocationTable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LocationId(pub(crate) u32);

/// Index of a name in a [`LocationTable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NameId(pub(crate) u32);

/// Index of the lines of one location in a [`LocationTable`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct LinesId(u32);

/// A call that was named on this host: a function, and the line in it that ran or that contains the inlined call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) function: String,
    pub(crate) file: String,
    /// 0 if it is not known.
    pub(crate) line: u32,
    /// First line of the function; 0 if it is not known.
    pub(crate) start_line: u32,
}

/// A function that was named on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SourceFunction {
    pub(crate) name: NameId,
    pub(crate) file_name: NameId,
    /// First line of the function; 0 if it is not known.
    pub(crate) start_line: u32,
}

/// A function, and the line in it that ran or that contains the inlined call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SourceLine {
    pub(crate) function: SourceFunction,
    pub(crate) line: u32,
}

/// Kind of the code at a location: a value of the attribute `profile.frame.type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum FrameType {
    Native,
    Kernel,
    Jvm,
    V8,
    Dotnet,
    Beam,
    LuaJit,
    Python,
    Perl,
    Ruby,
    Php,
    Go,
}

impl FrameType {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Kernel => "kernel",
            Self::Jvm => "jvm",
            Self::V8 => "v8js",
            Self::Dotnet => "dotnet",
            Self::Beam => "beam",
            Self::LuaJit => "luajit",
            Self::Python => "cpython",
            Self::Perl => "perl",
            Self::Ruby => "ruby",
            Self::Php => "php",
            Self::Go => "go",
        }
    }
}

/// A location, as it is exported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Location {
    /// An ELF virtual address in a file. The receiver finds the name of the address in the debug file.
    Native { file: FileId, address: u64 },
    /// A function that was named on this host, without its address.
    Named { name: NameId, file: Option<FileId>, frame_type: FrameType },
    /// A function that was named on this host with its lines, and the calls inlined into it, innermost first. `place`
    /// is its file and ELF virtual address, if its code is in a file.
    Lines { place: Option<(FileId, u64)>, lines: LinesId, frame_type: FrameType },
    /// A text in place of missing frames.
    Marker(Marker),
}

/// Reason why frames are missing. A frame that is named after the reason takes their place, so that the samples keep
/// their weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Marker {
    /// No executable mapping holds the address.
    NoMapping,
    /// The process ended before its mappings could be read.
    ProcessExited,
    /// The mappings of the process may not be read, or were not read yet.
    MapsUnreadable,
    /// The mapped file cannot be opened or read.
    FileUnreadable,
    /// The ELF segments of the file do not hold the bytes that ran.
    NoSegment,
    /// The code is in memory without a file, and no perf map names it.
    AnonymousCode,
    /// The code is most likely that of .NET, which writes no perf map.
    NoDotnetPerfMap,
    /// The code is most likely that of BEAM, which writes no perf map.
    NoBeamPerfMap,
    /// The code is most likely that of LuaJIT, whose functions are not recorded.
    LuaJitCode,
    /// The unwind rule or the frame pointer led to no frame: the native frames from here to the root are missing.
    UnwindingFailed,
    /// The stack is deeper than the limit: the frames from here to the root are missing.
    TruncatedStack,
    /// The program is a 32-bit program, whose stack is not unwound.
    Stack32Bit,
    /// The function of a language runtime is gone, or its description cannot be read.
    FunctionGone,
    /// The limit of the work to name functions is reached.
    FunctionUnread,
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
            Self::NoDotnetPerfMap => "[no .NET perf map]",
            Self::NoBeamPerfMap => "[no BEAM perf map]",
            Self::LuaJitCode => "[LuaJIT code]",
            Self::UnwindingFailed => "[unwinding failed]",
            Self::TruncatedStack => "[truncated stack]",
            Self::Stack32Bit => "[32-bit stack]",
            Self::FunctionGone => "[function gone]",
            Self::FunctionUnread => "[function unread]",
            Self::KernelSymbolsUnreadable => "[kernel symbols unreadable]",
            Self::NoKernelSymbol => "[no kernel symbol]",
        }
    }

    /// Returns the kind of the frames that are missing.
    pub(crate) fn frame_type(self) -> FrameType {
        match self {
            Self::KernelSymbolsUnreadable | Self::NoKernelSymbol => FrameType::Kernel,
            Self::NoDotnetPerfMap => FrameType::Dotnet,
            Self::NoBeamPerfMap => FrameType::Beam,
            Self::LuaJitCode => FrameType::LuaJit,
            _ => FrameType::Native,
        }
    }
}

/// Every location and name so far.
#[derive(Debug, Default)]
pub(crate) struct LocationTable {
    locations: IndexSet<Location, RandomState>,
    names: IndexSet<Box<str>, RandomState>,
    names_bytes: usize,
    lines: IndexSet<Box<[SourceLine]>, RandomState>,
}

impl LocationTable {
    /// Returns the id of `location`. Equal locations have equal ids.
    pub(crate) fn insert(&mut self, location: Location) -> LocationId {
        let (index, _) = self.locations.insert_full(location);
        LocationId(u32::try_from(index).unwrap_or(u32::MAX))
    }

    /// Returns the id of a location with a function name.
    pub(crate) fn insert_named(&mut self, name: &str, file: Option<FileId>, frame_type: FrameType) -> LocationId {
        let name = self.name_id(name);
        self.insert(Location::Named { name, file, frame_type })
    }

    /// Returns the id of the location for a function and the calls inlined into it, innermost first. `place` is the
    /// file and ELF virtual address of its code. If there are no calls, or if so many names are stored that all will be
    /// forgotten soon, the location has only the address, or a name without an address.
    pub(crate) fn insert_calls(
        &mut self,
        place: Option<(FileId, u64)>,
        calls: &[Call],
        frame_type: FrameType,
    ) -> LocationId {
        let is_full = NAMES_BYTES_MAX <= self.names_bytes;
        match (place, calls.first()) {
            (Some((file, address)), first) if first.is_none() || is_full => {
                return self.insert(Location::Native { file, address });
            }
            (None, None) => return self.insert(Location::Marker(Marker::FunctionGone)),
            (None, Some(call)) if is_full => return self.insert_named(&call.function, None, frame_type),
            _ => {}
        }
        let lines: Box<[_]> = calls_that_fit(calls).map(|call| self.line(call)).collect();
        let lines = LinesId(u32::try_from(self.lines.insert_full(lines).0).unwrap_or(u32::MAX));
        self.insert(Location::Lines { place, lines, frame_type })
    }

    fn line(&mut self, call: &Call) -> SourceLine {
        let name = self.name_id(&call.function);
        let file_name = self.name_id(&call.file);
        let function = SourceFunction { name, file_name, start_line: call.start_line };
        SourceLine { function, line: call.line }
    }

    fn name_id(&mut self, name: &str) -> NameId {
        let index = self.names.get_index_of(name).unwrap_or_else(|| {
            self.names_bytes += name.len();
            self.names.insert_full(name.into()).0
        });
        NameId(u32::try_from(index).unwrap_or(u32::MAX))
    }

    pub(crate) fn get(&self, id: LocationId) -> Option<Location> {
        self.locations.get_index(id.0 as usize).copied()
    }

    pub(crate) fn name(&self, id: NameId) -> &str {
        self.names.get_index(id.0 as usize).map_or("", |name| name)
    }

    pub(crate) fn lines(&self, id: LinesId) -> &[SourceLine] {
        self.lines.get_index(id.0 as usize).map_or(&[], |lines| lines)
    }

    /// True if the table is full. The caller must then clear it, which makes every id void.
    pub(crate) fn is_full(&self) -> bool {
        LOCATIONS_MAX <= self.locations.len() || NAMES_BYTES_MAX <= self.names_bytes
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }
}

/// Returns the outermost call and as many of the innermost ones as fit a request, innermost first.
fn calls_that_fit(calls: &[Call]) -> impl Iterator<Item = &Call> {
    let bytes = |call: &Call| call.function.len() + call.file.len() + LINE_BYTES;
    let outermost = calls.last();
    let mut left = LINES_BYTES_MAX.saturating_sub(outermost.map_or(0, bytes));
    let inner = calls.iter().take(calls.len().saturating_sub(1)).take_while(move |call| {
        let rest = left.checked_sub(bytes(call));
        left = rest.unwrap_or_default();
        rest.is_some()
    });
    inner.chain(outermost)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_locations_have_equal_ids_and_others_do_not() {
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

    fn call(function: &str, line: u32) -> Call {
        Call { function: function.to_owned(), file: "a.go".to_owned(), line, start_line: 1 }
    }

    #[test]
    fn go_code_without_calls_is_a_plain_address() {
        let mut table = LocationTable::default();
        let id = table.insert_calls(Some((FileId(3), 7)), &[], FrameType::Go);
        assert_eq!(table.get(id), Some(Location::Native { file: FileId(3), address: 7 }));
        let calls = [call("inner", 2), call("outer", 3)];
        let named = table.insert_calls(Some((FileId(3), 8)), &calls, FrameType::Go);
        let Some(Location::Lines { place: Some((_, 8)), lines, .. }) = table.get(named) else { panic!("lines") };
        let names = table.lines(lines).iter().map(|line| (table.name(line.function.name), line.line));
        assert_eq!(names.collect::<Vec<_>>(), [("inner", 2), ("outer", 3)]);
    }

    #[test]
    fn the_middle_of_too_many_inlined_calls_is_omitted() {
        let calls: Vec<_> = (0..64).map(|line| call("f", line)).collect();
        let lines: Vec<_> = calls_that_fit(&calls).map(|call| call.line).collect();
        let (last, inner) = lines.split_last().unwrap();
        assert_eq!((*last, inner), (63, &*(0..inner.len() as u32).collect::<Vec<_>>()));
        let long = "x".repeat(NAME_BYTES_MAX);
        let long = [Call { file: long.clone(), ..call(&long, 1) }, Call { file: long.clone(), ..call(&long, 2) }];
        assert_eq!(calls_that_fit(&long).map(|call| call.line).collect::<Vec<_>>(), [2]);
        for calls in [&calls[..], &long[..]] {
            let bytes = |call: &Call| call.function.len() + call.file.len() + LINE_BYTES;
            assert!(calls_that_fit(calls).map(bytes).sum::<usize>() <= LINES_BYTES_MAX);
        }
    }

    #[test]
    fn no_names_are_added_to_a_full_table() {
        let mut table = LocationTable::default();
        for number in 0..NAMES_BYTES_MAX as u64 / 400 + 10 {
            let name = format!("{number:0400}");
            table.insert_calls(Some((FileId(0), number)), &[call(&name, 1)], FrameType::Go);
        }
        assert!(table.is_full() && table.names_bytes < NAMES_BYTES_MAX + 1000);
    }
}
