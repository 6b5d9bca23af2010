//! `varve upload`: debug files to the symbol store.

use std::fs::File;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde_json::Value;

use super::printable::printable;
use super::{Posted, Server, print};
use crate::command::UploadOptions;

/// How long the server may take for one file once it has it: it may wait for its turn for five minutes, and make its
/// table for another five.
const ANSWER_PATIENCE: Duration = Duration::from_secs(660);

/// How long a server may have too much to do.
const BUSY_PATIENCE: Duration = Duration::from_secs(600);

/// Longest time between two questions whether it still has.
const PAUSE_MAX: Duration = Duration::from_secs(30);

/// Sends each file; one that is refused does not keep the others back.
pub(crate) fn run(options: &UploadOptions) -> anyhow::Result<()> {
    let server = Server::new(&options.server)?;
    let mut refused = 0;
    for path in &options.files {
        let sent = send(&server, path)
            .and_then(|answer| serde_json::from_str::<Value>(&answer).context("the answer is not JSON"));
        match sent {
            Ok(answer) => {
                let data = &answer["data"];
                let text = |name: &str| printable(data[name].as_str().unwrap_or_default());
                let note = if data["is_used"] == false { ", not used: an earlier upload says more" } else { "" };
                let functions = &data["functions"];
                print(&format!(
                    "{}: {functions} functions of {} ({}){note}\n",
                    path.display(),
                    text("build_id"),
                    text("source")
                ))?;
            }
            Err(error) => {
                refused += 1;
                eprintln!("{}: {error:#}", path.display());
            }
        }
    }
    if refused > 0 {
        bail!("{refused} of {} files were not added", options.files.len());
    }
    Ok(())
}

/// Sends one file, again and again less often while the server has too much to do.
fn send(server: &Server, path: &Path) -> anyhow::Result<String> {
    let began = Instant::now();
    let mut pause = Duration::ZERO;
    loop {
        let file = File::open(path).context("opening it")?;
        match server.post("/api/v1/debuginfo", &[], file, ANSWER_PATIENCE)? {
            Posted::Done(answer) => return Ok(answer),
            Posted::Busy { retry_after } => pause = (pause * 2).max(retry_after).min(PAUSE_MAX),
        }
        if began.elapsed() + pause > BUSY_PATIENCE {
            bail!("the server had too many uploads for {} minutes: try again later", BUSY_PATIENCE.as_secs() / 60);
        }
        thread::sleep(pause);
    }
}
