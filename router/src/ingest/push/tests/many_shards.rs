//! A fake node with several shards, and pushes of several services.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU16;

use proto::otlp::collector::profiles::v1development::ExportProfilesServiceRequest;
use proto::otlp::common::v1::any_value::Value;
use proto::otlp::common::v1::{AnyValue, KeyValue};
use proto::otlp::profiles::v1development::{
    Location, Profile, ProfilesDictionary, ResourceProfiles, Sample, ScopeProfiles, Stack,
};
use proto::otlp::resource::v1::Resource;
use proto::placement::{Placement, Slot};
use proto::{AdministrationTask, Deleted, Deletion};
use tokio::sync::{Barrier, Notify};
use tonic::Code;

use super::*;

/// One of the shards of a fake node.
#[derive(Default)]
pub(super) struct FakeShard {
    pub(super) held: HashSet<StackHash>,
    /// Number of samples by the ID of their batch. A batch that is sent again is not stored again.
    stored: HashMap<BatchId, usize>,
    /// Number of batches that arrived, and of those that defined all their stacks.
    arrived: (usize, usize),
    /// Code with which the shard refuses every batch.
    pub(super) refuses: Option<Code>,
    /// True if the shard refuses every batch, and answers other calls.
    pub(super) refuses_appends: bool,
    /// Number of batches that the shard stores without a response: the caller gets [`Code::Unavailable`].
    pub(super) silent: usize,
}

/// Pause of the shards that are missing definitions, before they refuse a batch.
#[derive(Default)]
pub(super) struct Pause {
    pub(super) began: Notify,
    pub(super) may_end: Notify,
}

/// A fake node with several shards.
pub(super) struct ManyShards {
    pub(super) placement: Mutex<Placement>,
    shards: Mutex<BTreeMap<u32, FakeShard>>,
    /// Barrier at which each append waits.
    pub(super) barrier: Mutex<Option<Arc<Barrier>>>,
    pub(super) pause: Mutex<Option<Arc<Pause>>>,
    /// Sizes of the batches that are being appended, and the largest number and total size of such batches so far.
    appending: Mutex<Vec<usize>>,
    pub(super) appending_max: Mutex<(usize, usize)>,
    pub(super) placements_read: Mutex<u32>,
    /// Number of times that the node was asked for a batch.
    pub(super) lookups: Mutex<u32>,
}

/// Returns a placement of this epoch, in which slots are moved by `moved` shards.
pub(super) fn placement(epoch: u64, shards: u16, moved: u32) -> Placement {
    let mut wire = Placement::uniform(NonZeroU16::new(shards).unwrap()).to_wire();
    wire.epochs[0].number = epoch;
    wire.epochs[0].shard_of_slot.iter_mut().for_each(|shard| *shard = (*shard - 1 + moved) % u32::from(shards) + 1);
    Placement::from_wire(wire).unwrap()
}

#[tonic::async_trait]
impl Shards for ManyShards {
    type Error = Status;

    async fn placement(&self) -> Result<Placement, Status> {
        *self.placements_read.lock().unwrap() += 1;
        Ok(self.placement.lock().unwrap().clone())
    }

    async fn append(&self, shard: u32, placement_epoch: u64, batch: Batch) -> Result<Appended, Status> {
        let barrier = self.barrier.lock().unwrap().clone();
        if let Some(barrier) = barrier {
            barrier.wait().await;
        }
        let bytes = batch.memory_bytes();
        {
            let appending = &mut *self.appending.lock().unwrap();
            appending.push(bytes);
            let (count, total) = &mut *self.appending_max.lock().unwrap();
            *count = appending.len().max(*count);
            *total = appending.iter().sum::<usize>().max(*total);
        }
        tokio::task::yield_now().await;
        let appended = self.appended(shard, placement_epoch, &batch);
        let pause = self.pause.lock().unwrap().clone();
        if let Some(pause) = pause
            && appended.as_ref().is_err_and(|status| status.code() == Code::Aborted)
        {
            pause.began.notify_one();
            pause.may_end.notified().await;
        }
        let appending = &mut *self.appending.lock().unwrap();
        let index = appending.iter().position(|known| *known == bytes).unwrap();
        appending.swap_remove(index);
        appended
    }

    async fn holds_batch(&self, shard: u32, placement_epoch: u64, _: TenantId, id: BatchId) -> Result<bool, Status> {
        if placement_epoch != self.placement.lock().unwrap().epoch() {
            return Err(Status::failed_precondition("read the placement again"));
        }
        *self.lookups.lock().unwrap() += 1;
        if let Some(code) = self.with(shard, |shard| shard.refuses) {
            return Err(Status::new(code, "as the test wishes"));
        }
        Ok(self.with(shard, |shard| shard.stored.contains_key(&id)))
    }

    async fn read_point(&self, _: u32, _: u64, _: proto::Consistency) -> Result<proto::ReadPoint, Status> {
        Err(Status::unimplemented("not used here"))
    }

    async fn select(&self, _: u32, _: proto::ReadAt, _: Selection) -> Result<Answer, Status> {
        Err(Status::unimplemented("not used here"))
    }

    async fn locations(
        &self,
        _: u32,
        _: proto::ReadAt,
        _: TenantId,
        _: KnownLocations,
    ) -> Result<LocationPage, Status> {
        Err(Status::unimplemented("not used here"))
    }

    async fn series(&self, _: u32, _: proto::ReadAt, _: SeriesQuery) -> Result<SeriesAnswer, Status> {
        Err(Status::unimplemented("not used here"))
    }

    async fn delete(&self, _: u32, _: u64, _: Deletion) -> Result<Deleted, Status> {
        Err(Status::unimplemented("not used here"))
    }

    async fn administer(&self, _: u32, _: AdministrationTask) -> Result<String, Status> {
        Err(Status::unimplemented("not used here"))
    }
}

impl ManyShards {
    pub(super) fn new(shards: u16) -> Arc<Self> {
        Arc::new(Self {
            placement: Mutex::new(placement(1, shards, 0)),
            shards: Mutex::default(),
            barrier: Mutex::default(),
            pause: Mutex::default(),
            appending: Mutex::default(),
            appending_max: Mutex::default(),
            placements_read: Mutex::default(),
            lookups: Mutex::default(),
        })
    }

    fn appended(&self, shard: u32, placement_epoch: u64, batch: &Batch) -> Result<Appended, Status> {
        if placement_epoch != self.placement.lock().unwrap().epoch() {
            return Err(Status::failed_precondition("read the placement again"));
        }
        let shards = &mut *self.shards.lock().unwrap();
        let FakeShard { held, stored, arrived, refuses, refuses_appends, silent } = shards.entry(shard).or_default();
        let stacks = || batch.dictionary.stacks.iter().skip(1);
        let is_whole = stacks().all(|(_, stack)| stack.is_some());
        *arrived = (arrived.0 + 1, arrived.1 + usize::from(is_whole));
        if let Some(code) = refuses.or(refuses_appends.then_some(Code::Internal)) {
            return Err(Status::new(code, "as the test wishes"));
        }
        if stacks().any(|(hash, stack)| stack.is_none() && !held.contains(hash)) {
            return Err(Status::aborted("definitions are missing"));
        }
        held.extend(stacks().map(|(hash, _)| *hash));
        let samples = batch.series.iter().map(|series| series.samples.len()).sum();
        let duplicate = stored.contains_key(&batch.id.unwrap());
        stored.entry(batch.id.unwrap()).or_insert(samples);
        if *silent > 0 {
            *silent -= 1;
            return Err(Status::unavailable("no response"));
        }
        Ok(Appended { duplicate, samples_too_old: 0, retention: Duration::from_secs(864_000) })
    }

    pub(super) fn shard_of(&self, service: &str) -> u32 {
        self.placement.lock().unwrap().newest().shard(Slot::of(&TenantId::default_tenant(), service))
    }

    pub(super) fn with<T>(&self, shard: u32, change: impl FnOnce(&mut FakeShard) -> T) -> T {
        change(self.shards.lock().unwrap().entry(shard).or_default())
    }

    /// Returns the number of stored samples of each shard that has any.
    pub(super) fn stored(&self) -> BTreeMap<u32, usize> {
        let of_shard = |(&shard, of): (&u32, &FakeShard)| (shard, of.stored.values().sum());
        let stored = self.shards.lock().unwrap().iter().map(of_shard).collect::<BTreeMap<u32, usize>>();
        stored.into_iter().filter(|(_, samples)| *samples > 0).collect()
    }

    /// Returns, for each shard, the number of batches that arrived since the last call, and of those that defined all
    /// their stacks.
    pub(super) fn arrived(&self) -> BTreeMap<u32, (usize, usize)> {
        let mut shards = self.shards.lock().unwrap();
        shards.iter_mut().map(|(&shard, of)| (shard, std::mem::take(&mut of.arrived))).collect()
    }
}

/// Makes a pusher that sends refused parts again twice, at once.
pub(super) fn pusher(node: &Arc<ManyShards>) -> Pusher {
    let nodes = Nodes::local(Arc::clone(node) as Arc<dyn Shards<Error = Status>>);
    Pusher { retry_pauses: &[Duration::ZERO; 2], ..Pusher::new(nodes, &mut Registry::default()) }
}

/// Returns an export request with one sample of each service, all with the same stack.
pub(super) fn body_of(services: &[&str]) -> Vec<u8> {
    let sample = Sample { stack_index: 1, timestamps_unix_nano: vec![now_ns() as u64], ..Sample::default() };
    let stacks = vec![Stack::default(), Stack { location_indices: vec![1] }];
    body_with(services, &[sample], stacks)
}

/// Returns an export request with samples of every service that have no time.
pub(super) fn timeless_body(services: &[&str]) -> Vec<u8> {
    let sample = Sample { stack_index: 1, values: vec![1], ..Sample::default() };
    body_with(services, &[sample], vec![Stack::default(), Stack { location_indices: vec![1] }])
}

/// Returns an export request in which every service has a sample of each of so many stacks, all of 2,048 frames.
pub(super) fn large_body(services: &[&str], stacks: i32) -> Vec<u8> {
    let time = now_ns() as u64;
    let sample = |stack_index| Sample { stack_index, timestamps_unix_nano: vec![time], ..Sample::default() };
    let samples: Vec<Sample> = (1..=stacks).map(sample).collect();
    // The first 13 frames tell the stacks apart.
    let stack = |number: i32| Stack { location_indices: (0..2048).map(|i| 1 + (number >> i.min(13) & 1)).collect() };
    let mut all = vec![Stack::default()];
    all.extend((1..=stacks).map(stack));
    body_with(services, &samples, all)
}

/// Returns an export request with these samples of every service.
pub(super) fn body_with(services: &[&str], samples: &[Sample], stack_table: Vec<Stack>) -> Vec<u8> {
    let resource = |service: &&str| {
        let value = Some(AnyValue { value: Some(Value::StringValue((*service).to_owned())) });
        let name = KeyValue { key: "service.name".to_owned(), value, ..KeyValue::default() };
        let profiles = vec![Profile { samples: samples.to_vec(), ..Profile::default() }];
        ResourceProfiles {
            resource: Some(Resource { attributes: vec![name], ..Resource::default() }),
            scope_profiles: vec![ScopeProfiles { profiles, ..ScopeProfiles::default() }],
            ..ResourceProfiles::default()
        }
    };
    let dictionary = ProfilesDictionary {
        location_table: [0, 7, 8].map(|address| Location { address, ..Location::default() }).to_vec(),
        stack_table,
        ..ProfilesDictionary::default()
    };
    let request = ExportProfilesServiceRequest {
        resource_profiles: services.iter().map(resource).collect(),
        dictionary: Some(dictionary),
    };
    prost::Message::encode_to_vec(&request)
}
