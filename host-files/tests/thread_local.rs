//! Thread-local variables of files that gcc makes, compared with readelf and with the running program.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::fs::File;

use host_files::elf::ThreadLocal;
use testkit::workshop::{Workshop, have};

/// A file with several thread-local variables. As a program, it prints the offset of `wanted` from the thread's base.
const SOURCE: &str = r#"
#include <stdio.h>
__thread char small = 1;
__thread long wanted __attribute__((aligned(64))) = 2;
__thread char zeros[100];
static __thread long hidden;
void *addresses[3];
void use(void) { addresses[0] = &wanted; addresses[1] = &hidden; addresses[2] = &zeros; small++; }
int main(void) { use(); printf("%ld\n", (long)((char *)&wanted - (char *)__builtin_thread_pointer())); return 0; }
"#;

fn compile(flags: &str) -> Workshop {
    let workshop = Workshop::default();
    workshop.write("variables.c", SOURCE);
    workshop.run(&format!("gcc -O1 {flags} variables.c -o file"));
    workshop
}

fn find(workshop: &Workshop, name: &str) -> Option<ThreadLocal> {
    ThreadLocal::find(&File::open(workshop.path("file")).unwrap(), name).unwrap()
}

#[test]
fn a_variable_of_a_program_is_where_the_program_itself_finds_it() {
    if !have(&["gcc"]) || cfg!(not(target_arch = "x86_64")) {
        return;
    }
    for flags in ["", "-no-pie", "-mtls-dialect=gnu2"] {
        let workshop = compile(&format!("-rdynamic {flags}"));
        let printed: i64 = workshop.run("./file").trim().parse().unwrap();
        assert_eq!(find(&workshop, "wanted"), Some(ThreadLocal::InProgram(printed)), "{flags}");
        // Functions, and variables that the file does not export, are no thread-local variables of that name.
        assert_eq!((find(&workshop, "use"), find(&workshop, "hidden")), (None, None), "{flags}");
    }
    assert_eq!(find(&compile(""), "wanted"), None, "the program does not export it");
}

#[test]
fn the_way_to_a_variable_of_a_library_is_that_of_its_relocation() {
    if !have(&["gcc", "readelf"]) || cfg!(not(target_arch = "x86_64")) {
        return;
    }
    let own = |line: &&str| line.contains(" wanted ");
    for (flags, kind, way) in [
        ("", "R_X86_64_DTPMOD64", ThreadLocal::Pair as fn(u64) -> ThreadLocal),
        ("-mtls-dialect=gnu2", "R_X86_64_TLSDESC", ThreadLocal::Descriptor),
        ("-mtls-dialect=gnu2 -Wl,-z,now", "R_X86_64_TLSDESC", ThreadLocal::Descriptor),
        ("-ftls-model=initial-exec", "R_X86_64_TPOFF64", ThreadLocal::Slot),
    ] {
        let workshop = compile(&format!("-shared -fPIC {flags}"));
        let relocations = workshop.run("readelf -rW file");
        let line = relocations.lines().filter(own).find(|line| line.contains(kind)).unwrap();
        let address = u64::from_str_radix(line.split_whitespace().next().unwrap(), 16).unwrap();
        assert_eq!(find(&workshop, "wanted"), Some(way(address)), "{flags}: {relocations}");
    }
}

#[test]
fn a_damaged_file_is_read_or_refused() {
    if !have(&["gcc"]) {
        return;
    }
    let workshop = compile("-shared -fPIC -mtls-dialect=gnu2");
    let bytes = std::fs::read(workshop.path("file")).unwrap();
    let find = |bytes: &[u8]| {
        let path = workshop.write("changed", bytes);
        ThreadLocal::find(&File::open(path).unwrap(), "wanted").ok().flatten()
    };
    assert!(find(&bytes).is_some());
    // All headers and tables are changed at some place.
    let mut changed = bytes.clone();
    let mut differ = 0;
    for at in (0..64).chain((64..bytes.len()).step_by(61)) {
        changed[at] ^= 0xff;
        differ += usize::from(find(&changed) != find(&bytes));
        changed[at] = bytes[at];
    }
    assert!(0 < differ);
    assert!((0..bytes.len()).step_by(997).all(|length| find(&bytes[..length]).is_none()), "section headers come last");
}
