//! Test of the memory that decoding a batch takes, for bytes that no router sends.

use proto::Batch;
use testkit::cost::{Cost, CountingAllocator};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Largest number of bytes that a byte of a batch may take while it is decoded. A label of two bytes takes the most: it
/// has three texts of 24 bytes, and a growing list takes three times its length for a moment.
const BYTES_PER_BYTE_MAX: usize = 128;
/// Memory of a batch without content.
const EMPTY_BYTES: usize = 8 << 10;

fn varint(mut number: usize, to: &mut Vec<u8>) {
    while number >= 0x80 {
        to.push(number as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}

fn element(number: u8, value: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    varint(value.len(), &mut out);
    out.extend_from_slice(value);
    out
}

/// Decodes `bytes`. Returns the most memory that this took at one time, in bytes.
fn peak_of(bytes: &[u8]) -> usize {
    Cost::of(|| drop(Batch::decode(bytes))).1.bytes
}

#[test]
fn decoding_takes_at_most_a_multiple_of_the_size_of_the_bytes() {
    let mut largest = 0.0_f64;
    let mut check = |bytes: &[u8]| {
        let peak = peak_of(bytes);
        largest = largest.max(peak.saturating_sub(EMPTY_BYTES) as f64 / bytes.len() as f64);
        assert!(peak <= EMPTY_BYTES + BYTES_PER_BYTE_MAX * bytes.len(), "{peak} of {:?}", &bytes[..20]);
    };
    for count in [1000, 30_000] {
        // Messages of definitions, series, labels and so on with very many empty or tiny elements. The outermost
        // numbers are those of fields of a batch.
        for outer in [&[3_u8][..], &[4], &[4, 2], &[3, 4], &[3, 8], &[3, 2], &[1], &[]] {
            for number in 1..=10_u8 {
                for tiny in [element(number, &[]), vec![number << 3, 0], element(number, &[0x18, 0])] {
                    let message = tiny.repeat(count);
                    check(&outer.iter().rev().fold(message, |message, &number| element(number, &message)));
                }
                let column = element(number, &vec![0; count]);
                check(&outer.iter().rev().fold(column, |message, &number| element(number, &message)));
            }
            // A length that is far larger than the message.
            let mut long = vec![1 << 3 | 2];
            varint(usize::MAX >> 1, &mut long);
            check(&outer.iter().rev().fold([long, vec![0; 20]].concat(), |message, &number| element(number, &message)));
        }
    }
    println!("{largest:.1} bytes of memory for a byte");
    // The measurement sees what the lists of slices take at least.
    assert!(largest > 8.0, "{largest}");
}
