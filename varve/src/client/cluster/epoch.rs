//! `varve admin cluster epoch`: adds an epoch to the placement of slots on shards.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use anyhow::bail;
use node::meta::{SpreadChanges, propose_epoch};
use proto::TenantId;
use proto::limits::SERVICE_SLOTS_MAX;
use proto::meta::{Command, State};
use proto::placement::{Epoch, Spread};
use proto::wire::StatusResponse;
use serde_json::json;

use super::change;
use super::connection::Connection;
use crate::client::output::print;
use crate::client::table;
use crate::command::{ChangeOptions, EpochOptions, Shards, Time};

const MINUTE_NS: i64 = 60_000_000_000;
/// Time until an epoch begins at least. All nodes and routers learn of the epoch in this time. Otherwise, a push could
/// be stored by the old placement, and its retry by the new one in another shard.
const LEAD_NS: i64 = 30_000_000_000;

/// Plans the next epoch, prints what it changes, and proposes it to the meta group unless the run is dry.
pub(super) async fn run(options: &EpochOptions) -> anyhow::Result<()> {
    let connection = Connection::new(&options.change.nodes)?;
    let state = connection.state().await?;
    let measured = match options.spread_above {
        Some(most) => hot_services(&state, &rates(connection.statuses(&state).await), most),
        None => SpreadChanges::new(),
    };
    let epoch = plan(&state, options, measured, Time::now().0)?;
    change(&connection, state.clone(), &Command::AddEpoch(epoch.clone()), &options.change).await?;
    print(&report(&state, &epoch, &options.change))
}

/// Adds up the rates of each service over all shards.
fn rates(statuses: Vec<Result<StatusResponse, String>>) -> BTreeMap<(TenantId, String), f64> {
    let mut rates = BTreeMap::new();
    for rate in statuses.into_iter().flatten().flat_map(|status| status.groups).flat_map(|group| group.services) {
        if let Ok(tenant) = TenantId::new(&rate.tenant) {
            *rates.entry((tenant, rate.service)).or_default() += rate.samples_per_second;
        }
    }
    rates
}

/// Returns the services of which one slot would have more than `most` samples per second, with the number of slots that
/// they need.
fn hot_services(state: &State, rates: &BTreeMap<(TenantId, String), f64>, most: NonZeroU32) -> SpreadChanges {
    let newest = state.epochs.last();
    let present = |tenant: &TenantId, service: &str| {
        let spread = newest.and_then(|epoch| epoch.spread().get(tenant)?.get(service));
        spread.map_or(1, |spread| spread.slots())
    };
    let needed = |rate: f64| (rate / f64::from(most.get())).ceil().min(SERVICE_SLOTS_MAX.into()) as u16;
    let hot = rates.iter().filter_map(|((tenant, service), &rate)| {
        let slots = Some(needed(rate)).filter(|&slots| slots > present(tenant, service))?;
        Some(((tenant.clone(), service.clone()), Some(Spread::new(slots)?)))
    });
    hot.collect()
}

/// Plans the next epoch. `measured` are the services that are spread because of their rates, and `now_ns` is now, in
/// nanoseconds since 1970.
fn plan(state: &State, options: &EpochOptions, measured: SpreadChanges, now_ns: i64) -> anyhow::Result<Epoch> {
    let created: BTreeSet<u32> =
        state.shards.values().filter(|shard| shard.is_created).map(|shard| shard.number).collect();
    let shards: Vec<u32> = match &options.shards {
        Shards::All => created.into_iter().collect(),
        Shards::Only(shards) => {
            if let Some(unknown) = shards.iter().find(|shard| !created.contains(shard)) {
                bail!("shard {unknown} does not exist: the cluster has the shards {created:?}");
            }
            shards.iter().copied().collect()
        }
    };
    let begins_ns = match options.begins {
        Some(Time(begins_ns)) if begins_ns % MINUTE_NS != 0 => {
            bail!("--begins {} is within a minute: an epoch begins at a full minute", Time(begins_ns))
        }
        Some(Time(begins_ns)) if begins_ns < now_ns.saturating_add(LEAD_NS) => {
            bail!("--begins {} is too early: it must be at least 30 s ahead", Time(begins_ns))
        }
        Some(Time(begins_ns)) => begins_ns,
        None => (now_ns.saturating_add(LEAD_NS) / MINUTE_NS).saturating_add(1).saturating_mul(MINUTE_NS),
    };
    let mut changes = measured;
    changes.extend(options.spread.iter().map(|spread| spread.clone().into_change()));
    Ok(propose_epoch(state, &shards, begins_ns, &changes)?)
}

/// Returns what the epoch changes, as a table or as JSON.
fn report(state: &State, epoch: &Epoch, options: &ChangeOptions) -> String {
    let before = state.epochs.last();
    let shard_before = |slot: usize| before.and_then(|epoch| epoch.shard_of_slot().get(slot)).copied();
    let count = |shard: u32| epoch.shard_of_slot().iter().filter(|of_slot| **of_slot == shard).count();
    let moved = epoch.shard_of_slot().iter().enumerate().filter(|(slot, to)| shard_before(*slot) != Some(**to)).count();
    let spread = || epoch.spread().iter().flat_map(|(tenant, services)| services.iter().map(move |of| (tenant, of)));
    if options.nodes.json {
        let spread: Vec<_> = spread()
            .map(|(tenant, (service, slots))| {
                json!({"tenant": tenant.as_str(), "service": service, "slots": slots.slots()})
            })
            .collect();
        let shards: Vec<_> =
            epoch.shards().iter().map(|&shard| json!({"shard": shard, "slots": count(shard)})).collect();
        let begins = Time(epoch.begins_ns()).to_string();
        return format!(
            "{}\n",
            json!({"epoch": epoch.number(), "begins": begins, "shards": shards, "moved_slots": moved, "spread": spread,
                "dry_run": options.dry_run})
        );
    }
    let rows: Vec<Vec<String>> =
        epoch.shards().iter().map(|&shard| vec![shard.to_string(), count(shard).to_string()]).collect();
    let done = if options.dry_run { "dry run: would add" } else { "added" };
    let mut text = format!(
        "{done} epoch {}, which begins at {} and moves {moved} slots\n\n{}",
        epoch.number(),
        Time(epoch.begins_ns()),
        table::render(&["shard", "slots"], &rows)
    );
    for (tenant, (service, slots)) in spread() {
        text.push_str(&format!("service {service:?} of tenant {} has {} slots\n", tenant.as_str(), slots.slots()));
    }
    text
}

#[cfg(test)]
mod tests {
    use proto::wire::GroupStatus;

    use super::*;
    use crate::command::NodeOptions;

    fn none() -> SpreadChanges {
        SpreadChanges::new()
    }

    fn options(shards: Shards, begins: Option<Time>) -> EpochOptions {
        EpochOptions {
            shards,
            begins,
            spread: Vec::new(),
            spread_above: None,
            change: ChangeOptions {
                dry_run: true,
                nodes: NodeOptions {
                    node_endpoint: Vec::new(),
                    tls: Default::default(),
                    token_file: None,
                    json: false,
                },
            },
        }
    }

    #[test]
    fn an_epoch_begins_at_a_full_minute_that_leaves_time_to_learn_of_it() {
        let directory = proto::meta::DirectoryId(1);
        let member = proto::meta::Member { node: 1, directory };
        let shard = |number| proto::meta::Shard {
            number,
            members: vec![member],
            target: Vec::new(),
            leaving: Vec::new(),
            creator: 1,
            is_created: number < 3,
        };
        let state = State { shards: (1..4).map(|number| (number, shard(number))).collect(), ..State::default() };
        for now_ns in [0, 1, MINUTE_NS - 1, 7 * MINUTE_NS + 5] {
            let epoch = plan(&state, &options(Shards::All, None), none(), now_ns).unwrap();
            let lead_ns = epoch.begins_ns() - now_ns;
            let allowed = LEAD_NS..=LEAD_NS + MINUTE_NS;
            assert!(epoch.begins_ns() % MINUTE_NS == 0 && allowed.contains(&lead_ns), "{lead_ns}");
            assert_eq!(epoch.shards(), [1, 2]);
        }
        let only = |number| Shards::Only([number].into());
        assert_eq!(plan(&state, &options(only(2), None), none(), 0).unwrap().shards(), [2]);
        let error = plan(&state, &options(only(3), None), none(), 0).unwrap_err().to_string();
        assert!(error.contains("shard 3 does not exist"), "{error}");
        let error = plan(&state, &options(Shards::All, Some(Time(1))), none(), 0).unwrap_err().to_string();
        assert!(error.contains("within a minute"), "{error}");
        let error =
            plan(&state, &options(Shards::All, Some(Time(MINUTE_NS))), none(), MINUTE_NS).unwrap_err().to_string();
        assert!(error.contains("too early"), "{error}");
    }

    #[test]
    fn a_service_gets_as_many_slots_as_its_rate_needs() {
        let of = |service: &str| (TenantId::default_tenant(), service.to_owned());
        let spread = Spread::new(4).unwrap();
        let services = BTreeMap::from([("wide".to_owned(), spread), ("narrow".to_owned(), spread)]);
        let services = BTreeMap::from([(TenantId::default_tenant(), services)]);
        let epoch = Epoch::new(1, i64::MIN, vec![1; proto::placement::SLOTS.into()], services).unwrap();
        let state = State { epochs: vec![epoch.into()], ..State::default() };
        let status = |rates: &[(&str, f64)]| {
            let rate = |&(service, samples_per_second): &(&str, f64)| proto::wire::ServiceRate {
                tenant: "default".to_owned(),
                service: service.to_owned(),
                samples_per_second,
            };
            let group = GroupStatus { services: rates.iter().map(rate).collect(), ..GroupStatus::default() };
            Ok(StatusResponse { groups: vec![group.clone()], ..StatusResponse::default() })
        };
        let statuses = vec![
            status(&[("small", 999.0), ("sum", 600.0), ("narrow", 4100.0), ("huge", 1e9)]),
            Err("it does not respond".to_owned()),
            status(&[("sum", 600.0), ("wide", 3999.0)]),
        ];
        let hot = hot_services(&state, &rates(statuses), NonZeroU32::new(1000).unwrap());
        let slots: Vec<_> = hot.into_iter().map(|(of, spread)| (of, spread.unwrap().slots())).collect();
        assert_eq!(slots, [(of("huge"), 256), (of("narrow"), 5), (of("sum"), 2)]);
    }
}
