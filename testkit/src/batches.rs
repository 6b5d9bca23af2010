//! Batches in which every sample has its own time. By the times, a test recognizes which samples a node has stored.

use proto::dictionary::stack_hash;
use proto::{
    Batch, BatchId, Dictionary, Function, Label, LabelSet, Line, Location, Samples, SeriesSamples, StackPair, TenantId,
};

/// Time of the sample with the serial number 0, in nanoseconds since 1970: 2026-01-01. A partition begins at this time.
pub const START_NS: i64 = 1_767_225_600_000_000_000;

/// Returns a batch with one sample for each serial number. The time of a sample follows from its serial number
/// ([`time_of`]). All samples have the same stack.
#[must_use]
pub fn batch(id: Option<u128>, serials: impl IntoIterator<Item = i64>) -> Batch {
    batch_of(id, serials, |_serial| "main".to_owned())
}

/// Returns a batch like [`batch`], but with a function name for each sample. Long names make the batch large.
#[must_use]
pub fn batch_of(
    id: Option<u128>,
    serials: impl IntoIterator<Item = i64>,
    function_name: impl Fn(i64) -> String,
) -> Batch {
    let tenant = TenantId::default_tenant();
    let labels = LabelSet::new(vec![
        Label::new("service_name", "test"),
        Label::new("__profile_type__", "process_cpu:cpu:nanoseconds:cpu:nanoseconds"),
    ]);
    let mut dictionary = Dictionary::default();
    let set = dictionary.intern_attributes(Vec::new());
    let mut samples = Samples::default();
    for serial in serials {
        let name = dictionary.strings.intern(&function_name(serial));
        let function = dictionary.intern_function(Function { name, system_name: 0, file: 0, start_line: 0 });
        let lines = [Line { function, line: 1, column: 0 }].into();
        let location = dictionary.intern_location(Location::Lines { mapping_file: 0, frame_type: 0, lines });
        let hash = stack_hash(&[dictionary.location_hash(location)]);
        let user = dictionary.intern_stack(hash, Some(&[location]));
        let pair = dictionary.intern_pair(StackPair { user, kernel: 0 });
        samples.push(time_of(serial), pair, 1, set);
    }
    let fingerprint = labels.fingerprint(&tenant);
    let series = vec![SeriesSamples { fingerprint, labels: Some(labels), samples }];
    Batch { tenant, id: id.map(BatchId), retention_class: 0, dictionary, series }
}

/// Returns a function name of 50 kB, which is different for each serial number and hardly compressible.
#[must_use]
pub fn long_name(serial: i64) -> String {
    let mut state = serial.unsigned_abs() + 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // The character is printable and not a quotation mark. Only the upper bits of a linear congruential generator
        // are random enough.
        char::from(b'0' + (state >> 58) as u8)
    };
    (0..50_000).map(|_| next()).collect()
}

/// Returns the time of the sample with a serial number, in nanoseconds since 1970.
#[must_use]
pub fn time_of(serial: i64) -> i64 {
    START_NS + serial * 1_000_000
}

/// Returns the times of the samples with these serial numbers, in nanoseconds since 1970.
#[must_use]
pub fn times_of(serials: impl IntoIterator<Item = i64>) -> Vec<i64> {
    serials.into_iter().map(time_of).collect()
}
