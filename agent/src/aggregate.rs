//! The samples of one interval, each distinct stack and each distinct sample identity kept once.
//!
//! A sample identity is (process, stack, labels, thread, thread name, CPU); every sample of it adds 12 bytes: its time. One of a wait also has how
//! long that was. A stack is resolved once an interval: its raw addresses are hashed, and the hash remembered, unless a later try may say more.
//!
//! Invariant: two stacks with the same locations are one [`StackId`], whatever their raw addresses were.

use std::collections::HashMap;
use std::sync::Arc;

use ebpf::Sample;
use foldhash::fast::RandomState;
use indexmap::IndexSet;
use xxhash_rust::xxh3::xxh3_128_with_seed;

use crate::label::{self, Labels};
use crate::location::LocationId;
use crate::locator::Locator;
use crate::off_cpu::Wait;
use crate::process::ProcessKey;
use crate::resource::Resource;

/// Locations of all stacks together; over it, the interval ends early. 2 MB, and at worst each is new to the location table.
const LOCATIONS_MAX: usize = 1 << 19;
/// Samples; over it, the interval ends early. 12 MB.
const SAMPLES_MAX: usize = 1 << 20;
/// What all labels take, in bytes; the same.
const LABELS_BYTES_MAX: usize = 16 << 20;

/// A stack of an [`Aggregate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct StackId(pub(crate) u32);

/// Labels of an [`Aggregate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct LabelsId(u32);

/// What samples have in common besides their time. `resource` first: sorting groups by process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Identity {
    /// Index into [`Aggregate::resources`].
    pub(crate) resource: u32,
    pub(crate) stack: StackId,
    pub(crate) labels: LabelsId,
    pub(crate) tid: u32,
    pub(crate) cpu: u32,
    pub(crate) comm: [u8; 16],
}

/// The samples of one interval.
#[derive(Debug, Default)]
pub(crate) struct Aggregate {
    /// Index into `resources`; two programs of one process may be described alike.
    processes: HashMap<ProcessKey, u32, RandomState>,
    resources: IndexSet<Arc<Resource>, RandomState>,
    stacks_by_address: HashMap<(u32, u128), StackId, RandomState>,
    stacks_by_location: HashMap<u128, StackId, RandomState>,
    /// Where each stack ends in `locations`; it begins where the one before it ends.
    stack_ends: Vec<u32>,
    locations: Vec<LocationId>,
    labels: IndexSet<Labels, RandomState>,
    labels_bytes: usize,
    identities: IndexSet<Identity, RandomState>,
    /// Index into `identities`, and the time.
    samples: Vec<(u32, u64)>,
    /// The same, the time being that of the wait's end, and how long it was, in nanoseconds.
    waits: Vec<(u32, u64, u64)>,
}

impl Aggregate {
    /// Takes in one sample; `locator` is asked about what is new in it.
    pub(crate) fn add(&mut self, sample: &Sample<'_>, locator: &mut Locator) {
        let header = &sample.header;
        let resource = self.resource(ProcessKey::of(sample), || locator.resource(sample));
        let stack = self.stack(resource, sample, locator);
        let labels = self.intern_labels(label::of(sample));
        let identity = Identity { resource, stack, labels, tid: header.tid, cpu: header.cpu, comm: header.comm };
        let index = self.identity(identity);
        self.samples.push((index, header.ktime_ns));
    }

    /// Takes in `waited_ns` nanoseconds of a wait, the last of them at `ktime_ns`.
    pub(crate) fn add_wait(&mut self, wait: &Wait, ktime_ns: u64, waited_ns: u64) {
        let resource = self.resource(wait.key, || Arc::clone(&wait.resource));
        let start = self.locations.len();
        self.locations.extend(&wait.stack);
        let stack = self.intern_stack(start);
        let labels = self.intern_labels(Arc::clone(&wait.labels));
        let index = self.identity(Identity { resource, stack, labels, tid: wait.tid, cpu: wait.cpu, comm: wait.comm });
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
        // Where the kernel part ends, and how the user part does, belongs to the stack too.
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

    /// The stack of the locations from `start` on, which are taken away again if it is known.
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

    /// Whether the interval must end early so that memory stays bounded.
    pub(crate) fn is_full(&self) -> bool {
        LOCATIONS_MAX <= self.locations.len()
            || LABELS_BYTES_MAX <= self.labels_bytes
            || SAMPLES_MAX <= self.samples.len() + self.waits.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.samples.is_empty() && self.waits.is_empty()
    }

    /// The locations of a stack, leaf first.
    pub(crate) fn locations(&self, stack: StackId) -> &[LocationId] {
        let end = |index: usize| self.stack_ends.get(index).map_or(0, |end| *end as usize);
        let index = stack.0 as usize;
        let start = index.checked_sub(1).map_or(0, end);
        self.locations.get(start..end(index)).unwrap_or_default()
    }

    pub(crate) fn labels(&self, id: LabelsId) -> &[(Box<str>, Box<str>)] {
        self.labels.get_index(id.0 as usize).map_or(&[], |labels| &**labels)
    }

    pub(crate) fn resource_at(&self, index: u32) -> Option<&Resource> {
        self.resources.get_index(index as usize).map(|resource| &**resource)
    }

    /// Which processes were sampled.
    pub(crate) fn processes(&self) -> impl Iterator<Item = ProcessKey> + '_ {
        self.processes.keys().copied()
    }

    /// Every identity with the times of its samples, process by process, in an order that does not depend on hashing; empties
    /// the samples.
    pub(crate) fn take_sorted(&mut self) -> Vec<(Identity, u64)> {
        let samples = std::mem::take(&mut self.samples);
        let mut sorted: Vec<_> =
            samples.into_iter().filter_map(|(index, ktime_ns)| Some((self.identity_at(index)?, ktime_ns))).collect();
        sorted.sort_unstable();
        sorted
    }

    /// The same of waits, each with its nanoseconds.
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

    /// Forgets everything but the memory it took.
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
        identities.clear();
        samples.clear();
        waits.clear();
    }
}

#[cfg(test)]
impl Aggregate {
    /// As many samples of this process as fit; returns how many.
    pub(crate) fn fill(&mut self) -> u64 {
        self.add_located(&[LocationId(0)]);
        self.samples.resize(SAMPLES_MAX, (0, 1_000));
        SAMPLES_MAX as u64
    }

    /// One sample of this process with a stack that is located already.
    pub(crate) fn add_located(&mut self, stack: &[LocationId]) {
        let resource = Arc::new(Resource::kernel_thread(std::process::id()));
        let (resource, _) = self.resources.insert_full(resource);
        let start = self.locations.len();
        self.locations.extend(stack);
        let stack = self.intern_stack(start);
        let resource = u32::try_from(resource).unwrap();
        let labels = self.intern_labels(Arc::default());
        let identity = Identity { resource, stack, labels, tid: 1, cpu: 0, comm: [0; 16] };
        let (index, _) = self.identities.insert_full(identity);
        self.samples.push((u32::try_from(index).unwrap(), 1_000));
    }
}
