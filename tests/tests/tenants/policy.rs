//! Tests of the parts of a tenant's policy that change what is stored: retention, removed and dropped labels, precision
//! of times.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tests::client::Labels;
use tests::cluster::Cluster;
use tests::cluster::administration::Administration;
use tests::cluster::members;
use tests::http::{Reply, encode, request};
use tests::payload::otlp::{PERIOD_NS, Request, now_ns, stack};
use tests::report::alone;
use tests::server::{Setup, Varve};

const DAY_NS: u64 = 86_400_000_000_000;
/// Age of the old samples. Partitions of days have 128 days, so those of a sample this old ended 100 days ago or more.
const OLD_DAYS: u64 = 300;
/// Longest time until an expiry has dropped the data of all tiers.
const PATIENCE: Duration = Duration::from_secs(60);

/// Options of all tiers for a retention.
fn retention(age: &str) -> [&str; 8] {
    ["--retention", age, "--retention-1m", age, "--retention-1h", age, "--retention-1d", age]
}

/// A varve with a tenant whose tokens push and read.
struct Tenant {
    otlp: String,
    http: String,
    /// Headers of requests, which are empty if no token is needed.
    authorization: Option<String>,
}

impl Tenant {
    fn of(varve: &Varve, token: Option<String>) -> Self {
        let url = |address: &str| format!("http://{address}");
        let authorization = token.map(|token| format!("Bearer {token}"));
        Self { otlp: url(&varve.otlp), http: url(&varve.http), authorization }
    }

    /// Creates a tenant with a retention, and waits until both routers know it.
    fn create(cluster: &Cluster, admin: &Administration, name: &str, age: &str) -> Self {
        admin.create_tenant(name, &retention(age));
        let (token, _) = admin.create_token(name, "admin", &[]);
        let of = |kind: &str, router: usize| cluster.routers(kind)[router].clone();
        let authorization = Some(format!("Bearer {token}"));
        for router in 0..2 {
            let tenant = Self { otlp: String::new(), http: of("http", router), authorization: authorization.clone() };
            tenant.until_known();
        }
        Self { otlp: of("otlp_http", 0), http: of("http", 1), authorization }
    }

    fn headers(&self) -> Vec<(&str, &str)> {
        self.authorization.iter().map(|value| ("authorization", value.as_str())).collect()
    }

    fn get(&self, path: &str) -> Reply {
        request("GET", &format!("{}{path}", self.http), &self.headers(), None).unwrap()
    }

    fn send(&self, push: &Request) -> Reply {
        let headers = [&self.headers()[..], &[("content-type", "application/x-protobuf")]].concat();
        let url = format!("{}/v1development/profiles", self.otlp);
        request("POST", &url, &headers, Some(&push.bytes())).unwrap()
    }

    /// Pushes one sample for each time.
    fn push(&self, times: &[u64]) {
        let _accepted = self.try_push(times).expect(200);
    }

    fn try_push(&self, times: &[u64]) -> Reply {
        self.send(&Request::new("api").seen(stack(&["leaf", "main"]), times.to_vec()))
    }

    /// Returns the number of samples around a time, by a label.
    fn samples_by(&self, label: &str, at_ns: u64) -> BTreeMap<String, u64> {
        self.samples_of_range(label, "2d", at_ns + DAY_NS)
    }

    /// Returns the number of samples of a range that ends at a time, by a label.
    fn samples_of_range(&self, label: &str, range: &str, end_ns: u64) -> BTreeMap<String, u64> {
        let query = format!("sum by ({label}) (sum_over_time(process_cpu[{range}]))");
        let at_s = format!("{}", end_ns as f64 / 1e9);
        let reply = self.get(&format!("/api/v1/query?{}", encode(&[("query", &query), ("time", &at_s)])));
        let json = reply.expect(200).json();
        let series = json["data"]["result"].as_array().unwrap().iter().map(|series| {
            let value: f64 = series["value"][1].as_str().unwrap().parse().unwrap();
            let labels: Labels = serde_json::from_value(series["metric"].clone()).unwrap();
            (labels.get(label).cloned().unwrap_or_default(), (value / PERIOD_NS as f64) as u64)
        });
        series.collect()
    }

    fn samples(&self, at_ns: u64) -> u64 {
        self.samples_by("service_name", at_ns).values().sum()
    }

    /// Waits until the router knows the token.
    fn until_known(&self) {
        let begun = Instant::now();
        while self.get("/api/v1/labels").status != 200 {
            assert!(begun.elapsed() < PATIENCE, "{} does not learn the token", self.http);
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn until_gone(&self, at_ns: u64) {
        let begun = Instant::now();
        while self.samples(at_ns) > 0 {
            assert!(begun.elapsed() < PATIENCE, "the samples do not expire");
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

#[test]
fn each_tenant_of_a_cluster_has_its_own_retention() {
    let _alone = alone();
    let cluster = Cluster::up(3, 4);
    let admin = cluster.administration();
    let [a, b] = [("a", "400d"), ("b", "500d")].map(|(name, age)| Tenant::create(&cluster, &admin, name, age));
    let now = now_ns();
    let old = now - OLD_DAYS * DAY_NS;
    for tenant in [&a, &b] {
        tenant.push(&[old, old + 1, now]);
        assert_eq!((tenant.samples(old), tenant.samples(now)), (2, 1));
    }
    // A tenant that is alone in its class: the change applies to stored samples.
    let updated = admin.json(&[&["tenant", "update", "a"][..], &retention("30d")].concat());
    assert_eq!(updated["retention_applies_to"], "all samples", "{updated}");
    a.until_gone(old);
    assert_eq!((a.samples(now), b.samples(old), b.samples(now)), (1, 2, 1));

    // Now two tenants have had one retention: a change applies to new samples alone.
    let c = Tenant::create(&cluster, &admin, "c", "500d");
    c.push(&[old]);
    let text = admin.text(&[&["tenant", "update", "b"][..], &retention("30d")].concat());
    assert!(text.contains("applies to new samples") && text.contains("another tenant"), "{text}");
    // Old samples are refused from the moment at which the leader knows the policy.
    let begun = Instant::now();
    loop {
        let reply = b.try_push(&[old + 2 * DAY_NS + begun.elapsed().as_nanos() as u64]);
        if reply.status == 400 {
            assert!(reply.text().contains("retention"), "{}", reply.text());
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "the new retention does not apply to new samples");
    }
    assert_eq!((b.samples(old), b.samples(now), c.samples(old)), (2, 1, 1));
    // The retry of a push that was stored under the old policy is recognized.
    b.push(&[old, old + 1, now]);
    assert_eq!((b.samples(old), b.samples(now)), (2, 1));
    let (compared, differences) = members::compare(&cluster);
    assert_eq!((compared, differences), (12, Vec::new()));
}

#[test]
fn varve_up_keeps_what_its_options_and_policies_say() {
    let mut varve = Varve::start(Setup::default().flags(&retention("400d")));
    let now = now_ns();
    let old = now - OLD_DAYS * DAY_NS;
    let default = Tenant::of(&varve, None);
    default.push(&[old, now]);
    assert_eq!((default.samples(old), default.samples(now)), (1, 1));
    // The options of a later start change the retention of stored samples.
    varve.terminate();
    varve.setup.flags = Setup::default().flags(&retention("30d")).flags;
    varve.launch();
    default.until_gone(old);
    assert_eq!(default.samples(now), 1);

    // The tenant `default` begins with that retention, and its policy then takes precedence over the options.
    let admin = Administration::of(&varve);
    let created = admin.json(&["tenant", "create", "default", "--queries-at-once", "50"]);
    assert_eq!(created["policy"]["retention_seconds"]["raw"], 30 * 86_400, "{created}");
    let updated = admin.json(&[&["tenant", "update", "default"][..], &retention("400d")].concat());
    assert_eq!(updated["retention_applies_to"], "all samples");
    varve.terminate();
    varve.setup.flags = Setup::default().flags(&retention("1d")).flags;
    varve.launch();
    // Samples that have expired before do not come back.
    let other = now - 10 * DAY_NS;
    default.push(&[other]);
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!((default.samples(other), default.samples(now)), (1, 1));
    assert!(varve.said().contains("has a policy"), "{}", varve.said());

    // Another tenant with another retention, beside it.
    admin.create_tenant("short", &retention("500d"));
    let (token, _) = admin.create_token("short", "admin", &[]);
    let short = Tenant::of(&varve, Some(token.clone()));
    short.until_known();
    short.push(&[old, now]);
    assert_eq!(short.samples(old), 1);
    let updated = admin.json(&[&["tenant", "update", "short"][..], &retention("30d")].concat());
    assert_eq!(updated["changed"], true);
    short.until_gone(old);
    assert_eq!(short.samples(now), 1);
    let (token, _) = admin.create_token("default", "read", &[]);
    let default = Tenant::of(&varve, Some(token));
    default.until_known();
    assert_eq!((default.samples(other), default.samples(now)), (1, 1));
}

#[test]
fn removed_labels_are_stored_nowhere_and_retries_count_once() {
    let varve = Varve::start(Setup { shards: 4, ..Setup::default() });
    let admin = Administration::of(&varve);
    let tenant = Tenant::of(&varve, None);
    let now = now_ns();
    let push = |pod: u64, at_ns: u64| {
        let push = Request::new("api").with("pod", &format!("p{pod}")).with("zone", "z");
        push.seen(stack(&["leaf", "main"]), vec![at_ns + pod])
    };
    (0..3).for_each(|pod| drop(tenant.send(&push(pod, now - 1000)).expect(200)));
    assert_eq!(tenant.samples_by("pod", now), BTreeMap::from([0, 1, 2].map(|pod| (format!("p{pod}"), 1))));
    admin.create_tenant("default", &["--remove-labels", "pod,container"]);
    let shown = admin.json(&["tenant", "show", "default"]);
    assert_eq!(shown["policy"]["removed_labels"], serde_json::json!(["container", "pod"]));
    // The pushes before the change again, and new ones.
    (0..3).for_each(|pod| drop(tenant.send(&push(pod, now - 1000)).expect(200)));
    (3..6).for_each(|pod| drop(tenant.send(&push(pod, now - 1000)).expect(200)));
    let by_pod = tenant.samples_by("pod", now);
    assert_eq!(by_pod.get(""), Some(&3), "{by_pod:?}");
    assert_eq!(by_pod.values().sum::<u64>(), 6);
    assert_eq!(tenant.samples_by("zone", now), BTreeMap::from([("z".to_owned(), 6)]));
    // A retry after the label is kept again.
    let updated = admin.json(&["tenant", "update", "default", "--remove-labels", "none"]);
    assert_eq!(updated["policy"]["removed_labels"], serde_json::json!([]));
    (3..6).for_each(|pod| drop(tenant.send(&push(pod, now - 1000)).expect(200)));
    assert_eq!(tenant.samples_by("pod", now), by_pod);
}

#[test]
fn sums_of_hours_drop_labels_and_the_samples_keep_them() {
    const HOUR_NS: u64 = DAY_NS / 24;
    let varve = Varve::start(Setup { shards: 4, ..Setup::default() });
    let admin = Administration::of(&varve);
    let shown =
        admin.json(&["tenant", "create", "default", "--drop-labels-1h", "pod", "--drop-labels-1d", "zone,host"]);
    let wanted = serde_json::json!({"1h": ["pod"], "1d": ["host", "zone"]});
    assert_eq!(shown["policy"]["dropped_labels"], wanted, "{shown}");
    let tenant = Tenant::of(&varve, None);
    // A whole hour, whose partition of minutes has ended long ago.
    let hour = (now_ns() / HOUR_NS - 24) * HOUR_NS;
    for pod in 1..=3 {
        let push = Request::new("api").with("pod", &format!("p{pod}")).with("zone", "z");
        drop(tenant.send(&push.seen(stack(&["leaf", "main"]), vec![hour + pod])).expect(200));
    }
    let by = |label: &str| tenant.samples_of_range(label, "1h", hour + HOUR_NS);
    assert_eq!(by("pod"), BTreeMap::from(["p1", "p2", "p3"].map(|pod| (pod.to_owned(), 1))));
    // Samples and minutes expire, and hours stay.
    let updated = admin.json(&["tenant", "update", "default", "--retention", "6h", "--retention-1m", "6h"]);
    assert_eq!(updated["retention_applies_to"], "all samples", "{updated}");
    let query = encode(&[
        ("query", "sum by (pod) (sum_over_time(process_cpu[1h]))"),
        ("time", &format!("{}", (hour + HOUR_NS) as f64 / 1e9)),
    ]);
    let begun = Instant::now();
    let refused = loop {
        let reply = tenant.get(&format!("/api/v1/query?{query}"));
        if reply.status != 200 {
            break reply.text();
        }
        assert!(begun.elapsed() < PATIENCE, "the minutes do not expire");
        std::thread::sleep(Duration::from_millis(100));
    };
    assert!(refused.contains("pod") && refused.contains("1h"), "{refused}");
    assert_eq!(by("service_name"), BTreeMap::from([("api".to_owned(), 3)]));
    assert_eq!(by("zone"), BTreeMap::from([("z".to_owned(), 3)]));
}

#[test]
fn times_are_stored_with_the_precision_of_the_policy() {
    const SECOND_NS: u64 = 1_000_000_000;
    let varve = Varve::start(Setup::default());
    let admin = Administration::of(&varve);
    let tenant = Tenant::of(&varve, None);
    // Two full minutes that have ended.
    let begin = (now_ns() / (60 * SECOND_NS) - 5) * 60 * SECOND_NS;
    let sums = |begin: u64| {
        let until = |second: u64, range: &str| {
            tenant.samples_of_range("service_name", range, begin + second * SECOND_NS).values().sum::<u64>()
        };
        [until(30, "30s"), until(60, "1m")]
    };
    tenant.push(&[begin + 1, begin + 10 * SECOND_NS, begin + 60 * SECOND_NS]);
    assert_eq!(sums(begin), [2, 3]);
    admin.create_tenant("default", &["--time-resolution", "minute"]);
    let shown = admin.json(&["tenant", "show", "default"]);
    assert_eq!(shown["policy"]["time_resolution"], "minute");
    let next = begin + 60 * SECOND_NS;
    let push = [next + 1, next + 10 * SECOND_NS, next + 60 * SECOND_NS];
    // A retry of the first push counts once, although its times would now be stored in another way.
    (0..2).for_each(|_| tenant.push(&push));
    tenant.push(&[begin + 1, begin + 10 * SECOND_NS, begin + 60 * SECOND_NS]);
    assert_eq!((sums(begin), sums(next)), ([2, 3], [0, 3]));
}
