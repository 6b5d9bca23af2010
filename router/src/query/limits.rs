//! Limits of one query, each with its reason. Limits that nodes share are in `proto::limits`.

/// Text of one query: dashboards that join many label values by `|` reach tens of kilobytes.
pub(crate) const QUERY_BYTES_MAX: usize = 64 << 10;

/// Nested operators. Queries that people write have ten, and evaluation recurses this deep.
pub(crate) const QUERY_DEPTH_MAX: usize = 100;

/// Selectors of one query, or of one request for series. Each is at least one call to every shard.
pub(crate) const QUERY_SELECTORS_MAX: usize = 50;

/// Regular expressions in the text of one query. The parser compiles each to at most 10 MiB, and evaluation may add
/// more.
pub(crate) const QUERY_REGEXES_MAX: usize = proto::limits::QUERY_REGEXES_MAX / 2;

/// Compiled size of one regular expression, in bytes, as on nodes.
pub(crate) const REGEX_BYTES_MAX: usize = 1 << 20;

/// Operators and parentheses of one query, outside of quotes: the parser's work grows with the square of their depth.
pub(crate) const QUERY_OPERATORS_MAX: usize = 2_000;

/// Operators that fit the stack of any thread. Queries that people write have fewer, and starting a thread would take
/// longer than parsing them.
pub(crate) const ANY_STACK_OPERATORS_MAX: usize = 100;

/// Stack of the thread that parses texts with more operators, in bytes: the parser's tree is dropped recursively.
pub(crate) const PARSER_STACK_BYTES: usize = 16 << 20;

/// Longest range or offset. Longer ones could overflow 64 bits of nanoseconds.
pub(crate) const DURATION_MAX_NS: i64 = 100 * 365 * 86_400 * 1_000_000_000;

/// Points of a selector: 115 days of them.
pub(crate) const QUERY_BUCKETS_MAX: usize = 1_000_000;

/// Values (series x steps) that a query holds at one time, in the vectors of all its leaves and results: 128 MiB.
pub(crate) const QUERY_VALUES_MAX: usize = 8_000_000;

/// Values that the labels of a series count as: ten labels are about 512 bytes. Without this, a query of one step
/// could hold millions of series.
pub(crate) const SERIES_LABELS_VALUES: usize = 32;

/// Bytes of locations and their names that are kept between queries, of all tenants. 100,000 locations take 20 MB.
pub(crate) const NAMES_BYTES_MAX: usize = 128 << 20;

/// Rounds in which shards are queried because their stacks had unknown locations. The first round loads new locations,
/// the second those of old data, and further rounds those that appear meanwhile.
pub(crate) const NAMING_ROUNDS_MAX: usize = 8;

/// Nodes of a flame graph before it is pruned: about 1 GiB of memory.
pub(crate) const TREE_NODES_MAX: usize = 8_000_000;

/// Samples of a pprof whose attributes are read one by one, which takes seconds of one core. Larger ones have no
/// attributes.
pub(crate) const LABELLED_SAMPLES_MAX: u64 = 4_000_000;

/// Labels of the samples of a pprof. Agents send about ten attributes; programs may set any number.
pub(crate) const SAMPLE_LABELS_MAX: usize = 64;
