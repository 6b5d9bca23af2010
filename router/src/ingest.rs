//! Ingest: the steps of a push, from the body of its request to the shards that store it.
//!
//! [`push`] runs them in this order: [`receive`], [`unpack`], [`decode`], [`normalize`], [`place`], [`append`]. A
//! fault in one profile refuses that profile, and the others of the push are kept. A fault in the request refuses all
//! of it.

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
