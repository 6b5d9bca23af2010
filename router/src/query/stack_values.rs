//! What labels that look into stacks say of the nodes of one answer: which nodes pass the matchers, and under which values
//! of the grouped labels a node's stack counts.

use std::borrow::Cow;
use std::collections::HashMap;

use foldhash::fast::RandomState;
use proto::Answer;

use crate::query::frame::{FrameTable, NamedLine, NamedLocations};
use crate::query::stack_label::{Part, Place, StackLabel, StackMatcher};

/// What a frame says of one part: the id of a text of the table, or a line's number. 0 is "" in either.
type PartValue = i64;

/// Distinct combinations of values of some labels, by index.
#[derive(Debug, Default)]
pub(crate) struct Combinations {
    ids: HashMap<Box<[PartValue]>, u32, RandomState>,
    values: Vec<Box<[PartValue]>>,
}

impl Combinations {
    fn intern(&mut self, values: &[PartValue]) -> u32 {
        if let Some(&id) = self.ids.get(values) {
            return id;
        }
        let id = u32::try_from(self.values.len()).unwrap_or(u32::MAX);
        self.values.push(Box::from(values));
        self.ids.insert(Box::from(values), id);
        id
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }

    /// The values of one, which are those of the labels that it was made of.
    pub(crate) fn texts(
        &self,
        id: u32,
        labels: &[StackLabel],
        table: &FrameTable,
    ) -> impl Iterator<Item = (String, String)> {
        let values = self.values.get(id as usize).map(AsRef::as_ref).unwrap_or_default();
        let text = |(label, &value): (&StackLabel, &PartValue)| {
            (label.name().to_owned(), text_of(label.part, value, table).into_owned())
        };
        labels.iter().zip(values).map(text)
    }
}

/// The labels that look into stacks of one leaf of a query, those that are grouped by apart by place.
#[derive(Debug)]
pub(crate) struct StackGrouping<'a> {
    pub(crate) matchers: &'a [StackMatcher],
    pub(crate) leaf_labels: Vec<StackLabel>,
    pub(crate) any_labels: Vec<StackLabel>,
}

/// What the nodes of one answer say.
#[derive(Debug)]
pub(crate) struct NodeValues {
    /// Whether stacks that end at a node pass all matchers; `None`: all do.
    passes: Option<Vec<bool>>,
    /// The combination of `leaf_*` values of each node.
    pub(crate) leaf: Vec<u32>,
    /// The combinations of `stack_*` values of each location's frames, each once: location i has those from
    /// `any_ends[i - 1]` (or 0) to `any_ends[i]`.
    any_ends: Vec<usize>,
    any: Vec<u32>,
    /// The combinations of a stack without frames.
    pub(crate) any_of_empty: Vec<u32>,
}

impl NodeValues {
    /// Whether stacks that end at a node pass all matchers.
    pub(crate) fn passes(&self, node: u32) -> bool {
        self.passes.as_ref().is_none_or(|passes| passes.get(node as usize).copied().unwrap_or(false))
    }

    /// The combinations of `stack_*` values that a location's frames have.
    pub(crate) fn any(&self, location: u32) -> &[u32] {
        let i = location as usize;
        let start = i.checked_sub(1).and_then(|before| self.any_ends.get(before)).copied().unwrap_or(0);
        self.any_ends.get(i).and_then(|&end| self.any.get(start..end)).unwrap_or_default()
    }
}

impl<'a> StackGrouping<'a> {
    /// The stack labels among `labels`, which a leaf is grouped by.
    pub(crate) fn new(matchers: &'a [StackMatcher], labels: &[String]) -> Self {
        let of = |place| labels.iter().filter_map(|name| StackLabel::named(name)).filter(move |l| l.place == place);
        Self { matchers, leaf_labels: of(Place::Leaf).collect(), any_labels: of(Place::Any).collect() }
    }

    /// Whether nothing of it looks into stacks.
    pub(crate) fn is_empty(&self) -> bool {
        self.matchers.is_empty() && self.leaf_labels.is_empty() && self.any_labels.is_empty()
    }

    /// Whether it looks at more than leaves.
    pub(crate) fn needs_whole_stacks(&self) -> bool {
        !self.any_labels.is_empty() || self.matchers.iter().any(|matcher| matcher.label.place == Place::Any)
    }

    /// What the nodes of an answer say.
    pub(crate) fn values_of(
        &self,
        answer: &Answer,
        named: &NamedLocations,
        table: &FrameTable,
        leaf: &mut Combinations,
        any: &mut Combinations,
    ) -> NodeValues {
        let locations = 0..named.len();
        let mut values = Vec::new();
        let mut leaf_of = |lines: &[NamedLine]| {
            values.clear();
            values.extend(self.leaf_labels.iter().map(|label| value(label.part, lines.first(), table)));
            leaf.intern(&values)
        };
        let leaf_of_location: Vec<u32> = locations.clone().map(|location| leaf_of(named.lines(location))).collect();
        let leaf_of_empty = leaf_of(&[]);
        let mut out = NodeValues {
            passes: self.passes(answer, named, table),
            leaf: Vec::with_capacity(answer.nodes.len()),
            any_ends: Vec::new(),
            any: Vec::new(),
            any_of_empty: self.combination(None, table, any).into_iter().collect(),
        };
        for (i, node) in answer.nodes.iter().enumerate() {
            let of_location = leaf_of_location.get(node.location as usize).copied();
            out.leaf.push(if i == 0 { leaf_of_empty } else { of_location.unwrap_or(leaf_of_empty) });
        }
        if !self.any_labels.is_empty() {
            for location in locations {
                let start = out.any.len();
                for line in named.lines(location) {
                    let combination = self.combination(Some(line), table, any);
                    let known = |id: &u32| out.any.get(start..).unwrap_or_default().contains(id);
                    if let Some(id) = combination.filter(|id| !known(id)) {
                        out.any.push(id);
                    }
                }
                out.any_ends.push(out.any.len());
            }
        }
        out
    }

    /// The `stack_*` values of a frame; `None` where a matcher on one of these labels leaves its value out.
    fn combination(&self, line: Option<&NamedLine>, table: &FrameTable, any: &mut Combinations) -> Option<u32> {
        let values: Vec<_> = self.any_labels.iter().map(|label| value(label.part, line, table)).collect();
        let left_out = |matcher: &StackMatcher| {
            let place = self.any_labels.iter().position(|label| *label == matcher.label);
            let value = place.and_then(|i| values.get(i));
            value.is_some_and(|&value| matcher.names(&text_of(matcher.label.part, value, table)) == matcher.negated)
        };
        if self.matchers.iter().any(left_out) { None } else { Some(any.intern(&values)) }
    }

    /// Whether stacks that end at each node pass all matchers; `None`: there are no matchers.
    pub(crate) fn passes(&self, answer: &Answer, named: &NamedLocations, table: &FrameTable) -> Option<Vec<bool>> {
        let mut passes = (!self.matchers.is_empty()).then(|| vec![true; answer.nodes.len()])?;
        for matcher in self.matchers {
            let part = matcher.label.part;
            let leaf_only = matcher.label.place == Place::Leaf;
            // Many locations have the same value.
            let mut known: HashMap<PartValue, bool, RandomState> = HashMap::default();
            let mut names = |line: Option<&NamedLine>| {
                let value = value(part, line, table);
                *known.entry(value).or_insert_with(|| matcher.names(&text_of(part, value, table)))
            };
            let location_named: Vec<bool> = (0..named.len())
                .map(|location| {
                    let lines = named.lines(location);
                    if leaf_only { names(lines.first()) } else { lines.iter().any(|line| names(Some(line))) }
                })
                .collect();
            // Parents stand before their children.
            let mut named_above = vec![false; answer.nodes.len()];
            for (i, node) in answer.nodes.iter().enumerate() {
                let here = location_named.get(node.location as usize).copied().unwrap_or(false);
                let above = !leaf_only && named_above.get(node.parent as usize).copied().unwrap_or(false);
                // The root is the stack without frames, which has the value "", and no frame of any other stack.
                let named_here = if i == 0 { names(None) } else { here || above };
                if let Some(passes) = passes.get_mut(i) {
                    *passes &= named_here != matcher.negated;
                }
                if let Some(place) = named_above.get_mut(i) {
                    *place = i > 0 && named_here;
                }
            }
        }
        Some(passes)
    }
}

/// What a frame says of one part; 0 where there is no frame.
fn value(part: Part, line: Option<&NamedLine>, table: &FrameTable) -> PartValue {
    let Some(line) = line else { return 0 };
    let Some(frame) = table.frames.get(line.frame as usize) else { return 0 };
    match part {
        Part::Function => i64::from(frame.key.name),
        Part::File => i64::from(frame.key.file),
        Part::Binary => i64::from(frame.key.binary),
        Part::FrameType => i64::from(frame.key.frame_type),
        // What is unknown is 0, and nothing else is meant by what is below.
        Part::Line => line.line.max(0),
    }
}

fn text_of(part: Part, value: PartValue, table: &FrameTable) -> Cow<'_, str> {
    match part {
        Part::Line if value == 0 => Cow::Borrowed(""),
        Part::Line => Cow::Owned(value.to_string()),
        _ => Cow::Borrowed(u32::try_from(value).map_or("", |id| table.text(id))),
    }
}
