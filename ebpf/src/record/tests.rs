//! Records that are valid, too short, or have counts beyond the limits; and the layout of the C header.

use super::*;

/// Returns the value that the C header asserts for `what`, such as `__builtin_offsetof(struct sample_header, pid)`.
fn asserted(what: &str) -> usize {
    let line = format!("_Static_assert({what} == ");
    let start = RECORD_H.find(&line).unwrap_or_else(|| panic!("record.h does not assert {what}")) + line.len();
    let rest = &RECORD_H[start..];
    rest[..rest.find(',').unwrap()].parse().unwrap()
}

const RECORD_H: &str = include_str!("../../bpf/record.h");

#[test]
fn the_layout_is_that_of_the_c_header() {
    macro_rules! same {
        ($($name:ident)*) => {$(
            let c = asserted(concat!("__builtin_offsetof(struct sample_header, ", stringify!($name), ")"));
            assert_eq!(offset_of!(SampleHeader, $name), c, stringify!($name));
        )*};
    }
    same!(ktime_ns start_boottime_ns exec_id pid tid cpu kernel_frames user_words);
    same!(user_end kernel_thread fp_frames chance executable labels links comm);
    assert_eq!(size_of::<SampleHeader>(), asserted("sizeof(struct sample_header)"));
    assert_eq!(WAIT_END_BYTES, asserted("sizeof(struct wait_end)"));
}

#[test]
fn limits_and_ends_are_those_of_the_c_header() {
    assert!(RECORD_H.contains(&format!("#define KERNEL_FRAMES_MAX {KERNEL_FRAMES_MAX}\n")));
    assert!(RECORD_H.contains(&format!("#define USER_FRAMES_MAX {}\n", crate::USER_FRAMES_MAX)));
    assert!(RECORD_H.contains(&format!("#define USER_WORDS_MAX {USER_WORDS_MAX}\n")));
    for (name, end) in [("NONE", 0), ("ROOT", 1), ("BROKEN", 2), ("TRUNCATED", 3), ("COMPAT", 4)] {
        assert!(RECORD_H.contains(&format!("USER_END_{name} = {end},")), "{name}");
    }
}

fn record(kernel: &[u64], user: &[u64], end: u8) -> Vec<u8> {
    let mut bytes = vec![0; size_of::<SampleHeader>()];
    bytes[24..28].copy_from_slice(&7u32.to_ne_bytes());
    bytes[36..38].copy_from_slice(&u16::try_from(kernel.len()).unwrap().to_ne_bytes());
    bytes[38..40].copy_from_slice(&u16::try_from(user.len()).unwrap().to_ne_bytes());
    bytes[40] = end;
    bytes[56..60].copy_from_slice(b"comm");
    for address in kernel.iter().chain(user) {
        bytes.extend(address.to_ne_bytes());
    }
    bytes
}

#[test]
fn a_record_has_both_parts_of_its_stack() {
    let bytes = record(&[1, 2], &[3, 4, 5], 1);
    let sample = Sample::read(&bytes).unwrap();
    assert_eq!((sample.header.pid, &sample.header.comm[..5]), (7, &b"comm\0"[..]));
    assert_eq!(sample.user_end, UserEnd::Root);
    assert_eq!(sample.kernel_frames().collect::<Vec<_>>(), [1, 2]);
    assert_eq!(sample.user_frames().collect::<Vec<_>>(), [3, 4, 5].map(UserFrame::Address));
    let in_file = FRAME_IN_FILE | 9 << FRAME_OFFSET_BITS | 0x1234;
    let function = FRAME_OF_RUNTIME | 200 << FRAME_ID_SHIFT | 0x7fff_1234_5678;
    let bytes = record(&[], &[function, 5 << 32 | 0xdead_beef, in_file, 7, function], 1);
    let frames = Sample::read(&bytes).unwrap().user_frames().collect::<Vec<_>>();
    let function = UserFrame::Function { runtime: 200, address: 0x7fff_1234_5678, position: 5, identity: 0xdead_beef };
    // The last function is cut.
    assert_eq!(frames, [function, UserFrame::File { number: 9, offset: 0x1234 }, UserFrame::Address(7)]);
    assert!(RECORD_H.contains(&format!("#define FRAME_OFFSET_BITS {FRAME_OFFSET_BITS}\n")));
    assert!(RECORD_H.contains(&format!("#define FRAME_ID_SHIFT {FRAME_ID_SHIFT}\n")));
}

#[test]
fn labels_follow_the_frames() {
    let mut bytes = record(&[1], &[2, 3], 1);
    bytes[52..54].copy_from_slice(&2_u16.to_ne_bytes());
    for (name, value) in [(&b"endpoint"[..], &b"/a"[..]), (b"k", b"")] {
        let mut label = vec![0xee; LABEL_BYTES];
        (label[0], label[1]) = (u8::try_from(name.len()).unwrap(), u8::try_from(value.len()).unwrap());
        label[2..2 + name.len()].copy_from_slice(name);
        label[2 + LABEL_NAME_BYTES..][..value.len()].copy_from_slice(value);
        bytes.extend(label);
    }
    let sample = Sample::read(&bytes).unwrap();
    assert_eq!(sample.user_frames().count(), 2);
    assert_eq!(sample.labels().collect::<Vec<_>>(), [(&b"endpoint"[..], &b"/a"[..]), (b"k", b"")]);
    assert!(matches!(Sample::read(&bytes[..bytes.len() - 1]), Err(RecordError::LabelCount { labels: 2, .. })));
    bytes.resize(bytes.len() + 7 * LABEL_BYTES, 0);
    bytes[52..54].copy_from_slice(&9_u16.to_ne_bytes());
    assert!(matches!(Sample::read(&bytes), Err(RecordError::LabelCount { labels: 9, .. })));
    assert_eq!(asserted("sizeof(struct label)"), LABEL_BYTES);
    for (name, value) in
        [("LABELS_MAX", LABELS_MAX), ("LABEL_NAME_BYTES", LABEL_NAME_BYTES), ("LABEL_VALUE_BYTES", LABEL_VALUE_BYTES)]
    {
        assert!(RECORD_H.contains(&format!("#define {name} {value}\n")), "{name}");
    }
}

const LINK: Link = Link { trace_id: [0xa5; 16], span_id: [0x5a; 8] };

/// Returns a record with labels and links of these numbers.
fn with_links(labels: u16, links: u16, link: &Link) -> Vec<u8> {
    let mut bytes = record(&[1], &[2, 3], 1);
    bytes[52..54].copy_from_slice(&labels.to_ne_bytes());
    bytes[54..56].copy_from_slice(&links.to_ne_bytes());
    bytes.resize(bytes.len() + usize::from(labels) * LABEL_BYTES, 1);
    for _ in 0..links {
        bytes.extend(link.trace_id);
        bytes.extend(link.span_id);
    }
    bytes
}

#[test]
fn a_link_follows_the_labels_and_takes_no_space_if_there_is_none() {
    assert_eq!(asserted("sizeof(struct link)"), LINK_BYTES);
    assert!(RECORD_H.contains("#define LINKS_MAX 1\n"));
    for labels in [0, 2, 8] {
        let without = with_links(labels, 0, &LINK);
        assert_eq!(Sample::read(&without).unwrap().link, None);
        assert_eq!(without.len(), 72 + 3 * 8 + usize::from(labels) * LABEL_BYTES);
        let bytes = with_links(labels, 1, &LINK);
        let sample = Sample::read(&bytes).unwrap();
        assert_eq!(
            (sample.link, sample.labels().count(), sample.user_frames().count()),
            (Some(LINK), labels.into(), 2)
        );
        for length in without.len()..bytes.len() {
            assert!(matches!(Sample::read(&bytes[..length]), Err(RecordError::Link { links: 1, .. })), "{length}");
        }
    }
}

#[test]
fn links_beyond_the_limit_and_links_of_zeros_are_refused() {
    for links in [2, 3, u16::MAX] {
        assert!(matches!(Sample::read(&with_links(1, links, &LINK)), Err(RecordError::Link { .. })), "{links}");
    }
    for link in [Link { trace_id: [0; 16], ..LINK }, Link { span_id: [0; 8], ..LINK }] {
        assert!(matches!(Sample::read(&with_links(0, 1, &link)), Err(RecordError::Link { links: 1, .. })), "{link:?}");
    }
}

#[test]
fn a_wait_has_a_start_with_a_probability_and_an_end() {
    let mut bytes = record(&[1], &[2], 1);
    assert!(matches!(Record::read(&bytes), Ok(Record::Running(_))));
    bytes[44..48].copy_from_slice(&9_u32.to_ne_bytes());
    let Ok(Record::Waiting(sample)) = Record::read(&bytes) else { panic!("waits") };
    assert_eq!(sample.header.chance, 9);
    let end: Vec<u8> = [5_u64, 6, 7].iter().flat_map(|word| word.to_ne_bytes()).collect();
    let Ok(Record::WaitEnd(end)) = Record::read(&end) else { panic!("an end") };
    assert_eq!(end, WaitEnd { since_ktime_ns: 5, ktime_ns: 6, tid: 7 });
}

#[test]
fn every_shorter_record_is_refused() {
    let bytes = record(&[1], &[2, 3], 2);
    for length in 0..bytes.len() {
        assert!(Sample::read(&bytes[..length]).is_err(), "{length}");
    }
    assert!(Sample::read(&bytes).is_ok());
}

#[test]
fn counts_beyond_the_limits_and_unknown_ends_are_refused() {
    let frames = vec![1; USER_WORDS_MAX + 1];
    assert!(matches!(Sample::read(&record(&[], &frames, 1)), Err(RecordError::FrameCount { .. })));
    assert!(matches!(Sample::read(&record(&frames[..128], &[], 1)), Err(RecordError::FrameCount { .. })));
    assert_eq!(Sample::read(&record(&[], &[1], 5)).unwrap_err(), RecordError::UserEnd { end: 5 });
}
