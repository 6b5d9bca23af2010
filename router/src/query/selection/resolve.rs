//! Resolution of the metric names of a selector to profile types. The result is matchers on `__profile_type__`.
//!
//! A name is a full ID or a short name. A short name is looked up among the types that the other matchers allow. If
//! several profile types have the short name, it means the type whose sample type and unit equal those of its period.
//! So `process_cpu` is CPU time and not the number of samples. A name that no series has selects nothing.

use std::collections::BTreeSet;

use proto::answer::Missing;
use proto::label::PROFILE_TYPE_LABEL;
use proto::selection::Operation;
use proto::{ArcStr, Matcher, ProfileType, SeriesAnswer, SeriesQuery, TenantId, Window};

use crate::query::error::QueryError;
use crate::query::reader::Reader;
use crate::query::run::Run;
use crate::query::selection::selector::Selector;

/// A selector whose metric names are resolved, in the form for shards.
#[derive(Debug)]
pub(crate) struct Resolved {
    /// Matchers for shards, including the matchers for metric names.
    pub(crate) matchers: Vec<Matcher>,
    /// Profile types that the selector covers, sorted; `None` if they were not requested and the name does not
    /// determine them.
    pub(crate) types: Option<Vec<ProfileType>>,
    /// Series in the window; `None` if they were not requested.
    pub(crate) series: Option<SeriesAnswer>,
}

/// Result of resolving a selector.
#[derive(Debug, Default)]
pub(crate) struct Resolution {
    /// Resolved selector; `None` if its metric names select nothing.
    pub(crate) resolved: Option<Resolved>,
    /// Times that may have more series than were found.
    pub(crate) missing: Vec<Missing>,
}

impl From<Resolved> for Resolution {
    fn from(resolved: Resolved) -> Self {
        Self { resolved: Some(resolved), missing: Vec::new() }
    }
}

/// Facts that a caller needs besides the matchers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Want {
    /// No facts. Shards are queried only if a metric name needs it.
    Matchers,
    /// The profile types.
    Types,
    /// The profile types and the series.
    Series,
}

impl Reader {
    /// Resolves the metric names of a selector.
    ///
    /// # Errors
    /// Returns [`QueryError::AmbiguousName`], and the errors of the shards.
    pub(crate) async fn resolve(
        &self,
        tenant: &TenantId,
        selector: &Selector,
        window: Window,
        want: Want,
        run: &mut Run,
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
        let label = (want != Want::Series).then(|| PROFILE_TYPE_LABEL.to_owned());
        let query = SeriesQuery { tenant: tenant.clone(), matchers: matchers.clone(), window, label };
        let mut answer = self.list_series(&query, run).await?;
        let missing = answer.missing.clone();
        let types = choose(&selector.names, types_of(&answer))?;
        if !selector.names.is_empty() {
            let [only] = types.as_slice() else { return Ok(Resolution { resolved: None, missing }) };
            matchers.push(equal(only));
            let id = only.to_string();
            answer.series.retain(|labels| labels.get(PROFILE_TYPE_LABEL) == id);
        }
        let series = (want == Want::Series).then_some(answer);
        let resolved = Resolved { matchers, types: Some(types), series };
        Ok(Resolution { resolved: Some(resolved), missing })
    }

    /// Returns the series or values that a request selects, from the shards that can have them.
    pub(crate) async fn list_series(&self, query: &SeriesQuery, run: &mut Run) -> Result<SeriesAnswer, QueryError> {
        let shards = run.shards_of(&self.nodes, &query.tenant, &query.matchers, query.window).await?;
        self.series_of(&shards, query, run).await
    }

    async fn series_of(&self, shards: &[u32], query: &SeriesQuery, run: &mut Run) -> Result<SeriesAnswer, QueryError> {
        let reading = &run.reading();
        let calls = shards.iter().map(|&shard| async move { Ok(self.nodes.series(reading, shard, query).await?) });
        Ok(SeriesAnswer::merged(run.calls(calls.collect()).await?))
    }

    /// Like [`Reader::list_series`], but also returns the names of all sample attributes of the tenant. The names are
    /// those of whole shards, so every shard is asked: the names then do not depend on the placement of the series.
    pub(crate) async fn list_series_and_attributes(
        &self,
        query: &SeriesQuery,
        run: &mut Run,
    ) -> Result<SeriesAnswer, QueryError> {
        let shards = run.all_shards(&self.nodes).await?;
        self.series_of(&shards, query, run).await
    }
}

/// Returns the profile types whose full IDs are names or matchers of a selector. If there are several, the selector
/// matches nothing.
fn known_types(selector: &Selector) -> Option<BTreeSet<ProfileType>> {
    let by_name = selector.names.iter().map(|name| ProfileType::parse(name)).collect::<Option<Vec<_>>>()?;
    let by_matcher = selector.matchers.iter().filter_map(|matcher| {
        let is_id = matcher.name == PROFILE_TYPE_LABEL && matcher.operation == Operation::Equal;
        is_id.then(|| ProfileType::parse(&matcher.value)).flatten()
    });
    let known: BTreeSet<_> = by_name.into_iter().chain(by_matcher).collect();
    (!known.is_empty()).then_some(known)
}

fn equal(profile_type: &ProfileType) -> Matcher {
    let name = PROFILE_TYPE_LABEL.to_owned();
    Matcher { name, operation: Operation::Equal, value: profile_type.to_string() }
}

/// Returns the profile types of listed series, or those of listed values of [`PROFILE_TYPE_LABEL`].
fn types_of(answer: &SeriesAnswer) -> BTreeSet<ProfileType> {
    let of_series = answer.series.iter().map(|labels| labels.get(PROFILE_TYPE_LABEL));
    of_series.chain(answer.values.iter().map(ArcStr::as_str)).filter_map(ProfileType::parse).collect()
}

/// Returns whether a metric name is the full ID or the short name of a profile type.
pub(crate) fn is_named(profile_type: &ProfileType, name: &str) -> bool {
    profile_type.name() == name || profile_type.to_string() == name
}

/// Returns the profile types that have all the names. If there are names, at most one type remains.
fn choose(names: &[String], types: BTreeSet<ProfileType>) -> Result<Vec<ProfileType>, QueryError> {
    let mut types: Vec<_> =
        types.into_iter().filter(|candidate| names.iter().all(|name| is_named(candidate, name))).collect();
    if let Some(name) = names.first()
        && types.len() > 1
    {
        // This rule applies only to time. The period of Go's mutex profiles is `contentions/count`, but people look for
        // the delay.
        let own_period =
            |candidate: &ProfileType| candidate.sample() == candidate.period() && candidate.sample().is_time();
        if types.iter().any(own_period) {
            types.retain(own_period);
        }
        if types.len() > 1 {
            return Err(QueryError::AmbiguousName { name: name.clone(), types });
        }
    }
    Ok(types)
}
