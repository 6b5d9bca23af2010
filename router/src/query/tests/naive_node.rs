//! A node that keeps samples in a list and answers each question by going through all of them: slow, and easy to believe.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use proto::dictionary::Dictionary;
use proto::label::sanitize_label_name;
use proto::selection::{Cell, Node as TreeNode, Operation};
use proto::{
    Address, Answer, Appended, Batch, BuildId, Fold, Function, Label, LabelSet, Line, Location, MappingIdentity,
    Matcher, Selection, SeriesAnswer, Shards, StackDetail, TenantId, Window,
};
use tonic::Status;

/// One frame of a stack, or several that were inlined into one another.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Frame {
    /// Innermost first.
    Lines(Vec<String>),
    Native {
        build_id: Option<String>,
        file: String,
        address: u64,
    },
}

/// One sample.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) labels: Vec<(String, String)>,
    pub(super) time_ns: i64,
    /// Leaf first.
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

    /// A label's value, or else the attribute's whose key is written so, or "".
    pub(super) fn value_of(&self, name: &str) -> &str {
        let label = self.labels.iter().find(|(known, _)| known == name);
        let attribute = || self.attributes.iter().find(|(key, _)| sanitize_label_name(key) == name);
        label.or_else(attribute).map_or("", |(_, value)| value)
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

/// See the module.
#[derive(Debug, Default)]
pub(super) struct NaiveNode {
    samples: Vec<Sample>,
    /// What every selection is refused with, if anything.
    pub(super) refuses: Option<tonic::Code>,
    pub(super) selections: Mutex<Vec<Selection>>,
    /// What lists say that they lack.
    pub(super) list: SeriesAnswer,
}

impl NaiveNode {
    pub(super) fn new(samples: Vec<Sample>) -> Self {
        Self { samples, ..Self::default() }
    }

    fn answer(&self, selection: &Selection) -> Answer {
        let window = selection.fold.window();
        let inside = |sample: &&Sample| window.start_ns < sample.time_ns && sample.time_ns <= window.end_ns;
        let mut last: BTreeMap<LabelSet, i64> = BTreeMap::new();
        for sample in self.samples.iter().filter(inside) {
            let last = last.entry(sample.label_set()).or_insert(sample.time_ns);
            *last = sample.time_ns.max(*last);
        }
        let mut tree = Tree::new(selection.stacks);
        let (mut groups, mut times) = (Vec::new(), BTreeSet::new());
        let mut sums: BTreeMap<(usize, i64, u32), i128> = BTreeMap::new();
        let (mut samples, mut series) = (0, BTreeSet::new());
        for sample in self.samples.iter().filter(inside).filter(|sample| sample.matches(&selection.matchers)) {
            let bucket = match &selection.fold {
                Fold::Sum(edges) => edges.iter().position(|&edge| sample.time_ns <= edge).unwrap() as i64 - 1,
                Fold::Points(_) => sample.time_ns,
                Fold::Last(_) if last[&sample.label_set()] == sample.time_ns => sample.time_ns,
                Fold::Last(_) => continue,
            };
            let mut labels: Vec<Label> =
                if selection.group_by_series { sample.label_set().iter().cloned().collect() } else { Vec::new() };
            labels.extend(selection.group_by.iter().map(|name| Label::new(name, sample.value_of(name))));
            let group = LabelSet::new(labels);
            let group = groups.iter().position(|known| *known == group).unwrap_or_else(|| {
                groups.push(group);
                groups.len() - 1
            });
            *sums.entry((group, bucket, tree.node(&sample.stack))).or_default() += i128::from(sample.value);
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
        Answer {
            dictionary: tree.dictionary,
            groups,
            nodes: tree.nodes,
            cells,
            bucket_times_ns,
            samples,
            series: series.len() as u64,
            ..Answer::default()
        }
    }
}

/// The tree of stacks of an answer.
struct Tree {
    detail: StackDetail,
    dictionary: Dictionary,
    nodes: Vec<TreeNode>,
}

impl Tree {
    fn new(detail: StackDetail) -> Self {
        Self { detail, dictionary: Dictionary::default(), nodes: vec![TreeNode { parent: 0, location: 0 }] }
    }

    fn node(&mut self, stack: &[Frame]) -> u32 {
        let told = match self.detail {
            StackDetail::None => &[],
            StackDetail::Leaf => stack.get(..1).unwrap_or_default(),
            StackDetail::Full => stack,
        };
        told.iter().rev().fold(0, |parent, frame| {
            let node = TreeNode { parent, location: location(&mut self.dictionary, frame) };
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
            let (file, frame_type) = (to.strings.intern("/src/app.rs"), to.strings.intern("native"));
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
            let (file, frame_type) = (to.strings.intern(file), to.strings.intern("native"));
            let identity = match build_id {
                Some(id) => MappingIdentity::BuildId(BuildId::parse(id).unwrap()),
                None => MappingIdentity::File(file),
            };
            let mapping = to.intern_mapping(identity, file);
            to.intern_location(Location::Address { mapping, address: Address::Virtual(*address), frame_type })
        }
    }
}

#[tonic::async_trait]
impl Shards for NaiveNode {
    async fn delete(&self, _shard: u32, _deletion: proto::Deletion) -> Result<proto::Deleted, Status> {
        Err(Status::unimplemented("not asked for here"))
    }

    async fn administer(&self, _shard: u32, _task: proto::AdministrationTask) -> Result<String, Status> {
        Err(Status::unimplemented("not asked for here"))
    }

    async fn append(&self, _shard: u32, _placement_epoch: u64, _batch: Batch) -> Result<Appended, Status> {
        Err(Status::unimplemented("samples are given to new()"))
    }

    async fn select(&self, _shard: u32, selection: Selection) -> Result<Answer, Status> {
        if let Some(code) = self.refuses {
            return Err(Status::new(code, "as the test wishes"));
        }
        let answer = self.answer(&selection);
        self.selections.lock().unwrap().push(selection);
        Ok(answer)
    }

    async fn series(
        &self,
        _shard: u32,
        _tenant: TenantId,
        matchers: Vec<Matcher>,
        window: Window,
    ) -> Result<SeriesAnswer, Status> {
        let inside = |time| window.start_ns < time && time <= window.end_ns;
        let matching = self.samples.iter().filter(|sample| inside(sample.time_ns) && sample.matches(&matchers));
        let series: BTreeSet<LabelSet> = matching.map(Sample::label_set).collect();
        let keys = self.samples.iter().flat_map(|sample| &sample.attributes).map(|(key, _)| sanitize_label_name(key));
        let attribute_names: BTreeSet<String> = keys.collect();
        let (series, attribute_names) = (series.into_iter().collect(), attribute_names.into_iter().collect());
        Ok(SeriesAnswer { series, attribute_names, ..self.list.clone() })
    }
}
