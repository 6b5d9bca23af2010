//! Applies the entries of the log to the state.

pub(crate) mod append;
pub(crate) mod delete;
pub(crate) mod drop_labels;
pub(crate) mod expire;
pub(crate) mod selected;
pub(crate) mod split;
pub(crate) mod strip;
