//! Tests of records of replicas: a replica that is given up leaves nothing that the next one could use.

use std::sync::Arc;

use openraft::storage::{RaftLogReader as _, RaftLogStorage as _};

use super::{append, entry, open, reclaim};
use crate::consensus::ReplicaRecord;
use crate::consensus::log::LogStore;
use crate::consensus::types::{LogId, Vote};

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_with_a_new_identity_has_no_entry_and_no_vote() {
    let folder = tempfile::tempdir().unwrap();
    let (log, _) = open(folder.path());
    let original = ReplicaRecord { identity: Some(log.directory_id()), revision: 0 };
    for shard in [1, 2] {
        let mut store = LogStore::new(shard, Arc::clone(&log));
        append(&mut store, (0..9).map(|index| entry(index, 10)).collect()).await.await.unwrap();
        store.save_vote(&Vote::new_committed(5, 1)).await.unwrap();
        store.purge(entry(3, 10).log_id).await.unwrap();
        assert_eq!(log.replica(shard), original);
    }
    let given_up = ReplicaRecord { identity: None, revision: 8 };
    log.renew_replica(1, given_up).await.unwrap();
    drop(log);
    let (log, _) = open(folder.path());
    assert_eq!(log.replica(1), given_up);
    let renewed = ReplicaRecord { identity: Some([7; 16]), revision: 9 };
    log.renew_replica(1, renewed).await.unwrap();
    assert_eq!((log.replica(1), log.replica(2)), (renewed, original));
    let mut store = LogStore::new(1, Arc::clone(&log));
    let state = store.get_log_state().await.unwrap();
    assert_eq!((state.last_log_id, state.last_purged_log_id, store.read_vote().await.unwrap()), (None, None, None));
    // The new replica has a log of its own, from any index on. Reclaiming space does not touch it.
    append(&mut store, vec![entry(2, 10), entry(3, 10)]).await.await.unwrap();
    assert!(reclaim(&log, u64::MAX, 0));
    drop((store, log));
    let (log, _) = open(folder.path());
    assert_eq!(log.replica(1), renewed);
    let indexes = |of: Option<LogId>| of.map(|log_id| log_id.index);
    for (shard, last, vote) in [(1, 3, None), (2, 8, Some(Vote::new_committed(5, 1)))] {
        let mut store = LogStore::new(shard, Arc::clone(&log));
        assert_eq!(indexes(store.get_log_state().await.unwrap().last_log_id), Some(last), "shard {shard}");
        assert_eq!(store.read_vote().await.unwrap(), vote, "shard {shard}");
    }
}
