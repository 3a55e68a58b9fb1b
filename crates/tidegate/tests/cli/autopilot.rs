//! Commands of the autopilot: kill switch, recorded plans and decisions, and the site of the demo.

use std::fs;
use std::process::Command;

use serde_json::Value;
use tidegate_control::authority::{ActsAs, PolicyStatement, hash};
use tidegate_testing::needs;

use crate::program::{run, succeed, tidegate};

fn query(data: &std::path::Path, sql: &str) -> Value {
    let said = succeed(tidegate().args(["sql", "--format", "json", "--data"]).arg(data).arg(sql));
    serde_json::from_str(&said).unwrap()
}

#[test]
fn the_demo_lends_takes_back_and_says_why_from_the_record_alone() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path();
    let up = || {
        let mut command = tidegate();
        command.args([
            "up",
            "--demo",
            "--demo-speed",
            "max",
            "--no-insight",
            "--exit-when-done",
            "--listen",
            "127.0.0.1:0",
            "--data",
        ]);
        // Secrets of a site: none may be recorded.
        for name in ["SLURM_JWT", "SASL_PASSWORD", "PAGER_URL"] {
            command.env(name, format!("https://hunter2-{name}"));
        }
        command.arg(data);
        command
    };
    succeed(&mut up());
    let secrets = "SELECT count(*) AS n FROM autopilot_events WHERE body LIKE '%hunter2%' OR holder LIKE '%hunter2%' OR why LIKE '%hunter2%'";
    assert_eq!(query(data, secrets), serde_json::json!([{"n": 0}]));
    let count = "SELECT count(*) AS n, count(*) FILTER (WHERE decision_kind = 'lend' AND verified_time IS NOT NULL) AS lent, \
                 count(*) FILTER (WHERE decision_kind = 'reclaim' AND verified_time IS NOT NULL) AS back FROM actions";
    let actions = query(data, count);
    let of = |name: &str| actions[0][name].as_i64().unwrap();
    assert!(of("lent") > 0 && of("back") > 0, "{actions}");
    // Every action that was begun has a recorded end.
    let open = "SELECT action, state FROM actions WHERE state IN ('APPLYING', 'APPLIED', 'COMPENSATING') \
                AND applying_time < (SELECT max(event_time) - INTERVAL '1 hour' FROM autopilot_events)";
    assert_eq!(query(data, open), serde_json::json!([]));
    let lend = query(
        data,
        "SELECT min(action) AS action FROM autopilot_events WHERE kind = 'COMPARED' AND action LIKE 'lend-%'",
    );
    let lend = lend[0]["action"].as_str().unwrap();
    let explain = |json: bool| {
        let mut command = tidegate();
        command.args(["explain", "decision", lend]).args(json.then_some("--json"));
        succeed(command.arg("--data").arg(data))
    };
    let words = explain(false);
    assert!(words.contains("the same, byte for byte") && words.contains("applying"), "{words}");
    assert!(
        words.contains("tried   on a copy of the cluster: node ") && words.contains("\nfound   "),
        "{words}"
    );
    let explained: Value = serde_json::from_str(&explain(true)).unwrap();
    assert_eq!(
        (explained["same_bytes"].as_bool(), explained["decision"]["kind"].as_str()),
        (Some(true), Some("lend"))
    );
    let of_lend = |record: &str| explained[record]["action"].as_str().map(str::to_owned);
    assert_eq!((of_lend("expected").as_deref(), of_lend("compared").as_deref()), (Some(lend), Some(lend)));
    let refused = run(tidegate().args(["explain", "decision", "lend-0", "--data"]).arg(data));
    assert!(refused.stderr.contains("the newest are"), "{}", refused.stderr);

    let plan = succeed(tidegate().args(["plan", "show", "--data"]).arg(data));
    assert!(plan.contains("policy demo") && plan.contains("nothing  "), "{plan}");
    assert!(
        plan.contains(" ago), policy demo (") && plan.contains("made from  ") && plan.contains("made by    "),
        "{plan}"
    );
    let all = succeed(tidegate().args(["plan", "why", "--data"]).arg(data));
    assert!(all.contains("\nowner serve: ") && all.contains("\nnode ") && all.contains("\njob "), "{all}");
    let diff = succeed(tidegate().args(["plan", "diff", "--data"]).arg(data));
    assert!(diff.contains("the same policy, another state"), "{diff}");
    let why = succeed(tidegate().args(["plan", "why", "serve", "--data"]).arg(data));
    assert!(why.contains("lend: ") && why.contains("serve in serve"), "{why}");
    let record =
        succeed(tidegate().args(["autopilot", "record", "--policy", "auto", "--json", "--data"]).arg(data));
    let record: Value = serde_json::from_str(&record).unwrap();
    let of_lend = record["kinds"].as_array().unwrap().iter().find(|line| line["kind"] == "lend").unwrap();
    assert!(
        of_lend["scored"].as_i64().unwrap() > 0 && of_lend["verified_ppm"].as_i64().unwrap() > 900_000,
        "{record}"
    );
    let owners = record["owners"].as_array().unwrap();
    let serve = owners.iter().find(|line| line["owner"] == "serve").unwrap();
    assert!(serve["promise"].is_string() && serve["unmet_limit_ms"].as_i64().unwrap() > 0, "{record}");
    let dry_runs = &of_lend["dry_runs"];
    let [compared, agreed] = ["compared", "agreed"].map(|name| dry_runs[name].as_i64().unwrap());
    assert!(compared > 0 && agreed <= compared && dry_runs["own_effect"].is_i64(), "{record}");

    // A second site does not begin where one is.
    run(&mut up()).refused(&["holds events already", "--data"]);
    assert_eq!(query(data, count), actions);
}

#[test]
fn the_switch_is_a_file_that_says_who_and_why() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path();
    let autopilot = |arguments: &[&str]| {
        let mut command = tidegate();
        command.arg("autopilot").args(arguments).arg("--data").arg(data);
        run(&mut command)
    };
    let paused = autopilot(&["pause", "--why", "rack 7"]);
    assert!(
        paused.stdout.starts_with("paused by ") && paused.stdout.contains(": rack 7"),
        "{}",
        paused.stdout
    );
    let switch = || fs::read_to_string(data.join("autopilot/switch")).unwrap();
    assert!(switch().contains("rack 7"));
    assert!(autopilot(&["resume"]).stdout.starts_with("on"));
    assert_eq!(switch().lines().next(), Some("on"));
    let unplaced = autopilot(&["resume", "--key", "nonesuch"]);
    assert!(unplaced.status != Some(0) && unplaced.stderr.contains("--cluster"), "{}", unplaced.stderr);
    let refused = autopilot(&["run", "--config", "nonesuch.toml"]);
    assert!(refused.status == Some(1) && refused.stderr.contains("nonesuch.toml"), "{}", refused.stderr);
}

#[test]
fn a_policy_is_checked_with_what_it_tries() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
    let check = || run(tidegate().args(["policy", "check"]).arg(folder.path().join("site.toml")));
    let site = "name = \"site\"\n[shadow]\npolicy = \"auto\"\n[canary]\npolicy = \"next.toml\"\nowners = [\"team-a\"]\n";
    write("site.toml", site);
    let missing = check();
    assert!(missing.status == Some(1) && missing.stderr.contains("canary.policy"), "{}", missing.stderr);
    write("next.toml", "name = \"site\"\n");
    assert!(check().stderr.contains("a `name` of its own"));
    write("next.toml", "name = \"next\"\n");
    let said = check().stdout;
    assert!(said.contains("shadow  auto") && said.contains("canary  next for team-a"), "{said}");
    write("site.toml", "[canary]\npolicy = \"next.toml\"\n");
    assert!(check().stderr.contains("name the owners"));
    // No shadow and no canary yet.
    let data = folder.path().join("data");
    fs::create_dir(&data).unwrap();
    let shadow = run(tidegate().args(["autopilot", "shadow", "--data"]).arg(&data));
    assert_eq!(shadow.status, Some(1), "{}", shadow.stdout);
}

#[test]
fn a_policy_is_checked_for_what_it_widens_and_who_signed_it() {
    if Command::new("ssh-keygen").arg("-?").output().is_err() {
        return needs::skip("ssh-keygen is not there: install openssh-client");
    }
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let keygen = |arguments: &[&str]| {
        let output = Command::new("ssh-keygen").args(arguments).current_dir(folder.path()).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    let mut allowed = String::new();
    for name in ["anna", "ben"] {
        keygen(&["-q", "-t", "ed25519", "-N", "", "-C", "", "-f", name]);
        let public = fs::read_to_string(at(&format!("{name}.pub"))).unwrap();
        allowed += &format!("{name}@example.com namespaces=\"tidegate-*\" {public}");
    }
    fs::write(at("allowed_signers"), allowed).unwrap();
    let policy = "name = \"night\"\n[budgets.lend]\nper_hour = 13\n";
    fs::write(at("policy.toml"), policy).unwrap();
    let check = || {
        let mut command = tidegate();
        command.args(["policy", "check"]).arg(at("policy.toml")).args(["--against", "default", "--signers"]);
        run(command.arg(at("allowed_signers")))
    };
    let refused = check();
    assert!(
        refused.status == Some(1) && refused.stderr.contains("policy.toml.statement"),
        "{}",
        refused.stderr
    );
    let statement = PolicyStatement {
        cluster: "prod".to_owned(),
        acts_as: ActsAs::Policy,
        sequence: 1,
        after: None,
        expires: "2099-01-01T00:00:00Z".parse().unwrap(),
        policy: hash(policy.as_bytes()),
    };
    let issue = |statement: &PolicyStatement| {
        fs::write(at("policy.toml.statement"), statement.text()).unwrap();
        for name in ["anna", "ben"] {
            keygen(&["-q", "-Y", "sign", "-n", "tidegate-policy", "-f", name, "policy.toml.statement"]);
            fs::rename(at("policy.toml.statement.sig"), at(&format!("policy.toml.statement.{name}.sig")))
                .unwrap();
        }
    };
    issue(&statement);
    assert!(check().stderr.contains("within 366 days"));
    issue(&PolicyStatement { expires: chrono::Utc::now() + chrono::TimeDelta::days(1), ..statement });
    let checked = check();
    let said = checked.stdout;
    assert!(said.contains("budgets.lend.per_hour: 12 to 13  lets the autopilot do more"), "{said}");
    assert!(said.contains("two people's") && said.contains("number 1 of cluster prod, after none"), "{said}");
    assert!(
        said.contains("signed by anna@example.com SHA256:") && said.contains("signed by ben@example.com"),
        "{said}"
    );
    fs::write(at("policy.toml"), policy.replace("13", "99")).unwrap();
    assert!(check().stderr.contains("changed afterwards"));
}

/// Counted costs, equal on every machine; durations are not asserted.
#[test]
fn an_action_takes_few_appends_and_one_fsync_for_each() {
    let mut command = tidegate();
    command.args(["bench", "autopilot", "--nodes", "400", "--jobs", "200", "--plans", "2", "--trials", "3"]);
    command.args(["--acted-nodes", "16", "--look-every", "1", "--plan-every", "1", "--json"]);
    let report: Value = serde_json::from_str(&succeed(&mut command)).unwrap();
    assert!(report["planner"]["decisions"].as_i64() > Some(0), "{report}");
    let of = |event: &str, name: &str| report[event][name].as_f64().unwrap();
    assert_eq!(of("bad_node", "actions"), 3.0, "{report}");
    // The event; the plan with what it proposes; approved, leased, applying, applied, verified; and
    // a renewal of the lease.
    assert!(of("bad_node", "appends_per_action") <= 8.0, "{report}");
    assert!(
        of("demand_jump", "actions") >= 3.0 && of("demand_jump", "appends_per_action") <= 16.0,
        "{report}"
    );
    for event in ["bad_node", "demand_jump"] {
        assert!(of(event, "fsyncs_per_action") <= of(event, "appends_per_action"), "{report}");
        let spread = |name: &str, at: &str| report[event][name][at].as_f64().unwrap();
        assert!(
            spread("work_ms", "p50") > 0.0 && spread("latency_ms", "p50") > spread("cluster_ms", "p50"),
            "{report}"
        );
    }
}
