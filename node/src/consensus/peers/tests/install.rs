//! Tests of requests to install a snapshot.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use proto::meta::ClusterId;
use proto::wire;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use transport::Dialer;

use crate::consensus::peers::Peers;
use crate::consensus::peers::install::{Installs, install};

const DIRECTORY: [u8; 16] = [2; 16];

fn request(index: u64) -> wire::InstallRequest {
    let directory = Bytes::copy_from_slice(&DIRECTORY);
    wire::InstallRequest {
        shard: 1,
        sender: 7,
        directory,
        address: "sender:1".to_owned(),
        index,
        cluster: Bytes::new(),
    }
}

/// Returns the transport of a node that serves requests, and its address.
fn served() -> (Arc<Peers>, String) {
    let peers = Peers::new(2, String::new(), DIRECTORY, Dialer::plaintext());
    let incoming = TcpIncoming::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let address = incoming.local_addr().unwrap().to_string();
    tokio::spawn(Server::builder().add_service(peers.service()).serve_with_incoming(incoming));
    (peers, address)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_installed_snapshot_must_have_the_requested_entry() {
    let (peers, address) = served();
    let mut installs = peers.installs(1, DIRECTORY);
    tokio::spawn(async move {
        for applied in [5, 4, 6] {
            let request = installs.recv().await.unwrap();
            assert_eq!((request.sender, request.address.as_str(), request.index), (7, "sender:1", 5));
            request.done(applied);
        }
        installs.recv().await.unwrap().refuse(&"the disk is full");
        drop(installs.recv().await.unwrap());
    });
    let dialer = Dialer::plaintext();
    install(&dialer, &address, request(5)).await.unwrap();
    let error = install(&dialer, &address, request(5)).await.unwrap_err();
    assert!(error.contains("the state is as of entry 4"), "{error}");
    install(&dialer, &address, request(5)).await.unwrap();
    let error = install(&dialer, &address, request(5)).await.unwrap_err();
    assert_eq!(error, "the disk is full");
    // The member is closed before its reply, and then has no supervisor.
    for _ in 0..2 {
        let error = install(&dialer, &address, request(5)).await.unwrap_err();
        assert!(error.contains("no running replica of shard 1"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_to_install_for_other_members_are_refused() {
    let (peers, address) = served();
    let mut installs = peers.installs(1, DIRECTORY);
    let dialer = Dialer::plaintext();
    let other_shard = wire::InstallRequest { shard: 2, ..request(5) };
    let error = install(&dialer, &address, other_shard).await.unwrap_err();
    assert!(error.contains("no running replica of shard 2"), "{error}");
    for directory in [Bytes::new(), Bytes::from_static(&[3; 16]), Bytes::from_static(&[2; 17])] {
        let error = install(&dialer, &address, wire::InstallRequest { directory, ..request(5) }).await.unwrap_err();
        assert!(error.contains("another replica of shard 1"), "{error}");
    }
    peers.belong_to(ClusterId(7));
    let cluster = ClusterId(8).to_wire();
    let error = install(&dialer, &address, wire::InstallRequest { cluster, ..request(5) }).await.unwrap_err();
    assert!(error.contains("belongs to cluster 00000000000000000000000000000007"), "{error}");
    assert!(installs.try_recv().is_err(), "a request was passed on");
    let error = install(&dialer, "no address", request(5)).await.unwrap_err();
    assert!(error.contains("its address is invalid"), "{error}");
    let error = install(&dialer, "127.0.0.1:1", request(5)).await.unwrap_err();
    assert!(!error.is_empty());
    // A server that stops does not wait for the member.
    let waiting = tokio::spawn(async move { install(&Dialer::plaintext(), &address, request(5)).await });
    let _installing = installs.recv().await.unwrap();
    peers.close();
    let stopped = tokio::time::timeout(Duration::from_secs(20), waiting).await;
    let error = stopped.expect("the request waits").unwrap().unwrap_err();
    assert!(error.contains("the node is stopping"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_request_waits_until_the_first_is_done() {
    let installs = Arc::new(Installs::default());
    let mut queue = installs.queue(1, DIRECTORY);
    let requested = |index| {
        let installs = Arc::clone(&installs);
        tokio::spawn(async move { installs.request(request(index)).await.map(|response| response.index) })
    };
    let first = requested(1);
    let installing = queue.recv().await.unwrap();
    let second = requested(2);
    let abandoned = requested(3);
    let next = queue.recv().await.unwrap();
    assert!(!first.is_finished() && !second.is_finished());
    installing.done(10);
    assert_eq!(first.await.unwrap().unwrap(), 10);
    abandoned.abort();
    assert!(abandoned.await.unwrap_err().is_cancelled());
    // The two later requests may come in any order.
    let mut request = next;
    while request.index != 2 {
        assert!(request.index == 3 && request.is_abandoned());
        request = queue.recv().await.unwrap();
    }
    assert!(!request.is_abandoned());
    request.done(11);
    assert_eq!(second.await.unwrap().unwrap(), 11);
}

proptest! {
    #[test]
    fn any_request_is_passed_on_as_it_is(
        shard in any::<u32>(),
        sender in any::<u64>(),
        address in ".{0,40}",
        index in any::<u64>(),
        applied in any::<u64>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let installs = Installs::default();
            let mut queue = installs.queue(shard, [0; 16]);
            let directory = Bytes::from_static(&[0; 16]);
            let cluster = Bytes::new();
            let request = wire::InstallRequest { shard, sender, directory, address: address.clone(), index, cluster };
            let member = async {
                let passed = queue.recv().await.unwrap();
                prop_assert_eq!((passed.sender, &passed.address, passed.index), (sender, &address, index));
                passed.done(applied);
                Ok(())
            };
            let (response, checked) = tokio::join!(installs.request(request), member);
            prop_assert_eq!(response.unwrap().index, applied);
            checked
        })?;
    }
}
