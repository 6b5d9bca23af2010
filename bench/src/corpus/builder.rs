//! Converts the agent's export requests to a [`Recording`] of one service's processes.

use std::collections::HashMap;

use anyhow::{Context as _, ensure};
use proto::otlp::collector::profiles::v1development::ExportProfilesServiceRequest;
use proto::otlp::profiles::v1development::Sample as OtlpSample;

use super::recording::{Recording, Sample, Thread};
use super::tables::{FrameTables, Table, View, text};

/// Collects the samples of one program from export requests.
#[derive(Debug)]
pub(crate) struct Builder {
    program: String,
    period_ns: u64,
    tables: FrameTables,
    threads: Table<Thread>,
    samples: Vec<Sample>,
}

impl Builder {
    /// Returns a builder for the processes whose `service.name` is `program`.
    pub(crate) fn new(program: &str) -> Self {
        Self {
            program: program.to_owned(),
            period_ns: 0,
            tables: FrameTables::new(),
            threads: Table::new(),
            samples: Vec::new(),
        }
    }

    /// Adds those samples of a request that belong to the program.
    ///
    /// # Errors
    /// An index in the request is invalid, or an attribute that the agent always sends is missing.
    pub(crate) fn add(&mut self, request: &ExportProfilesServiceRequest) -> anyhow::Result<()> {
        let dictionary = request.dictionary.as_ref().context("no dictionary")?;
        let mut view = View::new(dictionary);
        for resource_profiles in &request.resource_profiles {
            let resource: HashMap<&str, String> = resource_profiles
                .resource
                .iter()
                .flat_map(|resource| &resource.attributes)
                .map(|attribute| (attribute.key.as_str(), text(attribute.value.as_ref())))
                .collect();
            if resource.get("service.name") != Some(&self.program) {
                continue;
            }
            let pid: u32 = resource.get("process.pid").context("no process.pid")?.parse()?;
            let executable = resource.get("process.executable.name").cloned().unwrap_or_default();
            for profile in resource_profiles.scope_profiles.iter().flat_map(|scope| &scope.profiles) {
                self.period_ns = u64::try_from(profile.period)?;
                for sample in &profile.samples {
                    self.add_sample(&mut view, pid, &executable, sample)?;
                }
            }
        }
        Ok(())
    }

    fn add_sample(
        &mut self,
        view: &mut View<'_>,
        pid: u32,
        executable: &str,
        sample: &OtlpSample,
    ) -> anyhow::Result<()> {
        let attributes = view.attributes(&sample.attribute_indices)?;
        let attribute = |key: &str| attributes.get(key).with_context(|| format!("a sample has no {key}"));
        let name = attribute("thread.name")?.clone();
        let thread = Thread { pid, tid: attribute("thread.id")?.parse()?, name, executable: executable.to_owned() };
        let cpu: u32 = attribute("cpu.logical_number")?.parse()?;
        let thread = self.threads.id(thread)?;
        let stack = view.stack(&mut self.tables, sample.stack_index)?;
        let times = sample.timestamps_unix_nano.iter();
        self.samples.extend(times.map(|&time_ns| Sample { time_ns, cpu, thread, stack }));
        Ok(())
    }

    /// Returns the finished recording.
    ///
    /// # Errors
    /// Nothing was recorded.
    pub(crate) fn finish(self) -> anyhow::Result<Recording> {
        let Self { program, period_ns, tables, threads, mut samples } = self;
        ensure!(!samples.is_empty(), "no sample of {program}: does the agent run as root?");
        samples.sort_by_key(|sample| (sample.time_ns, sample.cpu));
        let start_ns = samples[0].time_ns;
        samples.iter_mut().for_each(|sample| sample.time_ns -= start_ns);
        Ok(Recording { program, period_ns, frames: tables.finish(), threads: threads.entries, samples })
    }
}

#[cfg(test)]
mod tests {
    use proto::otlp::common::v1::{AnyValue, KeyValue, any_value::Value};
    use proto::otlp::profiles::v1development::{
        Function, KeyValueAndUnit, Line, Location, Mapping, Profile, ProfilesDictionary, ResourceProfiles,
        ScopeProfiles, Stack,
    };
    use proto::otlp::resource::v1::Resource;

    use super::*;

    fn text(text: &str) -> Option<AnyValue> {
        Some(AnyValue { value: Some(Value::StringValue(text.to_owned())) })
    }

    fn number(number: i64) -> Option<AnyValue> {
        Some(AnyValue { value: Some(Value::IntValue(number)) })
    }

    /// Returns a process of a service. It has one sample at each of these times, all with the same stack: a kernel
    /// frame that is called from an address.
    fn resource(service: &str, times: &[u64]) -> ResourceProfiles {
        let label = |key: &str, value| KeyValue { key: key.to_owned(), value, key_strindex: 0 };
        let attributes = vec![label("service.name", text(service)), label("process.pid", number(7))];
        let sample = OtlpSample {
            stack_index: 1,
            attribute_indices: vec![1, 2, 3],
            timestamps_unix_nano: times.to_vec(),
            ..OtlpSample::default()
        };
        let profile = Profile { samples: vec![sample], period: 1000, ..Profile::default() };
        ResourceProfiles {
            resource: Some(Resource { attributes, ..Resource::default() }),
            scope_profiles: vec![ScopeProfiles { profiles: vec![profile], ..ScopeProfiles::default() }],
            ..ResourceProfiles::default()
        }
    }

    fn request(resource_profiles: Vec<ResourceProfiles>) -> ExportProfilesServiceRequest {
        let strings = ["", "thread.name", "thread.id", "cpu.logical_number", "profile.frame.type", "/bin/p", "do_read"];
        let strings = strings.iter().chain(&["process.executable.build_id.gnu"]).map(|text| (*text).to_owned());
        let attribute = |key_strindex, value| KeyValueAndUnit { key_strindex, value, ..KeyValueAndUnit::default() };
        let location = |mapping_index, address, lines, frame_type| Location {
            mapping_index,
            address,
            lines,
            attribute_indices: vec![frame_type],
        };
        let dictionary = ProfilesDictionary {
            mapping_table: vec![
                Mapping::default(),
                Mapping { filename_strindex: 5, attribute_indices: vec![6], ..Mapping::default() },
            ],
            location_table: vec![
                Location::default(),
                location(1, 0x40, vec![], 4),
                location(0, 0xffff, vec![Line { function_index: 1, line: 3, column: 0 }], 5),
            ],
            function_table: vec![Function::default(), Function { name_strindex: 6, ..Function::default() }],
            string_table: strings.collect(),
            attribute_table: vec![
                KeyValueAndUnit::default(),
                attribute(1, text("main")),
                attribute(2, number(8)),
                attribute(3, number(1)),
                attribute(4, text("native")),
                attribute(4, text("kernel")),
                attribute(7, text("ab12")),
            ],
            stack_table: vec![Stack::default(), Stack { location_indices: vec![2, 1] }],
            ..ProfilesDictionary::default()
        };
        ExportProfilesServiceRequest { resource_profiles, dictionary: Some(dictionary) }
    }

    #[test]
    fn samples_of_the_program_are_kept_in_the_order_of_time_and_no_others() {
        let mut builder = Builder::new("p");
        builder.add(&request(vec![resource("p", &[5_000, 3_000]), resource("other", &[1_000])])).unwrap();
        builder.add(&request(vec![resource("p", &[4_000])])).unwrap();
        let recording = builder.finish().unwrap();
        let times: Vec<u64> = recording.samples.iter().map(|sample| sample.time_ns).collect();
        assert_eq!((times, recording.period_ns), (vec![0, 1_000, 2_000], 1_000));
        let frames = &recording.frames;
        assert!(recording.samples.iter().all(|sample| (sample.cpu, sample.thread, sample.stack) == (1, 0, 2)));
        let thread = &recording.threads[0];
        assert_eq!((thread.pid, thread.tid, thread.name.as_str()), (7, 8, "main"));
        let told: Vec<_> = frames.leaf_first(2).map(|id| frames.locations[id as usize].clone()).collect();
        assert_eq!((told[0].frame_type.as_str(), told[0].address, told[0].lines.len()), ("kernel", 0, 1));
        assert_eq!((told[1].frame_type.as_str(), told[1].address), ("native", 0x40));
        assert_eq!(frames.mappings[told[1].mapping as usize].build_id, "ab12");
    }

    #[test]
    fn a_program_that_was_not_seen_and_an_index_that_dangles_are_errors() {
        assert!(Builder::new("p").finish().is_err());
        let mut broken = request(vec![resource("p", &[1_000])]);
        broken.dictionary.as_mut().unwrap().stack_table[1].location_indices[0] = 9;
        assert!(Builder::new("p").add(&broken).is_err());
    }
}
