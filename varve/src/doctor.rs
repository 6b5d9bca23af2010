//! `varve agent doctor`: what this host can and cannot do, found out by trying.

use std::fmt::Write as _;

use agent::{Finding, Missing};

use crate::client;

/// Prints one line for each thing that was tried, and a verdict; the error is the verdict, where nothing can be sampled.
pub(crate) fn run() -> anyhow::Result<()> {
    let findings = agent::examine();
    let can_start = findings.iter().flat_map(|finding| &finding.missing).all(|missing| !missing.is_required);
    // What has been refused one by one would be refused again.
    let rehearsed = can_start.then(|| agent::rehearse().map_err(anyhow::Error::from));
    client::print(&report(&kernel(), &findings, rehearsed.as_ref()))?;
    match rehearsed {
        Some(Ok(())) => Ok(()),
        Some(Err(_)) | None => anyhow::bail!("this host cannot be sampled: see above what it takes"),
    }
}

fn kernel() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("Linux {} on {}", release.trim(), std::env::consts::ARCH)
}

fn report(kernel: &str, findings: &[Finding], rehearsed: Option<&anyhow::Result<()>>) -> String {
    let mut out = format!("{kernel}\n");
    let mut line = |mark: &str, text: &str| {
        // Writing to a String cannot fail.
        let _infallible = writeln!(out, "{mark:<9} {text}");
    };
    for Finding { what, missing } in findings {
        let is_required = missing.iter().any(|missing| missing.is_required);
        let mark = match missing.is_empty() {
            true => "ok",
            false if is_required => "NO",
            false => "partly",
        };
        line(mark, what);
        for Missing { capability, reason, .. } in missing {
            line("", &format!("{capability}: {reason}"));
        }
    }
    let lacks_something = findings.iter().any(|finding| !finding.missing.is_empty());
    match rehearsed {
        Some(Ok(())) => line("ok", "all programs were loaded, accepted by the kernel, attached, and taken away again"),
        Some(Err(error)) => {
            line(
                "NO",
                "the programs could not be loaded and attached, though nothing is missing that is known to be needed",
            );
            line("", &format!("{error:#}"));
        }
        None => line("untried", "to load the programs: it would fail for the same reasons"),
    }
    match rehearsed {
        Some(Ok(())) if lacks_something => {
            line("verdict", "this host can be sampled; some names will be missing, as said above")
        }
        Some(Ok(())) => line("verdict", "this host can be sampled, and nothing is missing"),
        Some(Err(_)) | None => line("verdict", "this host cannot be sampled"),
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn missing(is_required: bool) -> Missing {
        Missing { capability: "CAP_X", reason: "it was refused; do this".to_owned(), is_required }
    }

    #[test]
    fn every_finding_has_a_line_and_what_is_missing_its_reason() {
        let findings = [
            Finding { what: "one", missing: Vec::new() },
            Finding { what: "two", missing: vec![missing(false)] },
            Finding { what: "three", missing: vec![missing(true)] },
        ];
        let text = report("Linux 6.1", &findings, None);
        let lines: Vec<_> = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        let expected = [
            "Linux 6.1",
            "ok one",
            "partly two",
            "CAP_X: it was refused; do this",
            "NO three",
            "CAP_X: it was refused; do this",
            "untried to load the programs: it would fail for the same reasons",
            "verdict this host cannot be sampled",
        ];
        assert_eq!(lines, expected);
        assert!(report("", &findings[..2], Some(&Ok(()))).contains("some names will be missing"));
        assert!(report("", &findings[..1], Some(&Ok(()))).ends_with("nothing is missing\n"));
        let refused = report("", &findings[..1], Some(&Err(anyhow::anyhow!("the verifier says no"))));
        assert!(refused.contains("the verifier says no") && refused.contains("cannot be sampled"));
    }
}
