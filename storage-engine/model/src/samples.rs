//! Generated samples, and batches of them.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proto::dictionary::{Attribute, AttributeValue, stack_hash};
use proto::label::PROFILE_TYPE_LABEL;
use proto::{Batch, BatchId, Dictionary, Label, LabelSet, Line, Location, Samples, SeriesSamples, StackPair, TenantId};

/// Time to which the generated times are relative: 5,000 seconds after midnight UTC of a day, in nanoseconds since
/// 1970.
pub const T0: i64 = 20_717 * DAY + 5_000 * SECOND;
/// A second in nanoseconds.
pub const SECOND: i64 = 1_000_000_000;
/// A day in nanoseconds.
pub const DAY: i64 = 86_400 * SECOND;

/// A generated sample.
#[derive(Clone, Debug)]
pub struct Drawn {
    /// Number of the service, from 0 to 3.
    pub service: u8,
    /// Time in nanoseconds since [`T0`].
    pub time: i64,
    /// Number of the user stack, 0 to 7: each bit stands for one function.
    pub user: u8,
    /// Number of kernel frames below the user stack.
    pub kernel: u8,
    /// Value in the unit of the profile type.
    pub value: i64,
    /// Number in the name of the sample's thread; 0 if the sample has no thread name.
    pub thread: u8,
}

impl Drawn {
    /// Returns a sample of thread 1 without kernel frames.
    pub fn simple(service: u8, second: i64, user: u8, value: i64) -> Self {
        Self { service, time: second * SECOND, user, kernel: 0, value, thread: 1 }
    }

    /// Time of the sample, in nanoseconds since 1970.
    pub fn time_ns(&self) -> i64 {
        T0 + self.time
    }
}

/// Generates samples over about three days, many of them on the edges of minutes, hours and days.
pub fn drawn() -> impl Strategy<Value = Drawn> {
    let value = prop_oneof![4 => -5..50_i64, 1 => Just(i64::MAX), 1 => Just(i64::MIN)];
    (0..4_u8, time(), 0..6_u8, 0..3_u8, value, 0..4_u8).prop_map(|(service, time, user, kernel, value, thread)| Drawn {
        service,
        time,
        user,
        kernel,
        value,
        thread,
    })
}

/// Generates times in nanoseconds since [`T0`], distributed as the times of [`drawn`].
pub fn time() -> impl Strategy<Value = i64> {
    let anywhere = -200_000 * SECOND..60_000 * SECOND;
    let on_edge =
        (prop_oneof![Just(60), Just(600), Just(3600), Just(21_600), Just(86_400)], -200_000..60_000_i64, -1..2_i64)
            .prop_map(|(width, second, off)| (T0 / SECOND + second) / width * width * SECOND - T0 + off);
    prop_oneof![2 => anywhere, 1 => on_edge, 1 => -900 * SECOND..0_i64]
}

/// Returns the labels of a service. Services 0 to 2 have CPU time, and service 3 has a gauge.
pub fn labels_of(service: u8) -> LabelSet {
    let kind = if service == 3 {
        "memory:inuse_space:bytes:space:bytes"
    } else {
        "process_cpu:cpu:nanoseconds:cpu:nanoseconds"
    };
    LabelSet::new(vec![
        Label::new("service_name", format!("s{service}")),
        Label::new("region", ["eu", "us"][usize::from(service) % 2]),
        Label::new("zone", ["a", "b", "b", "a"][usize::from(service)]),
        Label::new(PROFILE_TYPE_LABEL, kind),
    ])
}

/// Returns the functions of a stack: `main`, one function for each bit of `user`, and `kernel` kernel functions.
pub fn functions_of(user: u8, kernel: u8) -> Vec<String> {
    let mut stack = vec!["main".to_owned()];
    stack.extend((0..3).filter(|bit| user >> bit & 1 == 1).map(|bit| format!("f{bit}")));
    stack.extend((0..kernel).map(|depth| format!("k{depth}")));
    stack
}

fn intern_stack(dictionary: &mut Dictionary, root_first: &[String]) -> u32 {
    let locations: Vec<u32> = root_first
        .iter()
        .rev()
        .map(|name| {
            let name = dictionary.strings.intern(name);
            let function = dictionary.intern_function(proto::Function { name, ..Default::default() });
            let lines = [Line { function, line: 1, column: 0 }].into();
            dictionary.intern_location(Location::Lines { mapping_file: 0, frame_type: 0, lines })
        })
        .collect();
    let hashes: Vec<u128> = locations.iter().map(|&id| dictionary.location_hash(id)).collect();
    dictionary.intern_stack(stack_hash(&hashes), Some(&locations))
}

/// Returns a batch of these samples with all definitions. `id` is the number of the batch ID, counted from 0; `None`
/// for no ID.
pub fn batch_of(samples: &[Drawn], id: Option<u8>) -> Batch {
    let tenant = TenantId::default_tenant();
    let mut dictionary = Dictionary::default();
    let mut series: BTreeMap<u8, Samples> = BTreeMap::new();
    for drawn in samples {
        let stack = functions_of(drawn.user, drawn.kernel);
        let (user_part, kernel_part) = stack.split_at(stack.len() - usize::from(drawn.kernel));
        let pair = StackPair {
            user: intern_stack(&mut dictionary, user_part),
            kernel: intern_stack(&mut dictionary, kernel_part),
        };
        let pair = dictionary.intern_pair(pair);
        let set = if drawn.thread == 0 {
            0
        } else {
            let key = dictionary.strings.intern("thread.name");
            let value = AttributeValue::Text(dictionary.strings.intern(&format!("t{}", drawn.thread)));
            dictionary.intern_attributes(vec![Attribute { key, unit: 0, value }])
        };
        series.entry(drawn.service).or_default().push(drawn.time_ns(), pair, drawn.value, set);
    }
    let series = series
        .into_iter()
        .map(|(service, samples)| {
            let labels = labels_of(service);
            SeriesSamples { fingerprint: labels.fingerprint(&tenant), labels: Some(labels), samples }
        })
        .collect();
    let id = id.map(|id| BatchId(u128::from(id) + 1));
    Batch { tenant, id, retention_class: 0, dictionary, series }
}
