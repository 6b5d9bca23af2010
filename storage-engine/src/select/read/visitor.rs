//! Consumers of the samples and sums of a series.

use std::ops::Range;

use proto::Samples;

use crate::encoding::sums::Sums;
use crate::error::{Corruption, CorruptionCheck, SelectError};

/// Part of a chunk that a visitor needs to see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    Nothing,
    /// The sums of the chunk.
    Sums,
    /// The samples of the chunk, one by one.
    Samples,
}

/// Consumer of the samples and sums of one series.
pub(crate) trait Visitor {
    /// Returns the part of a chunk that the visitor needs. The arguments are the times, in nanoseconds since 1970, of
    /// the chunk's first and last sample. All samples of the chunk belong to one bucket.
    fn needs(&mut self, first_ns: i64, last_ns: i64) -> Need;

    /// Returns whether the visitor needs only the sample count and total of each bucket, for all stacks and
    /// attributes together.
    fn takes_totals(&self) -> bool {
        false
    }

    /// Returns whether the visitor needs only to know that some sample exists.
    fn takes_any(&self) -> bool {
        false
    }

    /// Returns whether the visitor needs no more data.
    fn is_done(&self) -> bool {
        false
    }

    /// Visits the sums of a chunk or a window.
    fn sums(&mut self, bucket: u32, read: &ReadSums<'_>) -> Result<(), VisitError>;

    /// Visits the samples at the indexes `rows`, in order of time.
    fn samples(&mut self, bucket: u32, samples: &Samples, rows: Range<usize>) -> Result<(), VisitError>;
}

/// Sums of a chunk or a window.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadSums<'a> {
    pub(crate) samples: u64,
    pub(crate) total: i128,
    /// Time of the point in a gauge's window, in nanoseconds since 1970; `None` if the sums are not of a gauge's
    /// window.
    pub(crate) last_ns: Option<i64>,
    pub(crate) sums: Sums<'a>,
}

/// Reason why a visit ended early.
#[derive(Debug)]
pub(crate) enum VisitError {
    /// The visited value cannot be decoded, or refers to undefined stacks or attribute sets.
    Damaged,
    /// The query failed for a reason other than damage.
    Failed(SelectError),
}

impl VisitError {
    /// Converts the error into one of the query. `key` is the key of the visited value.
    pub(crate) fn of_value(self, key: &[u8]) -> SelectError {
        match self {
            Self::Damaged => Corruption { key: key.to_vec(), check: CorruptionCheck::Content }.into(),
            Self::Failed(error) => error,
        }
    }
}

impl From<SelectError> for VisitError {
    fn from(error: SelectError) -> Self {
        Self::Failed(error)
    }
}

/// Visitor that stops at the first sample.
#[derive(Debug, Default)]
pub(crate) struct AnySample {
    pub(crate) is_found: bool,
    /// Times of the first and of the last sample of the chunk that has the sample, if it was found there.
    pub(crate) chunk_ns: Option<(i64, i64)>,
}

impl Visitor for AnySample {
    fn needs(&mut self, first_ns: i64, last_ns: i64) -> Need {
        // Every chunk has a sample.
        self.is_found = true;
        self.chunk_ns = Some((first_ns, last_ns));
        Need::Nothing
    }

    fn takes_any(&self) -> bool {
        true
    }

    fn is_done(&self) -> bool {
        self.is_found
    }

    fn sums(&mut self, _bucket: u32, _read: &ReadSums<'_>) -> Result<(), VisitError> {
        self.is_found = true;
        Ok(())
    }

    fn samples(&mut self, _bucket: u32, _samples: &Samples, _rows: Range<usize>) -> Result<(), VisitError> {
        self.is_found = true;
        Ok(())
    }
}
