//! Requests to shards for sums. Sets of locations select the stacks, and a response defines only the locations that the
//! router does not know yet.

use std::collections::BTreeSet;
use std::sync::Arc;

use proto::{Answer, LocationSets, Selection, StackDetail};

use crate::query::error::QueryError;
use crate::query::limits::NAMING_ROUNDS_MAX;
use crate::query::naming::frame::MissingNames;
use crate::query::naming::namer::Namer;
use crate::query::naming::stack_label::StackMatcher;
use crate::query::naming::tenant_names::{Generation, NamedSets, ShardAnswer, TenantNames};
use crate::query::reader::Reader;
use crate::query::run::Run;

/// The responses of all shards, with the names of the stacks' frames.
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

/// Result of one attempt to fetch sums with the names that are known so far.
enum Attempt {
    Fetched {
        answers: Vec<ShardAnswer>,
        missing_names: BTreeSet<MissingNames>,
    },
    /// Names were missing, or a shard has given its locations new numbers. The next attempt has the missing names.
    NamesChanged,
}

impl Reader {
    /// Fetches the sums of the stacks that all matchers select, from all shards.
    ///
    /// # Errors
    /// Returns [`QueryError::StacksKeepChanging`] if new locations keep appearing, and the errors of the shards.
    pub(crate) async fn fetch(
        &self,
        selection: &Selection,
        matchers: &Arc<[StackMatcher]>,
        run: &mut Run,
    ) -> Result<Fetched, QueryError> {
        let reads_stacks = selection.stacks != StackDetail::None || !matchers.is_empty();
        let mut names = if reads_stacks { self.names.of(&selection.tenant) } else { TenantNames::default() };
        for _ in 0..NAMING_ROUNDS_MAX {
            match self.fetch_with(&mut names, selection, matchers, run).await? {
                Attempt::Fetched { answers, missing_names } => return Ok(Fetched { answers, names, missing_names }),
                Attempt::NamesChanged => {}
            }
        }
        Err(QueryError::StacksKeepChanging)
    }

    async fn fetch_with(
        &self,
        names: &mut TenantNames,
        selection: &Selection,
        matchers: &Arc<[StackMatcher]>,
        run: &mut Run,
    ) -> Result<Attempt, QueryError> {
        let mut answers = Vec::new();
        let mut missing_names = BTreeSet::new();
        for shard in self.nodes.placement().shards() {
            // Without matchers on stacks, each response defines every location that the router does not know.
            let needs_all = !matchers.is_empty();
            let is_worth_it = || needs_all || !self.names.is_too_large(&selection.tenant);
            let loads_locations =
                names.is_missing_some(shard).map_or(needs_all, |is_missing| is_missing && is_worth_it());
            if loads_locations && self.load_locations(names, shard, selection, run).await? == Generation::New {
                self.names.replace(&selection.tenant, names);
                *names = self.names.of(&selection.tenant);
                return Ok(Attempt::NamesChanged);
            }
            let locations = if matchers.is_empty() {
                LocationSets { known: names.known(shard), filters: Vec::new() }
            } else {
                let named = self.sets(names, shard, selection, matchers, run).await?;
                missing_names.extend(named.missing_names);
                named.sets
            };
            let known = locations.known.count;
            let selection = Selection { locations, ..selection.clone() };
            let answer = run.shards(self.nodes.select(shard, selection)).await?;
            if answer.lacks_locations {
                names.note_missing(shard);
                return Ok(Attempt::NamesChanged);
            }
            if !answer.dictionary.locations.is_empty() {
                names.note_missing(shard);
            }
            answers.push(ShardAnswer { shard, known, answer });
        }
        Ok(Attempt::Fetched { answers, missing_names })
    }

    /// Loads the locations of a shard that the router does not know yet, page by page.
    async fn load_locations(
        &self,
        names: &TenantNames,
        shard: u32,
        selection: &Selection,
        run: &mut Run,
    ) -> Result<Generation, QueryError> {
        loop {
            let known = names.known(shard);
            let page = run.shards(self.nodes.locations(shard, &selection.tenant, known)).await?;
            let count = page.count;
            let to = names.clone();
            if run.blocking(move |_, _| Ok(to.add(shard, &page))).await? == Generation::New {
                return Ok(Generation::New);
            }
            let now = names.known(shard);
            if now.count >= count || now == known {
                return Ok(Generation::Same);
            }
        }
    }

    async fn sets(
        &self,
        names: &TenantNames,
        shard: u32,
        selection: &Selection,
        matchers: &Arc<[StackMatcher]>,
        run: &mut Run,
    ) -> Result<NamedSets, QueryError> {
        let namer = self.namer(run);
        let cache = self.names.clone();
        let tenant = selection.tenant.clone();
        let names = names.clone();
        let matchers = Arc::clone(matchers);
        run.blocking(move |_, timings| {
            let named = timings.measure("sets", || names.sets(shard, &matchers, &namer));
            cache.set_size(&tenant, &names, named.names_bytes);
            Ok(named)
        })
        .await
    }

    /// Makes the namer of one query.
    pub(crate) fn namer(&self, run: &Run) -> Namer {
        Namer::new(self.symbols.clone(), run.symbols_deadline())
    }
}
