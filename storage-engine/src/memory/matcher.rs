//! Compiled matchers. A matcher applies to a label of the series. If the series does not have the label, the matcher
//! applies to an attribute of the samples.

use proto::selection::Operation;
use proto::{Dictionary, LabelSet, Matcher, limits};
use regex::{Regex, RegexBuilder};

use crate::error::SelectError;

/// Maximum size of a compiled regular expression, in bytes. A larger one could exhaust the process's memory.
const REGEX_BYTES_MAX: usize = 1 << 20;

/// A matcher with its compiled regular expression.
#[derive(Clone, Debug)]
pub(crate) struct ReadyMatcher {
    pub(crate) name: String,
    test: Test,
}

#[derive(Clone, Debug)]
enum Test {
    Equal(String),
    NotEqual(String),
    Match(Regex),
    NotMatch(Regex),
}

impl ReadyMatcher {
    /// Compiles all matchers of a query, of which only a limited number may be regular expressions.
    pub(crate) fn all(matchers: &[Matcher]) -> Result<Vec<Self>, SelectError> {
        let is_regex = |matcher: &&Matcher| matches!(matcher.operation, Operation::Match | Operation::NotMatch);
        if matchers.iter().filter(is_regex).count() > limits::QUERY_REGEXES_MAX {
            return Err(SelectError::TooManyRegexes { count_max: limits::QUERY_REGEXES_MAX });
        }
        matchers.iter().map(Self::new).collect()
    }

    pub(crate) fn new(matcher: &Matcher) -> Result<Self, SelectError> {
        let regex = || {
            // The expression is anchored, and a dot matches any character, as in Prometheus.
            let anchored = format!("^(?s:{})$", matcher.value);
            RegexBuilder::new(&anchored)
                .size_limit(REGEX_BYTES_MAX)
                .dfa_size_limit(REGEX_BYTES_MAX)
                .build()
                .map_err(|source| SelectError::BadRegex { pattern: matcher.value.clone(), source: Box::new(source) })
        };
        let test = match matcher.operation {
            Operation::Equal => Test::Equal(matcher.value.clone()),
            Operation::NotEqual => Test::NotEqual(matcher.value.clone()),
            Operation::Match => Test::Match(regex()?),
            Operation::NotMatch => Test::NotMatch(regex()?),
        };
        Ok(Self { name: matcher.name.clone(), test })
    }

    /// Returns the only value that the matcher accepts; `None` if the matcher is not an equality.
    pub(crate) fn only_value(&self) -> Option<&str> {
        match &self.test {
            Test::Equal(wanted) => Some(wanted),
            _ => None,
        }
    }

    pub(crate) fn accepts(&self, value: &str) -> bool {
        match &self.test {
            Test::Equal(wanted) => value == wanted,
            Test::NotEqual(unwanted) => value != unwanted,
            Test::Match(regex) => regex.is_match(value),
            Test::NotMatch(regex) => !regex.is_match(value),
        }
    }
}

/// Returns the matchers that apply to the attributes of a series' samples; `None` if a label excludes the series.
pub(crate) fn on_series<'a>(matchers: &'a [ReadyMatcher], labels: &LabelSet) -> Option<Vec<&'a ReadyMatcher>> {
    let mut on_samples = Vec::new();
    for matcher in matchers {
        match labels.get(&matcher.name) {
            "" => on_samples.push(matcher),
            value if !matcher.accepts(value) => return None,
            _ => {}
        }
    }
    Some(on_samples)
}

/// Returns the value of an attribute, by the name that queries use; "" if the attribute is missing.
pub(crate) fn attribute(dictionary: &Dictionary, attribute_set: u32, name: &str) -> String {
    dictionary
        .attribute_sets
        .get(attribute_set)
        .find(|attribute| is_written_as(dictionary.strings.get(attribute.key), name))
        .map_or_else(String::new, |attribute| attribute.value.render(&dictionary.strings))
}

/// Returns whether `name` is the form in which queries write an attribute key. The key itself may have dots. Allocates
/// nothing if both are equal.
fn is_written_as(key: &str, name: &str) -> bool {
    key == name || (key.len() <= name.len().saturating_mul(4) && proto::label::sanitize_label_name(key) == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_regular_expressions_of_a_query_is_limited() {
        let matcher = Matcher { name: "pod".to_owned(), operation: Operation::Match, value: "a.*".to_owned() };
        let matchers = vec![matcher; limits::QUERY_REGEXES_MAX + 1];
        assert_eq!(ReadyMatcher::all(&matchers[1..]).map(|ready| ready.len()).ok(), Some(limits::QUERY_REGEXES_MAX));
        assert!(matches!(ReadyMatcher::all(&matchers), Err(SelectError::TooManyRegexes { .. })));
    }
}
