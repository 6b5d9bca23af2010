//! Conditions on stacks, as sets of locations. The router selects the locations by name, and the shard filters its
//! stacks by the sets.
//!
//! A shard numbers the locations of each tenant from 0 on, without gaps. When it numbers them anew, a new `generation`
//! of the numbers begins. A router knows all locations with numbers below some count, and a set has one bit for each
//! known location. If a condition on a stack depends on an unknown location, the response says so. The router then
//! fetches the missing locations and retries.

use crate::dictionary::Dictionary;
use crate::formats::wire;
pub use crate::formats::wire::stack_filter::Place as FramePlace;
use crate::shard::error::SelectionError;

/// Largest number of conditions on stacks in one request.
pub const STACK_FILTERS_MAX: usize = 31;

/// The locations of one tenant and shard that a router knows. These are all locations with numbers below `count`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KnownLocations {
    /// Generation of the numbers. The router knows no locations of other generations.
    pub generation: u64,
    /// Count of known locations. They are numbered from 0, so the next new location has this number.
    pub count: u32,
}

/// A condition on a stack: a location at `place` is in the set. If negated: no location at `place` is in the set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackFilter {
    /// Position in the stack: the leaf only, or any position.
    pub place: FramePlace,
    /// True if the condition is negated.
    pub is_negated: bool,
    /// True if the empty stack counts as a stack with a location in the set.
    pub has_empty: bool,
    /// Bit `n % 8` of byte `n / 8` is 1 if location `n` is in the set. Locations without a bit are not in the set.
    pub locations: Vec<u8>,
}

impl StackFilter {
    /// Creates a condition with an empty set.
    #[must_use]
    pub fn new(place: FramePlace, is_negated: bool, has_empty: bool) -> Self {
        Self { place, is_negated, has_empty, locations: Vec::new() }
    }

    /// Adds a location to the set.
    pub fn insert(&mut self, location: u32) {
        let byte = location as usize / 8;
        if byte >= self.locations.len() {
            self.locations.resize(byte + 1, 0);
        }
        self.locations[byte] |= 1 << (location % 8);
    }

    /// Iterates over the locations of the set, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0..).zip(&self.locations).flat_map(|(byte, bits): (u32, _)| {
            (0..8).filter(move |bit| bits & 1 << bit != 0).map(move |bit| byte * 8 + bit)
        })
    }
}

/// The part of a request that refers to locations by their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocationSets {
    /// Locations that the router knows. Only these may be in the sets.
    pub known: KnownLocations,
    /// Conditions on stacks. All must hold.
    pub filters: Vec<StackFilter>,
}

impl LocationSets {
    /// Encodes the conditions.
    #[must_use]
    pub fn to_wire(&self) -> wire::LocationSets {
        let KnownLocations { generation, count } = self.known;
        let filter = |filter: &StackFilter| wire::StackFilter {
            place: filter.place.into(),
            is_negated: filter.is_negated,
            has_empty: filter.has_empty,
            locations: filter.locations.clone().into(),
        };
        wire::LocationSets { generation, count, filters: self.filters.iter().map(filter).collect() }
    }

    /// Decodes the conditions.
    ///
    /// # Errors
    /// Returns a [`SelectionError`] for too many conditions, for unknown locations in a set, or for a position in the
    /// stack that this version does not know.
    pub fn from_wire(from: wire::LocationSets) -> Result<Self, SelectionError> {
        let wire::LocationSets { generation, count, filters } = from;
        if filters.len() > STACK_FILTERS_MAX {
            return Err(SelectionError::Inconsistent("there are too many conditions on stacks: use fewer"));
        }
        // A response numbers its own locations from `count` on, and these numbers must fit as well.
        if count > u32::MAX / 2 {
            return Err(SelectionError::Inconsistent("the count of known locations is too large"));
        }
        let unknown = |_unknown: prost::UnknownEnumValue| SelectionError::Inconsistent("unknown position of a frame");
        let filter = |from: wire::StackFilter| {
            let filter = StackFilter {
                place: FramePlace::try_from(from.place).map_err(unknown)?,
                is_negated: from.is_negated,
                has_empty: from.has_empty,
                locations: from.locations.into(),
            };
            if filter.locations.len() > count.div_ceil(8) as usize || filter.iter().last() >= Some(count) {
                return Err(SelectionError::Inconsistent("a set has locations that the router does not know"));
            }
            Ok(filter)
        };
        let filters = filters.into_iter().map(filter).collect::<Result<_, _>>()?;
        Ok(Self { known: KnownLocations { generation, count }, filters })
    }
}

/// A page of the locations of one tenant and shard, with consecutive numbers. A page has at most the size of a
/// response.
#[derive(Clone, Debug, Default)]
pub struct LocationPage {
    /// Generation of the numbers.
    pub generation: u64,
    /// Number of the first location of the page. The other locations have the next numbers, in order.
    pub first: u32,
    /// Count of all locations of the tenant, on this page and on others.
    pub count: u32,
    /// Definitions of the page's locations, and of the entries that the locations refer to.
    pub dictionary: Dictionary,
}

impl LocationPage {
    /// Encodes the page.
    #[must_use]
    pub fn to_wire(&self) -> wire::LocationsResponse {
        let Self { generation, first, count, dictionary } = self;
        let definitions = Some(dictionary.to_wire());
        wire::LocationsResponse { generation: *generation, first: *first, count: *count, definitions }
    }

    /// Decodes a page.
    ///
    /// # Errors
    /// Returns a [`SelectionError`] if the message contradicts itself.
    pub fn from_wire(from: wire::LocationsResponse) -> Result<Self, SelectionError> {
        let wire::LocationsResponse { generation, first, count, definitions } = from;
        let dictionary = Dictionary::from_wire(&definitions.unwrap_or_default())?;
        Ok(Self { generation, first, count, dictionary })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn location_sets_are_read_back_and_unknown_locations_are_refused() {
        let mut filter = StackFilter::new(FramePlace::Any, true, false);
        [0, 9, 8, 30].into_iter().for_each(|location| filter.insert(location));
        assert_eq!(filter.iter().collect::<Vec<_>>(), [0, 8, 9, 30]);
        let known = KnownLocations { generation: 7, count: 31 };
        let sets = LocationSets { known, filters: vec![filter, StackFilter::new(FramePlace::Leaf, false, true)] };
        assert_eq!(LocationSets::from_wire(sets.to_wire()).unwrap(), sets);
        let mut wrong = sets.to_wire();
        wrong.count = 30;
        assert!(LocationSets::from_wire(wrong).is_err(), "an unknown location");
        let mut wrong = sets.to_wire();
        wrong.filters = vec![wrong.filters[0].clone(); STACK_FILTERS_MAX + 1];
        assert!(LocationSets::from_wire(wrong).is_err(), "too many");
    }
}
