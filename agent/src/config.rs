//! Configuration of the agent: its endpoint, its sampling frequency, and its credentials.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::RwLock;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Endpoint;

/// Highest sampling frequency, in samples per second on each CPU. Above it, sampling takes more than 1 % of a CPU.
pub const FREQUENCY_HZ_MAX: u32 = 1000;

/// Largest number of environment variables that become labels. Each of them becomes a label of every series.
const ENVIRONMENT_VARIABLES_MAX: usize = 8;
/// Longest name of an environment variable, in bytes.
const ENVIRONMENT_NAME_BYTES_MAX: usize = 64;

/// Compression of export requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// gzip, which every OTLP receiver supports.
    Gzip,
    /// zstd, which takes less CPU time on both sides. varve supports it, but not every OTLP receiver does.
    Zstd,
}

/// A bearer token, which may be replaced while the agent runs. Clones share it. Debug output does not show it.
#[derive(Clone)]
pub struct Token(Arc<RwLock<String>>);

impl Token {
    /// Creates a token from its text. A caller that reads a line of a file must remove the line end.
    pub fn new(text: impl Into<String>) -> Self {
        Self(Arc::new(RwLock::new(text.into())))
    }

    /// Replaces the token. Returns false if it stays the same.
    ///
    /// # Errors
    /// [`ConfigError::Token`]: the text cannot be sent, and the token stays the same.
    pub fn replace(&self, text: &str) -> Result<bool, ConfigError> {
        authorization(text)?;
        let is_new = *self.0.read() != text;
        if is_new {
            text.clone_into(&mut self.0.write());
        }
        Ok(is_new)
    }

    /// Returns the value of `authorization`.
    pub(crate) fn authorization(&self) -> Result<MetadataValue<Ascii>, ConfigError> {
        authorization(&self.0.read())
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(...)")
    }
}

/// The spool: a folder for the requests that cannot be sent at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpoolConfig {
    /// The folder, which no other agent may use. It is created if it is missing.
    pub dir: PathBuf,
    /// Largest size of the folder, in bytes. When it is reached, the oldest requests are dropped and counted.
    pub bytes_max: u64,
}

/// Configuration of the agent.
#[derive(Clone, Debug)]
pub struct Config {
    /// Address of the OTLP gRPC receiver, as `http://host:port`.
    pub endpoint: String,
    /// Samples per second on each CPU, from 1 to [`FREQUENCY_HZ_MAX`].
    pub frequency_hz: u32,
    /// True if waits of threads are recorded in addition to CPU samples.
    pub off_cpu: bool,
    /// True if names of Java methods have the types of their parameters.
    pub java_parameters: bool,
    /// Names of environment variables. For each process, their values are sent as
    /// `process.environment_variable.<name>`.
    pub environment_variables: Vec<String>,
    /// Token that is sent as `authorization: Bearer ...`; `None` if the endpoint needs none.
    pub token: Option<Token>,
    /// Compression of requests.
    pub compression: Compression,
    /// The spool. Without one, requests that cannot be sent at once wait in a small queue in memory.
    pub spool: Option<SpoolConfig>,
}

/// Configuration of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordConfig {
    /// Samples per second on each CPU, from 1 to [`FREQUENCY_HZ_MAX`].
    pub frequency_hz: u32,
    /// True if waits of threads are recorded in addition to CPU samples.
    pub off_cpu: bool,
    /// True if names of Java methods have the types of their parameters.
    pub java_parameters: bool,
    /// Names of environment variables. For each process, their values are recorded as
    /// `process.environment_variable.<name>`.
    pub environment_variables: Vec<String>,
}

/// Reason why a [`Config`] or a [`RecordConfig`] is invalid.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The frequency is out of range.
    #[error("frequency of {frequency_hz} Hz: it must be from 1 to {FREQUENCY_HZ_MAX}")]
    Frequency {
        /// The configured frequency, in samples per second.
        frequency_hz: u32,
    },
    /// The endpoint is malformed.
    #[error("endpoint {endpoint:?} is not of the form http://host:port")]
    Endpoint {
        /// The configured endpoint.
        endpoint: String,
        /// Error of the parser; `None` if the endpoint has no `http` scheme, host or port.
        #[source]
        source: Option<tonic::transport::Error>,
    },
    /// The endpoint needs TLS.
    #[error("endpoint {endpoint:?}: this agent does not speak TLS, use http:// or a local proxy")]
    Tls {
        /// The configured endpoint.
        endpoint: String,
    },
    /// A name is not a valid name of an environment variable, or there are too many names.
    #[error(
        "environment variable {name:?} cannot be used: names have letters, digits and _, \
         {ENVIRONMENT_NAME_BYTES_MAX} bytes at most, and at most {ENVIRONMENT_VARIABLES_MAX} may be named"
    )]
    EnvironmentVariable {
        /// The configured name.
        name: String,
    },
    /// The token has characters that cannot be sent.
    #[error("the token holds characters that cannot be sent: only visible ASCII can")]
    Token,
}

/// A valid [`Config`], parsed.
#[derive(Clone, Debug)]
pub(crate) struct CheckedConfig {
    pub(crate) endpoint: Endpoint,
    pub(crate) token: Option<Token>,
    pub(crate) compression: Compression,
    pub(crate) sampling: Sampling,
    pub(crate) environment: Arc<[String]>,
}

/// Settings of the sampler.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sampling {
    /// Time between two samples of a CPU, in nanoseconds.
    pub(crate) period_ns: u64,
    /// True if waits of threads are recorded in addition to CPU samples.
    pub(crate) off_cpu: bool,
    /// True if names of Java methods have the types of their parameters.
    pub(crate) java_parameters: bool,
}

impl Config {
    pub(crate) fn check(&self) -> Result<CheckedConfig, ConfigError> {
        let Self { frequency_hz, off_cpu, java_parameters, environment_variables, .. } = self.clone();
        let sampling = RecordConfig { frequency_hz, off_cpu, java_parameters, environment_variables };
        let (sampling, environment) = sampling.check()?;
        let endpoint = self.endpoint.clone();
        if endpoint.starts_with("https://") {
            return Err(ConfigError::Tls { endpoint });
        }
        let parsed = match Endpoint::from_shared(endpoint.clone()) {
            Ok(parsed) => parsed,
            Err(source) => return Err(ConfigError::Endpoint { endpoint, source: Some(source) }),
        };
        let uri = parsed.uri();
        if uri.scheme_str() != Some("http") || uri.host().is_none() || uri.port_u16().is_none() {
            return Err(ConfigError::Endpoint { endpoint, source: None });
        }
        if let Some(token) = &self.token {
            let _authorization = token.authorization()?;
        }
        Ok(CheckedConfig {
            endpoint: parsed,
            token: self.token.clone(),
            compression: self.compression,
            sampling,
            environment,
        })
    }
}

impl RecordConfig {
    pub(crate) fn check(&self) -> Result<(Sampling, Arc<[String]>), ConfigError> {
        let frequency_hz = self.frequency_hz;
        if !(1..=FREQUENCY_HZ_MAX).contains(&frequency_hz) {
            return Err(ConfigError::Frequency { frequency_hz });
        }
        let is_name = |name: &str| {
            let has_fit_bytes = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
            has_fit_bytes && (1..=ENVIRONMENT_NAME_BYTES_MAX).contains(&name.len())
        };
        let unfit = |(index, name): &(usize, &String)| ENVIRONMENT_VARIABLES_MAX <= *index || !is_name(name);
        if let Some((_, name)) = self.environment_variables.iter().enumerate().find(unfit) {
            return Err(ConfigError::EnvironmentVariable { name: name.clone() });
        }
        let Self { off_cpu, java_parameters, .. } = *self;
        let sampling = Sampling { period_ns: period_ns(frequency_hz), off_cpu, java_parameters };
        Ok((sampling, self.environment_variables.as_slice().into()))
    }
}

/// Returns the time between two samples: one thousandth less than the nominal period. Profiles are exported with this
/// period.
///
/// The scheduler switches threads on its own ticks, 100 to 1,000 per second. A period that is a multiple of a tick,
/// such as 50 ms, always ends at the same moment of a tick. Threads that run at that moment get too many samples: of
/// six busy programs on two CPUs, some got 0.6 and some 1.2 of their expected samples. With a period that is one
/// thousandth shorter, the moment moves through a whole tick within seconds.
fn period_ns(frequency_hz: u32) -> u64 {
    let nominal_ns = 1_000_000_000 / u64::from(frequency_hz);
    nominal_ns - nominal_ns / 1021
}

fn authorization(token: &str) -> Result<MetadataValue<Ascii>, ConfigError> {
    let is_visible = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
    let value = MetadataValue::try_from(format!("Bearer {token}"));
    let mut value: MetadataValue<Ascii> = value.ok().filter(|_| is_visible).ok_or(ConfigError::Token)?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> Config {
        let endpoint = "http://127.0.0.1:4317".to_owned();
        Config {
            endpoint,
            frequency_hz: 20,
            off_cpu: false,
            java_parameters: false,
            environment_variables: Vec::new(),
            token: None,
            compression: Compression::Gzip,
            spool: None,
        }
    }

    #[test]
    fn the_period_is_a_thousandth_below_the_nominal_one() {
        for frequency_hz in 1..=FREQUENCY_HZ_MAX {
            let period_ns = Config { frequency_hz, ..config() }.check().unwrap().sampling.period_ns;
            let real_hz = 1e9 / period_ns as f64;
            assert!((real_hz / f64::from(frequency_hz) - 1.0).abs() < 0.001, "{frequency_hz} {real_hz}");
        }
    }

    #[test]
    fn samples_are_distributed_evenly_over_a_scheduler_tick() {
        for frequency_hz in [10, 19, 20, 49, 50, 97, 99, 100, 250, 500, 997, 1000] {
            let period_ns = period_ns(frequency_hz);
            for tick_ns in [1_000_000, 3_333_333, 4_000_000, 10_000_000] {
                let mut parts = [0_u64; 8];
                let samples = 60 * u64::from(frequency_hz);
                for sample in 0..samples {
                    let moment_ns = sample * period_ns % tick_ns;
                    parts[usize::try_from(moment_ns * 8 / tick_ns).unwrap()] += 1;
                }
                let least = samples * 3 / 4 / 8;
                let most = samples * 5 / 4 / 8 + 1;
                let is_even = parts.iter().all(|part| (least..=most).contains(part));
                assert!(is_even, "{frequency_hz} Hz, tick {tick_ns}: {parts:?}");
            }
        }
    }

    #[test]
    fn an_invalid_config_is_refused_with_a_reason() {
        let message = |config: Config| config.check().unwrap_err().to_string();
        for frequency_hz in [0, FREQUENCY_HZ_MAX + 1] {
            assert!(message(Config { frequency_hz, ..config() }).contains("from 1 to 1000"));
        }
        for endpoint in
            ["", "host:4317", "ftp://host:1", "http://", "http://host", "unix:/run/x", "http://host:99999999"]
        {
            let text = message(Config { endpoint: endpoint.into(), ..config() });
            assert!(text.contains("http://host:port"), "{endpoint}: {text}");
        }
        let many: Vec<_> = (0..=ENVIRONMENT_VARIABLES_MAX).map(|number| format!("V{number}")).collect();
        for names in [vec![String::new()], vec!["A".to_owned(), "A=B".to_owned()], vec!["x".repeat(65)], many] {
            let last = names.last().unwrap().clone();
            let text = message(Config { environment_variables: names, ..config() });
            assert!(text.contains(&format!("{last:?} cannot be used")), "{text}");
        }
        assert!(message(Config { endpoint: "https://host:4317".into(), ..config() }).contains("TLS"));
        for token in ["", "a b", "a\nb", "ä"] {
            assert!(message(Config { token: Some(Token::new(token)), ..config() }).contains("visible ASCII"));
        }
    }

    #[test]
    fn no_debug_output_shows_the_token() {
        let config = Config { token: Some(Token::new("s3cret")), ..config() };
        let checked = config.check().unwrap();
        assert!(!format!("{config:?} {checked:?}").contains("s3cret"));
    }

    #[test]
    fn clones_share_a_replaced_token_and_invalid_ones_are_refused() {
        let token = Token::new("old");
        let clone = token.clone();
        assert!(token.replace("new").unwrap() && !token.replace("new").unwrap());
        assert_eq!(clone.authorization().unwrap(), "Bearer new");
        assert!(matches!(token.replace("a b"), Err(ConfigError::Token)));
        assert_eq!(clone.authorization().unwrap(), "Bearer new");
    }
}
