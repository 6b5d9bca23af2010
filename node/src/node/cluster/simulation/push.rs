//! Pushes of clients, as the commands of a data shard.

use bytes::{Buf as _, BufMut as _, Bytes};
use proto::placement::Placement;
use proto::{Fingerprint, TenantId};

use crate::consensus::Payload;

/// One sample. Its client, push and number identify it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Sample {
    pub(super) client: u32,
    pub(super) serial: u32,
    pub(super) number: u32,
    pub(super) service: u32,
    pub(super) time_ns: i64,
}

/// The samples of one push that one shard gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Push {
    /// ID of the batch, with which a retry is recognized.
    pub(super) id: u64,
    pub(super) samples: Vec<Sample>,
}

/// Returns the shard of a sample.
pub(super) fn shard_of(placement: &Placement, sample: &Sample) -> u32 {
    let service = format!("service-{}", sample.service);
    placement.shard_of(&TenantId::default_tenant(), &service, Fingerprint(0), sample.time_ns)
}

impl Push {
    pub(super) fn encode(&self) -> Payload {
        let mut bytes = Vec::new();
        bytes.put_u64(self.id);
        for Sample { client, serial, number, service, time_ns } in &self.samples {
            [client, serial, number, service].into_iter().for_each(|&part| bytes.put_u32(part));
            bytes.put_i64(*time_ns);
        }
        Payload::plain(bytes.into())
    }

    pub(super) fn decode(mut bytes: Bytes) -> Self {
        let id = bytes.get_u64();
        let mut samples = Vec::new();
        while bytes.has_remaining() {
            let [client, serial, number, service] = std::array::from_fn(|_| bytes.get_u32());
            samples.push(Sample { client, serial, number, service, time_ns: bytes.get_i64() });
        }
        Self { id, samples }
    }
}
