//! Function names of a symbol table: they are demangled, and truncated to a limit.
//!
//! Demangled names have neither parameters nor return types, because people search for such short names, and a flame
//! graph stays readable. The mangled name with all information is stored beside them.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::{self, Write};

use symbolic_symcache::transform::{Function, SourceLocation, Transformer};

use crate::limits;

/// Last character of a truncated name.
const TRUNCATED: char = '…';

/// The demangled names of the functions of one table. They are cached, because a function may be inlined in a thousand
/// places.
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
                *part = Cow::Owned(truncate(part, limits::PATH_BYTES_MAX));
            }
        }
        location
    }
}

/// Appends the start line to a function name, because symbolic has no field for it.
pub(super) fn with_start_line(name: &str, start_line: u32) -> String {
    if start_line == 0 { name.to_owned() } else { format!("{name}\0{start_line}") }
}

/// Returns the [entry](crate::table::entry) in the symbol table for a name that [`with_start_line`] made.
fn table_name(name_and_line: &str) -> String {
    let (name, start_line) = name_and_line.split_once('\0').unwrap_or((name_and_line, ""));
    let plain = || truncate(name, limits::NAME_BYTES_MAX);
    match demangle(name) {
        Some(demangled) => format!("{demangled}\0{}\0{start_line}", plain()),
        None if start_line.is_empty() => plain(),
        None => format!("{}\0\0{start_line}", plain()),
    }
}

/// Demangles a C++ or Rust name. `None` if it is not mangled.
fn demangle(name: &str) -> Option<String> {
    let mut text = Bounded { text: String::new(), bytes_max: limits::NAME_BYTES_MAX };
    let complete = if let Ok(rust) = rustc_demangle::try_demangle(name) {
        // The alternate form (`#`) omits the hash at the end of a Rust name.
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
        // Either the text is full, or the demangler failed. Only a full text is the beginning of a name.
        if text.len() < bytes_max {
            return None;
        }
        text.push(TRUNCATED);
    }
    // Qualifiers of `this`, such as `const`, belong to the parameters. cpp_demangle omits them with the parameters,
    // except for lambdas.
    while let Some(kept) = [" const", " &", " &&"].iter().find_map(|end| text.strip_suffix(end)) {
        text.truncate(kept.len());
    }
    (!text.is_empty()).then_some(text)
}

/// Truncates `text` to at most `bytes_max` bytes. Appends [`TRUNCATED`] if a part was removed.
fn truncate(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    let mut kept = text.get(..text.floor_char_boundary(bytes_max)).unwrap_or_default().to_owned();
    kept.push(TRUNCATED);
    kept
}

/// A text of at most `bytes_max` bytes. A write that would make it longer fails, and so stops a demangler that would
/// never end.
struct Bounded {
    text: String,
    bytes_max: usize,
}

impl Write for Bounded {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        let left = self.bytes_max.saturating_sub(self.text.len());
        if more.len() <= left {
            self.text.push_str(more);
            return Ok(());
        }
        self.text.push_str(more.get(..more.floor_char_boundary(left)).unwrap_or_default());
        // The text is full, even if a character that did not fit leaves some bytes unused.
        self.bytes_max = self.text.len();
        Err(fmt::Error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::entry::{of_start, parts};

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
    fn the_entry_of_a_function_without_a_name_stays_as_it_is() {
        let entry = of_start(0x29_c2a0);
        assert_eq!(table_name(&entry), entry);
    }

    #[test]
    fn a_name_of_exponential_length_is_truncated() {
        // Each substitution doubles the length of the type, so the whole name would have 2^60 characters.
        let mut name = "_Z1fI1AS0_".to_owned();
        for _ in 0..60 {
            name.push_str("S_IS0_S0_E");
        }
        name.push_str("EvT_");
        for name in [name, format!("_ZN{}{}3barEv", 9_000, "x".repeat(9_000)), "x".repeat(100_000)] {
            let known = table_name(&name);
            assert!(known.len() <= 2 * (limits::NAME_BYTES_MAX + TRUNCATED.len_utf8()) + 2, "{}", known.len());
        }
        let long = table_name(&"x".repeat(100_000));
        assert_eq!(long.len(), limits::NAME_BYTES_MAX + TRUNCATED.len_utf8());
        assert!(long.ends_with(TRUNCATED));
        let template = format!("_Z{}{}IiEvT_", 17_000, "y".repeat(17_000));
        let known = table_name(&template);
        let (function, system_name, _) = parts(&known);
        assert_eq!(function.len(), limits::NAME_BYTES_MAX + TRUNCATED.len_utf8());
        assert_eq!(system_name.len(), limits::NAME_BYTES_MAX + TRUNCATED.len_utf8());
    }

    #[test]
    fn a_template_name_of_five_kilobytes_is_complete() {
        let name = format!("_Z5000{}IiEvT_", "t".repeat(5000));
        assert_eq!(parts(&table_name(&name)), (format!("{}<int>", "t".repeat(5000)).as_str(), name.as_str(), 0));
    }
}
