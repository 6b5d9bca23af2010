//! Pushes over several shards of one node.

use prost::Message as _;
use proto::TenantId;
use proto::otlp::collector::profiles::v1development::ExportProfilesServiceRequest;
use proto::otlp::common::v1::any_value::Value;
use proto::otlp::common::v1::{AnyValue, KeyValue};
use proto::otlp::profiles::v1development::{
    Location, Profile, ProfilesDictionary, ResourceProfiles, Sample, ScopeProfiles, Stack,
};
use proto::otlp::resource::v1::Resource;
use proto::placement::{Placement, Slot};
use tests::payload::otlp::now_ns;
use tests::server::{Setup, Varve};

/// Returns a request in which each service has a sample of each of so many stacks, all of 2,048 frames.
fn large_request(services: &[String], stacks: i32) -> Vec<u8> {
    let time = now_ns();
    let samples: Vec<Sample> = (1..=stacks)
        .map(|stack_index| Sample { stack_index, timestamps_unix_nano: vec![time], ..Sample::default() })
        .collect();
    let resource = |service: &String| {
        let value = Some(AnyValue { value: Some(Value::StringValue(service.clone())) });
        let name = KeyValue { key: "service.name".to_owned(), value, ..KeyValue::default() };
        let profiles = vec![Profile { samples: samples.clone(), ..Profile::default() }];
        ResourceProfiles {
            resource: Some(Resource { attributes: vec![name], ..Resource::default() }),
            scope_profiles: vec![ScopeProfiles { profiles, ..ScopeProfiles::default() }],
            ..ResourceProfiles::default()
        }
    };
    // The first 14 frames tell the stacks apart.
    let stack = |number: i32| Stack { location_indices: (0..2048).map(|i| 1 + (number >> i.min(14) & 1)).collect() };
    let dictionary = ProfilesDictionary {
        location_table: [0, 7, 8].map(|address| Location { address, ..Location::default() }).to_vec(),
        stack_table: (0..=stacks).map(|number| if number == 0 { Stack::default() } else { stack(number) }).collect(),
        ..ProfilesDictionary::default()
    };
    let resource_profiles = services.iter().map(resource).collect();
    ExportProfilesServiceRequest { resource_profiles, dictionary: Some(dictionary) }.encode_to_vec()
}

// Once, the node's budget for appends had no free bytes for the second part, and every retry was refused, too.
#[test]
fn two_large_parts_of_a_push_do_not_refuse_each_other() {
    let varve = Varve::start(Setup { shards: 2, ..Setup::default() });
    let placement = Placement::uniform(2.try_into().unwrap());
    let tenant = TenantId::default_tenant();
    let services = [1, 2].map(|shard| {
        let mut names = (0..).map(|number| format!("service{number}"));
        names.find(|name| placement.newest().shard(Slot::of(&tenant, name)) == shard).unwrap()
    });
    // Each part takes 74 MB, and the node's budget is 128 MiB.
    let reply = varve.push_otlp(&large_request(&services, 9_000), None);
    assert_eq!(reply.status, 200, "{}", reply.text());
    assert_eq!(varve.metric(&varve.http, "varve_node_appends_refused_total").unwrap_or(0.0), 0.0);
    let stored = varve.get("/api/v1/label/service_name/values", &[]).json();
    let mut want = services.to_vec();
    want.sort_unstable();
    assert_eq!(stored["data"], serde_json::json!(want));
}
