//! People decide about an autopilot on a real Slurm over HTTP: what is rejected is never begun,
//! what is approved is, and nothing begins while it is paused.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tidegate_events::Event;
use tidegate_events::v1::{Envelope, NodeHealthState, NodeSignal};
use tidegate_testing::slurm::Cluster;

use crate::access::Site;
use crate::program::{query, run, succeed, tidegate, wait_until};
use crate::support::Response;

/// Every drain asks a person.
const POLICY: &str = r#"
name = "asks"
[modes]
drain_node = "approve"
return_node = "approve"
[worth]
least_net_gpu_hours = 0.0
[stability]
dwell_s = 0
[floors]
in_service_share = 0.1
[blast]
racks = 8
"#;

/// A service says that a node is bad; each time with another `epoch`.
fn tell_bad(site: &Site, node: &str, epoch: u64) {
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64;
    let event = Event::NodeHealth(NodeSignal {
        envelope: Some(Envelope {
            cluster: "tidegate".into(),
            source: "insight/test".into(),
            epoch,
            event_time_ms: now_ms,
            observed_time_ms: now_ms,
            ..Envelope::default()
        }),
        state: NodeHealthState::Bad.into(),
        node: node.into(),
        bad_ppm: 990_000,
        evidence: vec!["xid value=63".into(), "ecc value=2".into()],
        ..NodeSignal::default()
    });
    let told = site.append("sam", "insight/test", epoch, event);
    assert_eq!(told.status, 200, "{}", told.text());
}

fn standing(site: &Site) -> Value {
    site.get("anna", "/v1/autopilot").json()
}

/// The action on a node that waits for an approval.
fn asked(site: &Site, node: &str) -> String {
    let object = json!(format!("node {node}"));
    let mut found = None;
    wait_until("a proposal", || {
        let standing = standing(site);
        let asks = |it: &&Value| it["object"] == object && it["needs_approval"] == json!(true);
        let waiting = standing["waiting"].as_array().unwrap().iter().find(asks);
        found = waiting.map(|it| it["action"].as_str().unwrap().to_owned());
        found.is_some()
    });
    found.unwrap()
}

fn instruct(site: &Site, id: &str, deed: &str, body: Value) -> Response {
    let line = format!("POST /v1/autopilot/{deed}");
    site.ask(id, &line, &["Content-Type: application/json"], body.to_string().as_bytes())
}

/// What the administrator finds once the condition holds.
fn found(site: &Site, sql: &str, so: impl Fn(&str) -> bool) -> String {
    let mut found = String::new();
    wait_until(sql, || {
        found = site.sql("ada", sql).text().to_owned();
        so(&found)
    });
    found
}

#[test]
fn what_people_reject_is_never_begun_and_what_they_approve_is() {
    let Some(cluster) = Cluster::start(&["--nodes=5+1"]) else { return };
    let mut site = Site::new();
    for (id, role) in [("ada", "administrator"), ("anna", "operator"), ("vera", "viewer"), ("sam", "service")]
    {
        site.token(id, &["--role", role]);
    }
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("asks.toml"), POLICY).unwrap();
    let config = folder.path().join("autopilot.toml");
    let text = format!(
        "cluster = \"tidegate\"\npolicy = \"asks.toml\"\nlook_every_s = 1\nplan_every_s = 1\nlease_s = 3\n[slurm]\nconf = {:?}\n",
        cluster.conf()
    );
    fs::write(&config, text).unwrap();
    let mut command = site.command();
    command.arg("--autopilot").arg(&config);
    site.start_by(command);
    let is_drained =
        |node: &str| cluster.run("scontrol", &["--oneliner", "show", "node", node]).contains("DRAIN");
    wait_until("the lease", || standing(&site)["leads"] == json!(true));
    assert_eq!(standing(&site)["switch"]["on"], json!(false), "nobody has switched it on");
    assert_eq!(instruct(&site, "anna", "resume", json!({})).status, 200);
    assert_eq!(standing(&site)["switch"]["by"], json!("anna over HTTP"));

    // Rejected: it ends, and is not proposed again.
    tell_bad(&site, "n3", 1);
    let rejected = asked(&site, "n3");
    let because = json!({"action": rejected, "why": "the vendor comes at noon"});
    assert_eq!(instruct(&site, "vera", "reject", because.clone()).status, 403);
    let answer = instruct(&site, "anna", "reject", because);
    assert_eq!(answer.status, 202, "{}", answer.text());
    wait_until("the rejection to be taken up", || {
        let standing = standing(&site);
        standing["rejections"] == json!([]) && standing["waiting"] == json!([])
    });
    let late = instruct(&site, "anna", "approve", json!({"action": rejected})).refusal();
    assert_eq!((late.0, late.1.as_str()), (404, "unknown_action"), "{}", late.2);

    // Approved: it is done.
    tell_bad(&site, "n4", 2);
    let approved = asked(&site, "n4");
    let text = site.get("anna", &format!("/v1/autopilot/statement?approve={approved}"));
    assert!(text.text().starts_with("tidegate approve\ncluster tidegate\naction drain_node-"), "{text:?}");
    assert!(!is_drained("n4"));
    assert_eq!(instruct(&site, "anna", "approve", json!({"action": approved})).status, 202);
    wait_until("n4 to be drained", || is_drained("n4"));

    // Paused: the guard refuses what comes next.
    assert_eq!(instruct(&site, "anna", "pause", json!({"why": "rack 7"})).status, 200);
    let switch = standing(&site)["switch"].clone();
    assert_eq!((&switch["on"], &switch["why"]), (&json!(false), &json!("rack 7")));
    tell_bad(&site, "n5", 3);
    let refused = "SELECT state, rule FROM decisions WHERE object = 'node:n5'";
    let refused = found(&site, refused, |found| found.lines().count() > 1);
    assert_eq!(refused, "state,rule\nDROPPED,switch\n");
    assert_eq!(instruct(&site, "anna", "resume", json!({})).status, 200);
    asked(&site, "n5");
    assert!(!is_drained("n3") && !is_drained("n5"));

    // The tables say who. While it was paused the switch refused it too.
    let of_n3 = "SELECT DISTINCT state, rejected_by, rejected_why, rule FROM decisions WHERE object = 'node:n3' AND coalesce(rule, '') <> 'switch' ORDER BY state";
    let expected = "state,rejected_by,rejected_why,rule\nDROPPED,,,rejected\nREJECTED,anna over HTTP,the vendor comes at noon,\n";
    assert_eq!(found(&site, of_n3, |found| found.lines().count() > 2), expected);
    let steered = "SELECT action, principal, role, door, outcome, text FROM audit WHERE door <> 'token-file' AND action <> 'query' ORDER BY time";
    let steered = found(&site, steered, |found| {
        let resumed = found.lines().filter(|line| line.starts_with("resume,") && line.ends_with(",ok,"));
        resumed.count() == 2 && found.contains("\napproved,")
    });
    let expected = [
        "resume,anna,operator,/v1/autopilot,ok,",
        "reject,anna,operator,/v1/autopilot,ok,the vendor comes at noon",
        "rejected,anna over HTTP,,autopilot,,the vendor comes at noon",
        "approve,anna,operator,/v1/autopilot,unknown_action,",
        "approve,anna,operator,/v1/autopilot,ok,",
        "approved,anna over HTTP,,autopilot,,",
        "pause,anna,operator,/v1/autopilot,ok,rack 7",
        "resume,anna,operator,/v1/autopilot,ok,",
    ];
    let told: Vec<&str> = steered.lines().skip(1).filter(|line| !line.starts_with("switched,")).collect();
    assert_eq!(told, expected, "{steered}");

    site.stop();
    let data = site.data();
    succeed(tidegate().args(["pipeline", "run", "--data"]).arg(&data));
    assert_eq!(query(&data, "SELECT object FROM actions"), "object\nnode:n4\n");
    let words = succeed(tidegate().args(["explain", "decision", &rejected, "--data"]).arg(&data));
    assert!(words.contains("rejected by anna over HTTP: the vendor comes at noon"), "{words}");
    // The command does the same as the door, and says what is too late.
    let reject = |action: &str| {
        let mut command = tidegate();
        command.args(["autopilot", "reject", action, "--why", "at noon", "--data"]).arg(&data);
        run(&mut command)
    };
    let waiting =
        query(&data, "SELECT action FROM decisions WHERE object = 'node:n5' AND state = 'PROPOSED'");
    let waiting = waiting.lines().nth(1).unwrap();
    assert!(reject(waiting).stdout.contains("is rejected by"));
    let file = fs::read_to_string(data.join("autopilot/rejected").join(waiting)).unwrap();
    assert!(file.ends_with("\nat noon\n"), "{file}");
    reject(&approved).refused(&["nothing to reject", "pause"]);
    reject("drain_node-0").refused(&["there is no decision drain_node-0"]);
}
