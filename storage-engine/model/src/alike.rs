//! Two stacks whose hashes begin with the same 8 bytes, which the log cannot tell apart by a reference.

use proto::dictionary::stack_hash;
use proto::{Address, Batch, Dictionary, Location, Mapping, Samples, SeriesSamples, StackPair, TenantId};

use crate::samples::labels_of;

/// Addresses of the only frames of the two stacks. A search among 6 * 10^9 addresses found them.
pub const ALIKE: [u64; 2] = [0x482f_80d0_7e15_3e37, 0x53fe_bef7_6762_72dc];

/// Returns a batch with one sample, whose stack has one frame at this address.
pub fn batch(address: u64, time_ns: i64, value: i64) -> Batch {
    let tenant = TenantId::default_tenant();
    let mut dictionary = Dictionary::default();
    let mapping = dictionary.intern_mapping(Mapping { build_id: None, file: 0 });
    let address = Address::Virtual(address);
    let location = dictionary.intern_location(Location::Address { mapping, address, frame_type: 0 });
    let hash = stack_hash(&[dictionary.location_hash(location)]);
    let user = dictionary.intern_stack(hash, Some(&[location]));
    let pair = dictionary.intern_pair(StackPair { user, kernel: 0 });
    let mut samples = Samples::default();
    samples.push(time_ns, pair, value, 0);
    let labels = labels_of(0);
    let series = vec![SeriesSamples { fingerprint: labels.fingerprint(&tenant), labels: Some(labels), samples }];
    Batch { tenant, id: None, retention_class: 0, dictionary, series }
}
