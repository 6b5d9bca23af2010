//! Safe output of names and label values, which may contain escape sequences and bidirectional control characters.

/// Replaces every character that could control the terminal with U+FFFD: control characters, including line breaks, and
/// all bidirectional control characters. The web UI does the same.
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
    fn characters_that_control_a_terminal_are_replaced() {
        assert_eq!(
            printable("a\u{1b}[31mred\n\u{7f}\u{9b}\u{202e}z"),
            "a\u{fffd}[31mred\u{fffd}\u{fffd}\u{fffd}\u{fffd}z"
        );
        assert_eq!(printable("std::vec<größe, 大>"), "std::vec<größe, 大>");
    }
}
