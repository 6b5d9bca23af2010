//! Rules that are derived from instructions, compared with those that compilers write.

use std::path::PathBuf;

use object::{Object as _, ObjectSection as _};

use super::super::call_frames::tests::oracle;
use super::super::rule::{Cfa, Register, Saved};
use super::*;

/// Returns files that have call frame information, with which the derived rules are compared.
fn described() -> Vec<PathBuf> {
    if let Ok(files) = std::env::var("VARVE_INSTRUCTIONS_OF") {
        return files.split(' ').map(PathBuf::from).collect();
    }
    let libraries = ["/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64"].map(PathBuf::from);
    let libraries = libraries.into_iter().find(|folder| folder.join("libc.so.6").exists()).unwrap();
    ["libc.so.6", "libm.so.6"].map(|name| libraries.join(name)).to_vec()
}

/// True if two rules lead to the same caller.
fn agree(frame: &Frame, described: &Rule) -> bool {
    let (derived, Rule::Frame { cfa, fp, bx, .. }) = (frame.rule(), described) else { return false };
    let Rule::Frame { fp: derived_fp, bx: derived_bx, .. } = derived else { return false };
    // A register that is saved may still be in place, or be in place again.
    let same = |derived: Saved, is_saved: &dyn Fn(Saved) -> bool, described: Saved| {
        derived == described || derived == Saved::InPlace && is_saved(described)
    };
    let [saved_fp, saved_bx] = frame.saved();
    let is_saved = |saved: Option<Saved>| move |described| saved == Some(described) || frame.is_below_stack(described);
    frame.cfas().contains(&Some(*cfa))
        && same(derived_fp, &is_saved(saved_fp), *fp)
        && same(derived_bx, &is_saved(saved_bx), *bx)
}

#[test]
fn derived_rules_agree_with_those_of_compilers() {
    for path in described() {
        let bytes = std::fs::read(&path).unwrap();
        let file = object::File::parse(&*bytes).unwrap();
        let text = file.section_by_name(".text").unwrap();
        let stretch = Stretch { address: text.address(), code: text.data().unwrap().to_vec() };
        let mut analysis = Analysis::new(&stretch, &called(&stretch).into_iter().collect());
        analysis.run(0);
        let code = &stretch.code;
        let mut right = 0;
        let mut wrong = Vec::new();
        let mut nothing = 0;
        for (address, described) in oracle(&bytes, text.address()..text.address() + code.len() as u64) {
            match analysis.known[(address - text.address()) as usize] {
                _ if described == Rule::Unknown => {}
                INSIDE => {}
                NOTHING => nothing += 1,
                number if agree(&analysis.frame(number), &described) => right += 1,
                number => wrong.push((address, analysis.frame(number), described)),
            }
        }
        eprintln!(
            "{}: {right} right, {} wrong, nothing of {nothing} of {} bytes",
            path.display(),
            wrong.len(),
            code.len()
        );
        assert!(
            wrong.len() * 1000 < right,
            "{}: {right} right, wrong: {:x?}",
            path.display(),
            &wrong[..wrong.len().min(9)]
        );
        assert!(nothing * 8 < code.len(), "{}: nothing of {nothing} of {} bytes", path.display(), code.len());
    }
}

fn frame_of(cfa: i32, fp: Saved, bx: Saved) -> Rule {
    Rule::Frame { cfa: Cfa::Register { base: Register(7), offset: cfa }, fp, bx, return_address: -1 }
}

/// Returns the rule at instruction `last` of a called function.
fn last_rule(code: &[u8], last: usize) -> Rule {
    // A call is added after the code, so that the code is a called function.
    let call = (-(code.len() as i32) - 5).to_le_bytes();
    let code = [code, &[0xe8], &call, &[0xf4]].concat();
    let stretch = Stretch { address: 0x1000, code };
    let derived = rules(&[stretch], 0).remove(0);
    derived.into_iter().take_while(|(address, _)| *address <= 0x1000 + last as u64).last().unwrap().1
}

#[test]
fn each_instruction_changes_the_frame_as_the_processor_does() {
    use Saved::{AtCfa, InPlace};
    let called = frame_of(8, InPlace, InPlace);
    let cases: [(&str, &[u8], usize, Rule); 13] = [
        ("ret", &[0xc3], 0, called),
        ("push rax; pop rcx; ret", &[0x50, 0x59, 0xc3], 1, frame_of(16, InPlace, InPlace)),
        (
            "push rbx; mov ebx, 1; pop rbx; ret",
            &[0x53, 0xbb, 1, 0, 0, 0, 0x5b, 0xc3],
            6,
            frame_of(16, InPlace, AtCfa(-2)),
        ),
        ("push rbx; mov ebx, 1; pop rbx; ret", &[0x53, 0xbb, 1, 0, 0, 0, 0x5b, 0xc3], 7, called),
        ("push rbp; xor ebp, ebp; pop rbp; ret", &[0x55, 0x31, 0xed, 0x5d, 0xc3], 3, frame_of(16, AtCfa(-2), InPlace)),
        (
            "sub rsp, 24; mov [rsp+8], rbp; cmove rbp, rax; mov rbp, [rsp+8]; add rsp, 24; ret",
            &[
                0x48, 0x83, 0xec, 24, 0x48, 0x89, 0x6c, 0x24, 8, 0x48, 0x0f, 0x44, 0xe8, 0x48, 0x8b, 0x6c, 0x24, 8,
                0x48, 0x83, 0xc4, 24, 0xc3,
            ],
            13,
            frame_of(32, AtCfa(-3), InPlace),
        ),
        ("push 1; add rsp, 8; ret", &[0x6a, 1, 0x48, 0x83, 0xc4, 8, 0xc3], 2, frame_of(16, InPlace, InPlace)),
        // Code that does not restore the caller's state is not a function.
        ("xchg rbx, rax; ret", &[0x48, 0x93, 0xc3], 2, Rule::Unknown),
        ("pop rsp; ret", &[0x5c, 0xc3], 0, Rule::Unknown),
        ("leave; ret", &[0xc9, 0xc3], 0, Rule::Unknown),
        ("enter 16, 0; ret", &[0xc8, 16, 0, 0, 0xc3], 4, Rule::Unknown),
        ("ret 8", &[0xc2, 8, 0], 0, Rule::Unknown),
        ("push rax; ret", &[0x50, 0xc3], 1, Rule::Unknown),
    ];
    for (assembly, code, last, wanted) in cases {
        assert_eq!(last_rule(code, last), wanted, "{assembly}");
    }
    let framed = [0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xe4, 0xe0, 0xc9, 0xc3];
    let by_fp = Cfa::Register { base: Register(6), offset: 16 };
    let wanted = Rule::Frame { cfa: by_fp, fp: AtCfa(-2), bx: InPlace, return_address: -1 };
    assert_eq!(last_rule(&framed, 8), wanted, "push rbp; mov rbp, rsp; and rsp, -32; leave; ret");
}

#[test]
fn only_a_called_function_or_the_entry_point_is_outermost() {
    let clears = [0x31, 0xed, 0x58, 0xff, 0xd0, 0xf4];
    assert_eq!(last_rule(&clears, 2), Rule::Root, "xor ebp, ebp; pop rax; call rax; hlt");
    let alone = |entry| rules(&[Stretch { address: 0x1000, code: clears.to_vec() }], entry).remove(0);
    assert_eq!(
        alone(0),
        [(0x1000, Rule::Unknown)]
            .repeat(2)
            .into_iter()
            .zip([0, 6])
            .map(|((at, rule), more)| (at + more, rule))
            .collect::<Vec<_>>()
    );
    assert_eq!(alone(0x1000)[0], (0x1000, Rule::Root));
    // The entry point cannot be followed: it returns although nothing called it.
    let ends = rules(&[Stretch { address: 0x1000, code: vec![0x90, 0xc3] }], 0x1000).remove(0);
    assert_eq!(ends[0], (0x1000, Rule::Root));
}

#[test]
fn a_function_that_ends_in_the_code_of_another_returns() {
    // push rax; pop rax; ret | jmp to that ret | push rax; call the jump; pop rcx; ret | calls of the first and the
    // last
    let mut code = vec![0x50, 0x58, 0xc3, 0x90];
    code.extend([0xeb, 0xfc, 0x90, 0x90]);
    code.extend([0x50, 0xe8, 0xf6, 0xff, 0xff, 0xff, 0x59, 0xc3]);
    for function in [0, 8] {
        let from = code.len() as i32 + 5;
        code.push(0xe8);
        code.extend((function - from).to_le_bytes());
    }
    code.push(0xf4);
    let derived = rules(&[Stretch { address: 0x1000, code }], 0).remove(0);
    let after_call = derived.iter().take_while(|(address, _)| *address <= 0x100e).last().unwrap().1;
    assert_eq!(after_call, frame_of(16, Saved::InPlace, Saved::InPlace));
}

/// The worst case for the analysis: many functions continue in the same code, much padding follows it, and all
/// functions contradict the calling convention. An analysis that follows the shared code for each function exceeds the
/// time limit.
#[test]
fn adversarial_code_is_analysed_in_bounded_time() {
    const FUNCTIONS: usize = 40_000;
    let calls_at = FUNCTIONS * 16;
    let shared_at = calls_at + FUNCTIONS * 5;
    let relative = |to: usize, from: usize| (to as i32 - from as i32).to_le_bytes();
    let mut code = Vec::with_capacity(1 << 20);
    // je over the jmp; jmp to the shared code; push rax; ret
    for at in (0..calls_at).step_by(16) {
        code.extend([&[0x74, 5, 0xe9], &relative(shared_at, at + 7)[..], &[0x50, 0xc3], &[0x90; 7]].concat());
    }
    for (at, function) in (calls_at..).step_by(5).zip((0..calls_at).step_by(16)) {
        code.push(0xe8);
        code.extend(relative(function, at + 5));
    }
    // call rax; nop ...; ret
    code.extend([0xff, 0xd0]);
    code.resize((1 << 20) - 1, 0x90);
    code.push(0xc3);
    for entry in [0, 0x1000] {
        let started = std::time::Instant::now();
        let derived = rules(&[Stretch { address: 0x1000, code: code.clone() }], entry).remove(0);
        let took = started.elapsed();
        assert!(took < std::time::Duration::from_secs(10), "{took:?}");
        assert!(derived.is_sorted_by_key(|(address, _)| *address), "{entry}");
    }
}
