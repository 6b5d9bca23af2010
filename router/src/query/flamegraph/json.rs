//! Writer of a flame graph as JSON: flat lists `names` and `nodes`, described in `docs/api.md`.
//!
//! This module does not use serde_json, because the numbers of serde_json have 64 bits, and sums can have more.

use crate::json::JsonText;
use crate::query::flamegraph::prune::{NodeKind, PrunedTree};
use crate::query::flamegraph::summary::Summary;
use crate::query::flamegraph::symbolization::Symbolization;
use crate::query::naming::frame::Frames;

/// Maximum number of files that `names_pending` lists.
const NAMES_PENDING_MAX: usize = 100;

/// Writes a tree whose keys are frames.
pub(crate) fn write(
    tree: &PrunedTree,
    frames: Frames<'_>,
    summary: &Summary,
    symbolization: &Symbolization,
) -> Vec<u8> {
    let columns = Columns::of(tree, frames, symbolization);
    let profile_type = summary.profile_type.as_ref();
    let total = tree.nodes.first().map_or(0, |root| root.total);
    let gauge = profile_type.is_some_and(proto::ProfileType::is_gauge);
    let bytes = columns.names.len() + columns.frames.len() + columns.nodes.len() + 1024;
    let mut out = JsonText::with_capacity(bytes + 512 * symbolization.unnamed.len());
    out.raw("{\"profile_type\":").text(&profile_type.map(ToString::to_string).unwrap_or_default());
    out.raw(",\"unit\":").text(profile_type.map_or("", |kind| kind.sample().unit.as_str()));
    out.raw(",\"gauge\":").raw(if gauge { "true" } else { "false" }).raw(",\"total\":").sum(total);
    out.raw(",\"samples\":").number(summary.samples).raw(",\"series\":").number(summary.series);
    out.raw(",\"names\":[").append(&columns.names).raw("],\"frames\":[").append(&columns.frames);
    out.raw("],\"nodes\":[").append(&columns.nodes).raw("],\"symbolization\":");
    share(&mut out, symbolization);
    out.raw(",\"shards\":");
    summary.coverage.write(&mut out);
    out.raw(",\"pruned\":{\"nodes\":").number(tree.pruned_nodes);
    out.raw(",\"value\":").sum(tree.pruned_value);
    let read = summary.windows_read;
    out.raw("},\"windows_read\":{\"raw\":").number(read.raw).raw(",\"1m\":").number(read.minutes);
    out.raw(",\"1h\":").number(read.hours).raw(",\"1d\":").number(read.days).raw("},\"names_pending\":");
    out.list(&summary.missing.pending().take(NAMES_PENDING_MAX).collect::<Vec<_>>(), |out, binary| {
        out.text(binary);
    });
    out.raw(",\"warnings\":");
    out.list(&summary.warnings(), |out, warning| {
        out.text(warning);
    });
    out.raw("}");
    out.into_bytes()
}

/// The long lists of the response, without their brackets.
struct Columns {
    names: JsonText,
    frames: JsonText,
    nodes: JsonText,
}

/// Placeholder for the index of a name that is not written yet. Index 0 belongs to the name of the root, so no frame
/// has it.
const NO_NAME: u32 = 0;

impl Columns {
    /// Writes the nodes, and the names and frames in the order in which nodes first use them.
    fn of(tree: &PrunedTree, frames: Frames<'_>, symbolization: &Symbolization) -> Self {
        let nodes = JsonText::with_capacity(tree.nodes.len() * 40);
        let mut out = Self { names: JsonText::default(), frames: JsonText::default(), nodes };
        out.names.text("total");
        out.frames.raw("{}");
        let mut count = 1;
        let mut number_of_frame = vec![NO_NAME; frames.table.len()];
        let mut number_of_other = NO_NAME;
        for (i, node) in tree.nodes.iter().enumerate() {
            let number = match node.kind {
                NodeKind::Root => None,
                NodeKind::Other => Some(&mut number_of_other),
                NodeKind::Key(frame) => number_of_frame.get_mut(frame as usize),
            };
            let number = number.map_or(0, |number| {
                if *number == NO_NAME {
                    *number = count;
                    count += 1;
                    out.name(node.kind, frames, symbolization);
                }
                *number
            });
            let parent = if i == 0 { -1 } else { i64::from(node.parent) };
            out.nodes.raw(if i == 0 { "[" } else { ",[" }).number(parent).raw(",").number(number);
            out.nodes.raw(",").sum(node.own).raw(",").sum(node.total).raw("]");
        }
        out
    }

    /// Writes the name of a frame, and the facts about the frame.
    fn name(&mut self, kind: NodeKind, of: Frames<'_>, symbolization: &Symbolization) {
        let names = self.names.raw(",");
        let frames = self.frames.raw(",");
        let table = of.table;
        let frame = match kind {
            NodeKind::Key(frame) => of.get(frame),
            NodeKind::Root | NodeKind::Other => None,
        };
        let Some(frame) = frame else {
            names.text("(other)");
            frames.raw("{}");
            return;
        };
        names.text(table.text(frame.key.name));
        // The members of the object are in alphabetical order.
        let why = frame.unnamed.and_then(|why| table.unnamed.get(why as usize));
        let reason = why.map_or("", |why| why.code);
        let [binary, file, kind] = [frame.key.binary, frame.key.file, frame.key.frame_type].map(|id| table.text(id));
        let line = if frame.start_line > 0 { frame.start_line } else { 0 };
        let mut before = "{";
        for (name, text) in [("binary", binary), ("file", file), ("line", ""), ("reason", reason), ("type", kind)] {
            if text.is_empty() && (name, line > 0) != ("line", true) {
                continue;
            }
            frames.raw(std::mem::replace(&mut before, ",")).text(name).raw(":");
            if name == "line" {
                frames.number(line)
            } else {
                frames.text(text)
            };
        }
        if let Some(share) = why.and_then(|why| symbolization.index_of(why)) {
            frames.raw(",\"unnamed\":").number(share);
        }
        frames.raw(if before == "{" { "{}" } else { "}" });
    }
}

fn share(out: &mut JsonText, symbolization: &Symbolization) {
    out.raw("{\"frames\":").number(symbolization.frames).raw(",\"named\":").number(symbolization.named);
    out.raw(",\"unnamed\":").list(&symbolization.unnamed, |out, share| {
        let why = &share.why;
        out.raw("{\"reason\":").text(why.code).raw(",\"text\":").text(&why.text);
        out.raw(",\"binary\":").text(&why.binary).raw(",\"build_id\":").text(&why.build_id);
        out.raw(",\"frames\":").number(share.frames).raw(",\"value\":").sum(share.value).raw("}");
    });
    out.raw("}");
}
