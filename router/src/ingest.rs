//! Ingest: the steps of a push, from the body of the request to the shards that store the samples.
//!
//! [`push`] runs the steps in this order: [`receive`], [`unpack`], [`decode`], [`normalize`], [`place`], [`append`]. If
//! one profile has a fault, only that profile is refused, and the other profiles are stored. If the request itself has
//! a fault, the whole push is refused.

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
