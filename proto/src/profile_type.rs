//! The type of a profile, whose ID has the form `name:sample_type:sample_unit:period_type:period_unit`.

use std::fmt;

use crate::label::sanitize_label_name;

/// The type of a sample or period and its unit, as in pprof and OTLP.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueType {
    /// Kind of the value, such as `cpu`.
    pub kind: String,
    /// Unit of the value, such as `nanoseconds`.
    pub unit: String,
}

impl ValueType {
    /// Makes a value type of a kind and a unit.
    #[must_use]
    pub fn new(kind: &str, unit: &str) -> Self {
        Self { kind: kind.to_owned(), unit: unit.to_owned() }
    }

    /// Returns whether the unit is a unit of time.
    #[must_use]
    pub fn is_time(&self) -> bool {
        matches!(self.unit.as_str(), "nanoseconds" | "microseconds" | "milliseconds" | "seconds")
    }

    /// Returns whether the kind is `cpu` and the unit is `nanoseconds`.
    #[must_use]
    pub fn is_cpu_time(&self) -> bool {
        is_cpu_time(&self.kind, &self.unit)
    }
}

/// Summary of all sample types of one OTLP scope or pprof file. The profile type of each sample type depends on this
/// summary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Siblings {
    cpu_time: bool,
    cpu: bool,
    wall: bool,
}

impl Siblings {
    /// Adds a sample type by kind and unit.
    pub fn add(&mut self, kind: &str, unit: &str) {
        self.cpu_time |= is_cpu_time(kind, unit);
        self.cpu |= kind == "cpu";
        self.wall |= kind == "wall";
    }
}

fn is_cpu_time(kind: &str, unit: &str) -> bool {
    kind == "cpu" && unit == "nanoseconds"
}

/// A profile type. None of its five parts contains `:`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProfileType {
    name: String,
    sample: ValueType,
    period: ValueType,
}

impl ProfileType {
    /// Returns the profile type of one column of values, and the factor that converts the values to the type's unit.
    ///
    /// `pushed_name` is the name in the push, if any. `siblings` are all sample types of the same OTLP scope or pprof
    /// file. Values of `samples/count` with a `cpu/nanoseconds` period are converted to CPU time (count x period),
    /// unless a sibling is `cpu/nanoseconds`. So the rate of CPU time is a number of cores for every profiler.
    #[must_use]
    pub fn of_push(
        pushed_name: Option<&str>,
        sample: &ValueType,
        siblings: Siblings,
        period_type: &ValueType,
        period: i64,
    ) -> (Self, i64) {
        let counts_cpu_periods = sample.kind == "samples"
            && sample.unit == "count"
            && period_type.is_cpu_time()
            && period > 0
            && !siblings.cpu_time;
        let (sample, scale) = if counts_cpu_periods { (period_type, period) } else { (sample, 1) };
        let name = match pushed_name {
            Some(name) if !name.is_empty() => name,
            _ => name_of(&sample.kind, siblings),
        };
        (Self::from_parts(name, sample, period_type), scale)
    }

    fn from_parts(name: &str, sample: &ValueType, period: &ValueType) -> Self {
        let clean =
            |value: &ValueType| ValueType { kind: value.kind.replace(':', "_"), unit: value.unit.replace(':', "_") };
        Self { name: sanitize_label_name(name), sample: clean(sample), period: clean(period) }
    }

    /// Parses a full ID, which has five parts with colons between them.
    #[must_use]
    pub fn parse(id: &str) -> Option<Self> {
        let parts: Vec<&str> = id.split(':').collect();
        let &[name, sample_type, sample_unit, period_type, period_unit] = parts.as_slice() else { return None };
        Some(Self {
            name: name.to_owned(),
            sample: ValueType::new(sample_type, sample_unit),
            period: ValueType::new(period_type, period_unit),
        })
    }

    /// Short name, such as `process_cpu`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Type and unit of the values.
    #[must_use]
    pub fn sample(&self) -> &ValueType {
        &self.sample
    }

    /// Type and unit of the sampling period.
    #[must_use]
    pub fn period(&self) -> &ValueType {
        &self.period
    }

    /// Returns whether the values are a state (heap in use, goroutines, threads), which cannot be summed over time.
    #[must_use]
    pub fn is_gauge(&self) -> bool {
        let kind = self.sample.kind.as_str();
        kind.starts_with("inuse_") || matches!(kind, "goroutine" | "goroutines" | "threadcreate")
    }
}

/// Returns the name for a profile type that was pushed without a name.
fn name_of(sample_kind: &str, siblings: Siblings) -> &str {
    match sample_kind {
        "cpu" => "process_cpu",
        "samples" if siblings.cpu => "process_cpu",
        "samples" if siblings.wall => "wall",
        "goroutine" | "goroutines" => "goroutine",
        "contentions" | "delay" => "contention",
        kind if kind.starts_with("alloc_") || kind.starts_with("inuse_") => "memory",
        kind => kind,
    }
}

impl fmt::Display for ProfileType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, sample, period } = self;
        write!(f, "{name}:{}:{}:{}:{}", sample.kind, sample.unit, period.kind, period.unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(
        name: Option<&str>,
        sample: (&str, &str),
        siblings: &[(&str, &str)],
        period: (&str, &str, i64),
        want: (&str, i64),
    ) {
        let mut beside = Siblings::default();
        siblings.iter().for_each(|(kind, unit)| beside.add(kind, unit));
        let period_type = ValueType::new(period.0, period.1);
        let (got, scale) =
            ProfileType::of_push(name, &ValueType::new(sample.0, sample.1), beside, &period_type, period.2);
        assert_eq!((got.to_string().as_str(), scale), want);
        assert_eq!(ProfileType::parse(&got.to_string()), Some(got));
    }

    #[test]
    fn counted_cpu_periods_become_cpu_time() {
        let samples = ("samples", "count");
        let cpu = ("cpu", "nanoseconds");
        let period = ("cpu", "nanoseconds", 50_000_000);
        check(None, samples, &[samples], period, ("process_cpu:cpu:nanoseconds:cpu:nanoseconds", 50_000_000));
        check(None, samples, &[samples, cpu], period, ("process_cpu:samples:count:cpu:nanoseconds", 1));
        check(None, samples, &[samples], ("cpu", "nanoseconds", 0), ("samples:samples:count:cpu:nanoseconds", 1));
        check(None, cpu, &[samples, cpu], period, ("process_cpu:cpu:nanoseconds:cpu:nanoseconds", 1));
    }

    #[test]
    fn the_name_comes_from_the_push_or_from_the_sample_type() {
        let none = ("", "", 0);
        check(Some("build"), ("x", "count"), &[], none, ("build:x:count::", 1));
        check(Some("a:b c"), ("x:y", "count"), &[], none, ("a_b_c:x_y:count::", 1));
        check(None, ("off_cpu", "nanoseconds"), &[], none, ("off_cpu:off_cpu:nanoseconds::", 1));
        check(None, ("inuse_space", "bytes"), &[], ("space", "bytes", 1), ("memory:inuse_space:bytes:space:bytes", 1));
        check(None, ("delay", "nanoseconds"), &[], none, ("contention:delay:nanoseconds::", 1));
        check(None, ("events", "count"), &[], none, ("events:events:count::", 1));
    }

    #[test]
    fn heap_in_use_goroutines_and_threads_are_gauges() {
        for (id, gauge) in [
            ("memory:inuse_space:bytes:space:bytes", true),
            ("goroutine:goroutine:count::", true),
            ("goroutine:goroutines:count::", true),
            ("threadcreate:threadcreate:count:threadcreate:count", true),
            ("memory:alloc_space:bytes:space:bytes", false),
            ("process_cpu:cpu:nanoseconds:cpu:nanoseconds", false),
        ] {
            assert_eq!(ProfileType::parse(id).unwrap().is_gauge(), gauge, "{id}");
        }
    }
}
