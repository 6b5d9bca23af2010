//! Every limit on input from outside varve, with its reason. A limit of 0 never means "no limit".

/// Longest tenant name, in bytes. A tenant name is part of keys, labels and logs.
pub const TENANT_NAME_BYTES_MAX: usize = 64;

/// Largest push before decompression, in bytes. The OpenTelemetry agent sends at most 32 MiB.
pub const PUSH_BYTES_MAX: usize = 32 << 20;

/// Largest push after decompression, in bytes. This limits the memory that one request can take.
pub const PUSH_UNPACKED_BYTES_MAX: usize = 64 << 20;

/// Maximum number of frames of one stack. All lines of a location count as one frame. A deeper stack keeps the frames
/// nearest to the leaf, and is marked as truncated. Only runaway recursion goes deeper, and a flame graph of more
/// levels is of no use.
pub const STACK_DEPTH_MAX: usize = 2048;

/// Maximum number of lines (inlined functions) of one location. The largest number seen in practice is about 60 lines.
pub const LOCATION_LINES_MAX: usize = 256;

/// Longest string of a push, in bytes. Longer strings are truncated. C++ template names reach tens of kilobytes.
pub const STRING_BYTES_MAX: usize = 64 << 10;

/// Maximum number of labels of a series. Each label can multiply the number of series.
pub const SERIES_LABELS_MAX: usize = 64;

/// Longest label name, in bytes.
pub const LABEL_NAME_BYTES_MAX: usize = 1024;

/// Longest label value, in bytes. Command lines, the longest known values, are attributes of samples and not labels.
pub const LABEL_VALUE_BYTES_MAX: usize = 2048;

/// Maximum number of attributes of one sample. A sender may put any number of attributes on each sample.
pub const SAMPLE_ATTRIBUTES_MAX: usize = 128;

/// Maximum number of lines (inlined functions) of all locations of one push, together. An empty line entry takes two
/// bytes on the wire and 24 bytes in memory.
pub const PUSH_LINES_MAX: usize = 4_000_000;

/// Maximum number of samples of one push. This many samples of the smallest useful size take 64 MiB on the wire.
pub const PUSH_SAMPLES_MAX: usize = 4_000_000;

/// Maximum number of resources, scopes and profiles of one push, together. Each of them takes two bytes on the wire if
/// it is empty. A host with thousands of processes sends one of each for every combination of process and profile type.
/// A collector sends the profiles of a few hosts at once.
pub const PUSH_PROFILES_MAX: usize = 100_000;

/// Largest total size of the labels of all profiles of one push, in bytes. Labels that profiles share through their
/// resource count once for each profile. Such a resource is on the wire only once, whatever the number of its profiles.
pub const PUSH_LABEL_BYTES_MAX: usize = 64 << 20;

/// Maximum number of attributes of one push, summed over all distinct attribute sets of its samples. Attributes of a
/// resource or a profile are on the wire once, and become part of the sets of any number of samples.
pub const PUSH_ATTRIBUTES_MAX: usize = 8_000_000;

/// Longest build ID as text, in bytes. GNU build IDs have 40 hexadecimal digits, and Go build IDs have 83 characters.
pub const BUILD_ID_BYTES_MAX: usize = 512;

/// Longest `Idempotency-Key` of a client, in bytes. UUIDs and hashes have 32 to 64 bytes.
pub const IDEMPOTENCY_KEY_BYTES_MAX: usize = 1024;

/// Largest Raft entry, in bytes. An entry is replicated and applied as a whole, so a large entry delays all later ones.
pub const ENTRY_BYTES_MAX: usize = 16 << 20;

/// Maximum number of partitions (of six hours) over which the samples of one batch may spread. Each of them is opened
/// in memory. Senders of live profiles never send a month of samples at once.
pub const BATCH_PARTITIONS_MAX: usize = 128;

/// Largest size of the dictionaries and series of all shards of a node in memory, in bytes. Above this size, batches
/// with new definitions are refused with 429 / RESOURCE_EXHAUSTED until older partitions are evicted. For comparison:
/// 42,000 stacks of a C++ program take about 30 MB.
pub const DICTIONARY_BYTES_MAX: usize = 1 << 30;

/// Maximum number of series in one partition of a shard. A partition holds six hours of raw samples. Each series costs
/// memory, and time in every query. For comparison: 40 pods with three profile types have 120 series. Without this
/// limit, a label whose values never repeat would create series without end.
pub const PARTITION_SERIES_MAX: usize = 1_000_000;

/// Earliest time that a sample may have: 2000-01-01T00:00:00Z, in nanoseconds since 1970. Earlier times come from
/// clocks that were never set.
pub const TIME_MIN_NS: i64 = 946_684_800_000_000_000;

/// Largest time by which a sample may be ahead of the receiver's clock, in nanoseconds.
pub const TIME_AHEAD_MAX_NS: i64 = 10 * 60 * 1_000_000_000;

/// Largest total size of the pushes in flight, after decompression, in bytes. A push is in flight while it is being
/// decoded or waits for its acknowledgement. Further pushes are refused with 429 / RESOURCE_EXHAUSTED, which agents
/// retry.
pub const PUSHES_IN_FLIGHT_BYTES_MAX: usize = 256 << 20;

/// Maximum number of steps of a range query, as in Prometheus.
pub const QUERY_STEPS_MAX: i64 = 11_000;

/// Maximum number of cells (group x bucket x stack) in one response of a shard. This many cells take about 1 GiB, all
/// their forms (such as decoded and encoded) together.
pub const QUERY_CELLS_MAX: usize = 8_000_000;

/// Largest size of the labels of all groups in one response, in bytes. So the labels take at most about as much memory
/// as [`QUERY_CELLS_MAX`] cells.
pub const QUERY_GROUP_BYTES_MAX: usize = 256 << 20;

/// Maximum number of window edges in one request. Each window has two edges. This limits the memory for decoding to
/// about 64 MB.
pub const QUERY_EDGES_MAX: usize = 2_000_000;

/// Maximum number of matchers in one request, and also of labels to group by. A query text of 64 KiB cannot hold more.
pub const QUERY_LABELS_MAX: usize = 1 << 15;

/// Maximum number of regular expressions in the matchers of one request. This is twice the number that a PromQL query
/// may have. Each regular expression may take a few MiB of memory.
pub const QUERY_REGEXES_MAX: usize = 64;

/// Maximum number of nodes (callers and callees) in the tree of stacks in one response of a shard. This many nodes take
/// about 256 MiB. [`QUERY_CELLS_MAX`] stacks of a service need about this many nodes, because the stacks share most of
/// their callers.
pub const QUERY_NODES_MAX: usize = 8_000_000;

/// Maximum number of nodes of one flame graph.
pub const FLAMEGRAPH_NODES_MAX: usize = 1 << 20;

/// Maximum number of nodes of a flame graph if the request sets no limit.
pub const FLAMEGRAPH_NODES_DEFAULT: usize = 8192;

/// Maximum number of shards on one node. Each shard has a database, which takes some megabytes and a few open files
/// even if the shard is empty.
pub const NODE_SHARDS_MAX: u16 = 64;

/// Maximum number of queries that run at one time. Each further query waits until a slot is free or its client
/// disconnects.
pub const QUERIES_AT_ONCE_MAX: usize = 8;

/// Time, in nanoseconds, within which a retry of a push without times is recognized. The receiver gives the samples of
/// such a push their times. Nobody retries for longer than a day. A retry of a push with times is recognized for as
/// long as the samples are kept.
pub const IDEMPOTENCY_WINDOW_NS: i64 = 24 * 3600 * 1_000_000_000;

/// Largest message between router and node, in bytes. A response with [`QUERY_CELLS_MAX`] cells has about this size.
pub const NODE_MESSAGE_BYTES_MAX: usize = 512 << 20;

/// Maximum number of nodes of a cluster. Each node has connections to all others.
pub const CLUSTER_NODES_MAX: usize = 1024;

/// Longest address of a node, in bytes: the longest DNS name, and a port.
pub const NODE_ADDRESS_BYTES_MAX: usize = 260;

/// Longest name of a zone, in bytes. The names of cloud providers have about 20 bytes.
pub const ZONE_BYTES_MAX: usize = 64;

/// Maximum number of shards of a cluster. There are as many slots, and a shard without a slot gets no samples.
pub const CLUSTER_SHARDS_MAX: u32 = 4096;

/// Maximum number of members of one shard. More members make a write slower, and no more durable in practice.
pub const SHARD_MEMBERS_MAX: usize = 7;

/// Maximum number of epochs of a placement. Each takes about 8 KiB in every router and node. With one new epoch in a
/// week, this is enough for five years.
pub const PLACEMENT_EPOCHS_MAX: usize = 256;

/// Least time from the proposal of a new epoch to its begin, in nanoseconds, by the clock of the meta group's leader.
/// All nodes and routers learn of the epoch in this time. Otherwise, a push could be stored by the old placement, and
/// its retry by the new one in another shard.
pub const EPOCH_LEAD_MIN_NS: i64 = 15 * 1_000_000_000;

/// Time after the end of an epoch, in nanoseconds, for which queries still ask the epoch's shards. Samples of this time
/// may have been placed before the next epoch was known, and they may be [`TIME_AHEAD_MAX_NS`] ahead. The rest of the
/// time is for nodes that learn of the epoch late.
pub const EPOCH_OVERLAP_NS: i64 = 3600 * 1_000_000_000;

/// Maximum number of services that one epoch spreads over several slots. Only the largest services of a fleet need it.
pub const SPREAD_SERVICES_MAX: usize = 1024;

/// Maximum number of slots of one service. A query for the service asks the shards of all of them.
pub const SERVICE_SLOTS_MAX: u16 = 256;

/// Maximum number of tenants of a cluster. Each node and router holds all of them in memory.
pub const TENANTS_MAX: usize = 4096;

/// Maximum number of names of deleted tenants that a cluster remembers. A name has at most 64 bytes, so they take at
/// most a quarter of the cluster's state.
pub const DELETED_TENANTS_MAX: usize = 16_384;

/// Maximum number of tokens of all tenants. Each request is compared with all of them.
pub const TOKENS_MAX: usize = 4096;

/// Maximum number of different retentions of all tenants. The number of a class is one byte of the keys of a shard.
pub const RETENTION_CLASSES_MAX: usize = 256;

/// Longest retention, in seconds: 100 years, as for ranges of queries. Longer ones could overflow 64 bits in
/// nanoseconds.
pub const RETENTION_SECONDS_MAX: u64 = 100 * 365 * 86_400;

/// Maximum number of labels that hours drop, and also of those that days drop.
pub const DROPPED_LABELS_MAX: usize = SERIES_LABELS_MAX;

/// Largest state of the meta group, in bytes, as protobuf. Every change writes the whole state, and every router reads
/// it.
pub const META_STATE_BYTES_MAX: usize = 4 << 20;

/// Largest command to the meta group, in bytes. A cluster may be initialized with all its shards by one command.
pub const META_COMMAND_BYTES_MAX: usize = 1 << 20;
