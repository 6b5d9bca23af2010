//! Facts about a flame graph that the response contains besides the tree.

use proto::answer::WindowsRead;
use proto::{ProfileType, Window};

use crate::query::selection::coverage::Coverage;
use crate::query::selection::fetch::Fetched;
use crate::query::selection::missing::MissingData;

/// Facts about a flame graph, besides its tree.
#[derive(Debug)]
pub(crate) struct Summary {
    /// Type of the profile; `None` if no series has samples in the window.
    pub(crate) profile_type: Option<ProfileType>,
    pub(crate) window: Window,
    /// Number of samples that were read, including samples whose stacks the matchers excluded.
    pub(crate) samples: u64,
    /// True if the selector has matchers on stacks, which may exclude samples from the graph.
    pub(crate) has_stack_matchers: bool,
    pub(crate) series: u64,
    /// Shards that were asked, and those that did not answer.
    pub(crate) coverage: Coverage,
    /// For each tier, the number of windows that were read.
    pub(crate) windows_read: WindowsRead,
    /// Data that the graph is missing.
    pub(crate) missing: MissingData,
    /// Notes on missing sample labels, with one sentence for each reason.
    pub(crate) label_notes: Vec<String>,
}

impl Summary {
    /// Makes the summary of a window, before any response is added.
    pub(crate) fn of(window: Window) -> Self {
        let windows_read = WindowsRead::default();
        let missing = MissingData::default();
        let label_notes = Vec::new();
        Self {
            profile_type: None,
            window,
            samples: 0,
            has_stack_matchers: false,
            series: 0,
            coverage: Coverage::default(),
            windows_read,
            missing,
            label_notes,
        }
    }

    /// Returns one sentence for each shard, time and file that the graph is missing.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut warnings = self.coverage.warnings();
        warnings.extend(self.missing.warnings());
        warnings
    }

    /// Adds the facts in the responses of the shards.
    pub(crate) fn take(&mut self, fetched: &Fetched) {
        self.samples = fetched.plain().map(|answer| answer.samples).sum();
        self.series = fetched.plain().map(|answer| answer.series).sum();
        self.missing.of_answers(fetched.plain());
        self.missing.names(fetched.missing_names.clone());
        fetched.plain().for_each(|answer| self.windows_read.extend(answer.windows_read));
    }
}
