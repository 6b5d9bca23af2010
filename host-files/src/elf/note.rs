//! ELF notes.
//!
//! | name_len u32 | descriptor_len u32 | kind u32 | name, padded | descriptor, padded |
//!
//! Integers have the byte order of the file. Name and descriptor are padded to the alignment of the segment, 4 or 8
//! bytes.

/// A note.
pub(super) struct Note<'a> {
    name: &'a [u8],
    kind: u32,
    pub(super) descriptor: &'a [u8],
}

impl<'a> Note<'a> {
    pub(super) fn is_gnu_build_id(&self) -> bool {
        self.name == b"GNU\0" && self.kind == 3 && !self.descriptor.is_empty()
    }

    pub(super) fn go_build_id(&self) -> Option<&'a str> {
        let is_build_id = self.name == b"Go\0\0" && self.kind == 4;
        let id = std::str::from_utf8(self.descriptor).ok()?.trim_end_matches('\0');
        (is_build_id && !id.is_empty()).then_some(id)
    }
}

/// Iterates over the notes in `bytes`, up to the first incomplete one.
pub(super) fn notes(bytes: &[u8], align: usize, big_endian: bool) -> impl Iterator<Item = Note<'_>> {
    let mut rest = bytes;
    std::iter::from_fn(move || {
        let number = |at: usize| {
            let bytes = rest.get(at..)?.first_chunk().copied()?;
            Some(if big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
        };
        let (name_len, descriptor_len, kind) = (number(0)? as usize, number(4)? as usize, number(8)?);
        let name = rest.get(12..)?.get(..name_len)?;
        let descriptor_at = 12_usize.checked_add(name_len)?.checked_next_multiple_of(align)?;
        let descriptor = rest.get(descriptor_at..)?.get(..descriptor_len)?;
        let next = descriptor_at.checked_add(descriptor_len)?.checked_next_multiple_of(align)?;
        // The last note may have no padding.
        rest = rest.get(next..).unwrap_or_default();
        Some(Note { name, kind, descriptor })
    })
}

#[cfg(test)]
mod tests {
    use crate::elf::gnu_build_id;

    #[test]
    fn a_complete_build_id_is_found_among_other_notes() {
        let note = |name: &[u8], descriptor: &[u8], kind: u32| {
            let mut bytes = Vec::new();
            for number in [name.len() as u32, descriptor.len() as u32, kind] {
                bytes.extend(number.to_ne_bytes());
            }
            for part in [name, descriptor] {
                bytes.extend(part);
                bytes.resize(bytes.len().next_multiple_of(4), 0);
            }
            bytes
        };
        let notes = [note(b"Linux\0", b"\0\0\0\0\x01", 0x257), note(b"GNU\0", &[7; 20], 3)].concat();
        assert_eq!(gnu_build_id(&notes), Some(vec![7; 20]));
        for length in 0..notes.len() {
            assert_eq!(gnu_build_id(&notes[..length]), None, "{length}");
        }
        let mut endless = notes.clone();
        endless[0..4].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert_eq!(gnu_build_id(&endless), None);
    }
}
