//! `varve agent doctor`: tests all requirements of an agent on this host, and lists the language runtimes of its
//! processes.

use std::fmt::Write as _;

use agent::{Finding, Missing, RunningRuntime};

use crate::client;

/// Prints a line for each check, with the reasons if something is missing, and then the overall result.
///
/// # Errors
/// This host cannot be sampled.
pub(crate) fn run() -> anyhow::Result<()> {
    let findings = agent::examine();
    let can_start = findings.iter().flat_map(|finding| &finding.missing).all(|missing| !missing.is_required);
    // If a required capability is missing, the kernel would refuse the BPF programs, so they are not loaded.
    let rehearse = |off_cpu| agent::rehearse(off_cpu).map_err(anyhow::Error::from);
    let rehearsed = can_start.then(|| Rehearsed { sampling: rehearse(false), off_cpu: rehearse(true) });
    client::print(&report(&kernel(), &findings, rehearsed.as_ref()))?;
    client::print(&runtimes(&agent::survey()))?;
    match rehearsed {
        Some(Rehearsed { sampling: Ok(()), .. }) => Ok(()),
        Some(_) | None => anyhow::bail!("this host cannot be sampled: see the missing capabilities above"),
    }
}

/// Returns a line for each process with a language runtime.
fn runtimes(found: &[RunningRuntime]) -> String {
    let mut out = String::from("\nlanguage runtimes of the processes on this host:\n");
    if found.is_empty() {
        out.push_str("none runs; stacks of other programs have native frames\n");
    }
    for RunningRuntime { pid, command, runtime, missing } in found {
        let mark = if missing.is_some() { "NO" } else { "ok" };
        let functions = missing.unwrap_or("functions are on the stacks");
        // Writing to a String cannot fail.
        let _infallible =
            writeln!(out, "{mark:<9} {pid:>7} {:<15} {runtime:<14} {functions}", client::printable(command));
    }
    out
}

/// Results of two attempts to load and attach the BPF programs: without and with those of `--off-cpu`.
struct Rehearsed {
    sampling: anyhow::Result<()>,
    /// Result of loading and attaching all programs, including those of `--off-cpu`.
    off_cpu: anyhow::Result<()>,
}

fn kernel() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("Linux {} on {}", release.trim(), std::env::consts::ARCH)
}

fn report(kernel: &str, findings: &[Finding], rehearsed: Option<&Rehearsed>) -> String {
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
    let misses_something = findings.iter().any(|finding| !finding.missing.is_empty());
    let Some(Rehearsed { sampling, off_cpu }) = rehearsed else {
        line("untried", "loading the BPF programs, which would fail for the same reasons");
        line("verdict", "this host cannot be sampled");
        return out;
    };
    match sampling {
        Ok(()) => line("ok", "the BPF programs were loaded, attached and removed again"),
        Err(error) => {
            line("NO", "the BPF programs cannot be loaded and attached, although no known requirement is missing");
            line("", &format!("{error:#}"));
        }
    }
    match off_cpu {
        Ok(()) => line("ok", "the BPF programs for waits (--off-cpu) were loaded, attached and removed again"),
        Err(error) => {
            line("partly", "the BPF programs for waits (--off-cpu) cannot be loaded and attached");
            line("", &format!("{error:#}"));
        }
    }
    let verdict = match (sampling, off_cpu) {
        (Err(_), _) => "this host cannot be sampled",
        (Ok(()), Err(_)) => "this host can be sampled, but not with --off-cpu",
        (Ok(()), Ok(())) if misses_something => "this host can be sampled; some names will be missing, see above",
        (Ok(()), Ok(())) => "this host can be sampled, and nothing is missing",
    };
    line("verdict", verdict);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_process_with_a_runtime_has_a_line() {
        let running = |pid, runtime: &str, missing| RunningRuntime {
            pid,
            command: "py\u{1b}".to_owned(),
            runtime: runtime.to_owned(),
            missing,
        };
        let text = runtimes(&[running(7, "CPython 3.11", None), running(42, ".NET", Some("do this"))]);
        let lines: Vec<_> = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        let command = client::printable("py\u{1b}");
        assert!(!command.contains('\u{1b}'));
        let [ok, no] = [
            format!("ok 7 {command} CPython 3.11 functions are on the stacks"),
            format!("NO 42 {command} .NET do this"),
        ];
        assert_eq!(lines, ["", "language runtimes of the processes on this host:", &ok, &no]);
        assert!(runtimes(&[]).contains("none runs"));
    }

    fn missing(is_required: bool) -> Missing {
        Missing { capability: "CAP_X", reason: "it was refused; do this".to_owned(), is_required }
    }

    #[test]
    fn every_finding_has_a_line_and_a_missing_one_its_reason() {
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
            "untried loading the BPF programs, which would fail for the same reasons",
            "verdict this host cannot be sampled",
        ];
        assert_eq!(lines, expected);
        let no = || Err(anyhow::anyhow!("the verifier says no"));
        let report = |count, sampling, off_cpu| report("", &findings[..count], Some(&Rehearsed { sampling, off_cpu }));
        assert!(report(2, Ok(()), Ok(())).contains("some names will be missing"));
        assert!(report(1, Ok(()), Ok(())).ends_with("nothing is missing\n"));
        assert!(report(1, Ok(()), no()).ends_with("can be sampled, but not with --off-cpu\n"));
        let refused = report(1, no(), no());
        assert!(refused.contains("the verifier says no") && refused.ends_with("cannot be sampled\n"));
    }
}
