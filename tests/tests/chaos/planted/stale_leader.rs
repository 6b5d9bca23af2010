//! A leader that is cut off from the other nodes, and whose system clock is set back at the same time.
//!
//! A leader that trusts the clock still serves reads after another one was elected and has acknowledged pushes.

use std::time::{Duration, Instant};

use serde_json::json;
use tests::cluster::{Cluster, Shape, members};
use tests::payload::otlp::now_ns;
use tests::report::{alone, figure};
use tests::shared::varve_binary;
use tests::wrong_clock::WrongClock;

use super::{count, push, sample, shape_of, with_fault};
use crate::proxy::{Fault, Network, Party, SILENT, both_ways};
use crate::run::Planted;
use crate::wrapper::Wrapper;

const SHARD: u32 = 1;
/// Number of attempts. A leader gives up three seconds after its last contact to a majority, so an attempt on a slow
/// machine may come too late.
const ATTEMPTS: usize = 5;
const SET_BACK_S: i64 = -3600;
const PATIENCE: Duration = Duration::from_secs(30);

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
    /// number of pushes that the first router then counts; `None` if it gives no complete response.
    fn read_of_minority(&self, service: &str) -> Option<f64> {
        let Self { cluster, network, .. } = self;
        let counted = || count(cluster, 0, service, now_ns() + 1_000_000_000).ok();
        let first = sample(service, now_ns());
        let began = Instant::now();
        // The router knows the leader, and a majority has just confirmed that it leads. After an earlier attempt, the
        // router leaves silent nodes alone for some seconds.
        while push(cluster, 0, &first) != 200 || counted() != Some(1.0) {
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
        let found = counted();
        network.heal();
        self.clocks[leader - 1].set(0);
        found
    }
}

#[test]
fn a_leader_that_is_cut_off_serves_no_stale_read_whatever_its_clock() {
    let _alone = alone();
    let clocked = Clocked::start(None);
    assert_eq!(clocked.read_of_minority("service"), None);
}

#[test]
fn a_leader_with_a_lease_by_its_system_clock_is_detected() {
    let _alone = alone();
    let Some(planted) = with_fault("lease-by-clock") else { return };
    let began = Instant::now();
    let clocked = Clocked::start(Some(&planted));
    let detected = (1..=ATTEMPTS).find(|attempt| clocked.read_of_minority(&format!("service-{attempt}")) == Some(1.0));
    figure(&json!({"planted": planted.fault, "attempts": detected, "seconds": began.elapsed().as_secs()}));
    assert!(detected.is_some(), "no read was stale");
}
