//! Tests of the hashes that identify functions, locations, stacks and series in stored data.
//!
//! The hashes are part of the format. The expected values were computed from the text of FORMAT.md with the reference
//! implementation of xxh3. A change of any value changes the format.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use proto::dictionary::stack_hash;
use proto::{Address, BuildId, Dictionary, Function, Label, LabelSet, Line, Location, Mapping, StackHash, TenantId};

const MAIN: u128 = 0x1c22_923f_e034_1e93_9a56_2179_3c93_1f61;
const NAMELESS_FILE: u128 = 0x347e_b47e_e845_6c42_6ae9_b52b_3be0_c984;
const ADDRESS: u128 = 0xd808_3e64_c7b2_0b08_9be1_0566_0c17_2248;
const FILE_OFFSET: u128 = 0x143d_78e2_7a7c_05e6_f10b_fa88_e1d5_40dc;
const WITHOUT_BUILD_ID: u128 = 0x3da6_4c6a_7f58_f11b_307c_d293_80ef_801b;
const LINES: u128 = 0xbcfa_4363_c12d_b4ce_db23_1ae6_fa09_8d2e;
const NO_LINES: u128 = 0x48de_43a9_4a84_59e6_b0a4_254e_a7fb_48a4;
const STACK: u128 = 0x2660_8a3c_d2ab_25a1_2c20_7fee_6e27_64ae;
const SERIES: u128 = 0xaf63_ccfd_eb34_ab46_0195_9804_11c1_fb24;

fn function(to: &mut Dictionary, [name, system_name, file]: [&str; 3], start_line: i64) -> u32 {
    let [name, system_name, file] = [name, system_name, file].map(|text| to.strings.intern(text));
    to.intern_function(Function { name, system_name, file, start_line })
}

/// Adds locations of every kind, in the order of [`LOCATIONS`]. Returns the IDs of the locations.
fn locations(to: &mut Dictionary) -> [u32; 5] {
    // This text changes all later IDs of strings, on which identities must not depend.
    to.strings.intern("shifts all ids");
    let main = function(to, ["main", "_Z4mainv", "/src/main.c"], 7);
    let lambda = function(to, ["λ", "", ""], -1);
    assert_eq!([to.functions.hash(main), to.functions.hash(lambda)], [MAIN, NAMELESS_FILE]);
    let [app, native, kernel, python, empty] =
        ["/usr/bin/app", "native", "kernel", "cpython", ""].map(|text| to.strings.intern(text));
    let build_id = BuildId::parse("gnu:0102030405060708").unwrap();
    let by_build_id = to.intern_mapping(Mapping { build_id: Some(build_id), file: app });
    let by_file = to.intern_mapping(Mapping { build_id: None, file: app });
    let address = |mapping, address, frame_type| Location::Address { mapping, address, frame_type };
    let line = |function, line, column| Line { function, line, column };
    let lines = [line(lambda, 12, 3), line(main, 40, 0)].into_iter().collect();
    [
        address(by_build_id, Address::Virtual(0x1234), native),
        address(by_build_id, Address::FileOffset(0x1234), native),
        address(by_file, Address::Virtual(u64::MAX), kernel),
        Location::Lines { mapping_file: app, frame_type: python, lines },
        Location::Lines { mapping_file: empty, frame_type: empty, lines: Default::default() },
    ]
    .map(|location| to.intern_location(location))
}

const LOCATIONS: [u128; 5] = [ADDRESS, FILE_OFFSET, WITHOUT_BUILD_ID, LINES, NO_LINES];

#[test]
fn functions_and_locations_have_the_hashes_of_the_format() {
    let mut dictionary = Dictionary::default();
    let ids = locations(&mut dictionary);
    assert_eq!(ids.map(|id| dictionary.location_hash(id)), LOCATIONS);
}

#[test]
fn stacks_have_the_hashes_of_the_format() {
    let leaf_first = [LINES, ADDRESS, FILE_OFFSET, WITHOUT_BUILD_ID, NO_LINES];
    assert_eq!(stack_hash(&leaf_first), StackHash(STACK));
    assert_eq!(stack_hash(&[]), StackHash(0));
}

#[test]
fn series_have_the_fingerprints_of_the_format() {
    let labels = LabelSet::new(vec![Label::new("service_name", "api"), Label::new("region", "eu")]);
    assert_eq!(labels.fingerprint(&TenantId::default_tenant()).0, SERIES);
}
