//! Names of frames: the functions, files and lines of locations. A cache keeps the names of all tenants.

pub(crate) mod abort_marker;
pub(crate) mod cache;
pub(crate) mod frame;
pub(crate) mod interpreter;
pub(crate) mod line;
pub(crate) mod named_answers;
pub(crate) mod named_dictionary;
pub(crate) mod namer;
pub(crate) mod stack_label;
pub(crate) mod stack_values;
pub(crate) mod tenant_names;
