//! OTLP profiles: an export request in any layout from 1.8 to 1.11, protobuf or JSON.
//!
//! The layouts share package, path and most fields; they differ inside `Sample` and at the end of `Profile` (see `layout`).

mod dictionary;
mod json;
mod layout;
mod profile;
mod resource;

#[cfg(test)]
#[path = "otlp_test.rs"]
mod otlp_test;

use proto::{Label, Push, ValueType};

use self::dictionary::Tables;
use self::layout::Layout;
use self::profile::RawProfile;
use self::resource::Resource;
use super::IngestError;
use super::builder::{Builder, Rejection};
use super::protobuf::{Fields, WireError};

pub(crate) use json::to_protobuf;

const FORMAT: &str = "OTLP export request";

/// Decodes a protobuf export request; `now_ns`: the receiver's clock, for checks and for profiles without a time.
pub(crate) fn decode(body: &[u8], now_ns: i64) -> Result<Push, IngestError> {
    let request = Request::read(body).map_err(|error| IngestError::wire(FORMAT, error))?;
    let mut tables = Tables::read(&request.dictionaries)?;
    let layout = layout::detect(&request.samples()?, tables.attributes());
    let mut builder = Builder::new(now_ns);
    for resource_profiles in &request.resource_profiles {
        let resource = Resource::read(resource_profiles.resource, &tables);
        for scope_profiles in &resource_profiles.scopes {
            let scope = resource.as_ref().map(|resource| resource.with_scope(scope_profiles.scope, &tables));
            match scope {
                Ok(Ok(context)) => add_scope(&mut builder, &mut tables, layout, &context, &scope_profiles.profiles)?,
                Ok(Err(rejection)) => reject_all(&mut builder, scope_profiles, &rejection),
                Err(rejection) => reject_all(&mut builder, scope_profiles, rejection),
            }
        }
    }
    builder.finish()
}

fn reject_all(builder: &mut Builder, scope: &ScopeProfiles<'_>, rejection: &Rejection) {
    scope.profiles.iter().for_each(|_profile| builder.reject(rejection));
}

/// What all profiles of one scope have in common.
#[derive(Clone, Debug)]
pub(crate) struct Context<'a> {
    labels: Vec<Label>,
    /// Attributes of the resource that are no labels because each process has its own.
    sample_attributes: Vec<dictionary::RawAttribute<'a>>,
}

fn add_scope<'a>(
    builder: &mut Builder,
    tables: &mut Tables<'a>,
    layout: Layout,
    context: &Context<'a>,
    profiles: &[&'a [u8]],
) -> Result<(), IngestError> {
    let read: Vec<_> = profiles.iter().map(|profile| RawProfile::read(profile, layout)).collect();
    let value_type = |profile: &RawProfile<'_>| profile.value_type(profile.sample_type, tables);
    let siblings: Vec<ValueType> = read.iter().flatten().filter_map(|profile| value_type(profile).ok()).collect();
    for profile in read {
        let added = profile
            .map_err(Rejection::from)
            .and_then(|profile| profile::add(builder, tables, layout, context, &siblings, &profile));
        if let Err(rejection) = added {
            builder.reject(&rejection);
        }
    }
    Ok(())
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

impl<'a> Request<'a> {
    fn read(body: &'a [u8]) -> Result<Self, WireError> {
        let mut request = Self { resource_profiles: Vec::new(), dictionaries: Vec::new() };
        for field in Fields::new(body) {
            match field? {
                (1, value) => request.resource_profiles.push(ResourceProfiles::read(value.bytes(1)?)?),
                (2, value) => request.dictionaries.push(value.bytes(2)?),
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
            if samples.len() > proto::limits::PUSH_SAMPLES_MAX {
                return Err(IngestError::TooMany { what: "samples", count_max: proto::limits::PUSH_SAMPLES_MAX });
            }
        }
        Ok(samples)
    }
}

impl<'a> ResourceProfiles<'a> {
    fn read(message: &'a [u8]) -> Result<Self, WireError> {
        let mut read = Self { resource: &[], scopes: Vec::new() };
        for field in Fields::new(message) {
            match field? {
                (1, value) => read.resource = value.bytes(1)?,
                (2, value) => read.scopes.push(ScopeProfiles::read(value.bytes(2)?)?),
                _ => {}
            }
        }
        Ok(read)
    }
}

impl<'a> ScopeProfiles<'a> {
    fn read(message: &'a [u8]) -> Result<Self, WireError> {
        let mut read = Self { scope: &[], profiles: Vec::new() };
        for field in Fields::new(message) {
            match field? {
                (1, value) => read.scope = value.bytes(1)?,
                (2, value) => read.profiles.push(value.bytes(2)?),
                _ => {}
            }
        }
        Ok(read)
    }
}
