//! Generated steps of a test case.

use proptest::prelude::*;
use proto::Tier;

use crate::samples::{Drawn, drawn};

/// Retention classes of the generated batches.
pub const CLASSES: [u8; 3] = [0, 1, 7];

/// A step of a generated test case.
#[derive(Clone, Debug)]
pub enum Step {
    /// Appends a batch of these samples with this batch ID.
    Append(Vec<Drawn>, Option<u8>),
    /// Flushes the engine.
    Flush,
    /// Seals all windows.
    Compact,
    /// Closes the engine and opens it again.
    Restart,
    /// Cuts the power, which loses everything that is not flushed, and restarts.
    Crash,
    /// Replaces the engine's state with a checkpoint of that state.
    Checkpoint,
    /// Appends the next batches in this class of [`CLASSES`], as after a change of the tenant's policy.
    Class(u8),
    /// Expires a tier of a class up to a time, in seconds since [`T0`].
    Expire(Tier, u8, i64),
    /// Deletes the samples between two times that have this label with this value. The label and the value are numbers,
    /// and the times are seconds since [`T0`].
    Delete((u8, u8), i64, i64),
    /// Lets this many seconds pass without entries.
    Wait(i64),
    /// Advances the engine's clock for sealing to this many seconds after the world's time.
    PassTime(i64),
}

/// Generates steps of all kinds, mostly appends and flushes.
pub fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (prop::collection::vec(drawn(), 1..20), prop::option::of(0..6_u8))
            .prop_map(|(samples, id)| Step::Append(samples, id)),
        3 => Just(Step::Flush),
        1 => Just(Step::Compact),
        1 => Just(Step::Restart),
        2 => Just(Step::Crash),
        1 => Just(Step::Checkpoint),
        2 => (0..40_000_i64).prop_map(Step::Wait),
        1 => (0..400_000_i64).prop_map(Step::PassTime),
        1 => prop::sample::select(CLASSES.to_vec()).prop_map(Step::Class),
        1 => (0..4_u8, prop::sample::select(CLASSES.to_vec()), -200_000..-20_000_i64)
            .prop_map(|(tier, class, second)| Step::Expire(Tier::from_number(tier).unwrap(), class, second)),
        1 => ((0..3_u8, 0..4_u8), -200_000..60_000_i64, 1..100_000_i64)
            .prop_map(|(label, second, length)| Step::Delete(label, second, second + length)),
    ]
}
