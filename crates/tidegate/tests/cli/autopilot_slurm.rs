//! `tidegate autopilot run` and `tidegate up --autopilot` on a real Slurm: started as an operator
//! would, killed and restarted, then checked by tables and `scontrol`.

use std::fs::{self, File};
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::Value;
use tidegate_events::v1::{Envelope, NodeHealthState, NodeSignal};
use tidegate_events::{Event, SchemaId};
use tidegate_log::{Batch, EmbeddedLog, EmbeddedOptions, EventLog, Producer, Record, TopicPartition};
use tidegate_testing::slurm::Cluster;

use crate::program::{run, succeed, tidegate, wait_until};

/// Time limit until results are in the tables, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(180);

const POLICY: &str = r#"
name = "nodes"
[modes]
drain_node = "act"
return_node = "act"
[worth]
least_net_gpu_hours = 0.0
[stability]
dwell_s = 0
[floors]
in_service_share = 0.5
[drain]
good_for_s = 1
"#;

/// Appends a signal that n3 is bad or good to a log that no process has open.
fn signal(data: &Path, seq: u64, is_bad: bool) {
    // A process killed while starting `scontrol` leaves a child that holds the log's lock until
    // exec.
    let mut opened = None;
    wait_until("the log to be free", || {
        opened = EmbeddedLog::open(data.join("log"), EmbeddedOptions::default()).ok();
        opened.is_some()
    });
    let log = opened.unwrap();
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64;
    let mut event = Event::NodeHealth(NodeSignal {
        envelope: Some(Envelope {
            cluster: "tidegate".into(),
            source: "insight/test".into(),
            seq,
            event_time_ms: now_ms,
            observed_time_ms: now_ms,
            ..Envelope::default()
        }),
        state: if is_bad { NodeHealthState::Bad } else { NodeHealthState::Healthy }.into(),
        node: "n3".into(),
        bad_ppm: if is_bad { 990_000 } else { 1_000 },
        evidence: if is_bad { vec!["xid value=63".into(), "ecc value=2".into()] } else { vec![] },
        ..NodeSignal::default()
    });
    let producer = Producer { source: "insight/test".into(), epoch: 0 };
    let at = TopicPartition { topic: SchemaId::NodeSignal.topic().into(), partition: 0 };
    let records = vec![Record::from(event.record().unwrap())];
    log.append(&at, Batch { producer, first_seq: seq, records }).unwrap();
}

/// The program in the background; killed when dropped.
struct Life(Child);

impl Life {
    fn start(arguments: &[&str], config: &Path, data: &Path) -> Self {
        let mut command = tidegate();
        command.args(arguments).arg(config).arg("--data").arg(data);
        let said = File::create(data.with_extension("said")).unwrap();
        Self(command.stdout(said.try_clone().unwrap()).stderr(said).spawn().unwrap())
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[test]
fn a_bad_node_is_drained_and_returned_by_the_commands_themselves() {
    let Some(cluster) = Cluster::start(&["--nodes=5+3"]) else { return };
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    fs::write(folder.path().join("nodes.toml"), POLICY).unwrap();
    let config = folder.path().join("autopilot.toml");
    let text = format!(
        "cluster = \"tidegate\"\npolicy = \"nodes.toml\"\nlook_every_s = 1\nplan_every_s = 1\nlease_s = 3\n[slurm]\nconf = {:?}\n",
        cluster.conf()
    );
    fs::write(&config, text).unwrap();
    let n3 = || cluster.run("scontrol", &["--oneliner", "show", "node", "n3"]);
    let is_drained = || n3().contains("DRAIN");

    // A step creates the topics. With the switch off nothing is done.
    let once = || {
        let mut command = tidegate();
        command.args(["autopilot", "run", "--once", "--config"]).arg(&config).arg("--data").arg(&data);
        succeed(&mut command)
    };
    let said = once();
    assert!(
        said.contains("policy  nodes") && said.contains("it can ") && said.contains("drain_node"),
        "{said}"
    );
    signal(&data, 0, true);
    once();
    assert!(!is_drained(), "nobody has switched it on: {}", n3());

    succeed(tidegate().args(["autopilot", "resume", "--data"]).arg(&data));
    let life = Life::start(&["autopilot", "run", "--config"], &config, &data);
    wait_until("n3 to be drained", is_drained);
    assert!(n3().contains("Reason=tidegate:drain_node-"), "{}", n3());
    // Killed; another instance continues with the same journal, inside `up`, which also maintains
    // tables.
    drop(life);
    signal(&data, 1, false);
    let up = ["up", "--listen", "127.0.0.1:0", "--autopilot"];
    let life = Life::start(&up, &config, &data);
    wait_until("n3 to be returned", || !is_drained());
    let actions = || -> Value {
        let sql = "SELECT decision_kind, state, action FROM actions ORDER BY applying_time";
        let said = run(tidegate().args(["sql", "--format", "json", "--data"]).arg(&data).arg(sql));
        serde_json::from_str(&said.stdout).unwrap_or_default()
    };
    let begun = Instant::now();
    loop {
        let actions = actions();
        let is_verified = |action: &Value| action["state"] == "VERIFIED";
        if actions.as_array().is_some_and(|all| all.len() >= 2 && all.iter().all(is_verified)) {
            break;
        }
        let said = fs::read_to_string(data.with_extension("said")).unwrap();
        assert!(begun.elapsed() < PATIENCE, "after {PATIENCE:?} the tables say {actions}, and it {said}");
    }
    drop(life);
    let actions = actions();
    let kinds: Vec<&str> =
        actions.as_array().unwrap().iter().map(|a| a["decision_kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["drain_node", "return_node"], "{actions}");
    let drain = actions[0]["action"].as_str().unwrap();
    let why = succeed(tidegate().args(["explain", "decision", drain, "--data"]).arg(&data));
    assert!(why.contains("the same, byte for byte") && why.contains("n3"), "{why}");
}
