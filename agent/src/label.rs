//! Labels of a sample: what the program itself says of what it does, such as the labels of a goroutine.
//!
//! Invariant: names are unique, neither empty nor one of the agent's own, and in order; all of it is text.

use std::sync::Arc;

use ebpf::Sample;

/// Names and values.
pub(crate) type Labels = Arc<[(Box<str>, Box<str>)]>;

/// What the agent itself says of a sample.
pub(crate) const THREAD_NAME: &str = "thread.name";
pub(crate) const THREAD_ID: &str = "thread.id";
pub(crate) const CPU: &str = "cpu.logical_number";

/// The labels of `sample`.
pub(crate) fn of(sample: &Sample<'_>) -> Labels {
    let labels = sample.labels().filter_map(|(name, value)| Some((text(name)?, text(value)?)));
    let mut labels: Vec<(Box<str>, Box<str>)> = labels.filter(|(name, _)| !is_own(name)).collect();
    labels.sort_unstable();
    // The program may be in the middle of changing them.
    labels.dedup_by(|later, earlier| later.0 == earlier.0);
    labels.into()
}

fn is_own(name: &str) -> bool {
    name.is_empty() || [THREAD_NAME, THREAD_ID, CPU].contains(&name)
}

/// The text of bytes that may be cut within a character; `None`: it is no text.
fn text(bytes: &[u8]) -> Option<Box<str>> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Some(text.into()),
        Err(error) if error.error_len().is_some() => None,
        Err(error) => std::str::from_utf8(&bytes[..error.valid_up_to()]).ok().map(Into::into),
    }
}

/// About how much memory they take.
pub(crate) fn bytes(labels: &Labels) -> usize {
    labels.iter().map(|(name, value)| name.len() + value.len() + 4 * size_of::<usize>()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_record::TestRecord;

    #[test]
    fn what_is_no_text_or_not_the_programs_to_say_is_left_out() {
        let labels: &[(&[u8], &[u8])] = &[
            (b"z", b"last"),
            (b"a", b"first"),
            (b"a", b"once more"),
            (b"", b"no name"),
            (b"thread.id", b"7"),
            (b"cut", "caf\u{e9}".as_bytes().split_last().unwrap().1),
            (b"garbage", b"\xff\xfe"),
            (b"empty", b""),
        ];
        let record = TestRecord { labels, ..TestRecord::default() }.bytes();
        let labels = of(&Sample::read(&record).unwrap());
        let labels: Vec<_> = labels.iter().map(|(name, value)| (&**name, &**value)).collect();
        assert_eq!(labels, [("a", "first"), ("cut", "caf"), ("empty", ""), ("z", "last")]);
    }
}
