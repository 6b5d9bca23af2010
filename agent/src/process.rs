//! Processes as the kernel reports them: identity, mappings and files.

pub(crate) mod cgroup;
pub(crate) mod environment;
pub(crate) mod family;
pub(crate) mod file;
pub(crate) mod key;
pub(crate) mod mappings;
pub(crate) mod maps;
pub(crate) mod procfs;
pub(crate) mod rate_limit;
pub(crate) mod resource;
pub(crate) mod sys;
#[cfg(test)]
pub(crate) mod test_record;
