//! `varve upload`: sends debug files to the symbol store of a running varve.

mod files;

use std::fs::File;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

use self::files::Candidate;
use super::output::print;
use super::printable::printable;
use super::server::{Posted, Server};
use crate::command::UploadOptions;
use crate::process::error_chain::chain;

/// Longest wait for the response after the upload of a file. The file waits in the server's queue for up to five
/// minutes, and its conversion takes up to five minutes.
const ANSWER_PATIENCE: Duration = Duration::from_secs(660);

/// Longest time for which the upload of one file is retried while the server is busy.
const BUSY_PATIENCE: Duration = Duration::from_secs(600);

/// Longest pause between two attempts to upload a file.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Uploads all files, even if some are refused. Skips files without symbols that were found in a directory.
pub(crate) fn run(options: &UploadOptions) -> anyhow::Result<()> {
    let candidates = files::candidates(&options.files)?;
    let server = Server::new(&options.server)?;
    let mut added = 0;
    let mut skipped = 0;
    let mut refused = 0;
    for Candidate { path, is_found } in &candidates {
        let shown = printable(&path.display().to_string());
        match send(&server, path) {
            Ok(Sent::Added(text)) => {
                added += 1;
                print(&format!("{shown}: {text}\n"))?;
            }
            Ok(Sent::Unusable(reason)) if *is_found => {
                skipped += 1;
                eprintln!("{shown}: skipped: {}", chain(&reason));
            }
            Ok(Sent::Unusable(error)) | Err(error) => {
                refused += 1;
                eprintln!("{shown}: {}", chain(&error));
            }
        }
    }
    if refused > 0 {
        bail!("{refused} of {} files were not added", candidates.len());
    }
    if added == 0 {
        bail!("none of {skipped} files was added: they have no symbols or no build ID");
    }
    Ok(())
}

/// Outcome of the upload of one file.
enum Sent {
    /// The server added the file. The text describes the file.
    Added(String),
    Unusable(anyhow::Error),
}

/// Uploads one file. Retries with a growing pause while the server is busy.
fn send(server: &Server, path: &Path) -> anyhow::Result<Sent> {
    let began = Instant::now();
    let mut pause = Duration::ZERO;
    loop {
        let file = File::open(path).context("opening it")?;
        // The bar is shown only on a terminal.
        let bar = ProgressBar::new(file.metadata().map_or(0, |metadata| metadata.len())).with_style(bar_style());
        bar.set_message(printable(&path.display().to_string()));
        let posted = server.post("/api/v1/debuginfo", &[], bar.wrap_read(file), ANSWER_PATIENCE);
        bar.finish_and_clear();
        match posted? {
            Posted::Done(answer) => return described(&answer).map(Sent::Added),
            Posted::Unusable(reason) => return Ok(Sent::Unusable(reason)),
            Posted::Busy { retry_after } => pause = (pause * 2).max(retry_after).min(PAUSE_MAX),
        }
        if began.elapsed() + pause > BUSY_PATIENCE {
            bail!("the server had too many uploads for {} minutes: try again later", BUSY_PATIENCE.as_secs() / 60);
        }
        thread::sleep(pause);
    }
}

fn bar_style() -> ProgressStyle {
    let template = "{bar:24} {binary_bytes} of {binary_total_bytes} {msg}";
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// Returns a description of the added file, from the server's response.
fn described(answer: &str) -> anyhow::Result<String> {
    let answer: Value = serde_json::from_str(answer).context("the response is not JSON")?;
    let data = &answer["data"];
    let text = |name: &str| printable(data[name].as_str().unwrap_or_default());
    let note = if data["is_used"] == false { ", not used: an earlier upload has more symbols" } else { "" };
    Ok(format!("{} functions of {} ({}){note}", data["functions"], text("build_id"), text("source")))
}
