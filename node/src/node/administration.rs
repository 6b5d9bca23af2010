//! Tasks of administrators: compaction, statistics, verification, signatures, the clock. Responses are JSON objects.

use std::sync::Arc;
use std::time::Duration;

use proto::{AdministrationTask, Tier};
use serde_json::{Map, Value, json};
use storage_engine::{Content, DamagedWindow, EngineError, Statistics, Verified};
use tokio::task::spawn_blocking;
use tonic::Status;

use crate::clock::ClockReport;
use crate::error::ReplicaError;
use crate::node::replica::Replica;
use crate::node::retention::expired_before_ns;
use crate::node::shared::Shared;

/// Interval at which [`compact`] checks if the log is purged.
const PURGE_INTERVAL: Duration = Duration::from_millis(20);
/// Longest time that [`compact`] waits until the log is purged and its space reclaimed. Openraft purges the log a
/// moment after the request.
const PURGE_PATIENCE: Duration = Duration::from_secs(30);

/// Runs a task on a shard and returns its report, a JSON object. Refuses the task if the replica does not serve. The
/// clock is that of the node, and needs no replica.
pub(super) async fn run(shared: &Shared, shard: u32, task: AdministrationTask) -> Result<String, Status> {
    let replica = || {
        let refused = || Status::unavailable(format!("shard {shard} is not being served: look at /ready and the log"));
        shared.hosted(shard)?.serving().ok_or_else(refused)
    };
    let report = match task {
        AdministrationTask::Compact => compact(shared, &replica()?).await?,
        AdministrationTask::Statistics => {
            let statistics = read(&replica()?, |replica| replica.shard().engine().statistics()).await?;
            statistics_report(&statistics)
        }
        AdministrationTask::Verify => {
            let replica = replica()?;
            let Verified { values, samples, faults, described, .. } =
                read(&replica, |replica| replica.shard().verify()).await?;
            let quarantined = replica.shard().engine().damaged_windows();
            let quarantined: Vec<Value> = quarantined.iter().map(damaged_report).collect();
            json!({
                "values": values,
                "raw_samples": samples,
                "faults": faults,
                "described": described,
                "quarantined": quarantined,
            })
        }
        AdministrationTask::Content => {
            let content = read(&replica()?, |replica| replica.shard().engine().content()).await?;
            content_report(&content)
        }
        AdministrationTask::Clock => clock_report(shared),
        AdministrationTask::AcceptClock => {
            let closed = || Status::unavailable("the clock was not accepted: the Raft log is being opened: try again");
            let log = shared.raft_log.current().ok_or_else(closed)?;
            let accepted = shared.accept_clock(&log).await;
            accepted.map_err(|error| Status::unavailable(format!("the clock was not accepted: {error}")))?;
            clock_report(shared)
        }
    };
    Ok(report.to_string())
}

async fn read<T: Send + 'static>(
    replica: &Arc<Replica>,
    work: impl FnOnce(&Replica) -> Result<T, EngineError> + Send + 'static,
) -> Result<T, Status> {
    let replica = Arc::clone(replica);
    let done = spawn_blocking(move || work(&replica)).await.map_err(|panic| Status::internal(panic.to_string()))?;
    done.map_err(|error| Status::data_loss(error.to_string()))
}

/// Seals, rolls up and compacts all data. If the shard has one member, also waits until the log is purged, and reclaims
/// the space of the log.
async fn compact(shared: &Shared, replica: &Arc<Replica>) -> Result<Value, Status> {
    let failed = |error: &dyn std::fmt::Display| Status::unavailable(error.to_string());
    replica.compact().await.map_err(|error| failed(&error))?;
    let flushed = replica.shard().flushed_index();
    if !replica.is_alone() {
        // The log keeps flushed entries for members that lag.
        return Ok(json!({"compacted_to": flushed}));
    }
    let purge = async {
        while replica.last_purged().await? < flushed {
            tokio::time::sleep(PURGE_INTERVAL).await;
        }
        Ok::<(), Arc<ReplicaError>>(())
    };
    let late =
        |_elapsed| Status::unavailable(format!("the Raft log was not purged within {PURGE_PATIENCE:?}: try again"));
    tokio::time::timeout(PURGE_PATIENCE, purge).await.map_err(late)?.map_err(|error| failed(&error))?;
    shared.reclaim_log(u64::MAX).await;
    Ok(json!({"compacted_to": flushed}))
}

/// Returns the report of the content. The signature is in hexadecimal, because JSON numbers are too small for it.
fn content_report(content: &Content) -> Value {
    let Content { position, samples, signature } = content;
    let index = position.as_ref().map(|position| position.index);
    json!({"index": index, "samples": samples, "signature": format!("{signature:032x}")})
}

/// Returns the report of the clock, with times in Unix seconds. Its `drops_before` shows, for each tier, the time
/// before which data of the tenant with the shortest retention would be dropped if the system clock were confirmed.
fn clock_report(shared: &Shared) -> Value {
    let ClockReport { system_ns, accepted_ns, log_ns, jump_ns, standing, allowance_ns } = shared.clock.report();
    let seconds = |ns: i64| (ns as f64 / 1e6).round() / 1e3;
    let state = shared.cluster.state();
    let before = |tier: Tier| {
        let shortest = state.retention_classes.iter().map(|retention| retention.of(tier)).min();
        let before_ns = shortest.map_or(i64::MIN, |retention| expired_before_ns(system_ns, retention));
        (tier.name().to_owned(), json!(seconds(before_ns)))
    };
    let tiers = [Tier::Raw, Tier::Minute, Tier::Hour, Tier::Day];
    json!({
        "state": standing.name(),
        "system_time": seconds(system_ns),
        "accepted_time": seconds(accepted_ns),
        "log_time": seconds(log_ns),
        "jump_seconds": seconds(jump_ns),
        "allowance_seconds": seconds(allowance_ns),
        "drops_before": tiers.into_iter().map(before).collect::<Map<_, _>>(),
    })
}

fn damaged_report(damaged: &DamagedWindow) -> Value {
    let DamagedWindow { tier, tenant, window, what, .. } = damaged;
    json!({
        "tier": tier.name(),
        "tenant": tenant,
        "start": window.start_ns as f64 / 1e9,
        "end": window.end_ns as f64 / 1e9,
        "what": what,
        "text": damaged.to_string(),
    })
}

fn statistics_report(statistics: &Statistics) -> Value {
    let tier_name = |tier: Option<Tier>| tier.map_or("", Tier::name);
    let section = |(&(tier, name), bytes): (&(Option<Tier>, &str), &storage_engine::SectionBytes)| {
        let samples = tier.and_then(|tier| statistics.samples.get(&tier)).copied().unwrap_or_default();
        let per_sample = (bytes.key_bytes + bytes.value_bytes) as f64 / samples as f64;
        json!({
            "tier": tier_name(tier),
            "section": name,
            "keys": bytes.keys,
            "key_bytes": bytes.key_bytes,
            "value_bytes": bytes.value_bytes,
            "bytes_per_sample": if samples > 0 { json!((per_sample * 1e4).round() / 1e4) } else { Value::Null },
        })
    };
    let samples: Map<String, Value> =
        statistics.samples.iter().map(|(tier, samples)| (tier.name().to_owned(), json!(samples))).collect();
    json!({
        "sections": statistics.sections.iter().map(section).collect::<Vec<_>>(),
        "samples": samples,
        "file_bytes": statistics.file_bytes,
        "head_samples": statistics.head_samples,
        "dictionary_bytes_in_memory": statistics.dictionary_bytes,
        "series_in_memory": statistics.series,
        "label_values": statistics.label_values,
        "quarantined": statistics.damaged.iter().map(damaged_report).collect::<Vec<_>>(),
    })
}
