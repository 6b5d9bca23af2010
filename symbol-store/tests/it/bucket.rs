//! Tests of stores that share a bucket. Each store stands for one router.

use std::fs::{self, File};
use std::path::PathBuf;
use std::time::Duration;

use proto::{BuildId, TenantId};
use symbol_store::convert::Converter;
use symbol_store::limits::{Limits, TABLE_COUNTED_BYTES_MIN};
use symbol_store::{AddError, Added, Address, Config, ObjectKey, Reason, Source, SymbolStore};
use testkit::workshop::{NESTED, have};

use crate::workshop::{PATIENCE, StoreWorkshop, gnu_build_id, open, until};

/// A workshop with a bucket.
struct Fleet(StoreWorkshop);

impl Fleet {
    fn new() -> Self {
        Self(StoreWorkshop::new())
    }

    fn config(&self, router: &str) -> Config {
        Config {
            directory: self.0.path(router),
            bucket: Some(format!("file://{}", self.0.path("bucket").display())),
            ..self.0.config(false)
        }
    }

    fn router(&self, name: &str) -> SymbolStore {
        open(self.config(name))
    }

    /// Opens a store that cannot convert files.
    fn reader(&self, name: &str) -> SymbolStore {
        let converter = Converter { program: "/bin/false".into(), arguments: Vec::new() };
        open(Config { converter, ..self.config(name) })
    }

    /// Builds the program `name` with a unique build ID. Returns the build ID and the address of `outer`.
    fn build(&self, name: &str) -> (BuildId, u64) {
        self.0.write("nested.c", format!("{NESTED}const char name[] = \"{name}\";\n"));
        self.0.run(&format!("gcc -g -O2 nested.c -o {name}"));
        (gnu_build_id(&self.0.path(name)), self.0.address_of(name, "outer"))
    }

    fn add(&self, router: &SymbolStore, tenant: &str, file: &str) -> Result<Added, AddError> {
        router.add_file(&TenantId::new(tenant).unwrap(), &File::open(self.0.path(file)).unwrap())
    }

    /// Returns the paths of all tables in the bucket.
    fn tables(&self) -> Vec<PathBuf> {
        let mut folders = vec![self.0.path("bucket/tables")];
        let mut tables = Vec::new();
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).into_iter().flatten() {
                let path = entry.unwrap().path();
                if path.is_dir() { folders.push(path) } else { tables.push(path) }
            }
        }
        tables
    }
}

/// Returns the function and the line of the outermost frame.
fn outermost(
    router: &SymbolStore,
    tenant: &str,
    id: &BuildId,
    address: Address,
    wait: Duration,
) -> Result<(String, u32), Reason> {
    let tenant = TenantId::new(tenant).unwrap();
    let object = ObjectKey { tenant: &tenant, build_id: Some(id), file: "" };
    let frames = router.symbolize(&object, &[address], wait).remove(0).map_err(|nameless| nameless.reason)?;
    frames.last().map(|frame| (frame.function.to_string(), frame.line)).ok_or(Reason::NoDebugFile)
}

fn is_named(router: &SymbolStore, tenant: &str, id: &BuildId, address: u64) -> Result<bool, Reason> {
    outermost(router, tenant, id, Address::Virtual(address), PATIENCE).map(|(function, _)| function == "outer")
}

#[test]
fn an_upload_at_one_router_names_frames_at_all_routers() {
    if !have(&["gcc", "nm"]) {
        return;
    }
    let fleet = Fleet::new();
    let (id, address) = fleet.build("program");
    let (a, b) = (fleet.router("a"), fleet.reader("b"));
    for router in [&a, &b] {
        assert_eq!(is_named(router, "x", &id, address), Err(Reason::NoDebugFile));
    }
    let added = fleet.add(&a, "x", "program").unwrap();
    assert_eq!((&added.build_id, added.source, added.is_used), (&id, Source::Dwarf, true));
    assert_eq!(is_named(&a, "x", &id, address), Ok(true), "at once");
    let begun = std::time::Instant::now();
    // The counter of changes may also count the first look at the bucket, so it does not say that the file is known.
    until("the other router knows the file", || is_named(&b, "x", &id, address) == Ok(true));
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    // A router that starts with an empty directory does not convert the file again, and needs no upload.
    assert_eq!(is_named(&fleet.reader("c"), "x", &id, address), Ok(true));
    // The local copy is used after a restart.
    drop(b);
    let copies: Vec<_> = fs::read_dir(fleet.0.path("b/fetched")).unwrap().collect();
    assert_eq!(copies.len(), 1);
    assert_eq!(is_named(&fleet.reader("b"), "x", &id, address), Ok(true));
}

#[test]
fn files_of_one_tenant_never_name_frames_of_another() {
    if !have(&["gcc", "nm"]) {
        return;
    }
    let fleet = Fleet::new();
    let (id, address) = fleet.build("program");
    let alone = fleet.0.store_at("alone");
    for router in [fleet.router("a"), alone] {
        fleet.add(&router, "x", "program").unwrap();
        assert_eq!(is_named(&router, "x", &id, address), Ok(true));
        for other in ["y", "default", "X"] {
            assert_eq!(is_named(&router, other, &id, address), Err(Reason::NoDebugFile), "{other}");
            assert_eq!(router.remove_uploads(&TenantId::new(other).unwrap(), Some(&id)).unwrap(), 0);
        }
        // The same file of the other tenant is independent.
        fleet.add(&router, "y", "program").unwrap();
        assert_eq!(router.remove_uploads(&TenantId::new("x").unwrap(), None).unwrap(), 1);
        assert_eq!(is_named(&router, "x", &id, address), Err(Reason::NoDebugFile));
        assert_eq!(is_named(&router, "y", &id, address), Ok(true));
    }
}

#[test]
fn the_better_file_is_used_wherever_it_was_uploaded() {
    if !have(&["gcc", "nm", "strip", "objcopy", "readelf"]) {
        return;
    }
    let fleet = Fleet::new();
    let (id, address) = fleet.build("whole");
    fleet.0.run("strip --strip-debug -o symbols whole");
    fleet.0.run("objcopy --only-keep-debug whole detached");
    let image = crate::workshop::image(&fleet.0.path("whole"));
    let offset = image.segments.iter().find_map(|segment| {
        let within = segment.executable && (segment.address..segment.address + segment.memory_size).contains(&address);
        within.then(|| address - segment.address + segment.offset)
    });
    let offset = Address::FileOffset(offset.unwrap());
    let has_lines = |router: &SymbolStore, tenant| {
        outermost(router, tenant, &id, offset, PATIENCE).map(|(function, line)| (function == "outer", line > 0))
    };
    // A debug file has lines but no file offsets, and a program without debug information has the opposite.
    for (tenant, first, second) in [("x", "symbols", "detached"), ("y", "detached", "symbols")] {
        let (a, b) = (fleet.router("a"), fleet.router("b"));
        fleet.add(&a, tenant, first).unwrap();
        let expected = if first == "detached" { Err(Reason::SegmentsUnknown) } else { Ok((true, false)) };
        assert_eq!(has_lines(&a, tenant), expected);
        let changes = a.changes();
        assert_eq!(fleet.add(&b, tenant, second).unwrap().is_used, second == "detached");
        assert_eq!(has_lines(&b, tenant), Ok((true, true)));
        until("the first router knows the other file", || a.changes() > changes);
        assert_eq!(has_lines(&a, tenant), Ok((true, true)));
    }
    // The whole program supersedes both files. An upload with fewer symbols then changes nothing.
    let a = fleet.router("a");
    for tenant in ["x", "y"] {
        assert!(fleet.add(&a, tenant, "whole").unwrap().is_used);
    }
    let stored = fleet.tables();
    assert_eq!(stored.len(), 2, "{stored:?}");
    assert!(!fleet.add(&a, "x", "symbols").unwrap().is_used);
    assert_eq!(fleet.tables(), stored);
    assert_eq!(has_lines(&a, "x"), Ok((true, true)));
}

#[test]
fn concurrent_uploads_leave_one_table_that_all_routers_use() {
    if !have(&["gcc", "nm"]) {
        return;
    }
    let fleet = Fleet::new();
    let (id, address) = fleet.build("program");
    let routers = ["a", "b", "c"].map(|name| fleet.router(name));
    std::thread::scope(|scope| {
        for router in &routers {
            scope.spawn(|| fleet.add(router, "x", "program").unwrap());
        }
    });
    for router in &routers {
        until("the names settle", || is_named(router, "x", &id, address) == Ok(true));
    }
    // What concurrent uploads left is removed by the next one.
    fleet.add(&routers[0], "x", "program").unwrap();
    assert_eq!(fleet.tables().len(), 1);
    assert_eq!(is_named(&fleet.reader("d"), "x", &id, address), Ok(true));
}

#[test]
fn a_damaged_table_is_refused_until_it_is_uploaded_again() {
    if !have(&["gcc", "nm"]) {
        return;
    }
    let fleet = Fleet::new();
    let (id, address) = fleet.build("program");
    let a = fleet.router("a");
    fleet.add(&a, "x", "program").unwrap();
    let [table] = fleet.tables().try_into().unwrap();
    let whole = fs::read(&table).unwrap();
    let mut changed = whole.clone();
    changed[whole.len() / 2] ^= 1;
    let longer = [&whole[..], &[0]].concat();
    for (number, content) in [&changed[..], &whole[..whole.len() - 1], &longer, &[]].into_iter().enumerate() {
        fs::write(&table, content).unwrap();
        let reader = fleet.reader(&format!("reader-{number}"));
        assert_eq!(is_named(&reader, "x", &id, address), Err(Reason::DebugFileDamaged), "{} bytes", content.len());
        let kept = fs::read_dir(fleet.0.path(&format!("reader-{number}/fetched"))).unwrap().count();
        let making = fs::read_dir(fleet.0.path(&format!("reader-{number}/making"))).unwrap().count();
        assert_eq!((kept, making), (0, 0));
    }
    // A valid table under the build ID of another file is refused, too.
    let (other, _) = fleet.build("other");
    fs::write(&table, &whole).unwrap();
    let folder =
        table.parent().unwrap().with_file_name(format!("gnu-{}", other.to_string().trim_start_matches("gnu:")));
    fs::create_dir(&folder).unwrap();
    fs::copy(&table, folder.join(table.file_name().unwrap())).unwrap();
    assert_eq!(is_named(&fleet.reader("moved"), "x", &other, address), Err(Reason::DebugFileDamaged));
    fs::write(&table, &changed).unwrap();
    let reader = fleet.reader("last");
    assert_eq!(is_named(&reader, "x", &id, address), Err(Reason::DebugFileDamaged));
    fleet.add(&a, "x", "program").unwrap();
    until("the new table is used", || is_named(&reader, "x", &id, address) == Ok(true));
}

#[test]
fn leftovers_of_a_router_that_died_are_harmless() {
    if !have(&["gcc", "nm"]) {
        return;
    }
    let fleet = Fleet::new();
    let (id, address) = fleet.build("program");
    fleet.add(&fleet.router("a"), "x", "program").unwrap();
    let [table] = fleet.tables().try_into().unwrap();
    // It died before it announced the table, or while it wrote another one. There are files of other programs, too.
    fs::remove_file(fleet.0.path("bucket/changed")).unwrap();
    let name = table.file_name().unwrap().to_str().unwrap();
    for leftover in [format!("{name}#1"), name.replace("dwarf", "dwarfs"), "..hidden".to_owned()] {
        fs::write(table.with_file_name(leftover), "half").unwrap();
    }
    fs::create_dir_all(fleet.0.path("bucket/aliases/x/gnu-00")).unwrap();
    fs::write(fleet.0.path("bucket/aliases/x/gnu-00/gnu-01"), "").unwrap();
    fs::write(fleet.0.path("bucket/tables/file"), "").unwrap();
    let reader = fleet.reader("b");
    assert_eq!(is_named(&reader, "x", &id, address), Ok(true));
    let dangling = BuildId::parse("gnu:00").unwrap();
    assert_eq!(is_named(&reader, "x", &dangling, address), Err(Reason::NoDebugFile));
}

#[test]
fn a_removal_at_one_router_takes_the_names_at_all() {
    if !have(&["gcc", "nm"]) {
        return;
    }
    let fleet = Fleet::new();
    let (id, address) = fleet.build("program");
    let (a, b) = (fleet.router("a"), fleet.reader("b"));
    fleet.add(&a, "x", "program").unwrap();
    until("the other router has names", || is_named(&b, "x", &id, address) == Ok(true));
    assert_eq!(a.remove_uploads(&TenantId::new("x").unwrap(), Some(&id)).unwrap(), 1);
    assert_eq!(fleet.tables(), [] as [PathBuf; 0]);
    assert_eq!(fs::read_dir(fleet.0.path("bucket/aliases")).into_iter().flatten().count(), 0);
    for router in [&a, &b] {
        until("the names are gone", || is_named(router, "x", &id, address) == Err(Reason::NoDebugFile));
    }
}

#[test]
fn a_tenant_that_uploads_too_much_is_refused_and_others_are_not() {
    if !have(&["gcc", "nm"]) {
        return;
    }
    let fleet = Fleet::new();
    let ids = ["a", "b", "c"].map(|name| fleet.build(name));
    let limits = Limits { tenant_bytes_max: TABLE_COUNTED_BYTES_MIN * 2, ..Limits::DEFAULT };
    let router = open(Config { limits, ..fleet.config("router") });
    fleet.add(&router, "x", "a").unwrap();
    fleet.add(&router, "x", "b").unwrap();
    fleet.add(&router, "x", "b").unwrap();
    let full = fleet.add(&router, "x", "c").unwrap_err();
    assert!(matches!(full, AddError::Full { bytes_max, .. } if bytes_max == limits.tenant_bytes_max), "{full}");
    fleet.add(&router, "y", "c").unwrap();
    router.remove_uploads(&TenantId::new("x").unwrap(), Some(&ids[0].0)).unwrap();
    fleet.add(&router, "x", "c").unwrap();
    assert_eq!(fleet.tables().len(), 3);
}

#[test]
fn local_copies_are_evicted_and_fetched_again() {
    if !have(&["gcc", "nm"]) {
        return;
    }
    let fleet = Fleet::new();
    let programs = ["a", "b", "c"].map(|name| (name, fleet.build(name)));
    let writer = fleet.router("writer");
    for (name, _) in &programs {
        fleet.add(&writer, "x", name).unwrap();
    }
    let bytes_max = TABLE_COUNTED_BYTES_MIN * 2;
    let limits = Limits { disk_bytes_max: bytes_max, mapped_bytes_max: TABLE_COUNTED_BYTES_MIN, ..Limits::DEFAULT };
    let reader = open(Config { limits, ..fleet.config("reader") });
    for _ in 0..3 {
        for (_, (id, address)) in &programs {
            assert_eq!(is_named(&reader, "x", id, *address), Ok(true));
            assert!(fs::read_dir(fleet.0.path("reader/fetched")).unwrap().count() <= 2);
        }
    }
}
