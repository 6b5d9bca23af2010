//! How much a query may hold at one time: the vectors of its leaves, and results that are not used up yet.
//!
//! All vectors of a query have as many steps, so what they hold is counted in series.

use crate::query::error::QueryError;
use crate::query::limits::{QUERY_VALUES_MAX, SERIES_LABELS_VALUES};

/// How many series more the query may hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    series: usize,
}

impl Budget {
    /// All budget of a query of so many steps.
    pub(crate) fn new(steps: usize) -> Self {
        Self { series: QUERY_VALUES_MAX / steps.saturating_add(SERIES_LABELS_VALUES) }
    }

    /// Takes budget for so many series.
    ///
    /// # Errors
    /// [`QueryError::TooLarge`] if there is not that much.
    pub(crate) fn take(&mut self, series: usize) -> Result<(), QueryError> {
        self.series = self.series.checked_sub(series).ok_or_else(QueryError::too_many_values)?;
        Ok(())
    }

    /// Gives the budget of series back that are dropped.
    pub(crate) fn release(&mut self, series: usize) {
        self.series += series;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_held_is_counted_together_and_what_is_dropped_is_room_again() {
        let mut budget = Budget::new(1000 - SERIES_LABELS_VALUES);
        assert!(budget.take(5000).is_ok());
        assert!(budget.take(3001).is_err());
        assert!(budget.take(3000).is_ok());
        assert!(budget.take(1).is_err());
        budget.release(1);
        assert!(budget.take(1).is_ok());
    }
}
