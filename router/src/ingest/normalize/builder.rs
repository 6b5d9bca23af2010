//! Builds a push from any format: adds definitions, checks labels and times, and counts refused profiles.

use std::borrow::Cow;
use std::collections::HashMap;

use proto::dictionary::{Attribute, AttributeValue, Capacity, text_hash};
use proto::label::{PROFILE_TYPE_LABEL, SERVICE_NAME_LABEL};
use proto::{Dictionary, Label, LabelSet, Location, Profile, ProfileType, Push, Samples, limits};

use crate::ingest::error::{IngestError, ProfileError};
use crate::ingest::known_stacks::{DefinitionPlan, PartitionKey};
use crate::ingest::normalize::frames::StackSource;

/// Frame type of kernel code. Kernel frames on the leaf side of a stack become the kernel stack.
pub(crate) const KERNEL_FRAME_TYPE: &str = "kernel";

/// Size of a label in memory, without its text, in bytes.
const LABEL_BYTES: usize = size_of::<Label>();

/// Maximum number of warnings that are kept as text. Further warnings are only counted.
const WARNINGS_MAX: usize = 8;

/// A push under construction.
pub(crate) struct Builder {
    pub(super) push: Push,
    now_ns: i64,
    /// Origin of each stack in the message, by the ID of the stack.
    pub(super) sources: Vec<StackSource>,
    /// For each pair of a user stack and a kernel stack, by its ID: the partition for which both stacks were checked
    /// last. Nearly all pairs need only one check.
    pub(super) checked: Vec<Option<PartitionKey>>,
    /// Stacks that cannot be defined, each with its error.
    pub(super) undefinable: HashMap<u32, ProfileError>,
    /// Buffers for hashing texts and for defining stacks.
    pub(super) hashed: Vec<u8>,
    pub(super) locations: Vec<u32>,
    pub(super) truncated: Option<u32>,
    samples: usize,
    label_bytes: usize,
    attributes: usize,
    lines: usize,
    /// Number of valid profiles, including profiles without any value.
    accepted: usize,
    warnings_suppressed: u64,
}

impl Builder {
    pub(crate) fn new(now_ns: i64) -> Self {
        Self {
            push: Push { has_own_times: true, ..Push::default() },
            now_ns,
            // The empty stack has no origin.
            sources: vec![StackSource::default()],
            checked: Vec::new(),
            undefinable: HashMap::new(),
            hashed: Vec::new(),
            locations: Vec::new(),
            truncated: None,
            samples: 0,
            label_bytes: 0,
            attributes: 0,
            lines: 0,
            accepted: 0,
            warnings_suppressed: 0,
        }
    }

    pub(crate) fn dictionary(&mut self) -> &mut Dictionary {
        &mut self.push.dictionary
    }

    /// Reserves memory, so that the tables need not grow step by step.
    pub(crate) fn reserve(&mut self, capacity: &Capacity) {
        self.push.dictionary.reserve(capacity);
        self.sources.reserve(capacity.stacks);
    }

    pub(crate) fn now_ns(&self) -> i64 {
        self.now_ns
    }

    /// Records that the push does not contain the times of its samples, and that the time of receipt is used instead.
    pub(crate) fn times_are_of_receipt(&mut self) {
        self.push.has_own_times = false;
    }

    /// Adds a text and returns its ID. Replaces bytes that are not UTF-8, and truncates a text that is too long.
    pub(crate) fn text(&mut self, bytes: &[u8]) -> u32 {
        if bytes.len() > limits::STRING_BYTES_MAX {
            self.warn_truncated();
        }
        self.push.dictionary.strings.intern(&text_of(bytes))
    }

    /// Adds a text, given its hash, and returns its ID.
    pub(crate) fn hashed_text(&mut self, hash: u128, bytes: &[u8]) -> u32 {
        let strings = &mut self.push.dictionary.strings;
        // The lookup comes first: conversion reads the whole text, and any number of entries may refer to a long text.
        strings.find_hash(hash).unwrap_or_else(|| strings.intern_hashed(hash, &text_of(bytes)))
    }

    /// Returns the hash that a text would have in the dictionary.
    pub(crate) fn text_hash(&mut self, bytes: &[u8]) -> u128 {
        if bytes.len() > limits::STRING_BYTES_MAX {
            self.warn_truncated();
        }
        // Nearly all texts are ASCII, and ASCII is always valid UTF-8, so this check is enough.
        if bytes.len() <= limits::STRING_BYTES_MAX && bytes.is_ascii() {
            return text_hash(bytes);
        }
        text_hash(text_of(bytes).as_bytes())
    }

    pub(crate) fn warn_truncated(&mut self) {
        self.warn(format!("a string was truncated to {} bytes", limits::STRING_BYTES_MAX));
    }

    /// Makes a label from an attribute. `prefix` is put before the key.
    pub(crate) fn label(&mut self, prefix: &str, attribute: Attribute) -> Result<Label, ProfileError> {
        let strings = &self.push.dictionary.strings;
        let key = strings.get(attribute.key);
        check_label_name(prefix.len() + key.len())?;
        if let AttributeValue::Text(id) | AttributeValue::Json(id) = attribute.value {
            check_label_value(strings.get(id).len())?;
        }
        let value = attribute.value.render(strings);
        let label =
            if prefix.is_empty() { Label::new(key, value) } else { Label::new(&format!("{prefix}{key}"), value) };
        self.count_labels(std::slice::from_ref(&label))?;
        Ok(label)
    }

    /// Adds the size of these labels to the total of the push. Labels of several profiles count several times.
    fn count_labels(&mut self, labels: &[Label]) -> Result<(), ProfileError> {
        let bytes = |label: &Label| LABEL_BYTES + label.name.len() + label.value.len();
        self.label_bytes += labels.iter().map(bytes).sum::<usize>();
        if self.label_bytes > limits::PUSH_LABEL_BYTES_MAX {
            let count_max = limits::PUSH_LABEL_BYTES_MAX;
            return Err(ProfileError::TooMany { what: "bytes of labels in one request", count_max });
        }
        Ok(())
    }

    /// Adds an attribute set and returns its ID. Among attributes with equal keys, keeps the first.
    pub(crate) fn attribute_set(&mut self, attributes: Vec<Attribute>) -> Result<u32, ProfileError> {
        if attributes.len() > limits::SAMPLE_ATTRIBUTES_MAX {
            let count_max = limits::SAMPLE_ATTRIBUTES_MAX;
            return Err(ProfileError::TooMany { what: "attributes of one sample", count_max });
        }
        self.attributes += attributes.len();
        if self.attributes > limits::PUSH_ATTRIBUTES_MAX {
            let count_max = limits::PUSH_ATTRIBUTES_MAX;
            return Err(ProfileError::TooMany { what: "attributes in one request", count_max });
        }
        Ok(self.push.dictionary.intern_attributes(attributes))
    }

    pub(crate) fn location(&mut self, location: Location) -> Result<u32, ProfileError> {
        if let Location::Lines { lines, .. } = &location {
            self.lines += lines.len();
            if self.lines > limits::PUSH_LINES_MAX {
                let count_max = limits::PUSH_LINES_MAX;
                return Err(ProfileError::TooMany { what: "lines of locations in one request", count_max });
            }
        }
        Ok(self.push.dictionary.intern_location(location))
    }

    /// Checks that a time, in nanoseconds since 1970, is within the limits.
    pub(crate) fn time(&self, time_ns: u64) -> Result<i64, ProfileError> {
        let time = i64::try_from(time_ns).map_err(|_beyond_2262| ProfileError::Ahead { time_ns })?;
        if time < limits::TIME_MIN_NS {
            return Err(ProfileError::TooOld { time_ns: time });
        }
        if time > self.now_ns.saturating_add(limits::TIME_AHEAD_MAX_NS) {
            return Err(ProfileError::Ahead { time_ns });
        }
        Ok(time)
    }

    /// Adds a profile and defines its stacks (see [`Builder::define`]). Drops samples of value 0. If the newest samples
    /// of a gauge are all 0, keeps one of them: otherwise an older sample would be the gauge's last value. Copies
    /// borrowed labels only if the profile has samples and the labels are within the limit.
    pub(crate) fn profile(
        &mut self,
        profile_type: &ProfileType,
        labels: Cow<'_, [Label]>,
        more_labels: &[Label],
        samples: Samples,
        plan: &mut DefinitionPlan<'_>,
        locations_of: impl FnMut(&mut Self, u32, usize, &mut Vec<u32>) -> Result<(), ProfileError>,
    ) -> Result<(), ProfileError> {
        self.check_signs(profile_type, &samples)?;
        let samples = without_zeros(samples, profile_type.is_gauge());
        if samples.is_empty() {
            self.accepted += 1;
            return Ok(());
        }
        self.samples += samples.len();
        if self.samples > limits::PUSH_SAMPLES_MAX {
            return Err(ProfileError::TooMany { what: "samples in one request", count_max: limits::PUSH_SAMPLES_MAX });
        }
        self.count_labels(&labels)?;
        self.count_labels(more_labels)?;
        let mut labels = labels.into_owned();
        labels.extend_from_slice(more_labels);
        labels.retain(|label| label.name != PROFILE_TYPE_LABEL && label.name != "__name__");
        labels.push(Label::new(PROFILE_TYPE_LABEL, profile_type.to_string()));
        let labels = LabelSet::new(labels);
        debug_assert!(!labels.get(SERVICE_NAME_LABEL).is_empty());
        check_labels(&labels)?;
        self.define(&labels, &samples, plan, locations_of)?;
        self.push.profiles.push(Profile { labels, samples });
        self.accepted += 1;
        Ok(())
    }

    /// Refuses a profile with negative values, unless it is a gauge. A gauge gets a warning: it may be the difference
    /// of two heap profiles.
    fn check_signs(&mut self, profile_type: &ProfileType, samples: &Samples) -> Result<(), ProfileError> {
        let Some(&value) = samples.values.iter().find(|&&value| value < 0) else { return Ok(()) };
        let sample_type = &profile_type.sample().kind;
        if !profile_type.is_gauge() {
            return Err(ProfileError::Negative { sample_type: sample_type.clone(), value });
        }
        self.warn(format!(
            "{sample_type} has negative values, so this profile is the difference of two (as of \
             /debug/pprof/heap?seconds=N): it is stored as a change, not as what is in use"
        ));
        Ok(())
    }

    /// Counts a refused profile.
    pub(crate) fn reject(&mut self, error: &ProfileError) {
        self.push.rejected += 1;
        self.warn(error.to_string());
    }

    pub(crate) fn warn(&mut self, warning: String) {
        if self.push.warnings.contains(&warning) {
            return;
        }
        if self.push.warnings.len() < WARNINGS_MAX {
            self.push.warnings.push(warning);
        } else {
            self.warnings_suppressed += 1;
        }
    }

    /// Returns the finished push.
    ///
    /// # Errors
    /// Returns [`IngestError::NothingAccepted`] if there were profiles, and all of them were refused.
    pub(crate) fn finish(mut self) -> Result<Push, IngestError> {
        if self.warnings_suppressed > 0 {
            self.push.warnings.push(format!("and {} more", self.warnings_suppressed));
        }
        if self.accepted == 0 && self.push.rejected > 0 {
            let reasons = self.push.warnings.join("; ");
            return Err(IngestError::NothingAccepted { rejected: self.push.rejected, reasons });
        }
        Ok(self.push)
    }
}

fn check_labels(labels: &LabelSet) -> Result<(), ProfileError> {
    if labels.len() > limits::SERIES_LABELS_MAX {
        return Err(ProfileError::TooMany { what: "labels", count_max: limits::SERIES_LABELS_MAX });
    }
    for label in labels.iter() {
        check_label_name(label.name.len())?;
        check_label_value(label.value.len())?;
    }
    Ok(())
}

fn check_label_name(bytes: usize) -> Result<(), ProfileError> {
    let count_max = limits::LABEL_NAME_BYTES_MAX;
    if bytes > count_max { Err(ProfileError::TooMany { what: "bytes in a label's name", count_max }) } else { Ok(()) }
}

/// Checks the length of a label's value, or of a part of the value.
pub(crate) fn check_label_value(bytes: usize) -> Result<(), ProfileError> {
    let count_max = limits::LABEL_VALUE_BYTES_MAX;
    if bytes > count_max { Err(ProfileError::TooMany { what: "bytes in a label's value", count_max }) } else { Ok(()) }
}

fn without_zeros(samples: Samples, is_gauge: bool) -> Samples {
    if samples.values.iter().all(|&value| value != 0) {
        return samples;
    }
    let mut kept = Samples::default();
    for i in (0..samples.len()).filter(|&i| samples.values[i] != 0) {
        kept.push(samples.times_ns[i], samples.pairs[i], samples.values[i], samples.attribute_sets[i]);
    }
    let newest = (0..samples.len()).max_by_key(|&i| samples.times_ns[i]);
    if let Some(i) = newest.filter(|_| is_gauge)
        && kept.times_ns.iter().max() < Some(&samples.times_ns[i])
    {
        kept.push(samples.times_ns[i], samples.pairs[i], 0, samples.attribute_sets[i]);
    }
    kept
}

/// Checks the length of a build ID before the ID is parsed, because any number of mappings may refer to one long
/// string.
pub(crate) fn check_build_id(bytes: usize) -> Result<(), ProfileError> {
    let count_max = limits::BUILD_ID_BYTES_MAX;
    if bytes > count_max { Err(ProfileError::TooMany { what: "bytes in a build ID", count_max }) } else { Ok(()) }
}

/// Converts bytes to text. Replaces bytes that are not UTF-8, and truncates a text that is too long.
pub(crate) fn text_of(bytes: &[u8]) -> Cow<'_, str> {
    let bytes = bytes.get(..limits::STRING_BYTES_MAX).unwrap_or(bytes);
    // Nearly all bytes are UTF-8, and this check is faster than the search for bytes to replace.
    std::str::from_utf8(bytes).map_or_else(|_replaced| String::from_utf8_lossy(bytes), Cow::Borrowed)
}

#[cfg(test)]
mod tests {
    use proto::{Function, Line};

    use super::*;

    // An empty line takes two bytes in a request. Requests with many locations of empty lines once took gigabytes of
    // memory.
    #[test]
    fn the_lines_of_all_locations_together_are_limited() {
        let mut builder = Builder::new(0);
        let function = builder.dictionary().intern_function(Function::default());
        let lines = || vec![Line { function, line: 0, column: 0 }; limits::LOCATION_LINES_MAX].into();
        let mut add = || builder.location(Location::Lines { mapping_file: 0, frame_type: 0, lines: lines() });
        for _ in 0..limits::PUSH_LINES_MAX / limits::LOCATION_LINES_MAX {
            add().unwrap();
        }
        assert!(matches!(add(), Err(ProfileError::TooMany { .. })));
    }
}
