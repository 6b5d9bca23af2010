//! Ingest: the steps of a push, from the body of a request to the shards that store it.
//!
//! What is wrong with one profile refuses that profile, and the others of the same push are kept; what is wrong with the whole
//! refuses the whole.

pub(crate) mod admission;
mod decode;
pub(crate) mod error;
mod known_stacks;
mod normalize;
mod place;
pub(crate) mod push;
pub(crate) mod receive;
mod refusal_log;
pub(crate) mod unpack;

pub use self::push::Pusher;
