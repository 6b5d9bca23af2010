//! Tests of pushes over several shards.

use std::collections::HashMap;
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
use tokio::sync::Barrier;
use tonic::Code;

use super::*;

/// One of the shards of a fake node.
#[derive(Default)]
struct FakeShard {
    held: HashSet<StackHash>,
    /// Number of samples by the ID of their batch. A batch that is sent again is not stored again.
    stored: HashMap<BatchId, usize>,
    /// Number of batches that arrived, and of those that defined all their stacks.
    arrived: (usize, usize),
    /// Code with which the shard refuses every batch.
    refuses: Option<Code>,
}

/// A fake node with several shards.
struct ManyShards {
    placement: Mutex<Placement>,
    shards: Mutex<BTreeMap<u32, FakeShard>>,
    /// Barrier at which each append waits.
    barrier: Mutex<Option<Arc<Barrier>>>,
    placements_read: Mutex<u32>,
}

/// Returns a placement of this epoch, in which slots are moved by `moved` shards.
fn placement(epoch: u64, shards: u16, moved: u32) -> Placement {
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
        if placement_epoch != self.placement.lock().unwrap().epoch() {
            return Err(Status::failed_precondition("read the placement again"));
        }
        let shards = &mut *self.shards.lock().unwrap();
        let FakeShard { held, stored, arrived, refuses } = shards.entry(shard).or_default();
        let stacks = || batch.dictionary.stacks.iter().skip(1);
        let is_whole = stacks().all(|(_, stack)| stack.is_some());
        *arrived = (arrived.0 + 1, arrived.1 + usize::from(is_whole));
        if let Some(code) = *refuses {
            return Err(Status::new(code, "as the test wishes"));
        }
        if stacks().any(|(hash, stack)| stack.is_none() && !held.contains(hash)) {
            return Err(Status::aborted("definitions are missing"));
        }
        held.extend(stacks().map(|(hash, _)| *hash));
        let samples = batch.series.iter().map(|series| series.samples.len()).sum();
        let duplicate = stored.insert(batch.id.unwrap(), samples).is_some();
        Ok(Appended { duplicate, samples_too_old: 0, retention: Duration::from_secs(864_000) })
    }

    async fn select(&self, _: u32, _: Selection) -> Result<Answer, Status> {
        Err(Status::unimplemented("not used here"))
    }

    async fn locations(&self, _: u32, _: TenantId, _: KnownLocations) -> Result<LocationPage, Status> {
        Err(Status::unimplemented("not used here"))
    }

    async fn series(&self, _: u32, _: SeriesQuery) -> Result<SeriesAnswer, Status> {
        Err(Status::unimplemented("not used here"))
    }

    async fn delete(&self, _: u32, _: Deletion) -> Result<Deleted, Status> {
        Err(Status::unimplemented("not used here"))
    }

    async fn administer(&self, _: u32, _: AdministrationTask) -> Result<String, Status> {
        Err(Status::unimplemented("not used here"))
    }
}

impl ManyShards {
    fn new(shards: u16) -> Arc<Self> {
        Arc::new(Self {
            placement: Mutex::new(placement(1, shards, 0)),
            shards: Mutex::default(),
            barrier: Mutex::default(),
            placements_read: Mutex::default(),
        })
    }

    fn shard_of(&self, service: &str) -> u32 {
        self.placement.lock().unwrap().newest().shard(Slot::of(&TenantId::default_tenant(), service))
    }

    fn with<T>(&self, shard: u32, change: impl FnOnce(&mut FakeShard) -> T) -> T {
        change(self.shards.lock().unwrap().entry(shard).or_default())
    }

    /// Returns the number of stored samples of each shard that has any.
    fn stored(&self) -> BTreeMap<u32, usize> {
        let of_shard = |(&shard, of): (&u32, &FakeShard)| (shard, of.stored.values().sum());
        let stored = self.shards.lock().unwrap().iter().map(of_shard).collect::<BTreeMap<u32, usize>>();
        stored.into_iter().filter(|(_, samples)| *samples > 0).collect()
    }

    /// Returns, for each shard, the number of batches that arrived since the last call, and of those that defined all
    /// their stacks.
    fn arrived(&self) -> BTreeMap<u32, (usize, usize)> {
        let mut shards = self.shards.lock().unwrap();
        shards.iter_mut().map(|(&shard, of)| (shard, std::mem::take(&mut of.arrived))).collect()
    }
}

fn pusher(node: &Arc<ManyShards>) -> Pusher {
    Pusher::new(Nodes::local(Arc::clone(node) as Arc<dyn Shards<Error = Status>>), &mut Registry::default())
}

/// Returns an export request with one sample of each service, all with the same stack.
fn body_of(services: &[&str]) -> Vec<u8> {
    let sample = Sample { stack_index: 1, timestamps_unix_nano: vec![now_ns() as u64], ..Sample::default() };
    let resource = |service: &&str| {
        let value = Some(AnyValue { value: Some(Value::StringValue((*service).to_owned())) });
        let name = KeyValue { key: "service.name".to_owned(), value, ..KeyValue::default() };
        let profiles = vec![Profile { samples: vec![sample.clone()], ..Profile::default() }];
        ResourceProfiles {
            resource: Some(Resource { attributes: vec![name], ..Resource::default() }),
            scope_profiles: vec![ScopeProfiles { profiles, ..ScopeProfiles::default() }],
            ..ResourceProfiles::default()
        }
    };
    let dictionary = ProfilesDictionary {
        location_table: vec![Location::default(), Location { address: 7, ..Location::default() }],
        stack_table: vec![Stack::default(), Stack { location_indices: vec![1] }],
        ..ProfilesDictionary::default()
    };
    let request = ExportProfilesServiceRequest {
        resource_profiles: services.iter().map(resource).collect(),
        dictionary: Some(dictionary),
    };
    prost::Message::encode_to_vec(&request)
}

async fn push(pusher: &Pusher, body: &[u8]) -> Result<Accepted, PushError> {
    let arriving = arriving(Format::OtlpProtobuf, Encoding::Identity, body.to_vec());
    pusher.push(&TenantId::default_tenant(), arriving).await
}

/// Services in different shards of four.
const SERVICES: [&str; 3] = ["a", "b", "c"];

/// Makes a node with four shards, and a pusher. Also returns the shards of [`SERVICES`].
fn four() -> (Arc<ManyShards>, Pusher, [u32; 3]) {
    let node = ManyShards::new(4);
    let pusher = pusher(&node);
    let shards = SERVICES.map(|service| node.shard_of(service));
    assert_eq!(shards.iter().collect::<HashSet<_>>().len(), 3, "the tests need different shards: {shards:?}");
    (node, pusher, shards)
}

#[tokio::test]
async fn a_push_goes_to_its_shards_at_the_same_time() {
    let (node, pusher, shards) = four();
    // No append ends before all three have begun.
    *node.barrier.lock().unwrap() = Some(Arc::new(Barrier::new(3)));
    let pushed = tokio::time::timeout(Duration::from_secs(30), push(&pusher, &body_of(&SERVICES))).await.unwrap();
    assert_eq!(pushed.unwrap().samples, 3);
    assert_eq!(node.stored(), shards.map(|shard| (shard, 1)).into());
    assert_eq!(*node.placements_read.lock().unwrap(), 1);
}

#[tokio::test]
async fn a_retry_after_a_failed_shard_stores_nothing_twice() {
    let (node, pusher, [a, b, c]) = four();
    let body = body_of(&SERVICES);
    for code in [Code::Unavailable, Code::ResourceExhausted, Code::Internal] {
        node.with(b, |shard| shard.refuses = Some(code));
        let error = push(&pusher, &body).await.unwrap_err();
        assert!(error.to_string().contains(&format!("shard {b}: as the test wishes")), "{error}");
        let status = crate::api::error::ApiError::from(error).status.as_u16();
        assert!([429, 503].contains(&status), "a sender retries: {status}");
        assert_eq!(node.stored(), [(a, 1), (c, 1)].into(), "the other shards store their part");
    }
    node.with(b, |shard| shard.refuses = None);
    assert_eq!(push(&pusher, &body).await.unwrap().samples, 3);
    assert_eq!(node.stored(), [(a, 1), (b, 1), (c, 1)].into());
    // Another push has other samples.
    push(&pusher, &body_of(&SERVICES)).await.unwrap();
    assert_eq!(node.stored(), [(a, 2), (b, 2), (c, 2)].into());
}

#[tokio::test]
async fn only_a_shard_without_the_definitions_gets_the_push_again() {
    let (node, pusher, [a, b, c]) = four();
    push(&pusher, &body_of(&["a", "b"])).await.unwrap();
    assert_eq!(node.arrived(), [(a, (1, 1)), (b, (1, 1))].into());
    // The stack is known in two shards, and new in the third.
    push(&pusher, &body_of(&SERVICES)).await.unwrap();
    assert_eq!(node.arrived()[&c], (1, 1));
    push(&pusher, &body_of(&SERVICES)).await.unwrap();
    assert_eq!(node.arrived(), [(a, (1, 0)), (b, (1, 0)), (c, (1, 0))].into());
    node.with(b, |shard| shard.held.clear());
    push(&pusher, &body_of(&SERVICES)).await.unwrap();
    assert_eq!(node.arrived(), [(a, (1, 0)), (b, (2, 1)), (c, (1, 0))].into());
    assert_eq!(node.stored(), [(a, 4), (b, 4), (c, 3)].into());
    // A shard that fails for another reason makes the sender retry.
    node.with(b, |shard| shard.held.clear());
    node.with(a, |shard| shard.refuses = Some(Code::Unavailable));
    let error = push(&pusher, &body_of(&SERVICES)).await.unwrap_err();
    assert!(error.to_string().contains(&format!("shard {a}:")), "{error}");
}

#[tokio::test]
async fn a_push_with_an_old_placement_is_placed_again() {
    let (node, pusher, before) = four();
    push(&pusher, &body_of(&SERVICES)).await.unwrap();
    *node.placement.lock().unwrap() = placement(2, 4, 1);
    let after = SERVICES.map(|service| node.shard_of(service));
    assert_ne!(before, after);
    push(&pusher, &body_of(&SERVICES)).await.unwrap();
    let mut want: BTreeMap<u32, usize> = BTreeMap::new();
    before.iter().chain(&after).for_each(|shard| *want.entry(*shard).or_default() += 1);
    assert_eq!(node.stored(), want);
    assert_eq!(*node.placements_read.lock().unwrap(), 2, "once for both");
}

#[tokio::test]
async fn a_push_is_not_placed_again_for_ever() {
    let (node, pusher, [a, ..]) = four();
    node.with(a, |shard| shard.refuses = Some(Code::FailedPrecondition));
    let error = push(&pusher, &body_of(&["a"])).await.unwrap_err();
    assert!(error.to_string().contains("as the test wishes"), "{error}");
    assert_eq!(node.arrived(), [(a, (4, 4))].into());
    // Samples that a shard has acknowledged are not placed again.
    push(&pusher, &body_of(&SERVICES)).await.unwrap_err();
    assert_eq!(node.arrived()[&a].0, 1);
}
