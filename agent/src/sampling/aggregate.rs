//! The samples of one interval. Each distinct stack and each distinct sample identity is kept once.
//!
//! A sample identity is (process, stack, labels, link, thread, thread name, CPU). Each sample adds 12 bytes: the index
//! of its identity and its time. A sample of a wait also has its duration. To locate a stack means to find the
//! locations of its raw addresses. This is done once per interval for each hash of raw addresses. It is repeated only
//! if a later attempt may have a better result.
//!
//! Invariant: two stacks with the same locations have the same [`StackId`], whatever their raw addresses were.

use std::collections::HashMap;
use std::sync::Arc;

use ebpf::{Link, Sample};
use foldhash::fast::RandomState;
use indexmap::IndexSet;
use xxhash_rust::xxh3::xxh3_128_with_seed;

use crate::names::location::LocationId;
use crate::names::locator::Locator;
use crate::process::key::ProcessKey;
use crate::process::resource::Resource;
use crate::sampling::label::{self, Labels};

/// Largest number of locations of all stacks together, which take 2 MB. When it is reached, the interval ends early.
const LOCATIONS_MAX: usize = 1 << 19;
/// Largest number of samples, which take 12 MB. When it is reached, the interval ends early.
const SAMPLES_MAX: usize = 1 << 20;
/// Largest size of all labels, in bytes. When it is reached, the interval ends early.
const LABELS_BYTES_MAX: usize = 16 << 20;

/// Largest number of distinct links, which take 3 MB. When it is reached, the interval ends early.
const LINKS_MAX: usize = 1 << 16;

/// Index of a stack in an [`Aggregate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct StackId(pub(crate) u32);

/// Index of a set of labels in an [`Aggregate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct LabelsId(u32);

/// Number of a link in an [`Aggregate`]: 0 stands for none, and the first link has number 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct LinkId(u32);

/// Properties of a sample except its time. `resource` is the first field, so that sorting puts the samples of a process
/// together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Identity {
    /// Index into [`Aggregate::resources`].
    pub(crate) resource: u32,
    pub(crate) stack: StackId,
    pub(crate) labels: LabelsId,
    pub(crate) link: LinkId,
    pub(crate) tid: u32,
    pub(crate) cpu: u32,
    pub(crate) comm: [u8; 16],
}

/// A sample whose locations were found before.
#[derive(Clone, Debug)]
pub(crate) struct LocatedSample {
    pub(crate) key: ProcessKey,
    /// Locations of the stack, leaf first.
    pub(crate) stack: Box<[LocationId]>,
    pub(crate) labels: Labels,
    pub(crate) link: Option<Link>,
    pub(crate) tid: u32,
    pub(crate) cpu: u32,
    pub(crate) comm: [u8; 16],
}

/// The samples of one interval.
#[derive(Debug, Default)]
pub(crate) struct Aggregate {
    /// For each program, its index into `resources`. Two programs of one process may have the same description.
    processes: HashMap<ProcessKey, u32, RandomState>,
    resources: IndexSet<Arc<Resource>, RandomState>,
    stacks_by_address: HashMap<(u32, u128), StackId, RandomState>,
    stacks_by_location: HashMap<u128, StackId, RandomState>,
    /// End of each stack in `locations`. A stack begins where the one before it ends.
    stack_ends: Vec<u32>,
    locations: Vec<LocationId>,
    labels: IndexSet<Labels, RandomState>,
    labels_bytes: usize,
    links: IndexSet<Link, RandomState>,
    identities: IndexSet<Identity, RandomState>,
    /// Samples, each as an index into `identities` and a time.
    samples: Vec<(u32, u64)>,
    /// Waits, each as an index into `identities`, the time at which the wait ended, and its duration in nanoseconds.
    waits: Vec<(u32, u64, u64)>,
}

impl Aggregate {
    /// Adds a sample, whose stack and process `locator` looks up.
    pub(crate) fn add(&mut self, sample: &Sample<'_>, locator: &mut Locator) {
        let header = &sample.header;
        let resource = self.resource(ProcessKey::of(sample), || locator.resource(sample));
        let stack = self.stack(resource, sample, locator);
        locator.search_context(sample);
        let labels = self.intern_labels(label::of(sample));
        let link = self.intern_link(sample.link);
        let identity = Identity { resource, stack, labels, link, tid: header.tid, cpu: header.cpu, comm: header.comm };
        let index = self.identity(identity);
        self.samples.push((index, header.ktime_ns));
    }

    /// Adds `waited_ns` nanoseconds of a wait that lasted until `ktime_ns`. `resource` describes the process.
    pub(crate) fn add_wait(
        &mut self,
        waiting: &LocatedSample,
        resource: &Arc<Resource>,
        ktime_ns: u64,
        waited_ns: u64,
    ) {
        let resource = self.resource(waiting.key, || Arc::clone(resource));
        let start = self.locations.len();
        self.locations.extend(&waiting.stack);
        let stack = self.intern_stack(start);
        let labels = self.intern_labels(Arc::clone(&waiting.labels));
        let link = self.intern_link(waiting.link);
        let LocatedSample { tid, cpu, comm, .. } = *waiting;
        let index = self.identity(Identity { resource, stack, labels, link, tid, cpu, comm });
        self.waits.push((index, ktime_ns, waited_ns));
    }

    fn identity(&mut self, identity: Identity) -> u32 {
        let (index, _) = self.identities.insert_full(identity);
        u32::try_from(index).unwrap_or(u32::MAX)
    }

    fn resource(&mut self, key: ProcessKey, find: impl FnOnce() -> Arc<Resource>) -> u32 {
        if let Some(index) = self.processes.get(&key) {
            return *index;
        }
        let (index, _) = self.resources.insert_full(find());
        let index = u32::try_from(index).unwrap_or(u32::MAX);
        self.processes.insert(key, index);
        index
    }

    fn stack(&mut self, resource: u32, sample: &Sample<'_>, locator: &mut Locator) -> StackId {
        // The end of the kernel part and the kind of end of the user part belong to the stack, too.
        let seed = u64::from(sample.header.kernel_frames) << 8 | u64::from(sample.header.user_end);
        let raw = (resource, xxh3_128_with_seed(sample.frames, seed));
        if let Some(id) = self.stacks_by_address.get(&raw) {
            return *id;
        }
        let start = self.locations.len();
        let is_lasting = locator.locate(sample, &mut self.locations);
        let id = self.intern_stack(start);
        if is_lasting {
            self.stacks_by_address.insert(raw, id);
        }
        id
    }

    fn intern_labels(&mut self, labels: Labels) -> LabelsId {
        let bytes = label::bytes(&labels);
        let (index, is_new) = self.labels.insert_full(labels);
        self.labels_bytes += if is_new { bytes } else { 0 };
        LabelsId(u32::try_from(index).unwrap_or(u32::MAX))
    }

    fn intern_link(&mut self, link: Option<Link>) -> LinkId {
        LinkId(link.map_or(0, |link| u32::try_from(self.links.insert_full(link).0 + 1).unwrap_or(u32::MAX)))
    }

    /// Returns the id of the stack whose locations begin at `start`. Removes these locations if the stack is known
    /// already.
    fn intern_stack(&mut self, start: usize) -> StackId {
        let mut bytes = Vec::with_capacity((self.locations.len() - start) * size_of::<u32>());
        bytes.extend(self.locations[start..].iter().flat_map(|id| id.0.to_ne_bytes()));
        let hash = xxh3_128_with_seed(&bytes, 0);
        if let Some(id) = self.stacks_by_location.get(&hash) {
            self.locations.truncate(start);
            return *id;
        }
        let id = StackId(u32::try_from(self.stack_ends.len()).unwrap_or(u32::MAX));
        self.stack_ends.push(u32::try_from(self.locations.len()).unwrap_or(u32::MAX));
        self.stacks_by_location.insert(hash, id);
        id
    }

    /// True if the interval must end early, so that memory stays bounded.
    pub(crate) fn is_full(&self) -> bool {
        LOCATIONS_MAX <= self.locations.len()
            || LABELS_BYTES_MAX <= self.labels_bytes
            || LINKS_MAX <= self.links.len()
            || SAMPLES_MAX <= self.samples.len() + self.waits.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.samples.is_empty() && self.waits.is_empty()
    }

    /// Returns the locations of a stack, leaf first.
    pub(crate) fn locations(&self, stack: StackId) -> &[LocationId] {
        let end = |index: usize| self.stack_ends.get(index).map_or(0, |end| *end as usize);
        let index = stack.0 as usize;
        let start = index.checked_sub(1).map_or(0, end);
        self.locations.get(start..end(index)).unwrap_or_default()
    }

    pub(crate) fn labels(&self, id: LabelsId) -> &[(Box<str>, Box<str>)] {
        self.labels.get_index(id.0 as usize).map_or(&[], |labels| &**labels)
    }

    pub(crate) fn link(&self, id: LinkId) -> Option<&Link> {
        self.links.get_index((id.0 as usize).checked_sub(1)?)
    }

    pub(crate) fn resource_at(&self, index: u32) -> Option<&Resource> {
        self.resources.get_index(index as usize).map(|resource| &**resource)
    }

    /// Returns the processes that were sampled.
    pub(crate) fn processes(&self) -> impl Iterator<Item = ProcessKey> + '_ {
        self.processes.keys().copied()
    }

    /// Removes all samples, and returns their identities and times. They are sorted by process, and their order does
    /// not depend on hashing.
    pub(crate) fn take_sorted(&mut self) -> Vec<(Identity, u64)> {
        let samples = std::mem::take(&mut self.samples);
        let mut sorted: Vec<_> =
            samples.into_iter().filter_map(|(index, ktime_ns)| Some((self.identity_at(index)?, ktime_ns))).collect();
        sorted.sort_unstable();
        sorted
    }

    /// Removes all waits. Returns the identity of each, its end and its duration, sorted as samples are. Both times are
    /// in nanoseconds.
    pub(crate) fn take_sorted_waits(&mut self) -> Vec<(Identity, u64, u64)> {
        let waits = std::mem::take(&mut self.waits);
        let identified = |(index, ktime_ns, waited_ns)| Some((self.identity_at(index)?, ktime_ns, waited_ns));
        let mut sorted: Vec<_> = waits.into_iter().filter_map(identified).collect();
        sorted.sort_unstable();
        sorted
    }

    fn identity_at(&self, index: u32) -> Option<Identity> {
        self.identities.get_index(index as usize).copied()
    }

    /// Removes everything, and keeps the allocated memory.
    pub(crate) fn clear(&mut self) {
        let Self {
            processes,
            resources,
            stacks_by_address,
            stacks_by_location,
            stack_ends,
            locations,
            labels,
            labels_bytes,
            links,
            identities,
            samples,
            waits,
        } = self;
        processes.clear();
        resources.clear();
        stacks_by_address.clear();
        stacks_by_location.clear();
        stack_ends.clear();
        locations.clear();
        labels.clear();
        *labels_bytes = 0;
        links.clear();
        identities.clear();
        samples.clear();
        waits.clear();
    }
}

#[cfg(test)]
impl Aggregate {
    /// Adds as many samples of this process as fit. Returns their number.
    pub(crate) fn fill(&mut self) -> u64 {
        self.add_located(&[LocationId(0)]);
        self.samples.resize(SAMPLES_MAX, (0, 1_000));
        SAMPLES_MAX as u64
    }

    /// Adds one sample of this process with a located stack.
    pub(crate) fn add_located(&mut self, stack: &[LocationId]) {
        let resource = Arc::new(Resource::kernel_thread(std::process::id()));
        let (resource, _) = self.resources.insert_full(resource);
        let start = self.locations.len();
        self.locations.extend(stack);
        let stack = self.intern_stack(start);
        let resource = u32::try_from(resource).unwrap();
        let labels = self.intern_labels(Arc::default());
        let identity = Identity { resource, stack, labels, link: LinkId(0), tid: 1, cpu: 0, comm: [0; 16] };
        let (index, _) = self.identities.insert_full(identity);
        self.samples.push((u32::try_from(index).unwrap(), 1_000));
    }
}
