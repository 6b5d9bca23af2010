//! The messages of pprof's `profile.proto` that are written: field numbers are the format's. What is read of others' profiles is
//! read by the router's own bounded decoder.

/// A profile.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Profile {
    /// What the values of samples are.
    #[prost(message, repeated, tag = "1")]
    pub sample_type: Vec<ValueType>,
    /// Stacks with their values.
    #[prost(message, repeated, tag = "2")]
    pub sample: Vec<Sample>,
    /// Mapped files.
    #[prost(message, repeated, tag = "3")]
    pub mapping: Vec<Mapping>,
    /// What stacks are made of.
    #[prost(message, repeated, tag = "4")]
    pub location: Vec<Location>,
    /// What lines are in.
    #[prost(message, repeated, tag = "5")]
    pub function: Vec<Function>,
    /// Entry 0 is "".
    #[prost(string, repeated, tag = "6")]
    pub string_table: Vec<String>,
    /// When it begins, since the epoch.
    #[prost(int64, tag = "9")]
    pub time_nanos: i64,
    /// How long it is.
    #[prost(int64, tag = "10")]
    pub duration_nanos: i64,
    /// What passes between two samples.
    #[prost(message, optional, tag = "11")]
    pub period_type: Option<ValueType>,
    /// How much of it.
    #[prost(int64, tag = "12")]
    pub period: i64,
    /// Indices in the string table, of sentences about the profile.
    #[prost(int64, repeated, tag = "13")]
    pub comment: Vec<i64>,
    /// Index in the string table, of the kind of the sample type that is shown first; 0: the last.
    #[prost(int64, tag = "14")]
    pub default_sample_type: i64,
}

/// A word and its unit, by index of the string table.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct ValueType {
    /// The word.
    #[prost(int64, tag = "1")]
    pub kind: i64,
    /// Its unit.
    #[prost(int64, tag = "2")]
    pub unit: i64,
}

/// A stack and its values, one for each sample type.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Sample {
    /// Leaf first.
    #[prost(uint64, repeated, tag = "1")]
    pub location_id: Vec<u64>,
    /// One for each sample type.
    #[prost(int64, repeated, tag = "2")]
    pub value: Vec<i64>,
    /// What it has besides.
    #[prost(message, repeated, tag = "3")]
    pub label: Vec<Label>,
}

/// A key and either a text or a number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct Label {
    /// The key.
    #[prost(int64, tag = "1")]
    pub key: i64,
    /// The text; 0 where it is a number.
    #[prost(int64, tag = "2")]
    pub text: i64,
    /// The number.
    #[prost(int64, tag = "3")]
    pub number: i64,
}

/// A mapped file.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Mapping {
    /// Not 0.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// The address behind its last; it begins at 0, in the file too. 0: addresses are virtual ones of the file.
    #[prost(uint64, tag = "3")]
    pub memory_limit: u64,
    /// The file's path.
    #[prost(int64, tag = "5")]
    pub filename: i64,
    /// Its build ID.
    #[prost(int64, tag = "6")]
    pub build_id: i64,
    /// Whether all its locations have functions.
    #[prost(bool, tag = "7")]
    pub has_functions: bool,
    /// Whether all their functions have files.
    #[prost(bool, tag = "8")]
    pub has_filenames: bool,
    /// Whether all their lines have numbers.
    #[prost(bool, tag = "9")]
    pub has_line_numbers: bool,
    /// Whether inlined calls are lines of their own.
    #[prost(bool, tag = "10")]
    pub has_inline_frames: bool,
}

/// Where a stack passed.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Location {
    /// Not 0.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// 0: no mapping.
    #[prost(uint64, tag = "2")]
    pub mapping_id: u64,
    /// Its address.
    #[prost(uint64, tag = "3")]
    pub address: u64,
    /// Innermost first.
    #[prost(message, repeated, tag = "4")]
    pub line: Vec<Line>,
}

/// A function, and where in it.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Line {
    /// Not 0.
    #[prost(uint64, tag = "1")]
    pub function_id: u64,
    /// 0: unknown.
    #[prost(int64, tag = "2")]
    pub line: i64,
    /// 0: unknown.
    #[prost(int64, tag = "3")]
    pub column: i64,
}

/// A function.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Function {
    /// Not 0.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// As people read it.
    #[prost(int64, tag = "2")]
    pub name: i64,
    /// As the linker knows it.
    #[prost(int64, tag = "3")]
    pub system_name: i64,
    /// The source file.
    #[prost(int64, tag = "4")]
    pub filename: i64,
    /// The line on which it begins; 0: unknown.
    #[prost(int64, tag = "5")]
    pub start_line: i64,
}
