//! Integrity: finding damaged values, and keeping them apart from everything else.

pub(crate) mod quarantine;
pub(crate) mod verify;
