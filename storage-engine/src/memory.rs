//! State that a shard keeps in memory: unsealed samples, and the dictionaries, series and label indexes of
//! partitions.
//!
//! `budgets` limits this memory, for all shards of a process together.
//! `dictionary_block` and `dropped_name` also encode their parts of a dictionary for the database.

pub(crate) mod batch_ids;
pub(crate) mod budgets;
pub(crate) mod dictionary_block;
pub(crate) mod dropped_name;
pub(crate) mod footprint;
pub(crate) mod head;
pub(crate) mod interner;
pub(crate) mod label_index;
pub(crate) mod matcher;
pub(crate) mod partition;
pub(crate) mod run;
pub(crate) mod tenant_dictionary;
