//! Deletion of the samples of series that a PromQL selector selects by their labels.

use proto::{Deleted, Deletion, TenantId, Tier, Window};

use crate::query::error::QueryError;
use crate::query::promql::parse::parse_selector;
use crate::query::reader::Reader;
use crate::query::run::ReadOptions;
use crate::query::selection::resolve::Want;

impl Reader {
    /// Permanently deletes the samples of the selected series in a window. A metric name selects nothing if no series
    /// has it on the days of the window.
    ///
    /// # Errors
    /// Returns the [`QueryError`] of a text that does not select series, or of a shard. Other shards may then have
    /// deleted samples.
    pub(crate) async fn delete(&self, tenant: &TenantId, text: &str, window: Window) -> Result<Deleted, QueryError> {
        match self.delete_once(tenant, text, window).await {
            // The shards were chosen by an old placement, so samples in other shards would remain.
            Err(error) if error.is_misplaced() => self.delete_once(tenant, text, window).await,
            done => done,
        }
    }

    async fn delete_once(&self, tenant: &TenantId, text: &str, window: Window) -> Result<Deleted, QueryError> {
        // A name must mean the same in all shards, so all must answer.
        let options = ReadOptions { refuses_partial: true, ..ReadOptions::default() };
        let mut run = self.start(tenant, options).await?;
        let text = text.to_owned();
        let selector = run.blocking(move |_, timings| timings.measure("parse", || parse_selector(&text))).await?;
        if let Some(matcher) = selector.stack_matchers.first() {
            return Err(QueryError::StackLabelInMatch { label: matcher.label.name() });
        }
        // Old data is kept as sums of days, so names of such data are known for whole days only.
        let day_of = |time_ns| Tier::Day.window_of(time_ns);
        let days = Window {
            start_ns: Tier::Day.window_start_ns(day_of(window.start_ns.saturating_add(1))),
            end_ns: Tier::Day.window_end_ns(day_of(window.end_ns)),
        };
        let resolved = self.resolve(tenant, &selector, days, Want::Matchers, &mut run).await?;
        run.check()?;
        let Some(resolved) = resolved.resolved else { return Ok(Deleted::default()) };
        let shards = run.shards_of(&self.nodes, tenant, &resolved.matchers, window).await?;
        run.check()?;
        let placement_epoch = run.reading().placement_epoch;
        // A deletion takes long and is not a query, so it frees the slot of a query first.
        drop(run);
        let deletion = Deletion { tenant: tenant.clone(), matchers: resolved.matchers, window };
        Ok(self.nodes.delete(placement_epoch, &shards, &deletion).await?)
    }
}
