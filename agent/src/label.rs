//! Labels of a sample: what the program itself says of what it does, such as the labels of a goroutine.
//!
//! Invariant: names are unique, neither empty nor like one of the agent's own, and in order; all of it is text.

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

/// Namespaces of what the agent says of samples and processes; receivers may write a dot as an underscore.
const OWN: [&str; 7] = ["thread", "cpu", "process", "host", "container", "k8s", "systemd"];

fn is_own(name: &str) -> bool {
    let is_in = |own: &&str| name.strip_prefix(*own).is_some_and(|rest| rest.starts_with(['.', '_']));
    name.is_empty() || name.starts_with("__") || OWN.iter().any(is_in)
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

    fn read(labels: &[(&[u8], &[u8])]) -> Vec<(String, String)> {
        let record = TestRecord { labels, ..TestRecord::default() }.bytes();
        let labels = of(&Sample::read(&record).unwrap());
        labels.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
    }

    #[test]
    fn what_is_no_text_is_left_out_and_a_name_is_there_once() {
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
    fn what_the_agent_says_itself_is_not_the_programs_to_say() {
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
