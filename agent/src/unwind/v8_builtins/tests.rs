//! Rules of code that is written here, and of random code.

use rand_xoshiro::SplitMix64;
use rand_xoshiro::rand_core::{RngCore as _, SeedableRng as _};

use super::*;
use crate::unwind::tests::damage::number;

const START: u64 = 0x10_0000;

/// Returns the rules of functions, each aligned as V8 aligns it.
fn rules_of(functions: &[&[u8]]) -> Vec<(u64, Rule)> {
    let mut code = Vec::new();
    for function in functions {
        code.extend(*function);
        // V8 places at least one trap after a function.
        code.resize((code.len() + 1).next_multiple_of(ALIGNMENT as usize), 0xcc);
    }
    rules(&Stretch { address: START, code })
}

fn rule_at(rules: &[(u64, Rule)], offset: u64) -> Rule {
    rules[rules.partition_point(|(at, _)| *at <= START + offset) - 1].1
}

fn by_sp(offset: i32) -> Rule {
    let cfa = Cfa::Register { base: SP, offset };
    Rule::Frame { cfa, fp: Saved::InPlace, bx: Saved::InPlace, return_address: -1 }
}

fn by_fp(bx: Saved) -> Rule {
    let cfa = Cfa::Register { base: FP, offset: 16 };
    Rule::Frame { cfa, fp: Saved::AtCfa(-2), bx, return_address: -1 }
}

#[test]
fn handlers_have_no_frame_and_functions_have_one_with_a_frame_pointer() {
    // sub rsp, 24; add rsp, 24; jmp rcx
    let handler = [0x48, 0x83, 0xec, 24, 0x48, 0x83, 0xc4, 24, 0xff, 0xe1];
    // push rbp; mov rbp, rsp; push rsi; mov rsp, rbp; pop rbp; ret 16
    let function = [0x55, 0x48, 0x89, 0xe5, 0x56, 0x48, 0x89, 0xec, 0x5d, 0xc2, 16, 0];
    let rules = rules_of(&[&handler, &function]);
    let handler = [0, 4, 8].map(|offset| rule_at(&rules, offset));
    assert_eq!(handler, [by_sp(8), by_sp(32), by_sp(8)]);
    let function = [0, 1, 4, 5, 8, 9].map(|offset| rule_at(&rules, 32 + offset));
    let own = by_fp(Saved::InPlace);
    assert_eq!(function, [by_sp(8), by_sp(16), own, own, own, by_sp(8)]);
}

#[test]
fn code_that_continues_in_a_frame_has_that_frame_from_its_start() {
    // mov rax, [rbp - 16]; leave; ret
    let continued = [0x48, 0x8b, 0x45, 0xf0, 0xc9, 0xc3];
    let rules = rules_of(&[&[0xc3], &continued]);
    let own = by_fp(Saved::InPlace);
    // The padding before it has the frame, too.
    let found = [0, 31, 32, 36, 37].map(|offset| rule_at(&rules, offset));
    assert_eq!(found, [by_sp(8), own, own, own, by_sp(8)]);
}

#[test]
fn the_entry_from_native_code_restores_bx() {
    // push rbp; mov rbp, rsp; push 2; sub rsp, 8; push r12 to r15; push rbx; ret
    let entry = [
        0x55, 0x48, 0x89, 0xe5, 0x6a, 2, 0x48, 0x83, 0xec, 8, 0x41, 0x54, 0x41, 0x55, 0x41, 0x56, 0x41, 0x57, 0x53,
        0x90,
    ];
    let rules = rules_of(&[&entry]);
    assert_eq!(rule_at(&rules, 18), by_fp(Saved::InPlace));
    assert_eq!(rule_at(&rules, 19), by_fp(Saved::AtCfa(-9)));
}

#[test]
fn a_jump_over_a_trap_stays_in_its_function() {
    // push rbp; mov rbp, rsp; 24 times nop; jb over two traps, to the aligned nop; leave; ret
    let head = [&[0x55, 0x48, 0x89, 0xe5][..], &[0x90; 24], &[0x72, 2, 0xcc, 0xcc], &[0x90, 0xc9, 0xc3]].concat();
    let rules = rules_of(&[&head]);
    assert_eq!(
        [28, 32, 34].map(|offset| rule_at(&rules, offset)),
        [by_fp(Saved::InPlace), by_fp(Saved::InPlace), by_sp(8)]
    );
}

#[test]
fn a_return_address_that_moves_is_next_to_the_frame_pointer() {
    // pop rax; push rcx; push rax; push rbp; mov rbp, rsp; nop
    let rules = rules_of(&[&[0x58, 0x51, 0x50, 0x55, 0x48, 0x89, 0xe5, 0x90]]);
    let found = [1, 2, 3, 7].map(|offset| rule_at(&rules, offset));
    assert_eq!(found, [by_sp(0), Rule::Unknown, Rule::Unknown, by_fp(Saved::InPlace)]);
}

#[test]
fn random_code_has_ascending_rules_within_it() {
    let mut random = SplitMix64::seed_from_u64(number("VARVE_UNWIND_SEED", 1));
    for _ in 0..300 {
        // Half of the bytes are those of frames, so that the states are rich.
        let common = [0x55, 0x5d, 0xc9, 0xc3, 0x50, 0x58, 0xcc, 0x48, 0x89, 0xe5, 0xec, 0x74, 0xe8, 0xeb];
        let code: Vec<u8> = (0..2000)
            .map(|_| match random.next_u64() {
                word if word & 1 == 0 => common[(word >> 8) as usize % common.len()],
                word => (word >> 8) as u8,
            })
            .collect();
        let rules = rules(&Stretch { address: START, code });
        assert!(rules.windows(2).all(|pair| pair[0].0 <= pair[1].0));
        assert_eq!(rules.last(), Some(&(START + 2000, Rule::Unknown)));
    }
}
