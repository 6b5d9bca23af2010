//! Bugs that a simulation plants, to show that its rules detect them.

/// A bug of varve, or of the machine below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Planted {
    /// A vote that is sent is never on disk.
    VoteNotPersisted,
    /// Entries are acknowledged before they are synced.
    AckBeforeSync,
    /// A batch with a known ID is applied again.
    DoubleApply,
    /// The router sends a retry with another ID.
    RetryWithoutId,
    /// A node accepts pushes that were placed by another epoch.
    NoEpochCheck,
    /// A node with an empty directory creates the meta group whatever the others say.
    InitializeOnEmpty,
    /// A follower takes the sender's wall clock for the time as of which it has everything.
    LeaseByWallClock,
    /// The log is purged although a member still installs the snapshot before it.
    PurgeIgnoresLagging,
}
