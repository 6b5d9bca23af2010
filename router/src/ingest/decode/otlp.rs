//! Decoding of OTLP export requests, in any layout from 1.8 to 1.11, as protobuf or JSON.

pub(crate) mod dictionary;
pub(crate) mod layout;

use proto::limits;

use self::dictionary::RawDictionary;
use self::layout::Layout;
use crate::ingest::decode::protobuf::{Fields, WireError};
use crate::ingest::error::{IngestError, OTLP_FORMAT};

/// An export request, split into its outer messages. The fields of these messages are not read yet.
pub(crate) struct RawRequest<'a> {
    pub(crate) resource_profiles: Vec<ResourceProfiles<'a>>,
    pub(crate) dictionary: RawDictionary<'a>,
    /// Layout of all samples and profiles of the request.
    pub(crate) layout: Layout,
}

/// The profiles of one resource.
pub(crate) struct ResourceProfiles<'a> {
    pub(crate) resource: &'a [u8],
    pub(crate) scopes: Vec<ScopeProfiles<'a>>,
}

/// The profiles of one scope.
pub(crate) struct ScopeProfiles<'a> {
    pub(crate) scope: &'a [u8],
    pub(crate) profiles: Vec<&'a [u8]>,
}

/// Number of resources, scopes and profiles read so far.
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
    IngestError::wire(OTLP_FORMAT, error)
}

impl<'a> RawRequest<'a> {
    /// Reads the outer messages of a request. If `layout` is `None`, detects the layout from the samples.
    ///
    /// # Errors
    /// Returns [`IngestError::Malformed`], or [`IngestError::TooMany`] if there are too many resources, scopes,
    /// profiles, samples or entries.
    pub(crate) fn read(message: &'a [u8], layout: Option<Layout>) -> Result<Self, IngestError> {
        let mut resource_profiles = Vec::new();
        let mut dictionaries = Vec::new();
        let mut count = Count::default();
        for field in Fields::new(message) {
            match field.map_err(malformed)? {
                (1, value) => {
                    let message = value.bytes(1).map_err(malformed)?;
                    resource_profiles.push(ResourceProfiles::read(message, &mut count)?);
                }
                (2, value) => dictionaries.push(value.bytes(2).map_err(malformed)?),
                _ => {}
            }
        }
        let dictionary = RawDictionary::read(&dictionaries)?;
        // This call also refuses a request with too many samples.
        let samples = samples(&resource_profiles)?;
        let layout = layout.unwrap_or_else(|| layout::detect(&samples, dictionary.attributes.len()));
        Ok(Self { resource_profiles, dictionary, layout })
    }

    /// Returns whether a message of unknown format is an export request. In fields 1 and 2, both formats have messages.
    /// Those of a request hold messages at positions where those of a pprof file hold numbers.
    pub(super) fn is_one(message: &'a [u8]) -> bool {
        let has_profile =
            |resource: &ResourceProfiles<'_>| resource.scopes.iter().any(|scope| !scope.profiles.is_empty());
        Self::read(message, None).is_ok_and(|request| request.resource_profiles.iter().any(has_profile))
    }
}

/// Returns all samples of a request, from which the layout is detected. A profile that cannot be read counts as empty
/// here, and a later step refuses the profile.
fn samples<'a>(resource_profiles: &[ResourceProfiles<'a>]) -> Result<Vec<&'a [u8]>, IngestError> {
    let mut samples = Vec::new();
    let scopes = resource_profiles.iter().flat_map(|resource| &resource.scopes);
    for profile in scopes.flat_map(|scope| &scope.profiles) {
        let fields = Fields::new(profile).map_while(Result::ok).filter(|(number, _)| *number == 2);
        samples.extend(fields.filter_map(|(_, value)| value.bytes(2).ok()));
        if samples.len() > limits::PUSH_SAMPLES_MAX {
            return Err(IngestError::TooMany { what: "samples", count_max: limits::PUSH_SAMPLES_MAX });
        }
    }
    Ok(samples)
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
