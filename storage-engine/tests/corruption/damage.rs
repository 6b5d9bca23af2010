//! Kinds of damage, and functions that apply them to bytes.

use testkit::random::Random;

/// One kind of damage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Damage {
    FlippedBit,
    ZeroedPage,
    Truncated,
    /// The bytes are swapped with those of another value, or with other bytes of the file.
    Swapped,
    /// The content of a value is changed, and the checksum is computed from the changed content, as faulty software
    /// would do.
    Rewritten,
}

impl Damage {
    pub(crate) const OF_FILES: [Self; 4] = [Self::FlippedBit, Self::ZeroedPage, Self::Truncated, Self::Swapped];
    pub(crate) const OF_VALUES: [Self; 5] =
        [Self::FlippedBit, Self::ZeroedPage, Self::Truncated, Self::Swapped, Self::Rewritten];
}

const PAGE: usize = 4096;

pub(crate) fn flip_bit(bytes: &mut [u8], random: &mut Random) {
    let bit = random.below(bytes.len() * 8);
    bytes[bit / 8] ^= 1 << (bit % 8);
}

/// Zeroes a page of bytes, or all if there are fewer. At least one of them was not zero.
pub(crate) fn zero_page(bytes: &mut [u8], random: &mut Random) {
    loop {
        let start =
            if bytes.len() > PAGE { random.below(bytes.len() / PAGE) * PAGE } else { random.below(bytes.len()) };
        let end = bytes.len().min(start + PAGE);
        if bytes[start..end].iter().any(|&byte| byte != 0) {
            return bytes[start..end].fill(0);
        }
    }
}

pub(crate) fn truncate(bytes: &mut Vec<u8>, random: &mut Random) {
    let length = random.below(bytes.len());
    bytes.truncate(length);
}

/// Swaps two different pieces of a file.
pub(crate) fn swap_pieces(bytes: &mut [u8], random: &mut Random) {
    let length = PAGE.min(bytes.len() / 2);
    let places = bytes.len() / length;
    let before = bytes.to_vec();
    for _ in 0..100 {
        let (a, b) = (random.below(places) * length, random.below(places) * length);
        let piece = before[a..a + length].to_vec();
        bytes.copy_within(b..b + length, a);
        bytes[b..b + length].copy_from_slice(&piece);
        if *bytes != before {
            return;
        }
    }
    flip_bit(bytes, random);
}

/// Changes a few bytes of a value's content, or its length.
fn change(content: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.below(3) {
        match random.below(8) {
            0 if !content.is_empty() => truncate(content, random),
            1 => content.push(random.next_u64() as u8),
            2 if content.len() > 1 => drop(content.remove(random.below(content.len()))),
            3 if !content.is_empty() => {
                let at = random.below(content.len());
                content[at] = [0, 1, 0x7f, 0x80, 0xff][random.below(5)];
            }
            _ if !content.is_empty() => flip_bit(content, random),
            _ => content.push(0),
        }
    }
}

/// Returns the value of a key with its content changed, in a frame with the right checksum (`FORMAT.md`).
pub(crate) fn rewrite(key: &[u8], value: &[u8], random: &mut Random) -> Vec<u8> {
    let mut payload = value[5..].to_vec();
    let unpacked = payload.split_first_chunk::<4>().and_then(|(length, packed)| {
        let length = u32::from_le_bytes(*length) as usize;
        zstd::bulk::decompress(packed, length.min(1 << 24)).ok().filter(|bytes| bytes.len() == length)
    });
    match unpacked {
        // Mostly the uncompressed content is changed, and otherwise the compressed payload.
        Some(mut content) if random.chance(90) => {
            change(&mut content, random);
            payload = (content.len() as u32).to_le_bytes().to_vec();
            payload.extend(zstd::bulk::compress(&content, 1).unwrap());
        }
        _ => change(&mut payload, random),
    }
    in_frame(key, &payload)
}

/// Returns the value that stores this payload under a key: the payload in a frame (`FORMAT.md`).
pub(crate) fn in_frame(key: &[u8], payload: &[u8]) -> Vec<u8> {
    let version = 2;
    let checksum = [key, &[version], payload].iter().fold(0, |crc, part| crc32c::crc32c_append(crc, part));
    [&[version], checksum.to_le_bytes().as_slice(), payload].concat()
}
