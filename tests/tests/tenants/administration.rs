//! Tests of `varve admin tenant`, `token` and `cluster`.

use std::time::{Duration, Instant};

use proto::wire::SelectRequest;
use proto::wire::node_client::NodeClient;
use serde_json::Value;
use tests::cluster::Cluster;
use tests::cluster::administration::Administration;
use tests::report::alone;
use tests::server::{Setup, Varve};
use tonic::{Code, Status};
use transport::{Credentials, Dialer, TlsFiles};

/// Reads profiles from a node directly, with a certificate of the cluster and a placement that no node has. Returns the
/// refusal.
fn select_as(cluster: &Cluster, certificate: &str, node: &str) -> Status {
    let certs = cluster.folder().join("certs");
    let file = |name: &str| certs.join(name);
    let (cert, key) = (file(&format!("{certificate}.pem")), file(&format!("{certificate}.key")));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let dialer = Dialer::tls(Credentials::load(TlsFiles { ca: file("ca.pem"), cert, key }).unwrap());
        let mut client = NodeClient::new(dialer.connect_lazy(&dialer.endpoint(node).unwrap()));
        let request = SelectRequest { shard: 1, placement_epoch: 99, ..SelectRequest::default() };
        client.select(request).await.unwrap_err()
    })
}

#[test]
fn tenants_and_tokens_are_created_changed_listed_and_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let varve = Varve::start(Setup::default());
    let admin = Administration::of(&varve);
    assert!(admin.text(&["tenant", "list"]).contains("varve admin tenant create NAME"));
    assert!(admin.refusal(&["tenant", "show", "acme"]).contains("varve admin tenant create acme"));
    assert!(admin.refusal(&["tenant", "update", "acme"]).contains("unknown"));
    let token = ["token", "create", "--tenant", "acme", "--role", "push"];
    assert!(admin.refusal(&token).contains("varve admin tenant create acme"));

    let create = ["tenant", "create", "acme", "--samples-per-second", "500", "--bytes-per-second", "1MiB"];
    // A dry run is checked, and changes nothing.
    let planned = admin.json(&[&create[..], &["--dry-run"]].concat());
    assert_eq!((&planned["dry_run"], &planned["changed"]), (&Value::Bool(true), &Value::Bool(true)));
    assert_eq!(admin.json(&["tenant", "list"]), serde_json::json!([]));
    assert!(admin.refusal(&[&token[..], &["--dry-run"]].concat()).contains("acme"));
    assert!(admin.text(&create).contains("created tenant acme"));
    assert!(admin.text(&create).contains("nothing changes"), "the same command again");
    let other = admin.refusal(&["tenant", "create", "acme", "--queries-at-once", "3"]);
    assert!(other.contains("varve admin tenant update"), "{other}");
    assert_eq!(admin.refusal(&["tenant", "create", "acme", "--dry-run"]), admin.refusal(&["tenant", "create", "acme"]));

    // An update changes only what it names.
    let updated = admin.json(&["tenant", "update", "acme", "--queries-at-once", "4", "--bytes-per-second", "none"]);
    let policy = &updated["policy"];
    assert_eq!((&policy["samples_per_second"], &policy["queries_at_once"]), (&500.into(), &4.into()));
    assert_eq!(policy["bytes_per_second"], Value::Null);
    assert_eq!(admin.json(&["tenant", "show", "acme"])["policy"], *policy);
    let table = admin.text(&["tenant", "list"]);
    assert!(table.contains("samples/s") && table.contains("500") && table.contains("none"), "{table}");

    // The output of `token create` is a token file. Only the hash is kept.
    let made = admin.text(&[&token[..], &["--expires", "2100-01-01T00:00:00Z"]].concat());
    let file = folder.path().join("push.token");
    std::fs::write(&file, &made).unwrap();
    let secret = made.lines().last().unwrap();
    assert!(secret.starts_with("varve_") && secret.len() == 70, "{made}");
    assert!(made.starts_with("# Token ") && made.contains("2100-01-01"), "{made}");
    let listed = admin.json(&["token", "list"]);
    let hash = listed[0]["hash"].as_str().unwrap();
    assert_eq!((&listed[0]["role"], &listed[0]["tenant"]), (&"push".into(), &"acme".into()));
    let table = admin.text(&["token", "list"]);
    assert!(table.contains(&hash[..12]) && table.contains("2100-01-01") && !table.contains(secret), "{table}");
    assert!(!listed.to_string().contains(secret) && !varve.said().contains(secret));
    assert!(proto::Tokens::parse(&made).is_ok_and(|tokens| tokens.first() == secret));

    assert!(admin.refusal(&["token", "revoke", "abc"]).contains("at least 8"));
    assert!(admin.refusal(&["token", "revoke", "00000000"]).contains("varve admin token list"));
    assert!(admin.text(&["token", "revoke", &hash[..8], "--dry-run"]).contains("would revoke"));
    assert_eq!(admin.json(&["token", "list"]).as_array().unwrap().len(), 1);
    assert_eq!(admin.json(&["token", "revoke", &hash[..8]])["changed"], true);
    assert_eq!(admin.json(&["token", "list"]), serde_json::json!([]));

    assert!(admin.text(&["tenant", "delete", "acme", "--dry-run"]).contains("would delete"));
    assert!(admin.text(&["tenant", "delete", "acme"]).contains("deleted tenant acme with 0 tokens"));
    assert!(admin.refusal(&["tenant", "delete", "acme"]).contains("tenant acme was deleted"));
    assert!(admin.refusal(&["tenant", "create", "acme"]).contains("choose another name"));
}

#[test]
fn wrong_words_and_unreachable_nodes_are_explained() {
    let admin = Administration { options: vec!["--node-endpoint".to_owned(), "http://127.0.0.1:1".to_owned()] };
    let said = admin.refusal(&["tenant", "list"]);
    assert!(said.contains("127.0.0.1:1") && said.contains("no node responds"), "{said}");
    for (words, hint) in [
        (&["tenant", "create", "a b"][..], "a-z A-Z 0-9"),
        (&["tenant", "create", "a", "--samples-per-second", "0"], "`none`"),
        (&["tenant", "create", "a", "--bytes-per-second", "many"], "10MiB"),
        (&["token", "create", "--tenant", "a", "--role", "write"], "push, read or admin"),
        (&["token", "create", "--tenant", "a", "--role", "push", "--expires", "2001-01-01T00:00:00Z"], "past"),
    ] {
        let said = admin.refusal(words);
        assert!(said.contains(hint), "{words:?}: {said}");
    }
    let tls = Administration { options: vec!["--node-endpoint".to_owned(), "https://127.0.0.1:1".to_owned()] };
    assert!(tls.refusal(&["cluster"]).contains("needs --tls-ca"));
    for command in ["tenant", "token", "cluster"] {
        assert!(Administration { options: vec!["--help".to_owned()] }.text(&[command]).contains("Usage"));
    }
}

#[test]
fn a_cluster_is_shown_and_administered_only_by_its_administrator() {
    let _alone = alone();
    let cluster = Cluster::up(3, 4);
    let admin = cluster.administration();
    let view = admin.json(&["cluster"]);
    let shards = view["shards"].as_array().unwrap();
    assert_eq!(shards.iter().map(|shard| shard["shard"].as_u64().unwrap()).collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    for shard in shards {
        assert_eq!(shard["members"], serde_json::json!([1, 2, 3]), "{shard}");
        let leader = shard["leader"].as_u64().unwrap();
        let followers: Vec<u64> =
            shard["lag"].as_array().unwrap().iter().map(|lag| lag["node"].as_u64().unwrap()).collect();
        let others: Vec<u64> = (1..=3).filter(|&node| node != leader).collect();
        assert_eq!(followers, others, "{shard}");
    }
    assert_eq!(shards[1..].iter().map(|shard| shard["slots"].as_u64().unwrap()).sum::<u64>(), 4096);
    assert_eq!(view["epochs"][0]["begins"], "always");
    let table = admin.text(&["cluster"]);
    assert!(["meta", "leader", "lag (entries)", "epoch", "serving"].iter().all(|word| table.contains(word)), "{table}");

    // A router reads the state, and may not change it.
    let router = cluster.administration_as("router-r1");
    assert_eq!(router.json(&["tenant", "list"])[0]["tenant"], "default");
    for words in [
        &["tenant", "create", "acme"][..],
        &["tenant", "delete", "default"],
        &["token", "create", "--tenant", "default", "--role", "admin"],
    ] {
        let said = router.refusal(words);
        assert!(said.contains("router r1") && said.contains("--admin NAME"), "{words:?}: {said}");
    }
    assert_eq!(admin.json(&["tenant", "list"]).as_array().unwrap().len(), 1);
    // An administrator has no access to profiles.
    let node = cluster.description()["nodes"][0]["address"].as_str().unwrap().to_owned();
    let plaintext = Administration { options: vec!["--node-endpoint".to_owned(), format!("http://{node}")] };
    assert!(plaintext.refusal(&["cluster"]).contains("requires TLS"));
    let refused = select_as(&cluster, "admin-operator", &node);
    assert_eq!(refused.code(), Code::PermissionDenied, "{refused}");
    let of_router = select_as(&cluster, "router-r1", &node);
    assert_ne!(of_router.code(), Code::PermissionDenied, "{of_router}");

    // With a node down, changes are made by the other two, and the view says which node is missing.
    let begun = Instant::now();
    cluster.kill(2);
    admin.create_tenant("acme", &[]);
    assert!(begun.elapsed() < Duration::from_secs(20));
    let view = admin.json(&["cluster"]);
    assert!(view["nodes"][1]["error"].is_string() && view["nodes"][0]["revision"].is_u64(), "{view}");
    assert!(admin.text(&["cluster"]).contains("does not respond"));
    assert_eq!(admin.json(&["tenant", "list"]).as_array().unwrap().len(), 2);
}
