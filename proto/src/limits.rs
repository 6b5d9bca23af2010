//! Every limit on input from outside, with its reason. 0 never means "no limit".

/// Longest tenant name, in bytes. Tenant names are part of keys, labels and logs.
pub const TENANT_NAME_BYTES_MAX: usize = 64;

/// Largest push as it arrives over the network, in bytes. The OpenTelemetry agent stops at 32 MiB.
pub const PUSH_BYTES_MAX: usize = 32 << 20;

/// Largest push after decompression, in bytes. Bounds the memory that one request can take.
pub const PUSH_UNPACKED_BYTES_MAX: usize = 64 << 20;

/// Most frames of one stack; all lines of a location count as one frame. A deeper stack keeps its leaf side and is
/// marked as truncated. Only runaway recursion goes deeper, and a flame graph of more levels is of no use.
pub const STACK_DEPTH_MAX: usize = 2048;

/// Most lines (inlined functions) of one location. The deepest seen in practice has about 60.
pub const LOCATION_LINES_MAX: usize = 256;

/// Longest string of a push, in bytes; longer ones are truncated. C++ template names reach tens of kilobytes.
pub const STRING_BYTES_MAX: usize = 64 << 10;

/// Most labels of a series: each label multiplies the number of series.
pub const SERIES_LABELS_MAX: usize = 64;

/// Longest label name, in bytes.
pub const LABEL_NAME_BYTES_MAX: usize = 1024;

/// Longest label value, in bytes. Command lines, the longest values seen, are attributes of samples and not labels.
pub const LABEL_VALUE_BYTES_MAX: usize = 2048;

/// Most attributes of one sample.
pub const SAMPLE_ATTRIBUTES_MAX: usize = 128;

/// Most lines of all locations of one push. An empty line takes two bytes on the wire and 24 in memory.
pub const PUSH_LINES_MAX: usize = 4_000_000;

/// Most samples of one push: 64 MiB of the smallest meaningful samples.
pub const PUSH_SAMPLES_MAX: usize = 4_000_000;

/// Most resources, scopes and profiles of one push, together. An empty one takes two bytes on the wire. A host with
/// thousands of processes has three of each for every type of profile, and a collector sends a few hosts at once.
pub const PUSH_PROFILES_MAX: usize = 100_000;

/// Most bytes of labels of one push, counted once for each profile that has them.
/// A resource is written once and shared by any number of profiles.
pub const PUSH_LABEL_BYTES_MAX: usize = 64 << 20;

/// Most attributes of one push, counted in each distinct combination that its samples have.
/// Attributes of a resource or a profile are written once and shared by any number of samples.
pub const PUSH_ATTRIBUTES_MAX: usize = 8_000_000;

/// Longest build ID as text, in bytes. GNU build IDs have 40 hexadecimal digits, and Go build IDs 83 characters.
pub const BUILD_ID_BYTES_MAX: usize = 512;

/// Longest `Idempotency-Key` of a client, in bytes. UUIDs and hashes have 32 to 64.
pub const IDEMPOTENCY_KEY_BYTES_MAX: usize = 1024;

/// Largest Raft entry, in bytes. An entry is replicated and applied as a whole, so a large one delays all later ones.
pub const ENTRY_BYTES_MAX: usize = 16 << 20;

/// Most partitions (six hours each) in which the samples of one batch may lie: each opens a partition.
/// Senders of live profiles never send a whole month at once.
pub const BATCH_PARTITIONS_MAX: usize = 128;

/// Largest size of the dictionaries and series of one shard in memory, in bytes.
/// Beyond it, batches that define anything new are refused with 429 / RESOURCE_EXHAUSTED until older partitions are
/// evicted. 42,000 stacks of a C++ program take about 30 MB.
pub const DICTIONARY_BYTES_MAX: usize = 1 << 30;

/// Most series of one partition of one shard (six hours of raw samples). Each costs memory, and time in every query.
/// 40 pods with three profile types have 120; a label whose values never repeat reaches any number.
pub const PARTITION_SERIES_MAX: usize = 1_000_000;

/// Oldest accepted time: 2000-01-01T00:00:00Z, in nanoseconds since 1970. Older times are those of clocks that were
/// never set.
pub const TIME_MIN_NS: i64 = 946_684_800_000_000_000;

/// Largest lead of an accepted time over the receiver's clock, in nanoseconds.
pub const TIME_AHEAD_MAX_NS: i64 = 10 * 60 * 1_000_000_000;

/// Most bytes of pushes, after decompression, that are decoded or wait for their acknowledgement at one time.
/// Further pushes are refused with 429 / RESOURCE_EXHAUSTED, which agents retry.
pub const PUSHES_IN_FLIGHT_BYTES_MAX: usize = 256 << 20;

/// Most steps of a range query, as in Prometheus.
pub const QUERY_STEPS_MAX: i64 = 11_000;

/// Most cells (group x bucket x stack) of one response of one shard: about 1 GiB in all representations together.
pub const QUERY_CELLS_MAX: usize = 8_000_000;

/// Most bytes of labels of the groups of one response: the same memory as its cells.
pub const QUERY_GROUP_BYTES_MAX: usize = 256 << 20;

/// Most edges of the windows of one request, two for each window. Bounds its decoding to about 64 MB.
pub const QUERY_EDGES_MAX: usize = 2_000_000;

/// Most matchers of one request, and most labels to group by: as many as a query text of 64 KiB can hold.
pub const QUERY_LABELS_MAX: usize = 1 << 15;

/// Most regular expressions in the matchers of one request: twice as many as a query may have.
/// Each may take a few MiB.
pub const QUERY_REGEXES_MAX: usize = 64;

/// Most nodes (callers and callees) of the stacks of one response of one shard: about 256 MiB.
/// [`QUERY_CELLS_MAX`] stacks of a service need this many, because they share most of their callers.
pub const QUERY_NODES_MAX: usize = 8_000_000;

/// Most nodes of one flame graph.
pub const FLAMEGRAPH_NODES_MAX: usize = 1 << 20;

/// Number of nodes of a flame graph if the request has no limit.
pub const FLAMEGRAPH_NODES_DEFAULT: usize = 8192;

/// Most queries that run at one time. Further queries wait until there is a free slot or their client disconnects.
pub const QUERIES_AT_ONCE_MAX: usize = 8;

/// Time within which a retry counts once although the receiver sets the times of its samples, in nanoseconds.
/// Nobody retries for a day. A retry with the same times counts once for as long as its samples are kept.
pub const IDEMPOTENCY_WINDOW_NS: i64 = 24 * 3600 * 1_000_000_000;

/// Largest message between router and node, in bytes: a response of [`QUERY_CELLS_MAX`] cells.
pub const NODE_MESSAGE_BYTES_MAX: usize = 512 << 20;
