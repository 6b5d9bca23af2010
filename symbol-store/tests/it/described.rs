//! Tests of functions without names whose starts are in the call frame information of the file. An address in such a
//! function has no name, but the store must return the start of the function.

use std::fs::{self, File};
use std::path::Path;
use std::time::Duration;

use proto::{BuildId, TenantId};
use symbol_store::convert::Converter;
use symbol_store::{AddError, Address, Frame, Nameless, ObjectKey, Reason, Source, SymbolStore};
use testkit::workshop::{have, skip};

use crate::workshop::{PATIENCE, StoreWorkshop, gnu_build_id, image, names, open, until};

/// Hand-written functions in assembly. All but `silent` have CFI directives, as those of cryptography libraries do.
const ASSEMBLY: &str = "\
    .text\n\
    .p2align 4\n\
    .type block, @function\nblock:\n .cfi_startproc\n\
     .rept 90\n nop\n .endr\n ret\n .cfi_endproc\n.size block, .-block\n\
    .p2align 4\n\
    .type silent, @function\nsilent:\n .rept 20\n nop\n .endr\n ret\n.size silent, .-silent\n\
    .p2align 4\n\
    .type tail, @function\ntail:\n .cfi_startproc\n .rept 30\n nop\n .endr\n ret\n .cfi_endproc\n.size tail, .-tail\n\
    .globl exported\n.type exported, @function\n\
    exported:\n .cfi_startproc\n nop\n ret\n .cfi_endproc\n.size exported, .-exported\n\
    .section .note.GNU-stack,\"\",@progbits\n";

const C: &str = "#include <stdlib.h>\nint calls(void) { return rand(); }\nint main(void) { return calls(); }\n";

/// Builds the program or library `whole`, and its stripped copy `bare`.
fn build(workshop: &StoreWorkshop, flags: &str) {
    workshop.write("assembly.s", ASSEMBLY);
    workshop.write("calls.c", C);
    workshop.run(&format!("gcc -O1 {flags} assembly.s calls.c -o whole"));
    workshop.run("strip -o bare whole");
}

/// Returns the innermost function at each address, or the reason why the function has no name, and its start.
fn outcomes(store: &SymbolStore, path: &Path, addresses: &[u64]) -> Vec<Result<String, (Reason, Option<u64>)>> {
    let id = gnu_build_id(path);
    let object = ObjectKey { tenant: &TenantId::default_tenant(), build_id: Some(&id), file: path.to_str().unwrap() };
    let addresses: Vec<Address> = addresses.iter().copied().map(Address::Virtual).collect();
    let found = store.symbolize(&object, &addresses, PATIENCE).into_iter();
    let name = |frames: std::sync::Arc<[Frame]>| frames[0].function.to_string();
    found.map(|found| found.map(name).map_err(|nameless| (nameless.reason, nameless.function_start))).collect()
}

#[test]
fn every_address_of_a_nameless_function_has_its_start() {
    if !have(&["gcc", "strip", "nm"]) {
        return;
    }
    for (flags, why) in [
        ("-shared -fPIC", Reason::NoSymbolAtAddress { source_kind: Source::Dynsym }),
        ("-pie -fPIE", Reason::Stripped),
        ("-no-pie", Reason::Stripped),
    ] {
        let workshop = StoreWorkshop::new();
        build(&workshop, flags);
        let path = workshop.path("bare");
        let store = workshop.host_store();
        for (function, length) in [("block", 91), ("tail", 31)] {
            let start = workshop.address_of("whole", function);
            let addresses: Vec<u64> = (start..start + length).collect();
            let expected = vec![Err((why.clone(), Some(start))); addresses.len()];
            assert_eq!(outcomes(&store, &path, &addresses), expected, "{flags}: {function}");
        }
        let silent = workshop.address_of("whole", "silent") + 3;
        assert_eq!(outcomes(&store, &path, &[silent]), [Err((why.clone(), None))], "{flags}: nothing describes it");
        let is_library = flags.contains("-shared");
        let exported = outcomes(&store, &path, &[workshop.address_of("whole", "exported") + 1]).remove(0);
        assert_eq!(exported.ok(), is_library.then(|| "exported".to_owned()), "{flags}");
        // After the file with names is added, both functions have names.
        store.add_file(&TenantId::default_tenant(), &File::open(workshop.path("whole")).unwrap()).unwrap();
        let start = workshop.address_of("whole", "block");
        assert_eq!(outcomes(&store, &path, &[start + 50, silent]), [Ok("block".to_owned()), Ok("silent".to_owned())]);
    }
}

// Fails if each request begins another conversion because no earlier caller waited for the first one.
#[test]
fn a_table_without_names_is_made_once_even_if_nobody_waits() {
    if !have(&["gcc", "strip", "nm", "sh"]) {
        return;
    }
    let workshop = StoreWorkshop::new();
    build(&workshop, "-pie -fPIE");
    let started = workshop.path("started");
    let mut config = workshop.config(true);
    let script =
        format!("echo >> '{}' && sleep 1 && exec '{}' \"$@\"", started.display(), config.converter.program.display());
    config.converter =
        Converter { program: "/bin/sh".into(), arguments: vec!["-c".to_owned(), script, "sh".to_owned()] };
    let path = workshop.path("bare");
    let id = gnu_build_id(&path);
    let block = workshop.address_of("whole", "block");
    let store = open(config);
    let address = block + 50;
    let object = ObjectKey { tenant: &TenantId::default_tenant(), build_id: Some(&id), file: path.to_str().unwrap() };
    let mut found = Vec::new();
    let conversions = || fs::read(&started).unwrap_or_default().len();
    until("the response is final, or there is another conversion", || {
        found = store.symbolize(&object, &[Address::Virtual(address)], Duration::ZERO);
        found != [Err(Reason::Converting.into())] || conversions() > 1
    });
    assert_eq!(conversions(), 1);
    let described = Nameless { reason: Reason::Stripped, virtual_address: Some(address), function_start: Some(block) };
    assert_eq!(found, [Err(described)]);
}

// Fails if the store responds with the failed search for a better file, although it has a table.
#[test]
fn a_table_without_names_outlives_the_file() {
    if !have(&["gcc", "strip", "nm"]) {
        return;
    }
    let workshop = StoreWorkshop::new();
    build(&workshop, "-pie -fPIE");
    let path = workshop.path("bare");
    let id = gnu_build_id(&path);
    let block = workshop.address_of("whole", "block");
    let object = ObjectKey { tenant: &TenantId::default_tenant(), build_id: Some(&id), file: path.to_str().unwrap() };
    let address = block + 50;
    let described = Nameless { reason: Reason::Stripped, virtual_address: Some(address), function_start: Some(block) };
    let described = [Err(described)];
    let symbolize = |store: &SymbolStore, wait| store.symbolize(&object, &[Address::Virtual(address)], wait);
    assert_eq!(symbolize(&workshop.host_store(), PATIENCE), described);
    fs::remove_file(&path).unwrap();
    let mut config = workshop.config(true);
    config.limits.mapped_bytes_max = 0;
    let store = open(config);
    let mut found = Vec::new();
    until("the search has ended", || {
        found = symbolize(&store, Duration::ZERO);
        found != [Err(Reason::Converting.into())]
    });
    assert_eq!(found, described);
    // With a limit of 0 bytes, only one table stays in memory, so the table of another program evicts the first one.
    workshop.run("gcc calls.c -o other");
    assert!(outcomes(&store, &workshop.path("other"), &[workshop.address_of("other", "main")])[0].is_ok());
    assert_eq!(symbolize(&store, PATIENCE), described);
}

// Fails if the response has the file offset where it must have the virtual address.
#[test]
fn a_nameless_file_offset_has_its_virtual_address() {
    if !have(&["gcc", "strip", "nm"]) {
        return;
    }
    let workshop = StoreWorkshop::new();
    build(&workshop, "-no-pie");
    let path = workshop.path("bare");
    let id = gnu_build_id(&path);
    let address = workshop.address_of("whole", "silent") + 3;
    let code = image(&path).segments.into_iter().find(|segment| segment.executable).unwrap();
    let offset = address - code.address + code.offset;
    assert_ne!(offset, address);
    let object = ObjectKey { tenant: &TenantId::default_tenant(), build_id: Some(&id), file: path.to_str().unwrap() };
    let found = workshop.host_store().symbolize(&object, &[Address::FileOffset(offset)], PATIENCE);
    let expected = Nameless { reason: Reason::Stripped, virtual_address: Some(address), function_start: None };
    assert_eq!(found, [Err(expected)]);
}

#[test]
fn the_plt_is_one_function_with_a_name() {
    if !have(&["gcc", "strip", "nm", "readelf"]) {
        return;
    }
    let workshop = StoreWorkshop::new();
    // With lazy binding, calls go through the section `.plt`.
    build(&workshop, "-shared -fPIC -fcf-protection=none -Wl,-z,lazy");
    let sections = workshop.run("readelf -SW bare");
    let plt = sections.lines().find(|line| line.contains(" .plt ")).unwrap();
    let words: Vec<&str> = plt.split(']').nth(1).unwrap().split_whitespace().collect();
    let start = u64::from_str_radix(words[2], 16).unwrap();
    let size = u64::from_str_radix(words[4], 16).unwrap();
    let found = outcomes(&workshop.host_store(), &workshop.path("bare"), &[start, start + size / 2, start + size - 1]);
    assert_eq!(found, vec![Ok("[plt]".to_owned()); 3]);
}

/// Returns the address range of each frame description entry in `file`, as `readelf` prints it. Entries in the debug
/// file of `file` are not included.
fn entries(workshop: &StoreWorkshop, file: &str) -> Vec<(u64, u64)> {
    let text = workshop.run(&format!("readelf -wNf {file}"));
    let range = |line: &str| {
        let (start, end) = line.split_once(" pc=")?.1.split_once("..")?;
        Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end.trim(), 16).ok()?))
    };
    text.lines().filter(|line| line.contains(" FDE ")).filter_map(range).collect()
}

#[test]
fn starts_of_functions_in_real_libraries_equal_those_of_readelf() {
    if !have(&["readelf"]) {
        return;
    }
    let libraries = ["libcrypto.so.3", "libstdc++.so.6", "libc.so.6"];
    let paths = libraries.map(|name| format!("/usr/lib/{}-linux-gnu/{name}", std::env::consts::ARCH));
    let mut compared = 0;
    for path in paths.iter().filter(|path| Path::new(path).is_file()) {
        let workshop = StoreWorkshop::new();
        let entries = entries(&workshop, path);
        let middles: Vec<u64> = entries.iter().map(|(start, end)| start + (end - start) / 2).collect();
        let found = outcomes(&workshop.host_store(), Path::new(path), &middles);
        let nameless = entries.iter().zip(found).filter_map(|(entry, found)| Some((*entry, found.err()?)));
        for ((start, end), (reason, found)) in nameless {
            assert_eq!(found, Some(start), "{path}: {start:#x}..{end:#x}: {reason}");
            compared += 1;
        }
    }
    if compared == 0 {
        skip("no stripped library is here");
    }
}

#[test]
fn an_upload_without_names_is_refused_and_changes_nothing() {
    if !have(&["gcc", "strip", "nm"]) {
        return;
    }
    let workshop = StoreWorkshop::new();
    build(&workshop, "-no-pie");
    let store = workshop.store();
    let refused = store.add_file(&TenantId::default_tenant(), &File::open(workshop.path("bare")).unwrap());
    assert!(matches!(refused, Err(AddError::Stripped)), "{refused:?}");
    let start = workshop.address_of("whole", "block");
    assert_eq!(outcomes(&store, &workshop.path("bare"), &[start]), [Err((Reason::NoDebugFile, None))]);
}

/// Rewrites a table in the format of version 1.
fn make_old(table: &Path) {
    let mut bytes = fs::read(table).unwrap();
    assert_eq!(bytes[8..12], 2_u32.to_le_bytes(), "the version of today");
    bytes[8..12].copy_from_slice(&1_u32.to_le_bytes());
    // The byte with the source follows the length and the hash of the symcache. Version 1 did not have the first
    // source.
    bytes[24 + 16] -= 1;
    let body = 24..24 + u32::from_le_bytes(bytes[12..16].try_into().unwrap()) as usize;
    let hash = xxhash_rust::xxh3::xxh3_64(&bytes[body]);
    bytes[16..24].copy_from_slice(&hash.to_le_bytes());
    fs::write(table, bytes).unwrap();
}

#[test]
fn tables_of_version_1_keep_their_names_and_host_tables_are_remade() {
    if !have(&["gcc", "strip", "nm"]) {
        return;
    }
    let workshop = StoreWorkshop::new();
    build(&workshop, "-shared -fPIC");
    let bare = workshop.path("bare");
    let whole = workshop.path("whole");
    let BuildId::Gnu(id) = gnu_build_id(&bare) else { panic!("a GNU build ID") };
    let table = |folder: &str| workshop.path(&format!("store/{folder}/gnu-{}.symbols", proto::build_id::to_hex(&id)));
    let block = workshop.address_of("whole", "block");
    let exported = workshop.address_of("whole", "exported");

    outcomes(&workshop.host_store(), &bare, &[block]);
    make_old(&table("host"));
    let store = workshop.host_store();
    assert_eq!(names(&store, &gnu_build_id(&bare), &bare, exported).unwrap(), ["exported"], "at once");
    until("the table is made again", || {
        outcomes(&store, &bare, &[exported]);
        fs::read(table("host")).unwrap()[8..12] == 2_u32.to_le_bytes()
    });
    drop(store);

    let store = workshop.store();
    store.add_file(&TenantId::default_tenant(), &File::open(&whole).unwrap()).unwrap();
    drop(store);
    make_old(&table("uploaded"));
    assert_eq!(outcomes(&workshop.store(), &bare, &[block]), [Ok("block".to_owned())], "it cannot be made again");
    assert_eq!(fs::read(table("uploaded")).unwrap()[8..12], 1_u32.to_le_bytes());
}
