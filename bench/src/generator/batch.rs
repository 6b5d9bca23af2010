//! Batches of a host. A batch has all definitions, like a batch from a router to a shard, or only new definitions, like
//! a batch that a leader proposes.

use std::collections::{HashMap, HashSet};

use foldhash::fast::FixedState;
use proto::dictionary::{Attribute, AttributeValue, stack_hash};
use proto::label::PROFILE_TYPE_LABEL;
use proto::{
    Address, Batch, BatchId, Dictionary, Importer, Label, LabelSet, Location, Samples, SeriesSamples, StackPair,
    TenantId,
};

use super::corpus::Corpus;
use super::fleet::{Drawn, HostSamples, PodSamples};
use super::growth::StackKey;
use super::mix::PERIOD_NS;
use super::random::Random;

/// Profile type of a push whose sample type is `samples/count` and whose period type is CPU time.
pub(crate) const PROFILE_TYPE: &str = "process_cpu:cpu:nanoseconds:cpu:nanoseconds";

/// Length of a partition of raw samples, in nanoseconds. Each partition has its own dictionary.
const PARTITION_NS: u64 = 6 * 3600 * 1_000_000_000;

/// Builds batches from the samples of a fleet, with the definitions of a corpus.
#[derive(Debug)]
pub(crate) struct BatchBuilder<'a> {
    corpus: &'a Corpus,
    tenant: TenantId,
    /// Number of the partition in which this builder last defined stacks.
    partition: u64,
    /// Stacks that this builder has already defined in that partition.
    defined: Defined,
}

/// Stacks: the index of the service, and the key of the stack in it.
type Defined = HashSet<(usize, StackKey), FixedState>;

impl<'a> BatchBuilder<'a> {
    pub(crate) fn new(corpus: &'a Corpus) -> Self {
        Self { corpus, tenant: TenantId::default_tenant(), partition: 0, defined: Defined::default() }
    }

    /// Returns the batch of one host and interval, with all definitions that its samples refer to.
    pub(crate) fn build(&self, host: &HostSamples) -> Batch {
        self.build_with(host, &mut Defined::default())
    }

    /// Returns a batch like [`BatchBuilder::build`], except that stacks which this builder has already defined in the
    /// partition have only their hashes.
    pub(crate) fn build_new(&mut self, host: &HostSamples) -> Batch {
        let partition = host.start_ns / PARTITION_NS;
        if partition != self.partition {
            (self.partition, self.defined) = (partition, Defined::default());
        }
        let mut defined = std::mem::take(&mut self.defined);
        let batch = self.build_with(host, &mut defined);
        self.defined = defined;
        batch
    }

    fn build_with(&self, host: &HostSamples, defined: &mut Defined) -> Batch {
        let mut tables = Tables::new(self.corpus, defined);
        let series = host.pods.iter().filter(|pod| !pod.samples.is_empty());
        let series = series.map(|pod| self.series(&mut tables, host.host, pod)).collect();
        let mut id = Random::of([2, host.host as u64, host.start_ns]);
        let id = u128::from(id.next_u64()) << 64 | u128::from(id.next_u64());
        Batch { tenant: self.tenant.clone(), id: Some(BatchId(id)), retention_class: 0, dictionary: tables.to, series }
    }

    fn series(&self, tables: &mut Tables<'_>, host: usize, pod: &PodSamples) -> SeriesSamples {
        let mut samples = Samples::default();
        for drawn in &pod.samples {
            let pair = tables.pair(pod.service, drawn.stack);
            let attributes = tables.attributes(pod.service, drawn);
            samples.push(drawn.time_ns.cast_signed(), pair, PERIOD_NS.cast_signed(), attributes);
        }
        let labels = self.labels(host, pod);
        SeriesSamples { fingerprint: labels.fingerprint(&self.tenant), labels: Some(labels), samples }
    }

    fn labels(&self, host: usize, pod: &PodSamples) -> LabelSet {
        let recording = &self.corpus.services[pod.service].name;
        let service = pod.number.map_or_else(|| recording.clone(), |number| format!("{recording}-{number:04}"));
        let place = pod.pod.place;
        let life = pod.pod.life;
        LabelSet::new(vec![
            Label::new("service.name", &service),
            Label::new("k8s.namespace.name", "shop"),
            Label::new("k8s.pod.name", format!("{service}-7d9f8b6c5-{place:04}{life}")),
            Label::new("host.name", format!("node-{host:04}")),
            Label::new("container.id", format!("{:064x}", u128::from(place << 16 | life) * 0x9E37_79B9_7F4A_7C15)),
            Label::new("otel.scope.name", "bench"),
            Label::new(PROFILE_TYPE_LABEL, PROFILE_TYPE),
        ])
    }
}

/// Dictionary of a batch that is being built.
struct Tables<'a> {
    corpus: &'a Corpus,
    defined: &'a mut Defined,
    to: Dictionary,
    importer: Importer<'a>,
    pairs: HashMap<(usize, StackKey), u32, FixedState>,
    attribute_sets: HashMap<(usize, u32, u32), u32, FixedState>,
    thread_name: u32,
    thread_id: u32,
    /// Locations of the stack that is being defined: IDs in the corpus's dictionary, leaf first.
    locations: Vec<u32>,
    hashes: Vec<u128>,
}

impl<'a> Tables<'a> {
    fn new(corpus: &'a Corpus, defined: &'a mut Defined) -> Self {
        let mut to = Dictionary::default();
        let [thread_name, thread_id] = ["thread.name", "thread.id"].map(|key| to.strings.intern(key));
        Self {
            corpus,
            defined,
            to,
            importer: Importer::new(&corpus.dictionary),
            pairs: HashMap::default(),
            attribute_sets: HashMap::default(),
            thread_name,
            thread_id,
            locations: Vec::new(),
            hashes: Vec::new(),
        }
    }

    fn attributes(&mut self, service: usize, drawn: &Drawn) -> u32 {
        let key = (service, drawn.thread, drawn.tid);
        if let Some(&id) = self.attribute_sets.get(&key) {
            return id;
        }
        let name = &self.corpus.services[service].lanes.threads[drawn.thread as usize].name;
        let name = AttributeValue::Text(self.to.strings.intern(name));
        let id = self.to.intern_attributes(vec![
            Attribute { key: self.thread_name, unit: 0, value: name },
            Attribute { key: self.thread_id, unit: 0, value: AttributeValue::Integer(drawn.tid.into()) },
        ]);
        self.attribute_sets.insert(key, id);
        id
    }

    fn pair(&mut self, service: usize, key: StackKey) -> u32 {
        if let Some(&pair) = self.pairs.get(&(service, key)) {
            return pair;
        }
        let pair = match self.corpus.services[service].hashes(key) {
            Some((user, kernel)) if self.defined.contains(&(service, key)) => {
                let [user, kernel] = [user, kernel].map(|hash| self.to.intern_stack(hash, None));
                StackPair { user, kernel }
            }
            _ => self.define(service, key),
        };
        let pair = self.to.intern_pair(pair);
        self.pairs.insert((service, key), pair);
        pair
    }

    fn define(&mut self, service: usize, key: StackKey) -> StackPair {
        let corpus = self.corpus;
        self.locations.clear();
        let leaf_shift = corpus.services[service].push_locations(key, &mut self.locations);
        self.hashes.clear();
        self.hashes.extend(self.locations.iter().map(|&location| corpus.hashes[location as usize]));
        let is_new = self.defined.insert((service, key));
        let new_leaf = self.new_leaf(leaf_shift);
        let depth = self.locations.len();
        let kernel = corpus.kernel_frames(&self.locations);
        if kernel == 0 {
            return StackPair { user: self.stack(0..depth, new_leaf, is_new), kernel: 0 };
        }
        StackPair { user: self.stack(kernel..depth, None, is_new), kernel: self.stack(0..kernel, new_leaf, is_new) }
    }

    /// Defines a location that is `shift` bytes or lines after the leaf, and replaces the leaf's hash by the hash of
    /// that location. Returns the ID of the location; `None` if `shift` is 0.
    fn new_leaf(&mut self, shift: u64) -> Option<u32> {
        let &leaf = self.locations.first().filter(|_| shift > 0)?;
        let leaf = self.importer.location(&mut self.to, leaf);
        let mut location = self.to.locations[leaf as usize].clone();
        match &mut location {
            Location::Address { address: Address::Virtual(address) | Address::FileOffset(address), .. } => {
                *address = address.wrapping_add(shift);
            }
            Location::Lines { lines, .. } => {
                let innermost = lines.first_mut()?;
                innermost.line = innermost.line.wrapping_add(shift.cast_signed());
            }
        }
        let id = self.to.intern_location(location);
        self.hashes[0] = self.to.location_hash(id);
        Some(id)
    }

    /// Returns the stack that consists of a part of the locations. `leaf`, if given, replaces the first location. If
    /// `is_new` is false, only the stack's hash is defined.
    fn stack(&mut self, part: std::ops::Range<usize>, leaf: Option<u32>, is_new: bool) -> u32 {
        let hash = stack_hash(&self.hashes[part.clone()]);
        if let Some(id) = self.to.stacks.find(&hash)
            && (self.to.stacks.get(id).is_some() || !is_new)
        {
            return id;
        }
        if !is_new {
            return self.to.intern_stack(hash, None);
        }
        let mut stack: Box<[u32]> = self.locations[part].into();
        for (depth, location) in stack.iter_mut().enumerate() {
            *location = match leaf {
                Some(leaf) if depth == 0 => leaf,
                _ => self.importer.location(&mut self.to, *location),
            };
        }
        self.to.intern_stack(hash, Some(&stack))
    }
}
