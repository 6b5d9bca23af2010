//! The JSON form of a flame graph: flat, `names` and `nodes`, described in `docs/api.md`.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use crate::query::flamegraph::Summary;
use crate::query::frame::FrameTable;
use crate::query::prune::{NodeKind, PrunedTree};
use crate::query::symbolization::Symbolization;

/// Writes a tree whose keys are frames.
pub(crate) fn write(
    tree: &PrunedTree,
    table: &FrameTable,
    summary: &Summary,
    symbolization: &Symbolization,
) -> Vec<u8> {
    let (names, frames, nodes) = columns(tree, table);
    let profile_type = summary.profile_type.as_ref();
    let total = tree.nodes.first().map_or(0, |root| root.total);
    // Written by hand around the values: serde_json's own numbers end at 64 bits, sums do not.
    let mut out = String::with_capacity(nodes.len() + 1024);
    out.push_str("{\"profile_type\":");
    out.push_str(&json!(profile_type.map(ToString::to_string).unwrap_or_default()).to_string());
    out.push_str(",\"unit\":");
    out.push_str(&json!(profile_type.map_or("", |kind| kind.sample().unit.as_str())).to_string());
    let gauge = profile_type.is_some_and(proto::ProfileType::is_gauge);
    out.push_str(&format!(",\"gauge\":{gauge},\"total\":{total}"));
    out.push_str(&format!(",\"samples\":{},\"series\":{}", summary.samples, summary.series));
    out.push_str(&format!(",\"names\":{},\"frames\":{}", Value::Array(names), Value::Array(frames)));
    out.push_str(&format!(",\"nodes\":[{nodes}],\"symbolization\":{}", share(symbolization)));
    out.push_str(&format!(",\"shards\":{{\"asked\":{0},\"answered\":{0}}}", summary.shards));
    out.push_str(&format!(",\"pruned\":{{\"nodes\":{},\"value\":{}}}}}", tree.left_out_nodes, tree.left_out_value));
    out.into_bytes()
}

/// Names and frames in the order in which nodes use them, and the nodes.
fn columns(tree: &PrunedTree, table: &FrameTable) -> (Vec<Value>, Vec<Value>, String) {
    let (mut names, mut frames) = (vec![json!("total")], vec![json!({})]);
    let mut known: HashMap<Option<u32>, usize> = HashMap::new();
    let mut nodes = String::with_capacity(tree.nodes.len() * 24);
    for (i, node) in tree.nodes.iter().enumerate() {
        let key = match node.kind {
            NodeKind::Root => None,
            NodeKind::Other => Some(None),
            NodeKind::Key(frame) => Some(Some(frame)),
        };
        let name = key.map_or(0, |key| {
            *known.entry(key).or_insert_with(|| {
                let (name, frame) = key.map_or_else(|| (json!("(other)"), json!({})), |frame| described(frame, table));
                names.push(name);
                frames.push(frame);
                names.len() - 1
            })
        });
        let parent = if i == 0 { -1 } else { i64::from(node.parent) };
        let comma = if i == 0 { "" } else { "," };
        nodes.push_str(&format!("{comma}[{parent},{name},{},{}]", node.own, node.total));
    }
    (names, frames, nodes)
}

/// A frame's name, and what else is known of it.
fn described(frame: u32, table: &FrameTable) -> (Value, Value) {
    let Some(frame) = table.frames.get(frame as usize) else { return (json!(""), json!({})) };
    let mut members = Map::new();
    let mut text = |name: &str, id: u32| {
        if id != 0 {
            members.insert(name.to_owned(), json!(table.text(id)));
        }
    };
    text("file", frame.key.file);
    text("binary", frame.key.binary);
    text("type", frame.key.frame_type);
    if frame.start_line > 0 {
        members.insert("line".to_owned(), json!(frame.start_line));
    }
    if let Some(unnamed) = frame.unnamed.and_then(|why| table.unnamed.get(why as usize)) {
        members.insert("reason".to_owned(), json!(unnamed.code));
    }
    (json!(table.text(frame.key.name)), Value::Object(members))
}

fn share(symbolization: &Symbolization) -> String {
    let unnamed: Vec<String> = symbolization
        .unnamed
        .iter()
        .map(|share| {
            let why = &share.why;
            format!(
                "{{\"reason\":{},\"text\":{},\"binary\":{},\"build_id\":{},\"frames\":{},\"value\":{}}}",
                json!(why.code),
                json!(why.text),
                json!(why.binary),
                json!(why.build_id),
                share.frames,
                share.value
            )
        })
        .collect();
    let (frames, named) = (symbolization.frames, symbolization.named);
    format!("{{\"frames\":{frames},\"named\":{named},\"unnamed\":[{}]}}", unnamed.join(","))
}
