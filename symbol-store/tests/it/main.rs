//! The symbol store against real compilers, linkers, processes and damaged files.

mod hostile;
mod identity;
mod ladder;
mod live;
mod oracle;
mod upload;
mod workshop;
