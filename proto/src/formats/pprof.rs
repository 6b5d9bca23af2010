//! The messages of pprof's `profile.proto`, reduced to the fields that varve writes.
//!
//! The router reads pprof input with its own bounded decoder.

/// A pprof file.
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
    /// Comments on the profile, as indices in the string table.
    #[prost(int64, repeated, tag = "13")]
    pub comment: Vec<i64>,
    /// Kind of the sample type that viewers show first, as an index in the string table. 0 means the last sample type.
    #[prost(int64, tag = "14")]
    pub default_sample_type: i64,
}

/// The type of a value: a kind and a unit, as indices in the string table.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ValueType {
    /// Kind of the value, such as `cpu`.
    #[prost(int64, tag = "1")]
    pub kind: i64,
    /// Unit of the value, such as `nanoseconds`.
    #[prost(int64, tag = "2")]
    pub unit: i64,
}

/// A stack with one value for each sample type.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Sample {
    /// IDs of the stack's locations, leaf first.
    #[prost(uint64, repeated, tag = "1")]
    pub location_id: Vec<u64>,
    /// Values, one for each sample type.
    #[prost(int64, repeated, tag = "2")]
    pub value: Vec<i64>,
    /// Labels of the sample.
    #[prost(message, repeated, tag = "3")]
    pub label: Vec<Label>,
}

/// A label: a key, and a text or a number as its value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct Label {
    /// Key of the label, as an index in the string table.
    #[prost(int64, tag = "1")]
    pub key: i64,
    /// Text value of the label, as an index in the string table; 0 if the label has a number.
    #[prost(int64, tag = "2")]
    pub text: i64,
    /// Numeric value of the label; 0 if the label has a text.
    #[prost(int64, tag = "3")]
    pub number: i64,
}

/// A mapped file.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Mapping {
    /// ID of the mapping, which is not zero.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// End of the mapped addresses. The mapped addresses begin at 0, and the mapped part of the file begins at its
    /// start. An end of 0 means that the addresses of locations are virtual addresses of the file.
    #[prost(uint64, tag = "3")]
    pub memory_limit: u64,
    /// Path of the file, as an index in the string table.
    #[prost(int64, tag = "5")]
    pub filename: i64,
    /// Text of the build ID, as an index in the string table.
    #[prost(int64, tag = "6")]
    pub build_id: i64,
    /// True if all locations of the mapping have functions.
    #[prost(bool, tag = "7")]
    pub has_functions: bool,
    /// True if all functions of the mapping's locations have files.
    #[prost(bool, tag = "8")]
    pub has_filenames: bool,
    /// True if all lines of the mapping's locations have line numbers.
    #[prost(bool, tag = "9")]
    pub has_line_numbers: bool,
    /// True if each inlined call is a separate line.
    #[prost(bool, tag = "10")]
    pub has_inline_frames: bool,
}

/// A position in code. Stacks are lists of locations.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Location {
    /// ID of the location, which is not zero.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// ID of the mapping, or 0 for none.
    #[prost(uint64, tag = "2")]
    pub mapping_id: u64,
    /// Address of the location in its mapping.
    #[prost(uint64, tag = "3")]
    pub address: u64,
    /// Lines of the location, innermost first.
    #[prost(message, repeated, tag = "4")]
    pub line: Vec<Line>,
}

/// A line entry of a location: a function, and a position in its source code.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Line {
    /// ID of the function, which is not zero.
    #[prost(uint64, tag = "1")]
    pub function_id: u64,
    /// Line number, or 0 if unknown.
    #[prost(int64, tag = "2")]
    pub line: i64,
    /// Column number, or 0 if unknown.
    #[prost(int64, tag = "3")]
    pub column: i64,
}

/// A function.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Function {
    /// ID of the function, which is not zero.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Name that people see, as an index in the string table.
    #[prost(int64, tag = "2")]
    pub name: i64,
    /// Mangled name, as the linker sees it, as an index in the string table.
    #[prost(int64, tag = "3")]
    pub system_name: i64,
    /// Path of the source file, as an index in the string table.
    #[prost(int64, tag = "4")]
    pub filename: i64,
    /// Line number at which the function begins, or 0 if unknown.
    #[prost(int64, tag = "5")]
    pub start_line: i64,
}
