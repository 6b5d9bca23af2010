//! Recognition of formats that cannot be pushed, by their first bytes. The error then names the format and tells the
//! sender what to do.

use crate::ingest::request::{GZIP_MAGIC, ZSTD_MAGIC};

/// Number of bytes at the start of a body in which text formats are recognized.
const LOOKED_AT_BYTES: usize = 4096;

/// Number of bytes at the start of a body that are checked for control characters. A body with a control character
/// there is not text.
const TEXT_BYTES: usize = 64;

/// A known format that cannot be pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Foreign {
    /// Name of the format with an article, for example `a perf.data file`.
    pub(crate) name: &'static str,
    /// Advice for the sender.
    pub(crate) advice: &'static str,
}

const CONVERT: &str = "convert it to pprof first";

/// The format pprof, for errors of endpoints that expect OTLP.
pub(crate) const PPROF: Foreign =
    Foreign { name: "a pprof profile", advice: "send it to POST /api/v1/push?service_name=NAME on the HTTP port" };

/// The format OTLP, for errors of endpoints that expect pprof.
pub(crate) const OTLP: Foreign = Foreign {
    name: "an OTLP request",
    advice: "send it to POST /v1development/profiles on the OTLP port, with Content-Type: application/x-protobuf",
};

/// Formats that begin with fixed bytes. Each entry consists of these bytes and the format.
const MAGICS: [(&[u8], Foreign); 11] = [
    (b"FLR\0", Foreign { name: "a Java Flight Recorder (JFR) recording", advice: CONVERT }),
    (b"PERFILE2", Foreign { name: "a perf.data file", advice: CONVERT }),
    (b"Nettrace", Foreign { name: "a .NET trace (nettrace)", advice: CONVERT }),
    (
        b"\0\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0",
        Foreign { name: "a CPU profile of gperftools", advice: CONVERT_WITH_PPROF },
    ),
    (
        b"\x7fELF",
        Foreign {
            name: "an ELF file",
            advice: "a file with symbols goes to POST /api/v1/debuginfo, or use `varve upload`",
        },
    ),
    (b"PK\x03\x04", Foreign { name: "a zip archive", advice: "send each profile in it by itself" }),
    (
        &GZIP_MAGIC,
        Foreign { name: "compressed with gzip", advice: "say so with Content-Encoding: gzip, once for each time" },
    ),
    (&ZSTD_MAGIC, Foreign { name: "compressed with zstd", advice: "say so with Content-Encoding: zstd" }),
    (b"\xfd7zXZ\0", Foreign { name: "compressed with xz", advice: "compress with gzip or zstd, or not at all" }),
    (b"BZh", Foreign { name: "compressed with bzip2", advice: "compress with gzip or zstd, or not at all" }),
    (b"go 1.", Foreign { name: "a Go execution trace", advice: "profiles are at the other paths below /debug/pprof/" }),
];

const CONVERT_WITH_PPROF: &str = "convert it first: pprof -proto PROGRAM FILE";

/// JSON formats. Each entry consists of a key that occurs near the beginning, and the format. The last entry has an
/// empty key, and so matches any other JSON.
const JSONS: [(&[u8], Foreign); 5] = [
    (
        b"\"resourceProfiles\"",
        Foreign {
            name: "an OTLP request in JSON",
            advice: "send it to POST /v1development/profiles on the OTLP port, with Content-Type: application/json",
        },
    ),
    (b"speedscope", Foreign { name: "a speedscope file", advice: CONVERT }),
    (b"\"callFrame\"", Foreign { name: "a V8 CPU profile (.cpuprofile)", advice: CONVERT }),
    (b"\"traceEvents\"", Foreign { name: "a Chrome trace", advice: CONVERT }),
    (b"", Foreign { name: "JSON", advice: CONVERT }),
];

/// First bytes of profiles in text form, from Go's endpoints with `debug=1` or `debug=2` and from gperftools.
const TEXT_PROFILES: [&[u8]; 7] = [
    b"goroutine profile:",
    b"goroutine ",
    b"heap profile:",
    b"threadcreate profile:",
    b"--- mutex:",
    b"--- contention",
    b"--- heap",
];

/// Returns the format of a decompressed body, if it is a known format that cannot be pushed.
pub(crate) fn recognize(body: &[u8]) -> Option<Foreign> {
    if body.is_empty() {
        return Some(Foreign { name: "empty", advice: "check that the profile was read before it was sent" });
    }
    if let Some((_, found)) = MAGICS.iter().find(|(magic, _)| body.starts_with(magic)) {
        return Some(*found);
    }
    let start = body.get(..LOOKED_AT_BYTES).unwrap_or(body);
    if start.starts_with(b"--") && has(start, b"content-disposition:") {
        let advice = "send the pprof itself as the body, for example with curl --data-binary @FILE";
        return Some(Foreign { name: "a multipart form", advice });
    }
    // Protobuf may begin like text: the tag of field 1 is a line break, and the length after it may be a letter or a
    // brace.
    let is_control = |byte: &&u8| byte.is_ascii_control() && !byte.is_ascii_whitespace();
    if start.iter().take(TEXT_BYTES).any(|byte| is_control(&byte)) {
        return None;
    }
    text(start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start).trim_ascii_start())
}

/// Returns whether `bytes` contain `part`, in upper or lower case.
fn has(bytes: &[u8], part: &[u8]) -> bool {
    part.is_empty() || bytes.windows(part.len()).any(|window| window.eq_ignore_ascii_case(part))
}

/// Returns the text format of a body; `None` if it is not known. `start` is the beginning of the body, without leading
/// white space.
fn text(start: &[u8]) -> Option<Foreign> {
    let begins = |part: &[u8]| start.get(..part.len()).is_some_and(|start| start.eq_ignore_ascii_case(part));
    if start.first().is_some_and(|first| b"{[".contains(first)) {
        return JSONS.iter().find(|(key, _)| has(start, key)).map(|(_, found)| *found);
    }
    if begins(b"<!doctype") || begins(b"<html") || begins(b"<?xml") {
        return Some(Foreign {
            name: "a web page or XML",
            advice: "check the address that the profile was fetched from",
        });
    }
    if TEXT_PROFILES.iter().any(|title| start.starts_with(title)) {
        let advice = "fetch the profile without debug=1 or debug=2";
        return Some(Foreign { name: "a profile in its text form", advice });
    }
    is_folded(start).then_some(Foreign { name: "folded stacks", advice: CONVERT })
}

/// Returns whether the first line has the form `frame;frame;frame value`.
fn is_folded(start: &[u8]) -> bool {
    let line = start.split(|&byte| byte == b'\n').next().unwrap_or_default();
    let Ok(line) = str::from_utf8(line.trim_ascii_end()) else { return false };
    let has_value = |(stack, value): (&str, &str)| {
        !stack.is_empty() && !stack.contains(char::is_control) && value.bytes().all(|byte| byte.is_ascii_digit())
    };
    line.rsplit_once(' ').is_some_and(|parts| !parts.1.is_empty() && has_value(parts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_recognized_by_their_first_bytes() {
        let gperftools = [0_u64, 3, 0, 10_000, 0].map(u64::to_le_bytes).concat();
        for (body, name) in [
            (&b""[..], "empty"),
            (b"FLR\0\0\x02\0\x01", "a Java Flight Recorder (JFR) recording"),
            (b"PERFILE2\x68\0\0\0", "a perf.data file"),
            (&gperftools, "a CPU profile of gperftools"),
            (b"\x7fELF\x02\x01\x01", "an ELF file"),
            (b"PK\x03\x04\x14\0", "a zip archive"),
            (b" {\"a\": 1}", "JSON"),
            (b"[1]", "JSON"),
            (b"{\"$schema\":\"https://www.speedscope.app/file-format-schema.json\"", "a speedscope file"),
            (b"{\"nodes\":[{\"id\":1,\"callFrame\":{\"functionName\":\"(root)\"", "a V8 CPU profile (.cpuprofile)"),
            (b"{\"resourceProfiles\":[]}", "an OTLP request in JSON"),
            (b"\n<!DOCTYPE html><html>", "a web page or XML"),
            (b"--x\r\nContent-Disposition: form-data; name=\"profile\"\r\n\r\n", "a multipart form"),
            (b"goroutine profile: total 7\n1 @ 0x1", "a profile in its text form"),
            (b"heap profile: 1: 2 [3: 4] @ heap/1048576", "a profile in its text form"),
            (b"main;work;leaf 12\nmain 3\n", "folded stacks"),
            (b"std::vector<int, std::allocator<int> >::push_back 4", "folded stacks"),
        ] {
            assert_eq!(recognize(body).map(|found| found.name), Some(name), "{}", String::from_utf8_lossy(body));
        }
    }

    #[test]
    fn other_bytes_are_not_taken_for_a_format() {
        for body in [
            &b"\x0a\x04\x08\x01\x10\x02"[..],
            b"\xff\xff",
            b"not a profile",
            b"main;leaf",
            b" 12",
            b"\0",
            b"\n{\n\"\x08\x01",
        ] {
            assert_eq!(recognize(body), None, "{body:?}");
        }
    }
}
