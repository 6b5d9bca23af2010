//! Figures as JSON lines on standard output.
//!
//! The first line describes the machine and the binary. Each further line has the figures of one measurement. `--save
//! NAME` also writes all lines to one file in `bench/results/`.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

/// Lines that were printed so far, and the path of the result file, if one was requested.
#[derive(Debug)]
pub(crate) struct Report {
    lines: Vec<Value>,
    save_to: Option<PathBuf>,
}

impl Report {
    /// Prints the first line, which describes the machine and the measured binary. `binary` is `None` if this program
    /// itself is measured. `folder` is a folder on the measured disk. `save` is the NAME in the path of the result
    /// file.
    pub(crate) fn start(binary: Option<&Path>, folder: &Path, save: Option<&str>) -> anyhow::Result<Self> {
        let now = jiff::Timestamp::now();
        let save_to = save.map(|name| result_path(&now.strftime("%Y-%m-%d").to_string(), name)).transpose()?;
        let mut report = Self { lines: Vec::new(), save_to };
        let measured = binary.map_or_else(std::env::current_exe, |binary| Ok(binary.to_owned()))?;
        let run = json!({
            "time": now.to_string(),
            "commit": commit(),
            "binary": measured,
            // `commit` is the commit of the checkout. A binary that is older than this commit was built from another
            // one.
            "binary_modified": jiff::Timestamp::try_from(fs::metadata(&measured)?.modified()?)?.to_string(),
            "version": binary.map(|binary| said(Command::new(binary).arg("--version"))),
            "arguments": std::env::args().skip(1).collect::<Vec<_>>(),
            "machine": machine(folder),
        });
        report.add("run", run)?;
        Ok(report)
    }

    /// Prints the figures of one measurement as a line, and keeps them in memory for the result file.
    pub(crate) fn add(&mut self, measure: &str, mut figures: Value) -> anyhow::Result<()> {
        figures["measure"] = json!(measure);
        print(&figures)?;
        self.lines.push(figures);
        Ok(())
    }

    /// Writes all printed lines to the result file, if one was requested.
    pub(crate) fn finish(self) -> anyhow::Result<()> {
        let Some(path) = self.save_to else { return Ok(()) };
        let text = serde_json::to_string_pretty(&self.lines)?;
        let written = path.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&path, text + "\n"));
        written.with_context(|| path.display().to_string())
    }
}

/// Prints figures as one line.
pub(crate) fn print(figures: &Value) -> anyhow::Result<()> {
    // If the reader of the output has ended, `writeln!` returns an error; `println!` would panic.
    writeln!(std::io::stdout(), "{figures}").context("standard output")
}

/// Rounds to three significant digits, because further digits are noise. Numbers from 1,000 on are rounded to a whole
/// number, and numbers below 1 to three decimals.
pub(crate) fn rounded(value: f64) -> f64 {
    let digits = if value.abs() < 1.0 { 3 } else { (2 - value.abs().log10().floor() as i32).max(0) };
    let scale = 10_f64.powi(digits);
    (value * scale).round() / scale
}

/// Returns the q-quantile of sorted values: the smallest value such that at least a share q of all values are not
/// larger than it. Returns NaN if there are no values.
pub(crate) fn quantile(sorted: &[f64], q: f64) -> f64 {
    let rank = (sorted.len() as f64 * q).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied().map_or(f64::NAN, rounded)
}

fn result_path(date: &str, name: &str) -> anyhow::Result<PathBuf> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if name.is_empty() || !name.bytes().all(plain) {
        bail!("--save {name:?}: use letters, digits, '-', '_' and '.'");
    }
    Ok(Path::new(env!("CARGO_MANIFEST_DIR")).join("results").join(format!("{date}-{name}.json")))
}

/// Returns the hash of the commit of this program's sources. If the sources differ from that commit, "+changes" is
/// appended.
fn commit() -> Option<String> {
    let git = |arguments: &[&str]| said(Command::new("git").args(["-C", env!("CARGO_MANIFEST_DIR")]).args(arguments));
    let commit = git(&["rev-parse", "HEAD"])?;
    let changed = git(&["status", "--porcelain"]).is_none_or(|changes| !changes.is_empty());
    Some(if changed { commit + "+changes" } else { commit })
}

/// Returns the standard output of a command; `None` if the command failed.
fn said(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn machine(folder: &Path) -> Value {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?.split_once(':')?;
        Some(line.1.trim().to_owned())
    };
    let load = read("/proc/loadavg").split(' ').next().and_then(|load| load.parse::<f64>().ok());
    json!({
        "cpu": field(&read("/proc/cpuinfo"), "model name"),
        "cpus": std::thread::available_parallelism().map_or(0, usize::from),
        "memory": field(&read("/proc/meminfo"), "MemTotal"),
        "kernel": read("/proc/sys/kernel/osrelease").trim(),
        // The cost of syncs depends on the file system: on tmpfs they cost nothing.
        "file_system": said(Command::new("stat").args(["-f", "-c", "%T"]).arg(folder)),
        "load_average_1m": load,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits() {
        for (value, want) in
            [(0.0, 0.0), (0.123_456, 0.123), (1.234_56, 1.23), (12.345, 12.3), (123.45, 123.0), (12_345.6, 12_346.0)]
        {
            assert_eq!(rounded(value), want);
        }
    }

    #[test]
    fn a_name_leads_to_no_other_folder() {
        assert!(result_path("2026-01-01", "../x").is_err());
        assert!(result_path("2026-01-01", "h-2cores").unwrap().ends_with("results/2026-01-01-h-2cores.json"));
    }
}
