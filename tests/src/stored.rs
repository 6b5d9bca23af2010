//! Reads the samples of a node with all their properties, over the node's gRPC interface.

use proto::Address;
use proto::placement::{FIRST_DATA_SHARD, Placement};
use proto::selection::Operation;
use proto::wire::node_client::NodeClient;
use proto::wire::{PlacementRequest, SelectRequest, SeriesRequest};
use proto::{Answer, Dictionary, Fold, Location, Matcher, Selection, StackDetail, TenantId, Window};

use crate::grpc::block_on;
use crate::payload::sample::{Multiset, Sample, address_location, line, lines_location, names};
use crate::server::Varve;

/// Largest size of a response, in bytes.
const ANSWER_BYTES_MAX: usize = 512 << 20;

/// Returns every sample of the series with this label, in a window `(start, end]`, from all shards.
#[must_use]
pub fn samples(varve: &Varve, label: (&str, &str), window: Window) -> Multiset {
    let mut all = Multiset::default();
    for shard in (FIRST_DATA_SHARD..).take(varve.setup.shards.into()) {
        all.extend(samples_of(varve, shard, label, window));
    }
    all
}

fn samples_of(varve: &Varve, shard: u32, label: (&str, &str), window: Window) -> Multiset {
    let matcher = Matcher { name: label.0.to_owned(), operation: Operation::Equal, value: label.1.to_owned() };
    let (attribute_names, selection, answer) = block_on(async {
        let mut node = NodeClient::connect(format!("http://{}", varve.node)).await.unwrap();
        node = node.max_decoding_message_size(ANSWER_BYTES_MAX);
        let placement = node.placement(PlacementRequest {}).await.unwrap().into_inner();
        let placement_epoch = Placement::from_wire(placement).unwrap().epoch();
        let series = SeriesRequest {
            shard,
            placement_epoch,
            tenant: TenantId::default_tenant().as_str().to_owned(),
            matchers: vec![matcher.to_wire()],
            start_ns: window.start_ns,
            end_ns: window.end_ns,
            label: None,
            ..SeriesRequest::default()
        };
        let attribute_names = node.series(series).await.unwrap().into_inner().attribute_names;
        let selection = Selection {
            tenant: TenantId::default_tenant(),
            matchers: vec![matcher],
            fold: Fold::Points(window),
            group_by: attribute_names.clone(),
            group_by_series: true,
            stacks: StackDetail::Full,
            locations: proto::LocationSets::default(),
        };
        let request: SelectRequest = selection.to_wire(shard, proto::ReadAt::leader(placement_epoch));
        (attribute_names, selection, node.select(request).await.unwrap().into_inner())
    });
    let answer = Answer::from_wire(answer, &selection).unwrap();
    assert!(attribute_names.is_sorted(), "{attribute_names:?}");
    multiset(&answer)
}

fn multiset(answer: &Answer) -> Multiset {
    let group_names: Vec<Vec<(String, String)>> = answer
        .groups
        .iter()
        .map(|group| group.iter().map(|label| (label.name.to_string(), label.value.to_string())).collect())
        .collect();
    let locations: Vec<String> =
        answer.dictionary.locations.iter().map(|location| text_of(&answer.dictionary, location)).collect();
    let mut stacks: Vec<Vec<String>> = vec![Vec::new()];
    for node in answer.nodes.iter().skip(1) {
        let mut stack = stacks[node.parent as usize].clone();
        stack.push(locations[node.location as usize].clone());
        stacks.push(stack);
    }
    let mut out = Multiset::default();
    for cell in &answer.cells {
        let sample = Sample {
            names: names([&group_names[cell.group as usize][..]]),
            stack: stacks[cell.node as usize].clone(),
            time_ns: answer.bucket_times_ns[cell.bucket as usize],
        };
        out.add(sample, cell.sum);
    }
    // A cell may be the sum of several samples. The response has the number of all samples.
    out.count = answer.samples;
    out
}

fn text_of(dictionary: &Dictionary, location: &Location) -> String {
    let text = |id: u32| dictionary.strings.get(id);
    match location {
        Location::Address { mapping, address, frame_type } => {
            let (build_id, file) = dictionary.mapping(*mapping);
            let build_id = build_id.map(proto::BuildId::to_string).unwrap_or_default();
            let (is_file_offset, address) = match address {
                Address::Virtual(address) => (false, *address),
                Address::FileOffset(offset) => (true, *offset),
            };
            address_location([&build_id, file], is_file_offset, address, text(*frame_type))
        }
        Location::Lines { mapping_file, frame_type, lines } => {
            let of_line = |of: &proto::Line| {
                let function = dictionary.functions[of.function as usize];
                let [name, system_name, file] = [function.name, function.system_name, function.file].map(text);
                line(name, system_name, file, function.start_line, of.line, of.column)
            };
            let lines: Vec<String> = lines.iter().map(of_line).collect();
            lines_location(text(*mapping_file), text(*frame_type), &lines)
        }
    }
}
