//! Checks of one request against these rules of OTLP profiles:
//!
//! - Dictionary tables begin with the zero value, and hold no duplicates and no orphans, which are entries that nothing
//!   refers to.
//! - Indices are in range, and link ids and mapping ranges are well formed.
//! - Attribute keys are unique within each resource, profile, sample, location and mapping.
//! - Either all samples of a profile have values, or none has; the same holds for times. No two samples have the same
//!   stack, attributes and link. Times are within the profile's interval.

use std::collections::{BTreeSet, HashSet};
use std::fmt::Debug;

use proto::otlp::collector::profiles::v1development::ExportProfilesServiceRequest;
use proto::otlp::profiles::v1development::{
    Function, KeyValueAndUnit, Location, Mapping, Profile, ProfilesDictionary, Stack,
};

/// Returns a description of every violation of the rules in `request`; empty if the request conforms.
#[must_use]
pub fn violations(request: &ExportProfilesServiceRequest) -> Vec<String> {
    let Some(dictionary) = &request.dictionary else { return vec!["no dictionary".to_owned()] };
    let mut checker = Checker { dictionary, found: Vec::new(), used: Used::default() };
    checker.check_zero_values();
    checker.check_tables();
    for resource_profiles in &request.resource_profiles {
        let keys: Vec<_> = resource_profiles.resource.iter().flat_map(|it| &it.attributes).map(|it| &it.key).collect();
        checker.check_unique("resource attribute key", keys);
        for profile in resource_profiles.scope_profiles.iter().flat_map(|scope| &scope.profiles) {
            checker.check_profile(profile);
        }
    }
    checker.check_orphans();
    checker.found
}

#[derive(Default)]
struct Used {
    mappings: BTreeSet<i32>,
    locations: BTreeSet<i32>,
    functions: BTreeSet<i32>,
    links: BTreeSet<i32>,
    strings: BTreeSet<i32>,
    attributes: BTreeSet<i32>,
    stacks: BTreeSet<i32>,
}

struct Checker<'a> {
    dictionary: &'a ProfilesDictionary,
    found: Vec<String>,
    used: Used,
}

impl Checker<'_> {
    fn fail(&mut self, text: String) {
        self.found.push(text);
    }

    fn check_zero_values(&mut self) {
        let it = self.dictionary;
        let zero_link = it.link_table.first().is_some_and(|link| {
            let is_zero = |bytes: &[u8]| bytes.iter().all(|byte| *byte == 0);
            let lengths = (link.trace_id.len(), link.span_id.len());
            is_zero(&link.trace_id) && is_zero(&link.span_id) && (lengths == (0, 0) || lengths == (16, 8))
        });
        let first = [
            ("mapping", it.mapping_table.first() == Some(&Mapping::default())),
            ("location", it.location_table.first() == Some(&Location::default())),
            ("function", it.function_table.first() == Some(&Function::default())),
            ("link", zero_link),
            ("string", it.string_table.first().is_some_and(String::is_empty)),
            ("attribute", it.attribute_table.first() == Some(&KeyValueAndUnit::default())),
            ("stack", it.stack_table.first() == Some(&Stack::default())),
        ];
        for (table, _) in first.into_iter().filter(|(_, is_zero)| !is_zero) {
            self.fail(format!("{table}_table does not begin with the zero value"));
        }
    }

    fn check_tables(&mut self) {
        let it = self.dictionary;
        self.check_unique("mapping", it.mapping_table.iter().map(|it| format!("{it:?}")).collect());
        self.check_unique("location", it.location_table.iter().map(|it| format!("{it:?}")).collect());
        self.check_unique("function", it.function_table.iter().map(|it| format!("{it:?}")).collect());
        self.check_unique("string", it.string_table.iter().collect());
        self.check_unique("attribute", it.attribute_table.iter().map(|it| format!("{it:?}")).collect());
        self.check_unique("stack", it.stack_table.iter().map(|it| it.location_indices.clone()).collect());
        for mapping in &it.mapping_table {
            let start = mapping.memory_start;
            let limit = mapping.memory_limit;
            if limit <= start && (start, limit) != (0, 0) {
                self.fail(format!("mapping from {start:x} to {limit:x}"));
            }
            self.string(mapping.filename_strindex);
            self.attributes(&mapping.attribute_indices);
        }
        for location in &it.location_table {
            index(&mut self.found, "mapping", it.mapping_table.len(), location.mapping_index, &mut self.used.mappings);
            for line in &location.lines {
                index(
                    &mut self.found,
                    "function",
                    it.function_table.len(),
                    line.function_index,
                    &mut self.used.functions,
                );
            }
            self.attributes(&location.attribute_indices);
        }
        for function in &it.function_table {
            for string in [function.name_strindex, function.system_name_strindex, function.filename_strindex] {
                self.string(string);
            }
        }
        for attribute in &it.attribute_table {
            self.string(attribute.key_strindex);
            self.string(attribute.unit_strindex);
        }
        for stack in &it.stack_table {
            for location in &stack.location_indices {
                index(&mut self.found, "location", it.location_table.len(), *location, &mut self.used.locations);
                if *location == 0 {
                    self.fail("a stack with the unset location".to_owned());
                }
            }
        }
    }

    fn check_profile(&mut self, profile: &Profile) {
        for value_type in [&profile.sample_type, &profile.period_type] {
            match value_type {
                Some(value_type) => {
                    self.string(value_type.type_strindex);
                    self.string(value_type.unit_strindex);
                }
                None => self.fail("a profile without sample type or period type".to_owned()),
            }
        }
        self.attributes(&profile.attribute_indices);
        let mut identities = Vec::new();
        let mut shapes = HashSet::new();
        for sample in &profile.samples {
            let stacks = self.dictionary.stack_table.len();
            index(&mut self.found, "stack", stacks, sample.stack_index, &mut self.used.stacks);
            index(&mut self.found, "link", self.dictionary.link_table.len(), sample.link_index, &mut self.used.links);
            self.attributes(&sample.attribute_indices);
            let attributes: BTreeSet<_> = sample.attribute_indices.iter().copied().collect();
            identities.push((sample.stack_index, attributes, sample.link_index));
            let values = sample.values.len();
            let times = sample.timestamps_unix_nano.len();
            shapes.insert((values != 0, times != 0));
            if (values, times) == (0, 0)
                || (values != 0 && times != 0 && values != times)
                || (times == 0 && values != 1)
            {
                self.fail(format!("a sample with {values} values and {times} times"));
            }
            let end = profile.time_unix_nano + profile.duration_nano;
            for time in sample.timestamps_unix_nano.iter().filter(|time| !(profile.time_unix_nano..end).contains(time))
            {
                self.fail(format!("time {time} outside {}..{end}", profile.time_unix_nano));
            }
        }
        if 1 < shapes.len() {
            self.fail(format!("samples of {} shapes in one profile", shapes.len()));
        }
        self.check_unique("sample identity", identities);
    }

    fn check_orphans(&mut self) {
        let it = self.dictionary;
        let used = std::mem::take(&mut self.used);
        let tables = [
            ("mapping", it.mapping_table.len(), used.mappings),
            ("location", it.location_table.len(), used.locations),
            ("function", it.function_table.len(), used.functions),
            ("link", it.link_table.len(), used.links),
            ("string", it.string_table.len(), used.strings),
            ("attribute", it.attribute_table.len(), used.attributes),
            ("stack", it.stack_table.len(), used.stacks),
        ];
        for (table, length, used) in tables {
            let orphans = (1..length).filter(|index| !used.contains(&i32::try_from(*index).unwrap())).count();
            if orphans != 0 {
                self.fail(format!("{orphans} orphans in {table}_table"));
            }
        }
    }

    fn string(&mut self, string: i32) {
        index(&mut self.found, "string", self.dictionary.string_table.len(), string, &mut self.used.strings);
    }

    fn attributes(&mut self, indices: &[i32]) {
        let mut keys = Vec::new();
        for attribute in indices {
            let attributes = self.dictionary.attribute_table.len();
            index(&mut self.found, "attribute", attributes, *attribute, &mut self.used.attributes);
            let entry = usize::try_from(*attribute).ok().and_then(|index| self.dictionary.attribute_table.get(index));
            keys.extend(entry.map(|entry| entry.key_strindex));
        }
        self.check_unique("attribute key", keys);
    }

    fn check_unique<T: Ord + Debug>(&mut self, what: &str, mut items: Vec<T>) {
        items.sort();
        for pair in items.windows(2).filter(|pair| pair[0] == pair[1]) {
            self.found.push(format!("{what} twice: {:?}", pair[0]));
        }
    }
}

fn index(found: &mut Vec<String>, table: &str, length: usize, index: i32, used: &mut BTreeSet<i32>) {
    used.insert(index);
    if usize::try_from(index).map_or(true, |index| length <= index) {
        found.push(format!("{table} {index} of {length}"));
    }
}
