//! Folded stacks for flame graph tools: lines `process;root;...;leaf nanoseconds`, in alphabetical order.
//!
//! All values are of one kind: waiting time if waits were recorded, else CPU time.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use proto::folded::written;

use super::names::unnamed_name;
use super::{NamedRecording, Recording, text};

/// Largest size of all distinct lines together, in bytes. No flame graph tool shows more.
const BYTES_MAX: usize = 1 << 30;

impl NamedRecording<'_> {
    /// Writes folded stacks of waiting time if waits were recorded, else of CPU time.
    ///
    /// Returns `None` if the folded stacks would take more than 1 GiB.
    #[must_use]
    pub fn folded(&self) -> Option<Vec<u8>> {
        let mut sums: BTreeMap<String, u128> = BTreeMap::new();
        let mut bytes = 0;
        for (resource, profile) in self.recording.profiles() {
            let is_of_waits = Recording::is_of_waits(profile);
            if is_of_waits != self.recording.off_cpu {
                continue;
            }
            let attributes = resource.resource.iter().flat_map(|resource| &resource.attributes);
            let mut named = attributes.filter(|attribute| attribute.key == "process.executable.name");
            let process = written(named.next().and_then(|name| text(name.value.as_ref())).unwrap_or("[unknown]"));
            for sample in &profile.samples {
                let line = self.folded_stack(&process, sample.stack_index);
                let waited = sample.values.iter().map(|value| u128::from(value.unsigned_abs())).sum();
                let ran = sample.timestamps_unix_nano.len() as u128 * u128::from(profile.period.unsigned_abs());
                bytes += if sums.contains_key(&line) { 0 } else { line.len() };
                if BYTES_MAX < bytes {
                    return None;
                }
                *sums.entry(line).or_default() += if is_of_waits { waited } else { ran };
            }
        }
        let mut out = String::new();
        for (line, sum) in sums {
            // Writing to a String cannot fail.
            let _infallible = writeln!(out, "{line} {sum}");
        }
        Some(out.into_bytes())
    }

    fn folded_stack(&self, process: &str, stack: i32) -> String {
        let mut names = Vec::new();
        for location in self.stack(stack) {
            let lines = self.lines(location);
            if lines.is_empty() {
                names.push(self.unnamed_location(location));
            }
            names.extend(lines.iter().map(|line| written(line.function)));
        }
        names.push(process.to_owned());
        names.reverse();
        names.join(";")
    }

    /// Returns the text for an address without a name, as in the router: `binary+0xaddress`.
    fn unnamed_location(&self, index: usize) -> String {
        let Some(location) = self.dictionary.location_table.get(index) else { return "[unknown]".to_owned() };
        let path = self.file(location).map_or("", |file| file.path);
        written(&unnamed_name(path, location.address))
    }
}
