//! Properties of profilers for several languages: sample types, period, and the meaning of the duration.

/// A type and its unit.
pub type ValueType = (&'static str, &'static str);

/// One kind of profile of one profiler.
#[derive(Debug)]
pub struct Profiler {
    /// Name for messages of failed tests.
    pub name: &'static str,
    /// Type and unit of each column of values.
    pub sample_types: &'static [ValueType],
    /// Type and unit of the period; empty if the profiler gives none.
    pub period_type: ValueType,
    /// Period, in its unit; 0 if the profiler gives none.
    pub period: u64,
    /// True if the profile has a duration, which is the time that it covers. A profile without a duration covers the
    /// time since the process started.
    pub has_duration: bool,
}

const CPU: ValueType = ("cpu", "nanoseconds");
const SAMPLES: ValueType = ("samples", "count");
const HEAP: &[ValueType] =
    &[("alloc_objects", "count"), ("alloc_space", "bytes"), ("inuse_objects", "count"), ("inuse_space", "bytes")];
const CONTENTIONS: &[ValueType] = &[("contentions", "count"), ("delay", "nanoseconds")];
const DATADOG_PYTHON: &[ValueType] = &[
    ("cpu-time", "nanoseconds"),
    ("wall-time", "nanoseconds"),
    ("exception-samples", "count"),
    ("alloc-samples", "count"),
    ("alloc-space", "bytes"),
    ("heap-space", "bytes"),
];
const DATADOG_RUBY: &[ValueType] = &[
    ("cpu-time", "nanoseconds"),
    ("cpu-samples", "count"),
    ("wall-time", "nanoseconds"),
    ("alloc-samples", "count"),
    ("heap-live-samples", "count"),
    ("heap-live-size", "bytes"),
];
const NONE: ValueType = ("", "");

const fn profiler(
    name: &'static str,
    sample_types: &'static [ValueType],
    period_type: ValueType,
    period: u64,
    has_duration: bool,
) -> Profiler {
    Profiler { name, sample_types, period_type, period, has_duration }
}

/// Profilers whose profiles are generated. Each kind of profile is one entry.
pub const PROFILERS: &[Profiler] = &[
    profiler("go cpu", &[SAMPLES, CPU], CPU, 10_000_000, true),
    profiler("go heap", HEAP, ("space", "bytes"), 524_288, false),
    profiler("go allocs?seconds", HEAP, ("space", "bytes"), 524_288, true),
    profiler("go mutex", CONTENTIONS, ("contentions", "count"), 1, false),
    profiler("go block?seconds", CONTENTIONS, ("contentions", "count"), 1, true),
    profiler("go goroutine", &[("goroutine", "count")], ("goroutine", "count"), 1, false),
    profiler("go threadcreate", &[("threadcreate", "count")], ("threadcreate", "count"), 1, false),
    profiler("async-profiler cpu", &[CPU], CPU, 10_000_000, true),
    profiler("async-profiler wall", &[("wall", "nanoseconds")], ("wall", "nanoseconds"), 10_000_000, true),
    profiler(
        "async-profiler alloc",
        &[("alloc_in_new_tlab_objects", "count"), ("alloc_in_new_tlab_bytes", "bytes")],
        ("space", "bytes"),
        524_287,
        true,
    ),
    profiler("async-profiler lock", CONTENTIONS, ("mutex", "count"), 1, true),
    profiler("pprof-rs", &[SAMPLES, CPU], CPU, 1_000_000, true),
    profiler("node wall", &[("sample", "count"), ("wall", "nanoseconds")], ("wall", "nanoseconds"), 1_000_000, true),
    profiler("node heap", &[("objects", "count"), ("space", "bytes")], ("space", "bytes"), 524_288, false),
    profiler("py-spy", &[SAMPLES], CPU, 10_000_000, true),
    profiler("memray", &[("allocations", "count"), ("allocated", "bytes")], NONE, 0, true),
    profiler("stackprof cpu", &[SAMPLES, ("cpu", "microseconds")], ("cpu", "microseconds"), 1_000, true),
    profiler("stackprof object", &[("allocations", "count")], NONE, 0, true),
    profiler(".net cpu", &[CPU], CPU, 9_000_000, true),
    profiler(".net exceptions", &[("exception", "count")], NONE, 0, true),
    profiler(".net locks", &[("lock_count", "count"), ("lock_time", "nanoseconds")], NONE, 0, true),
    profiler("async-profiler live", &[("live", "count")], ("objects", "count"), 1, true),
    profiler("datadog python", DATADOG_PYTHON, NONE, 0, true),
    profiler("datadog ruby", DATADOG_RUBY, NONE, 0, true),
    profiler("perf samples", &[SAMPLES], ("event", "count"), 1, true),
];
