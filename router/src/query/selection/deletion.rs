//! What a deletion selects: series, by the labels of a PromQL selector.

use proto::{Deleted, Deletion, TenantId, Tier, Window};

use crate::query::error::QueryError;
use crate::query::promql::parse::parse_selector;
use crate::query::reader::Reader;
use crate::query::run::Run;
use crate::query::selection::resolve::{Want, resolve};

impl Reader {
    /// Deletes every sample of the series that a selector selects in a window, for good. A metric name that no series of its
    /// days has selects nothing.
    ///
    /// # Errors
    /// [`QueryError`]: not a selector of series; or a shard's, and then others may have deleted.
    pub(crate) async fn delete(&self, tenant: &TenantId, text: &str, window: Window) -> Result<Deleted, QueryError> {
        let mut run = Run::start(&self.at_once).await?;
        let text = text.to_owned();
        let selector = run.blocking(move |_, timings| timings.measure("parse", || parse_selector(&text))).await?;
        if let Some(matcher) = selector.stack_matchers.first() {
            return Err(QueryError::StackLabelInMatch { label: matcher.label.name() });
        }
        // Of what is only kept by the day, names are known of whole days.
        let day_of = |time_ns| Tier::Day.window_of(time_ns);
        let days = Window {
            start_ns: Tier::Day.window_start_ns(day_of(window.start_ns.saturating_add(1))),
            end_ns: Tier::Day.window_end_ns(day_of(window.end_ns)),
        };
        let resolved = run.shards(resolve(&self.nodes, tenant, &selector, days, Want::Matchers)).await?;
        // It takes long, and is no query: those that wait need not.
        drop(run);
        let Some(resolved) = resolved.resolved else { return Ok(Deleted::default()) };
        let deletion = Deletion { tenant: tenant.clone(), matchers: resolved.matchers, window };
        Ok(self.nodes.delete(&deletion).await?)
    }
}
