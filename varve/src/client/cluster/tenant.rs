//! `varve admin tenant`.

use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

use anyhow::Context as _;
use proto::TenantId;
use proto::meta::{Command, DEFAULT_CLASS, Limits, Policy, Retention, State, Tenant, TimeResolution};
use serde_json::{Value, json};

use super::connection::Connection;
use super::{change, outcome, token};
use crate::client::{print, table};
use crate::command::{
    DeleteTenantOptions, LabelNames, Limit, NodeOptions, PolicyOptions, Resolution, ShowTenantOptions, TenantCommands,
};

pub(super) async fn run(command: &TenantCommands) -> anyhow::Result<()> {
    match command {
        TenantCommands::Create(options) => write(options, true).await,
        TenantCommands::Update(options) => write(options, false).await,
        TenantCommands::Delete(options) => delete(options).await,
        TenantCommands::List(options) => list(options).await,
        TenantCommands::Show(options) => show(options).await,
    }
}

/// Creates a tenant, or changes its policy.
async fn write(options: &PolicyOptions, is_new: bool) -> anyhow::Result<()> {
    let PolicyOptions { tenant: name, change: change_options, .. } = options;
    let connection = Connection::new(&change_options.nodes)?;
    let state = connection.state().await?;
    let known = state.tenants.get(name);
    let base = match (is_new, known) {
        (false, None) => return Err(unknown(name, &state)),
        (false, Some(known)) => known.policy.clone(),
        (true, _) => Policy {
            retention: first_retention(name, &state),
            time_resolution: TimeResolution::Nanoseconds,
            removed_labels: Vec::new(),
            dropped_labels: Default::default(),
            limits: Limits::default(),
        },
    };
    let policy = changed(base, options)?;
    let applies_to = retention_applies_to(known, &policy);
    let command = match is_new {
        true => Command::CreateTenant(name.clone(), policy.clone()),
        false => Command::UpdateTenant(name.clone(), policy.clone()),
    };
    let is_changed = change(&connection, state, &command, change_options).await?;
    if change_options.nodes.json {
        let report = json!({"dry_run": change_options.dry_run, "changed": is_changed, "tenant": name.as_str(),
            "policy": policy_json(&policy), "retention_applies_to": applies_to});
        return print(&format!("{report}\n"));
    }
    let (done, planned) = if is_new { ("created", "would create") } else { ("updated", "would update") };
    let mut text = format!("{} tenant {name}\n", outcome(is_changed, change_options, done, planned));
    text.push_str(&policy_text(&policy));
    match applies_to {
        Some("all samples") => text.push_str("\nThe retention also applies to the samples that are stored already.\n"),
        Some(_) => text.push_str(
            "\nThe retention applies to new samples. The stored ones keep theirs, because another tenant has had the \
             same retention.\n",
        ),
        None => {}
    }
    if is_new && is_changed && !change_options.dry_run {
        text.push_str(&format!("\nNext: varve admin token create --tenant {name} --role push > push.token\n"));
    }
    print(&text)
}

/// Retention of a new tenant, if no option names another. The tenant `default` has one before it has a policy.
fn first_retention(name: &TenantId, state: &State) -> Retention {
    let present = state.retention_classes.get(usize::from(DEFAULT_CLASS)).copied();
    present.filter(|_| *name == TenantId::default_tenant()).unwrap_or(Retention::DEFAULT)
}

/// Returns the samples to which a changed retention applies; `None` if the command changes no retention.
fn retention_applies_to(known: Option<&Tenant>, policy: &Policy) -> Option<&'static str> {
    let known = known.filter(|known| known.policy.retention != policy.retention)?;
    Some(if known.owns_class { "all samples" } else { "new samples" })
}

/// Returns a policy with the changes that the options give.
fn changed(mut policy: Policy, options: &PolicyOptions) -> anyhow::Result<Policy> {
    let limits = &mut policy.limits;
    let set = |to: &mut Option<NonZeroU64>, given: Option<Limit>| {
        if let Some(Limit(limit)) = given {
            *to = limit;
        }
    };
    set(&mut limits.samples_per_second_max, options.samples_per_second);
    set(&mut limits.bytes_per_second_max, options.bytes_per_second);
    set(&mut limits.series_max, options.series);
    set(&mut limits.query_cells_max, options.query_cells);
    if let Some(Limit(limit)) = options.queries_at_once {
        let small = |limit: NonZeroU64| NonZeroU32::try_from(limit).context("--queries-at-once is too large");
        limits.queries_at_once_max = limit.map(small).transpose()?;
    }
    let given = [options.retention, options.retention_1m, options.retention_1h, options.retention_1d];
    for (seconds, given) in policy.retention.0.iter_mut().zip(given) {
        *seconds = given.map_or(*seconds, |age| age.as_secs());
    }
    if let Some(LabelNames(names)) = &options.remove_labels {
        policy.removed_labels.clone_from(names);
    }
    for (names, given) in policy.dropped_labels.iter_mut().zip([&options.drop_labels_1h, &options.drop_labels_1d]) {
        if let Some(LabelNames(given)) = given {
            names.clone_from(given);
        }
    }
    policy.time_resolution = match options.time_resolution {
        Some(Resolution::Nanoseconds) => TimeResolution::Nanoseconds,
        Some(Resolution::Milliseconds) => TimeResolution::Milliseconds,
        Some(Resolution::Minute) => TimeResolution::Window,
        None => policy.time_resolution,
    };
    policy.check()?;
    Ok(policy)
}

async fn delete(options: &DeleteTenantOptions) -> anyhow::Result<()> {
    let DeleteTenantOptions { tenant: name, change: change_options } = options;
    let connection = Connection::new(&change_options.nodes)?;
    let state = connection.state().await?;
    let tokens = state.tenants.get(name).ok_or_else(|| unknown(name, &state))?.tokens.len();
    let is_changed = change(&connection, state, &Command::DeleteTenant(name.clone()), change_options).await?;
    if change_options.nodes.json {
        let report = json!({"dry_run": change_options.dry_run, "changed": is_changed, "tenant": name.as_str(),
            "tokens": tokens});
        return print(&format!("{report}\n"));
    }
    let outcome = outcome(is_changed, change_options, "deleted", "would delete");
    print(&format!(
        "{outcome} tenant {name} with {tokens} tokens; its profiles stay on disk until they expire, so the name cannot \
         be used again\n"
    ))
}

async fn list(options: &NodeOptions) -> anyhow::Result<()> {
    let state = Connection::new(options)?.state().await?;
    if options.json {
        let tenants: Vec<Value> = state.tenants.values().map(tenant_json).collect();
        return print(&format!("{}\n", Value::Array(tenants)));
    }
    let row = |tenant: &Tenant| {
        let Limits { samples_per_second_max, bytes_per_second_max, series_max, queries_at_once_max, query_cells_max } =
            tenant.policy.limits;
        let number = |limit: Option<NonZeroU64>| limit.map_or_else(|| "none".to_owned(), |limit| limit.to_string());
        vec![
            tenant.name.to_string(),
            tenant.tokens.len().to_string(),
            number(samples_per_second_max),
            number(bytes_per_second_max),
            number(series_max),
            number(queries_at_once_max.map(NonZeroU64::from)),
            number(query_cells_max),
        ]
    };
    let rows: Vec<_> = state.tenants.values().map(row).collect();
    if rows.is_empty() {
        return print("the cluster has no tenant: create one with `varve admin tenant create NAME`\n");
    }
    let header = ["tenant", "tokens", "samples/s", "bytes/s", "series", "queries at once", "query cells"];
    print(&table::render(&header, &rows))
}

async fn show(options: &ShowTenantOptions) -> anyhow::Result<()> {
    let state = Connection::new(&options.nodes)?.state().await?;
    let tenant = state.tenants.get(&options.tenant).ok_or_else(|| unknown(&options.tenant, &state))?;
    if options.nodes.json {
        return print(&format!("{}\n", tenant_json(tenant)));
    }
    let tokens = token::table_of([tenant]);
    print(&format!("tenant {}\n{}\n{tokens}", tenant.name, policy_text(&tenant.policy)))
}

/// Returns the error of a tenant that does not exist.
fn unknown(name: &TenantId, state: &State) -> anyhow::Error {
    if state.deleted_tenants.contains(name) {
        return anyhow::anyhow!("tenant {name} was deleted");
    }
    let known: Vec<&str> = state.tenants.keys().map(TenantId::as_str).take(10).collect();
    let known =
        if known.is_empty() { "the cluster has none".to_owned() } else { format!("known: {}", known.join(", ")) };
    anyhow::anyhow!("tenant {name} is unknown ({known}): create it with `varve admin tenant create {name}`")
}

fn policy_text(policy: &Policy) -> String {
    let number = |limit: Option<NonZeroU64>| limit.map_or_else(|| "none".to_owned(), |limit| limit.to_string());
    let Limits { samples_per_second_max, bytes_per_second_max, series_max, queries_at_once_max, query_cells_max } =
        policy.limits;
    let [raw, minutes, hours, days] = policy.retention.0.map(age);
    let labels = |names: &[String]| if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    let [by_hours, by_days] = &policy.dropped_labels;
    let rows = [
        ("samples per second and router", number(samples_per_second_max)),
        ("bytes per second and router", number(bytes_per_second_max)),
        ("series in six hours and shard", number(series_max)),
        ("queries at once and router", number(queries_at_once_max.map(NonZeroU64::from))),
        ("query cells", number(query_cells_max)),
        ("retention of samples", raw),
        ("retention of sums per minute", minutes),
        ("retention of sums per hour", hours),
        ("retention of sums per day", days),
        ("removed labels", labels(&policy.removed_labels)),
        ("labels dropped by hours", labels(by_hours)),
        ("labels dropped by days", labels(by_days)),
        ("precision of times", resolution(policy.time_resolution).to_owned()),
    ];
    rows.iter().map(|(name, value)| format!("  {name:<30}  {value}\n")).collect()
}

/// Formats an age in days and smaller units. The crate humantime would use months and years, which are only averages.
fn age(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let below = humantime::format_duration(Duration::from_secs(rest));
    match (days, rest) {
        (0, _) => below.to_string(),
        (days, 0) => format!("{days}d"),
        (days, _) => format!("{days}d {below}"),
    }
}

/// Returns the name of a resolution, as the options have it.
fn resolution(resolution: TimeResolution) -> &'static str {
    match resolution {
        TimeResolution::Nanoseconds => "nanoseconds",
        TimeResolution::Milliseconds => "milliseconds",
        TimeResolution::Window => "minute",
    }
}

fn policy_json(policy: &Policy) -> Value {
    let Limits { samples_per_second_max, bytes_per_second_max, series_max, queries_at_once_max, query_cells_max } =
        policy.limits;
    let [raw, minutes, hours, days] = policy.retention.0;
    let [hour_labels, day_labels] = &policy.dropped_labels;
    json!({
        "samples_per_second": samples_per_second_max,
        "bytes_per_second": bytes_per_second_max,
        "series": series_max,
        "queries_at_once": queries_at_once_max,
        "query_cells": query_cells_max,
        "retention_seconds": {"raw": raw, "1m": minutes, "1h": hours, "1d": days},
        "removed_labels": policy.removed_labels,
        "dropped_labels": {"1h": hour_labels, "1d": day_labels},
        "time_resolution": resolution(policy.time_resolution),
    })
}

fn tenant_json(tenant: &Tenant) -> Value {
    let tokens: Vec<Value> =
        tenant.tokens.iter().map(|(hash, token)| token::json_of(&tenant.name, *hash, token)).collect();
    json!({"tenant": tenant.name.as_str(), "policy": policy_json(&tenant.policy), "tokens": tokens})
}
