//! Entries of functions in a symbol table. An entry takes the place of a function name in the symcache.
//!
//! A function with a name is `function [NUL system_name NUL start_line]`. The part in brackets is present only if the
//! mangled name or the start line adds information.
//!
//! A function without a name is U+001F and the hexadecimal address of its start.

/// First character of the entry of a function of which only the start is known. No compiler writes it in a name.
const ONLY_START: char = '\u{1f}';

/// Returns the entry of a function of which only the start is known. `start` is a virtual address.
pub(crate) fn of_start(start: u64) -> String {
    format!("{ONLY_START}{start:x}")
}

/// Parses an entry that [`of_start`] made. `None` for any other entry.
pub(crate) fn only_start(table_name: &str) -> Option<u64> {
    u64::from_str_radix(table_name.strip_prefix(ONLY_START)?, 16).ok()
}

/// Splits the entry of a function with a name into function, system name, and start line or 0.
pub(crate) fn parts(table_name: &str) -> (&str, &str, u32) {
    let mut parts = table_name.split('\0');
    let function = parts.next().unwrap_or_default();
    let system_name = parts.next().filter(|name| !name.is_empty()).unwrap_or(function);
    (function, system_name, parts.next().and_then(|line| line.parse().ok()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_of_a_function_without_a_name_is_read_back() {
        for start in [0, 0x29_c2a0, u64::MAX] {
            assert_eq!(only_start(&of_start(start)), Some(start));
        }
        for name in ["main", "", "29c2a0", "\u{1f}", "\u{1f}main", "\u{1f}11112222333344445"] {
            assert_eq!(only_start(name), None, "{name:?}");
        }
    }
}
