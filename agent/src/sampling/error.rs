//! Error that ended the agent or kept it from starting.

use std::io;

use super::capability::Missing;
use super::sampler::SamplerError;
use crate::config::ConfigError;

/// Error that ended the agent or kept it from starting.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(ConfigError),
    /// A requirement of sampling is missing on this machine.
    #[error("requirements of sampling are missing on this machine: {}", list(.0))]
    Missing(Vec<Missing>),
    /// Sampling failed.
    #[error(transparent)]
    Sampler(SamplerError),
    /// The sampler's thread could not be started, has panicked, or did not end in time.
    #[error("the sampler's thread cannot run")]
    Thread(#[source] io::Error),
}

fn list(missing: &[Missing]) -> String {
    let texts: Vec<_> = missing.iter().map(Missing::to_string).collect();
    texts.join("; ")
}
