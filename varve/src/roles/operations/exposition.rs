//! The two formats of `/metrics`: Prometheus' text format 0.0.4, which is the default, and OpenMetrics 1.0.0.
//!
//! The registry writes OpenMetrics, which is converted to text 0.0.4. In OpenMetrics, a sample of the counter `x` is
//! named `x_total`, and its type and help lines have the name `x`. In the text format, all three are named `x_total`.
//! The text format has fewer types, and no units, end mark or exemplars.

/// A format of `/metrics`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Exposition {
    /// Prometheus' text format 0.0.4.
    Text,
    /// OpenMetrics 1.0.0.
    OpenMetrics,
}

impl Exposition {
    /// Returns the format that an `Accept` header prefers; by default the text format.
    pub(super) fn preferred(accept: &str) -> Self {
        let mut text = 0.0_f64;
        let mut open_metrics = 0.0_f64;
        for range in accept.split(',') {
            let mut parts = range.split(';').map(str::trim);
            let media_type = parts.next().unwrap_or_default().to_ascii_lowercase();
            let mut version = None;
            let mut quality = 1.0;
            for (name, value) in parts.filter_map(|parameter| parameter.split_once('=')) {
                match name.trim() {
                    "version" => version = Some(value.trim().trim_matches('"')),
                    "q" => quality = value.trim().parse().unwrap_or(0.0),
                    _ => {}
                }
            }
            match (media_type.as_str(), version) {
                ("application/openmetrics-text", None | Some("1.0.0")) => open_metrics = open_metrics.max(quality),
                ("text/plain", None | Some("0.0.4")) | ("text/*" | "*/*", _) => text = text.max(quality),
                _ => {}
            }
        }
        if open_metrics > 0.0 && open_metrics >= text { Self::OpenMetrics } else { Self::Text }
    }

    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// Converts an exposition from OpenMetrics to this format.
    pub(super) fn of_open_metrics(self, exposition: String) -> String {
        match self {
            Self::Text => text(&exposition),
            Self::OpenMetrics => exposition,
        }
    }
}

fn text(open_metrics: &str) -> String {
    let mut out = String::with_capacity(open_metrics.len() + open_metrics.len() / 8);
    let mut put = |parts: &[&str]| {
        parts.iter().for_each(|part| out.push_str(part));
        out.push('\n');
    };
    let mut help = "";
    let mut has_created = false;
    for line in open_metrics.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some("HELP"), Some(_), text) => help = text.unwrap_or_default(),
            (Some("#"), Some("TYPE"), Some(name), Some(kind)) => {
                let (suffix, kind_of_text) = match kind {
                    "counter" => ("_total", "counter"),
                    "info" => ("_info", "gauge"),
                    "stateset" => ("", "gauge"),
                    "unknown" => ("", "untyped"),
                    other => ("", other),
                };
                has_created = ["counter", "histogram", "summary"].contains(&kind);
                put(&["# HELP ", name, suffix, " ", help]);
                put(&["# TYPE ", name, suffix, " ", kind_of_text]);
            }
            (Some("#"), ..) => {}
            (Some(sample), ..) => {
                let name = sample.split('{').next().unwrap_or_default();
                if !(has_created && name.ends_with("_created")) {
                    put(&[without_exemplar(line)]);
                }
            }
            (None, ..) => {}
        }
    }
    out
}

/// Returns the line of a sample without its exemplar, which begins with the first `#` outside of label values.
fn without_exemplar(line: &str) -> &str {
    let mut is_quoted = false;
    let mut is_escaped = false;
    let exemplar = line.bytes().position(|byte| {
        let is_start = byte == b'#' && !is_quoted;
        is_quoted ^= byte == b'"' && !is_escaped;
        is_escaped = byte == b'\\' && !is_escaped;
        is_start
    });
    exemplar.and_then(|at| line.get(..at)).unwrap_or(line).trim_end()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accept_chooses_the_format_and_text_is_the_default() {
        for (accept, preferred) in [
            ("", Exposition::Text),
            ("*/*", Exposition::Text),
            ("text/html,application/xhtml+xml,*/*;q=0.8", Exposition::Text),
            ("application/openmetrics-text", Exposition::OpenMetrics),
            ("application/openmetrics-text; version=2.0.0", Exposition::Text),
            ("application/openmetrics-text;q=0,*/*;q=0.1", Exposition::Text),
            ("application/openmetrics-text;q=0.2,text/plain;q=0.3", Exposition::Text),
            ("application/openmetrics-text;q=nonsense", Exposition::Text),
            (
                "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,\
                 application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,\
                 text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
                Exposition::OpenMetrics,
            ),
        ] {
            assert_eq!(Exposition::preferred(accept), preferred, "{accept}");
        }
    }

    #[test]
    fn the_text_format_has_its_names_types_and_nothing_else() {
        let open_metrics = "# HELP a_seconds Time.\n# TYPE a_seconds counter\n# UNIT a_seconds seconds\n\
            a_seconds_total{x=\"# {\\\"\"} 1.5 # {id=\"7\"} 0.5\na_seconds_created{x=\"y\"} 3\n\
            # HELP b Build.\n# TYPE b info\nb_info{v=\"1\"} 1\n# HELP c Any.\n# TYPE c unknown\nc 2\n\
            # HELP d_created Kept.\n# TYPE d_created gauge\nd_created 4\n# EOF\n";
        let want = "# HELP a_seconds_total Time.\n# TYPE a_seconds_total counter\n\
            a_seconds_total{x=\"# {\\\"\"} 1.5\n\
            # HELP b_info Build.\n# TYPE b_info gauge\nb_info{v=\"1\"} 1\n# HELP c Any.\n# TYPE c untyped\nc 2\n\
            # HELP d_created Kept.\n# TYPE d_created gauge\nd_created 4\n";
        assert_eq!(Exposition::Text.of_open_metrics(open_metrics.to_owned()), want);
    }
}
