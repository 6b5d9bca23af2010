//! Entries of a shard's Raft log. Every replica applies them in log order.

use std::sync::Arc;

use crate::batch::Batch;
use crate::formats::{BatchError, Encoder, References, wire};
use crate::shard::meta::check_dropped_labels;
use crate::shard::selection::{Matcher, Window};
use crate::tenant::TenantId;
use crate::tier::Tier;

/// An entry of a shard's Raft log.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Time of the leader's clock when it proposed the entry, in nanoseconds since 1970. To apply an entry, replicas
    /// use no other clock.
    pub proposed_at_ns: i64,
    /// Command that replicas apply.
    pub command: Command,
}

/// The command in an entry of the log.
#[derive(Clone, Debug)]
pub enum Command {
    /// Stores the samples of a batch.
    Append(Arc<Batch>),
    /// Drops the partitions of one tier and retention class that end at or before a time. No
    /// partition of a finer tier and that time may exist.
    Expire {
        /// Tier of the partitions. [`Tier::Minute`] also drops the raw samples of the same time.
        tier: Tier,
        /// Retention class of the partitions.
        retention_class: u8,
        /// Time, in nanoseconds since 1970. Partitions that end at or before this time are dropped.
        before_ns: i64,
    },
    /// Deletes samples.
    Delete(Deletion),
    /// Sets the labels that the sums of a tenant drop.
    DropLabels(LabelDrops),
}

/// Labels that the sums of a tenant drop. Such labels usually identify instances, which change so often that years of
/// sums by instance would be large.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabelDrops {
    /// Owner of the samples.
    pub tenant: TenantId,
    /// Names of the labels: first those that hours drop, then those that days drop. Each list is sorted.
    pub names: [Vec<String>; 2],
    /// Revision of the state of the meta group from which the leader took the names. Replicas ignore an older one, so
    /// that a leader with an old state does not revert a change.
    pub revision: u64,
}

/// A deletion of the samples, in a time range, of all series that meet the conditions. An absent label has the value
/// "".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deletion {
    /// Owner of the samples.
    pub tenant: TenantId,
    /// Conditions on the labels of a series, at least one. All must hold.
    pub matchers: Vec<Matcher>,
    /// Time range of the samples to delete.
    pub window: Window,
}

impl Command {
    /// Encodes the command.
    #[must_use]
    pub fn to_wire(&self) -> wire::entry::Command {
        match self {
            Self::Append(batch) => wire::entry::Command::Append(batch.encode_logged()),
            &Self::Expire { tier, retention_class, before_ns } => wire::entry::Command::Expire(wire::Expire {
                before_ns,
                tier: tier.number().into(),
                retention_class: retention_class.into(),
            }),
            Self::Delete(deletion) => wire::entry::Command::Delete(deletion.to_wire()),
            Self::DropLabels(drops) => wire::entry::Command::DropLabels(drops.to_wire()),
        }
    }

    /// Encodes the command as a field of a [`wire::Entry`], and appends the bytes to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Append(batch) => Encoder::new(out).message(2, |to| to.batch(batch, References::FirstHalves)),
            Self::Expire { .. } | Self::Delete(_) | Self::DropLabels(_) => self.to_wire().encode(out),
        }
    }
}

impl Entry {
    /// Encodes the entry.
    #[must_use]
    pub fn to_wire(&self) -> wire::Entry {
        let proposed_at_ns = u64::try_from(self.proposed_at_ns).unwrap_or_default();
        wire::Entry { proposed_at_ns, command: Some(self.command.to_wire()) }
    }

    /// Decodes an entry.
    ///
    /// # Errors
    /// Returns a [`BatchError`] if the bytes are not those of a valid entry. The replica must stop then.
    pub fn from_wire(from: wire::Entry) -> Result<Self, BatchError> {
        let command = match from.command {
            Some(wire::entry::Command::Append(batch)) => Command::Append(Arc::new(Batch::decode(&batch)?)),
            Some(wire::entry::Command::Expire(expire)) => expire_from_wire(&expire)?,
            Some(wire::entry::Command::Delete(delete)) => Command::Delete(Deletion::from_wire(delete)?),
            Some(wire::entry::Command::DropLabels(drops)) => Command::DropLabels(LabelDrops::from_wire(drops)?),
            None => return Err(BatchError::Inconsistent("an entry has no command")),
        };
        let proposed_at_ns = i64::try_from(from.proposed_at_ns)
            .map_err(|_overflow| BatchError::Inconsistent("an entry was proposed after the year 2262"))?;
        Ok(Self { proposed_at_ns, command })
    }
}

fn expire_from_wire(from: &wire::Expire) -> Result<Command, BatchError> {
    let tier = u8::try_from(from.tier).ok().and_then(Tier::from_number);
    let class = u8::try_from(from.retention_class).ok();
    let (tier, retention_class) = tier.zip(class).ok_or(BatchError::Inconsistent("unknown tier or retention class"))?;
    Ok(Command::Expire { tier, retention_class, before_ns: from.before_ns })
}

impl LabelDrops {
    fn to_wire(&self) -> wire::DropLabels {
        let Self { tenant, names: [hours, days], revision } = self;
        let tenant = tenant.as_str().to_owned();
        wire::DropLabels { tenant, dropped_by_hours: hours.clone(), dropped_by_days: days.clone(), revision: *revision }
    }

    fn from_wire(from: wire::DropLabels) -> Result<Self, BatchError> {
        let names = [from.dropped_by_hours, from.dropped_by_days];
        let invalid = |_invalid| BatchError::Inconsistent("the dropped labels are not sorted, too many, or necessary");
        names.iter().try_for_each(|names| check_dropped_labels(names)).map_err(invalid)?;
        Ok(Self { tenant: TenantId::new(&from.tenant)?, names, revision: from.revision })
    }
}

impl Deletion {
    /// Encodes the deletion for a node and for its log.
    #[must_use]
    pub fn to_wire(&self) -> wire::Delete {
        wire::Delete {
            tenant: self.tenant.as_str().to_owned(),
            matchers: self.matchers.iter().map(Matcher::to_wire).collect(),
            start_ns: self.window.start_ns,
            end_ns: self.window.end_ns,
        }
    }

    /// Decodes a deletion.
    ///
    /// # Errors
    /// Returns a [`BatchError`] if the tenant name or a matcher is invalid.
    pub fn from_wire(from: wire::Delete) -> Result<Self, BatchError> {
        let matcher = |matcher| Matcher::from_wire(matcher);
        let matchers = from.matchers.into_iter().map(matcher).collect::<Result<Vec<_>, _>>();
        let matchers = matchers.map_err(|_unknown| BatchError::Inconsistent("unknown matcher operation"))?;
        let window = Window { start_ns: from.start_ns, end_ns: from.end_ns };
        Ok(Self { tenant: TenantId::new(&from.tenant)?, matchers, window })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sorted_names_of_labels_that_may_be_missing_are_dropped() {
        let read = |hours: &[&str], days: &[&str]| {
            let [dropped_by_hours, dropped_by_days] =
                [hours, days].map(|names| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>());
            let drops = wire::DropLabels { tenant: "acme".to_owned(), dropped_by_hours, dropped_by_days, revision: 3 };
            let command = Some(wire::entry::Command::DropLabels(drops));
            Entry::from_wire(wire::Entry { proposed_at_ns: 7, command })
        };
        let Command::DropLabels(drops) = read(&["pod"], &["host", "zone"]).unwrap().command else { panic!("no drop") };
        assert_eq!((drops.tenant.as_str(), drops.revision), ("acme", 3));
        assert_eq!(drops.names, [vec!["pod".to_owned()], vec!["host".to_owned(), "zone".to_owned()]]);
        assert!(read(&["service_name"], &[]).is_err());
        assert!(read(&[], &["zone", "host"]).is_err());
        assert!(read(&["pod", "pod"], &[]).is_err());
        assert!(read(&[], &["a-b"]).is_err());
    }
}
