//! A selector: metric names, matchers on labels, and matchers on stacks. Matchers on stacks need the names of frames.

use std::sync::Arc;

use promql_parser::label::{MatchOp, Matcher as ParsedMatcher};
use promql_parser::parser::VectorSelector;
use proto::Matcher;
use proto::label::PROFILE_TYPE_LABEL;
use proto::location_sets::STACK_FILTERS_MAX;
use proto::selection::Operation;

use crate::query::error::QueryError;
use crate::query::naming::stack_label::{StackLabel, StackMatcher, anchored, pattern_of};
use crate::query::selection::labels::NAME_LABEL;

/// A selector. A sample is selected if all parts match.
#[derive(Debug)]
pub(crate) struct Selector {
    /// Exact metric names, each a full ID or a short name.
    pub(crate) names: Vec<String>,
    /// Matchers on labels and sample attributes.
    pub(crate) matchers: Vec<Matcher>,
    /// Matchers on labels of stacks.
    pub(crate) stack_matchers: Arc<[StackMatcher]>,
}

impl Selector {
    /// Converts a parsed selector, except for its offset and `@`.
    pub(crate) fn new(parsed: &VectorSelector) -> Result<Self, QueryError> {
        if !parsed.matchers.or_matchers.is_empty() {
            let feature = "`or` between matchers".to_owned();
            return Err(QueryError::Unsupported {
                feature,
                supported: "matchers between commas, all of which must hold",
            });
        }
        let names = parsed.name.iter().cloned().collect();
        let mut selector = Self { names, matchers: Vec::new(), stack_matchers: Arc::default() };
        let mut stack_matchers = Vec::new();
        for matcher in &parsed.matchers.matchers {
            selector.add(matcher, &mut stack_matchers)?;
        }
        if stack_matchers.len() > STACK_FILTERS_MAX {
            return Err(QueryError::TooComplex { what: "matchers on labels of stacks", max: STACK_FILTERS_MAX });
        }
        selector.stack_matchers = stack_matchers.into();
        Ok(selector)
    }

    fn add(&mut self, parsed: &ParsedMatcher, stack_matchers: &mut Vec<StackMatcher>) -> Result<(), QueryError> {
        if parsed.name == NAME_LABEL && matches!(parsed.op, MatchOp::Equal) {
            self.names.push(parsed.value.clone());
        } else if let Some(label) = StackLabel::named(&parsed.name) {
            stack_matchers.push(StackMatcher::new(label, &parsed.op, &parsed.value)?);
        } else {
            // The name of a metric is the full ID of its profile type.
            let name = if parsed.name == NAME_LABEL { PROFILE_TYPE_LABEL } else { parsed.name.as_str() };
            self.matchers.push(shard_matcher(name, parsed)?);
        }
        Ok(())
    }
}

fn shard_matcher(name: &str, parsed: &ParsedMatcher) -> Result<Matcher, QueryError> {
    let (operation, value) = match &parsed.op {
        MatchOp::Equal => (Operation::Equal, parsed.value.as_str()),
        MatchOp::NotEqual => (Operation::NotEqual, parsed.value.as_str()),
        MatchOp::Re(regex) => (Operation::Match, pattern_of(regex)),
        MatchOp::NotRe(regex) => (Operation::NotMatch, pattern_of(regex)),
    };
    if matches!(operation, Operation::Match | Operation::NotMatch) {
        // Every node would refuse an invalid expression. Refused here, it is an error of the request.
        anchored(value)?;
    }
    Ok(Matcher { name: name.to_owned(), operation, value: value.to_owned() })
}
