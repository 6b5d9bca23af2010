//! Labels of stacks: `leaf_function`, `stack_file` and so on.
//!
//! A `leaf_*` label is about the innermost frame of a stack's leaf. A `stack_*` label is about any frame: a stack is
//! added to the group of each distinct value that its frames have. With several `stack_*` labels, the stack is added to
//! the group of each distinct combination of values that one frame has. For a stack without frames, the value is "".

use promql_parser::label::MatchOp;
use proto::FramePlace;
use regex::{Regex, RegexBuilder};

use crate::query::error::QueryError;
use crate::query::limits::REGEX_BYTES_MAX;

/// A label of stacks. It consists of the position of a frame and a part of the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct StackLabel {
    pub(crate) place: FramePlace,
    pub(crate) part: Part,
}

/// Part of a frame that a label of stacks contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Part {
    Function,
    File,
    Line,
    Binary,
    FrameType,
}

const ALL: [(&str, StackLabel); 10] = {
    use FramePlace::{Any, Leaf};
    use Part::{Binary, File, FrameType, Function, Line};
    [
        ("leaf_function", StackLabel { place: Leaf, part: Function }),
        ("leaf_file", StackLabel { place: Leaf, part: File }),
        ("leaf_line", StackLabel { place: Leaf, part: Line }),
        ("leaf_binary", StackLabel { place: Leaf, part: Binary }),
        ("leaf_frame_type", StackLabel { place: Leaf, part: FrameType }),
        ("stack_function", StackLabel { place: Any, part: Function }),
        ("stack_file", StackLabel { place: Any, part: File }),
        ("stack_line", StackLabel { place: Any, part: Line }),
        ("stack_binary", StackLabel { place: Any, part: Binary }),
        ("stack_frame_type", StackLabel { place: Any, part: FrameType }),
    ]
};

impl StackLabel {
    /// Returns the label with this name; `None` if it is not a label of stacks.
    pub(crate) fn named(name: &str) -> Option<Self> {
        ALL.iter().find(|(known, _)| *known == name).map(|&(_, label)| label)
    }

    /// Name of the label.
    pub(crate) fn name(self) -> &'static str {
        ALL.iter().find(|&&(_, label)| label == self).map_or("", |&(name, _)| name)
    }
}

/// A matcher on a label of stacks.
#[derive(Debug)]
pub(crate) struct StackMatcher {
    pub(crate) label: StackLabel,
    test: Test,
    /// True for `!=` and `!~`. The matcher then holds if no frame equals or matches the operand.
    pub(crate) negated: bool,
}

#[derive(Debug)]
enum Test {
    Equal(String),
    Match(Regex),
}

impl StackMatcher {
    /// Converts a matcher that the parser returned.
    pub(crate) fn new(label: StackLabel, operation: &MatchOp, value: &str) -> Result<Self, QueryError> {
        let (test, negated) = match operation {
            MatchOp::Equal => (Test::Equal(value.to_owned()), false),
            MatchOp::NotEqual => (Test::Equal(value.to_owned()), true),
            MatchOp::Re(regex) => (Test::Match(anchored(pattern_of(regex))?), false),
            MatchOp::NotRe(regex) => (Test::Match(anchored(pattern_of(regex))?), true),
        };
        Ok(Self { label, test, negated })
    }

    /// Returns whether a value equals or matches the operand of the matcher. The result is the same for a negated
    /// matcher.
    pub(crate) fn names(&self, value: &str) -> bool {
        match &self.test {
            Test::Equal(named) => named == value,
            Test::Match(regex) => regex.is_match(value),
        }
    }
}

/// Returns the expression without the anchors that the parser put around it. The parser has escaped literal braces.
pub(crate) fn pattern_of(regex: &Regex) -> &str {
    let text = regex.as_str();
    text.strip_prefix("^(?:").and_then(|text| text.strip_suffix(")$")).unwrap_or(text)
}

/// Compiles an expression as nodes do. It matches whole values, and a dot matches any character, as in Prometheus.
pub(crate) fn anchored(pattern: &str) -> Result<Regex, QueryError> {
    let build = |text: &str| {
        let built = RegexBuilder::new(text).size_limit(REGEX_BYTES_MAX).dfa_size_limit(REGEX_BYTES_MAX).build();
        let pattern = || pattern.chars().take(200).collect();
        built.map_err(|source| QueryError::BadRegex { pattern: pattern(), source: Box::new(source) })
    };
    // The pattern is compiled without anchors first: `a)|(b` is valid only between the parentheses of the anchors.
    build(pattern)?;
    build(&format!("^(?s:{pattern})$"))
}
