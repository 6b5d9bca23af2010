//! Options of `varve admin cluster epoch`.

use std::collections::BTreeSet;
use std::num::NonZeroU32;
use std::str::FromStr;

use clap::Args;
use proto::TenantId;
use proto::placement::Spread;

use super::cluster_admin::ChangeOptions;
use super::time::Time;

/// Options of `varve admin cluster epoch`.
#[derive(Clone, Debug, Args)]
pub(crate) struct EpochOptions {
    /// Shards among which the slots are divided evenly: `all`, or numbers and ranges, such as 1-8,12
    #[arg(long, default_value = "all", value_name = "LIST", value_parser = Shards::from_str)]
    pub(crate) shards: Shards,
    /// Begin of the epoch, a full minute; the default is the first full minute that is at least 30 s ahead
    #[arg(long, value_name = "TIME", value_parser = Time::parse)]
    pub(crate) begins: Option<Time>,
    /// Spread a service over 2 to 256 slots, or over one again; may be repeated
    #[arg(long, value_name = "TENANT/SERVICE=SLOTS", value_parser = SpreadOption::from_str)]
    pub(crate) spread: Vec<SpreadOption>,
    /// Spread each service with more samples per second over so many slots that each has at most this many
    ///
    /// The leaders measure the rates over the last ten to twenty minutes. A service that is spread over more slots
    /// already, or that --spread names, is left as it is.
    #[arg(long, value_name = "SAMPLES_PER_SECOND")]
    pub(crate) spread_above: Option<NonZeroU32>,
    #[command(flatten)]
    pub(crate) change: ChangeOptions,
}

/// Shards of an epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Shards {
    All,
    Only(BTreeSet<u32>),
}

impl FromStr for Shards {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const FORM: &str = "it must be `all`, or numbers and ranges from 1 to 4096, such as 1-8,12";
        if text == "all" {
            return Ok(Self::All);
        }
        let mut shards = BTreeSet::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |text: &str| text.parse::<u32>().ok().filter(|number| (1..=4096).contains(number));
            let (Some(first), Some(last)) = (number(first), number(last)) else { return Err(FORM) };
            if first > last {
                return Err(FORM);
            }
            shards.extend(first..=last);
        }
        Ok(Self::Only(shards))
    }
}

/// A service, and the number of its slots; `None` for one slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SpreadOption {
    tenant: TenantId,
    service: String,
    slots: Option<Spread>,
}

impl FromStr for SpreadOption {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const FORM: &str = "it must be TENANT/SERVICE=SLOTS, with 1 to 256 slots";
        let (service, slots) = text.rsplit_once('=').ok_or(FORM)?;
        let (tenant, service) = service.split_once('/').filter(|(_, service)| !service.is_empty()).ok_or(FORM)?;
        let tenant = TenantId::new(tenant).map_err(|_invalid| FORM)?;
        let slots = match slots.parse::<u16>().map_err(|_invalid| FORM)? {
            1 => None,
            slots => Some(Spread::new(slots).ok_or(FORM)?),
        };
        Ok(Self { tenant, service: service.to_owned(), slots })
    }
}

impl SpreadOption {
    /// Returns the change of the placement.
    pub(crate) fn into_change(self) -> ((TenantId, String), Option<Spread>) {
        ((self.tenant, self.service), self.slots)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lists_of_shards_are_read_and_others_refused() {
        let only = |text: &str| match text.parse() {
            Ok(Shards::Only(shards)) => shards.into_iter().collect::<Vec<_>>(),
            other => panic!("{text}: {other:?}"),
        };
        assert_eq!("all".parse(), Ok(Shards::All));
        assert_eq!(only("1-3,12,2"), [1, 2, 3, 12]);
        for bad in ["", "0", "4097", "3-1", "1-", "-1", "1,,2", "a", "1-99999999999", "ALL"] {
            assert!(Shards::from_str(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn spread_services_are_read_and_others_refused() {
        let read: SpreadOption = "default/a/b=c=8".parse().unwrap();
        assert_eq!((read.service.as_str(), read.slots.map(Spread::slots)), ("a/b=c", Some(8)));
        assert_eq!("t/s=1".parse::<SpreadOption>().unwrap().slots, None);
        for bad in ["", "s=2", "t/=2", "t/s", "t/s=", "t/s=0", "t/s=257", "t t/s=2", "t/s=-1"] {
            assert!(SpreadOption::from_str(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn written_lists_of_shards_are_read_back(shards in proptest::collection::btree_set(1_u32..=4096, 1..20)) {
            let text = shards.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
            prop_assert_eq!(Shards::from_str(&text), Ok(Shards::Only(shards)));
        }

        #[test]
        fn any_text_is_read_or_refused(text in ".{0,40}") {
            let _read_or_refused = (Shards::from_str(&text).is_ok(), SpreadOption::from_str(&text).is_ok());
        }
    }
}
