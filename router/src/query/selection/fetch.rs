//! Requests to shards for sums. Sets of locations select the stacks, and a response defines only the locations that the
//! router does not know yet.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use proto::{Answer, LocationSets, ResponseTooLarge, Selection, StackDetail, TenantId, limits};

use crate::nodes::Reading;
use crate::query::error::QueryError;
use crate::query::limits::NAMING_ROUNDS_MAX;
use crate::query::naming::frame::MissingNames;
use crate::query::naming::named_answers::ShardAnswer;
use crate::query::naming::namer::Namer;
use crate::query::naming::stack_label::StackMatcher;
use crate::query::naming::tenant_names::{Numbers, ShardNames, TenantNames};
use crate::query::reader::Reader;
use crate::query::run::{Run, Worker};

/// The responses of the shards that were asked, in the order of the shards, with the names of the stacks' frames.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fetched {
    pub(crate) answers: Vec<ShardAnswer>,
    pub(crate) names: TenantNames,
    /// Files whose names were missing while stacks were selected by name.
    pub(crate) missing_names: BTreeSet<MissingNames>,
}

impl Fetched {
    /// Iterates over the responses, without the numbers of their shards.
    pub(crate) fn plain(&self) -> impl Iterator<Item = &Answer> {
        self.answers.iter().map(|shard| &shard.answer)
    }
}

/// Size of all responses to one selection together, whose limits are those of one response.
#[derive(Debug)]
struct Size {
    cells_max: usize,
    cells: AtomicUsize,
    nodes: AtomicUsize,
    group_bytes: AtomicUsize,
}

impl Size {
    /// Begins with nothing. `tenant_max` is the tenant's own limit on cells.
    fn new(tenant_max: Option<NonZeroU64>) -> Self {
        let tenant_max = tenant_max.map_or(usize::MAX, |max| usize::try_from(max.get()).unwrap_or(usize::MAX));
        Self {
            cells_max: limits::QUERY_CELLS_MAX.min(tenant_max),
            cells: AtomicUsize::default(),
            nodes: AtomicUsize::default(),
            group_bytes: AtomicUsize::default(),
        }
    }

    /// Adds a response.
    ///
    /// # Errors
    /// Returns [`QueryError::ResponseTooLarge`] if the responses exceed a limit together.
    fn add(&self, answer: &Answer) -> Result<(), QueryError> {
        let add = |to: &AtomicUsize, size: usize| to.fetch_add(size, Ordering::Relaxed) + size;
        if add(&self.cells, answer.cells.len()) > self.cells_max {
            return Err(QueryError::too_many_cells(self.cells_max));
        }
        if add(&self.nodes, answer.nodes.len()) > limits::QUERY_NODES_MAX {
            return Err(ResponseTooLarge::Nodes { max: limits::QUERY_NODES_MAX }.into());
        }
        let bytes = answer.groups.iter().map(proto::LabelSet::memory_bytes).sum();
        if add(&self.group_bytes, bytes) > limits::QUERY_GROUP_BYTES_MAX {
            return Err(ResponseTooLarge::GroupBytes { max: limits::QUERY_GROUP_BYTES_MAX }.into());
        }
        Ok(())
    }
}

impl Reader {
    /// Fetches the sums of the stacks that all matchers select, from all shards that can have them. Repeats the request
    /// to a shard if names were missing, or if the shard has given its locations new numbers.
    ///
    /// # Errors
    /// Returns [`QueryError::StacksKeepChanging`] if new locations keep appearing, [`QueryError::ResponseTooLarge`] if
    /// the responses exceed a limit together, and the error of the first shard that fails. A shard that does not answer
    /// is recorded in `run` instead.
    pub(crate) async fn fetch(
        &self,
        selection: &Selection,
        matchers: &Arc<[StackMatcher]>,
        run: &mut Run,
    ) -> Result<Fetched, QueryError> {
        let tenant = &selection.tenant;
        let mut shards = run.shards_of(&self.nodes, tenant, &selection.matchers, selection.fold.window()).await?;
        let reads_stacks = selection.stacks != StackDetail::None || !matchers.is_empty();
        let mut names = if reads_stacks { self.names.of(tenant) } else { TenantNames::default() };
        let mut answers: BTreeMap<u32, ShardAnswer> = BTreeMap::new();
        let mut missing_names = BTreeSet::new();
        for _ in 0..NAMING_ROUNDS_MAX {
            let asked = shards.iter().filter(|shard| !answers.contains_key(shard)).map(|&shard| names.of(shard));
            let (asked, renumbered) = self.with_locations(&names, asked.collect(), tenant, matchers, run).await?;
            let mut are_replaced = false;
            for shard in renumbered {
                are_replaced |= self.names.replace(tenant, &names, &shard);
            }
            if are_replaced {
                names = self.names.of(tenant);
                answers.clear();
                continue;
            }
            let sets = if matchers.is_empty() {
                asked.iter().map(|shard| LocationSets { known: shard.known(), filters: Vec::new() }).collect()
            } else {
                self.sets(&names, &asked, tenant, matchers, &mut missing_names, run).await?
            };
            let size = &Size::new(self.tenants.limits(tenant).query_cells_max);
            answers.values().try_for_each(|known| size.add(&known.answer))?;
            let reading = &run.reading();
            let calls = asked.into_iter().zip(sets).map(|(names, locations)| async move {
                let known = locations.known.count;
                let selection = Selection { locations, ..selection.clone() };
                let answer = self.nodes.select(reading, names.shard(), selection).await?;
                if answer.lacks_locations || !answer.dictionary.locations.is_empty() {
                    names.note_missing();
                }
                size.add(&answer)?;
                Ok::<_, QueryError>((!answer.lacks_locations).then_some(ShardAnswer { names, known, answer }))
            });
            let fetched = run.calls(calls.collect()).await?;
            answers.extend(fetched.into_iter().flatten().map(|answer| (answer.names.shard(), answer)));
            shards.retain(|shard| run.answers(*shard));
            answers.retain(|shard, _| run.answers(*shard));
            if answers.len() == shards.len() {
                return Ok(Fetched { answers: answers.into_values().collect(), names, missing_names });
            }
        }
        Err(QueryError::StacksKeepChanging)
    }

    /// Loads the locations that the query needs and the router does not know yet. Returns the shards whose locations
    /// are known now, and the shards that have given their locations new numbers.
    async fn with_locations(
        &self,
        names: &TenantNames,
        shards: Vec<ShardNames>,
        tenant: &TenantId,
        matchers: &Arc<[StackMatcher]>,
        run: &mut Run,
    ) -> Result<(Vec<ShardNames>, Vec<ShardNames>), QueryError> {
        // Without matchers on stacks, each response defines every location that the router does not know.
        let needs_all = !matchers.is_empty();
        let is_worth_it = needs_all || !self.names.is_too_large(tenant);
        let loads_locations =
            |shard: &ShardNames| shard.is_missing_some().map_or(needs_all, |is_missing| is_missing && is_worth_it);
        if !shards.iter().any(loads_locations) {
            return Ok((shards, Vec::new()));
        }
        let worker = &run.worker();
        let reading = &run.reading();
        let calls = shards.into_iter().map(|shard| async move {
            let numbers = if loads_locations(&shard) {
                self.load_locations(names, &shard, tenant, (worker, reading)).await?
            } else {
                Numbers::Same
            };
            Ok::<_, QueryError>((shard, numbers))
        });
        let loaded = run.calls(calls.collect()).await?;
        let (same, new): (Vec<_>, Vec<_>) = loaded.into_iter().partition(|(_, numbers)| *numbers == Numbers::Same);
        let shards = |loaded: Vec<(ShardNames, Numbers)>| loaded.into_iter().map(|(shard, _)| shard).collect();
        Ok((shards(same), shards(new)))
    }

    /// Loads the locations of a shard that the router does not know yet, page by page.
    async fn load_locations(
        &self,
        names: &TenantNames,
        shard: &ShardNames,
        tenant: &TenantId,
        (worker, reading): (&Worker, &Reading),
    ) -> Result<Numbers, QueryError> {
        loop {
            let known = shard.known();
            let page = self.nodes.locations(reading, shard.shard(), tenant, known).await?;
            let count = page.count;
            let to = names.clone();
            let of_shard = shard.clone();
            if worker.blocking(move |_| to.add(&of_shard, &page)).await? == Numbers::New {
                return Ok(Numbers::New);
            }
            let now = shard.known();
            if now.count >= count || now == known {
                return Ok(Numbers::Same);
            }
        }
    }

    /// Returns the sets of locations for each shard. Adds the files whose names are missing to `missing_names`.
    async fn sets(
        &self,
        names: &TenantNames,
        shards: &[ShardNames],
        tenant: &TenantId,
        matchers: &Arc<[StackMatcher]>,
        missing_names: &mut BTreeSet<MissingNames>,
        run: &mut Run,
    ) -> Result<Vec<LocationSets>, QueryError> {
        let namer = self.namer(tenant, run);
        let cache = self.names.clone();
        let tenant = tenant.clone();
        let names = names.clone();
        let shards = shards.to_vec();
        let matchers = Arc::clone(matchers);
        let named = run.blocking(move |_, timings| {
            let named = timings.measure("sets", || names.sets(&shards, &matchers, &namer));
            cache.set_size(&tenant, &names, named.names_bytes);
            Ok(named)
        });
        let named = named.await?;
        missing_names.extend(named.missing_names);
        Ok(named.sets)
    }

    /// Makes the namer of one query of a tenant.
    pub(crate) fn namer(&self, tenant: &TenantId, run: &Run) -> Namer {
        Namer::new(self.symbols.clone(), tenant, run.symbols_deadline())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses_have_the_limits_of_one_response_together() {
        let size = Size::new(None);
        let nodes = vec![proto::answer::Node { parent: 0, location: 0 }; limits::QUERY_NODES_MAX / 2];
        let half = Answer { nodes, ..Answer::default() };
        assert!(size.add(&half).is_ok() && size.add(&half).is_ok());
        let one = Answer { nodes: half.nodes[..1].to_vec(), ..Answer::default() };
        let error = size.add(&one).unwrap_err().to_string();
        assert!(error.contains("8000000 frames in all stacks") && error.contains("fewer services"), "{error}");
    }
}
