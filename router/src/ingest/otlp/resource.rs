//! Resource and scope: the labels of a series, and the service's name.

use serde_json::{Value as Json, json};

use base64::Engine as _;
use proto::Label;
use proto::label::SERVICE_NAME_LABEL;

use super::Context;
use super::dictionary::{RawAttribute, Tables};
use crate::ingest::builder::{Rejection, text_of};
use crate::ingest::protobuf::Fields;

/// Attributes of a resource that each process has its own of: as labels every restart would make new series.
const PER_PROCESS: [&str; 7] = [
    "process.pid",
    "process.parent_pid",
    "process.vpid",
    "process.command",
    "process.command_args",
    "process.command_line",
    "process.creation.time",
];

/// Where a service's name comes from: the first that is there.
const SERVICE_NAMES: [&str; 9] = [
    "service.name",
    "k8s.deployment.name",
    "k8s.statefulset.name",
    "k8s.daemonset.name",
    "k8s.cronjob.name",
    "k8s.job.name",
    "k8s.container.name",
    "container.name",
    "process.executable.name",
];

/// The name of a service that nothing names.
pub(crate) const UNKNOWN_SERVICE: &str = "unknown_service";

/// Arrays and maps inside each other; deeper ones are refused.
const NESTING_MAX: u32 = 16;

/// Attributes of a resource, as they were sent.
#[derive(Debug)]
pub(crate) struct Resource<'a> {
    attributes: Vec<RawAttribute<'a>>,
}

impl<'a> Resource<'a> {
    pub(crate) fn read(message: &'a [u8], tables: &Tables<'a>) -> Result<Self, Rejection> {
        let mut attributes = Vec::new();
        for field in Fields::new(message) {
            if let (1, value) = field? {
                attributes.push(tables.key_value(value.bytes(1)?)?);
            }
        }
        Ok(Self { attributes })
    }

    /// What the profiles of one scope of this resource have in common.
    pub(crate) fn with_scope(&self, scope: &'a [u8], tables: &Tables<'a>) -> Result<Context<'a>, Rejection> {
        let text =
            |name: &str| self.attributes.iter().find(|attribute| attribute.key == name).map(RawAttribute::label_value);
        let service = SERVICE_NAMES.iter().find_map(|name| text(name).filter(|value| !value.is_empty()));
        let service = service.as_deref().unwrap_or(UNKNOWN_SERVICE);
        // Sorting is stable and of equal names the first stays: what is derived comes before what is copied.
        let mut labels = vec![match text("service.name") {
            Some(_) => Label::new("service.name", service),
            None => Label::new(SERVICE_NAME_LABEL, service),
        }];
        let mut sample_attributes = Vec::new();
        for attribute in &self.attributes {
            if PER_PROCESS.contains(&attribute.key.as_ref()) {
                sample_attributes.push(attribute.clone());
            } else {
                labels.push(Label::new(&attribute.key, &attribute.label_value()));
            }
        }
        labels.extend(scope_labels(scope, tables)?);
        Ok(Context { labels, sample_attributes })
    }
}

/// Name, version and attributes of the instrumentation, named as Prometheus names them.
fn scope_labels<'a>(scope: &'a [u8], tables: &Tables<'a>) -> Result<Vec<Label>, Rejection> {
    let mut labels = Vec::new();
    for field in Fields::new(scope) {
        match field? {
            (1, value) => labels.push(Label::new("otel.scope.name", &text_of(value.bytes(1)?))),
            (2, value) => labels.push(Label::new("otel.scope.version", &text_of(value.bytes(2)?))),
            (3, value) => {
                let attribute = tables.key_value(value.bytes(3)?)?;
                labels.push(Label::new(&format!("otel.scope.{}", attribute.key), &attribute.label_value()));
            }
            _ => {}
        }
    }
    Ok(labels)
}

/// An AnyValue as OTLP JSON without its type wrapper: arrays, maps, base64 of bytes.
pub(crate) fn any_value_json<'a>(tables: &Tables<'a>, message: &'a [u8], depth: u32) -> Result<Json, Rejection> {
    if depth > NESTING_MAX {
        return Err(Rejection::TooMany { what: "arrays and maps inside each other", count_max: NESTING_MAX as usize });
    }
    let mut read = Json::Null;
    for field in Fields::new(message) {
        read = match field? {
            (1, value) => json!(text_of(value.bytes(1)?)),
            (2, value) => json!(value.varint(2)? != 0),
            (3, value) => json!(value.int64(3)?),
            (4, value) => json!(f64::from_bits(value.fixed64(4)?)),
            (5, value) => {
                let mut array = Vec::new();
                for element in Fields::new(value.bytes(5)?) {
                    if let (1, element) = element? {
                        array.push(any_value_json(tables, element.bytes(1)?, depth + 1)?);
                    }
                }
                Json::Array(array)
            }
            (6, value) => map_json(tables, value.bytes(6)?, depth)?,
            (7, value) => json!(base64::engine::general_purpose::STANDARD.encode(value.bytes(7)?)),
            (8, value) => json!(tables.string(value.int64(8)?)?),
            _ => continue,
        };
    }
    Ok(read)
}

fn map_json<'a>(tables: &Tables<'a>, message: &'a [u8], depth: u32) -> Result<Json, Rejection> {
    let mut map = serde_json::Map::new();
    for entry in Fields::new(message) {
        let (1, entry) = entry? else { continue };
        let (mut key, mut value) = (String::new(), Json::Null);
        for field in Fields::new(entry.bytes(1)?) {
            match field? {
                (1, name) => key = text_of(name.bytes(1)?).into_owned(),
                (2, any) => value = any_value_json(tables, any.bytes(2)?, depth + 1)?,
                (3, index) => key = tables.string(index.int64(3)?)?.into_owned(),
                _ => {}
            }
        }
        map.insert(key, value);
    }
    Ok(Json::Object(map))
}
