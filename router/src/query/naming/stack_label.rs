//! Labels that look into stacks: `leaf_function`, `stack_file` and so on.
//!
//! `leaf_*` is the innermost frame of a stack's leaf. `stack_*` is any frame: a stack counts once under each distinct value,
//! and, where several `stack_*` labels are grouped by, once under each distinct combination that one of its frames has.
//! A stack without frames has the value "".

use promql_parser::label::MatchOp;
pub(crate) use proto::FramePlace as Place;
use regex::{Regex, RegexBuilder};

use crate::query::error::QueryError;
use crate::query::limits::REGEX_BYTES_MAX;

/// One such label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct StackLabel {
    pub(crate) place: Place,
    pub(crate) part: Part,
}

/// What of a frame a label tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Part {
    Function,
    File,
    Line,
    Binary,
    FrameType,
}

const ALL: [(&str, StackLabel); 10] = {
    use Part::{Binary, File, FrameType, Function, Line};
    use Place::{Any, Leaf};
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
    /// The label of this name, if it is one of these.
    pub(crate) fn named(name: &str) -> Option<Self> {
        ALL.iter().find(|(known, _)| *known == name).map(|&(_, label)| label)
    }

    /// As it is written.
    pub(crate) fn name(self) -> &'static str {
        ALL.iter().find(|&&(_, label)| label == self).map_or("", |&(name, _)| name)
    }
}

/// A condition on a label that looks into stacks.
#[derive(Debug)]
pub(crate) struct StackMatcher {
    pub(crate) label: StackLabel,
    test: Test,
    /// `!=` and `!~`: it holds where the opposite does not hold for any frame.
    pub(crate) negated: bool,
}

#[derive(Debug)]
enum Test {
    Equal(String),
    Match(Regex),
}

impl StackMatcher {
    /// A matcher as the parser has it.
    pub(crate) fn new(label: StackLabel, operation: &MatchOp, value: &str) -> Result<Self, QueryError> {
        let (test, negated) = match operation {
            MatchOp::Equal => (Test::Equal(value.to_owned()), false),
            MatchOp::NotEqual => (Test::Equal(value.to_owned()), true),
            MatchOp::Re(regex) => (Test::Match(anchored(pattern_of(regex))?), false),
            MatchOp::NotRe(regex) => (Test::Match(anchored(pattern_of(regex))?), true),
        };
        Ok(Self { label, test, negated })
    }

    /// Whether a value is what the matcher names, be that wanted or not.
    pub(crate) fn names(&self, value: &str) -> bool {
        match &self.test {
            Test::Equal(named) => named == value,
            Test::Match(regex) => regex.is_match(value),
        }
    }
}

/// The expression inside the anchors that the parser puts around it, literal braces escaped by the parser.
pub(crate) fn pattern_of(regex: &Regex) -> &str {
    let text = regex.as_str();
    text.strip_prefix("^(?:").and_then(|text| text.strip_suffix(")$")).unwrap_or(text)
}

/// The expression as nodes compile it too: of the whole value, a dot being any character, as Prometheus has it.
pub(crate) fn anchored(pattern: &str) -> Result<Regex, QueryError> {
    let build = |text: &str| {
        let built = RegexBuilder::new(text).size_limit(REGEX_BYTES_MAX).dfa_size_limit(REGEX_BYTES_MAX).build();
        let pattern = || pattern.chars().take(200).collect();
        built.map_err(|source| QueryError::BadRegex { pattern: pattern(), source: Box::new(source) })
    };
    // By itself first: `a)|(b` would only be one between the parentheses of the anchors.
    build(pattern)?;
    build(&format!("^(?s:{pattern})$"))
}
