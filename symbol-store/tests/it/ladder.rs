//! Tests of the sources of names, from DWARF to exported symbols. Each source must give names, and only to the file to
//! which it belongs.

use std::fs::{self, File};
use std::path::Path;

use proto::TenantId;
use symbol_store::{Address, ObjectKey, Reason, Source};
use testkit::workshop::{NESTED, have};

use crate::workshop::{PATIENCE, StoreWorkshop, gnu_build_id, image, names, symbolize};

/// Makes the stripped program `nested` and its debug file `nested.debug`, as distributions do.
fn split(workshop: &StoreWorkshop) {
    workshop.write("nested.c", NESTED);
    workshop.run("gcc -g -O2 nested.c -o nested");
    workshop.run("cp nested whole");
    workshop.run("objcopy --only-keep-debug nested nested.debug");
    workshop.run("strip nested");
    workshop.run("objcopy --add-gnu-debuglink=nested.debug nested");
}

/// Returns whether `hidden`, which only DWARF and `.symtab` have, is found with its line.
fn has_lines(workshop: &StoreWorkshop) -> Result<bool, Reason> {
    let path = workshop.path("nested");
    let address = workshop.address_of("whole", "hidden");
    let frames = symbolize(&workshop.host_store(), &gnu_build_id(&path), &path, address)?;
    Ok(&*frames[0].function == "hidden" && frames[0].file.ends_with("/nested.c") && frames[0].line > 0)
}

#[test]
fn dwarf_gives_functions_files_lines_and_inlined_calls() {
    if !have(&["gcc", "nm"]) {
        return;
    }
    let workshop = StoreWorkshop::new();
    let source = workshop.write("nested.c", NESTED);
    workshop.run("gcc -g -O2 nested.c -o nested");
    let store = workshop.store();
    let added = store.add_file(&TenantId::default_tenant(), &File::open(workshop.path("nested")).unwrap()).unwrap();
    assert_eq!((added.source, added.is_used), (Source::Dwarf, true));
    assert_eq!(added.build_id, gnu_build_id(&workshop.path("nested")));

    let outer = workshop.address_of("nested", "outer");
    let object = ObjectKey { tenant: &TenantId::default_tenant(), build_id: Some(&added.build_id), file: "" };
    let addresses: Vec<Address> = (outer..outer + 60).map(Address::Virtual).collect();
    let answers = store.symbolize(&object, &addresses, PATIENCE);
    let deepest = answers.iter().flatten().max_by_key(|frames| frames.len()).unwrap();
    let functions: Vec<&str> = deepest.iter().map(|frame| &*frame.function).collect();
    assert_eq!(functions, ["innermost", "middle", "outer"]);
    let line_of = |text: &str| 1 + NESTED.lines().position(|line| line.contains(text)).unwrap() as u32;
    let lines: Vec<u32> = deepest.iter().map(|frame| frame.line).collect();
    assert!(lines[0] == line_of("sink += x") || lines[0] == line_of("return x * 3"), "{lines:?}");
    assert!(lines[1] == line_of("innermost(x + 1)") || lines[1] == line_of("innermost(x * 2)"), "{lines:?}");
    assert_eq!(lines[2], line_of("sum += middle(i)"));
    assert_eq!(&*deepest[2].file, source.to_str().unwrap());
    assert_eq!(
        deepest.iter().map(|frame| frame.start_line).collect::<Vec<_>>(),
        [line_of("int innermost"), line_of("int middle"), line_of("int outer")]
    );

    // The file offsets of these addresses give the same frames.
    let offsets: Vec<Address> =
        (outer..outer + 60).map(|address| offset_of(&workshop.path("nested"), address)).collect();
    assert_eq!(store.symbolize(&object, &offsets, PATIENCE), answers);
    let outside = store.symbolize(&object, &[Address::Virtual(0x10), Address::FileOffset(1 << 40)], PATIENCE);
    assert_eq!(outside, [Err(Reason::AddressOutsideFile.into()), Err(Reason::AddressOutsideFile.into())]);
}

fn offset_of(path: &Path, address: u64) -> Address {
    let image = image(path);
    let segment = image.segments.iter().find(|part| (part.address..part.address + part.file_size).contains(&address));
    let segment = segment.unwrap();
    Address::FileOffset(address - segment.address + segment.offset)
}

#[test]
fn a_debug_file_is_found_by_build_id_and_by_debug_link() {
    if !have(&["gcc", "objcopy", "strip", "nm"]) {
        return;
    }
    let by_id = |workshop: &StoreWorkshop| {
        let id = gnu_build_id(&workshop.path("nested")).to_string();
        let hex = id.strip_prefix("gnu:").unwrap();
        format!("debug/.build-id/{}/{}.debug", &hex[..2], &hex[2..])
    };
    let places: [&dyn Fn(&StoreWorkshop) -> String; 4] =
        [&by_id, &|_| "nested.debug".to_owned(), &|_| ".debug/nested.debug".to_owned(), &|workshop| {
            format!("debug{}/nested.debug", workshop.path("").to_str().unwrap().trim_end_matches('/'))
        }];
    for place in places {
        let workshop = StoreWorkshop::new();
        split(&workshop);
        let debug_file = fs::read(workshop.path("nested.debug")).unwrap();
        fs::remove_file(workshop.path("nested.debug")).unwrap();
        assert_eq!(has_lines(&workshop), Err(Reason::Stripped), "without a debug file");
        workshop.write(&place(&workshop), &debug_file);
        assert_eq!(has_lines(&workshop), Ok(true), "{}", place(&workshop));
    }
}

#[test]
fn a_debug_file_of_another_build_or_another_checksum_is_not_used() {
    if !have(&["gcc", "objcopy", "strip", "nm"]) {
        return;
    }
    let workshop = StoreWorkshop::new();
    split(&workshop);
    let whole = fs::read(workshop.path("nested.debug")).unwrap();
    // The debug file has the right build ID, but it was changed after its checksum was written to the debug link.
    let mut longer = whole.clone();
    longer.push(0);
    workshop.write("nested.debug", &longer);
    assert_eq!(has_lines(&workshop), Err(Reason::Stripped));
    // The file at the path for the build ID belongs to another program, with one more function.
    workshop.write("other.c", format!("\n\n\n{NESTED}int more(void) {{ return 1; }}\n"));
    workshop.run("gcc -g -O2 other.c -o other");
    let id = gnu_build_id(&workshop.path("nested")).to_string();
    let hex = id.strip_prefix("gnu:").unwrap();
    let place = format!("debug/.build-id/{}/{}.debug", &hex[..2], &hex[2..]);
    workshop.write(&place, fs::read(workshop.path("other")).unwrap());
    assert_eq!(has_lines(&workshop), Err(Reason::Stripped));
    workshop.write("nested.debug", &whole);
    assert_eq!(has_lines(&workshop), Ok(true));
}

#[test]
fn a_debug_file_alone_is_enough() {
    if !have(&["gcc", "objcopy", "strip", "nm"]) {
        return;
    }
    let workshop = StoreWorkshop::new();
    split(&workshop);
    let id = gnu_build_id(&workshop.path("nested"));
    let address = workshop.address_of("whole", "outer");
    let store = workshop.store();
    let added =
        store.add_file(&TenantId::default_tenant(), &File::open(workshop.path("nested.debug")).unwrap()).unwrap();
    assert_eq!((added.build_id, added.source), (id.clone(), Source::Dwarf));
    let path = workshop.path("nested");
    assert_eq!(names(&store, &id, &path, address).unwrap().last().unwrap(), "outer");
    // The segments of a debug file have no file offsets, so file offsets cannot be converted.
    let object = ObjectKey { tenant: &TenantId::default_tenant(), build_id: Some(&id), file: "" };
    let offset = [offset_of(&path, address)];
    assert_eq!(store.symbolize(&object, &offset, PATIENCE), [Err(Reason::SegmentsUnknown.into())]);
    // An upload of the program with `.symtab` but without DWARF adds its segments. The better names of the debug file
    // stay.
    workshop.run("strip --strip-debug -o symbols whole");
    let added = store.add_file(&TenantId::default_tenant(), &File::open(workshop.path("symbols")).unwrap()).unwrap();
    assert_eq!((added.source, added.is_used), (Source::Symtab, false));
    let frames = store.symbolize(&object, &offset, PATIENCE).remove(0).unwrap();
    assert_eq!(&*frames.last().unwrap().function, "outer");
    assert!(frames[0].line > 0, "the lines of the debug file are kept");
}

#[test]
fn a_stripped_library_has_only_its_exported_symbols() {
    if !have(&["gcc", "strip", "nm"]) {
        return;
    }
    let workshop = StoreWorkshop::new();
    workshop.write("nested.c", NESTED);
    workshop.run("gcc -O2 -shared -fPIC nested.c -o whole");
    workshop.run("strip -o nested whole");
    let path = workshop.path("nested");
    let store = workshop.host_store();
    let id = gnu_build_id(&path);
    assert_eq!(names(&store, &id, &path, workshop.address_of("whole", "outer")).unwrap(), ["outer"]);
    let hidden = names(&store, &id, &path, workshop.address_of("whole", "hidden"));
    assert_eq!(hidden, Err(Reason::NoSymbolAtAddress { source_kind: Source::Dynsym }));
    assert!(hidden.unwrap_err().to_string().contains("varve upload"));
}

#[test]
fn mini_debug_info_as_fedora_makes_it_names_hidden_functions() {
    if !have(&["gcc", "objcopy", "strip", "nm", "xz", "sh"]) {
        return;
    }
    for check in ["crc64", "crc32", "sha256"] {
        let workshop = StoreWorkshop::new();
        workshop.write("nested.c", NESTED);
        workshop.run("gcc -O2 -shared -fPIC nested.c -o whole");
        // The commands of the GDB manual, "Debugging information in a special section".
        workshop.write(
            "mini.sh",
            format!(
                "set -e\n\
                 nm -D whole --format=posix --defined-only | awk '{{ print $1 }}' | sort > dynsyms\n\
                 nm whole --format=posix --defined-only | \
                 awk '{{ if ($2 == \"T\" || $2 == \"t\") print $1 }}' | sort > funcsyms\n\
                 comm -13 dynsyms funcsyms > keep_symbols\n\
                 objcopy --only-keep-debug whole debug_file\n\
                 objcopy -S --remove-section .gdb_index --remove-section .comment \
                 --keep-symbols=keep_symbols debug_file mini\n\
                 strip --strip-all -R .comment -o nested whole\n\
                 xz --check={check} mini\n\
                 objcopy --add-section .gnu_debugdata=mini.xz nested\n"
            ),
        );
        workshop.run("sh mini.sh");
        let path = workshop.path("nested");
        let store = workshop.host_store();
        let id = gnu_build_id(&path);
        assert_eq!(names(&store, &id, &path, workshop.address_of("whole", "hidden")).unwrap(), ["hidden"], "{check}");
        assert_eq!(names(&store, &id, &path, workshop.address_of("whole", "outer")).unwrap(), ["outer"], "{check}");
        let added =
            workshop.store_at("second").add_file(&TenantId::default_tenant(), &File::open(&path).unwrap()).unwrap();
        assert_eq!(added.source, Source::GnuDebugdata);
    }
}

#[test]
fn functions_without_dwarf_have_their_names_in_the_symbol_table() {
    if !have(&["gcc", "nm"]) {
        return;
    }
    let workshop = StoreWorkshop::new();
    workshop.write("nested.c", NESTED);
    workshop.write("without.c", "int without_lines(int x) { return x * x + 1; }\n");
    workshop.write(
        "assembly.s",
        ".text\n.globl sized\n.type sized, @function\nsized:\n nop\n nop\n ret\n.size sized, .-sized\n\
         .globl unsized\nunsized:\n nop\n nop\n ret\n.section .note.GNU-stack,\"\",@progbits\n",
    );
    workshop.run("gcc -c -O2 without.c");
    workshop.run("gcc -c assembly.s");
    workshop.run("gcc -g -O2 nested.c without.o assembly.o -o nested");
    let path = workshop.path("nested");
    let store = workshop.host_store();
    let id = gnu_build_id(&path);
    for (function, has_lines) in [("outer", true), ("without_lines", false), ("sized", false), ("unsized", false)] {
        let frames = symbolize(&store, &id, &path, workshop.address_of("nested", function) + 1).unwrap();
        let last = frames.last().unwrap();
        assert_eq!((&*last.function, last.line > 0), (function, has_lines));
    }
}

#[test]
fn a_symbol_inside_a_function_of_dwarf_is_ignored() {
    if !have(&["gcc", "nm"]) {
        return;
    }
    let workshop = StoreWorkshop::new();
    workshop.write(
        "holder.c",
        "int holder(int x) {\n\
         x *= 3;\n\
         __asm__ volatile(\"nop\\n.globl within\\n.type within, @function\\nwithin: nop\\n.size within, 1\\nnop\");\n\
         return x + 1;\n}\n\
         int main(int argc, char **argv) { (void)argv; return holder(argc); }\n",
    );
    workshop.run("gcc -g -O0 holder.c -o holder");
    let path = workshop.path("holder");
    let store = workshop.host_store();
    let id = gnu_build_id(&path);
    let within = workshop.address_of("holder", "within");
    for (address, line) in [(within - 1, 3), (within, 3), (within + 1, 3), (within + 2, 4)] {
        let frames = symbolize(&store, &id, &path, address).unwrap();
        assert_eq!((&*frames[0].function, frames[0].line), ("holder", line));
    }
}

#[test]
fn a_function_of_dwarf_outside_of_code_is_ignored() {
    if !have(&["gcc", "nm", "readelf"]) {
        return;
    }
    let workshop = StoreWorkshop::new();
    workshop.write("nested.c", NESTED);
    workshop.run("gcc -g -O0 nested.c -o nested");
    let outer = workshop.address_of("nested", "outer");
    let start = workshop.address_of("nested", "_start");
    let sections = workshop.run("readelf -SW nested");
    let text = sections.lines().find(|line| line.contains(" .text ")).unwrap();
    assert!(text.contains(&format!(" {start:016x} ")), "the code begins with _start: {text}");
    // Some linkers leave dropped functions in DWARF at low addresses. The test moves `outer` to an address shortly
    // before the code, so that it ends in the code of other functions.
    let mut bytes = fs::read(workshop.path("nested")).unwrap();
    let places: Vec<usize> = (0..bytes.len() - 8).filter(|at| bytes[*at..at + 8] == outer.to_le_bytes()).collect();
    // The address of `outer` is in `.symtab`, `.debug_info` and `.debug_line`. Only those in DWARF are changed.
    let symbol = places.iter().max().copied();
    for at in places.into_iter().filter(|at| Some(*at) != symbol) {
        bytes[at..at + 8].copy_from_slice(&(start - 8).to_le_bytes());
    }
    let path = workshop.write("moved", bytes);
    let store = workshop.host_store();
    let id = gnu_build_id(&path);
    assert_eq!(names(&store, &id, &path, start).unwrap(), ["_start"]);
    let frames = symbolize(&store, &id, &path, outer).unwrap();
    assert_eq!((&*frames[0].function, frames[0].line), ("outer", 0), "the symbol is right, its line is not known");
}

#[test]
fn cpp_and_rust_names_are_demangled_and_keep_the_linkers_name() {
    if !have(&["g++", "rustc", "nm", "strip"]) {
        return;
    }
    let workshop = StoreWorkshop::new();
    let parameters = "int, ".repeat(400);
    workshop.write(
        "names.cpp",
        format!(
            "namespace deep {{ template <typename... T> struct Pack {{}};\n\
             template <typename T> __attribute__((noinline)) int work(T) {{ static volatile int n; return n++; }}\n\
             namespace {{ __attribute__((noinline)) \
             int local(int x) {{ static volatile int n; return n += x; }} }} }}\n\
             int main(int argc, char **) {{\n\
             auto lambda = [](int x) __attribute__((noinline)) {{ static volatile int n; return n -= x; }};\n\
             return deep::work(deep::Pack<long>()) + deep::work(deep::Pack<{parameters}char>()) \
             + deep::local(argc) + lambda(argc); }}\n"
        ),
    );
    for flags in ["-g -O1", "-O1"] {
        workshop.run(&format!("g++ {flags} names.cpp -o names"));
        let path = workshop.path("names");
        let store = workshop.store_at(flags);
        let id = gnu_build_id(&path);
        store.add_file(&TenantId::default_tenant(), &File::open(&path).unwrap()).unwrap();
        let mut seen = Vec::new();
        for line in workshop.run("nm names").lines() {
            if let [address, "t" | "T" | "W", symbol] = line.split(' ').collect::<Vec<_>>()[..]
                && symbol.starts_with("_Z")
            {
                let frames = symbolize(&store, &id, &path, u64::from_str_radix(address, 16).unwrap()).unwrap();
                assert_eq!(&*frames[0].system_name, symbol, "{flags}");
                seen.push(frames[0].function.to_string());
            }
        }
        let long = format!("deep::work<deep::Pack<{parameters}char> >");
        for expected in ["deep::work<deep::Pack<long> >", "deep::(anonymous namespace)::local", &long] {
            assert!(seen.iter().any(|name| name == expected), "{flags}: {expected:.60} is not among {seen:.60?}");
        }
        assert!(seen.iter().any(|name| name.starts_with("main::") && name.ends_with("::operator()")), "{seen:.90?}");
    }

    let source = "mod deep { #[inline(never)] pub fn work<T: Copy>(x: T) -> T { std::hint::black_box(x) } }\n\
                  fn main() { deep::work(1u8); deep::work([1u64; 9]); }\n";
    workshop.write("names.rs", source);
    for mangling in ["legacy", "v0"] {
        let scheme = if mangling == "v0" { "-C symbol-mangling-version=v0" } else { "" };
        workshop.run(&format!("rustc -O -g {scheme} -C link-arg=-Wl,--build-id names.rs -o names_rs"));
        let path = workshop.path("names_rs");
        let store = workshop.store_at(mangling);
        let id = gnu_build_id(&path);
        store.add_file(&TenantId::default_tenant(), &File::open(&path).unwrap()).unwrap();
        let table = workshop.run("nm names_rs");
        let works: Vec<&str> = table.lines().filter(|line| line.contains("deep") && line.contains("work")).collect();
        assert_eq!(works.len(), 2);
        for line in works {
            let address = line.split(' ').next().unwrap();
            let symbol = line.split(' ').nth(2).unwrap();
            let frames = symbolize(&store, &id, &path, u64::from_str_radix(address, 16).unwrap()).unwrap();
            let last = frames.last().unwrap();
            assert!(
                last.function.starts_with("names::deep::work") && !last.function.contains("17h"),
                "{}",
                last.function
            );
            assert_eq!(&*last.system_name, symbol);
        }
    }
}

#[test]
fn a_go_program_has_names_and_lines_for_each_of_its_build_ids() {
    if !have(&["go", "nm"]) {
        return;
    }
    let workshop = StoreWorkshop::new();
    workshop.write(
        "main.go",
        "package main\n\n//go:noinline\nfunc hot(n int) int {\n\treturn n * n\n}\n\n\
         func main() {\n\tprintln(hot(3))\n}\n",
    );
    workshop.go_build("main.go", "main");
    let path = workshop.path("main");
    let image = image(&path);
    let store = workshop.host_store();
    let address = workshop.address_of("main", "main.hot");
    let htlhash = host_files::elf::htlhash(&File::open(&path).unwrap()).unwrap();
    let ids = [
        image.go_build_id.map(proto::BuildId::Go),
        image.gnu_build_id.map(proto::BuildId::Gnu),
        Some(proto::BuildId::Htlhash(htlhash)),
    ];
    for id in ids.iter().flatten() {
        let frames = symbolize(&store, id, &path, address).unwrap();
        assert_eq!((&*frames[0].function, frames[0].start_line), ("main.hot", 4), "{id}");
        assert!(frames[0].file.ends_with("main.go") && (4..=5).contains(&frames[0].line), "{:?}", frames[0]);
    }
    assert_eq!(fs::read_dir(workshop.path("store/host")).unwrap().count(), ids.iter().flatten().count());
}

#[test]
fn a_debug_file_that_dwz_compressed_has_names_and_lines() {
    if !have(&["gcc", "objcopy", "strip", "nm", "dwz"]) {
        return;
    }
    let workshop = StoreWorkshop::new();
    split(&workshop);
    // There must be two debug files with the same content, because dwz moves shared content to a third file.
    workshop.run("cp nested.debug other.debug");
    workshop.run("dwz -m shared.debug nested.debug other.debug");
    assert!(workshop.path("shared.debug").is_file());
    workshop.run("objcopy --remove-section .gnu_debuglink nested");
    workshop.run("objcopy --add-gnu-debuglink=nested.debug nested");
    assert_eq!(has_lines(&workshop), Ok(true));
}

#[test]
fn the_vdso_has_names() {
    if !have(&["nm"]) {
        return;
    }
    use std::os::unix::fs::FileExt as _;
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let range = maps.lines().find(|line| line.ends_with("[vdso]")).unwrap().split(' ').next().unwrap();
    let (start, end) = range.split_once('-').unwrap();
    let start = u64::from_str_radix(start, 16).unwrap();
    let end = u64::from_str_radix(end, 16).unwrap();
    let mut bytes = vec![0; (end - start) as usize];
    File::open("/proc/self/mem").unwrap().read_exact_at(&mut bytes, start).unwrap();

    let workshop = StoreWorkshop::new();
    let path = workshop.write("vdso", bytes);
    let symbols = workshop.run("nm -D vdso");
    let line = symbols.lines().find(|line| line.contains("clock_gettime")).unwrap();
    let address = u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap();
    let store = workshop.host_store();
    let found = names(&store, &gnu_build_id(&path), Path::new("[vdso]"), address).unwrap();
    assert!(found[0].contains("clock_gettime"), "{found:?}");
}
