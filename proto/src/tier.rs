//! Tiers, which are the resolutions at which samples are stored.
//!
//! A window of any tier is `(start, end]`. Windows are aligned to 1970-01-01 UTC and numbered from there.

const SECOND_NS: i64 = 1_000_000_000;
const HOUR_NS: i64 = 3600 * SECOND_NS;
const DAY_NS: i64 = 24 * HOUR_NS;

/// A resolution: raw samples, or sums over windows of one minute, hour or day; finest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tier {
    /// Every sample with its own time. Chunks of ten minutes store the samples.
    Raw,
    /// Sums per minute.
    Minute,
    /// Sums per hour.
    Hour,
    /// Sums per day of UTC.
    Day,
}

impl Tier {
    /// All tiers, finest first.
    pub const ALL: [Self; 4] = [Self::Raw, Self::Minute, Self::Hour, Self::Day];

    /// Name of the tier for people, such as `1m`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Minute => "1m",
            Self::Hour => "1h",
            Self::Day => "1d",
        }
    }

    /// Returns the tier with this [`Tier::number`]; `None` if there is none.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Number of the tier in keys and on the wire.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::Raw => 0,
            Self::Minute => 1,
            Self::Hour => 2,
            Self::Day => 3,
        }
    }

    /// The next coarser tier; `None` for [`Tier::Day`].
    #[must_use]
    pub fn coarser(self) -> Option<Self> {
        Self::from_number(self.number() + 1)
    }

    /// Length of one window, in nanoseconds. For [`Tier::Raw`], it is the length of a chunk.
    #[must_use]
    pub fn window_ns(self) -> i64 {
        match self {
            Self::Raw => 600 * SECOND_NS,
            Self::Minute => 60 * SECOND_NS,
            Self::Hour => HOUR_NS,
            Self::Day => DAY_NS,
        }
    }

    /// Length of one partition, in nanoseconds: a multiple of the window. Partitions expire as a whole.
    #[must_use]
    pub const fn partition_ns(self) -> i64 {
        match self {
            // The sums per minute share the dictionary of their raw samples.
            Self::Raw | Self::Minute => 6 * HOUR_NS,
            Self::Hour => 8 * DAY_NS,
            Self::Day => 128 * DAY_NS,
        }
    }

    /// Number of the window that contains a time, in nanoseconds since 1970.
    #[must_use]
    pub fn window_of(self, time_ns: i64) -> u32 {
        interval_of(time_ns, self.window_ns())
    }

    /// Start of the window with this number, in nanoseconds since 1970. The window does not contain its start.
    #[must_use]
    pub fn window_start_ns(self, window: u32) -> i64 {
        i64::from(window).saturating_mul(self.window_ns())
    }

    /// End of the window with this number, in nanoseconds since 1970. The window contains its end.
    #[must_use]
    pub fn window_end_ns(self, window: u32) -> i64 {
        self.window_start_ns(window).saturating_add(self.window_ns())
    }

    /// Number of this tier's windows in one window of a coarser tier.
    #[must_use]
    pub fn windows_in(self, coarser: Self) -> u32 {
        u32::try_from(coarser.window_ns() / self.window_ns()).unwrap_or(1)
    }
}

/// Returns the number `i` of the interval `(i * length, (i + 1) * length]` that contains a time.
///
/// Times up to 1970 are in the first interval. No push may have such times.
#[must_use]
pub fn interval_of(time_ns: i64, length_ns: i64) -> u32 {
    u32::try_from(time_ns.saturating_sub(1).div_euclid(length_ns)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_contains_its_end_and_not_its_start() {
        for tier in Tier::ALL {
            let end = 1_790_000_000 / 86_400 * 86_400 * SECOND_NS;
            let window = tier.window_of(end);
            assert_eq!(tier.window_end_ns(window), end, "{tier:?}");
            assert_eq!(tier.window_of(end + 1), window + 1);
            assert_eq!(tier.window_of(tier.window_start_ns(window)), window - 1);
            assert_eq!(tier.partition_ns() % tier.window_ns(), 0);
            assert_eq!(Tier::from_number(tier.number()), Some(tier));
        }
        assert_eq!(Tier::Day.window_of(i64::MIN), 0);
        assert_eq!(Tier::Minute.windows_in(Tier::Hour), 60);
    }
}
