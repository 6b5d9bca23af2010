//! All services of a mix, and the dictionary of locations that they share.

use std::path::Path;

use anyhow::Context as _;
use proto::dictionary::stack_hash;
use proto::{Dictionary, Location, StackHash};
use serde_json::{Value, json};

use super::donor::Donor;
use super::mix::{Mix, SERVICES};
use super::payload;
use super::service::Service;
use crate::corpus::Recording;

/// Services of a mix, and the dictionary that these services share.
#[derive(Debug)]
pub(crate) struct Corpus {
    pub(crate) mix: Mix,
    /// Strings, functions, mappings and locations of all recordings and donors.
    pub(crate) dictionary: Dictionary,
    /// Hashes of the locations. The index of a hash is the location's ID in the dictionary.
    pub(crate) hashes: Vec<u128>,
    is_kernel: Vec<bool>,
    pub(crate) services: Vec<Service>,
}

/// Source of complete stacks for a program whose stacks the agent could not unwind.
struct Fill {
    program: &'static str,
    /// Payload file in `shared/data`, and a frame type if it is an OTLP file. Only stacks with a frame of this type are
    /// used.
    payload: (&'static str, Option<&'static str>),
    /// Recording to use if the folder `shared/data` does not exist.
    recording: &'static str,
    /// Index of the first stack that is taken from the donor. Two programs that share a donor take alternate stacks.
    offset: usize,
    /// Distance to the index of the next stack that is taken.
    step: usize,
}

const OTEL: &str = "otlp/otel_agent_layout_1_11_4.pb";
const LARGE: &str = "pprof/large_cpp.cpu";
const FILLS: [Fill; 4] = [
    Fill { program: "cxx-build", payload: (LARGE, None), recording: "go-bench", offset: 0, step: 2 },
    Fill { program: "rust-build", payload: (LARGE, None), recording: "go-bench", offset: 1, step: 2 },
    Fill { program: "python-service", payload: (OTEL, Some("cpython")), recording: "go-service", offset: 0, step: 1 },
    Fill { program: "perl-service", payload: (OTEL, Some("perl")), recording: "java-service", offset: 0, step: 1 },
];

impl Corpus {
    /// Reads the recordings of a mix, and the payloads in `shared/data` if that folder exists.
    ///
    /// # Errors
    /// A file is missing or damaged.
    pub(crate) fn load(mix: Mix) -> anyhow::Result<Self> {
        Self::load_with(mix, payload::folder().as_deref())
    }

    /// Loads a mix like [`Corpus::load`], but with the payloads in the folder `payloads`. With `None`, no payload is
    /// used.
    pub(crate) fn load_with(mix: Mix, payloads: Option<&Path>) -> anyhow::Result<Self> {
        let mut dictionary = Dictionary::default();
        let mut services = Vec::new();
        for (number, program) in mix.programs().into_iter().enumerate() {
            let fill = FILLS.iter().find(|fill| fill.program == program);
            let donor = fill.map(|fill| fill.donor(payloads)).transpose()?;
            let donor = donor.as_ref().zip(fill).map(|(donor, fill)| (donor, fill.offset, fill.step));
            let pods = (0..mix.pods()).filter(|pod| pod % SERVICES == number).count();
            services.push(Service::new(&read(program)?, donor, &mut dictionary, pods, mix.service_stacks())?);
        }
        let hashes = (0..dictionary.locations.len() as u32).map(|id| dictionary.location_hash(id)).collect();
        let is_kernel = |location: &Location| {
            let (Location::Address { frame_type, .. } | Location::Lines { frame_type, .. }) = location;
            dictionary.strings.get(*frame_type) == "kernel"
        };
        let is_kernel = dictionary.locations.iter().map(is_kernel).collect();
        let mut corpus = Self { mix, dictionary, hashes, is_kernel, services: Vec::new() };
        services.iter_mut().for_each(|service| service.hash_stacks(|stack| corpus.stack_hashes(stack)));
        corpus.services = services;
        Ok(corpus)
    }

    /// Stops the growth of the number of stacks. From now on, all samples have stacks from the first 15 minutes.
    pub(crate) fn stop_growth(&mut self) {
        self.services.iter_mut().for_each(|service| service.growth.exponent = 0.0);
    }

    /// Returns the hashes of the user part and the kernel part of a stack, which is given leaf first.
    fn stack_hashes(&self, stack: &[u32]) -> (StackHash, StackHash) {
        let kernel = self.kernel_frames(stack);
        let hash = |part: &[u32]| {
            let hashes: Vec<u128> = part.iter().map(|&location| self.hashes[location as usize]).collect();
            stack_hash(&hashes)
        };
        (hash(&stack[kernel..]), hash(&stack[..kernel]))
    }

    /// Returns the number of kernel locations at the leaf end of a stack.
    pub(crate) fn kernel_frames(&self, leaf_first: &[u32]) -> usize {
        leaf_first.iter().take_while(|&&location| self.is_kernel[location as usize]).count()
    }

    /// Describes the corpus for the report.
    pub(crate) fn describe(&self) -> Value {
        json!({
            "mix": format!("{:?}", self.mix),
            "locations": self.dictionary.locations.len(),
            "services": self.services.iter().map(Service::describe).collect::<Vec<_>>(),
        })
    }
}

impl Fill {
    fn donor(&self, payloads: Option<&Path>) -> anyhow::Result<Donor> {
        let Some(folder) = payloads else { return Ok(Donor::of_recording(&read(self.recording)?, self.program)) };
        let (file, frame_type) = self.payload;
        let path = folder.join(file);
        let donor = match frame_type {
            Some(frame_type) => payload::otlp(&path, frame_type),
            None => payload::pprof(&path),
        };
        donor.with_context(|| path.display().to_string())
    }
}

fn read(program: &str) -> anyhow::Result<Recording> {
    Recording::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("corpora").join(format!("{program}.zst")))
}
