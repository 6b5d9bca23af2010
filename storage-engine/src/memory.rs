//! State that a shard keeps in memory: unsealed samples, and the dictionaries, series and label indexes of
//! partitions.

pub(crate) mod batch_ids;
pub(crate) mod footprint;
pub(crate) mod head;
pub(crate) mod interner;
pub(crate) mod label_index;
pub(crate) mod matcher;
pub(crate) mod partition;
pub(crate) mod run;
pub(crate) mod slot_sums;
pub(crate) mod stored_partition;
pub(crate) mod tenant_dictionary;
