//! Report of the files that were written, or would be.

use std::fmt::Write as _;
use std::path::Path;
use std::time::SystemTime;

use serde_json::json;

use super::Planned;
use super::authority::{Authority, CERTIFICATE, KEY};

/// The files that were written, or would be.
pub(super) struct Report<'a> {
    pub(super) dir: &'a Path,
    pub(super) authority: &'a Authority,
    pub(super) planned: &'a [Planned<'a>],
    pub(super) dry_run: bool,
}

fn time(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time).to_string()
}

impl Report<'_> {
    /// Returns the report for people: the files, and where they belong.
    pub(super) fn text(&self) -> String {
        let mut out = String::new();
        let mut line = |text: String| {
            // Writing to a String cannot fail.
            let _infallible = writeln!(out, "{text}");
        };
        let mark = |done: &'static str, planned: &'static str| if self.dry_run { planned } else { done };
        let dir = self.dir.display();
        let until = time(self.authority.expires);
        let what = if self.authority.is_new() { mark("made", "would make") } else { "uses" };
        line(format!("{what} the CA {dir}/{CERTIFICATE} with {dir}/{KEY}, valid until {until}"));
        for Planned { subject, renews, expires } in self.planned {
            let what = if *renews { mark("renewed", "would renew") } else { mark("made", "would make") };
            let hosts =
                if subject.hosts.is_empty() { String::new() } else { format!(" at {}", subject.hosts.join(", ")) };
            line(format!(
                "{what} {dir}/{} with {dir}/{} for {}{hosts}, valid until {}",
                subject.certificate_name(),
                subject.key_name(),
                subject.role,
                time(*expires)
            ));
        }
        if self.dry_run {
            line("Nothing was written (--dry-run).".to_owned());
            return out;
        }
        if !self.planned.is_empty() {
            line("\nCopy these files, and start with these options:".to_owned());
        }
        for Planned { subject, .. } in self.planned {
            line(format!(
                "  {}: --tls-ca {CERTIFICATE} --tls-cert {} --tls-key {}",
                subject.role,
                subject.certificate_name(),
                subject.key_name()
            ));
        }
        line(format!(
            "\nKeep {dir}/{KEY} secret and offline: it makes nodes, routers and administrators of this cluster."
        ));
        out
    }

    /// Returns the report as JSON.
    pub(super) fn json(&self) -> anyhow::Result<String> {
        let certificates = self.planned.iter().map(|Planned { subject, renews, expires }| {
            json!({
                "role": subject.role.to_string(),
                "uri": subject.role.uri(),
                "hosts": subject.hosts,
                "certificate": self.dir.join(subject.certificate_name()),
                "key": self.dir.join(subject.key_name()),
                "action": if *renews { "renew" } else { "make" },
                "expires": time(*expires),
            })
        });
        let report = json!({
            "dry_run": self.dry_run,
            "ca": {
                "certificate": self.dir.join(CERTIFICATE),
                "key": self.dir.join(KEY),
                "action": if self.authority.is_new() { "make" } else { "use" },
                "expires": time(self.authority.expires),
            },
            "certificates": certificates.collect::<Vec<_>>(),
        });
        Ok(format!("{}\n", serde_json::to_string_pretty(&report)?))
    }
}
