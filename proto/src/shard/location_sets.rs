//! Conditions on stacks, as sets of locations: a router names locations, and the shard that has the stacks looks for sets.
//!
//! A shard numbers the locations of each tenant as they come, densely; numbers keep their meaning within a `generation`, and a
//! router knows all below some number. So a set is a bit for each location that is known, and whatever has other locations in its
//! stacks cannot be told: the shard says so, and the router asks for what it lacks and comes again.

use crate::dictionary::Dictionary;
use crate::formats::wire;
pub use crate::formats::wire::stack_filter::Place as FramePlace;
use crate::shard::error::SelectionError;

/// How many conditions there may be in one question.
pub const STACK_FILTERS_MAX: usize = 31;

/// The locations of one tenant of a shard that a router knows: all with smaller numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KnownLocations {
    /// Which numbers; of other ones nothing is known.
    pub generation: u64,
    /// The first number that is not known.
    pub count: u32,
}

/// A condition that a stack meets if a location at the place is in the set; or, negated, if none is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StackFilter {
    /// Which of a stack's locations: its leaf's, or any one's.
    pub place: FramePlace,
    /// See there.
    pub is_negated: bool,
    /// Whether the empty stack counts as one whose locations are in the set.
    pub has_empty: bool,
    /// Bit `n % 8` of byte `n / 8` says whether location `n` is in the set; what is behind the end is not.
    pub locations: Vec<u8>,
}

impl StackFilter {
    /// A filter whose set has no location yet.
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

    /// The locations of the set, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0..).zip(&self.locations).flat_map(|(byte, bits): (u32, _)| {
            (0..8).filter(move |bit| bits & 1 << bit != 0).map(move |bit| byte * 8 + bit)
        })
    }
}

/// What a question says of locations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocationSets {
    /// What the router knows, and sets tell of.
    pub known: KnownLocations,
    /// All must be met.
    pub filters: Vec<StackFilter>,
}

impl LocationSets {
    /// As it is sent.
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

    /// What was sent.
    ///
    /// # Errors
    /// Too many filters, sets of locations that are not known, or a place that this version does not know.
    pub fn from_wire(from: wire::LocationSets) -> Result<Self, SelectionError> {
        let wire::LocationSets { generation, count, filters } = from;
        if filters.len() > STACK_FILTERS_MAX {
            return Err(SelectionError::Inconsistent("there are too many conditions on stacks: ask for fewer"));
        }
        // Numbers of an answer's own locations follow.
        if count > u32::MAX / 2 {
            return Err(SelectionError::Inconsistent("no shard has so many locations"));
        }
        let unknown = |_unknown: prost::UnknownEnumValue| SelectionError::Inconsistent("unknown place of a frame");
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

/// Some of the locations of one tenant of a shard, as many as go into one answer.
#[derive(Clone, Debug, Default)]
pub struct LocationPage {
    /// Which numbers.
    pub generation: u64,
    /// The number of the dictionary's first location; the others follow one by one.
    pub first: u32,
    /// How many there are in all, those included that are on no page yet.
    pub count: u32,
    /// The locations, and all they refer to.
    pub dictionary: Dictionary,
}

impl LocationPage {
    /// As it is sent.
    #[must_use]
    pub fn to_wire(&self) -> wire::LocationsResponse {
        let Self { generation, first, count, dictionary } = self;
        let definitions = Some(dictionary.to_wire());
        wire::LocationsResponse { generation: *generation, first: *first, count: *count, definitions }
    }

    /// What was sent.
    ///
    /// # Errors
    /// [`SelectionError`] where it does not add up.
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
    fn sets_come_back_and_have_nothing_that_is_not_known() {
        let mut filter = StackFilter::new(FramePlace::Any, true, false);
        [0, 9, 8, 30].into_iter().for_each(|location| filter.insert(location));
        assert_eq!(filter.iter().collect::<Vec<_>>(), [0, 8, 9, 30]);
        let known = KnownLocations { generation: 7, count: 31 };
        let sets = LocationSets { known, filters: vec![filter, StackFilter::new(FramePlace::Leaf, false, true)] };
        assert_eq!(LocationSets::from_wire(sets.to_wire()).unwrap(), sets);
        let mut wrong = sets.to_wire();
        wrong.count = 30;
        assert!(LocationSets::from_wire(wrong).is_err(), "a location that is not known");
        let mut wrong = sets.to_wire();
        wrong.filters = vec![wrong.filters[0].clone(); STACK_FILTERS_MAX + 1];
        assert!(LocationSets::from_wire(wrong).is_err(), "too many");
    }
}
