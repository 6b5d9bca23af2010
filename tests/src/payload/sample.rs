//! A sample, as read from a pushed payload and as read from a node.
//!
//! Stacks are written from root to leaf, one text for each location with all that tells it from others. Labels of the
//! series and attributes of the sample are one set of names, as queries see them: a label hides an attribute of the
//! same name.

use std::collections::BTreeMap;

/// Everything about a sample but its value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sample {
    /// Labels and attributes by name, as queries write it; none is empty.
    pub names: BTreeMap<String, String>,
    /// Root first.
    pub stack: Vec<String>,
    /// Nanoseconds since 1970.
    pub time_ns: i64,
}

/// Sums by stack: names from root to leaf.
pub type Folded = BTreeMap<Vec<String>, i128>;

/// Content of a push, and the part of it that must be stored.
#[derive(Clone, Debug, Default)]
pub struct Expected {
    /// Profiles of which nothing is wrong: of a pprof, its sample types.
    pub accepted: u64,
    /// The others.
    pub rejected: u64,
    /// The samples of accepted profiles.
    pub samples: Multiset,
    /// Their stacks, by profile type.
    pub folded: BTreeMap<String, Folded>,
}

impl Expected {
    /// Adds what the push says of one profile: its type, its samples, each with its names from root to leaf and its
    /// value.
    pub fn add(&mut self, id: &str, profile: Option<Vec<(Sample, Vec<String>, i128)>>) {
        let Some(samples) = profile else {
            self.rejected += 1;
            return;
        };
        self.accepted += 1;
        let folded = self.folded.entry(id.to_owned()).or_default();
        for (sample, names, value) in samples {
            *folded.entry(names).or_default() += value;
            self.samples.add(sample, value);
        }
    }
}

/// Returns whether a sample may have this time: from the year 2000 to ten minutes from now.
#[must_use]
pub fn is_possible(time_ns: u64, now_ns: u64) -> bool {
    (946_684_800_000_000_000..=now_ns + 600_000_000_000).contains(&time_ns)
}

/// The value in the unit of its profile type, if it may be one: values are never negative, but for gauges.
#[must_use]
pub fn stored_value(id: &str, value: i64, scale: i64) -> Option<i128> {
    let value = value.checked_mul(scale)?;
    (value >= 0 || is_gauge(id)).then_some(value.into())
}

/// Returns whether values of this profile type are a state, which must not be added over time.
#[must_use]
pub fn is_gauge(id: &str) -> bool {
    let kind = id.split(':').nth(1).unwrap_or_default();
    kind.starts_with("inuse_") || ["goroutine", "goroutines", "threadcreate"].contains(&kind)
}

/// Samples and their values; of equal samples the sum. Zeros say nothing and are left out.
#[derive(Clone, Debug, Default)]
pub struct Multiset {
    /// By sample.
    pub sums: BTreeMap<Sample, i128>,
    /// Number of added samples, without zeros.
    pub count: u64,
}

impl Multiset {
    /// Adds a sample.
    pub fn add(&mut self, sample: Sample, value: i128) {
        if value != 0 {
            *self.sums.entry(sample).or_default() += value;
            self.count += 1;
        }
    }

    /// Adds all samples of another.
    pub fn extend(&mut self, other: Self) {
        self.count += other.count;
        for (sample, sum) in other.sums {
            *self.sums.entry(sample).or_default() += sum;
        }
    }

    /// Fails where two differ, with the first differences.
    pub fn assert_equals(&self, want: &Self, what: &str) {
        let sum_of = |sums: &Self, sample: &Sample| sums.sums.get(sample).copied().unwrap_or_default();
        let differs = |(sample, sum): &(&Sample, &i128), other: &Self| sum_of(other, sample) != **sum;
        let missing: Vec<_> = want.sums.iter().filter(|entry| differs(entry, self)).collect();
        let unwanted: Vec<_> = self.sums.iter().filter(|entry| differs(entry, want)).collect();
        assert!(
            missing.is_empty() && unwanted.is_empty(),
            "{what}: {} of {} samples are not as pushed and {} were not pushed; the first pushed {:#?} and the first \
             stored {:#?}",
            missing.len(),
            want.sums.len(),
            unwanted.len(),
            missing.first(),
            unwanted.first(),
        );
        assert_eq!(self.count, want.count, "{what}: number of samples");
    }
}

/// Text of a location with lines.
#[must_use]
pub fn lines_location(mapping_file: &str, frame_type: &str, lines: &[String]) -> String {
    format!("{mapping_file}|{frame_type}|{}", lines.join(" <- "))
}

/// One line of it.
#[must_use]
pub fn line(name: &str, system_name: &str, file: &str, start_line: i64, line: i64, column: i64) -> String {
    format!("{name} ({system_name}) {file}:{start_line}:{line}:{column}")
}

/// A location without lines as text; the build ID is `kind:id` or empty.
#[must_use]
pub fn address_location([build_id, file]: [&str; 2], is_file_offset: bool, address: u64, frame_type: &str) -> String {
    format!("{build_id}|{file}|{frame_type}|{}{address:#x}", if is_file_offset { "offset " } else { "" })
}

/// A label's name as queries write it: `[a-zA-Z0-9_]`, no digit first.
#[must_use]
pub fn query_name(name: &str) -> String {
    let mut out: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    if out.is_empty() || out.as_bytes()[0].is_ascii_digit() {
        out.insert(0, '_');
    }
    out
}

/// Names of several sources; a later one wins.
#[must_use]
pub fn names<'a>(sources: impl IntoIterator<Item = &'a [(String, String)]>) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    for (name, value) in sources.into_iter().flatten() {
        out.insert(query_name(name), value.clone());
    }
    out.retain(|_, value| !value.is_empty());
    out
}

/// A profile type's id, and the factor of its values. `siblings` are the other sample types; each is (type, unit).
#[must_use]
pub fn profile_type(
    sample: &(String, String),
    siblings: &[(String, String)],
    period: &(String, String),
    period_value: i64,
) -> (String, i64) {
    let is = |value: &(String, String), kind: &str, unit: &str| value.0 == kind && value.1 == unit;
    let cpu_beside = siblings.iter().any(|sibling| is(sibling, "cpu", "nanoseconds"));
    let counts_periods =
        is(sample, "samples", "count") && is(period, "cpu", "nanoseconds") && period_value > 0 && !cpu_beside;
    let (sample, scale) = if counts_periods { (period, period_value) } else { (sample, 1) };
    let beside = |kind: &str| siblings.iter().any(|sibling| sibling.0 == kind);
    let name = match sample.0.as_str() {
        "cpu" => "process_cpu",
        "samples" if beside("cpu") => "process_cpu",
        "samples" if beside("wall") => "wall",
        "goroutine" | "goroutines" => "goroutine",
        "contentions" | "delay" => "contention",
        kind if kind.starts_with("alloc_") || kind.starts_with("inuse_") => "memory",
        kind => kind,
    };
    (format!("{name}:{}:{}:{}:{}", sample.0, sample.1, period.0, period.1), scale)
}
