//! The messages of a shard: requests of a router, responses, and the entries of the Raft log. `meta` holds the state
//! and the commands of shard 0, the meta group.

pub mod answer;
pub mod entry;
mod error;
pub mod leader_search;
pub mod location_sets;
pub mod meta;
pub mod placement;
pub mod push_retries;
mod reads;
pub mod refusal;
pub mod selection;
mod shards;

pub use answer::Answer;
pub use entry::{Command, Deletion, Entry, LabelDrops};
pub use error::{ResponseTooLarge, SelectionError};
pub use location_sets::{FramePlace, KnownLocations, LocationPage, LocationSets, StackFilter};
pub use reads::{Consistency, ReadAt, ReadPoint};
pub use selection::{Fold, Matcher, Selection, StackDetail, Window};
pub use shards::{AdministrationTask, Appended, Deleted, SeriesAnswer, SeriesQuery, Shards};
