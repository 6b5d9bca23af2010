//! Bounds of one query, each with its reason. What they share with nodes stands in `proto::limits`.

/// Text of one query: dashboards that join many label values by `|` reach tens of kilobytes.
pub(crate) const QUERY_BYTES_MAX: usize = 64 << 10;

/// Operators inside one another: what a person writes has ten; evaluation recurses this deep.
pub(crate) const QUERY_DEPTH_MAX: usize = 100;

/// Selectors of one query, or of one question for series: each is at least one call to every shard.
pub(crate) const QUERY_SELECTORS_MAX: usize = 50;

/// Regular expressions in the text of one query, whose parser compiles each to at most 10 MiB; reading may add some of its own.
pub(crate) const QUERY_REGEXES_MAX: usize = proto::limits::QUERY_REGEXES_MAX / 2;

/// Compiled size of one regular expression: what nodes allow too.
pub(crate) const REGEX_BYTES_MAX: usize = 1 << 20;

/// Signs and words of one query, outside of quotes, that can nest: the parser's work grows with the square of the depth.
pub(crate) const QUERY_OPERATORS_MAX: usize = 2_000;

/// Of those, how many nest on the stack of any thread: what people write has fewer, and starting a thread for them would take
/// longer than parsing.
pub(crate) const ANY_STACK_OPERATORS_MAX: usize = 100;

/// Stack of the thread that parses texts of more: the parser's tree is as deep as the query has operators, and is dropped recursively.
pub(crate) const PARSER_STACK_BYTES: usize = 16 << 20;

/// Longest range or offset: beyond it, times near the end of what 64 bits of nanoseconds hold overflow.
pub(crate) const DURATION_MAX_NS: i64 = 100 * 365 * 86_400 * 1_000_000_000;

/// Pieces into which a selector's time is cut: 115 days of points.
pub(crate) const QUERY_BUCKETS_MAX: usize = 1_000_000;

/// Values (series x steps) that a query holds at one time, in the vectors of all its leaves and results: 128 MiB.
pub(crate) const QUERY_VALUES_MAX: usize = 8_000_000;

/// What the labels of a series count beside its values: ten labels are about 512 bytes. Without them, a query of one step
/// could hold millions of series.
pub(crate) const SERIES_LABELS_VALUES: usize = 32;

/// Locations and their names that are kept between queries, of all tenants: a program of 100,000 places takes 20 MB.
pub(crate) const NAMES_BYTES_MAX: usize = 128 << 20;

/// How often shards are asked again because their stacks had locations that were not known: once for what was never asked for, once
/// for what only old data has, and again where new ones come just between.
pub(crate) const NAMING_ROUNDS_MAX: usize = 8;

/// Nodes of a flame graph before it is pruned: about 1 GiB in all tables together.
pub(crate) const TREE_NODES_MAX: usize = 8_000_000;

/// Samples of a pprof whose attributes are read one by one: seconds of one core. More have no labels of their attributes.
pub(crate) const LABELLED_SAMPLES_MAX: u64 = 4_000_000;

/// Labels of the samples of a pprof. Agents send about ten attributes; what programs label is unbounded.
pub(crate) const SAMPLE_LABELS_MAX: usize = 64;
