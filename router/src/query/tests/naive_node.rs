//! A fake node that keeps samples in a list and evaluates each request over all of them: slow, but simple.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use proto::answer::{Cell, DroppedLabel, Missing, Node as TreeNode, Unpassed};
use proto::dictionary::Dictionary;
use proto::label::sanitize_label_name;
use proto::selection::Operation;
use proto::{
    Address, Answer, Appended, ArcStr, Batch, BuildId, Consistency, Fold, FramePlace, Function, Importer,
    KnownLocations, Label, LabelSet, Line, Location, LocationPage, LocationSets, Mapping, Matcher, ReadAt, ReadPoint,
    Selection, SeriesAnswer, SeriesQuery, Shards, StackDetail, StackFilter, TenantId, Window,
};
use tonic::Status;

/// A location: one frame of a stack, or several frames that were inlined into one another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Frame {
    /// Names of functions, innermost first.
    Lines(Vec<String>),
    Native {
        build_id: Option<String>,
        file: String,
        address: u64,
    },
    /// The point at which the sender's unwinder stopped, with the error code.
    Abort(u64),
}

/// A sample, with its labels, attributes and stack.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) labels: Vec<(String, String)>,
    pub(super) time_ns: i64,
    /// Stack of the sample, leaf first.
    pub(super) stack: Vec<Frame>,
    pub(super) value: i64,
    pub(super) attributes: Vec<(String, String)>,
}

impl Sample {
    pub(super) fn new(profile_type: &str, labels: &[(&str, &str)], time_ns: i64, stack: &[&str], value: i64) -> Self {
        let mut all: Vec<_> = labels.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        all.push(("__profile_type__".to_owned(), profile_type.to_owned()));
        let stack = stack.iter().map(|&name| Frame::Lines(vec![name.to_owned()])).collect();
        Self { labels: all, time_ns, stack, value, attributes: Vec::new() }
    }

    pub(super) fn with(mut self, key: &str, value: &str) -> Self {
        self.attributes.push((key.to_owned(), value.to_owned()));
        self
    }

    pub(super) fn label_set(&self) -> LabelSet {
        LabelSet::new(self.labels.iter().map(|(name, value)| Label::new(name, value)).collect())
    }

    /// Returns the value of a label, or of the attribute with this name, or "".
    pub(super) fn value_of(&self, name: &str) -> &str {
        let label = self.labels.iter().find(|(known, _)| known == name);
        let attribute = || self.attributes.iter().find(|(key, _)| sanitize_label_name(key) == name);
        label.or_else(attribute).map_or("", |(_, value)| value)
    }

    /// Returns the bucket of the sample: the index of its window, or its time. Returns `None` if the sample is in no
    /// window. For [`Fold::Last`], also returns `None` if the series has a later sample.
    fn bucket(&self, fold: &Fold, last_ns: i64) -> Option<i64> {
        match fold {
            Fold::Sum(windows) => {
                let holds = |window: &Window| window.start_ns < self.time_ns && self.time_ns <= window.end_ns;
                windows.iter().position(holds).map(|bucket| bucket as i64)
            }
            Fold::Points(_) => Some(self.time_ns),
            Fold::Last(_) => (last_ns == self.time_ns).then_some(self.time_ns),
        }
    }

    fn group(&self, selection: &Selection) -> LabelSet {
        let mut labels: Vec<Label> =
            if selection.group_by_series { self.label_set().iter().cloned().collect() } else { Vec::new() };
        labels.extend(selection.group_by.iter().map(|name| Label::new(name, self.value_of(name))));
        LabelSet::new(labels)
    }

    fn matches(&self, matchers: &[Matcher]) -> bool {
        matchers.iter().all(|matcher| {
            let value = self.value_of(&matcher.name);
            let regex = || regex::Regex::new(&format!("^(?s:{})$", matcher.value)).unwrap().is_match(value);
            match matcher.operation {
                Operation::Equal => value == matcher.value,
                Operation::NotEqual => value != matcher.value,
                Operation::Match => regex(),
                Operation::NotMatch => !regex(),
            }
        })
    }
}

/// A fake node that keeps samples in a list.
#[derive(Debug, Default)]
pub(super) struct NaiveNode {
    pub(super) samples: Vec<Sample>,
    /// Code with which the node refuses every selection.
    pub(super) refuses: Option<tonic::Code>,
    /// Label by which the node refuses to group.
    pub(super) refuses_group_by: Option<String>,
    pub(super) selections: Mutex<Vec<Selection>>,
    /// Missing times and dropped labels that the node reports in each list.
    pub(super) list: SeriesAnswer,
    /// Times and labels that are missing for each service. The node reports those of the services that a request
    /// matches.
    pub(super) missing: Vec<(String, Missing, DroppedLabel)>,
    /// Locations of the node, and the generation of their numbers, which changes when the node renumbers them.
    pub(super) dictionary: Mutex<(Dictionary, u64)>,
    /// True if the node renumbers its locations after each request for locations.
    pub(super) is_fickle: bool,
    /// True if the node has no leader, and so gives no read points.
    pub(super) is_silent: bool,
    /// Age of the node's state, for stale reads.
    pub(super) staleness: Option<Duration>,
    /// Log index of the node's state. Every read must name one that was given as a read point.
    pub(super) applied_index: AtomicU64,
    /// Log indexes that the reads named.
    pub(super) reads_at: Mutex<Vec<u64>>,
}

/// Number of locations on one page.
const PAGE: usize = 2;

impl NaiveNode {
    pub(super) fn new(samples: Vec<Sample>) -> Self {
        let mut dictionary = Dictionary::default();
        for frame in samples.iter().flat_map(|sample| &sample.stack) {
            location(&mut dictionary, frame);
        }
        Self { samples, dictionary: Mutex::new((dictionary, 7)), ..Self::default() }
    }

    /// Checks that a read names a read point, and makes the node's state newer.
    fn check(&self, at: ReadAt) {
        let now = self.applied_index.fetch_add(1, Ordering::Relaxed);
        assert!(at.applied_index.is_some_and(|index| index <= now), "{at:?} at index {now}");
        self.reads_at.lock().unwrap().push(at.applied_index.unwrap());
    }

    /// Renumbers the node's locations, like a node that restarts or drops old partitions.
    pub(super) fn renumber(&self) {
        let (dictionary, generation) = &mut *self.dictionary.lock().unwrap();
        let mut anew = Dictionary::default();
        let mut importer = Importer::new(dictionary);
        for number in (0..dictionary.locations.len() as u32).rev() {
            importer.location(&mut anew, number);
        }
        *dictionary = anew;
        *generation += 1;
    }

    /// Returns whether a stack passes the filters. `None` if this depends on a location that the router does not know.
    fn passes(&self, stack: &[Frame], sets: &LocationSets) -> Option<bool> {
        let (dictionary, generation) = &mut *self.dictionary.lock().unwrap();
        let numbers: Vec<u32> = stack.iter().map(|frame| location(dictionary, frame)).collect();
        let KnownLocations { generation: known, count } = sets.known;
        if !sets.filters.is_empty()
            && !numbers.is_empty()
            && (known != *generation || numbers.iter().any(|&number| number >= count))
        {
            return None;
        }
        let is_met = |filter: &StackFilter| {
            let inside = |number: &u32| filter.iter().any(|one| one == *number);
            let holds = match filter.place {
                _ if numbers.is_empty() => filter.has_empty,
                FramePlace::Leaf => numbers.first().is_some_and(inside),
                FramePlace::Any => numbers.iter().any(inside),
            };
            holds != filter.is_negated
        };
        Some(sets.filters.iter().all(is_met))
    }

    /// Returns the times and labels that are missing for the services that these matchers select.
    fn missing(&self, matchers: &[Matcher]) -> (Vec<Missing>, Vec<DroppedLabel>) {
        let is_matched = |service: &str| {
            let mut of_service = self.samples.iter().filter(|sample| sample.value_of("service_name") == service);
            of_service.any(|sample| sample.matches(matchers))
        };
        let matched = self.missing.iter().filter(|(service, ..)| is_matched(service));
        let (mut times, mut labels): (Vec<_>, Vec<_>) = matched.map(|(_, time, label)| (*time, label.clone())).unzip();
        times.sort_by_key(|missing| missing.window.start_ns);
        labels.sort();
        labels.dedup();
        (times, labels)
    }

    fn answer(&self, selection: &Selection) -> Answer {
        let window = selection.fold.window();
        let inside = |sample: &&Sample| window.start_ns < sample.time_ns && sample.time_ns <= window.end_ns;
        let mut last: BTreeMap<LabelSet, i64> = BTreeMap::new();
        for sample in self.samples.iter().filter(inside) {
            let last = last.entry(sample.label_set()).or_insert(sample.time_ns);
            *last = sample.time_ns.max(*last);
        }
        let KnownLocations { generation, count } = selection.locations.known;
        let known = {
            let (dictionary, now) = &*self.dictionary.lock().unwrap();
            if generation == *now { dictionary.clone() } else { Dictionary::default() }
        };
        let mut tree = Tree::new(selection.stacks, known, count);
        let mut groups = Vec::new();
        let mut times = BTreeSet::new();
        let mut sums: BTreeMap<(usize, i64, u32), i128> = BTreeMap::new();
        let mut samples = 0;
        let mut series = BTreeSet::new();
        let mut unpassed = BTreeSet::new();
        for sample in self.samples.iter().filter(inside).filter(|sample| sample.matches(&selection.matchers)) {
            let Some(bucket) = sample.bucket(&selection.fold, last[&sample.label_set()]) else { continue };
            let group = sample.group(selection);
            let group = groups.iter().position(|known| *known == group).unwrap_or_else(|| {
                groups.push(group);
                groups.len() - 1
            });
            match self.passes(&sample.stack, &selection.locations) {
                Some(true) => {
                    *sums.entry((group, bucket, tree.node(&sample.stack))).or_default() += i128::from(sample.value);
                }
                Some(false) => {
                    unpassed.insert((group, bucket));
                }
                None => {
                    let nodes = vec![TreeNode { parent: 0, location: 0 }];
                    return Answer { nodes, lacks_locations: true, ..Answer::default() };
                }
            }
            times.insert(bucket);
            samples += 1;
            series.insert(sample.label_set());
        }
        let bucket_times_ns: Vec<i64> =
            if matches!(selection.fold, Fold::Sum(_)) { Vec::new() } else { times.into_iter().collect() };
        let place = |bucket: i64| bucket_times_ns.iter().position(|&time| time == bucket).unwrap_or(bucket as usize);
        let cells = sums.iter().map(|(&(group, bucket, node), &sum)| Cell {
            group: group as u32,
            bucket: place(bucket) as u32,
            node,
            sum,
        });
        let cells = cells.collect();
        unpassed.retain(|&(group, bucket)| !sums.keys().any(|cell| (cell.0, cell.1) == (group, bucket)));
        let unpassed =
            unpassed.iter().map(|&(group, bucket)| Unpassed { group: group as u32, bucket: place(bucket) as u32 });
        let unpassed = unpassed.collect();
        Answer {
            dictionary: tree.dictionary,
            groups,
            nodes: tree.nodes,
            cells,
            bucket_times_ns,
            samples,
            series: series.len() as u64,
            missing: self.missing(&selection.matchers).0,
            unpassed,
            ..Answer::default()
        }
    }
}

/// The tree of stacks of a response, under construction.
struct Tree {
    detail: StackDetail,
    known: Dictionary,
    count: u32,
    dictionary: Dictionary,
    nodes: Vec<TreeNode>,
}

impl Tree {
    fn new(detail: StackDetail, known: Dictionary, count: u32) -> Self {
        let nodes = vec![TreeNode { parent: 0, location: 0 }];
        Self { detail, known, count, dictionary: Dictionary::default(), nodes }
    }

    /// Returns the number of a location that the router knows. For any other location, returns its ID in the response's
    /// dictionary plus the number of known locations.
    fn location(&mut self, frame: &Frame) -> u32 {
        let here = self.known.locations.len() as u32;
        let known = location(&mut self.known, frame);
        if known < self.count.min(here) { known } else { self.count + location(&mut self.dictionary, frame) }
    }

    fn node(&mut self, stack: &[Frame]) -> u32 {
        let told = match self.detail {
            StackDetail::None => &[],
            StackDetail::Leaf => stack.get(..1).unwrap_or_default(),
            StackDetail::Full => stack,
        };
        told.iter().rev().fold(0, |parent, frame| {
            let node = TreeNode { parent, location: self.location(frame) };
            let known = self.nodes.iter().skip(1).position(|known| *known == node).map(|i| i + 1);
            known.unwrap_or_else(|| {
                self.nodes.push(node);
                self.nodes.len() - 1
            }) as u32
        })
    }
}

fn location(to: &mut Dictionary, frame: &Frame) -> u32 {
    match frame {
        Frame::Lines(names) => {
            let file = to.strings.intern("/src/app.rs");
            let frame_type = to.strings.intern("native");
            let mapping_file = to.strings.intern("/usr/bin/app");
            let lines = names.iter().zip(1..).map(|(name, line)| {
                let name = to.strings.intern(name);
                let function = to.intern_function(Function { name, system_name: name, file, start_line: 10 });
                Line { function, line, column: 0 }
            });
            let lines = lines.collect();
            to.intern_location(Location::Lines { mapping_file, frame_type, lines })
        }
        Frame::Native { build_id, file, address } => {
            let file = to.strings.intern(file);
            let frame_type = to.strings.intern("native");
            let build_id = build_id.as_ref().map(|id| BuildId::parse(id).unwrap());
            let mapping = to.intern_mapping(Mapping { build_id, file });
            to.intern_location(Location::Address { mapping, address: Address::Virtual(*address), frame_type })
        }
        Frame::Abort(code) => {
            let mapping = to.intern_mapping(Mapping { build_id: None, file: 0 });
            let frame_type = to.strings.intern("abort-marker");
            to.intern_location(Location::Address { mapping, address: Address::Virtual(*code), frame_type })
        }
    }
}

#[tonic::async_trait]
impl Shards for NaiveNode {
    type Error = Status;

    async fn delete(&self, _: u32, _: u64, _: proto::Deletion) -> Result<proto::Deleted, Status> {
        Err(Status::unimplemented("not used here"))
    }

    async fn holds_batch(&self, _: u32, _: u64, _: proto::TenantId, _: proto::BatchId) -> Result<bool, Status> {
        Err(Status::unimplemented("not used here"))
    }

    async fn administer(&self, _shard: u32, _task: proto::AdministrationTask) -> Result<String, Status> {
        Err(Status::unimplemented("not used here"))
    }

    async fn placement(&self) -> Result<proto::placement::Placement, tonic::Status> {
        Ok(proto::placement::Placement::uniform(std::num::NonZeroU16::MIN))
    }

    async fn append(&self, _shard: u32, _placement_epoch: u64, _batch: Batch) -> Result<Appended, Status> {
        Err(Status::unimplemented("samples are given to new()"))
    }

    async fn read_point(&self, _: u32, _: u64, consistency: Consistency) -> Result<ReadPoint, Status> {
        if self.is_silent {
            return Err(Status::unavailable("no leader, as the test wishes"));
        }
        let staleness = if consistency == Consistency::Stale { self.staleness } else { Some(Duration::ZERO) };
        Ok(ReadPoint { applied_index: self.applied_index.load(Ordering::Relaxed), staleness })
    }

    async fn select(&self, _: u32, at: ReadAt, selection: Selection) -> Result<Answer, Status> {
        self.check(at);
        if let Some(code) = self.refuses {
            return Err(Status::new(code, "as the test wishes"));
        }
        if self.refuses_group_by.as_ref().is_some_and(|name| selection.group_by.contains(name)) {
            return Err(Status::invalid_argument("as the test wishes"));
        }
        let answer = self.answer(&selection);
        self.selections.lock().unwrap().push(selection);
        Ok(answer)
    }

    async fn locations(&self, _: u32, at: ReadAt, _: TenantId, known: KnownLocations) -> Result<LocationPage, Status> {
        self.check(at);
        let (from, generation) = &mut *self.dictionary.lock().unwrap();
        let first = if known.generation == *generation { known.count } else { 0 };
        let mut importer = Importer::new(from);
        let mut dictionary = Dictionary::default();
        for number in (first..from.locations.len() as u32).take(PAGE) {
            importer.location(&mut dictionary, number);
        }
        let page = LocationPage { generation: *generation, first, count: from.locations.len() as u32, dictionary };
        *generation += u64::from(self.is_fickle);
        Ok(page)
    }

    async fn series(&self, _: u32, at: ReadAt, query: SeriesQuery) -> Result<SeriesAnswer, Status> {
        self.check(at);
        let SeriesQuery { matchers, window, label, .. } = query;
        let inside = |time| window.start_ns < time && time <= window.end_ns;
        let matching = self.samples.iter().filter(|sample| inside(sample.time_ns) && sample.matches(&matchers));
        let series: BTreeSet<LabelSet> = matching.map(Sample::label_set).collect();
        let keys = self.samples.iter().flat_map(|sample| &sample.attributes).map(|(key, _)| sanitize_label_name(key));
        let attribute_names: BTreeSet<String> = keys.collect();
        let attribute_names = attribute_names.into_iter().collect();
        let (missing, dropped_labels) = self.missing(&matchers);
        let mut list = self.list.clone();
        list.missing.extend(missing);
        list.dropped_labels.extend(dropped_labels);
        if let Some(label) = label.as_deref() {
            let values: BTreeSet<&str> = series.iter().map(|labels| labels.get(label)).collect();
            let values = values.into_iter().filter(|value| !value.is_empty()).map(ArcStr::from).collect();
            return Ok(SeriesAnswer { values, attribute_names, ..list });
        }
        let series = series.into_iter().map(Arc::new).collect();
        Ok(SeriesAnswer { series, attribute_names, ..list })
    }
}
