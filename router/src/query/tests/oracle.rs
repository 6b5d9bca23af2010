//! Reference implementation of flame graphs, which computes them path by path from the rules in `docs/api.md` and
//! `prune`. It is slow, but simple. The code that serves queries must produce the same bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proto::{Address, Answer, Dictionary, Location, Window};
use serde_json::{Map, Value, json};

use super::random_answer::any_answer;
use super::symbols::symbols;
use super::*;
use crate::query::flamegraph::request::{FlamegraphRequest, Format, Interpreter, Writing};
use crate::query::flamegraph::summary::Summary;
use crate::query::naming::named_answers::ShardAnswer;
use crate::query::naming::namer::Namer;
use crate::query::naming::tenant_names::TenantNames;
use crate::query::run::{Cancelled, Timings};
use crate::query::selection::coverage::Coverage;

/// Identity of a frame: name, file, binary, frame type.
type Frame = [String; 4];

/// Reason why a frame has no name: code, text, binary, build ID.
type Why = [String; 4];

/// Facts about each frame: the first line of its function, and the reason why it has no name.
type Table = BTreeMap<Frame, (i64, Option<Why>)>;

/// Returns the responses in the form for a router that knows no locations yet.
pub(super) fn shard_answers(answers: &[Answer], names: &TenantNames) -> Vec<ShardAnswer> {
    let answer =
        |(shard, answer): (u32, &Answer)| ShardAnswer { names: names.of(shard), known: 0, answer: answer.clone() };
    (0..).zip(answers).map(answer).collect()
}

/// Returns the frames of a location, outermost first. Adds the facts about them to `table`.
fn frames_of(dictionary: &Dictionary, location: &Location, table: &mut Table) -> Vec<Frame> {
    let text = |id: u32| dictionary.strings.get(id).to_owned();
    let mut told: Vec<(Frame, i64, Option<Why>)> = Vec::new();
    match location {
        Location::Lines { mapping_file, frame_type, lines } => {
            for line in lines {
                let function = dictionary.functions[line.function as usize];
                let nameless = function.name == 0 && function.system_name == 0;
                let name = [text(function.name), text(function.system_name), "[unknown]".to_owned()];
                let name = name.into_iter().find(|name| !name.is_empty()).unwrap();
                let frame = [name, text(function.file), text(*mapping_file), text(*frame_type)];
                let sentence = "the sender gave no name for this function".to_owned();
                let why = nameless.then(|| ["no_name_sent".to_owned(), sentence, text(*mapping_file), String::new()]);
                told.push((frame, function.start_line, why));
            }
        }
        Location::Address { mapping, address, frame_type } => {
            let (build_id, file) = dictionary.mapping(*mapping);
            let (reason, build_id) = match build_id {
                Some(id) => (symbol_store::Reason::NoDebugFile, id.to_string()),
                None => (symbol_store::Reason::NoBuildId, String::new()),
            };
            let base = [file.rsplit('/').next().unwrap(), &build_id, "[unknown]"];
            let base = base.into_iter().find(|base| !base.is_empty()).unwrap();
            let (Address::Virtual(number) | Address::FileOffset(number)) = address;
            let frame = [format!("{base}+{number:#x}"), String::new(), file.to_owned(), text(*frame_type)];
            told.push((frame, 0, Some([reason.code().to_owned(), reason.to_string(), file.to_owned(), build_id])));
        }
    }
    for (frame, line, why) in &told {
        let (first, reason) = table.entry(frame.clone()).or_insert((0, why.clone()));
        *first = if *line > 0 && (*first == 0 || line < first) { *line } else { *first };
        if why.is_some() && (reason.is_none() || *why < *reason) {
            *reason = why.clone();
        }
    }
    told.into_iter().rev().map(|(frame, ..)| frame).collect()
}

/// Nodes of a pruned tree: depth, key (`None` is `(other)`), own value, total, and whether stacks end at the node.
type Pruned<K> = Vec<(usize, Option<K>, i128, i128, bool)>;

/// Sums of stacks by their path from the root. Paths without stacks are absent.
struct Weights<K> {
    own: BTreeMap<Vec<K>, i128>,
    total: BTreeMap<Vec<K>, i128>,
    /// True if some stacks have negative sums. Then a total of zero does not mean that there are no stacks.
    is_any_negative: bool,
}

impl<K: Ord + Clone> Weights<K> {
    fn new(answers: &[Answer], table: &mut Table, key: impl Fn(&Frame) -> K) -> Self {
        let own = BTreeMap::new();
        let total = BTreeMap::from([(Vec::new(), 0)]);
        let mut out = Self { own, total, is_any_negative: false };
        for answer in answers {
            let dictionary = &answer.dictionary;
            let used: BTreeSet<u32> = answer.nodes.iter().skip(1).map(|node| node.location).collect();
            // Facts from locations that are in no stack are ignored.
            let mut unused = Table::new();
            let frames = (0..).zip(&dictionary.locations).map(|(i, location)| {
                frames_of(dictionary, location, if used.contains(&i) { &mut *table } else { &mut unused })
            });
            let frames: Vec<_> = frames.collect();
            let mut ways: Vec<Vec<K>> = vec![Vec::new()];
            for node in answer.nodes.iter().skip(1) {
                let below = frames[node.location as usize].iter().map(&key);
                ways.push(ways[node.parent as usize].iter().cloned().chain(below).collect());
            }
            for cell in &answer.cells {
                let way = &ways[cell.node as usize];
                *out.own.entry(way.clone()).or_default() += cell.sum;
                for length in 0..=way.len() {
                    *out.total.entry(way[..length].to_vec()).or_default() += cell.sum;
                }
            }
        }
        out.is_any_negative = out.own.values().any(|own| *own < 0);
        out
    }

    /// Returns the children of a path that have stacks, ordered by their last keys.
    fn children(&self, way: &[K]) -> Vec<Vec<K>> {
        let is_child = |other: &&Vec<K>| other.len() == way.len() + 1 && other.starts_with(way) && self.weighs(other);
        self.total.keys().filter(is_child).cloned().collect()
    }

    fn weighs(&self, way: &[K]) -> bool {
        self.total[way] != 0 || self.is_any_negative
    }

    fn weighing(&self) -> usize {
        self.total.keys().filter(|way| !way.is_empty() && self.weighs(way)).count()
    }

    /// Returns the kept nodes. The next node is always the heaviest one whose parent is kept. Of equally heavy nodes,
    /// it is the first.
    fn stay(&self, nodes_max: usize) -> BTreeSet<Vec<K>> {
        let mut stay = BTreeSet::from([Vec::new()]);
        let mut candidates = self.children(&[]);
        let mut count = 1 + usize::from(!candidates.is_empty());
        let all = self.weighing() < nodes_max;
        while !candidates.is_empty() {
            let heaviest = candidates.iter().map(|way| self.total[way]).max().unwrap();
            let way = candidates.remove(candidates.iter().position(|way| self.total[way] == heaviest).unwrap());
            let parent = &way[..way.len() - 1];
            let siblings_left = self.children(parent).iter().filter(|child| !stay.contains(*child)).count();
            let children = self.children(&way);
            let needs = 1 + usize::from(!children.is_empty());
            let frees = usize::from(siblings_left == 1);
            if all || count + needs <= nodes_max + frees {
                count = count + needs - frees;
                candidates.extend(children);
                stay.insert(way);
            }
        }
        stay
    }

    /// Returns the kept nodes, and the number and weight of the pruned nodes.
    fn pruned(&self, nodes_max: usize) -> (Pruned<K>, usize, i128) {
        let total = self.total[&Vec::new()];
        if nodes_max == 1 && self.weighing() > 0 {
            return (vec![(0, None, total, total, true)], self.weighing(), total);
        }
        let stay = self.stay(nodes_max);
        let mut out = Vec::new();
        self.write(&[], &stay, &mut out);
        let other = out.iter().skip(1).filter(|(_, key, ..)| key.is_none()).map(|(.., total, _)| total).sum();
        let left_out = if self.weighing() < nodes_max { 0 } else { self.weighing() + 1 - stay.len() };
        (out, left_out, other)
    }

    fn write(&self, way: &[K], stay: &BTreeSet<Vec<K>>, to: &mut Pruned<K>) {
        let own = self.own.get(way).copied().unwrap_or(0);
        let has_own = own != 0 || self.is_any_negative && self.own.contains_key(way);
        to.push((way.len(), way.last().cloned(), own, self.total[way], has_own));
        let (kept, left): (Vec<_>, Vec<_>) = self.children(way).into_iter().partition(|child| stay.contains(child));
        let other: i128 = left.iter().map(|child| self.total[child]).sum();
        let mut ordered: Vec<_> = kept.into_iter().map(Some).chain((!left.is_empty()).then_some(None)).collect();
        // The sort is stable: of equal weights, the `(other)` is last.
        ordered.sort_by_key(|child| std::cmp::Reverse(child.as_ref().map_or(other, |child| self.total[child])));
        for child in ordered {
            match child {
                Some(child) => self.write(&child, stay, to),
                None => to.push((way.len() + 1, None, other, other, true)),
            }
        }
    }
}

impl Weights<Frame> {
    /// Returns the symbolization as JSON: the number of frames, of named frames, and of unnamed frames by reason, with
    /// the weight of their stacks. Also returns the reasons in the order of the response.
    fn symbolization<'a>(&self, table: &'a Table) -> (String, Vec<&'a Why>) {
        let mut frames: BTreeSet<&Frame> = BTreeSet::new();
        let mut shares: BTreeMap<&Why, (BTreeSet<&Frame>, i128)> = BTreeMap::new();
        let mut pending = self.children(&[]);
        while let Some(way) = pending.pop() {
            let why = |frame: &Frame| table[frame].1.as_ref();
            let (frame, _) = table.get_key_value(way.last().unwrap()).unwrap();
            frames.insert(frame);
            if let Some(known) = why(frame) {
                let (frames, value) = shares.entry(known).or_default();
                frames.insert(frame);
                let is_first = !way[..way.len() - 1].iter().any(|above| why(above) == Some(known));
                *value += if is_first { self.total[&way] } else { 0 };
            }
            pending.extend(self.children(&way));
        }
        let named = frames.iter().filter(|frame| table[**frame].1.is_none()).count();
        let share = |([reason, text, binary, build_id], (frames, value)): (&Why, (BTreeSet<&Frame>, i128))| {
            format!(
                "{{\"reason\":{},\"text\":{},\"binary\":{},\"build_id\":{},\"frames\":{},\"value\":{value}}}",
                json!(reason),
                json!(text),
                json!(binary),
                json!(build_id),
                frames.len()
            )
        };
        let frames = frames.len();
        let reasons = shares.keys().copied().collect();
        let unnamed: Vec<String> = shares.into_iter().map(share).collect();
        (format!("{{\"frames\":{frames},\"named\":{named},\"unnamed\":[{}]}}", unnamed.join(",")), reasons)
    }

    fn json(&self, table: &Table, nodes_max: usize) -> String {
        let (pruned, left_out, other) = self.pruned(nodes_max);
        let (symbolization, reasons) = self.symbolization(table);
        let mut names = vec![json!("total")];
        let mut frames = vec![json!({})];
        let mut numbers: BTreeMap<Option<Frame>, usize> = BTreeMap::new();
        let (mut nodes, mut above): (Vec<String>, Vec<i64>) = (Vec::new(), Vec::new());
        for (i, (depth, frame, own, total, _)) in pruned.iter().enumerate() {
            let number = if i == 0 { 0 } else { *numbers.entry(frame.clone()).or_insert(names.len()) };
            if number == names.len() {
                let (name, mut object) = described(frame.as_ref(), table);
                let why = frame.as_ref().and_then(|frame| table[frame].1.as_ref());
                if let Some(index) = reasons.iter().position(|reason| Some(*reason) == why) {
                    object.insert("unnamed".to_owned(), json!(index));
                }
                names.push(json!(name));
                frames.push(Value::Object(object));
            }
            above.truncate(*depth);
            nodes.push(format!("[{},{number},{own},{total}]", above.last().copied().unwrap_or(-1)));
            above.push(i as i64);
        }
        let names = Value::Array(names);
        let frames = Value::Array(frames);
        let nodes = nodes.join(",");
        let total = self.total[&Vec::new()];
        format!(
            "{{\"profile_type\":\"{CPU}\",\"unit\":\"nanoseconds\",\"gauge\":false,\
             \"total\":{total},\"samples\":3,\"series\":2,\
             \"names\":{names},\"frames\":{frames},\"nodes\":[{nodes}],\"symbolization\":{symbolization},\
             \"shards\":{{\"asked\":1,\"answered\":1}},\"pruned\":{{\"nodes\":{left_out},\"value\":{other}}},\
             \"windows_read\":{{\"raw\":0,\"1m\":0,\"1h\":0,\"1d\":0}},\"names_pending\":[],\"warnings\":[]}}"
        )
    }
}

fn described<'a>(frame: Option<&'a Frame>, table: &Table) -> (&'a str, Map<String, Value>) {
    let Some(frame) = frame else { return ("(other)", Map::new()) };
    let [name, file, binary, kind] = frame;
    let (line, why) = &table[frame];
    let texts = [("file", file.as_str()), ("binary", binary), ("type", kind)];
    let reason = why.as_ref().map(|why| ("reason", why[0].as_str()));
    let texts = texts.into_iter().chain(reason).filter(|(_, text)| !text.is_empty());
    let line = (*line > 0).then(|| ("line".to_owned(), json!(line)));
    (name, texts.map(|(name, text)| (name.to_owned(), json!(text))).chain(line).collect())
}

impl Weights<String> {
    fn folded(&self, nodes_max: usize) -> String {
        let mut out = String::new();
        let mut line = Vec::new();
        for (i, (depth, name, own, _, has_own)) in self.pruned(nodes_max).0.into_iter().enumerate() {
            line.truncate(depth.saturating_sub(1));
            line.extend((i > 0).then(|| name.unwrap_or_else(|| "(other)".to_owned())));
            let stack = if i == 0 { "[no stack]".to_owned() } else { line.join(";") };
            out += &if has_own { format!("{stack} {own}\n") } else { String::new() };
        }
        out
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn flame_graphs_match_the_oracle(
        answers in proptest::collection::vec(any_answer(), 1..3),
        nodes_max in prop_oneof![3 => 1_usize..60, 1 => Just(100_000)],
    ) {
        let mut table = Table::new();
        let frames = Weights::new(&answers, &mut table, Frame::clone);
        let written = |frame: &Frame| frame[0].replace(';', ":").replace('\n', " ");
        let names = Weights::new(&answers, &mut table, written);
        let (_directory, symbols) = symbols();
        let tenant = proto::TenantId::default_tenant();
        let window = Window { start_ns: 1, end_ns: 2 };
        let write = |format| {
            let options = Default::default();
            let interpreter = Interpreter::Show;
            let request =
                FlamegraphRequest { query: String::new(), window, format, nodes_max, interpreter, options };
            let profile_type = proto::ProfileType::parse(CPU);
            let coverage = Coverage { asked: 1, ..Coverage::default() };
            let summary = Summary { profile_type, samples: 3, series: 2, coverage, ..Summary::of(window) };
            let namer = Namer::new(symbols.clone(), &tenant, Instant::now() + Duration::from_secs(1));
            let tenant_names = TenantNames::default();
            let named = tenant_names.name(shard_answers(&answers, &tenant_names), &namer);
            let writing = Writing { named, summary, request };
            String::from_utf8(writing.write(&Cancelled::default(), &mut Timings::default()).unwrap()).unwrap()
        };
        prop_assert_eq!(write(Format::Json), frames.json(&table, nodes_max));
        prop_assert_eq!(write(Format::Folded), names.folded(nodes_max.max(2)));
    }
}
