//! `varve admin`: compact, stats, verify, clock, delete.

use std::io::{self, Write as _};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, bail};
use serde_json::Value;

use super::output::print;
use super::server::{Posted, Server};
use super::table;
use crate::command::{AdminCommands, AdminOptions, ClockOptions, DeleteOptions, ServerOptions};

/// Longest wait for the end of an administrative task. A task on terabytes takes hours.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);

pub(crate) fn run(command: &AdminCommands) -> anyhow::Result<()> {
    match command {
        AdminCommands::Compact(options) => {
            let shards = data(&done(&options.server, "/api/v1/admin/compact", &[])?)?;
            show(options, &shards, |shard, report| {
                Ok(format!("shard {shard} is compacted up to log index {}\n", report["compacted_to"]))
            })
        }
        AdminCommands::Stats(options) => {
            let server = Server::new(&options.server)?;
            let answer = server.get_within("/api/v1/admin/stats", &[], PATIENCE)?;
            show(options, &data(&answer)?, statistics)
        }
        AdminCommands::Verify(options) => {
            let shards = data(&done(&options.server, "/api/v1/admin/verify", &[])?)?;
            show(options, &shards, verified)?;
            let faults: u64 = shards.iter().filter_map(|shard| shard["report"]["faults"].as_u64()).sum();
            if faults > 0 {
                bail!(
                    "{faults} values are damaged or wrong; queries report quarantined windows as missing: \
                     restore the shard from a snapshot or another replica, or let the time expire"
                );
            }
            Ok(())
        }
        AdminCommands::Clock(options) => clock(options),
        AdminCommands::Delete(options) => delete(options),
        AdminCommands::Certs(options) => crate::certs::run(options),
        AdminCommands::Tenant(_) | AdminCommands::Token(_) | AdminCommands::Cluster(_) => super::cluster::run(command),
    }
}

fn clock(options: &ClockOptions) -> anyhow::Result<()> {
    let ClockOptions { accept, admin } = options;
    let answer = match accept {
        true => done(&admin.server, "/api/v1/admin/clock/accept", &[])?,
        false => Server::new(&admin.server)?.get("/api/v1/admin/clock", &[])?,
    };
    show(admin, &data(&answer)?, clock_text)
}

fn clock_text(shard: &Value, report: &Value) -> anyhow::Result<String> {
    let number = |value: &Value| value.as_f64().context("the report has no time");
    let time = |value: &Value| number(value).and_then(rfc3339);
    let jump_s = number(&report["jump_seconds"])?;
    let length = length(jump_s);
    let system = time(&report["system_time"])?;
    let accepted = time(&report["accepted_time"])?;
    let mut out = format!("shard {shard}: system time {system}, accepted time {accepted}\n");
    match report["state"].as_str() {
        Some("ahead") => {
            out.push_str(&format!(
                "The system clock is {length} ahead of the elapsed time. Retention does not follow it.\nIf the system \
                 time is right, run `varve admin clock --accept`. That permanently drops data older than:\n\n"
            ));
            let before = report["drops_before"].as_object().context("the report has no tiers")?;
            let row = |(tier, before)| Ok(vec![String::from(tier), time(before)?]);
            let finest_first = ["raw", "1m", "1h", "1d"].into_iter().filter_map(|tier| Some((tier, before.get(tier)?)));
            let rows = finest_first.map(row).collect::<anyhow::Result<Vec<_>>>()?;
            out.push_str(&table::render(&["tier", "before"], &rows));
        }
        Some("behind") => out.push_str(&format!(
            "The system clock is {length} behind the elapsed time. No data expires meanwhile.\nIf it stays, it is \
             accepted after a day, or now by `varve admin clock --accept`.\n"
        )),
        _ => out.push_str("They agree.\n"),
    }
    Ok(out)
}

/// Formats the length of a clock's jump in days and smaller units. The crate humantime would use months and years,
/// which are only averages.
fn length(seconds: f64) -> String {
    let seconds = seconds.abs().round() as u64;
    let days = seconds / 86_400;
    let below = humantime::format_duration(Duration::from_secs(seconds % 86_400));
    match (days, seconds % 86_400) {
        (0, _) => below.to_string(),
        (days, 0) => format!("{days}days"),
        (days, _) => format!("{days}days {below}"),
    }
}

fn rfc3339(unix_seconds: f64) -> anyhow::Result<String> {
    let since_1970 = Duration::try_from_secs_f64(unix_seconds.max(0.0)).context("a time is out of range")?;
    let time = SystemTime::UNIX_EPOCH.checked_add(since_1970).context("a time is out of range")?;
    Ok(humantime::format_rfc3339_seconds(time).to_string())
}

fn delete(options: &DeleteOptions) -> anyhow::Result<()> {
    let DeleteOptions { selector, start, end, yes, server } = options;
    if !yes {
        eprint!("Delete all samples of {selector} after {start} up to {end}, permanently? Type yes: ");
        io::stderr().flush().context("stderr")?;
        let mut answer = String::new();
        io::stdin().read_line(&mut answer).context("stdin")?;
        if answer.trim() != "yes" {
            bail!("nothing was deleted: type yes, or use --yes");
        }
    }
    let parameters = [("query", selector.clone()), ("start", start.to_string()), ("end", end.to_string())];
    let answer: Value =
        serde_json::from_str(&done(server, "/api/v1/delete", &parameters)?).context("the response is not JSON")?;
    let samples = &answer["data"]["samples"];
    let windows = &answer["data"]["windows"];
    print(&format!("deleted {samples} samples, and {windows} windows of times with sums only\n"))
}

/// Asks the server to do a task. Returns the response when the task is done.
fn done(server: &ServerOptions, path: &str, parameters: &[(&str, String)]) -> anyhow::Result<String> {
    match Server::new(server)?.post(path, parameters, io::empty(), PATIENCE)? {
        Posted::Done(answer) => Ok(answer),
        Posted::Unusable(error) => Err(error),
        Posted::Busy { .. } => bail!("the server is busy: try again"),
    }
}

fn data(answer: &str) -> anyhow::Result<Vec<Value>> {
    let answer: Value = serde_json::from_str(answer).context("the response is not JSON")?;
    answer["data"].as_array().cloned().context("the response has no shard")
}

fn show(
    options: &AdminOptions,
    shards: &[Value],
    text: impl Fn(&Value, &Value) -> anyhow::Result<String>,
) -> anyhow::Result<()> {
    if options.format == "json" {
        return print(&format!("{}\n", Value::Array(shards.to_vec())));
    }
    shards.iter().try_for_each(|shard| print(&text(&shard["shard"], &shard["report"])?))
}

fn statistics(shard: &Value, report: &Value) -> anyhow::Result<String> {
    let sections = report["sections"].as_array().context("the report has no sections")?;
    let cell = |value: &Value| match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let columns = ["tier", "section", "keys", "key_bytes", "value_bytes", "bytes_per_sample"];
    let rows: Vec<Vec<String>> =
        sections.iter().map(|section| columns.iter().map(|column| cell(&section[*column])).collect()).collect();
    let mut out = format!("shard {shard}: {} bytes in files\n\n", report["file_bytes"]);
    out.push_str(&table::render(&columns, &rows));
    let samples = report["samples"].as_object().into_iter().flatten();
    let samples: Vec<Vec<String>> = samples.map(|(tier, samples)| vec![tier.clone(), samples.to_string()]).collect();
    out.push('\n');
    out.push_str(&table::render(&["tier", "samples"], &samples));
    let labels = report["label_values"].as_object().into_iter().flatten();
    let mut labels: Vec<(u64, &String)> = labels.map(|(label, values)| (values.as_u64().unwrap_or(0), label)).collect();
    labels.sort_by(|a, b| b.cmp(a));
    let labels: Vec<Vec<String>> =
        labels.iter().map(|(values, label)| vec![(*label).clone(), values.to_string()]).collect();
    out.push('\n');
    out.push_str(&table::render(&["label", "values"], &labels));
    let head = &report["head_samples"];
    let memory = &report["dictionary_bytes_in_memory"];
    out.push_str(&format!("\n{head} samples in the head; {memory} bytes of definitions in memory\n"));
    for damaged in report["quarantined"].as_array().into_iter().flatten() {
        let text = super::printable::printable(damaged["text"].as_str().unwrap_or_default());
        out.push_str(&format!("quarantined: {text}\n"));
    }
    Ok(out)
}

fn verified(shard: &Value, report: &Value) -> anyhow::Result<String> {
    let described = report["described"].as_array().context("the report describes nothing")?;
    let values = &report["values"];
    let samples = &report["raw_samples"];
    let faults = &report["faults"];
    let mut out =
        format!("shard {shard}: {values} values and {samples} raw samples are intact, {faults} values are damaged\n");
    for text in described.iter().filter_map(Value::as_str) {
        out.push_str(&super::printable::printable(text));
        out.push('\n');
    }
    Ok(out)
}
