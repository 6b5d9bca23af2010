//! The functions in the call frame information of a file: one for each frame description entry (FDE).
//!
//! Compilers write entries for unwinding, and assemblers write them for hand-written code with CFI directives.
//! Stripping keeps `.eh_frame`, so this section has the starts of functions whose symbols were stripped.
//!
//! Invariant: an unreadable entry is skipped by its length, and a section is read up to the first invalid length.

use std::collections::HashMap;

use gimli::{BaseAddresses, DebugFrame, EhFrame, EndianSlice, Reader as _, RunTimeEndian, UnwindOffset, UnwindSection};
use host_files::limits::CALL_FRAME_BYTES_MAX;
use object::read::elf::{ElfFile, ElfFile32, ElfFile64, FileHeader};
use object::{Endianness, Object as _, ObjectSection as _};

/// Adds the address ranges `start..end` of all functions with an entry in an ELF file, in the order of the file.
pub(super) fn add(bytes: &[u8], functions: &mut Vec<(u64, u64)>) {
    match object::FileKind::parse(bytes) {
        Ok(object::FileKind::Elf32) => {
            ElfFile32::<Endianness>::parse(bytes).iter().for_each(|file| add_elf(file, 4, functions));
        }
        Ok(object::FileKind::Elf64) => {
            ElfFile64::<Endianness>::parse(bytes).iter().for_each(|file| add_elf(file, 8, functions));
        }
        _ => {}
    }
}

fn add_elf<H: FileHeader>(file: &ElfFile<'_, H>, address_bytes: u8, functions: &mut Vec<(u64, u64)>) {
    let endian = if file.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big };
    let address = |name: &str| file.section_by_name(name).map_or(0, |section| section.address());
    let bases = BaseAddresses::default().set_text(address(".text")).set_got(address(".got"));
    for name in [".eh_frame", ".debug_frame"] {
        let Some(section) = file.section_by_name(name) else { continue };
        let Ok(content) = section.compressed_data() else { continue };
        if content.uncompressed_size > CALL_FRAME_BYTES_MAX {
            continue;
        }
        let Ok(content) = content.decompress() else { continue };
        if name == ".eh_frame" {
            let mut frames = EhFrame::new(&content, endian);
            frames.set_address_size(address_bytes);
            list(
                &frames,
                EndianSlice::new(&content, endian),
                &bases.clone().set_eh_frame(section.address()),
                functions,
            );
        } else {
            let mut frames = DebugFrame::new(&content, endian);
            frames.set_address_size(address_bytes);
            list(&frames, EndianSlice::new(&content, endian), &bases, functions);
        }
    }
}

/// Adds the functions of one section, whose content is `bytes`.
fn list<'a, S>(
    section: &S,
    bytes: EndianSlice<'a, RunTimeEndian>,
    bases: &BaseAddresses,
    functions: &mut Vec<(u64, u64)>,
) where
    S: UnwindSection<EndianSlice<'a, RunTimeEndian>>,
    S::Offset: UnwindOffset<usize>,
{
    // Thousands of entries share one common information entry (CIE), which is read once.
    let mut shared = HashMap::new();
    let mut rest = bytes;
    while let Some(offset) = next_entry(&mut rest, bytes) {
        let entry = section.fde_from_offset(bases, S::Offset::from(offset), |section, bases, offset| {
            let at: usize = UnwindOffset::into(offset);
            if let Some(known) = shared.get(&at) {
                return Ok(Clone::clone(known));
            }
            let read = section.cie_from_offset(bases, offset)?;
            shared.insert(at, read.clone());
            Ok(read)
        });
        // This also skips the CIEs, which cannot be read as FDEs.
        let Ok(entry) = entry else { continue };
        let start = entry.initial_address();
        let end = entry.end_address();
        // Linkers write address 0 into the entries of dropped functions.
        if 0 < start && start < end {
            functions.push((start, end));
        }
    }
}

/// Skips the next entry in `rest`, and returns its offset in `section`. `None` at the end, or at an invalid length.
fn next_entry<'a>(rest: &mut EndianSlice<'a, RunTimeEndian>, section: EndianSlice<'a, RunTimeEndian>) -> Option<usize> {
    let offset = rest.offset_from(section);
    let (length, _format) = rest.read_initial_length().ok()?;
    rest.skip(length).ok()?;
    (length > 0).then_some(offset)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::coverage::{Coverage, flatten};
    use super::*;

    const SECTION_AT: u64 = 0x5000;

    /// Returns an `.eh_frame` with the functions `start..start + length`, in the encoding of GCC and Clang on x86-64.
    fn eh_frame(functions: &[(u64, u64)]) -> Vec<u8> {
        let mut section = Vec::new();
        // CIE: id 0, version 1, augmentation "zR", code and data alignment, return address, encoding pcrel sdata4.
        let cie = [0, 0, 0, 0, 1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x1b, 0, 0, 0];
        section.extend((cie.len() as u32).to_le_bytes());
        section.extend(cie);
        for (start, length) in functions {
            section.extend(16_u32.to_le_bytes());
            let back_to_cie = section.len() as u32;
            section.extend(back_to_cie.to_le_bytes());
            let at = SECTION_AT + section.len() as u64;
            section.extend((*start as i32 - at as i32).to_le_bytes());
            section.extend((*length as u32).to_le_bytes());
            section.extend([0, 0, 0, 0]);
        }
        section.extend([0; 4]);
        section
    }

    fn listed_at(address: u64, section: &[u8]) -> Vec<(u64, u64)> {
        let mut frames = EhFrame::new(section, RunTimeEndian::Little);
        frames.set_address_size(8);
        let mut functions = Vec::new();
        let bytes = EndianSlice::new(section, RunTimeEndian::Little);
        list(&frames, bytes, &BaseAddresses::default().set_eh_frame(address), &mut functions);
        functions
    }

    fn listed(section: &[u8]) -> Vec<(u64, u64)> {
        listed_at(SECTION_AT, section)
    }

    /// Returns an ELF file whose only content is a section `.eh_frame` with these bytes.
    fn elf_with(eh_frame: &[u8]) -> Vec<u8> {
        let names = b"\0.shstrtab\0.eh_frame\0";
        let names_at = 64;
        let section_at = names_at + names.len() as u64;
        let headers_at = section_at + eh_frame.len() as u64;
        let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x3e\0\x01\0\0\0".to_vec();
        file.extend([0_u64, 0, headers_at].map(u64::to_le_bytes).concat());
        file.extend([0_u16, 0, 64, 0, 0, 64, 3, 1].map(u16::to_le_bytes).concat());
        file.extend(names);
        file.extend(eh_frame);
        let sections = [
            (0_u32, 0_u32, 0, 0, 0),
            (1, 3, 0, names_at, names.len() as u64),
            (11, 1, SECTION_AT, section_at, eh_frame.len() as u64),
        ];
        for (name, kind, address, offset, size) in sections {
            file.extend([name, kind].map(u32::to_le_bytes).concat());
            file.extend([0, address, offset, size, 0, 1, 0].map(u64::to_le_bytes).concat());
        }
        file
    }

    #[test]
    fn a_section_beyond_the_limit_is_not_read() {
        let mut section = eh_frame(&[(0x1000, 0x10)]);
        for (bytes, expected) in [(CALL_FRAME_BYTES_MAX, &[(0x1000, 0x1010)][..]), (CALL_FRAME_BYTES_MAX + 1, &[])] {
            section.resize(bytes as usize, 0);
            let mut functions = Vec::new();
            add(&elf_with(&section), &mut functions);
            assert_eq!(functions, expected, "{bytes} bytes");
        }
    }

    // Fails if an unreadable CIE ends the reading of the section, as it once did.
    #[test]
    fn an_unreadable_common_entry_is_skipped_with_its_functions_only() {
        let functions = [(0x1000, 0x10), (0x1020, 8)];
        // A CIE of version 99, and an FDE that refers to it.
        let mut section = [8, 0, 0, 0, 0, 0, 0, 0, 99, 0, 0, 0].to_vec();
        section.extend([16, 0, 0, 0, 16, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
        let before = section.len() as u64;
        section.extend(eh_frame(&functions));
        assert_eq!(listed_at(SECTION_AT - before, &section), [(0x1000, 0x1010), (0x1020, 0x1028)]);
    }

    proptest! {
        // Each address without a symbol must get the start that a search through all functions finds.
        #[test]
        fn every_address_without_a_symbol_has_the_start_of_its_function(
            functions in proptest::collection::vec((1_u64..120, 0_u64..40), 0..12),
            symbols in proptest::collection::vec((0_u64..150, 1_u64..20), 0..6),
        ) {
            let listed = listed(&eh_frame(&functions));
            let symbols: Vec<_> = symbols.iter().map(|(start, length)| (*start, start + length)).collect();
            let taken = Coverage::new(symbols.clone());
            let pieces = flatten(listed.iter().map(|(start, end)| (*start, *end, *start)).collect());
            let filled: Vec<_> = pieces.iter().flat_map(|(start, end, of)| {
                taken.gaps(*start, *end).into_iter().map(move |gap| (gap.0, gap.1, *of))
            }).collect();
            for address in 0..200 {
                let around_address = filled.iter().filter(|gap| (gap.0..gap.1).contains(&address));
                let found: Vec<u64> = around_address.map(|gap| gap.2).collect();
                let has_symbol = symbols.iter().any(|(start, end)| (*start..*end).contains(&address));
                let around = functions.iter().filter(|(start, length)| (*start..start + length).contains(&address));
                let expected = around.map(|(start, _)| *start).max().filter(|_| !has_symbol);
                prop_assert_eq!(found, expected.into_iter().collect::<Vec<_>>(), "{:#x}", address);
            }
        }

        #[test]
        fn arbitrary_bytes_are_read_in_bounded_time(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..300),
            at in 0_usize..300,
        ) {
            let _few = listed(&bytes);
            let whole = eh_frame(&[(0x1000, 16), (0x2000, 16)]);
            bytes.truncate(4);
            let mut damaged = whole.clone();
            let at = at % whole.len();
            damaged.splice(at..(at + bytes.len()).min(whole.len()), bytes);
            prop_assert!(listed(&damaged).len() <= whole.len());
        }
    }
}
