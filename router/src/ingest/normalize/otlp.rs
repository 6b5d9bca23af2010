//! Conversion of OTLP export requests to the normal form.

mod attribute;
mod dictionary;
mod entry;
mod location;
mod profile;
mod resource;
mod table;

#[cfg(test)]
mod tests;

use proto::profile_type::Siblings;

use self::dictionary::RequestDictionary;
use self::profile::RawProfile;
use self::resource::{Resource, ScopeContext};
use crate::ingest::decode::otlp::RawRequest;
use crate::ingest::decode::protobuf::WireError;
use crate::ingest::error::ProfileError;
use crate::ingest::known_stacks::DefinitionPlan;
use crate::ingest::normalize::builder::Builder;

/// Adds all profiles of a request to a push. Refuses only the profiles that have a fault.
pub(super) fn add(request: &RawRequest<'_>, builder: &mut Builder, plan: &mut DefinitionPlan<'_>) {
    let mut dictionary = RequestDictionary::new(&request.dictionary);
    dictionary.reserve(builder, plan);
    for resource_profiles in &request.resource_profiles {
        let mut resource = Resource::read(builder, &mut dictionary, resource_profiles.resource);
        let mut scopes_left = resource_profiles.scopes.len();
        for scope_profiles in &resource_profiles.scopes {
            scopes_left -= 1;
            let context = match &mut resource {
                Ok(resource) => resource.with_scope(builder, &mut dictionary, scope_profiles.scope),
                Err(error) => Err(error.clone()),
            };
            match context {
                Ok(mut context) => {
                    context.is_last = scopes_left == 0;
                    let profiles = scope_profiles.profiles.iter();
                    let raw = profiles.map(|profile| RawProfile::read(profile, request.layout)).collect();
                    add_scope(builder, &mut dictionary, &mut context, raw, plan);
                }
                Err(error) => scope_profiles.profiles.iter().for_each(|_profile| builder.reject(&error)),
            }
        }
    }
}

fn add_scope<'a>(
    builder: &mut Builder,
    dictionary: &mut RequestDictionary<'a>,
    context: &mut ScopeContext<'_>,
    read: Vec<Result<RawProfile<'a>, WireError>>,
    plan: &mut DefinitionPlan<'_>,
) {
    let mut siblings = Siblings::default();
    for profile in read.iter().flatten() {
        if let Ok([kind, unit]) = profile.sample_type(builder, dictionary) {
            let strings = &builder.dictionary().strings;
            siblings.add(strings.get(kind), strings.get(unit));
        }
    }
    let mut profiles_left = read.len();
    for profile in read {
        profiles_left -= 1;
        let is_last = profiles_left == 0;
        let added = profile
            .map_err(ProfileError::from)
            .and_then(|profile| profile.add(builder, dictionary, context, is_last, siblings, plan));
        if let Err(error) = added {
            builder.reject(&error);
        }
    }
}
