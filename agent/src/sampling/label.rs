//! Labels that a program sets on its own samples, such as the labels of a goroutine.
//!
//! Invariant: names are unique, sorted, not empty, and not in a namespace of the agent. Names and values are valid
//! UTF-8.

use std::sync::Arc;

use ebpf::Sample;

/// Labels, as names and values sorted by name.
pub(crate) type Labels = Arc<[(Box<str>, Box<str>)]>;

/// Key of the attribute of a sample that holds the name of its thread.
pub(crate) const THREAD_NAME: &str = "thread.name";
/// Key of the attribute of a sample that holds the id of its thread.
pub(crate) const THREAD_ID: &str = "thread.id";
/// Key of the attribute of a sample that holds the CPU on which it was taken.
pub(crate) const CPU: &str = "cpu.logical_number";

/// Returns the labels of `sample` that fulfil the invariant; all others are left out.
pub(crate) fn of(sample: &Sample<'_>) -> Labels {
    let labels = sample.labels().filter_map(|(name, value)| Some((text(name)?, text(value)?)));
    let mut labels: Vec<(Box<str>, Box<str>)> = labels.filter(|(name, _)| !is_own(name)).collect();
    labels.sort_unstable();
    // The program may be changing its labels while they are read.
    labels.dedup_by(|later, earlier| later.0 == earlier.0);
    labels.into()
}

/// Namespaces of the agent's own attributes, in which a program cannot set labels. A dot or an underscore follows the
/// namespace, because receivers may write a dot as an underscore.
const OWN: [&str; 7] = ["thread", "cpu", "process", "host", "container", "k8s", "systemd"];

fn is_own(name: &str) -> bool {
    let is_in = |own: &&str| name.strip_prefix(*own).is_some_and(|rest| rest.starts_with(['.', '_']));
    name.is_empty() || name.starts_with("__") || OWN.iter().any(is_in)
}

/// Returns bytes as text, without a character that is cut off at the end; `None` if they are not UTF-8.
fn text(bytes: &[u8]) -> Option<Box<str>> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Some(text.into()),
        Err(error) if error.error_len().is_some() => None,
        Err(error) => std::str::from_utf8(&bytes[..error.valid_up_to()]).ok().map(Into::into),
    }
}

/// Approximate memory that labels take, in bytes.
pub(crate) fn bytes(labels: &Labels) -> usize {
    labels.iter().map(|(name, value)| name.len() + value.len() + 4 * size_of::<usize>()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::test_record::TestRecord;

    fn read(labels: &[(&[u8], &[u8])]) -> Vec<(String, String)> {
        let record = TestRecord { labels, ..TestRecord::default() }.bytes();
        let labels = of(&Sample::read(&record).unwrap());
        labels.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
    }

    #[test]
    fn labels_that_are_not_text_are_skipped_and_names_are_unique() {
        let cut = "caf\u{e9}".as_bytes().split_last().unwrap().1;
        let labels = read(&[
            (b"z", b"last"),
            (b"a", b"first"),
            (b"a", b"once more"),
            (b"", b"no name"),
            (b"cut", cut),
            (b"garbage", b"\xff\xfe"),
            (b"empty", b""),
        ]);
        let wanted = [("a", "first"), ("cut", "caf"), ("empty", ""), ("z", "last")];
        assert_eq!(labels, wanted.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }

    #[test]
    fn a_program_cannot_set_attributes_of_the_agent() {
        let labels = read(&[
            (b"thread.id", b"7"),
            (b"process_pid", b"7"),
            (b"__name__", b"x"),
            (b"k8s.pod.uid", b"x"),
            (b"processor", b"kept"),
        ]);
        assert_eq!(labels, [("processor".to_owned(), "kept".to_owned())]);
    }
}
