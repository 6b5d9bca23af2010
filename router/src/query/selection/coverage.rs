//! The shards that a response covers: those that were asked, those that did not answer, and the age of what was read.
//!
//! A response without some shards is partial. It names these shards and their slots, in JSON, in a header and as a
//! warning.

use std::time::Duration;

use crate::json::JsonText;

/// The shards that a response covers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Coverage {
    /// Number of shards that the query asked.
    pub(crate) asked: usize,
    /// Shards that did not answer, ascending.
    pub(crate) silent: Vec<SilentShard>,
    /// Greatest age of the states that were read; `None` if the read was linearizable.
    pub(crate) staleness: Option<Staleness>,
}

/// A shard that did not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SilentShard {
    pub(crate) number: u32,
    /// Slots of the shard, as ranges `(first, last)`, ascending.
    pub(crate) slots: Vec<(u16, u16)>,
    /// Reason why the shard did not answer.
    pub(crate) reason: String,
}

/// Age of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Staleness {
    /// The state has everything that was acknowledged this long ago.
    AtMost(Duration),
    /// A member has not heard its leader since it started.
    Unknown,
}

impl From<Option<Duration>> for Staleness {
    fn from(age: Option<Duration>) -> Self {
        age.map_or(Self::Unknown, Self::AtMost)
    }
}

impl Staleness {
    /// Formats the age as seconds with three decimals; `unknown` if it is not known.
    pub(crate) fn text(self, unknown: &str) -> String {
        match self {
            Self::AtMost(age) => format!("{:.3}", age.as_secs_f64()),
            Self::Unknown => unknown.to_owned(),
        }
    }
}

impl Coverage {
    /// Returns whether shards are missing from the response.
    pub(crate) fn is_partial(&self) -> bool {
        !self.silent.is_empty()
    }

    /// Number of shards that answered.
    pub(crate) fn answered(&self) -> usize {
        self.asked.saturating_sub(self.silent.len())
    }

    /// Returns one sentence for each shard that did not answer.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let warning = |SilentShard { number, slots, reason }: &SilentShard| {
            let slots: usize = slots.iter().map(|&(first, last)| usize::from(last - first) + 1).sum();
            format!("partial: shard {number} did not answer, so data of its {slots} slots is missing: {reason}")
        };
        self.silent.iter().map(warning).collect()
    }

    /// Value of the header that marks a partial response, such as `shards=2,5; asked=8; answered=6`.
    pub(crate) fn header(&self) -> String {
        let shards: Vec<String> = self.silent.iter().map(|shard| shard.number.to_string()).collect();
        format!("shards={}; asked={}; answered={}", shards.join(","), self.asked, self.answered())
    }

    /// Writes an object with the numbers of shards. The object lists the shards that did not answer, if there are any,
    /// and has the age of the response, if it may be stale.
    pub(crate) fn write(&self, out: &mut JsonText) {
        out.raw("{\"asked\":").number(self.asked).raw(",\"answered\":").number(self.answered());
        if self.is_partial() {
            out.raw(",\"missing\":").list(&self.silent, |out, shard| {
                out.raw("{\"shard\":").number(shard.number).raw(",\"slots\":");
                out.list(&shard.slots, |out, &(first, last)| {
                    out.raw("[").number(first).raw(",").number(last).raw("]");
                });
                out.raw(",\"reason\":").text(&shard.reason).raw("}");
            });
        }
        if let Some(staleness) = self.staleness {
            out.raw(",\"staleness_seconds\":").raw(&staleness.text("null"));
        }
        out.raw("}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partial_response_names_the_shards_and_their_slots() {
        let shard =
            |number, slots: &[(u16, u16)]| SilentShard { number, slots: slots.to_vec(), reason: "no \"x\"".to_owned() };
        let silent = vec![shard(2, &[(0, 3), (9, 9)]), shard(5, &[(4, 4095)])];
        let age = Staleness::AtMost(Duration::from_millis(1_250));
        let mut coverage =
            Coverage { asked: 8, silent, staleness: Some(age.max(Staleness::from(Some(Duration::ZERO)))) };
        let written = |coverage: &Coverage| {
            let mut out = JsonText::default();
            coverage.write(&mut out);
            serde_json::from_slice::<serde_json::Value>(&out.into_bytes()).unwrap()
        };
        let missing = serde_json::json!([
            {"shard": 2, "slots": [[0, 3], [9, 9]], "reason": "no \"x\""},
            {"shard": 5, "slots": [[4, 4095]], "reason": "no \"x\""},
        ]);
        let want = serde_json::json!({"asked": 8, "answered": 6, "missing": missing, "staleness_seconds": 1.25});
        assert_eq!(written(&coverage), want);
        assert_eq!(coverage.header(), "shards=2,5; asked=8; answered=6");
        assert!(coverage.warnings()[0].starts_with("partial: shard 2 did not answer, so data of its 5 slots"));
        coverage.staleness = coverage.staleness.max(Some(Staleness::Unknown));
        assert_eq!(written(&coverage)["staleness_seconds"], serde_json::Value::Null);
        let whole = Coverage { asked: 3, ..Coverage::default() };
        assert_eq!(written(&whole), serde_json::json!({"asked": 3, "answered": 3}));
    }
}
