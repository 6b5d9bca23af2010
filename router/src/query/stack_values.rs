//! What labels that look into stacks say of the nodes of one answer: which nodes pass the matchers, and under which values
//! of the grouped labels a node's stack counts.

use std::collections::HashMap;

use proto::Answer;

use crate::query::frame::{FrameTable, NamedLine, NamedLocations};
use crate::query::stack_label::{Part, Place, StackLabel, StackMatcher};

/// Distinct combinations of values of some labels, by index.
#[derive(Debug, Default)]
pub(crate) struct Combinations {
    ids: HashMap<Vec<String>, u32>,
    pub(crate) values: Vec<Vec<String>>,
}

impl Combinations {
    fn intern(&mut self, values: Vec<String>) -> u32 {
        let next = u32::try_from(self.values.len()).unwrap_or(u32::MAX);
        if let Some(&id) = self.ids.get(&values) {
            return id;
        }
        self.values.push(values.clone());
        self.ids.insert(values, next);
        next
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
    /// Whether stacks that end at a node pass all matchers.
    pub(crate) passes: Vec<bool>,
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
        let leaf_of = |lines: &[NamedLine]| {
            self.leaf_labels.iter().map(|label| value(label.part, lines.first(), table)).collect::<Vec<_>>()
        };
        let leaf_of_location: Vec<u32> =
            locations.clone().map(|location| leaf.intern(leaf_of(named.lines(location)))).collect();
        let leaf_of_empty = leaf.intern(leaf_of(&[]));
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
            place.and_then(|i| values.get(i)).is_some_and(|value| matcher.names(value) == matcher.negated)
        };
        if self.matchers.iter().any(left_out) { None } else { Some(any.intern(values)) }
    }

    fn passes(&self, answer: &Answer, named: &NamedLocations, table: &FrameTable) -> Vec<bool> {
        let mut passes = vec![true; answer.nodes.len()];
        for matcher in self.matchers {
            let part = matcher.label.part;
            let leaf_only = matcher.label.place == Place::Leaf;
            let names = |line: Option<&NamedLine>| matcher.names(&value(part, line, table));
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
        passes
    }
}

/// What a frame says of one part; "" where there is no frame.
fn value(part: Part, line: Option<&NamedLine>, table: &FrameTable) -> String {
    let Some(line) = line else { return String::new() };
    let Some(frame) = table.frames.get(line.frame as usize) else { return String::new() };
    match part {
        Part::Function => table.text(frame.key.name).to_owned(),
        Part::File => table.text(frame.key.file).to_owned(),
        Part::Binary => table.text(frame.key.binary).to_owned(),
        Part::FrameType => table.text(frame.key.frame_type).to_owned(),
        Part::Line if line.line > 0 => line.line.to_string(),
        Part::Line => String::new(),
    }
}
