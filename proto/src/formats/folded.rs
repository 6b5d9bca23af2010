//! Names of functions in the folded format, which has one line `root;...;leaf value` for each stack.

/// Replaces the characters of a name that have a meaning in the folded format. `;` becomes `:`. Line breaks and other
/// control characters become spaces.
#[must_use]
pub fn written(name: &str) -> String {
    let replaced = |c: char| match c {
        ';' => ':',
        '\u{2028}' | '\u{2029}' => ' ',
        // Some names contain a tab, such as those of kernel modules.
        c if c.is_control() && c != '\t' => ' ',
        c => c,
    };
    name.chars().map(replaced).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stays_one_field_of_one_line() {
        assert_eq!(written("a;b\nc\r\u{2028}d\te [f] 7"), "a:b c  d\te [f] 7");
    }
}
