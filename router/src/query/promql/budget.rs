//! Memory budget of a query. It covers the values of the query's leaves (selectors with their functions), and results
//! that are still needed.
//!
//! All vectors of a query have the same number of steps, so the budget is counted in series.

use crate::query::error::QueryError;
use crate::query::limits::{QUERY_VALUES_MAX, SERIES_LABELS_VALUES};

/// Number of series that the query may still hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    series: usize,
}

impl Budget {
    /// Returns the whole budget of a query with this many steps.
    pub(crate) fn new(steps: usize) -> Self {
        Self { series: QUERY_VALUES_MAX / steps.saturating_add(SERIES_LABELS_VALUES) }
    }

    /// Takes the memory of this many series from the budget.
    ///
    /// # Errors
    /// Returns [`QueryError::TooLarge`] if the remaining budget is smaller.
    pub(crate) fn take(&mut self, series: usize) -> Result<(), QueryError> {
        self.series = self.series.checked_sub(series).ok_or_else(QueryError::too_many_values)?;
        Ok(())
    }

    /// Gives the memory of dropped series back to the budget.
    pub(crate) fn release(&mut self, series: usize) {
        self.series += series;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_series_return_their_budget() {
        let mut budget = Budget::new(1000 - SERIES_LABELS_VALUES);
        assert!(budget.take(5000).is_ok());
        assert!(budget.take(3001).is_err());
        assert!(budget.take(3000).is_ok());
        assert!(budget.take(1).is_err());
        budget.release(1);
        assert!(budget.take(1).is_ok());
    }
}
