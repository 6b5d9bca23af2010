//! The vocabulary of varve: the wire contracts between its parts and the domain types that all of them share.
//!
//! # Does not
//! Do I/O, read a clock, start a thread, or know how anything is stored.
//! # Read in this order
//! [`tenant`] and [`profile_type`] and [`label`] (what a series is) → [`location`], [`attribute`], [`dictionary`] (what a
//! sample refers to) → [`batch`] (the normal form of a push, and what goes to a shard) → [`selection`] (what is asked of a
//! shard) → [`placement`] → [`limits`]. Wire forms: [`definitions`], [`wire`], [`otlp`], [`pprof`], [`folded`], [`bytes_codec`].

pub mod answer;
pub mod attribute;
pub mod attribute_sets;
pub mod batch;
pub mod build_id;
pub mod bytes_codec;
pub mod definitions;
pub mod dictionary;
mod encoder;
pub mod entry;
pub mod folded;
mod hashed;
pub mod identity;
mod ids;
mod importer;
pub mod label;
pub mod limits;
pub mod location;
pub mod location_sets;
mod needed;
pub mod otlp;
mod pairs;
pub mod placement;
pub mod pprof;
pub mod profile_type;
pub mod retry_info;
pub mod selection;
mod shards;
mod stacks;
mod strings;
pub mod tenant;
pub mod tier;
pub mod tokens;
pub mod wire;

pub use answer::Answer;
pub use batch::{Batch, BatchId, LeftOut, Profile, Push, Samples, SeriesSamples};
pub use build_id::BuildId;
pub use dictionary::{Dictionary, StackPair};
pub use entry::{Command, Deletion, Entry};
pub use importer::{Copied, Importer};
pub use label::{Fingerprint, Label, LabelSet};
pub use location::{Address, Function, Line, Location, MappingIdentity, StackHash};
pub use location_sets::{FramePlace, KnownLocations, LocationPage, LocationSets, StackFilter};
pub use profile_type::{ProfileType, ValueType};
pub use selection::{Fold, Matcher, Selection, StackDetail, Window};
pub use shards::{AdministrationTask, Appended, Deleted, SeriesAnswer, Shards};
pub use tenant::TenantId;
pub use tier::Tier;
pub use tokens::Tokens;
