//! A leader that is cut off from the other nodes, and whose system clock is set back at the same time.
//!
//! A leader that trusts the clock still serves reads after another one was elected and has acknowledged pushes.

use std::time::{Duration, Instant};

use proto::refusal::Refusal;
use serde_json::json;
use tests::cluster::{Cluster, Shape, members};
use tests::http::Reply;
use tests::payload::otlp::now_ns;
use tests::report::{alone, figure};
use tests::shared::varve_binary;
use tests::wrong_clock::WrongClock;
use tonic::Status;

use super::{count, push, sample, shape_of, with_fault};
use crate::proxy::{Fault, Network, Party, SILENT, both_ways};
use crate::run::Planted;
use crate::wrapper::Wrapper;

const SHARD: u32 = 1;
/// Number of attempts. A leader gives up three seconds after its last contact to a majority, so an attempt on a slow
/// machine may come too late.
const ATTEMPTS: usize = 5;
const SET_BACK_S: i64 = -3600;
/// Largest error of the time that a node reports, in seconds.
const CLOCK_TOLERANCE_S: f64 = 20.0;
const PATIENCE: Duration = Duration::from_secs(30);
/// Time in which the router's request reaches the leader.
const ARRIVAL: Duration = Duration::from_millis(20);
/// Responses of a router whose leader reaches no majority: that of the leader, or that no member answered in time.
const REASONS: [&str; 3] =
    ["no majority of the shard's members responded", "no leader of the shard answered within", "no answer within"];

/// A read on the side of the minority, after the other side has elected a leader and acknowledged a push.
struct Read {
    /// The number of pushes that the router counts, or its refusal.
    counted: Result<f64, Reply>,
    /// The answer of the old leader itself to a request that came a moment after that of the router.
    leader: Result<(), Status>,
}

impl Read {
    /// Returns true if the old leader had not given up its lead yet, so that only a majority could show it to be old.
    fn is_in_time(&self) -> bool {
        let refusal = self.leader.as_ref().err().and_then(|status| Refusal::decode(status.details()));
        !matches!(refusal, Some(Refusal::NotLeader { .. }))
    }
}

/// A cluster whose nodes have clocks of their own.
struct Clocked {
    cluster: Cluster,
    network: Network,
    clocks: Vec<WrongClock>,
    /// Program that is run for varve.
    _wrapper: Wrapper,
}

impl Clocked {
    fn start(planted: Option<&Planted>) -> Self {
        let shape = shape_of(planted, 1);
        let wrapper = Wrapper::new(&shape.binary.clone().unwrap_or_else(varve_binary));
        let clocks: Vec<WrongClock> = (0..shape.nodes).map(|_| WrongClock::new()).collect();
        for (node, clock) in (1..).zip(&clocks) {
            let export = clock
                .environment()
                .iter()
                .map(|(name, value)| format!("export {name}='{value}'\n"))
                .collect::<String>();
            wrapper.set_prelude(node, &export);
        }
        let cluster = Cluster::new(Shape { is_proxied: true, binary: Some(wrapper.path()), ..shape });
        let network = Network::new(&cluster, 1);
        cluster.launch();
        Self { cluster, network, clocks, _wrapper: wrapper }
    }

    fn leader(&self) -> usize {
        let began = Instant::now();
        loop {
            if let Some(leader) = members::leader(&self.cluster, SHARD) {
                return leader;
            }
            assert!(began.elapsed() < PATIENCE, "the shard has no leader");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Pushes once, cuts off the leader and the first router, and pushes again through the second router. Returns the
    /// response of the first router to a query of the number of pushes.
    fn read_of_minority(&self, service: &str) -> Read {
        let Self { cluster, network, .. } = self;
        let counted = || count(cluster, 0, service, now_ns() + 1_000_000_000);
        let first = sample(service, now_ns());
        let began = Instant::now();
        // The router knows the leader, and a majority has just confirmed that it leads. After an earlier attempt, the
        // router leaves silent nodes alone for some seconds.
        while push(cluster, 0, &first) != 200 || counted().ok() != Some(1.0) {
            assert!(began.elapsed() < PATIENCE, "the cluster does not serve");
            std::thread::sleep(Duration::from_millis(50));
        }
        let leader = self.leader();
        let minority = [Party::Node(leader), Party::Router(0)];
        let others = [1, 2, 3].into_iter().filter(|&node| node != leader).map(Party::Node);
        let majority: Vec<Party> = others.chain([Party::Router(1)]).collect();
        self.clocks[leader - 1].set(SET_BACK_S);
        network.set(&both_ways(&minority, &majority), SILENT);
        // The second router does not wait for the leader.
        let to_leader = [(Party::Router(1), Party::Node(leader))];
        network.set(&to_leader, Fault { refuses: true, ..Fault::default() });
        network.reset(&to_leader);
        assert_eq!(push(cluster, 1, &sample(service, now_ns())), 200, "the other nodes elect no leader");
        let read = std::thread::scope(|scope| {
            let counting = scope.spawn(counted);
            std::thread::sleep(ARRIVAL);
            let leader = members::read_point(cluster, leader, SHARD);
            Read { counted: counting.join().unwrap(), leader }
        });
        let time_s = members::system_time_s(cluster, leader).unwrap();
        let set_back_s = time_s - now_ns() as f64 / 1e9;
        assert!((set_back_s - SET_BACK_S as f64).abs() < CLOCK_TOLERANCE_S, "the clock is wrong by {set_back_s} s");
        network.heal();
        self.clocks[leader - 1].set(0);
        read
    }
}

#[test]
fn a_leader_that_is_cut_off_serves_no_stale_read_whatever_its_clock() {
    let _alone = alone();
    let clocked = Clocked::start(None);
    let in_time = (1..=ATTEMPTS).find(|attempt| {
        let read = clocked.read_of_minority(&format!("service-{attempt}"));
        let is_in_time = read.is_in_time();
        let refusal = match read.counted {
            Ok(counted) => panic!("a stale response counts {counted}"),
            Err(refusal) => refusal,
        };
        let text = refusal.text();
        let has_reason = REASONS.iter().any(|reason| text.contains(reason));
        assert!([503, 504].contains(&refusal.status) && has_reason, "{}: {text}", refusal.status);
        let said = read.leader.expect_err("the old leader serves reads");
        assert!(!is_in_time || said.message().contains(REASONS[0]), "the leader said: {said}");
        is_in_time
    });
    figure(&json!({"scenario": "stale_leader", "attempts": in_time}));
    assert!(in_time.is_some(), "the leader had given up before each read");
}

#[test]
fn a_leader_with_a_lease_by_its_system_clock_is_detected() {
    let _alone = alone();
    let Some(planted) = with_fault("lease-by-clock") else { return };
    let began = Instant::now();
    let clocked = Clocked::start(Some(&planted));
    let detected = (1..=ATTEMPTS).find(|attempt| {
        let read = clocked.read_of_minority(&format!("service-{attempt}"));
        read.counted.is_ok_and(|counted| counted == 1.0)
    });
    figure(&json!({"planted": planted.fault, "attempts": detected, "seconds": began.elapsed().as_secs()}));
    assert!(detected.is_some(), "no read was stale");
}
