//! Limits of one query, each with its reason. Limits that nodes share are in `proto::limits`.

/// Longest text of one query, in bytes. Dashboards that join many label values by `|` reach tens of kilobytes.
pub(crate) const QUERY_BYTES_MAX: usize = 64 << 10;

/// Maximum number of levels of nested operators. Evaluation recurses once for each level. Queries that people write
/// have up to ten levels.
pub(crate) const QUERY_DEPTH_MAX: usize = 100;

/// Maximum number of selectors of one query, or of one request for series. Each selector is at least one call to every
/// shard.
pub(crate) const QUERY_SELECTORS_MAX: usize = 50;

/// Maximum number of regular expressions in the text of one query. The parser compiles each to at most 10 MiB, and
/// evaluation may need more memory.
pub(crate) const QUERY_REGEXES_MAX: usize = proto::limits::QUERY_REGEXES_MAX / 2;

/// Largest compiled size of one regular expression, in bytes. Nodes have the same limit.
pub(crate) const REGEX_BYTES_MAX: usize = 1 << 20;

/// Maximum number of operators and parentheses outside of quotes in one query. The parser's work grows with the square
/// of their depth.
pub(crate) const QUERY_OPERATORS_MAX: usize = 2_000;

/// Maximum number of operators of a query that is parsed on the current thread, which may have a small stack. Queries
/// that people write have fewer, and starting a thread takes longer than parsing them.
pub(crate) const ANY_STACK_OPERATORS_MAX: usize = 100;

/// Stack size of the thread that parses queries with more operators, in bytes. The parser's tree is dropped
/// recursively.
pub(crate) const PARSER_STACK_BYTES: usize = 16 << 20;

/// Longest range or offset, in nanoseconds. Longer ones could overflow 64 bits.
pub(crate) const DURATION_MAX_NS: i64 = 100 * 365 * 86_400 * 1_000_000_000;

/// Maximum number of points in time for one selector. There is a point for each 10 s, so this is enough for 115 days.
pub(crate) const QUERY_BUCKETS_MAX: usize = 1_000_000;

/// Maximum number of values (series x steps) that a query holds at one time, in all selectors and results together.
/// They take 128 MiB.
pub(crate) const QUERY_VALUES_MAX: usize = 8_000_000;

/// Number of values that take as much memory as the labels of one series: ten labels are about 512 bytes. The labels
/// count as this many values. Otherwise a query of one step could hold millions of series.
pub(crate) const SERIES_LABELS_VALUES: usize = 32;

/// Maximum size of the locations and names that are cached for all tenants, in bytes. 100,000 locations take 20 MB.
pub(crate) const NAMES_BYTES_MAX: usize = 128 << 20;

/// Maximum number of rounds in which shards are queried again because stacks had locations that the router did not
/// know. The first round loads new locations, and the second those that only old data has. Further rounds load
/// locations that appear meanwhile.
pub(crate) const NAMING_ROUNDS_MAX: usize = 8;

/// Maximum number of nodes of a flame graph before it is pruned. They take about 1 GiB.
pub(crate) const TREE_NODES_MAX: usize = 8_000_000;

/// Maximum number of samples of a pprof response that are read with their attributes, which takes seconds of one core.
/// A response with more samples has no attributes.
pub(crate) const LABELLED_SAMPLES_MAX: u64 = 4_000_000;

/// Maximum number of labels per sample of a pprof response. Agents send about ten attributes, but programs may set any
/// number.
pub(crate) const SAMPLE_LABELS_MAX: usize = 64;
