//! From export requests of the agent to a [`Recording`] of the processes of one service.

use std::collections::HashMap;

use anyhow::{Context as _, ensure};
use proto::otlp::collector::profiles::v1development::ExportProfilesServiceRequest;
use proto::otlp::profiles::v1development::Sample as OtlpSample;

use super::tables::{FrameTables, Table, View, text};
use super::{Recording, Sample, Thread};

/// Collects what one program does.
#[derive(Debug)]
pub(crate) struct Builder {
    program: String,
    period_ns: u64,
    tables: FrameTables,
    threads: Table<Thread>,
    samples: Vec<Sample>,
}

impl Builder {
    /// Of the processes whose `service.name` is `program`.
    pub(crate) fn new(program: &str) -> Self {
        Self {
            program: program.to_owned(),
            period_ns: 0,
            tables: FrameTables::new(),
            threads: Table::new(),
            samples: Vec::new(),
        }
    }

    /// Adds what a request has of the program.
    ///
    /// # Errors
    /// Where an index of the request points nowhere, or an attribute is missing that the agent sends.
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

    /// What was recorded.
    ///
    /// # Errors
    /// Where there is nothing.
    pub(crate) fn finish(self) -> anyhow::Result<Recording> {
        let Self { program, period_ns, tables, threads, mut samples } = self;
        ensure!(!samples.is_empty(), "no sample of {program}: does the agent run as root?");
        samples.sort_by_key(|sample| (sample.time_ns, sample.cpu));
        let start_ns = samples[0].time_ns;
        samples.iter_mut().for_each(|sample| sample.time_ns -= start_ns);
        Ok(Recording { program, period_ns, frames: tables.finish(), threads: threads.entries, samples })
    }
}

