//! Measurement of selections, which are queries to the storage engine: flame graphs and series over several spans of
//! time.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::ensure;
use clap::Args;
use proto::answer::WindowsRead;
use proto::label::{PROFILE_TYPE_LABEL, SERVICE_NAME_LABEL};
use proto::selection::Operation;
use proto::{Answer, Fold, LocationSets, Matcher, Selection, StackDetail, TenantId, Window};
use serde_json::{Value, json};

use crate::engine::storage::{Store, StoreArguments};
use crate::generator::{PERIOD_NS, PROFILE_TYPE};
use crate::process::CoreTime;
use crate::report::{Report, quantile, rounded};

/// Largest number of runs of each selection after the cold run. Slow selections have fewer runs.
const RUNS: i64 = 20;
/// Total time of the runs of a selection, in milliseconds, after which no further run starts.
const RUNS_MS_MAX: f64 = 60e3;
/// Time by which the window of a run is earlier than the window of the run before, in nanoseconds. Windows differ so
/// that no result comes from a cache.
const SHIFT_NS: i64 = 1_300_000_000;
/// Time that one stored value in the tier of minutes covers, in nanoseconds.
const VALUE_NS: i64 = 600 * SECOND_NS;
const SECOND_NS: i64 = 1_000_000_000;
/// Names and lengths of the selected windows; lengths are in nanoseconds.
const SPANS: [(&str, i64); 5] = [
    ("5 m", 300 * SECOND_NS),
    ("1 h", 3_600 * SECOND_NS),
    ("24 h", 86_400 * SECOND_NS),
    ("30 d", 30 * 86_400 * SECOND_NS),
    ("1 y", 365 * 86_400 * SECOND_NS),
];
/// Number of points of a series, as many as a chart shows. The product of this number and the longest span fits in an
/// i64.
const STEPS: i64 = 60;

/// Measures selections, which are queries to the storage engine: flame graphs and series.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    own: StoreArguments,
    /// Number of hours of samples to store. Longer spans of time are not measured
    #[arg(long, default_value_t = 2)]
    hours: u64,
    /// Uses the store that bench storage --keep left in this folder, instead of a new one
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["hours", "mix", "hosts", "every", "seed", "recurring"])]
    store: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    FlameGraph,
    SeriesByPod,
    /// Sums over all stacks, grouped by leaf. The window ends at the edge of a stored value, so most of the time is
    /// spent on merging stored sums.
    LeafSums,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let own = &arguments.own;
    let mut report = Report::start(None, arguments.store.as_ref().unwrap_or(&own.folder), own.save.as_deref())?;
    let store = match &arguments.store {
        Some(folder) => Store::open(folder)?,
        None => Store::fill(own, arguments.hours, None)?.reopen()?,
    };
    report.add("storage", store.figures.clone())?;
    for (name, span_ns) in SPANS {
        // A span is skipped if the store has no samples for its earliest window.
        if span_ns + RUNS * SHIFT_NS > store.end_ns - store.start_ns + SECOND_NS * 60 {
            continue;
        }
        for service in [Some(store.service.as_str()), None] {
            for kind in [Kind::FlameGraph, Kind::SeriesByPod, Kind::LeafSums] {
                report.add("select", measure(&store, name, span_ns, service, kind)?)?;
            }
        }
    }
    check_everything(&store)?;
    report.finish()
}

fn measure(store: &Store, span: &str, span_ns: i64, service: Option<&str>, kind: Kind) -> anyhow::Result<Value> {
    let ask = |shift_ns: i64| -> anyhow::Result<(f64, Answer)> {
        let mut end_ns = store.end_ns - shift_ns;
        if kind == Kind::LeafSums {
            end_ns -= end_ns.rem_euclid(VALUE_NS);
        }
        let selection = selection(end_ns - span_ns, end_ns, service, kind);
        let began = Instant::now();
        let answer = store.engine.select(&selection)?;
        Ok((began.elapsed().as_secs_f64() * 1e3, answer))
    };
    let (cold_ms, _) = ask(0)?;
    let mut took_ms = Vec::new();
    let mut samples = 0;
    let mut rows = 0;
    let mut cells = 0;
    let mut windows_read = WindowsRead::default();
    let core_began = CoreTime::now()?;
    for run in 1..=RUNS {
        let (ms, answer) = ask(run * SHIFT_NS)?;
        took_ms.push(ms);
        samples += answer.samples;
        rows += answer.rows;
        windows_read = answer.windows_read;
        cells = answer.cells.len();
        if took_ms.iter().sum::<f64>() > RUNS_MS_MAX {
            break;
        }
    }
    let core_s = core_began.elapsed()?.as_secs_f64();
    let runs = took_ms.len();
    took_ms.sort_by(f64::total_cmp);
    Ok(json!({
        "kind": format!("{kind:?}"),
        "span": span,
        "service": service,
        "cold_ms": rounded(cold_ms),
        "p50_ms": quantile(&took_ms, 0.5),
        "p99_ms": quantile(&took_ms, 0.99),
        "runs": runs,
        "samples_mean": samples / runs as u64,
        "core_ms_mean": rounded(core_s * 1e3 / runs as f64),
        "samples_per_s_core": rounded(samples as f64 / core_s),
        "rows_mean": rows / runs as u64,
        "rows_per_s_core": rounded(rows as f64 / core_s),
        "windows_read": {
            "raw": windows_read.raw,
            "1m": windows_read.minutes,
            "1h": windows_read.hours,
            "1d": windows_read.days,
        },
        "cells": cells,
    }))
}

fn selection(start_ns: i64, end_ns: i64, service: Option<&str>, kind: Kind) -> Selection {
    let matcher = |name: &str, value: &str| Matcher {
        name: name.to_owned(),
        operation: Operation::Equal,
        value: value.to_owned(),
    };
    let mut matchers = vec![matcher(PROFILE_TYPE_LABEL, PROFILE_TYPE)];
    matchers.extend(service.map(|service| matcher(SERVICE_NAME_LABEL, service)));
    let (edges, group_by, stacks) = match kind {
        Kind::FlameGraph => (vec![start_ns, end_ns], Vec::new(), StackDetail::Full),
        Kind::SeriesByPod => {
            let edges = (0..=STEPS).map(|step| start_ns + (end_ns - start_ns) * step / STEPS).collect();
            (edges, vec!["k8s_pod_name".to_owned()], StackDetail::None)
        }
        Kind::LeafSums => (vec![start_ns, end_ns], Vec::new(), StackDetail::Leaf),
    };
    let tenant = TenantId::default_tenant();
    Selection {
        tenant,
        matchers,
        fold: Fold::Sum(Window::between(&edges)),
        group_by,
        group_by_series: false,
        stacks,
        locations: LocationSets::default(),
    }
}

/// Checks the sum of all stored samples. If it is wrong, the measured times mean nothing.
fn check_everything(store: &Store) -> anyhow::Result<()> {
    let answer = store.engine.select(&selection(store.start_ns, store.end_ns, None, Kind::SeriesByPod))?;
    let sum: i128 = answer.cells.iter().map(|cell| cell.sum).sum();
    let want = i128::from(store.samples) * i128::from(PERIOD_NS);
    ensure!(sum == want, "the store has {sum} ns of CPU, it was given {want}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generator::Mix;

    #[test]
    fn stored_samples_are_selected_before_and_after_a_reopen() {
        let folder = tempfile::tempdir().unwrap();
        let own = StoreArguments {
            mix: Mix::L,
            hosts: Some(1),
            every: 1,
            recurring: false,
            seed: 5,
            folder: folder.path().to_owned(),
            save: None,
        };
        let kept = folder.path().join("kept");
        let store = Store::fill(&own, 1, Some(&kept)).unwrap();
        check_everything(&store).unwrap();
        let store = store.reopen().unwrap();
        check_everything(&store).unwrap();
        drop(store);
        let store = Store::open(&kept).unwrap();
        check_everything(&store).unwrap();
        let figures = measure(&store, "5 m", 300 * SECOND_NS, Some("java-service"), Kind::FlameGraph).unwrap();
        assert!(figures["samples_mean"].as_u64().unwrap() > 0 && figures["cells"].as_u64().unwrap() > 10, "{figures}");
        assert!(Store::fill(&own, 1, Some(&kept)).is_err(), "a folder that exists is nobody's to write into");
    }
}
