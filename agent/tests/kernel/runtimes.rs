//! Samples of programs whose functions a language runtime runs.

mod freed_functions;
mod java;
mod many_functions;
mod node;
mod perf_maps;
mod perl;
mod php;
mod python;
mod ruby;
mod short_lived;
mod waits;

pub(crate) use java::compile;
pub(crate) use php::{COMPILER, compilers, without_linker};
