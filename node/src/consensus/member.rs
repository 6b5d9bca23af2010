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
    /// Identity of the data directory that holds the member's log and votes.
    pub(crate) directory: DirectoryId,
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.address)
    }
}
