//! Names and label values come from outside: they may hold escape sequences, and marks that turn text around.

/// The text with everything that could disturb the terminal replaced by U+FFFD: control characters, line breaks
/// included, and bidirectional marks, embeddings, overrides and isolates. The web UI does the same.
pub(crate) fn printable(text: &str) -> String {
    let disturbs = |c: char| {
        let turns = matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        turns || c.is_control()
    };
    text.replace(disturbs, "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_disturb_a_terminal_is_replaced() {
        assert_eq!(
            printable("a\u{1b}[31mred\n\u{7f}\u{9b}\u{202e}z"),
            "a\u{fffd}[31mred\u{fffd}\u{fffd}\u{fffd}\u{fffd}z"
        );
        assert_eq!(printable("std::vec<größe, 大>"), "std::vec<größe, 大>");
    }
}
