//! Which profile types a selector covers: metric names become matchers on `__profile_type__`.
//!
//! A name is a full id, or a short name. A short name is resolved after the other matchers, to the type whose sample type and
//! unit are its period's (so `process_cpu` is CPU time and not the count of samples). A name that no series has selects nothing.

use std::collections::BTreeSet;

use proto::answer::Missing;
use proto::label::PROFILE_TYPE_LABEL;
use proto::selection::Operation;
use proto::{Matcher, ProfileType, SeriesAnswer, TenantId, Window};

use crate::nodes::Nodes;
use crate::query::error::QueryError;
use crate::query::selection::selector::Selector;

/// A selector as shards understand it.
#[derive(Debug)]
pub(crate) struct Resolved {
    /// What is sent, names included.
    pub(crate) matchers: Vec<Matcher>,
    /// What it covers, sorted: all types, if they were asked for or the name says it.
    pub(crate) types: Option<Vec<ProfileType>>,
    /// The series in the window, if they were asked for.
    pub(crate) series: Option<SeriesAnswer>,
}

/// What a selector covers, as far as that is known.
#[derive(Debug, Default)]
pub(crate) struct Resolution {
    /// None: its names select nothing.
    pub(crate) resolved: Option<Resolved>,
    /// Times in which there may be more.
    pub(crate) missing: Vec<Missing>,
}

impl From<Resolved> for Resolution {
    fn from(resolved: Resolved) -> Self {
        Self { resolved: Some(resolved), missing: Vec::new() }
    }
}

/// What is asked for besides the names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    /// Nothing: shards are only asked where a name needs it.
    Matchers,
    /// The types.
    Types,
    /// The types and the series.
    Series,
}

/// Resolves a selector.
///
/// # Errors
/// [`QueryError::AmbiguousName`], and those of the shards.
pub(crate) async fn resolve(
    nodes: &Nodes,
    tenant: &TenantId,
    selector: &Selector,
    window: Window,
    want: Want,
) -> Result<Resolution, QueryError> {
    let mut matchers = selector.matchers.clone();
    if let Some(known) = known_types(selector)
        && want != Want::Series
    {
        matchers.extend(known.iter().map(equal));
        let types = known.into_iter().collect::<Vec<_>>();
        if types.len() > 1 {
            return Ok(Resolution::default());
        }
        return Ok(Resolved { matchers, types: Some(types), series: None }.into());
    }
    if selector.names.is_empty() && want == Want::Matchers {
        return Ok(Resolved { matchers, types: None, series: None }.into());
    }
    let mut answer = nodes.series(tenant, &matchers, window).await?;
    let missing = answer.missing.clone();
    let types = choose(&selector.names, types_of(&answer))?;
    if !selector.names.is_empty() {
        let [only] = types.as_slice() else { return Ok(Resolution { resolved: None, missing }) };
        matchers.push(equal(only));
        let id = only.to_string();
        answer.series.retain(|labels| labels.get(PROFILE_TYPE_LABEL) == id);
    }
    let resolved = Resolved { matchers, types: Some(types), series: Some(answer) };
    Ok(Resolution { resolved: Some(resolved), missing })
}

/// The types of a selector that says them: full ids, as names or as matchers. More than one can only be none.
fn known_types(selector: &Selector) -> Option<BTreeSet<ProfileType>> {
    let by_name = selector.names.iter().map(|name| ProfileType::parse(name)).collect::<Option<Vec<_>>>()?;
    let by_matcher = selector.matchers.iter().filter_map(|matcher| {
        let says = matcher.name == PROFILE_TYPE_LABEL && matcher.operation == Operation::Equal;
        says.then(|| ProfileType::parse(&matcher.value)).flatten()
    });
    let known: BTreeSet<_> = by_name.into_iter().chain(by_matcher).collect();
    (!known.is_empty()).then_some(known)
}

fn equal(profile_type: &ProfileType) -> Matcher {
    let name = PROFILE_TYPE_LABEL.to_owned();
    Matcher { name, operation: Operation::Equal, value: profile_type.to_string() }
}

/// All types of some series, sorted.
pub(crate) fn types_of(answer: &SeriesAnswer) -> BTreeSet<ProfileType> {
    answer.series.iter().filter_map(|labels| ProfileType::parse(labels.get(PROFILE_TYPE_LABEL))).collect()
}

/// Whether a metric name is a type's full id or short name.
pub(crate) fn is_named(profile_type: &ProfileType, name: &str) -> bool {
    profile_type.name() == name || profile_type.to_string() == name
}

/// The types that all names are names of; one, if there are names.
fn choose(names: &[String], types: BTreeSet<ProfileType>) -> Result<Vec<ProfileType>, QueryError> {
    let mut types: Vec<_> =
        types.into_iter().filter(|candidate| names.iter().all(|name| is_named(candidate, name))).collect();
    if let Some(name) = names.first()
        && types.len() > 1
    {
        let own_period = |candidate: &ProfileType| candidate.sample() == candidate.period();
        if types.iter().any(own_period) {
            types.retain(own_period);
        }
        if types.len() > 1 {
            return Err(QueryError::AmbiguousName { name: name.clone(), types });
        }
    }
    Ok(types)
}
