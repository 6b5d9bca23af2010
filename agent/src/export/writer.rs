//! Transfer of samples from the sampler's thread to the export queue.

use std::sync::Arc;

use super::queue::ExportQueue;
use super::request;
use crate::names::shared_tables::SharedTables;
use crate::sampling::aggregate::Aggregate;
use crate::sampling::interval::Interval;

/// Writes the samples of each interval to a queue. Closes the queue when it is dropped.
#[derive(Debug)]
pub(crate) struct QueueWriter(Arc<ExportQueue>);

impl QueueWriter {
    /// Returns a function that takes the samples of an interval, encodes them, and puts the requests into `queue`.
    pub(crate) fn into(queue: &Arc<ExportQueue>) -> impl FnMut(&mut Aggregate, &Interval, &SharedTables) + use<> {
        let writer = Self(Arc::clone(queue));
        move |aggregate, interval, tables| {
            for request in request::encode(aggregate, interval, &tables.files, &tables.locations) {
                writer.0.push(request);
            }
        }
    }
}

impl Drop for QueueWriter {
    fn drop(&mut self) {
        self.0.close();
    }
}
