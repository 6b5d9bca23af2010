//! Tests of uploads, eviction from disk, and concurrent requests.

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use proto::{BuildId, TenantId};
use symbol_store::convert::Converter;
use symbol_store::limits::{Limits, TABLE_COUNTED_BYTES_MIN, UPLOAD_STEP_BYTES, UPLOADS_MAX};
use symbol_store::{AddError, Address, Config, ObjectKey, Reason, Source, SymbolStore};
use testkit::workshop::{NESTED, have};

use crate::workshop::{PATIENCE, StoreWorkshop, gnu_build_id, names, open, symbolize};

/// Builds the program `name` with a unique build ID.
fn build(workshop: &StoreWorkshop, name: &str) -> BuildId {
    workshop.write("nested.c", format!("{NESTED}const char name[] = \"{name}\";\n"));
    workshop.run(&format!("gcc -g -O2 nested.c -o {name}"));
    gnu_build_id(&workshop.path(name))
}

fn add(store: &SymbolStore, path: &Path) -> Result<symbol_store::Added, AddError> {
    store.add_file(&TenantId::default_tenant(), &File::open(path).unwrap())
}

#[test]
fn an_upload_in_pieces_has_names_at_once_and_after_a_restart() {
    if !have(&["gcc", "nm"]) {
        return;
    }
    let workshop = StoreWorkshop::new();
    let id = build(&workshop, "program");
    let path = workshop.path("program");
    let address = workshop.address_of("program", "outer");
    let store = workshop.host_store();
    assert_eq!(names(&store, &id, Path::new("/absent"), address), Err(Reason::NoDebugFile));
    let mut upload = store.upload(&TenantId::default_tenant()).unwrap();
    for piece in fs::read(&path).unwrap().chunks(1000) {
        upload.write_all(piece).unwrap();
    }
    let added = upload.finish().unwrap();
    assert_eq!((&added.build_id, added.source, added.is_used), (&id, Source::Dwarf, true));
    assert!(added.functions >= 3);
    // The earlier failure is no longer remembered.
    assert_eq!(names(&store, &id, Path::new("/absent"), address).unwrap().last().unwrap(), "outer");
    let in_use = SymbolStore::open(workshop.config(true)).unwrap_err();
    assert_eq!(in_use.kind(), ErrorKind::WouldBlock);
    drop(store);
    let store = workshop.store();
    assert_eq!(names(&store, &id, Path::new(""), address).unwrap().last().unwrap(), "outer");
    assert_eq!(fs::read_dir(workshop.path("store/making")).unwrap().count(), 0);
}

#[test]
fn the_better_table_is_used_whichever_came_first() {
    if !have(&["gcc", "nm", "strip"]) {
        return;
    }
    let workshop = StoreWorkshop::new();
    let id = build(&workshop, "whole");
    workshop.run("strip --strip-debug -o symbols whole");
    let path = workshop.path("symbols");
    let address = workshop.address_of("whole", "outer");
    let has_lines = |store: &SymbolStore| symbolize(store, &id, &path, address).unwrap()[0].line > 0;

    // First there is a table of a file of this host without lines, and then an upload with lines.
    let store = workshop.host_store();
    assert!(!has_lines(&store));
    assert!(add(&store, &workshop.path("whole")).unwrap().is_used);
    assert!(has_lines(&store));
    // A later upload with fewer symbols changes nothing.
    let added = add(&store, &path).unwrap();
    assert_eq!((added.source, added.is_used), (Source::Symtab, false));
    assert!(has_lines(&store));
    drop(store);
    assert!(has_lines(&workshop.host_store()));
}

#[test]
fn a_table_with_any_changed_byte_is_made_again_and_never_used() {
    if !have(&["gcc", "nm"]) {
        return;
    }
    let workshop = StoreWorkshop::new();
    let id = build(&workshop, "program");
    let path = workshop.path("program");
    let address = workshop.address_of("program", "outer");
    let expected = symbolize(&workshop.host_store(), &id, &path, address).unwrap();
    let BuildId::Gnu(bytes) = &id else { panic!("{id}") };
    let table = workshop.path(&format!("store/host/gnu-{}.symbols", proto::build_id::to_hex(bytes)));
    let whole = fs::read(&table).unwrap();
    for at in (0..whole.len()).step_by(whole.len() / 40) {
        let mut changed = whole.clone();
        changed[at] ^= 0x10;
        fs::write(&table, changed).unwrap();
        assert_eq!(symbolize(&workshop.host_store(), &id, &path, address).unwrap(), expected, "byte {at}");
        fs::write(&table, &whole[..at]).unwrap();
        assert_eq!(symbolize(&workshop.host_store(), &id, &path, address).unwrap(), expected, "{at} bytes");
    }
    // A valid table that was moved to the name of another build ID is not used either.
    let other = build(&workshop, "other");
    fs::rename(
        &table,
        workshop.path(&format!("store/host/gnu-{}.symbols", other.to_string().trim_start_matches("gnu:"))),
    )
    .unwrap();
    assert_eq!(symbolize(&workshop.host_store(), &other, Path::new("/absent"), address), Err(Reason::NoDebugFile));
}

#[test]
fn the_disk_budget_evicts_the_oldest_host_tables_and_no_upload() {
    if !have(&["gcc", "nm"]) {
        return;
    }
    let workshop = StoreWorkshop::new();
    let programs = ["a", "b", "c", "d"];
    let ids = programs.map(|name| build(&workshop, name));
    let address = workshop.address_of("a", "outer");
    // Each table is smaller than the minimum with which it counts, so two tables fit into the limit, and three do not.
    let limits = Limits { disk_bytes_max: TABLE_COUNTED_BYTES_MIN * 5 / 2, ..Limits::DEFAULT };
    let store = open(Config { limits, ..workshop.config(true) });
    let on_disk = |folder: &str| -> Vec<bool> {
        let has = |id: &BuildId| {
            let hex = id.to_string();
            workshop.path(&format!("store/{folder}/gnu-{}.symbols", hex.trim_start_matches("gnu:"))).exists()
        };
        ids.iter().map(has).collect()
    };
    add(&store, &workshop.path("a")).unwrap();
    for (id, name) in ids[1..3].iter().zip(&programs[1..3]) {
        assert!(symbolize(&store, id, &workshop.path(name), address).is_ok());
    }
    assert_eq!(
        (on_disk("uploaded"), on_disk("host")),
        (vec![true, false, false, false], vec![false, false, true, false])
    );
    add(&store, &workshop.path("d")).unwrap();
    assert_eq!((on_disk("uploaded"), on_disk("host")), (vec![true, false, false, true], vec![false; 4]));
    // The same file can be added again, because it needs no more space. Another file would exceed the limit.
    add(&store, &workshop.path("d")).unwrap();
    let full = add(&store, &workshop.path("b")).unwrap_err();
    assert!(matches!(full, AddError::Full { bytes_max, .. } if bytes_max == limits.disk_bytes_max), "{full}");
    assert_eq!(on_disk("uploaded"), [true, false, false, true]);
    assert_eq!(fs::read_dir(workshop.path("store/making")).unwrap().count(), 0);
}

#[test]
fn an_upload_beyond_the_size_limit_is_refused_while_it_is_received() {
    let workshop = StoreWorkshop::new();
    let limits = Limits { input_bytes_max: 1000, ..Limits::DEFAULT };
    let store = open(Config { limits, ..workshop.config(false) });
    let mut upload = store.upload(&TenantId::default_tenant()).unwrap();
    upload.write_all(&[0; 1000]).unwrap();
    assert_eq!(upload.write_all(&[0]).unwrap_err().kind(), ErrorKind::FileTooLarge);
    drop(upload);
    assert_eq!(fs::read_dir(workshop.path("store/making")).unwrap().count(), 0);
}

#[test]
fn an_excess_upload_is_refused_until_another_one_has_ended() {
    let store = StoreWorkshop::new();
    let store = store.store();
    let mut uploads: Vec<_> = (0..UPLOADS_MAX).map(|_| store.upload(&TenantId::default_tenant()).unwrap()).collect();
    assert!(matches!(store.upload(&TenantId::default_tenant()), Err(AddError::Busy)));
    assert!(uploads.pop().unwrap().finish().is_err(), "an empty file");
    uploads.push(store.upload(&TenantId::default_tenant()).unwrap());
    assert!(matches!(store.upload(&TenantId::default_tenant()), Err(AddError::Busy)));
}

#[test]
fn files_in_transfer_count_against_the_disk_budget() {
    if !have(&["gcc", "nm"]) {
        return;
    }
    let workshop = StoreWorkshop::new();
    let disk_bytes_max = UPLOAD_STEP_BYTES * 2 + TABLE_COUNTED_BYTES_MIN * 3 / 2;
    let limits = Limits { disk_bytes_max, ..Limits::DEFAULT };
    let store = open(Config { limits, ..workshop.config(true) });
    let kept = build(&workshop, "kept");
    let host = build(&workshop, "host");
    let address = workshop.address_of("host", "outer");
    add(&store, &workshop.path("kept")).unwrap();
    let tables = |folder: &str| fs::read_dir(workshop.path(&format!("store/{folder}"))).unwrap().count();
    assert!(symbolize(&store, &host, &workshop.path("host"), address).is_ok());
    let of_one = tables("uploaded");
    assert!(of_one > 0 && tables("host") > 0, "{kept}");

    let step = vec![0; usize::try_from(UPLOAD_STEP_BYTES).unwrap()];
    let mut first = store.upload(&TenantId::default_tenant()).unwrap();
    let mut second = store.upload(&TenantId::default_tenant()).unwrap();
    first.write_all(&step).unwrap();
    assert!(tables("host") > 0, "there is room for all");
    second.write_all(&step[1..]).unwrap();
    assert_eq!((tables("uploaded"), tables("host")), (of_one, 0), "what can be made again goes");
    second.write_all(&[0]).unwrap();
    for _ in 0..2 {
        let full = second.write_all(&[0]).unwrap_err();
        assert_eq!(full.kind(), ErrorKind::StorageFull, "{full}");
    }
    drop(second);
    first.write_all(&[0]).unwrap();
    drop(first);
    assert!(symbolize(&store, &host, &workshop.path("host"), address).is_ok());
    assert_eq!(tables("making"), 0);
}

/// Returns a slow converter, which writes a line to the file `log` when it begins and when it ends.
fn slow_converter(workshop: &StoreWorkshop, seconds: &str) -> Converter {
    let Converter { program, .. } = workshop.config(false).converter;
    let log = workshop.path("log");
    let script = workshop.write(
        "slow.sh",
        format!(
            "#!/bin/sh\necho begin >> {log}\n/bin/sleep {seconds}\n{program} \"$@\"\n\
             code=$?\necho end >> {log}\nexit $code\n",
            log = log.display(),
            program = program.display()
        ),
    );
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    Converter { program: script, arguments: Vec::new() }
}

#[test]
fn many_requests_for_one_file_cause_one_conversion_and_two_run_at_a_time() {
    if !have(&["gcc", "nm", "sh", "sleep"]) {
        return;
    }
    let workshop = StoreWorkshop::new();
    let programs = ["a", "b", "c", "d"];
    let ids = programs.map(|name| build(&workshop, name));
    let address = workshop.address_of("a", "outer");
    let config = Config { converter: slow_converter(&workshop, "0.3"), ..workshop.config(true) };
    let store = open(config);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            for (id, name) in ids.iter().zip(programs) {
                let store = &store;
                let path = workshop.path(name);
                scope.spawn(move || assert_eq!(names(store, id, &path, address).unwrap().last().unwrap(), "outer"));
            }
        }
    });
    let mut running = 0;
    let mut most = 0;
    let mut begun = 0;
    for line in fs::read_to_string(workshop.path("log")).unwrap().lines() {
        running += if line == "begin" { 1 } else { -1 };
        begun += usize::from(line == "begin");
        most = most.max(running);
    }
    assert_eq!((begun, most, running), (4, 2, 0));
}

#[test]
fn a_caller_that_does_not_wait_gets_a_retryable_reason() {
    if !have(&["gcc", "nm", "sh", "sleep"]) {
        return;
    }
    let workshop = StoreWorkshop::new();
    let id = build(&workshop, "program");
    let path = workshop.path("program");
    let address = [Address::Virtual(workshop.address_of("program", "outer"))];
    let config = Config { converter: slow_converter(&workshop, "0.5"), ..workshop.config(true) };
    let store = open(config);
    let object = ObjectKey { tenant: &TenantId::default_tenant(), build_id: Some(&id), file: path.to_str().unwrap() };
    for wait in [Duration::ZERO, Duration::from_millis(20)] {
        assert_eq!(store.symbolize(&object, &address, wait), [Err(Reason::Converting.into())]);
    }
    let frames = store.symbolize(&object, &address, PATIENCE).remove(0).unwrap();
    assert_eq!(&*frames.last().unwrap().function, "outer");
    assert_eq!(fs::read_to_string(workshop.path("log")).unwrap(), "begin\nend\n", "one conversion for all three");
}
