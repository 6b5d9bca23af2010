//! Function names as they stand in a symbol table: demangled, bounded, with the mangled name and the start line behind:
//!
//! `function [NUL system_name NUL start_line]`, the bracket only if one of the two is known and says more.
//!
//! A function without a name has U+001F and the hexadecimal address of its start instead.
//!
//! Demangled names have neither parameters nor return types: that is what people search for, and it keeps a flame
//! graph readable. The full name can be had from the mangled one.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::{self, Write};

use symbolic_symcache::transform::{Function, SourceLocation, Transformer};

use crate::limits;

/// Ends a name that was cut.
const CUT: char = '…';

/// Begins the name of a function of which only the start is known; no compiler writes it.
const ONLY_START: char = '\u{1f}';

/// The names of one table; a function that is inlined in a thousand places is demangled once.
#[derive(Debug, Default)]
pub(super) struct Names {
    known: HashMap<String, String>,
}

impl Transformer for Names {
    fn transform_function<'f>(&'f mut self, mut function: Function<'f>) -> Function<'f> {
        if !self.known.contains_key(function.name.as_ref()) {
            self.known.insert(function.name.as_ref().to_owned(), table_name(&function.name));
        }
        if let Some(name) = self.known.get(function.name.as_ref()) {
            function.name = Cow::Borrowed(name);
        }
        function
    }

    fn transform_source_location<'f>(&'f mut self, mut location: SourceLocation<'f>) -> SourceLocation<'f> {
        let file = &mut location.file;
        for part in [Some(&mut file.name), file.directory.as_mut(), file.comp_dir.as_mut()].into_iter().flatten() {
            if part.len() > limits::PATH_BYTES_MAX {
                *part = Cow::Owned(cut(part, limits::PATH_BYTES_MAX));
            }
        }
        location
    }
}

/// What a function's name is given as, so that its start line comes through the converter.
pub(super) fn with_start_line(name: &str, start_line: u32) -> String {
    if start_line == 0 { name.to_owned() } else { format!("{name}\0{start_line}") }
}

/// What stands in the table for a name as [`with_start_line`] gives it.
fn table_name(given: &str) -> String {
    let (name, start_line) = given.split_once('\0').unwrap_or((given, ""));
    let plain = || cut(name, limits::NAME_BYTES_MAX);
    match demangle(name) {
        Some(demangled) => format!("{demangled}\0{}\0{start_line}", plain()),
        None if start_line.is_empty() => plain(),
        None => format!("{}\0\0{start_line}", plain()),
    }
}

/// The name in the table of a function of which only the start is known, a virtual address.
pub(super) fn of_start(start: u64) -> String {
    format!("{ONLY_START}{start:x}")
}

/// The start of a function that [`of_start`] named; `None` for any other name.
pub(crate) fn only_start(table_name: &str) -> Option<u64> {
    u64::from_str_radix(table_name.strip_prefix(ONLY_START)?, 16).ok()
}

/// Takes apart what [`table_name`] put together: function, system name, start line or 0.
pub(crate) fn parts(table_name: &str) -> (&str, &str, u32) {
    let mut parts = table_name.split('\0');
    let function = parts.next().unwrap_or_default();
    let system_name = parts.next().filter(|name| !name.is_empty()).unwrap_or(function);
    (function, system_name, parts.next().and_then(|line| line.parse().ok()).unwrap_or(0))
}

/// The name as written in C++ or Rust; `None` if it is not mangled.
fn demangle(name: &str) -> Option<String> {
    let mut text = Bounded { text: String::new(), bytes_max: limits::NAME_BYTES_MAX };
    let complete = if let Ok(rust) = rustc_demangle::try_demangle(name) {
        // The alternate form leaves the hash out.
        write!(text, "{rust:#}")
    } else if name.starts_with("_Z") {
        let options = cpp_demangle::DemangleOptions::new().no_params().no_return_type();
        let parsing = cpp_demangle::ParseOptions::default();
        let symbol = cpp_demangle::Symbol::new_with_options(name, &parsing).ok()?;
        symbol.structured_demangle(&mut text, &options)
    } else {
        return None;
    };
    let Bounded { mut text, bytes_max } = text;
    if complete.is_err() {
        // Either the text is full, or the demangler gave up midway: only the first is a name.
        if text.len() < bytes_max {
            return None;
        }
        text.push(CUT);
    }
    // What qualifies `this` belongs to the parameters; cpp_demangle leaves it out for all but lambdas.
    while let Some(kept) = [" const", " &", " &&"].iter().find_map(|end| text.strip_suffix(end)) {
        text.truncate(kept.len());
    }
    (!text.is_empty()).then_some(text)
}

/// At most `bytes_max` bytes of `text`, marked where it was cut.
fn cut(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    let mut kept = text.get(..text.floor_char_boundary(bytes_max)).unwrap_or_default().to_owned();
    kept.push(CUT);
    kept
}

/// Takes text until it is full, then fails, which stops a demangler that would go on for ever.
struct Bounded {
    text: String,
    bytes_max: usize,
}

impl Write for Bounded {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        let room = self.bytes_max.saturating_sub(self.text.len());
        if more.len() <= room {
            self.text.push_str(more);
            return Ok(());
        }
        self.text.push_str(more.get(..more.floor_char_boundary(room)).unwrap_or_default());
        // A character that did not fit must not look like room that is left.
        self.bytes_max = self.text.len();
        Err(fmt::Error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_demangled_without_parameters_and_keep_the_mangled_name() {
        for (mangled, expected) in [
            ("main", "main"),
            ("_ZN3foo3barEv", "foo::bar"),
            ("_ZN3foo3barIiEEvT_", "foo::bar<int>"),
            ("_ZZ4mainENKUliE_clEi", "main::{lambda(int)#1}::operator()"),
            ("_ZNKSt6vectorIiSaIiEEixEm", "std::vector<int, std::allocator<int> >::operator[]"),
            ("_ZNO3Foo3barEv", "Foo::bar"),
            ("_Z3foov.cold", "foo"),
            ("_ZN12_GLOBAL__N_13hotEi", "(anonymous namespace)::hot"),
            ("_ZN3std2io4Read11read_to_end17hb85a0f6802e14499E", "std::io::Read::read_to_end"),
            ("_RNvC6_123foo3bar", "123foo::bar"),
            ("_Znot_mangled_at_all", "_Znot_mangled_at_all"),
            ("main.main", "main.main"),
            ("", ""),
        ] {
            assert_eq!(parts(&table_name(mangled)), (expected, mangled, 0));
            assert_eq!(parts(&table_name(&with_start_line(mangled, 7))), (expected, mangled, 7));
        }
    }

    #[test]
    fn a_start_in_place_of_a_name_comes_back() {
        for start in [0, 0x29_c2a0, u64::MAX] {
            assert_eq!(only_start(&table_name(&of_start(start))), Some(start));
        }
        for name in ["main", "", "29c2a0", "\u{1f}", "\u{1f}main", "\u{1f}11112222333344445"] {
            assert_eq!(only_start(name), None, "{name:?}");
        }
    }

    #[test]
    fn a_name_that_would_be_endless_is_cut() {
        // Each substitution doubles the type before: 2^60 characters.
        let mut name = "_Z1fI1AS0_".to_owned();
        for _ in 0..60 {
            name.push_str("S_IS0_S0_E");
        }
        name.push_str("EvT_");
        for name in [name, format!("_ZN{}{}3barEv", 9_000, "x".repeat(9_000)), "x".repeat(100_000)] {
            let known = table_name(&name);
            assert!(known.len() <= 2 * (limits::NAME_BYTES_MAX + CUT.len_utf8()) + 2, "{}", known.len());
        }
        let long = table_name(&"x".repeat(100_000));
        assert_eq!(long.len(), limits::NAME_BYTES_MAX + CUT.len_utf8());
        assert!(long.ends_with(CUT));
        let template = format!("_Z{}{}IiEvT_", 17_000, "y".repeat(17_000));
        let known = table_name(&template);
        let (function, system_name, _) = parts(&known);
        assert_eq!(function.len(), limits::NAME_BYTES_MAX + CUT.len_utf8());
        assert_eq!(system_name.len(), limits::NAME_BYTES_MAX + CUT.len_utf8());
    }

    #[test]
    fn a_template_name_of_five_kilobytes_is_whole() {
        let name = format!("_Z5000{}IiEvT_", "t".repeat(5000));
        assert_eq!(parts(&table_name(&name)), (format!("{}<int>", "t".repeat(5000)).as_str(), name.as_str(), 0));
    }
}
