//! Rules from call frame information, compared with those of gimli's own search.

use object::{Object as _, ObjectSection as _};

use super::*;

/// Returns the table of an ELF file, and the ranges of its code.
fn table(bytes: &[u8]) -> (super::super::table::UnwindTable, Vec<(u64, u64)>) {
    let file = object::File::parse(bytes).unwrap();
    let section = |name| {
        let section = file.section_by_name(name)?;
        Some(Section { bytes: section.data().ok()?, address: section.address() })
    };
    let frames = CallFrames { eh_frame: section(".eh_frame"), entry: file.entry(), ..CallFrames::default() };
    let mut builder = TableBuilder::default();
    let started = std::time::Instant::now();
    frames.add_to(&mut builder, || None, |_| None).unwrap();
    let table = builder.finish().unwrap();
    eprintln!("{} rows, {} rules, {} KB, {:?}", table.rows(), table.rules, table.bytes() >> 10, started.elapsed());
    let code = file.sections().filter(|section| section.kind() == object::SectionKind::Text);
    (table, code.map(|code| (code.address(), code.address() + code.size())).collect())
}

/// Returns the rules that gimli finds by its own search for addresses.
pub(in super::super) fn oracle(bytes: &[u8], addresses: impl Iterator<Item = u64>) -> Vec<(u64, Rule)> {
    let file = object::File::parse(bytes).unwrap();
    let section = file.section_by_name(".eh_frame").unwrap();
    let eh_frame = EhFrame::new(section.data().unwrap(), NativeEndian);
    let text = file.section_by_name(".text").map_or(0, |text| text.address());
    let header = file.section_by_name(".eh_frame_hdr").unwrap();
    let bases =
        BaseAddresses::default().set_text(text).set_eh_frame(section.address()).set_eh_frame_hdr(header.address());
    let parsed = gimli::EhFrameHdr::new(header.data().unwrap(), NativeEndian).parse(&bases, 8).unwrap();
    let index = parsed.table().unwrap();
    let mut context = UnwindContext::new();
    let mut rule_at = |address| {
        let fde = index.fde_for_address(&eh_frame, &bases, address, EhFrame::cie_from_offset).ok()?;
        if fde.is_signal_trampoline() {
            return Some(Rule::Signal);
        }
        let encoding = fde.cie().encoding();
        let row = fde.unwind_info_for_address(&eh_frame, &bases, &mut context, address).ok()?;
        Some(rule(row, &eh_frame, encoding))
    };
    addresses.map(|address| (address, rule_at(address).unwrap_or(Rule::Unknown))).collect()
}

#[test]
fn addresses_of_the_c_library_and_this_test_have_the_rules_of_gimli() {
    let libc = crate::process::maps::Maps::of_process(std::process::id()).unwrap();
    let libc = libc.iter().find_map(|mapping| match &mapping.backing {
        crate::process::maps::Backing::File { path, .. } if path.contains("libc.so") => Some(path.to_string()),
        _ => None,
    });
    let this = std::env::current_exe().unwrap().to_str().unwrap().to_owned();
    for (path, step) in libc.into_iter().map(|libc| (libc, 13)).chain([(this, 8191)]) {
        let bytes = std::fs::read(&path).unwrap();
        let (table, code) = table(&bytes);
        let addresses = code.iter().flat_map(|&(start, end)| (start..end).step_by(step));
        let mut known = 0;
        let mut compared = 0;
        for (address, wanted) in oracle(&bytes, addresses) {
            let got = table.rule(address);
            compared += 1;
            if wanted == Rule::Unknown {
                // Padding and the entry point have no description.
                continue;
            }
            known += 1;
            assert_eq!(got, wanted.to_bytes(), "{path} at {address:#x}: {wanted:?}");
        }
        assert!(known * 10 > compared * 9, "{path}: {known} of {compared}");
    }
}

#[test]
fn an_entry_point_before_undescribed_code_takes_no_rules_from_it() {
    // Functions of `push rax; call rax; pop rcx; ret`.
    let code = [0x50, 0xff, 0xd0, 0x59, 0xc3, 0x90, 0x90, 0x90].repeat(100);
    let frames = CallFrames { text: 0x1008..0x1008 + code.len() as u64, entry: 0x1000, ..CallFrames::default() };
    let mut builder = TableBuilder::default();
    frames.add_to(&mut builder, || None, |_| Some(code.clone())).unwrap();
    let table = builder.finish().unwrap();
    let pushed = |offset| {
        let cfa = Cfa::Register { base: Register(7), offset };
        Rule::Frame { cfa, fp: Saved::InPlace, bx: Saved::InPlace, return_address: -1 }
    };
    let rules = [0x1000, 0x1048, 0x1049, 0x104c].map(|address| table.rule(address));
    let wanted = [Rule::Root, pushed(8), pushed(16), pushed(8)];
    assert_eq!(rules, wanted.map(Rule::to_bytes));
}
