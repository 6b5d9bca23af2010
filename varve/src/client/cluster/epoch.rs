//! `varve admin cluster epoch`: adds an epoch to the placement of slots on shards.

use std::collections::BTreeSet;

use anyhow::bail;
use node::meta::{SpreadChanges, propose_epoch};
use proto::meta::{Command, State};
use proto::placement::Epoch;
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
    let epoch = plan(&state, options, Time::now().0)?;
    change(&connection, state.clone(), &Command::AddEpoch(epoch.clone()), &options.change).await?;
    print(&report(&state, &epoch, &options.change))
}

/// Plans the next epoch. `now_ns` is the present time.
fn plan(state: &State, options: &EpochOptions, now_ns: i64) -> anyhow::Result<Epoch> {
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
    let changes: SpreadChanges = options.spread.iter().map(|spread| spread.clone().into_change()).collect();
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
    use super::*;
    use crate::command::NodeOptions;

    fn options(shards: Shards, begins: Option<Time>) -> EpochOptions {
        EpochOptions {
            shards,
            begins,
            spread: Vec::new(),
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
            let epoch = plan(&state, &options(Shards::All, None), now_ns).unwrap();
            let lead_ns = epoch.begins_ns() - now_ns;
            let allowed = LEAD_NS..=LEAD_NS + MINUTE_NS;
            assert!(epoch.begins_ns() % MINUTE_NS == 0 && allowed.contains(&lead_ns), "{lead_ns}");
            assert_eq!(epoch.shards(), [1, 2]);
        }
        let only = |number| Shards::Only([number].into());
        assert_eq!(plan(&state, &options(only(2), None), 0).unwrap().shards(), [2]);
        let error = plan(&state, &options(only(3), None), 0).unwrap_err().to_string();
        assert!(error.contains("shard 3 does not exist"), "{error}");
        let error = plan(&state, &options(Shards::All, Some(Time(1))), 0).unwrap_err().to_string();
        assert!(error.contains("within a minute"), "{error}");
        let error = plan(&state, &options(Shards::All, Some(Time(MINUTE_NS))), MINUTE_NS).unwrap_err().to_string();
        assert!(error.contains("too early"), "{error}");
    }
}
