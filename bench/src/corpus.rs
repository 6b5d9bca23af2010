//! Recordings of programs, made by varve's agent. The modules hold the content of a recording, its file format, and the
//! code that makes it.

mod builder;
mod file;
pub(crate) mod record;
mod recording;
mod tables;
mod varint;

pub(crate) use builder::Builder;
#[cfg(test)]
pub(crate) use recording::Sample;
pub(crate) use recording::{Frames, Function, Location, Mapping, Node, PHASES, Recording, Thread, describe};
pub(crate) use tables::{FrameTables, View};
