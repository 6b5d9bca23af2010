use std::path::PathBuf;

use object::{Object as _, ObjectSection as _};

use super::super::call_frames::tests::oracle;
use super::super::rule::Saved;
use super::*;

/// Files that describe their functions, which is not told to whom has to find out.
fn described() -> Vec<PathBuf> {
    if let Ok(files) = std::env::var("VARVE_INSTRUCTIONS_OF") {
        return files.split(' ').map(PathBuf::from).collect();
    }
    let libraries = ["/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64"].map(PathBuf::from);
    let libraries = libraries.into_iter().find(|folder| folder.join("libc.so.6").exists()).unwrap();
    ["libc.so.6", "libm.so.6"].map(|name| libraries.join(name)).to_vec()
}

/// Whether two rules lead to the same caller.
fn agree(frame: &Frame, described: &Rule) -> bool {
    let (told, Rule::Frame { cfa, fp, bx, .. }) = (frame.rule(), described) else { return false };
    let Rule::Frame { fp: told_fp, bx: told_bx, .. } = told else { return false };
    // A register may have been saved, and be in place still.
    let same = |told: Saved, described: &Saved| told == *described || told == Saved::InPlace;
    frame.cfas().contains(&Some(*cfa)) && same(told_fp, fp) && same(told_bx, bx)
}

#[test]
fn instructions_tell_what_compilers_describe() {
    for path in described() {
        let bytes = std::fs::read(&path).unwrap();
        let file = object::File::parse(&*bytes).unwrap();
        let text = file.section_by_name(".text").unwrap();
        let stretch = Stretch { address: text.address(), code: text.data().unwrap().to_vec() };
        let mut analysis = Analysis::new(&stretch, &called(&stretch).into_iter().collect());
        analysis.run(0);
        let code = &stretch.code;
        let (mut right, mut wrong, mut nothing) = (0, Vec::new(), 0);
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
