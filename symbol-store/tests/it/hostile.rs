//! Tests with damaged and hostile files. They may kill the child, but must never harm the store.

use std::fs::{self, File, OpenOptions};
use std::path::Path;
use std::time::{Duration, Instant};

use host_files::elf::ElfError;
use proto::TenantId;
use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{RngCore as _, SeedableRng as _};
use symbol_store::convert::Converter;
use symbol_store::limits::{FRAMES_PER_ADDRESS_MAX, Limits};
use symbol_store::{AddError, Address, Config, ObjectKey, SymbolStore, Unusable};
use testkit::workshop::{NESTED, have};

use crate::workshop::{StoreWorkshop, gnu_build_id, open, symbolize};

fn build(workshop: &StoreWorkshop) -> Vec<u8> {
    workshop.write("nested.c", NESTED);
    workshop.run("gcc -g -O2 nested.c -o nested");
    fs::read(workshop.path("nested")).unwrap()
}

fn add(store: &SymbolStore, path: &Path) -> Result<symbol_store::Added, AddError> {
    store.add_file(&TenantId::default_tenant(), &File::open(path).unwrap())
}

fn store_with(workshop: &StoreWorkshop, limits: Limits) -> SymbolStore {
    open(Config { limits, ..workshop.config(false) })
}

/// Checks that the store names the addresses of a good file, and that nothing is left of the bad files.
fn assert_sound(workshop: &StoreWorkshop, store: &SymbolStore) {
    let path = workshop.path("nested");
    assert!(add(store, &path).unwrap().is_used);
    let frames = symbolize(store, &gnu_build_id(&path), &path, workshop.address_of("nested", "outer")).unwrap();
    assert_eq!(&*frames.last().unwrap().function, "outer");
    assert_eq!(fs::read_dir(workshop.path("store/making")).unwrap().count(), 0);
}

/// Returns the next random number.
fn random(numbers: &mut SplitMix64) -> usize {
    numbers.next_u64() as usize
}

#[test]
fn mutated_files_never_harm_the_store() {
    if !have(&["gcc", "nm"]) {
        return;
    }
    let workshop = StoreWorkshop::new();
    let good = build(&workshop);
    let limits = Limits {
        conversion_memory_bytes_max: 512 << 20,
        conversion_cpu_max: Duration::from_secs(3),
        conversion_time_max: Duration::from_secs(20),
        table_bytes_max: 16 << 20,
        ..Limits::DEFAULT
    };
    let store = store_with(&workshop, limits);
    let started = Instant::now();
    // A fixed seed gives the same mutations in every run.
    let mut numbers = SplitMix64::seed_from_u64(7);
    let mut converted = 0;
    let mut refused = 0;
    let mut died = 0;
    // A mutation may hit any byte, for example in the DWARF sections or in the section headers at the end of the file.
    for round in 0..400 {
        let mut bytes = good.clone();
        for _ in 0..1 + random(&mut numbers) % 20 {
            let at = random(&mut numbers) % bytes.len();
            match round % 4 {
                0 => bytes[at] ^= 1 << (random(&mut numbers) % 8),
                1 => bytes[at] = 0xff,
                2 => bytes[at..].iter_mut().take(8).for_each(|byte| *byte = random(&mut numbers) as u8),
                _ => {
                    // The ELF header and the section headers hold the offsets and sizes of everything else.
                    let headers = u64::from_le_bytes(good[40..48].try_into().unwrap()) as usize;
                    let at = if random(&mut numbers).is_multiple_of(2) {
                        16 + at % 48
                    } else {
                        headers + at % (good.len() - headers)
                    };
                    bytes[at] = random(&mut numbers) as u8;
                }
            }
        }
        match add(&store, &workshop.write("mutated", bytes)) {
            Ok(_) => converted += 1,
            Err(AddError::Unusable(
                Unusable::MemoryExceeded { .. }
                | Unusable::TimeExceeded { .. }
                | Unusable::GaveUp { .. }
                | Unusable::Killed { .. },
            )) => died += 1,
            Err(AddError::Io(error)) => panic!("round {round}: {error}"),
            Err(_) => refused += 1,
        }
    }
    assert!(converted > 100 && refused > 10, "{converted} converted, {refused} refused, {died} died");
    assert!(started.elapsed() < Duration::from_secs(300), "{:?}", started.elapsed());
    assert_sound(&workshop, &store);
}

#[test]
fn truncated_files_never_harm_the_store() {
    if !have(&["gcc", "nm"]) {
        return;
    }
    let workshop = StoreWorkshop::new();
    let good = build(&workshop);
    let store = workshop.store();
    for length in (0..good.len()).step_by(good.len() / 60) {
        let path = workshop.write("truncated", &good[..length]);
        // The section headers are at the end of the file. Without them there are no symbols.
        assert!(add(&store, &path).is_err(), "{length} bytes");
    }
    assert_sound(&workshop, &store);
}

/// Returns the offset in the file of the header of the section `name`, in bytes.
fn section_header(bytes: &[u8], name: &str) -> usize {
    let number = |at: usize, size: usize| {
        bytes[at..at + size].iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte))
    };
    let table = number(40, 8);
    let count = number(60, 2);
    let names = number(62, 2);
    let names_at = number(table + names * 64 + 24, 8);
    let header = |index: usize| table + index * 64;
    let wanted = [name.as_bytes(), &[0]].concat();
    let found = (0..count).find(|index| bytes[names_at + number(header(*index), 4)..].starts_with(&wanted));
    header(found.unwrap())
}

#[test]
fn a_compressed_section_that_claims_terabytes_is_skipped() {
    if !have(&["gcc", "nm"]) {
        return;
    }
    let workshop = StoreWorkshop::new();
    build(&workshop);
    workshop.run("gcc -g -O2 -gz=zlib nested.c -o packed");
    let mut bytes = fs::read(workshop.path("packed")).unwrap();
    for section in [".debug_info", ".debug_line", ".debug_abbrev"] {
        let header = section_header(&bytes, section);
        let at = u64::from_le_bytes(bytes[header + 24..header + 32].try_into().unwrap()) as usize;
        bytes[at + 8..at + 16].copy_from_slice(&(1_u64 << 42).to_le_bytes());
    }
    let store = workshop.store();
    // The DWARF sections are skipped, and `.symtab` still gives names.
    assert_eq!(add(&store, &workshop.write("bomb", bytes)).unwrap().source, symbol_store::Source::Symtab);
    assert_sound(&workshop, &store);
}

#[test]
fn an_xz_bomb_is_skipped() {
    if !have(&["gcc", "nm", "xz", "objcopy", "sh"]) {
        return;
    }
    let workshop = StoreWorkshop::new();
    build(&workshop);
    workshop.write("bomb.sh", "head -c 400000000 /dev/zero | xz -0 > zeros.xz\n");
    workshop.run("sh bomb.sh");
    workshop.run("objcopy --add-section .gnu_debugdata=zeros.xz nested bomb");
    let store = workshop.store();
    assert!(add(&store, &workshop.path("bomb")).unwrap().functions > 3);
    assert_sound(&workshop, &store);
}

#[test]
fn each_limit_ends_the_child_and_is_named() {
    if !have(&["gcc", "nm", "sleep", "sh"]) {
        return;
    }
    let workshop = StoreWorkshop::new();
    build(&workshop);
    let path = workshop.path("nested");
    let why = |limits: Limits, converter: Converter| {
        let directory = workshop.path("limited");
        let store = open(Config { limits, converter, directory, ..workshop.config(false) });
        let Err(AddError::Unusable(why)) = add(&store, &path) else { panic!("not refused") };
        why
    };
    let real = || workshop.config(false).converter;
    let shell = |script: &str| Converter { program: "/bin/sh".into(), arguments: vec!["-c".into(), script.into()] };
    let default = Limits::DEFAULT;

    // 24 MiB are enough to start the program, but not for its allocations.
    let small = Limits { conversion_memory_bytes_max: 24 << 20, ..default };
    assert_eq!(why(small, shell("x=x; while :; do x=$x$x; done; kill -ABRT $$")), Unusable::GaveUp { exit_code: 2 });
    let time = Limits { conversion_time_max: Duration::from_millis(200), ..default };
    let started = Instant::now();
    assert!(matches!(why(time, shell("sleep 60")), Unusable::TimeExceeded { .. }));
    assert!(started.elapsed() < Duration::from_secs(10));
    let cpu = Limits { conversion_cpu_max: Duration::from_secs(1), ..default };
    assert!(matches!(why(cpu, shell("while :; do :; done")), Unusable::TimeExceeded { .. }));
    let table = Limits { table_bytes_max: 700, ..default };
    assert_eq!(why(table, real()), Unusable::TableTooLarge { bytes_max: 700 });
    let input = Limits { input_bytes_max: 1000, ..default };
    assert!(matches!(why(input, real()), Unusable::TooLarge { bytes_max: 1000, .. }));
    assert!(matches!(why(default, shell("kill -ABRT $$")), Unusable::MemoryExceeded { .. }));
    assert_eq!(why(default, shell("kill -KILL $$")), Unusable::Killed { signal: 9 });
    assert_eq!(why(default, shell("exit 101")), Unusable::GaveUp { exit_code: 101 });
    // The converter reports success, but wrote no table.
    assert_eq!(why(default, shell("echo 5 dwarf")), Unusable::GaveUp { exit_code: 0 });
    assert_eq!(why(default, shell("yes | head -c 60000")), Unusable::GaveUp { exit_code: 0 });

    let absent = Converter { program: "/nonexistent".into(), arguments: Vec::new() };
    let store = open(Config { converter: absent, ..workshop.config(false) });
    assert!(matches!(add(&store, &path), Err(AddError::Io(_))));
    drop(store);
    assert_sound(&workshop, &workshop.store());
}

#[test]
fn deep_inlining_everywhere_does_not_multiply_the_frames_of_a_response() {
    if !have(&["gcc", "nm"]) {
        return;
    }
    let workshop = StoreWorkshop::new();
    let level = |i: usize| {
        format!("__attribute__((always_inline)) static inline int f{i}(int x) {{ return f{}(x + {i}) * 3; }}\n", i - 1)
    };
    let source = format!(
        "static volatile int sink;\n\
         __attribute__((always_inline)) static inline int f0(int x) {{ return sink += x; }}\n\
         {}__attribute__((noinline)) int deep(int x) {{ return f99(x); }}\nint main(void) {{ return deep(1); }}\n",
        (1..100).map(level).collect::<String>()
    );
    workshop.write("deep.c", source);
    workshop.run("gcc -g -O2 deep.c -o deep");
    let store = workshop.store();
    add(&store, &workshop.path("deep")).unwrap();
    let id = gnu_build_id(&workshop.path("deep"));
    let start = workshop.address_of("deep", "deep");
    let depth = |address| symbolize(&store, &id, Path::new(""), address).unwrap().len();
    let (deepest, address) = (start..start + 32).map(|address| (depth(address), address)).max().unwrap();
    assert!(deepest > 50, "{deepest}");

    let object = ObjectKey { tenant: &TenantId::default_tenant(), build_id: Some(&id), file: "" };
    let answers = store.symbolize(&object, &vec![Address::Virtual(address); 20_000], Duration::ZERO);
    assert_eq!(store.symbolize(&object, &vec![Address::Virtual(address); 20_000], Duration::ZERO), answers);
    let frames: Vec<_> = answers.into_iter().map(Result::unwrap).collect();
    assert_eq!(frames[0].len(), deepest, "few are as deep as they are");
    for frames in &frames {
        assert_eq!(frames.iter().any(|frame| frame.is_cut), frames.len() < deepest, "what is left out is said");
    }
    assert!(frames.iter().map(|frames| frames.len()).sum::<usize>() <= 20_000 * (FRAMES_PER_ADDRESS_MAX + 1));
    assert!(frames.iter().all(|frames| &*frames.last().unwrap().function == "deep"));
    assert_eq!(depth(address), deepest, "a response without inlined calls is not cached");
}

#[test]
fn a_conversion_beyond_its_memory_limit_reports_this_reason() {
    if !have(&["rustc", "nm"]) {
        return;
    }
    let workshop = StoreWorkshop::new();
    workshop.write("program.rs", "fn main() { println!(\"{:?}\", std::env::args().collect::<Vec<_>>()); }\n");
    workshop.run("rustc -g -C link-arg=-Wl,--build-id program.rs -o program");
    let limits = Limits { conversion_memory_bytes_max: 24 << 20, ..Limits::DEFAULT };
    let refused = add(&store_with(&workshop, limits), &workshop.path("program")).unwrap_err();
    assert!(
        matches!(refused, AddError::Unusable(Unusable::MemoryExceeded { bytes_max }) if bytes_max == 24 << 20),
        "{refused:?}"
    );
}

#[test]
fn files_other_than_programs_are_refused_with_the_reason() {
    if !have(&["gcc", "strip", "nm"]) {
        return;
    }
    let workshop = StoreWorkshop::new();
    build(&workshop);
    let store = workshop.store();
    workshop.run("gcc -g -c nested.c -o nested.o");
    workshop.run("gcc -Wl,--build-id=none nested.c -o anonymous");
    workshop.run("objcopy --only-keep-debug anonymous anonymous.debug");
    workshop.run("strip -o stripped nested");
    let refused = |name: &str| add(&store, &workshop.path(name)).unwrap_err();
    assert!(matches!(refused("nested.c"), AddError::Elf(ElfError::NotElf)));
    assert!(matches!(refused("nested.o"), AddError::NoBuildId));
    assert!(matches!(refused("anonymous.debug"), AddError::NoBuildId));
    assert!(matches!(refused("stripped"), AddError::Stripped));
    // A program without a build ID is identified by a hash.
    let added = add(&store, &workshop.path("anonymous")).unwrap();
    assert!(added.build_id.to_string().starts_with("htlhash:"));

    // A sparse file is one byte larger than the limit of 4 GiB. It is refused by its size alone.
    fs::copy(workshop.path("nested"), workshop.path("sparse")).unwrap();
    OpenOptions::new().write(true).open(workshop.path("sparse")).unwrap().set_len((4 << 30) + 1).unwrap();
    assert!(matches!(refused("sparse"), AddError::Unusable(Unusable::TooLarge { .. })));
    assert_sound(&workshop, &store);
}
