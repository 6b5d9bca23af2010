//! The messages of pprof's `profile.proto`, as far as varve writes them.
//!
//! The router reads pprof input with its own bounded decoder.

/// A profile.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Profile {
    /// Types of the values of the samples.
    #[prost(message, repeated, tag = "1")]
    pub sample_type: Vec<ValueType>,
    /// Samples: stacks with their values.
    #[prost(message, repeated, tag = "2")]
    pub sample: Vec<Sample>,
    /// Mapped files that locations refer to.
    #[prost(message, repeated, tag = "3")]
    pub mapping: Vec<Mapping>,
    /// Locations that stacks refer to.
    #[prost(message, repeated, tag = "4")]
    pub location: Vec<Location>,
    /// Functions that lines refer to.
    #[prost(message, repeated, tag = "5")]
    pub function: Vec<Function>,
    /// Texts. Entry 0 is "".
    #[prost(string, repeated, tag = "6")]
    pub string_table: Vec<String>,
    /// Start of the profile, in nanoseconds since 1970.
    #[prost(int64, tag = "9")]
    pub time_nanos: i64,
    /// Duration of the profile, in nanoseconds.
    #[prost(int64, tag = "10")]
    pub duration_nanos: i64,
    /// Type of the sampling period.
    #[prost(message, optional, tag = "11")]
    pub period_type: Option<ValueType>,
    /// Sampling period, in the unit of its type.
    #[prost(int64, tag = "12")]
    pub period: i64,
    /// Comments, as indices in the string table.
    #[prost(int64, repeated, tag = "13")]
    pub comment: Vec<i64>,
    /// Kind of the sample type that is shown first, as an index in the string table. 0 means the last type.
    #[prost(int64, tag = "14")]
    pub default_sample_type: i64,
}

/// A kind and a unit, as indices in the string table.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ValueType {
    /// Kind.
    #[prost(int64, tag = "1")]
    pub kind: i64,
    /// Unit.
    #[prost(int64, tag = "2")]
    pub unit: i64,
}

/// A stack and its values, one for each sample type.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Sample {
    /// IDs of the locations, leaf first.
    #[prost(uint64, repeated, tag = "1")]
    pub location_id: Vec<u64>,
    /// Values, one for each sample type.
    #[prost(int64, repeated, tag = "2")]
    pub value: Vec<i64>,
    /// Labels of the sample.
    #[prost(message, repeated, tag = "3")]
    pub label: Vec<Label>,
}

/// A label: a key, and a text or a number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct Label {
    /// Key, as an index in the string table.
    #[prost(int64, tag = "1")]
    pub key: i64,
    /// Text, as an index in the string table; 0 for a number.
    #[prost(int64, tag = "2")]
    pub text: i64,
    /// Number.
    #[prost(int64, tag = "3")]
    pub number: i64,
}

/// A mapped file.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Mapping {
    /// ID, not 0.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// End of its addresses. Addresses and file offsets begin at 0. If it is 0, addresses are virtual addresses of the
    /// file.
    #[prost(uint64, tag = "3")]
    pub memory_limit: u64,
    /// Path of the file, as an index in the string table.
    #[prost(int64, tag = "5")]
    pub filename: i64,
    /// Build ID, as an index in the string table.
    #[prost(int64, tag = "6")]
    pub build_id: i64,
    /// True if all its locations have functions.
    #[prost(bool, tag = "7")]
    pub has_functions: bool,
    /// True if all their functions have files.
    #[prost(bool, tag = "8")]
    pub has_filenames: bool,
    /// True if all their lines have numbers.
    #[prost(bool, tag = "9")]
    pub has_line_numbers: bool,
    /// True if each inlined call is a separate line.
    #[prost(bool, tag = "10")]
    pub has_inline_frames: bool,
}

/// A position in code that stacks contain.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Location {
    /// ID, not 0.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// ID of the mapping, or 0 for none.
    #[prost(uint64, tag = "2")]
    pub mapping_id: u64,
    /// Address.
    #[prost(uint64, tag = "3")]
    pub address: u64,
    /// Lines, innermost first.
    #[prost(message, repeated, tag = "4")]
    pub line: Vec<Line>,
}

/// A function, and a position in it.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Line {
    /// ID of the function, not 0.
    #[prost(uint64, tag = "1")]
    pub function_id: u64,
    /// Line number, or 0 if unknown.
    #[prost(int64, tag = "2")]
    pub line: i64,
    /// Column, or 0 if unknown.
    #[prost(int64, tag = "3")]
    pub column: i64,
}

/// A function.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Function {
    /// ID, not 0.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Name for people, as an index in the string table.
    #[prost(int64, tag = "2")]
    pub name: i64,
    /// Name for the linker, as an index in the string table.
    #[prost(int64, tag = "3")]
    pub system_name: i64,
    /// Path of the source file, as an index in the string table.
    #[prost(int64, tag = "4")]
    pub filename: i64,
    /// Number of its first line, or 0 if unknown.
    #[prost(int64, tag = "5")]
    pub start_line: i64,
}
