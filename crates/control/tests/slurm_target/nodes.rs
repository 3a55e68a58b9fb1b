//! Nodes: drained and returned, unless a person decides otherwise.

use serde_json::Value;
use tidegate_autopilot::action::{Action, Change, Precondition};
use tidegate_autopilot::state::{DrainedBy, NodeState};
use tidegate_autopilot::target::{Effect, TargetError};
use tidegate_testing::slurm::wait_for;

use crate::site::{Site, action};

pub fn drain(id: &str, node: &str) -> Action {
    let change = Change::DrainNode { node: node.into(), reason: "XID 79: fell off the bus".into() };
    action(id, 8, change, vec![Precondition::NodeTakesJobs { node: node.into() }])
}

fn give_back(id: &str, node: &str, drained_by: &str) -> Action {
    let fact = Precondition::NodeDrainedByUs { node: node.into(), action: drained_by.into() };
    action(id, 8, Change::ReturnNode { node: node.into(), drained_by: drained_by.into() }, vec![fact])
}

#[test]
fn nodes_are_drained_and_returned_unless_a_person_says_otherwise() {
    let Some(site) = Site::start() else { return };
    site.cluster.run("scontrol", &["update", "NodeName=n1", "Extra=rack 7"]);
    let out = drain("drain_node-1", "n1");
    site.apply(&out);
    let line = site.cluster.run("scontrol", &["--oneliner", "show", "node", "n1"]);
    assert!(line.contains("State=IDLE+DRAIN"), "{line}");
    assert!(line.contains("Reason=tidegate:drain_node-1 g8 XID 79: fell off the bus ["), "{line}");
    assert!(line.contains("Extra=rack 7 tidegate:drain_node-1 g8"), "{line}");
    assert!(site.is_done(&out));
    site.applies_once(&out);
    let seen = site.observe().nodes.remove("n1").unwrap().drain.unwrap();
    assert_eq!(seen.by, DrainedBy::Autopilot { action: "drain_node-1".into(), generation: 8 });
    assert!(seen.since_us.is_some());
    let twice = site.try_apply(&drain("drain_node-2", "n1")).unwrap_err();
    assert!(matches!(twice, TargetError::Precondition(_)), "{twice}");

    let back = give_back("return_node-1", "n1", "drain_node-1");
    site.apply(&back);
    assert!(site.is_done(&back));
    assert!(matches!(site.effect(&out), Effect::Overridden { .. }));
    wait_for("the node", 30, || site.observe().nodes["n1"].state == NodeState::Up);
    site.applies_once(&back);
    // A person returned it to service: the old drain is not repeated.
    assert!(site.try_apply(&out).unwrap().already && site.observe().nodes["n1"].drain.is_none());

    a_persons_drain_stays(&site);
    a_person_who_writes_over_ours_has_it(&site);
    let marked = ["update", "NodeName=n3", "Comment=tidegate:do-not-disrupt until friday"];
    site.cluster.run("scontrol", &marked);
    assert!(site.observe().nodes["n3"].do_not_disrupt && !site.observe().nodes["n4"].do_not_disrupt);
    one_that_was_not_noted_is_finished_by_a_newer_generation(&site);
}

/// Killed after the change and before it was noted: the next process recognizes its own drain, and
/// no other.
fn one_that_was_not_noted_is_finished_by_a_newer_generation(site: &Site) {
    let out = drain("drain_node-5", "n4");
    site.apply(&out);
    let queue: Value = serde_json::from_str(&site.cluster.run("squeue", &["--json"])).unwrap();
    let is_noted = |job: &&Value| job["admin_comment"].as_str().is_some_and(|text| text.contains(&out.id));
    let job = queue["jobs"].as_array().unwrap().iter().find(is_noted).unwrap();
    let mut notes: Value = serde_json::from_str(job["admin_comment"].as_str().unwrap()).unwrap();
    notes["actions"][&out.id]["done_us"] = Value::Null;
    let update = [format!("JobId={}", job["job_id"]), format!("AdminComment={notes}")];
    site.cluster.run("scontrol", &["update", &update[0], &update[1]]);

    let next = Action { generation: out.generation + 1, ..out };
    assert!(matches!(site.effect(&next), Effect::Partial { .. }));
    site.apply(&next);
    assert!(site.is_done(&next));
    let seen = site.observe().nodes.remove("n4").unwrap().drain.unwrap();
    assert_eq!(seen.by, DrainedBy::Autopilot { action: next.id, generation: 8 });
}

fn a_persons_drain_stays(site: &Site) {
    site.cluster.run("scontrol", &["update", "NodeName=n1", "State=DRAIN", "Reason=new fan"]);
    assert_eq!(site.observe().nodes["n1"].drain.as_ref().unwrap().by, DrainedBy::Other);
    // The checks hold even if the action names no precondition.
    let out = Action { preconditions: vec![], ..drain("drain_node-3", "n1") };
    let back = Action { preconditions: vec![], ..give_back("return_node-2", "n1", "drain_node-1") };
    for action in [out, back] {
        assert!(matches!(site.try_apply(&action), Err(TargetError::Precondition(_))), "{}", action.id);
        assert_eq!(site.effect(&action), Effect::Absent);
    }
    assert_eq!(site.show("node", "n1")["State"], "IDLE+DRAIN");
    assert!(site.cluster.run("scontrol", &["-o", "show", "node", "n1"]).contains("Reason=new fan ["));
}

fn a_person_who_writes_over_ours_has_it(site: &Site) {
    let out = drain("drain_node-4", "n2");
    site.apply(&out);
    let theirs = "Reason=tidegate:drain_node-4 g8 XID 79, card ordered (bert)";
    site.cluster.run("scontrol", &["update", "NodeName=n2", "State=DRAIN", theirs]);
    assert_eq!(site.observe().nodes["n2"].drain.as_ref().unwrap().by, DrainedBy::Other);
    assert!(matches!(site.effect(&out), Effect::Overridden { found } if found.contains("card ordered")));
    let back = give_back("return_node-3", "n2", "drain_node-4");
    assert!(matches!(site.try_apply(&back), Err(TargetError::Precondition(_))));
    assert_eq!(site.show("node", "n2")["State"], "IDLE+DRAIN");
}
