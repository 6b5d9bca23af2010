//! The newest points of gauges whose series can be in several shards.
//!
//! At the begin of an epoch, a series may move to another shard. Each of the two shards then responds with the last
//! point that it has. Only the newest of these points counts, so the router requests the points of each series, drops
//! the older ones, and groups the others itself.

use std::collections::BTreeSet;
use std::sync::Arc;

use foldhash::fast::RandomState;
use indexmap::IndexMap;
use proto::answer::Cell;
use proto::{Answer, Fold, LabelSet, Selection};

use crate::query::error::QueryError;
use crate::query::naming::named_answers::ShardAnswer;
use crate::query::naming::stack_label::StackMatcher;
use crate::query::reader::Reader;
use crate::query::run::Run;
use crate::query::selection::fetch::Fetched;

/// Time of the newest point of each series.
type Newest = IndexMap<LabelSet, i64, RandomState>;

impl Reader {
    /// Like [`Reader::fetch`]. If the selection has the last point of each series, the newest point over all shards
    /// counts.
    ///
    /// `attributes` are the labels to group by that are attributes of samples. They do not identify a series.
    ///
    /// # Errors
    /// Returns the errors of [`Reader::fetch`].
    pub(crate) async fn fetch_newest(
        &self,
        selection: &Selection,
        attributes: &[String],
        matchers: &Arc<[StackMatcher]>,
        run: &mut Run,
    ) -> Result<Fetched, QueryError> {
        let Fold::Last(window) = selection.fold else { return self.fetch(selection, matchers, run).await };
        if !run.placement(&self.nodes).await?.spans_epochs(window) {
            return self.fetch(selection, matchers, run).await;
        }
        let by_series = Selection { group_by_series: true, ..selection.clone() };
        let mut fetched = self.fetch(&by_series, matchers, run).await?;
        let group_by = selection.group_by.clone();
        let attributes = attributes.to_vec();
        run.blocking(move |_, timings| {
            timings.measure("newest", || keep_newest(&mut fetched.answers, &group_by, &attributes));
            Ok(fetched)
        })
        .await
    }
}

/// Keeps the newest points of each series, and groups them by `group_by`. The responses must have the points of each
/// series in groups of their own.
fn keep_newest(answers: &mut [ShardAnswer], group_by: &[String], attributes: &[String]) {
    let mut newest = Newest::default();
    let mut series_of_groups = Vec::with_capacity(answers.len());
    for ShardAnswer { answer, .. } in &*answers {
        let series = |group| part(group, |name| !attributes.iter().any(|attribute| attribute == name));
        let of_groups: Vec<usize> =
            answer.groups.iter().map(|group| newest.insert_full(series(group), i64::MIN).0).collect();
        series_of_groups.push(of_groups);
    }
    for (ShardAnswer { answer, .. }, of_groups) in answers.iter().zip(&series_of_groups) {
        for (series, time_ns) in points(answer).filter_map(|point| series_at(answer, of_groups, point)) {
            newest[series] = newest[series].max(time_ns);
        }
    }
    for (ShardAnswer { answer, .. }, of_groups) in answers.iter_mut().zip(&series_of_groups) {
        drop_older(answer, of_groups, &newest);
        regroup(answer, group_by);
    }
}

/// Group and bucket of each cell, and those of points without a cell.
fn points(answer: &Answer) -> impl Iterator<Item = (u32, u32)> {
    let of_cells = answer.cells.iter().map(|cell| (cell.group, cell.bucket));
    of_cells.chain(answer.unpassed.iter().map(|unpassed| (unpassed.group, unpassed.bucket)))
}

/// Returns the series and the time of a point.
fn series_at(answer: &Answer, of_groups: &[usize], (group, bucket): (u32, u32)) -> Option<(usize, i64)> {
    Some((*of_groups.get(group as usize)?, *answer.bucket_times_ns.get(bucket as usize)?))
}

fn drop_older(answer: &mut Answer, of_groups: &[usize], newest: &Newest) {
    let is_older =
        |point| series_at(answer, of_groups, point).is_some_and(|(series, time_ns)| time_ns < newest[series]);
    let older: BTreeSet<(u32, u32)> = points(answer).filter(|&point| is_older(point)).collect();
    let series: BTreeSet<usize> =
        older.iter().filter_map(|&(group, _)| of_groups.get(group as usize).copied()).collect();
    answer.series = answer.series.saturating_sub(series.len() as u64);
    answer.cells.retain(|cell| !older.contains(&(cell.group, cell.bucket)));
    answer.unpassed.retain(|unpassed| !older.contains(&(unpassed.group, unpassed.bucket)));
}

/// Merges the groups of a response that do not differ in `group_by`.
fn regroup(answer: &mut Answer, group_by: &[String]) {
    let mut groups: IndexMap<LabelSet, (), RandomState> = IndexMap::default();
    let group = |group: &LabelSet| {
        let kept = part(group, |name| group_by.iter().any(|wanted| wanted == name));
        // There are at most as many groups as before.
        u32::try_from(groups.insert_full(kept, ()).0).unwrap_or_default()
    };
    let new: Vec<u32> = answer.groups.iter().map(group).collect();
    let new_of = |group: u32| new.get(group as usize).copied().unwrap_or_default();
    answer.groups = groups.into_keys().collect();
    answer.unpassed.iter_mut().for_each(|unpassed| unpassed.group = new_of(unpassed.group));
    answer.unpassed.sort_unstable_by_key(|unpassed| (unpassed.group, unpassed.bucket));
    answer.unpassed.dedup();
    answer.cells.iter_mut().for_each(|cell| cell.group = new_of(cell.group));
    let key = |cell: &Cell| (cell.group, cell.bucket, cell.node);
    answer.cells.sort_unstable_by_key(key);
    answer.cells.dedup_by(|next, kept| {
        let is_same = key(next) == key(kept);
        kept.sum += if is_same { next.sum } else { 0 };
        is_same
    });
    let with_cells: BTreeSet<(u32, u32)> = answer.cells.iter().map(|cell| (cell.group, cell.bucket)).collect();
    answer.unpassed.retain(|unpassed| !with_cells.contains(&(unpassed.group, unpassed.bucket)));
}

/// Returns the labels whose names are wanted.
fn part(labels: &LabelSet, is_wanted: impl Fn(&str) -> bool) -> LabelSet {
    LabelSet::new(labels.iter().filter(|label| is_wanted(&label.name)).cloned().collect())
}
