//! Resource attributes from the environment of a process: `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`, and
//! variables that the operator of the agent allows by name. Nothing else of an environment is used.
//!
//! /proc/<pid>/environ is a sequence of `NAME=value`, each with a terminating NUL. `OTEL_RESOURCE_ATTRIBUTES` is a list
//! of `key=value`, separated by commas, with percent-encoded values, as the OpenTelemetry resource SDK specifies it.
//!
//! Invariant: keys are unique, and sizes are bounded. Attributes beyond the limits are omitted, beginning with those
//! that do not describe the service. So a process cannot set so many attributes that a receiver refuses its profiles.

use proto::limits::SERIES_LABELS_MAX;

/// Largest number of bytes that are read from one environment. Linux allows megabytes.
pub(crate) const ENVIRON_BYTES_MAX: u64 = 256 << 10;
/// Number of labels of a series besides these attributes: host, name and path of the program, container, pod, unit,
/// service name, profile type, and the scope's name and version.
const OTHER_LABELS: usize = 10;
/// Largest number of attributes that are taken from one process: from its environment, and from what it publishes.
pub(crate) const ATTRIBUTES_MAX: usize = SERIES_LABELS_MAX - OTHER_LABELS;
/// Longest key, in bytes.
const KEY_BYTES_MAX: usize = 128;
/// Longest value, in bytes.
const VALUE_BYTES_MAX: usize = 1024;

const SERVICE_NAME: &str = "service.name";

/// Returns the resource attributes of an environment: attributes of the service first, then the `allowed` variables,
/// then all others in the order of the environment. `OTEL_SERVICE_NAME` takes precedence for `service.name`.
pub(crate) fn resource_attributes(environ: &[u8], allowed: &[String]) -> Vec<(String, String)> {
    let variable = |name: &str| {
        environ.split(|&byte| byte == 0).find_map(|entry| {
            let value = entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
            std::str::from_utf8(value).ok()
        })
    };
    let mut attributes: Vec<(String, String)> = Vec::new();
    if let Some(name) = variable("OTEL_SERVICE_NAME").map(str::trim).filter(|name| fits(SERVICE_NAME, name)) {
        attributes.push((SERVICE_NAME.to_owned(), name.to_owned()));
    }
    let pairs = variable("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default().split(',').filter_map(|pair| {
        let (key, value) = pair.split_once('=')?;
        Some((key.trim(), value.trim()))
    });
    let is_of_service = |key: &str| key.starts_with("service.");
    let mut add = |key: &str, value: Option<String>| {
        let fits = attributes.len() < ATTRIBUTES_MAX && attributes.iter().all(|(known, _)| known != key);
        if let Some(value) = value.filter(|value| fits && self::fits(key, value)) {
            attributes.push((key.to_owned(), value));
        }
    };
    pairs.clone().filter(|(key, _)| is_of_service(key)).for_each(|(key, value)| add(key, percent_decoded(value)));
    for name in allowed {
        add(&format!("process.environment_variable.{name}"), variable(name).map(str::to_owned));
    }
    pairs.filter(|(key, _)| !is_of_service(key)).for_each(|(key, value)| add(key, percent_decoded(value)));
    attributes
}

/// True if the key and the value of an attribute are neither empty nor too long.
pub(crate) fn fits(key: &str, value: &str) -> bool {
    (1..=KEY_BYTES_MAX).contains(&key.len()) && (1..=VALUE_BYTES_MAX).contains(&value.len())
}

/// Decodes percent-encoding. Returns `None` if the bytes are not UTF-8, or if a `%` is not followed by two digits.
fn percent_decoded(text: &str) -> Option<String> {
    if !text.contains('%') {
        return Some(text.to_owned());
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes().iter();
    while let Some(&byte) = rest.next() {
        if byte == b'%' {
            let mut digit = || rest.next().and_then(|&digit| (digit as char).to_digit(16));
            bytes.push(u8::try_from(digit()? * 16 + digit()?).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(environ: &str, expected: &[(&str, &str)]) {
        let found = resource_attributes(environ.replace('|', "\0").as_bytes(), &[]);
        let found: Vec<_> = found.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        assert_eq!(found, expected, "{environ}");
    }

    #[test]
    fn the_service_name_variable_takes_precedence_over_the_attribute() {
        check(
            "PATH=/bin|OTEL_RESOURCE_ATTRIBUTES=service.name=b,deployment.environment.name=prod|OTEL_SERVICE_NAME=a|",
            &[("service.name", "a"), ("deployment.environment.name", "prod")],
        );
        check("OTEL_RESOURCE_ATTRIBUTES=service.name=b|", &[("service.name", "b")]);
        check("OTEL_SERVICE_NAME=|OTEL_RESOURCE_ATTRIBUTES=service.name=b|", &[("service.name", "b")]);
    }

    #[test]
    fn other_variables_and_longer_names_are_not_read() {
        check("SERVICE_NAME=a|XOTEL_SERVICE_NAME=b|OTEL_SERVICE_NAME_X=c|OTEL_SERVICE_NAME|", &[]);
        check("", &[]);
    }

    #[test]
    fn only_allowed_variables_become_attributes() {
        let allowed = ["REGION", "EMPTY", "ABSENT", "NOT_TEXT"].map(str::to_owned);
        let many: Vec<_> = (0..1000).map(|index| format!("k{index}=v")).collect();
        let environ =
            format!("REGION_2=x\0REGION=eu%20\0SECRET=y\0EMPTY=\0OTEL_RESOURCE_ATTRIBUTES={}\0", many.join(","));
        let environ = [environ.as_bytes(), b"NOT_TEXT=\xff\0"].concat();
        let attributes = resource_attributes(&environ, &allowed);
        let region = ("process.environment_variable.REGION".to_owned(), "eu%20".to_owned());
        assert_eq!((&attributes[0], &*attributes[1].0, attributes.len()), (&region, "k0", ATTRIBUTES_MAX));
    }

    #[test]
    fn values_are_percent_decoded_and_bad_pairs_are_skipped() {
        check(
            "OTEL_RESOURCE_ATTRIBUTES= a = x%20y%2C%C3%A9 ,=v,k=,nothing,b=%zz,c=%,d=%ff,a=again,e==|",
            &[("a", "x y,é"), ("e", "=")],
        );
    }

    #[test]
    fn sizes_are_bounded() {
        let many: Vec<_> = (0..1000).map(|index| format!("k{index}=v")).collect();
        let environ = format!("OTEL_RESOURCE_ATTRIBUTES={},service.version=7", many.join(","));
        let attributes = resource_attributes(environ.as_bytes(), &[]);
        assert_eq!(attributes.len(), ATTRIBUTES_MAX);
        assert_eq!([&*attributes[0].0, &*attributes[1].0], ["service.version", "k0"]);
        let long = format!("OTEL_RESOURCE_ATTRIBUTES={}=a,b={},c=d", "k".repeat(129), "v".repeat(1025));
        assert_eq!(resource_attributes(long.as_bytes(), &[]), [("c".to_owned(), "d".to_owned())]);
    }

    #[test]
    fn values_that_are_not_text_are_skipped() {
        assert_eq!(resource_attributes(b"OTEL_SERVICE_NAME=\xff\0OTEL_RESOURCE_ATTRIBUTES=a=b\0", &[]).len(), 1);
    }
}
