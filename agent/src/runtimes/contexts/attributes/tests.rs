//! Contexts in the memory of this process, which a writer of its own encodes.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use testkit::cost::Limit;

use super::*;
use crate::process::key::ProcessKey;
use crate::process::test_record::start_boottime_ns;

/// A value of an attribute, and its text; lists and bytes have none.
#[derive(Clone, Debug)]
enum TestValue {
    Text(String),
    Bool(bool),
    Int(i64),
    Double(f64),
    List,
    Bytes,
}

impl TestValue {
    fn text(&self) -> Option<String> {
        match self {
            Self::Text(text) => Some(text.clone()),
            Self::Bool(value) => Some(value.to_string()),
            Self::Int(value) => Some(value.to_string()),
            Self::Double(value) => Some(value.to_string()),
            Self::List | Self::Bytes => None,
        }
    }

    /// Encodes the value as `opentelemetry.proto.common.v1.AnyValue`.
    fn encoded(&self) -> Vec<u8> {
        match self {
            Self::Text(text) => field(1, text.as_bytes()),
            Self::Bool(value) => [vec![2 << 3], varint(u64::from(*value))].concat(),
            Self::Int(value) => [vec![3 << 3], varint(value.cast_unsigned())].concat(),
            Self::Double(value) => [&[4 << 3 | 1], &value.to_le_bytes()[..]].concat(),
            Self::List => field(5, &field(1, &field(1, b"an element"))),
            Self::Bytes => field(7, b"bytes"),
        }
    }
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while 0x80 <= value {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

/// Encodes a field that has a length.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [vec![number << 3 | 2], varint(bytes.len() as u64), bytes.to_vec()].concat()
}

/// Encodes a payload: a resource, which also has a count and a field of a later version, and an attribute besides it.
fn payload(attributes: &[(String, TestValue)]) -> Vec<u8> {
    let pair = |key: &str, value: &TestValue| [field(1, key.as_bytes()), field(2, &value.encoded())].concat();
    let mut resource: Vec<u8> = attributes.iter().flat_map(|(key, value)| field(1, &pair(key, value))).collect();
    resource.extend([vec![2 << 3, 7], field(15, b"later")].concat());
    [field(1, &resource), field(2, &pair("threadlocal.schema_version", &TestValue::Int(1)))].concat()
}

/// A context of this process, whose fields can be changed while it is read.
struct Context {
    words: Box<[AtomicU64; 4]>,
}

impl Context {
    fn new(version: u32) -> Self {
        let context = Self { words: Box::default() };
        context.words[0].store(u64::from_ne_bytes(SIGNATURE), Ordering::Relaxed);
        context.words[1].store(u64::from(version), Ordering::Relaxed);
        context
    }

    fn address(&self) -> u64 {
        self.words.as_ptr() as u64
    }

    /// Publishes a payload as the protocol says.
    fn publish(&self, at_ns: u64, payload: &[u8]) {
        self.words[2].store(0, Ordering::SeqCst);
        let version = self.words[1].load(Ordering::SeqCst) & u64::from(u32::MAX);
        self.words[1].store(version | (payload.len() as u64) << 32, Ordering::SeqCst);
        self.words[3].store(payload.as_ptr() as u64, Ordering::SeqCst);
        self.words[2].store(at_ns, Ordering::SeqCst);
    }

    fn read(&self, known_ns: Option<u64>) -> Option<Published> {
        read(&own_memory(), self.address(), known_ns)
    }
}

fn own_memory() -> ProcessMemory {
    let pid = std::process::id();
    ProcessMemory::open(ProcessKey { pid, start_boottime_ns: start_boottime_ns(pid), exec_id: 0 }).unwrap()
}

/// Returns the attributes of one text, as they are expected and in a payload.
fn one(key: &str, text: &str) -> (Vec<(String, String)>, Vec<u8>) {
    let value = TestValue::Text(text.to_owned());
    (vec![(key.to_owned(), text.to_owned())], payload(&[(key.to_owned(), value)]))
}

/// Returns the attributes that are expected of a resource.
fn expected(attributes: &[(String, TestValue)]) -> Vec<(String, String)> {
    let texts = attributes.iter().filter_map(|(key, value)| Some((key.trim().to_owned(), value.text()?)));
    let texts = texts.map(|(key, value)| (key, value.trim().to_owned()));
    let is_kept = |(key, value): &(String, String)| {
        (1..=128).contains(&key.len()) && (1..=1024).contains(&value.len()) && !value.starts_with("unknown_service")
    };
    let mut all: Vec<_> = texts.filter(is_kept).collect();
    all.sort_by_key(|(key, _)| !key.starts_with("service."));
    let (mut kept, mut bytes) = (Vec::<(String, String)>::new(), 0);
    for (key, value) in all {
        let more = key.len() + value.len();
        if kept.len() < 54 && bytes + more <= 8192 && kept.iter().all(|(known, _)| *known != key) {
            bytes += more;
            kept.push((key, value));
        }
    }
    kept
}

fn value() -> impl Strategy<Value = TestValue> {
    prop_oneof![
        "\\PC{0,40}".prop_map(TestValue::Text),
        "x{1020,1030}".prop_map(TestValue::Text),
        any::<bool>().prop_map(TestValue::Bool),
        any::<i64>().prop_map(TestValue::Int),
        any::<f64>().prop_map(TestValue::Double),
        Just(TestValue::List),
        Just(TestValue::Bytes),
    ]
}

fn attribute() -> impl Strategy<Value = (String, TestValue)> {
    (prop_oneof!["(service\\.)?[a-z.]{0,12}", "service\\.(name|version)", " ?\\PC{0,5}", "k{125,130}"], value())
}

proptest! {
    #[test]
    fn the_attributes_of_any_resource_are_read(
        attributes in prop_oneof![
            prop::collection::vec(attribute(), 0..160),
            prop::collection::vec(("[a-z]{1,4}", "[a-z]{0,9}".prop_map(TestValue::Text)), 0..160),
        ],
        at_ns in 1_u64..,
    ) {
        let payload = payload(&attributes);
        prop_assume!(payload.len() <= PAYLOAD_BYTES_MAX as usize);
        let context = Context::new(VERSION);
        context.publish(at_ns, &payload);
        let published = context.read(None).unwrap();
        prop_assert_eq!(published, Published { at_ns, attributes: expected(&attributes) });
        prop_assert_eq!(context.read(Some(at_ns)), None);
    }

    #[test]
    fn damaged_process_contexts_are_read_in_bounded_memory_or_refused(
        attributes in prop::collection::vec(attribute(), 0..20),
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        words in prop::collection::vec((0_usize..4, any::<u64>()), 0..3),
    ) {
        let mut payload = payload(&attributes);
        for (at, byte) in damage {
            let at = at.index(payload.len());
            payload[at] = byte;
        }
        let context = Context::new(VERSION);
        context.publish(1, &payload);
        for (word, value) in words {
            context.words[word].store(value, Ordering::Relaxed);
        }
        let mut limit = Limit::new(Duration::from_millis(50), 1 << 20);
        if let Some(published) = limit.check("the context", || context.read(None)) {
            prop_assert!(published.attributes.len() <= ATTRIBUTES_MAX);
            prop_assert!(published.attributes.iter().all(|(key, value)| fits(key, value)));
            let bytes: usize = published.attributes.iter().map(|(key, value)| key.len() + value.len()).sum();
            prop_assert!(bytes <= KEPT_BYTES_MAX);
        }
    }
}

#[test]
fn contexts_of_other_versions_and_unfinished_ones_are_not_read() {
    let (attributes, payload) = one("service.name", "checkout");
    let read = |version, at_ns, payload: &[u8]| {
        let context = Context::new(version);
        context.publish(at_ns, payload);
        context.read(None)
    };
    assert_eq!(read(2, 5, &payload), Some(Published { at_ns: 5, attributes }));
    assert_eq!(read(1, 5, &payload), None, "an earlier version");
    assert_eq!(read(3, 5, &payload), None, "a later version");
    assert_eq!(read(2, 0, &payload), None, "it is being changed");
    assert_eq!(read(2, 5, &payload[..payload.len() - 1]), None, "its payload is cut");
    assert_eq!(read(2, 5, &[]), Some(Published { at_ns: 5, attributes: Vec::new() }), "it has no resource");
    let unknown = Published { at_ns: 5, attributes: Vec::new() };
    assert_eq!(read(2, 5, &one("service.name", "unknown_service:java").1), Some(unknown), "it has no name");
    assert_eq!(read(2, 5, &vec![0; PAYLOAD_BYTES_MAX as usize + 1]), None, "it is too large");
    let context = Context::new(2);
    context.publish(5, &payload);
    context.words[0].store(0, Ordering::Relaxed);
    assert_eq!(context.read(None), None, "its signature is not written yet");
    assert_eq!(read_at(8), None, "no memory");
}

fn read_at(address: u64) -> Option<Published> {
    read(&own_memory(), address, None)
}

#[test]
fn what_is_read_while_a_context_changes_is_of_one_publication() {
    // Payloads of the same size, which are written to the same memory, byte by byte.
    let publications = ["a", "b"].map(|letter| one("service.name", &letter.repeat(500)));
    let memory: Vec<AtomicU8> = publications[0].1.iter().map(|byte| AtomicU8::new(*byte)).collect();
    let context = Context::new(VERSION);
    context.words[1].fetch_or((memory.len() as u64) << 32, Ordering::SeqCst);
    context.words[3].store(memory.as_ptr() as u64, Ordering::SeqCst);
    let is_done = AtomicBool::new(false);
    let (mut read, mut mixed) = ([0; 2], None);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut at_ns = 1;
            while !is_done.load(Ordering::SeqCst) {
                context.words[2].store(at_ns, Ordering::SeqCst);
                // Long enough for a few reads, and then for none.
                let published = Instant::now();
                while published.elapsed() < Duration::from_micros(200) && !is_done.load(Ordering::SeqCst) {}
                context.words[2].store(0, Ordering::SeqCst);
                at_ns += 1;
                for (to, byte) in memory.iter().zip(&publications[(at_ns - 1) as usize % 2].1) {
                    to.store(*byte, Ordering::SeqCst);
                }
            }
        });
        let deadline = Instant::now() + Duration::from_secs(60);
        while read.iter().any(|read| *read < 300) && Instant::now() < deadline {
            let Some(published) = context.read(None) else { continue };
            let of = (published.at_ns - 1) as usize % 2;
            if published.attributes != publications[of].0 {
                mixed = Some(published);
                break;
            }
            read[of] += 1;
        }
        is_done.store(true, Ordering::SeqCst);
    });
    assert_eq!(mixed, None);
    assert!(read.iter().all(|read| 300 <= *read), "{read:?}");
}
