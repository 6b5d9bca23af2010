//! Asking shards for sums: which stacks are meant is said in sets of locations, and what of the stacks is not known yet is asked for.

use std::collections::BTreeSet;
use std::sync::Arc;

use proto::{Answer, LocationSets, Selection, StackDetail};

use crate::query::error::QueryError;
use crate::query::limits::NAMING_ROUNDS_MAX;
use crate::query::naming::frame::LackingNames;
use crate::query::naming::namer::Namer;
use crate::query::naming::stack_label::StackMatcher;
use crate::query::naming::tenant_names::{Book, NamedSets, ShardAnswer};
use crate::query::reader::Reader;
use crate::query::run::Run;

/// What all shards answered, and where the names of their stacks are.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selected {
    pub(crate) answers: Vec<ShardAnswer>,
    pub(crate) book: Book,
    /// Whose names were lacking when stacks were looked for by name, and why.
    pub(crate) names: BTreeSet<LackingNames>,
}

impl Selected {
    /// The answers by themselves.
    pub(crate) fn plain(&self) -> impl Iterator<Item = &Answer> {
        self.answers.iter().map(|shard| &shard.answer)
    }
}

impl Reader {
    /// The answers of all shards that may hold what is asked for, of stacks that pass all matchers.
    pub(crate) async fn select(
        &self,
        selection: &Selection,
        matchers: &Arc<[StackMatcher]>,
        run: &mut Run,
    ) -> Result<Selected, QueryError> {
        let reads_stacks = selection.stacks != StackDetail::None || !matchers.is_empty();
        let mut book = if reads_stacks { self.shelf.book(&selection.tenant) } else { Book::default() };
        for _ in 0..NAMING_ROUNDS_MAX {
            if let Some((answers, names)) = self.select_with(&mut book, selection, matchers, run).await? {
                return Ok(Selected { answers, book, names });
            }
        }
        Err(QueryError::StacksKeepChanging)
    }

    /// `None`: the book did not have all that was needed, or has to be begun anew; what is to be done about it was noted.
    async fn select_with(
        &self,
        book: &mut Book,
        selection: &Selection,
        matchers: &Arc<[StackMatcher]>,
        run: &mut Run,
    ) -> Result<Option<(Vec<ShardAnswer>, BTreeSet<LackingNames>)>, QueryError> {
        let (mut answers, mut names) = (Vec::new(), BTreeSet::new());
        for shard in self.nodes.placement().shards() {
            // Without conditions on stacks, answers say all that is not known.
            let has_to = !matchers.is_empty();
            let is_worth_it = || has_to || !self.shelf.is_too_large(&selection.tenant);
            let catches_up = book.is_behind(shard).map_or(has_to, |is_behind| is_behind && is_worth_it());
            if catches_up && self.catch_up(book, shard, selection, run).await?.is_none() {
                self.shelf.renew(&selection.tenant, book);
                *book = self.shelf.book(&selection.tenant);
                return Ok(None);
            }
            let locations = if matchers.is_empty() {
                LocationSets { known: book.known(shard), filters: Vec::new() }
            } else {
                let named = self.sets(book, shard, selection, matchers, run).await?;
                names.extend(named.lacking);
                named.sets
            };
            let known = locations.known.count;
            let selection = Selection { locations, ..selection.clone() };
            let answer = run.shards(self.nodes.select(shard, selection)).await?;
            if answer.lacks_locations {
                book.fall_behind(shard);
                return Ok(None);
            }
            if !answer.dictionary.locations.is_empty() {
                book.fall_behind(shard);
            }
            answers.push(ShardAnswer { shard, known, answer });
        }
        Ok(Some((answers, names)))
    }

    /// Reads what a shard has more than a book; `None` if it is to be begun anew.
    async fn catch_up(
        &self,
        book: &Book,
        shard: u32,
        selection: &Selection,
        run: &mut Run,
    ) -> Result<Option<()>, QueryError> {
        loop {
            let known = book.known(shard);
            let page = run.shards(self.nodes.locations(shard, &selection.tenant, known)).await?;
            let (to, count) = (book.clone(), page.count);
            if run.blocking(move |_, _| Ok(to.add(shard, &page))).await?.is_none() {
                return Ok(None);
            }
            let now = book.known(shard);
            if now.count >= count || now == known {
                return Ok(Some(()));
            }
        }
    }

    async fn sets(
        &self,
        book: &Book,
        shard: u32,
        selection: &Selection,
        matchers: &Arc<[StackMatcher]>,
        run: &mut Run,
    ) -> Result<NamedSets, QueryError> {
        let (book, matchers, namer) = (book.clone(), Arc::clone(matchers), self.namer(run));
        let (shelf, tenant) = (self.shelf.clone(), selection.tenant.clone());
        run.blocking(move |_, timings| {
            let named = timings.measure("sets", || book.sets(shard, &matchers, &namer));
            shelf.weigh(&tenant, &book, named.book_bytes);
            Ok(named)
        })
        .await
    }

    /// Who names the locations of one query.
    pub(crate) fn namer(&self, run: &Run) -> Namer {
        Namer::new(self.symbols.clone(), run.symbols_deadline())
    }
}
