//! What a flame graph says about itself beside the tree.

use proto::answer::WindowsRead;
use proto::{ProfileType, Window};

use crate::query::selection::fetch::Fetched;
use crate::query::selection::missing::MissingData;

/// What is told beside the tree.
#[derive(Debug)]
pub(crate) struct Summary {
    /// None: no series is in the window.
    pub(crate) profile_type: Option<ProfileType>,
    pub(crate) window: Window,
    /// Samples that were read, those included whose stacks no matcher passed.
    pub(crate) samples: u64,
    pub(crate) series: u64,
    pub(crate) shards: usize,
    /// How many windows of each tier were read.
    pub(crate) windows_read: WindowsRead,
    /// What is no part of it.
    pub(crate) missing: MissingData,
    /// Why samples have no labels, or not all, a sentence each.
    pub(crate) label_notes: Vec<String>,
}

impl Summary {
    /// Of nothing yet.
    pub(crate) fn of(window: Window) -> Self {
        let (windows_read, missing) = (WindowsRead::default(), MissingData::default());
        let label_notes = Vec::new();
        Self { profile_type: None, window, samples: 0, series: 0, shards: 0, windows_read, missing, label_notes }
    }

    /// Adds what shards say beside their sums.
    pub(crate) fn take(&mut self, fetched: &Fetched) {
        self.samples = fetched.plain().map(|answer| answer.samples).sum();
        self.series = fetched.plain().map(|answer| answer.series).sum();
        self.shards = fetched.answers.len();
        self.missing.of_answers(fetched.plain());
        self.missing.names(fetched.missing_names.clone());
        fetched.plain().for_each(|answer| self.windows_read.extend(answer.windows_read));
    }
}
