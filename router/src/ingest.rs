//! Ingest: the steps of a push, from the body of the request to the shards that store the samples.
//!
//! [`push`] runs the steps in this order: [`receive`], [`unpack`], [`decode`], [`normalize`], [`place`], [`append`]. A
//! fault in one profile refuses that profile only, and the push keeps its other profiles. A fault in the request
//! refuses the whole push.

pub(crate) mod admission;
mod append;
mod decode;
pub(crate) mod error;
mod known_stacks;
mod normalize;
mod place;
pub(crate) mod push;
pub(crate) mod receive;
pub(crate) mod request;
mod unpack;

pub use self::push::Pusher;
