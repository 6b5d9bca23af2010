//! `varve admin`: settle, stats, verify, delete.

use std::io::{self, Write as _};
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::Value;

use super::{Posted, Server, print, table};
use crate::command::{AdminCommands, AdminOptions, DeleteOptions, ServerOptions};

/// How long settling or verifying may take: terabytes take hours.
const PATIENCE: Duration = Duration::from_secs(24 * 3600);

pub(crate) fn run(command: &AdminCommands) -> anyhow::Result<()> {
    match command {
        AdminCommands::Settle(options) => {
            let shards = data(&done(&options.server, "/api/v1/admin/settle", &[])?)?;
            show(options, &shards, |shard, report| {
                Ok(format!("shard {shard} is settled up to log index {}\n", report["settled_to"]))
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
                    "{faults} values are not as they should be: restore the shard from a snapshot or another replica"
                );
            }
            Ok(())
        }
        AdminCommands::Delete(options) => delete(options),
    }
}

fn delete(options: &DeleteOptions) -> anyhow::Result<()> {
    let DeleteOptions { selector, start, end, yes, server } = options;
    if !yes {
        eprint!("Delete all samples of {selector} after {start} up to {end}, for good? Type yes: ");
        io::stderr().flush().context("stderr")?;
        let mut answer = String::new();
        io::stdin().read_line(&mut answer).context("stdin")?;
        if answer.trim() != "yes" {
            bail!("nothing was deleted: answer yes, or give --yes");
        }
    }
    let parameters = [("query", selector.clone()), ("start", start.clone()), ("end", end.clone())];
    let answer: Value =
        serde_json::from_str(&done(server, "/api/v1/delete", &parameters)?).context("the answer is not JSON")?;
    let (samples, windows) = (&answer["data"]["samples"], &answer["data"]["windows"]);
    print(&format!("deleted {samples} samples, and {windows} windows of times of which only sums were kept\n"))
}

/// The answer of a server that has done it.
fn done(server: &ServerOptions, path: &str, parameters: &[(&str, String)]) -> anyhow::Result<String> {
    match Server::new(server)?.post(path, parameters, io::empty(), PATIENCE)? {
        Posted::Done(answer) => Ok(answer),
        Posted::Busy { .. } => bail!("the server has too much to do: try again"),
    }
}

fn data(answer: &str) -> anyhow::Result<Vec<Value>> {
    let answer: Value = serde_json::from_str(answer).context("the answer is not JSON")?;
    answer["data"].as_array().cloned().context("the answer names no shard")
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
    let (head, memory) = (&report["head_samples"], &report["dictionary_bytes_in_memory"]);
    out.push_str(&format!("\n{head} samples in the head; {memory} bytes of definitions in memory\n"));
    Ok(out)
}

fn verified(shard: &Value, report: &Value) -> anyhow::Result<String> {
    let described = report["described"].as_array().context("the report says nothing of faults")?;
    let (values, samples, faults) = (&report["values"], &report["raw_samples"], &report["faults"]);
    let mut out =
        format!("shard {shard}: {values} values and {samples} raw samples are right, {faults} values are not\n");
    for fault in described.iter().filter_map(Value::as_str) {
        out.push_str(&super::printable::printable(fault));
        out.push('\n');
    }
    Ok(out)
}
