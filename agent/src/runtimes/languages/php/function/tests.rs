//! Function objects that are written into a file in place of a process's memory. `VARVE_DAMAGE_CASES` is the number of
//! damaged ones, and `VARVE_UNWIND_SEED` chooses them.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::time::Duration;

use proptest::prelude::*;
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::SeedableRng as _;
use testkit::cost::Limit;
use testkit::report;

use super::*;
use crate::runtimes::languages::php::layout::{Version, layout_of};
use crate::unwind::tests::damage::{self, below, number};

// Addresses of the objects, in files that stand for memory.
const FUNCTION: u64 = 4096;
const CLASS_OBJECT: u64 = 4608;
const FUNCTION_NAME: u64 = 8192;
const CLASS_TEXT: u64 = 16_384;
const FILE_NAME: u64 = 24_576;

/// A function in memory, as PHP lays it out.
struct Written {
    /// True for a function that is written in C.
    is_internal: bool,
    class: Option<Vec<u8>>,
    name: Option<Vec<u8>>,
    file: Vec<u8>,
    first_line: u32,
    /// Type of the function in its object.
    kind: u8,
}

impl Default for Written {
    fn default() -> Self {
        let name = Some(b"method".to_vec());
        let class = Some(b"Space\\Class".to_vec());
        Self { is_internal: false, class, name, file: b"/file.php".to_vec(), first_line: 7, kind: 2 }
    }
}

fn put(file: &File, at: u64, bytes: &[u8]) {
    file.write_all_at(bytes, at).unwrap();
}

/// Writes a string: its count, its type, its hash, its length, and its bytes with a zero byte at the end.
fn put_text(file: &File, at: u64, text: &[u8]) {
    put(file, at, &1_u32.to_ne_bytes());
    put(file, at + 4, &0x0116_u32.to_ne_bytes());
    put(file, at + 8, &[0x5a; 8]);
    put(file, at + 16, &(text.len() as u64).to_ne_bytes());
    put(file, at + 24, &[text, b"\0"].concat());
}

impl Written {
    /// Returns a file that stands for the memory with the function.
    fn file(&self, layout: &Layout) -> File {
        let file = tempfile::tempfile().unwrap();
        put(&file, 32_768, &[0]);
        put(&file, FUNCTION, &[self.kind]);
        if let Some(name) = &self.name {
            put(&file, FUNCTION + 8, &FUNCTION_NAME.to_ne_bytes());
            put_text(&file, FUNCTION_NAME, name);
        }
        if let Some(class) = &self.class {
            put(&file, FUNCTION + 16, &CLASS_OBJECT.to_ne_bytes());
            put(&file, CLASS_OBJECT, &[2]);
            put(&file, CLASS_OBJECT + 8, &CLASS_TEXT.to_ne_bytes());
            put_text(&file, CLASS_TEXT, class);
        }
        if self.is_internal {
            put(&file, FUNCTION + u64::from(layout.handler), &0x1234_5678_u64.to_ne_bytes());
            return file;
        }
        put(&file, FUNCTION + u64::from(layout.count), &12_u32.to_ne_bytes());
        put(&file, FUNCTION + u64::from(layout.instructions), &0x8765_4320_u64.to_ne_bytes());
        put(&file, FUNCTION + u64::from(layout.file), &FILE_NAME.to_ne_bytes());
        put(&file, FUNCTION + u64::from(layout.file) + 8, &self.first_line.to_ne_bytes());
        put_text(&file, FILE_NAME, &self.file);
        file
    }
}

fn read(file: &File, layout: &Layout, form: u64) -> Option<Call> {
    let memory = ProcessMemory::of_file(file.try_clone().unwrap());
    let identity = identity_of(&memory, layout, FUNCTION | form, Text::Read)?;
    assert_eq!(Function::read(&memory, layout, FUNCTION | form, identity ^ 2), None);
    Some(Function::read(&memory, layout, FUNCTION | form, identity)?.call(0))
}

fn layouts() -> Vec<Layout> {
    let versions = [(7, 3), (7, 4), (8, 0), (8, 1), (8, 2), (8, 3), (8, 4), (8, 5)];
    versions.into_iter().map(|(major, minor)| layout_of(Version { major, minor }).unwrap()).collect()
}

#[test]
fn each_form_of_code_has_its_name() {
    for layout in layouts() {
        let call = |written: Written, form| {
            let call = read(&written.file(&layout), &layout, form).unwrap();
            (call.function, call.file, call.line, call.start_line)
        };
        let code = || Written { name: None, class: None, ..Written::default() };
        let file = || "/file.php".to_owned();
        assert_eq!(call(Written::default(), 0), ("Space\\Class::method".to_owned(), file(), 7, 7));
        assert_eq!(call(Written { class: None, ..Written::default() }, 0), ("method".to_owned(), file(), 7, 7));
        assert_eq!(call(code(), 1), ("{include}".to_owned(), file(), 7, 7));
        assert_eq!(call(Written { kind: 4, ..code() }, 1), ("{eval}".to_owned(), file(), 7, 7));
        assert_eq!(call(code(), 3), ("{main}".to_owned(), file(), 7, 7));
        let internal = Written { is_internal: true, kind: 1, ..Written::default() };
        assert_eq!(call(internal, 2), ("Space\\Class::method".to_owned(), String::new(), 0, 0));
        let anonymous = Written { class: Some(b"class@anonymous\0/file.php:3$0".to_vec()), ..Written::default() };
        assert_eq!(call(anonymous, 0).0, "class@anonymous::method");
        for form in 4..8 {
            assert_eq!(read(&Written::default().file(&layout), &layout, form), None);
        }
    }
    for (major, minor) in [(7, 2), (8, 6), (9, 0), (5, 6)] {
        assert_eq!(layout_of(Version { major, minor }), None);
    }
}

#[test]
fn a_function_is_found_if_bpf_could_not_read_its_name() {
    for layout in layouts() {
        let memory = ProcessMemory::of_file(Written::default().file(&layout));
        let of = |text| identity_of(&memory, &layout, FUNCTION, text).unwrap();
        assert_ne!(of(Text::Read), of(Text::Unread));
        let calls = [Text::Read, Text::Unread].map(|text| Function::read(&memory, &layout, FUNCTION, of(text)));
        assert!(calls[0].is_some() && calls[0] == calls[1], "{calls:?}");
    }
}

#[test]
fn a_function_whose_name_was_freed_is_gone() {
    for layout in layouts() {
        let closure = || Written { name: Some(b"{closure}".to_vec()), ..Written::default() };
        let file = closure().file(&layout);
        let memory = ProcessMemory::of_file(file.try_clone().unwrap());
        let identity = identity_of(&memory, &layout, FUNCTION, Text::Read).unwrap();
        assert!(Function::read(&memory, &layout, FUNCTION, identity).is_some());
        // The object and its words are as before, but another string has the memory of the name.
        for other in [&b"ru_oublock"[..], b"{another}", b"{closure"] {
            put_text(&file, FUNCTION_NAME, other);
            assert_eq!(Function::read(&memory, &layout, FUNCTION, identity), None);
        }
    }
}

proptest! {
    #[test]
    fn any_function_is_read_as_it_was_written(
        class in "[^\0]{0,200}",
        name in "[^\0]{0,600}",
        path in "[ -~]{0,600}|[^\0]{0,300}",
        first_line in 1_u32..,
        version in 0_usize..8,
    ) {
        let layout = layouts()[version];
        let written = Written {
            class: Some(class.clone().into_bytes()),
            name: Some(name.clone().into_bytes()),
            file: path.clone().into_bytes(),
            first_line,
            ..Written::default()
        };
        let call = read(&written.file(&layout), &layout, 0).unwrap();
        let whole = format!("{class}::{name}");
        prop_assert!(whole.starts_with(&call.function) || NAME_BYTES_MAX < whole.len());
        prop_assert!((whole.len() <= NAME_BYTES_MAX) == (call.function == whole));
        prop_assert!((path.len() <= NAME_BYTES_MAX) == (call.file == path));
        prop_assert!(call.function.len() <= NAME_BYTES_MAX && call.file.len() <= NAME_BYTES_MAX);
        prop_assert_eq!(call.start_line, first_line);
    }
}

#[test]
fn damaged_functions_are_read_in_bounded_memory_or_refused() {
    let (cases, seed) = (number("VARVE_DAMAGE_CASES", 20_000), number("VARVE_UNWIND_SEED", 1));
    let mut random = SplitMix64::seed_from_u64(seed);
    let layouts = layouts();
    let files: Vec<File> = layouts.iter().map(|layout| Written::default().file(layout)).collect();
    files.iter().for_each(|file| file.set_len(damage::MEMORY_BYTES).unwrap());
    let mut limit = Limit::new(Duration::from_millis(20), 8 * NAME_BYTES_MAX + (64 << 10));
    let mut found = 0;
    for case in 0..cases {
        let at = below(&mut random, layouts.len());
        let (layout, file) = (&layouts[at], &files[at]);
        let mut damaged = Vec::new();
        for _ in 0..=below(&mut random, 4) {
            // Most damage hits a field of an object.
            let objects = [FUNCTION, CLASS_OBJECT, FUNCTION_NAME, CLASS_TEXT, FILE_NAME];
            let (object, field) = (objects[below(&mut random, objects.len())], below(&mut random, 184) as u64);
            let mut byte = [0];
            file.read_exact_at(&mut byte, object + field).unwrap();
            damaged.push((object + field, byte));
            put(file, object + field, &[below(&mut random, 256) as u8]);
        }
        let kind = below(&mut random, 8) as u64;
        if let Some(call) =
            limit.check(format_args!("VARVE_UNWIND_SEED={seed}, case {case}"), || read(file, layout, kind))
        {
            assert!(call.function.len() <= NAME_BYTES_MAX && call.file.len() <= NAME_BYTES_MAX, "seed {seed}");
            found += 1;
        }
        for (at, byte) in damaged.into_iter().rev() {
            put(file, at, &byte);
        }
    }
    assert!(cases / 10 < found && found < cases, "{found} of {cases} were read");
    report::note(&format!("{cases} damaged functions of PHP: {found} are read, {limit}"));
}

#[test]
fn functions_of_the_program_are_copied_and_those_in_c_are_not() {
    let kinds: Vec<Option<u64>> = (0..5).map(|form| Function::copied_kind(0x1000 | form)).collect();
    assert_eq!(kinds, [Some(0), Some(1), None, Some(3), None]);
}
