//! Integrity: verification of stored values, and quarantine of damaged ones.

pub(crate) mod quarantine;
pub(crate) mod verify;
