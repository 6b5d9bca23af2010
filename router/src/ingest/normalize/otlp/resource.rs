//! Resources and scopes: the labels of a series, and the name of the service.

use std::borrow::Cow;

use proto::dictionary::{Attribute, AttributeValue};
use proto::label::SERVICE_NAME_LABEL;
use proto::{Label, limits};

use super::dictionary::RequestDictionary;
use crate::ingest::decode::protobuf::Fields;
use crate::ingest::error::ProfileError;
use crate::ingest::normalize::builder::Builder;

/// Attributes of a resource that differ between processes. As labels, they would make new series with every restart.
const PER_PROCESS: [&str; 7] = [
    "process.pid",
    "process.parent_pid",
    "process.vpid",
    "process.command",
    "process.command_args",
    "process.command_line",
    "process.creation.time",
];

/// Attributes that may name a service, in order of preference. The first one that is set is used.
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

/// Service name of a resource that has none.
pub(crate) const UNKNOWN_SERVICE: &str = "unknown_service";

/// Name of the label that holds the name of a scope.
const SCOPE_NAME: &str = "otel.scope.name";

/// Labels and sample attributes of a resource.
#[derive(Debug)]
pub(crate) struct Resource {
    pub(crate) labels: Vec<Label>,
    /// Attributes that differ between processes. Each sample receives them.
    pub(crate) sample_attributes: Vec<Attribute>,
}

/// Labels and attributes that all profiles of one scope share.
#[derive(Debug)]
pub(crate) struct ScopeContext<'r> {
    pub(crate) resource: &'r mut Resource,
    pub(crate) scope_labels: Vec<Label>,
    /// True if no scope of the resource follows.
    pub(crate) is_last: bool,
}

impl Resource {
    pub(crate) fn read<'a>(
        builder: &mut Builder,
        dictionary: &mut RequestDictionary<'a>,
        message: &'a [u8],
    ) -> Result<Self, ProfileError> {
        let mut attributes = Vec::new();
        for field in Fields::new(message) {
            if let (1, value) = field? {
                attributes.push(dictionary.key_value(builder, value.bytes(1)?)?);
                check_count(attributes.len(), limits::SERIES_LABELS_MAX + PER_PROCESS.len())?;
            }
        }
        // The derived label comes before the copied ones: sorting is stable, and the first label of each name is kept.
        let mut read = Self { labels: vec![service_label(builder, &attributes)?], sample_attributes: Vec::new() };
        for attribute in attributes {
            if PER_PROCESS.contains(&builder.dictionary().strings.get(attribute.key)) {
                read.sample_attributes.push(attribute);
            } else {
                read.labels.push(builder.label("", attribute)?);
            }
        }
        Ok(read)
    }

    /// Returns the context of one scope of this resource.
    pub(crate) fn with_scope<'a>(
        &mut self,
        builder: &mut Builder,
        dictionary: &mut RequestDictionary<'a>,
        scope: &'a [u8],
    ) -> Result<ScopeContext<'_>, ProfileError> {
        let scope_labels = scope_labels(builder, dictionary, scope)?;
        Ok(ScopeContext { resource: self, scope_labels, is_last: false })
    }
}

impl ScopeContext<'_> {
    /// Returns the labels of the resource and of the scope for a profile. The last profile takes those of the resource,
    /// because most resources have only one profile.
    pub(crate) fn labels(&mut self, is_last_profile: bool) -> (Cow<'_, [Label]>, &[Label]) {
        let labels = &mut self.resource.labels;
        let is_last = self.is_last && is_last_profile;
        let of_resource = if is_last { std::mem::take(labels).into() } else { labels.as_slice().into() };
        (of_resource, &self.scope_labels)
    }

    /// Returns whether the scope's name is `mutex` or `block`. Only this name distinguishes the two kinds of profile.
    pub(crate) fn is_named_contention(&self) -> bool {
        let is_name = |label: &Label| {
            label.original_name.as_deref() == Some(SCOPE_NAME) && matches!(label.value.as_str(), "mutex" | "block")
        };
        self.scope_labels.iter().any(is_name)
    }
}

fn check_count(labels: usize, count_max: usize) -> Result<(), ProfileError> {
    if labels > count_max {
        Err(ProfileError::TooMany { what: "labels", count_max: limits::SERIES_LABELS_MAX })
    } else {
        Ok(())
    }
}

/// Returns the label `service_name`, which every series has. Its value is the first attribute of [`SERVICE_NAMES`] that
/// is not empty, or else [`UNKNOWN_SERVICE`].
fn service_label(builder: &mut Builder, attributes: &[Attribute]) -> Result<Label, ProfileError> {
    let strings = &builder.dictionary().strings;
    let named = |name: &str| attributes.iter().find(|attribute| strings.get(attribute.key) == name).copied();
    let is_empty = |attribute: &Attribute| attribute.value == AttributeValue::Text(0);
    let from = SERVICE_NAMES.iter().find_map(|name| named(name).filter(|attribute| !is_empty(attribute)));
    let name = if named("service.name").is_some() { "service.name" } else { SERVICE_NAME_LABEL };
    match from {
        Some(attribute) => Ok(Label::new(name, builder.label("", attribute)?.value)),
        None => Ok(Label::new(name, UNKNOWN_SERVICE)),
    }
}

/// Returns the scope's name, version and attributes as labels, with the label names that Prometheus gives them.
fn scope_labels<'a>(
    builder: &mut Builder,
    dictionary: &mut RequestDictionary<'a>,
    scope: &'a [u8],
) -> Result<Vec<Label>, ProfileError> {
    let mut labels = Vec::new();
    for field in Fields::new(scope) {
        let (prefix, attribute) = match field? {
            (1, value) => (SCOPE_NAME, text(builder, value.bytes(1)?)),
            (2, value) => ("otel.scope.version", text(builder, value.bytes(2)?)),
            (3, value) => ("otel.scope.", dictionary.key_value(builder, value.bytes(3)?)?),
            _ => continue,
        };
        labels.push(builder.label(prefix, attribute)?);
        check_count(labels.len(), limits::SERIES_LABELS_MAX)?;
    }
    Ok(labels)
}

/// Makes an attribute that has a text and no key.
fn text(builder: &mut Builder, bytes: &[u8]) -> Attribute {
    Attribute { key: 0, unit: 0, value: AttributeValue::Text(builder.text(bytes)) }
}
