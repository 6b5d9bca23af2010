//! A sample, as decoded from a payload or as read from a node.
//!
//! A stack is a list of texts from root to leaf. Each text has all properties of one location. As in queries, labels of
//! the series and attributes of the sample form one set. A label hides an attribute of the same name.

use std::collections::{BTreeMap, BTreeSet};

/// All properties of a sample except its value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sample {
    /// Labels and attributes by name, as in queries. No value is empty.
    pub names: BTreeMap<String, String>,
    /// Locations of the stack, root first.
    pub stack: Vec<String>,
    /// Time of the sample, in nanoseconds since 1970.
    pub time_ns: i64,
}

/// Sum of each stack. A stack is its names from root to leaf.
pub type Folded = BTreeMap<Vec<String>, i128>;

/// Content of a push, and the part of it that must be stored.
#[derive(Clone, Debug, Default)]
pub struct Expected {
    /// Number of valid profiles; for a pprof, number of valid sample types.
    pub accepted: u64,
    /// Number of invalid profiles; for a pprof, number of invalid sample types.
    pub rejected: u64,
    /// The samples of accepted profiles that must be stored.
    pub samples: Multiset,
    /// Maps the profile type and the labels of each series to the samples of accepted profiles.
    series: BTreeMap<(String, BTreeMap<String, String>), Vec<Weighted>>,
}

/// Function names of a sample's stack from root to leaf, time of the sample, and value of the sample.
type Weighted = (Vec<String>, i64, i128);

impl Expected {
    /// Adds one profile of the push, with the ID of its type and the labels of its series. `profile` has each sample,
    /// with the function names of its stack from root to leaf, and its value. `None` adds a rejected profile.
    pub fn add(&mut self, id: &str, labels: &[(String, String)], profile: Option<Vec<(Sample, Vec<String>, i128)>>) {
        let Some(samples) = profile else {
            self.rejected += 1;
            return;
        };
        self.accepted += 1;
        let newest = samples.iter().map(|(sample, ..)| sample.time_ns).max();
        let is_zero = |(sample, _, value): &(Sample, Vec<String>, i128)| Some(sample.time_ns) < newest || *value == 0;
        // If all newest samples of a gauge are 0, one of them is stored. Otherwise an earlier value would count as its
        // last value.
        self.samples.count += u64::from(is_gauge(id) && newest.is_some() && samples.iter().all(is_zero));
        let series = self.series.entry((id.to_owned(), names([labels]))).or_default();
        for (sample, names, value) in samples {
            series.push((names, sample.time_ns, value));
            self.samples.add(sample, value);
        }
    }

    /// Returns the profile types with stored samples.
    #[must_use]
    pub fn types(&self) -> BTreeSet<&str> {
        let is_stored = |id: &str, samples: &[Weighted]| {
            is_gauge(id) && !samples.is_empty() || samples.iter().any(|(.., value)| *value != 0)
        };
        self.series.iter().filter(|((id, _), samples)| is_stored(id, samples)).map(|((id, _), _)| id.as_str()).collect()
    }

    /// Returns the sum of each stack of one profile type. For a gauge, only the samples at the newest time of each
    /// series count.
    #[must_use]
    pub fn folded(&self, id: &str) -> Folded {
        let mut folded = Folded::new();
        for samples in self.series.iter().filter(|((of, _), _)| of == id).map(|(_, samples)| samples) {
            let newest = samples.iter().map(|(_, time, _)| *time).max().unwrap_or_default();
            for (names, _, value) in samples.iter().filter(|(_, time, _)| !is_gauge(id) || *time == newest) {
                *folded.entry(names.clone()).or_default() += value;
            }
        }
        folded
    }
}

/// Returns true if a sample may have this time: from the year 2000 to ten minutes after `now_ns`.
#[must_use]
pub fn is_possible(time_ns: u64, now_ns: u64) -> bool {
    (946_684_800_000_000_000..=now_ns + 600_000_000_000).contains(&time_ns)
}

/// Returns the value in the unit of its profile type; `None` if the value is invalid. Only gauges may have negative
/// values.
#[must_use]
pub fn stored_value(id: &str, value: i64, scale: i64) -> Option<i128> {
    let value = value.checked_mul(scale)?;
    (value >= 0 || is_gauge(id)).then_some(value.into())
}

/// Returns true if values of this profile type describe a state. Such values must not be added up over time.
#[must_use]
pub fn is_gauge(id: &str) -> bool {
    let kind = id.split(':').nth(1).unwrap_or_default();
    kind.starts_with("inuse_") || ["goroutine", "goroutines", "threadcreate"].contains(&kind)
}

/// Samples with their values. The values of equal samples are added up, and samples of value 0 are omitted.
#[derive(Clone, Debug, Default)]
pub struct Multiset {
    /// Sum of the values of each sample.
    pub sums: BTreeMap<Sample, i128>,
    /// Number of added samples whose value is not 0.
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

    /// Adds all samples of another multiset.
    pub fn extend(&mut self, other: Self) {
        self.count += other.count;
        for (sample, sum) in other.sums {
            *self.sums.entry(sample).or_default() += sum;
        }
    }

    /// Fails if this multiset differs from `want`. The message has the first differences.
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

/// Returns the text that stands for a location with lines.
#[must_use]
pub fn lines_location(mapping_file: &str, frame_type: &str, lines: &[String]) -> String {
    format!("{mapping_file}|{frame_type}|{}", lines.join(" <- "))
}

/// Returns the text that stands for one line of a location.
#[must_use]
pub fn line(name: &str, system_name: &str, file: &str, start_line: i64, line: i64, column: i64) -> String {
    format!("{name} ({system_name}) {file}:{start_line}:{line}:{column}")
}

/// Returns the text that stands for a location without lines. The build ID is `kind:id`, or empty.
#[must_use]
pub fn address_location([build_id, file]: [&str; 2], is_file_offset: bool, address: u64, frame_type: &str) -> String {
    format!("{build_id}|{file}|{frame_type}|{}{address:#x}", if is_file_offset { "offset " } else { "" })
}

/// Converts the name of a label to its form in queries: characters `[a-zA-Z0-9_]`, no digit first.
#[must_use]
pub fn query_name(name: &str) -> String {
    let mut out: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    if out.is_empty() || out.as_bytes()[0].is_ascii_digit() {
        out.insert(0, '_');
    }
    out
}

/// Merges names and values of several sources. A later source takes precedence.
#[must_use]
pub fn names<'a>(sources: impl IntoIterator<Item = &'a [(String, String)]>) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    for (name, value) in sources.into_iter().flatten() {
        out.insert(query_name(name), value.clone());
    }
    out.retain(|_, value| !value.is_empty());
    out
}

/// Returns the displayed name of an unnamed frame: the file name, or else the build ID, and the address.
#[must_use]
pub fn unnamed([build_id, file]: &[String; 2], address: u64) -> String {
    let binary = match file.rsplit('/').next() {
        Some(base) if !base.is_empty() => base,
        _ if !build_id.is_empty() => build_id,
        _ => "[unknown]",
    };
    format!("{binary}+{address:#x}")
}

/// Returns the ID of a profile type, and the factor by which its values are multiplied. `siblings` are the types and
/// units of all sample types of the profile.
///
/// `name` is the name that the push gives; empty if it gives none.
#[must_use]
pub fn profile_type(
    name: &str,
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
        _ if !name.is_empty() => name,
        "cpu" => "process_cpu",
        "samples" if beside("cpu") => "process_cpu",
        "samples" if beside("wall") => "wall",
        "goroutine" | "goroutines" => "goroutine",
        "contentions" | "delay" => "contention",
        kind if kind.starts_with("alloc_") || kind.starts_with("inuse_") => "memory",
        kind => kind,
    };
    let parts = [&sample.0, &sample.1, &period.0, &period.1].map(|part| part.replace(':', "_")).join(":");
    (format!("{}:{parts}", query_name(name)), scale)
}
