//! Parsing of times and durations in requests and on command lines, without floating point. Times are Unix seconds with
//! any number of decimals, RFC 3339, `now` or `now-1h`. Durations are those of Prometheus (`1h30m`). All are converted
//! to nanoseconds.

use std::time::SystemTime;

const NS_PER_S: i64 = 1_000_000_000;

/// The error of a text that is not a valid time or duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimeError {
    /// The text is not a time.
    #[error(
        "it must be RFC 3339, such as 2026-01-01T00:00:00.5Z, Unix seconds, such as 1767225600.5, or now, \
         now-1h or now-1h30m"
    )]
    NoTime,
    /// The text is not a duration.
    #[error("it must be seconds, such as 0.5, or a duration, such as 1h30m or 500ms")]
    NoDuration,
    /// The time in nanoseconds since 1970 does not fit in 63 bits.
    #[error("it must be from 1970 to 2262")]
    OutOfRange,
    /// The duration is zero, or does not fit in 63 bits.
    #[error("it must be above 0 and at most 292 years")]
    DurationOutOfRange,
}

/// Returns the time of the system clock, in nanoseconds since 1970.
#[must_use]
pub fn now_ns() -> i64 {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since_1970.as_nanos()).unwrap_or(i64::MAX)
}

/// Parses a time. Returns nanoseconds since 1970. `now` in the text means `now_ns`.
///
/// # Errors
/// Returns a [`TimeError`] if the text is not a time, or if its nanoseconds since 1970 do not fit in an i64.
pub fn parse_time(text: &str, now_ns: i64) -> Result<i64, TimeError> {
    match text.strip_prefix("now") {
        Some("") => return Ok(now_ns),
        Some(offset) => {
            let duration = offset.strip_prefix('-').ok_or(TimeError::NoTime)?;
            // The text is meant as a time, so the error must list the forms of times, and not those of durations.
            let duration = parse_duration(duration).map_err(|error| match error {
                TimeError::DurationOutOfRange => TimeError::OutOfRange,
                _ => TimeError::NoTime,
            })?;
            return now_ns.checked_sub(duration).filter(|&time| time >= 0).ok_or(TimeError::OutOfRange);
        }
        None => {}
    }
    if text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return parse_seconds(text).ok_or(TimeError::NoTime)?.ok_or(TimeError::OutOfRange);
    }
    if text.strip_prefix('-').is_some_and(|positive| parse_seconds(positive).is_some()) {
        return Err(TimeError::OutOfRange);
    }
    // No real time has more than 64 bytes, and the cut limits the work of the parser.
    let timestamp: jiff::Timestamp =
        text.get(..64.min(text.len())).unwrap_or_default().parse().map_err(|_unreadable| TimeError::NoTime)?;
    i64::try_from(timestamp.as_nanosecond()).ok().filter(|&time| time >= 0).ok_or(TimeError::OutOfRange)
}

/// Formats a time, given in nanoseconds since 1970, as an RFC 3339 timestamp.
#[must_use]
pub fn rfc_3339(time_ns: i64) -> String {
    jiff::Timestamp::from_nanosecond(time_ns.into()).map_or_else(|_| format_time(time_ns), |time| time.to_string())
}

/// Parses a duration. Returns nanoseconds, always more than zero.
pub(crate) fn parse_duration(text: &str) -> Result<i64, TimeError> {
    let duration = match parse_seconds(text) {
        Some(seconds) => seconds,
        None => parse_units(text).ok_or(TimeError::NoDuration)?,
    };
    duration.filter(|&duration| duration > 0).ok_or(TimeError::DurationOutOfRange)
}

/// Parses decimal seconds. Returns nanoseconds, and drops smaller fractions. The outer `Option` is `None` if the text
/// is not a number. The inner `Option` is `None` if the number of nanoseconds does not fit in an i64.
fn parse_seconds(text: &str) -> Option<Option<i64>> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    if (whole.is_empty() && fraction.is_empty()) || !digits(whole) || !digits(fraction) {
        return None;
    }
    let fraction_ns: i64 = format!("{fraction:0<9}").get(..9)?.parse().ok()?;
    let whole: Option<i64> = if whole.is_empty() { Some(0) } else { whole.parse().ok() };
    Some(whole.and_then(|whole| whole.checked_mul(NS_PER_S)?.checked_add(fraction_ns)))
}

/// Parses a duration of Prometheus: numbers with units, larger units first, each unit at most once. The two `Option`s
/// have the same meaning as in [`parse_seconds`].
fn parse_units(text: &str) -> Option<Option<i64>> {
    const UNITS: [(&str, i64); 7] = [
        ("y", 365 * 86_400 * NS_PER_S),
        ("w", 7 * 86_400 * NS_PER_S),
        ("d", 86_400 * NS_PER_S),
        ("h", 3_600 * NS_PER_S),
        ("m", 60 * NS_PER_S),
        ("s", NS_PER_S),
        ("ms", NS_PER_S / 1000),
    ];
    let mut total = Some(0_i64);
    let mut rest = text;
    let mut units = UNITS.as_slice();
    while !rest.is_empty() {
        let number = rest.find(|c: char| !c.is_ascii_digit()).filter(|&length| length > 0)?;
        let (number, behind) = rest.split_at(number);
        let unit = behind.find(|c: char| c.is_ascii_digit()).unwrap_or(behind.len());
        let (unit, behind) = behind.split_at(unit);
        let place = units.iter().position(|(name, _)| *name == unit)?;
        let (_, nanoseconds) = units.get(place)?;
        let part = number.parse::<i64>().ok().and_then(|number| number.checked_mul(*nanoseconds));
        total = total.zip(part).and_then(|(total, part)| total.checked_add(part));
        units = units.get(place + 1..)?;
        rest = behind;
    }
    (!text.is_empty()).then_some(total)
}

/// Formats a time as Unix seconds, with as many decimals as needed.
pub(crate) fn format_time(time_ns: i64) -> String {
    let seconds = time_ns.div_euclid(NS_PER_S);
    let fraction = time_ns.rem_euclid(NS_PER_S);
    if fraction == 0 {
        return seconds.to_string();
    }
    format!("{seconds}.{fraction:09}").trim_end_matches('0').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_to_the_nanosecond() {
        for (text, want) in [
            ("0", Ok(0)),
            ("1767225600", Ok(1_767_225_600 * NS_PER_S)),
            ("1767225600.123456789", Ok(1_767_225_600_123_456_789)),
            ("1767225600.12345678999", Ok(1_767_225_600_123_456_789)),
            (".5", Ok(NS_PER_S / 2)),
            ("1.", Ok(NS_PER_S)),
            ("2026-01-01T00:00:00Z", Ok(1_767_225_600 * NS_PER_S)),
            ("2026-01-01T01:00:00.000000001+01:00", Ok(1_767_225_600 * NS_PER_S + 1)),
            ("9223372036.854775807", Ok(i64::MAX)),
            ("9223372036.854775808", Err(TimeError::OutOfRange)),
            ("99999999999999999999", Err(TimeError::OutOfRange)),
            ("-1", Err(TimeError::OutOfRange)),
            ("1969-12-31T23:59:59Z", Err(TimeError::OutOfRange)),
            ("3000-01-01T00:00:00Z", Err(TimeError::OutOfRange)),
            ("x", Err(TimeError::NoTime)),
            ("", Err(TimeError::NoTime)),
            (".", Err(TimeError::NoTime)),
            ("1.2.3", Err(TimeError::NoTime)),
            ("1e9", Err(TimeError::NoTime)),
            ("NaN", Err(TimeError::NoTime)),
            ("2026-13-01T00:00:00Z", Err(TimeError::NoTime)),
        ] {
            assert_eq!(parse_time(text, 0), want, "{text}");
        }
    }

    #[test]
    fn now_and_times_before_now_are_understood() {
        let now = 1_767_225_600 * NS_PER_S;
        for (text, want) in [
            ("now", Ok(now)),
            ("now-1h", Ok(now - 3600 * NS_PER_S)),
            ("now-1h30m", Ok(now - 5400 * NS_PER_S)),
            ("now-90", Ok(now - 90 * NS_PER_S)),
            ("now-0.5", Ok(now - NS_PER_S / 2)),
            ("now-", Err(TimeError::NoTime)),
            ("now-x", Err(TimeError::NoTime)),
            ("now+1h", Err(TimeError::NoTime)),
            ("nowhere", Err(TimeError::NoTime)),
            ("now-100y", Err(TimeError::OutOfRange)),
            ("now-300y", Err(TimeError::OutOfRange)),
        ] {
            assert_eq!(parse_time(text, now), want, "{text}");
        }
    }

    #[test]
    fn a_time_for_people_is_rfc_3339_and_is_read_back() {
        assert_eq!(rfc_3339(1_767_225_600 * NS_PER_S), "2026-01-01T00:00:00Z");
        assert_eq!(rfc_3339(1_767_225_600 * NS_PER_S + NS_PER_S / 2), "2026-01-01T00:00:00.5Z");
        for time in [0, i64::MAX] {
            assert_eq!(parse_time(&rfc_3339(time), 0), Ok(time));
        }
    }

    #[test]
    fn durations_are_seconds_or_those_of_prometheus() {
        for (text, want) in [
            ("15", Ok(15 * NS_PER_S)),
            ("0.5", Ok(NS_PER_S / 2)),
            ("500ms", Ok(NS_PER_S / 2)),
            ("1h30m", Ok(5400 * NS_PER_S)),
            ("1d2h3m4s5ms", Ok(93_784 * NS_PER_S + 5_000_000)),
            ("1y", Ok(365 * 86_400 * NS_PER_S)),
            ("0", Err(TimeError::DurationOutOfRange)),
            ("0s", Err(TimeError::DurationOutOfRange)),
            ("300y", Err(TimeError::DurationOutOfRange)),
            ("-1", Err(TimeError::NoDuration)),
            ("30m1h", Err(TimeError::NoDuration)),
            ("1h1h", Err(TimeError::NoDuration)),
            ("h", Err(TimeError::NoDuration)),
            ("1q", Err(TimeError::NoDuration)),
            ("1.5h", Err(TimeError::NoDuration)),
            ("", Err(TimeError::NoDuration)),
        ] {
            assert_eq!(parse_duration(text), want, "{text}");
        }
    }

    #[test]
    fn times_are_written_with_the_decimals_they_have() {
        assert_eq!(format_time(1_767_225_600 * NS_PER_S), "1767225600");
        assert_eq!(format_time(1_767_225_600_120_000_000), "1767225600.12");
        assert_eq!(format_time(1_767_225_600_000_000_001), "1767225600.000000001");
    }
}
