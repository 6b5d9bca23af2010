//! Damaged values and table files: keeping them apart, so that everything else is answered and stored.

pub(crate) mod area;
pub(crate) mod damage;
pub(crate) mod damaged_keys;
pub(crate) mod deletion;
mod mark;
pub(crate) mod part_damage;
pub(crate) mod record;
pub(crate) mod repair;
pub(crate) mod replace;
pub(crate) mod report;
