//! The data types that all parts of varve share, and the messages between these parts.
//!
//! # Limits
//! This crate does no I/O, reads no clock, starts no thread, and does not depend on how data is stored.
//! # Read in this order
//! - [`TenantId`], [`profile_type`] and [`label`]: the parts of a series.
//! - [`dictionary`]: the entries that samples refer to.
//! - [`batch`]: the normal form of a push, and the batches that go to shards.
//! - [`tier`]: the resolutions at which samples are stored, and the lengths of windows and partitions.
//! - `shard`: requests to a shard, and its responses.
//! - [`limits`]: every limit, with its reason.
//! - `formats`: the wire formats.

pub mod batch;
pub mod build_id;
pub mod dictionary;
mod formats;
pub mod label;
pub mod limits;
pub mod profile_type;
mod shard;
mod tenant;
pub mod tier;
pub mod tokens;

pub use arcstr::ArcStr;
pub use batch::{Batch, BatchId, Profile, Push, Samples, SeriesSamples, Stripped};
pub use build_id::BuildId;
pub use dictionary::{Address, Copied, Dictionary, Function, Importer, Line, Location, Mapping, StackHash, StackPair};
pub use formats::{BatchError, DefinitionsError, bytes_codec, folded, otlp, pprof, rpc_status, wire};
pub use label::{Fingerprint, Label, LabelSet};
pub use profile_type::{ProfileType, ValueType};
pub use shard::{
    AdministrationTask, Answer, Appended, Command, Consistency, Deleted, Deletion, Entry, Fold, FramePlace,
    KnownLocations, LabelDrops, LocationPage, LocationSets, Matcher, ReadAt, ReadPoint, ResponseTooLarge, Selection,
    SelectionError, SeriesAnswer, SeriesQuery, Shards, StackDetail, StackFilter, Window, answer, entry, leader_search,
    location_sets, meta, placement, push_retries, refusal, selection,
};
pub use tenant::{TenantId, TenantIdError};
pub use tier::Tier;
pub use tokens::Tokens;
