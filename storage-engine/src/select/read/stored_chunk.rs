//! Passes the samples of a chunk, or the totals of the chunk's timeline, to a visitor.

use crate::database::Snapshot;
use crate::database::frame;
use crate::database::key::events_key;
use crate::encoding::chunk::Chunk;
use crate::encoding::events::MinuteColumns;
use crate::encoding::sums::Sums;
use crate::error::SelectError;
use crate::select::plan::Interval;
use crate::select::read::samples::visit_sorted;
use crate::select::read::visitor::{ReadSums, VisitError, Visitor};

/// A chunk and its key.
#[derive(Clone, Copy)]
pub(super) struct StoredChunk<'a> {
    pub(super) key: &'a [u8],
    pub(super) chunk: &'a Chunk<'a>,
}

impl StoredChunk<'_> {
    /// Passes the samples in these intervals to the visitor, or totals of the timeline if the visitor needs only
    /// totals. `minute` is memory for samples.
    pub(super) fn read_samples(
        self,
        snapshot: &Snapshot<'_>,
        intervals: &[Interval],
        minute: &mut MinuteColumns,
        visitor: &mut impl Visitor,
    ) -> Result<(), VisitError> {
        if !visitor.takes_totals() || !self.chunk.has_timeline() {
            return self.read_events(snapshot, intervals, minute, visitor);
        }
        let parts = self.read_timeline(intervals, visitor)?;
        if parts.is_empty() { Ok(()) } else { self.read_events(snapshot, &parts, minute, visitor) }
    }

    /// Passes the totals of whole bins to the visitor. Returns the parts of the intervals whose events must be read.
    fn read_timeline(self, intervals: &[Interval], visitor: &mut impl Visitor) -> Result<Vec<Interval>, VisitError> {
        let chunk = self.chunk;
        let timeline = chunk.timeline().ok_or(VisitError::Damaged)?;
        let mut parts = Vec::new();
        for &Interval { start_ns, end_ns, bucket } in intervals.iter().take_while(|next| next.start_ns < chunk.last_ns)
        {
            // The first and the last bin are used whole if the interval covers all of their samples.
            let start_ns = if start_ns < chunk.first_ns { i64::MIN } else { start_ns };
            let end_ns = if chunk.last_ns <= end_ns { i64::MAX } else { end_ns };
            let split = timeline.split(start_ns, end_ns);
            if split.samples > 0 {
                let read = ReadSums { samples: split.samples, total: split.sum, last_ns: None, sums: Sums::default() };
                visitor.sums(bucket, &read)?;
            }
            let part = |(start_ns, end_ns)| Interval { start_ns, end_ns, bucket };
            parts.extend(split.parts.into_iter().flatten().map(part));
        }
        Ok(parts)
    }

    fn read_events(
        self,
        snapshot: &Snapshot<'_>,
        intervals: &[Interval],
        minute: &mut MinuteColumns,
        visitor: &mut impl Visitor,
    ) -> Result<(), VisitError> {
        let Self { key, chunk } = self;
        let own_key = if chunk.has_own_events() { events_key(key) } else { Vec::new() };
        let own = if chunk.has_own_events() { snapshot.get_pinned(&own_key).map_err(SelectError::from)? } else { None };
        let own = own.as_deref().map(|value| frame::open(&own_key, value)).transpose().map_err(SelectError::from)?;
        let stacks = if visitor.takes_totals() { None } else { Some(chunk.stacks().ok_or(VisitError::Damaged)?) };
        let mut events = chunk.events(own).ok_or(VisitError::Damaged)?;
        let wanted = |start_ns: i64, end_ns: i64| {
            let from = intervals.partition_point(|interval| interval.end_ns <= start_ns);
            intervals.get(from).is_some_and(|interval| interval.start_ns < end_ns)
        };
        let mut result = Ok(());
        let read = events.for_each_minute(stacks.as_deref(), minute, wanted, |minute| {
            let mut start = 0;
            for &end in &minute.set_ends {
                if result.is_ok() {
                    result = visit_sorted(intervals, &minute.samples, start..end, visitor);
                }
                start = end;
            }
        });
        read.ok_or(VisitError::Damaged)?;
        result
    }
}
