//! `varve upload`: debug files to the symbol store.

use std::fs::File;

use anyhow::{Context as _, bail};
use serde_json::Value;

use super::printable::printable;
use super::{Server, print};
use crate::command::UploadOptions;

/// Sends each file; one that is refused does not keep the others back.
pub(crate) fn run(options: &UploadOptions) -> anyhow::Result<()> {
    let server = Server::new(&options.server)?;
    let mut refused = 0;
    for path in &options.files {
        let sent = File::open(path)
            .context("opening it")
            .and_then(|file| server.post("/api/v1/debuginfo", file))
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
