//! A member of a group, as the group's membership describes it.

use std::fmt;

/// Random identity of a node's data directory, made once with the directory. A node with a new, empty directory has
/// another identity, even if its node id is the same.
pub(crate) type DirectoryId = [u8; 16];

/// Address and data directory of a member. Its node id is the key in the membership.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Member {
    /// Address, `host:port`, of the member's node.
    pub(crate) address: String,
    /// Identity of the member's replica, whose log and votes it stands for: that of the data directory, or a random one
    /// if the directory may have held another replica of the group before.
    pub(crate) directory: DirectoryId,
}

/// The replica of a shard that a data directory holds, by the last decision about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReplicaRecord {
    /// Identity of the replica; `None` if the directory gave up its replica.
    pub(crate) identity: Option<DirectoryId>,
    /// Revision of the meta group's state that asked for this. An older state must not undo the decision, because an
    /// identity must never be used again after its log and votes were deleted.
    pub(crate) revision: u64,
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.address)
    }
}
