//! Samples of programs whose functions a language runtime runs.

mod java;
mod many_functions;
mod node;
mod perl;
mod php;
mod python;
mod ruby;
