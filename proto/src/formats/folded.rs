//! What a name looks like in folded stacks: lines `root;...;leaf value`.

/// `name`, with what would break the format replaced: `;` by `:`, line breaks and other control characters by spaces.
#[must_use]
pub fn written(name: &str) -> String {
    let replaced = |c: char| match c {
        ';' => ':',
        '\u{2028}' | '\u{2029}' => ' ',
        // A tab is part of some names, such as those of kernel modules.
        c if c.is_control() && c != '\t' => ' ',
        c => c,
    };
    name.chars().map(replaced).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_field_of_one_line() {
        assert_eq!(written("a;b\nc\r\u{2028}d\te [f] 7"), "a:b c  d\te [f] 7");
    }
}
