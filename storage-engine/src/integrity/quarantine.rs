//! Quarantine of damaged values and table files, so that all other data is still served and stored.

pub(crate) mod area;
pub(crate) mod damage;
pub(crate) mod damaged_files;
pub(crate) mod damaged_keys;
pub(crate) mod deletion;
pub(crate) mod found_damage;
pub(crate) mod lost_keys;
mod mark;
pub(crate) mod part_damage;
pub(crate) mod repair;
pub(crate) mod replace;
pub(crate) mod report;
