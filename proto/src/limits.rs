//! Every limit on what comes from outside, with its reason. 0 never means "no limit".

/// Tenant names end up in keys, labels and logs.
pub const TENANT_NAME_BYTES_MAX: usize = 64;

/// One push as it comes over the network. The OTel agent stops at 32 MiB.
pub const PUSH_BYTES_MAX: usize = 32 << 20;

/// One push after decompression: what one request can make us hold.
pub const PUSH_UNPACKED_BYTES_MAX: usize = 64 << 20;

/// Frames of one stack, lines of a location counted as one; deeper stacks keep their leaf side and say that they were cut.
/// Runaway recursion is the only thing seen that goes deeper; a flame graph of more levels is of no use.
pub const STACK_DEPTH_MAX: usize = 2048;

/// Lines (inlined functions) of one location; the deepest seen in practice is about 60.
pub const LOCATION_LINES_MAX: usize = 256;

/// One string of a push: C++ template names reach tens of kilobytes; longer ones are cut.
pub const STRING_BYTES_MAX: usize = 64 << 10;

/// Labels of a series: each multiplies series.
pub const SERIES_LABELS_MAX: usize = 64;

/// A label's name.
pub const LABEL_NAME_BYTES_MAX: usize = 1024;

/// A label's value; command lines, the longest seen, are sample attributes and not labels.
pub const LABEL_VALUE_BYTES_MAX: usize = 2048;

/// Attributes of one sample.
pub const SAMPLE_ATTRIBUTES_MAX: usize = 128;

/// Lines of all locations of one push: an empty one has two bytes on the wire and 24 in memory.
pub const PUSH_LINES_MAX: usize = 4_000_000;

/// Samples of one push: 64 MiB of the smallest samples that make sense.
pub const PUSH_SAMPLES_MAX: usize = 4_000_000;

/// Resources, scopes and profiles of one push, together: an empty one has two bytes on the wire. A host with thousands of
/// processes has three of each kind of profile, and a collector sends a few hosts at once.
pub const PUSH_PROFILES_MAX: usize = 100_000;

/// Bytes of labels of one push, once each profile has its own copy: a resource is written once, with any number of profiles.
pub const PUSH_LABEL_BYTES_MAX: usize = 64 << 20;

/// Attributes of one push, once each distinct combination that samples have is written out: those of a resource and of a
/// profile are written once, with any number of samples.
pub const PUSH_ATTRIBUTES_MAX: usize = 8_000_000;

/// A build ID: GNU's have 20 bytes in hexadecimal, Go's are 83 characters.
pub const BUILD_ID_BYTES_MAX: usize = 512;

/// A client's `Idempotency-Key`: UUIDs and hashes have 32 to 64.
pub const IDEMPOTENCY_KEY_BYTES_MAX: usize = 1024;

/// Bytes of one Raft entry: an entry is replicated and applied as a whole, so a large one delays all behind it.
pub const ENTRY_BYTES_MAX: usize = 16 << 20;

/// Spans of six hours that the times of one batch may lie in: each opens a partition of its own. A month of them is more than
/// anything that profiles live sends at once.
pub const BATCH_PARTITIONS_MAX: usize = 128;

/// Dictionaries and series in memory of one shard; over it, batches that define anything new are refused with 429 /
/// RESOURCE_EXHAUSTED until older partitions are let go. 42,000 stacks of a C++ program take about 30 MB.
pub const DICTIONARY_BYTES_MAX: usize = 1 << 30;

/// Series of one partition of one shard (six hours of raw samples): each costs memory, and time in every query. 40 pods of three
/// profile types have 120; a label whose values never repeat reaches any number.
pub const PARTITION_SERIES_MAX: usize = 1_000_000;

/// The oldest time accepted: 2000-01-01T00:00:00Z. Older ones are clocks that were never set.
pub const TIME_MIN_NS: i64 = 946_684_800_000_000_000;

/// How far ahead of the receiver's clock a time may be.
pub const TIME_AHEAD_MAX_NS: i64 = 10 * 60 * 1_000_000_000;

/// Pushes being decoded or waiting for their acknowledgement at one time, as bytes after decompression; more are refused
/// with 429 / RESOURCE_EXHAUSTED, which agents retry.
pub const PUSHES_IN_FLIGHT_BYTES_MAX: usize = 256 << 20;

/// Steps of a range query: what Prometheus allows.
pub const QUERY_STEPS_MAX: i64 = 11_000;

/// Cells (group x bucket x stack) of one answer of one shard: about 1 GiB in all representations together.
pub const QUERY_CELLS_MAX: usize = 8_000_000;

/// Bytes of the labels of one answer's groups: as many as its cells take.
pub const QUERY_GROUP_BYTES_MAX: usize = 256 << 20;

/// Edges of the windows of one question, two of each: as many as routers ask for; bounds what its decoding takes to about 64 MB.
pub const QUERY_EDGES_MAX: usize = 2_000_000;

/// Matchers of one question, and labels that it groups by: as many as a query's text of 64 KiB can hold.
pub const QUERY_LABELS_MAX: usize = 1 << 15;

/// Regular expressions among the matchers of one question: twice as many as a query may have; each may take a few MiB.
pub const QUERY_REGEXES_MAX: usize = 64;

/// Nodes (callers and callees) of the stacks of one answer of one shard: what [`QUERY_CELLS_MAX`] stacks of a service need,
/// which share most of their callers, about 256 MiB.
pub const QUERY_NODES_MAX: usize = 8_000_000;

/// Nodes of one flame graph.
pub const FLAMEGRAPH_NODES_MAX: usize = 1 << 20;

/// Nodes of a flame graph where the request does not say.
pub const FLAMEGRAPH_NODES_DEFAULT: usize = 8192;

/// Queries being answered at one time; more wait, for as long as their caller does.
pub const QUERIES_AT_ONCE_MAX: usize = 8;

/// How much later the times of a push's retry may be, where it has none of its own, and the retry still counts once; one whose times
/// are the same does as long as its samples are kept. Nobody retries for a day.
pub const IDEMPOTENCY_WINDOW_NS: i64 = 24 * 3600 * 1_000_000_000;

/// One message between router and node: an answer of [`QUERY_CELLS_MAX`] cells.
pub const NODE_MESSAGE_BYTES_MAX: usize = 512 << 20;
