//! Recordings that varve's agent made of programs: their content, their file format, and how to make them.

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
