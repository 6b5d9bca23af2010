//! Start lines of functions (`DW_AT_decl_line`), which symbolic does not read.
//!
//! A start line is found by the name of the function and the last part of the path of its file. The name alone is not
//! enough, because a C program may have `static` functions of one name in many files.

use std::borrow::Cow;
use std::collections::HashMap;

use symbolic_debuginfo::dwarf::Dwarf as _;
use symbolic_debuginfo::dwarf::gimli::{self, AttributeValue, EndianSlice, RunTimeEndian, constants};
use symbolic_debuginfo::elf::ElfObject;

type Bytes<'a> = EndianSlice<'a, RunTimeEndian>;
type Entry<'a> = gimli::DebuggingInformationEntry<Bytes<'a>>;

/// Largest number of DWARF entries that are read for one function. Each refers to the next, for example an instance to
/// its abstract instance, and that to the declaration.
const CHAIN_MAX: usize = 4;

/// Start lines by function name, then by the last part of the file's path.
#[derive(Debug, Default)]
pub(super) struct StartLines {
    by_name: HashMap<String, Vec<(String, u32)>>,
}

impl StartLines {
    /// Reads the start lines of all units. A damaged unit is read up to the damage.
    pub(super) fn read(elf: &ElfObject<'_>) -> Self {
        let mut lines = Self::default();
        let section = |id: gimli::SectionId| {
            let name = id.name().trim_start_matches('.');
            Ok::<_, gimli::Error>(elf.section(name).map_or(Cow::Borrowed(&[][..]), |section| section.data))
        };
        let Ok(sections) = gimli::DwarfSections::load(section) else { return lines };
        let dwarf = sections.borrow(|bytes| EndianSlice::new(bytes, elf.endianity()));
        let mut headers = dwarf.units();
        while let Ok(Some(header)) = headers.next() {
            if let Ok(unit) = dwarf.unit(header) {
                // Lines that were read before the damage are kept.
                lines.add_unit(&dwarf, &unit).unwrap_or_default();
            }
        }
        lines
    }

    /// Returns the start line of the function `name` in `file`, or 0 if it is unknown.
    pub(super) fn get(&self, name: &str, file: &str) -> u32 {
        let known = self.by_name.get(name).map_or(&[][..], Vec::as_slice);
        known.iter().find(|(known_file, _)| known_file == last_part(file)).map_or(0, |(_, line)| *line)
    }

    fn add_unit<'a>(&mut self, dwarf: &gimli::Dwarf<Bytes<'a>>, unit: &gimli::Unit<Bytes<'a>>) -> gimli::Result<()> {
        let mut entries = unit.entries();
        while let Some(entry) = entries.next_dfs()? {
            let has_name_or_line = [constants::DW_AT_linkage_name, constants::DW_AT_name, constants::DW_AT_decl_line]
                .into_iter()
                .any(|attribute| entry.attr(attribute).is_some());
            let is_definition = entry.tag() == constants::DW_TAG_subprogram
                && entry.attr(constants::DW_AT_declaration).is_none()
                && has_name_or_line;
            if is_definition && let Some((name, file, line)) = describe(dwarf, unit, entry) {
                let known = self.by_name.entry(name).or_default();
                if !known.iter().any(|(known_file, _)| *known_file == file) {
                    known.push((file, line));
                }
            }
        }
        Ok(())
    }
}

/// Returns the name, the file and the start line of the function that `entry` describes, together with the entries to
/// which it refers.
fn describe<'a>(
    dwarf: &gimli::Dwarf<Bytes<'a>>,
    unit: &gimli::Unit<Bytes<'a>>,
    entry: &Entry<'a>,
) -> Option<(String, String, u32)> {
    let mut linkage_name = None;
    let mut name = None;
    let mut file = None;
    let mut line = None;
    let mut next = Some(entry.clone());
    for _ in 0..CHAIN_MAX {
        let Some(entry) = next.take() else { break };
        let text = |attribute| entry.attr_value(attribute).and_then(|value| dwarf.attr_string(unit, value).ok());
        let number = |attribute| entry.attr(attribute).and_then(gimli::Attribute::udata_value);
        linkage_name = linkage_name.or_else(|| text(constants::DW_AT_linkage_name));
        name = name.or_else(|| text(constants::DW_AT_name));
        file = file.or_else(|| file_index(entry.attr_value(constants::DW_AT_decl_file)?));
        line = line.or_else(|| number(constants::DW_AT_decl_line));
        let reference = [constants::DW_AT_abstract_origin, constants::DW_AT_specification]
            .into_iter()
            .find_map(|attribute| entry.attr_value(attribute));
        if let Some(AttributeValue::UnitRef(offset)) = reference {
            next = unit.entry(offset).ok();
        }
    }
    let program = unit.line_program.as_ref()?.header();
    let file = dwarf.attr_string(unit, program.file(file?)?.path_name()).ok()?;
    let name = linkage_name.or(name)?.to_string_lossy().into_owned();
    Some((name, last_part(&file.to_string_lossy()).to_owned(), u32::try_from(line?).ok()?))
}

fn file_index(value: AttributeValue<Bytes<'_>>) -> Option<u64> {
    match value {
        AttributeValue::FileIndex(index) => Some(index),
        other => other.udata_value(),
    }
}

fn last_part(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}
