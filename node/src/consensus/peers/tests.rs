//! Tests of groups with three members over real connections, with real logs.

mod install;
mod nodes;

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use proto::meta::ClusterId;
use proto::wire;
use proto::wire::peer_reply::Reply;
use proto::wire::peer_request::Message;
use proto::wire::peers_client::PeersClient;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use transport::Dialer;

use self::nodes::{Node, Nodes, SHARD};
use crate::consensus::ConsensusError;
use crate::consensus::peers::{Peers, REQUEST_BYTES_MAX};

const ALL: [usize; 3] = [0, 1, 2];

/// Number of leaders that are killed.
fn rounds() -> usize {
    std::env::var("VARVE_FAILOVERS").map_or(4, |rounds| rounds.parse().expect("VARVE_FAILOVERS is not a number"))
}

fn others(index: usize) -> [usize; 2] {
    [(index + 1) % 3, (index + 2) % 3]
}

/// Sends requests to a node as another node does. Returns their replies.
async fn exchanged(node: &Node, requests: Vec<wire::PeerRequest>) -> Vec<wire::PeerReply> {
    let count = requests.len();
    let mut client = PeersClient::connect(format!("http://{}", node.address())).await.unwrap();
    let sent = futures::stream::iter([wire::PeerRequests { requests, cluster: Bytes::new() }]);
    let mut received = client.exchange(sent).await.unwrap().into_inner();
    let mut replies = Vec::new();
    while replies.len() < count {
        replies.extend(received.message().await.unwrap().expect("a request has no reply").replies);
    }
    replies
}

fn request(node: &Node, message: Option<Message>) -> wire::PeerRequest {
    let directory = Bytes::copy_from_slice(&node.member().directory);
    wire::PeerRequest { number: 1, shard: SHARD, sender: 2, directory, replied: 0, message }
}

fn vote_request(term: u64) -> Message {
    let vote = Some(wire::Vote { term, node: 2, committed: false });
    let last = Some(wire::LogPosition { term, node: 2, index: 1 << 20 });
    Message::Vote(wire::RequestVote { vote, last, leadership_transfer: true })
}

fn refusal(reply: &wire::PeerReply) -> &str {
    match &reply.reply {
        Some(Reply::Refusal(wire::PeerRefusal { text })) => text,
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_leader_acknowledges_and_all_members_apply() {
    let nodes = Nodes::start().await;
    let leader = nodes.acknowledged("0", &ALL).await;
    for command in 1..50 {
        nodes.0[leader].propose(&command.to_string()).await.unwrap();
    }
    nodes.0[leader].group().linearize().await.unwrap();
    let follower = &nodes.0[others(leader)[0]];
    let error = follower.propose("refused").await.unwrap_err();
    let ConsensusError::NotLeader { leader: Some(named) } = error else { panic!("{error}") };
    assert_eq!((named.node, named.address), (leader as u64 + 1, nodes.0[leader].address().to_string()));
    let commands = nodes.equal(&ALL, 50).await;
    assert_eq!(commands, (0..50).map(|command| Bytes::from(command.to_string())).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_acknowledged_is_lost_when_leaders_are_killed() {
    let mut nodes = Nodes::start().await;
    let mut leader = nodes.acknowledged("first", &ALL).await;
    let mut acknowledged = vec![Bytes::from("first")];
    let mut failovers = Vec::new();
    for round in 0..rounds() {
        for number in 0..20 {
            let command = format!("{round}.{number}");
            nodes.0[leader].propose(&command).await.unwrap();
            acknowledged.push(command.into());
        }
        nodes.0[leader].kill();
        let command = format!("{round}.failover");
        let killed = leader;
        let start = Instant::now();
        leader = nodes.acknowledged(&command, &others(killed)).await;
        failovers.push(start.elapsed());
        acknowledged.push(command.into());
        nodes.0[killed].start().await;
    }
    failovers.sort();
    println!("failover: p50 {:?}, max {:?}", failovers[failovers.len() / 2], failovers[failovers.len() - 1]);
    let mut commands = nodes.equal(&ALL, acknowledged.len()).await;
    // A command is proposed again if its outcome is unknown, so it may be applied twice.
    commands.dedup();
    assert_eq!(commands, acknowledged);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_that_was_away_catches_up_from_the_log() {
    let mut nodes = Nodes::start().await;
    let leader = nodes.acknowledged("0", &ALL).await;
    let [away, _] = others(leader);
    nodes.0[away].kill();
    // More than is kept in memory for followers, and more than one request.
    let large = "x".repeat(256 << 10);
    for _ in 0..40 {
        nodes.0[leader].propose(&large).await.unwrap();
    }
    let small: Vec<_> = (0..2000).map(|number| number.to_string()).collect();
    let proposed = futures::future::join_all(small.iter().map(|command| nodes.0[leader].propose(command))).await;
    assert!(proposed.into_iter().all(|proposed| proposed.is_ok()));
    nodes.0[away].start().await;
    assert_eq!(nodes.equal(&ALL, 2041).await.len(), 2041);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_says_that_it_cannot_commit_without_a_majority() {
    let mut nodes = Nodes::start().await;
    let leader = nodes.acknowledged("before", &ALL).await;
    let [follower, other] = others(leader);
    // Longer than a member may be without contact: an idle group keeps in contact.
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert!(ALL.iter().all(|&index| nodes.0[index].group().can_commit()));
    let wait_until = async |nodes: &Nodes, index: usize, can_commit: bool| {
        let start = Instant::now();
        while nodes.0[index].group().can_commit() != can_commit {
            assert!(start.elapsed() < Duration::from_secs(20), "node {index}: {can_commit} is not reported");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    // A leader without followers.
    nodes.0[follower].kill();
    nodes.0[other].kill();
    wait_until(&nodes, leader, false).await;
    nodes.0[follower].start().await;
    wait_until(&nodes, leader, true).await;
    wait_until(&nodes, follower, true).await;
    // A follower without a leader.
    let leader = nodes.acknowledged("between", &[leader, follower]).await;
    nodes.0[leader].kill();
    let alone = ALL.into_iter().find(|&index| index != leader && index != other).unwrap();
    wait_until(&nodes, alone, false).await;
    nodes.0[other].start().await;
    wait_until(&nodes, alone, true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partitioned_minority_never_acknowledges() {
    let nodes = Nodes::start().await;
    let old = nodes.acknowledged("before", &ALL).await;
    nodes.cut(old, true).await;
    let start = Instant::now();
    let majority = others(old);
    let (refused, leader) = tokio::join!(nodes.0[old].propose("minority"), nodes.acknowledged("majority", &majority));
    assert_ne!(leader, old);
    let error = refused.unwrap_err();
    assert!(matches!(error, ConsensusError::Unknown | ConsensusError::NotLeader { .. }), "{error}");
    assert!(start.elapsed() < Duration::from_secs(12), "the proposal had no deadline: {:?}", start.elapsed());
    nodes.0[old].group().linearize().await.expect_err("a read without a majority");
    nodes.0[old].propose("minority").await.unwrap_err();
    nodes.cut(old, false).await;
    nodes.acknowledged("after", &ALL).await;
    let mut commands = nodes.equal(&ALL, 3).await;
    commands.dedup();
    assert_eq!(commands, ["before", "majority", "after"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_without_its_leader_states_how_old_its_state_is() {
    let nodes = Nodes::start().await;
    let leader = nodes.acknowledged("before", &ALL).await;
    nodes.equal(&ALL, 1).await;
    let all_fresh = async || {
        let start = Instant::now();
        let staleness = |node: usize| nodes.0[node].group().staleness();
        while !ALL.iter().all(|&node| staleness(node).is_some_and(|age| age < Duration::from_secs(2))) {
            assert!(start.elapsed() < Duration::from_secs(30), "{:?}", ALL.map(staleness));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    all_fresh().await;
    let [cut, other] = others(leader);
    nodes.cut(cut, true).await;
    let leads = nodes.acknowledged("while it was cut off", &others(cut)).await;
    let acknowledged = Instant::now();
    let index = nodes.0[leads].group().linearize().await.unwrap();
    nodes.0[leader].group().reach(index).await.unwrap();
    nodes.0[other].group().reach(index).await.unwrap();
    let error = nodes.0[cut].group().reach(index).await.unwrap_err();
    assert!(matches!(error, ConsensusError::Behind { .. }), "{error}");
    // Its state does not have the command, so it is older than the acknowledgement.
    let since = acknowledged.elapsed();
    assert!(nodes.0[cut].group().staleness().unwrap() >= since, "at least {since:?}");
    nodes.cut(cut, false).await;
    nodes.equal(&ALL, 2).await;
    all_fresh().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_with_a_new_directory_neither_votes_nor_acknowledges() {
    let mut nodes = Nodes::start().await;
    let leader = nodes.acknowledged("before", &ALL).await;
    let [wiped, killed] = others(leader);
    let old = nodes.0[wiped].member();
    nodes.0[wiped].kill();
    nodes.0[wiped].folder = tempfile::tempdir().unwrap();
    nodes.0[wiped].start().await;
    // A majority without the wiped node.
    nodes.0[leader].propose("two of three").await.unwrap();
    nodes.0[killed].kill();
    let error = nodes.0[leader].propose("one of three").await.unwrap_err();
    assert!(matches!(error, ConsensusError::Unknown | ConsensusError::NotLeader { .. }), "{error}");
    let to_old = wire::PeerRequest {
        directory: Bytes::copy_from_slice(&old.directory),
        ..request(&nodes.0[wiped], Some(vote_request(1000)))
    };
    let replies = exchanged(&nodes.0[wiped], vec![to_old]).await;
    let text = refusal(&replies[0]);
    assert!(
        text.contains("has a new, empty data directory") && text.contains("varve admin cluster accept --node"),
        "{text}"
    );
    assert!(nodes.0[wiped].log().vote(SHARD).unwrap().is_none(), "the wiped node has voted");
    assert!(nodes.0[wiped].commands().is_empty());
    assert!(!nodes.0[wiped].group().is_created().await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn hostile_messages_are_refused_and_the_group_goes_on() {
    let nodes = Nodes::start().await;
    nodes.acknowledged("before", &ALL).await;
    let node = &nodes.0[0];
    let append = |append| Some(Message::Append(append));
    let vote = Some(wire::Vote { term: u64::MAX, node: 2, committed: true });
    let requests = vec![
        request(node, None),
        request(node, append(wire::AppendEntries::default())),
        request(node, append(wire::AppendEntries { vote, ..wire::AppendEntries::default() })),
        request(node, Some(vote_request(u64::MAX))),
        wire::PeerRequest { sender: 3, ..request(node, Some(vote_request(1000))) },
        wire::PeerRequest { shard: 77, ..request(node, Some(vote_request(1000))) },
        wire::PeerRequest { directory: Bytes::new(), ..request(node, Some(vote_request(1000))) },
        wire::PeerRequest { directory: Bytes::from(vec![7; 1 << 20]), ..request(node, Some(vote_request(1000))) },
    ];
    let replies = exchanged(node, requests).await;
    assert!(replies.iter().all(|reply| !refusal(reply).is_empty()));
    for text in ["no running member of shard 77", "the vote is that of node 2, and the sender is node 3"] {
        assert!(replies.iter().any(|reply| refusal(reply).contains(text)), "{text}");
    }
    // A message that is too large ends the stream, and nothing else.
    let large = Bytes::from(vec![0; 2 * REQUEST_BYTES_MAX]);
    let mut client = PeersClient::connect(format!("http://{}", node.address())).await.unwrap();
    let requests = vec![wire::PeerRequest { directory: large, ..wire::PeerRequest::default() }];
    let mut received = client
        .exchange(futures::stream::iter([wire::PeerRequests { requests, cluster: Bytes::new() }]))
        .await
        .unwrap()
        .into_inner();
    assert!(matches!(received.message().await, Ok(None) | Err(_)));
    nodes.acknowledged("after", &ALL).await;
    assert_eq!(nodes.equal(&ALL, 2).await, ["before", "after"]);
}

#[tokio::test]
async fn requests_of_another_cluster_or_with_a_false_sender_are_refused() {
    let peers = Peers::new(1, String::new(), [1; 16], Dialer::plaintext());
    let [own, other] = [7, 8].map(|number| ClusterId(number).to_wire());
    let check = |peer, cluster: &[u8], sender| peers.receiver(peer).check_sender(cluster, sender);
    // Before the node knows its cluster, it accepts every cluster.
    assert_eq!(check(None, &other, 2), Ok(()));
    peers.belong_to(ClusterId(7));
    peers.belong_to(ClusterId(8));
    assert_eq!(check(None, &own, 2), Ok(()));
    assert_eq!(check(None, &[], 2), Ok(()), "the sender does not know its cluster yet");
    for cluster in [&other[..], &own[..15], &[0; 17]] {
        let error = check(None, cluster, 2).unwrap_err();
        assert!(error.contains("node 1 belongs to cluster 00000000000000000000000000000007"), "{error}");
    }
    assert_eq!(check(Some(2), &own, 2), Ok(()));
    let error = check(Some(3), &own, 2).unwrap_err();
    assert!(error.contains("names node 2 as its sender, and the certificate is that of node 3"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_shuts_down_does_not_wait_for_peers() {
    let peers = Peers::new(1, String::new(), [1; 16], Dialer::plaintext());
    let incoming = TcpIncoming::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let address = incoming.local_addr().unwrap();
    let (shutdown, shut_down) = tokio::sync::oneshot::channel::<()>();
    let served = tokio::spawn({
        let peers = Arc::clone(&peers);
        let services = Server::builder().add_service(peers.service());
        services.serve_with_incoming_shutdown(incoming, async move {
            shut_down.await.unwrap();
            peers.close();
        })
    });
    let mut client = PeersClient::connect(format!("http://{address}")).await.unwrap();
    let mut received = client.exchange(futures::stream::pending()).await.unwrap().into_inner();
    shutdown.send(()).unwrap();
    let served = tokio::time::timeout(Duration::from_secs(20), served);
    served.await.expect("the server waits for its peer").unwrap().unwrap();
    assert!(matches!(received.message().await, Ok(None) | Err(_)));
}
