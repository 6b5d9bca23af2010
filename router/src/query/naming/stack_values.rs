//! Values of labels of stacks. Tests frames by matchers, and computes the values that define the groups of a stack.

use std::borrow::Cow;
use std::collections::HashMap;

use foldhash::fast::RandomState;
use proto::{Answer, ArcStr, FramePlace, StackDetail};

use crate::query::naming::frame::{FrameTable, KeptLine, NamedLine, NamedLocations};
use crate::query::naming::stack_label::{Part, StackLabel, StackMatcher};

/// Value of one part of a frame: the ID of a text of the table, or a line number. 0 means "" in both cases.
type PartValue = i64;

/// Distinct combinations of the values of some labels. Each combination has an index.
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

    /// Number of combinations.
    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }

    /// Returns the names and values of one combination, given its labels.
    pub(crate) fn texts(
        &self,
        id: u32,
        labels: &[StackLabel],
        table: &FrameTable,
    ) -> impl Iterator<Item = (ArcStr, ArcStr)> {
        let values = self.values.get(id as usize).map(AsRef::as_ref).unwrap_or_default();
        let text = |(label, &value): (&StackLabel, &PartValue)| {
            (label.name().into(), text_of(label.part, value, table).into())
        };
        labels.iter().zip(values).map(text)
    }
}

/// Labels of stacks by which one selector of a query matches and groups.
#[derive(Debug)]
pub(crate) struct StackGrouping<'a> {
    pub(crate) matchers: &'a [StackMatcher],
    pub(crate) leaf_labels: Vec<StackLabel>,
    pub(crate) any_labels: Vec<StackLabel>,
}

/// Label values of the nodes of one response, as indices of combinations.
#[derive(Debug)]
pub(crate) struct NodeValues {
    /// For each node, the combination of its `leaf_*` values.
    pub(crate) leaf: Vec<u32>,
    /// End of each location's combinations in `any`. Location i has the distinct combinations of its frames' `stack_*`
    /// values from `any_ends[i - 1]` (or 0) to `any_ends[i]`.
    any_ends: Vec<usize>,
    any: Vec<u32>,
    /// Combinations of `stack_*` values for a stack without frames.
    pub(crate) any_of_empty: Vec<u32>,
}

impl NodeValues {
    /// Returns the distinct combinations of `stack_*` values that the frames of a location have.
    pub(crate) fn any(&self, location: u32) -> &[u32] {
        let i = location as usize;
        let start = i.checked_sub(1).and_then(|before| self.any_ends.get(before)).copied().unwrap_or(0);
        self.any_ends.get(i).and_then(|&end| self.any.get(start..end)).unwrap_or_default()
    }
}

impl<'a> StackGrouping<'a> {
    /// Makes a grouping. `labels` are all labels by which the samples of the selector are grouped.
    pub(crate) fn new(matchers: &'a [StackMatcher], labels: &[String]) -> Self {
        let of = |place| labels.iter().filter_map(|name| StackLabel::named(name)).filter(move |l| l.place == place);
        Self { matchers, leaf_labels: of(FramePlace::Leaf).collect(), any_labels: of(FramePlace::Any).collect() }
    }

    /// Returns the part of the stacks that shards must send. Shards apply the matchers themselves.
    pub(crate) fn detail(&self) -> StackDetail {
        if !self.any_labels.is_empty() {
            StackDetail::Full
        } else if !self.leaf_labels.is_empty() {
            StackDetail::Leaf
        } else {
            StackDetail::None
        }
    }

    /// Returns the label values of the nodes of a response.
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

    /// Returns the combination of a frame's `stack_*` values; `None` if a matcher on one of the labels excludes its
    /// value.
    fn combination(&self, line: Option<&NamedLine>, table: &FrameTable, any: &mut Combinations) -> Option<u32> {
        let values: Vec<_> = self.any_labels.iter().map(|label| value(label.part, line, table)).collect();
        let is_excluded = |matcher: &StackMatcher| {
            let index = self.any_labels.iter().position(|label| *label == matcher.label);
            let value = index.and_then(|i| values.get(i));
            value.is_some_and(|&value| matcher.names(&text_of(matcher.label.part, value, table)) == matcher.negated)
        };
        if self.matchers.iter().any(is_excluded) { None } else { Some(any.intern(&values)) }
    }
}

/// A matcher that tests many frames. It remembers results, because many frames have the same value.
#[derive(Debug)]
pub(crate) struct FrameTest<'a> {
    matcher: &'a StackMatcher,
    table: &'a FrameTable,
    known: HashMap<PartValue, bool, RandomState>,
}

impl StackMatcher {
    /// Makes a test of the frames of a table by this matcher.
    pub(crate) fn test<'a>(&'a self, table: &'a FrameTable) -> FrameTest<'a> {
        FrameTest { matcher: self, table, known: HashMap::default() }
    }
}

impl FrameTest<'_> {
    /// Returns whether a frame's value equals or matches the operand. The result is the same for a negated matcher. If
    /// there is no frame, the value is "".
    pub(crate) fn holds(&mut self, line: Option<&NamedLine>) -> bool {
        let Self { matcher, table, known } = self;
        let part = matcher.label.part;
        let value = value(part, line, table);
        *known.entry(value).or_insert_with(|| matcher.names(&text_of(part, value, table)))
    }

    /// Returns whether [`FrameTest::holds`] is true for the innermost frame of a location, or for any frame, depending
    /// on the matcher's label.
    pub(crate) fn holds_for(&mut self, lines: &[KeptLine]) -> bool {
        match self.matcher.label.place {
            FramePlace::Leaf => self.holds(lines.first().map(|line| &line.line)),
            FramePlace::Any => lines.iter().any(|line| self.holds(Some(&line.line))),
        }
    }
}

/// Returns the value of one part of a frame; 0 if there is no frame.
fn value(part: Part, line: Option<&NamedLine>, table: &FrameTable) -> PartValue {
    let Some(line) = line else { return 0 };
    let Some(key) = table.key(line.frame) else { return 0 };
    match part {
        Part::Function => i64::from(key.name),
        Part::File => i64::from(key.file),
        Part::Binary => i64::from(key.binary),
        Part::FrameType => i64::from(key.frame_type),
        // Unknown lines are 0 or negative.
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
