//! OTLP profiles: an export request in any layout from 1.8 to 1.11, protobuf or JSON.
//!
//! The layouts share package, path and most fields; they differ inside `Sample` and at the end of `Profile` (see `layout`).

mod attribute;
mod dictionary;
mod location;
mod profile;
mod resource;
mod table;

#[cfg(test)]
mod tests;

use proto::profile_type::Siblings;
use proto::{Label, Push, limits};

use self::dictionary::Tables;
use self::profile::RawProfile;
use self::resource::Resource;
use crate::ingest::decode::otlp::FORMAT;
use crate::ingest::decode::otlp::layout::{self, Layout};
use crate::ingest::decode::protobuf::{Fields, WireError};
use crate::ingest::error::IngestError;
use crate::ingest::known_stacks::Knowledge;
use crate::ingest::normalize::builder::{Builder, Rejection};

/// Decodes a protobuf export request; `now_ns`: the receiver's clock, for checks and for profiles without a time.
pub(crate) fn decode(body: &[u8], now_ns: i64, knowledge: &mut Knowledge<'_>) -> Result<Push, IngestError> {
    decode_layout(body, None, now_ns, knowledge).map_err(|error| match error {
        IngestError::Malformed { .. } => error.or_foreign(FORMAT, body),
        error => error,
    })
}

/// Decodes what [`json::to_protobuf`](crate::ingest::decode::otlp::json::to_protobuf) made of JSON, which has names and not numbers, and so one layout.
pub(crate) fn decode_json(protobuf: &[u8], now_ns: i64, knowledge: &mut Knowledge<'_>) -> Result<Push, IngestError> {
    decode_layout(protobuf, Some(Layout::New), now_ns, knowledge)
}

fn decode_layout(
    body: &[u8],
    layout: Option<Layout>,
    now_ns: i64,
    knowledge: &mut Knowledge<'_>,
) -> Result<Push, IngestError> {
    let request = Request::read(body)?;
    let mut tables = Tables::read(&request.dictionaries)?;
    // Also bounds how many they are.
    let samples = request.samples()?;
    let layout = layout.unwrap_or_else(|| layout::detect(&samples, tables.attribute_count()));
    drop(samples);
    let mut builder = Builder::new(now_ns);
    tables.reserve(&mut builder, knowledge);
    for resource_profiles in &request.resource_profiles {
        let resource = Resource::read(&mut builder, &mut tables, resource_profiles.resource);
        for scope_profiles in &resource_profiles.scopes {
            let context = match &resource {
                Ok(resource) => resource.with_scope(&mut builder, &mut tables, scope_profiles.scope),
                Err(rejection) => Err(rejection.clone()),
            };
            match context {
                Ok(context) => {
                    let raw = scope_profiles.profiles.iter().map(|profile| RawProfile::read(profile, layout)).collect();
                    add_scope(&mut builder, &mut tables, &context, raw, knowledge);
                }
                Err(rejection) => scope_profiles.profiles.iter().for_each(|_profile| builder.reject(&rejection)),
            }
        }
    }
    builder.finish()
}

/// What all profiles of one scope have in common.
#[derive(Debug)]
pub(crate) struct Context<'r> {
    resource: &'r Resource,
    scope_labels: Vec<Label>,
}

fn add_scope<'a>(
    builder: &mut Builder,
    tables: &mut Tables<'a>,
    context: &Context<'_>,
    read: Vec<Result<RawProfile<'a>, WireError>>,
    knowledge: &mut Knowledge<'_>,
) {
    let mut siblings = Siblings::default();
    for profile in read.iter().flatten() {
        if let Ok([kind, unit]) = profile.sample_type(builder, tables) {
            let strings = &builder.dictionary().strings;
            siblings.add(strings.get(kind), strings.get(unit));
        }
    }
    for profile in read {
        let added = profile
            .map_err(Rejection::from)
            .and_then(|profile| profile.add(builder, tables, context, siblings, knowledge));
        if let Err(rejection) = added {
            builder.reject(&rejection);
        }
    }
}

/// The outer messages, unread inside.
struct Request<'a> {
    resource_profiles: Vec<ResourceProfiles<'a>>,
    dictionaries: Vec<&'a [u8]>,
}

struct ResourceProfiles<'a> {
    resource: &'a [u8],
    scopes: Vec<ScopeProfiles<'a>>,
}

struct ScopeProfiles<'a> {
    scope: &'a [u8],
    profiles: Vec<&'a [u8]>,
}

/// How many resources, scopes and profiles there are.
#[derive(Default)]
struct Count(usize);

impl Count {
    fn one_more(&mut self) -> Result<(), IngestError> {
        self.0 += 1;
        let count_max = limits::PUSH_PROFILES_MAX;
        if self.0 > count_max {
            return Err(IngestError::TooMany { what: "resources, scopes and profiles", count_max });
        }
        Ok(())
    }
}

fn malformed(error: WireError) -> IngestError {
    IngestError::wire(FORMAT, error)
}

impl<'a> Request<'a> {
    fn read(body: &'a [u8]) -> Result<Self, IngestError> {
        let mut request = Self { resource_profiles: Vec::new(), dictionaries: Vec::new() };
        let mut count = Count::default();
        for field in Fields::new(body) {
            match field.map_err(malformed)? {
                (1, value) => {
                    let message = value.bytes(1).map_err(malformed)?;
                    request.resource_profiles.push(ResourceProfiles::read(message, &mut count)?);
                }
                (2, value) => request.dictionaries.push(value.bytes(2).map_err(malformed)?),
                _ => {}
            }
        }
        Ok(request)
    }

    /// Every sample of the request, for the vote on the layout. A profile that cannot be read has none here: it is refused
    /// later.
    fn samples(&self) -> Result<Vec<&'a [u8]>, IngestError> {
        let mut samples = Vec::new();
        let scopes = self.resource_profiles.iter().flat_map(|resource| &resource.scopes);
        for profile in scopes.flat_map(|scope| &scope.profiles) {
            let fields = Fields::new(profile).map_while(Result::ok).filter(|(number, _)| *number == 2);
            samples.extend(fields.filter_map(|(_, value)| value.bytes(2).ok()));
            if samples.len() > limits::PUSH_SAMPLES_MAX {
                return Err(IngestError::TooMany { what: "samples", count_max: limits::PUSH_SAMPLES_MAX });
            }
        }
        Ok(samples)
    }
}

impl<'a> ResourceProfiles<'a> {
    fn read(message: &'a [u8], count: &mut Count) -> Result<Self, IngestError> {
        count.one_more()?;
        let mut read = Self { resource: &[], scopes: Vec::new() };
        for field in Fields::new(message) {
            match field.map_err(malformed)? {
                (1, value) => read.resource = value.bytes(1).map_err(malformed)?,
                (2, value) => read.scopes.push(ScopeProfiles::read(value.bytes(2).map_err(malformed)?, count)?),
                _ => {}
            }
        }
        Ok(read)
    }
}

impl<'a> ScopeProfiles<'a> {
    fn read(message: &'a [u8], count: &mut Count) -> Result<Self, IngestError> {
        count.one_more()?;
        let mut read = Self { scope: &[], profiles: Vec::new() };
        for field in Fields::new(message) {
            match field.map_err(malformed)? {
                (1, value) => read.scope = value.bytes(1).map_err(malformed)?,
                (2, value) => {
                    count.one_more()?;
                    read.profiles.push(value.bytes(2).map_err(malformed)?);
                }
                _ => {}
            }
        }
        Ok(read)
    }
}
