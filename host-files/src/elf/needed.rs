//! The libraries that a 64-bit ELF file needs (`DT_NEEDED`).

use std::fs::File;

use super::ElfError;
use super::header::{Header, read_range};
use crate::limits;

/// Tag of an entry with the name of a library, as an offset in the table of strings.
const DT_NEEDED: u64 = 1;

/// Returns the names of the libraries that a file needs, such as `libc.so.6`. Names that are too long or not UTF-8 are
/// left out.
///
/// # Errors
/// Any [`ElfError`].
pub fn needed_libraries(file: &File) -> Result<Vec<String>, ElfError> {
    let header = Header::read(file)?;
    if !header.wide || header.big_endian != cfg!(target_endian = "big") {
        return Ok(Vec::new());
    }
    let Some([Some(dynamic), Some(strings)]) = header.find_sections(file, [b".dynamic", b".dynstr"]) else {
        return Ok(Vec::new());
    };
    let entries = read_range(file, dynamic.offset, dynamic.size.min(limits::DYNAMIC_BYTES_MAX)).unwrap_or_default();
    let entries = entries.as_chunks::<8>().0.as_chunks::<2>().0.iter();
    let names = entries.filter(|[tag, _]| u64::from_ne_bytes(*tag) == DT_NEEDED).filter_map(|[_, at]| {
        let at = u64::from_ne_bytes(*at);
        let bytes = strings.size.checked_sub(at)?.min(limits::LIBRARY_NAME_BYTES_MAX);
        let name = read_range(file, strings.offset.checked_add(at)?, bytes)?;
        let end = name.iter().position(|byte| *byte == 0)?;
        String::from_utf8(name[..end].to_vec()).ok()
    });
    Ok(names.collect())
}
