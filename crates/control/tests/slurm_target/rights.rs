//! Rights of each kind: a user that is only Operator does what Slurm allows; the rest is refused
//! and listed as lacking.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use serde::{Deserialize, Serialize};
use tidegate_autopilot::action::{Action, Adjustment, Change, Kind};
use tidegate_autopilot::state::Writer;
use tidegate_autopilot::target::{Capabilities, Effect, Receipt, Target, TargetError};
use tidegate_control::slurm::{SlurmConfig, SlurmTarget};
use tidegate_testing::needs;

use crate::jobs::resize;
use crate::loans::lend;
use crate::nodes::drain;
use crate::site::{MINUTE_US, Site, action, now_us};

const CHILD: &str = "TIDEGATE_SLURM_OPERATOR";
/// What the process prints before its answer.
const ANSWER: &str = "answer: ";

/// Applies actions as the user that runs it.
#[test]
#[ignore = "started by the other tests"]
fn child() {
    let given = std::env::var(CHILD).unwrap();
    let (config, actions): (SlurmConfig, Vec<Action>) = serde_json::from_str(&given).unwrap();
    let mut target = SlurmTarget::open(config.clone()).unwrap();
    let (capabilities, observed) = (target.capabilities(), target.observe());
    let observed = observed.map(|state| (state.nodes.len(), state.jobs.len()));
    let each = |action: &Action| {
        let mut target = SlurmTarget::open(config.clone()).unwrap();
        (target.apply(action), target.read_back(action))
    };
    let answers: Vec<_> = actions.iter().map(each).collect();
    println!("\n{ANSWER}{}", serde_json::to_string(&AsNobody { capabilities, observed, answers }).unwrap());
}

type Answer = (Result<Receipt, TargetError>, Result<Effect, TargetError>);

/// What the target says to `nobody`.
#[derive(Serialize, Deserialize)]
pub struct AsNobody {
    pub capabilities: Capabilities,
    /// Numbers of nodes and jobs that it observes.
    pub observed: Result<(usize, usize), TargetError>,
    pub answers: Vec<Answer>,
}

/// Runs it as `nobody`, who cannot read the folder where tests are built. Only root can.
pub fn as_nobody(site: &Site, actions: &[Action]) -> AsNobody {
    let program = site.cluster.path().join("as-nobody");
    if !program.exists() {
        std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let given = serde_json::to_string(&(&site.config, actions)).unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--reuid=nobody", "--regid=nogroup", "--clear-groups"]).arg(&program);
    command.args(["--exact", "rights::child", "--ignored", "--nocapture"]).env(CHILD, given).current_dir("/");
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let answer = text.lines().find_map(|line| line.strip_prefix(ANSWER));
    let answer = answer.unwrap_or_else(|| panic!("{text}\n{}", String::from_utf8_lossy(&output.stderr)));
    serde_json::from_str(answer).unwrap()
}

#[test]
fn an_operator_does_what_slurm_lets_it_and_no_more() {
    let Some(mut site) = Site::start() else { return };
    if !nix::unistd::Uid::effective().is_root() {
        return needs::note("only root can act as another user");
    }
    let accounts = "account=research,serving";
    site.cluster.run("sacctmgr", &["-i", "add", "user", "nobody", accounts, "adminlevel=Operator"]);
    // Notes of an Administrator fence an Operator too.
    let by_root = action("drain_node-0", 3, drain("x", "n5").change, vec![]);
    site.apply(&by_root);

    let elastic = "--comment=tidegate:elastic,min=8,max=32,grow=requeue of g7";
    let [shrinks, grows, stops] = [2, 1, 1].map(|nodes| {
        let job =
            site.submit("research", &[&format!("--nodes={nodes}"), "--gres=gpu:8", "--time=30", elastic]);
        site.cluster.wait_state(&job, &["R"]);
        job
    });
    let held = site.observe().jobs[&shrinks].anchor_node.clone().unwrap();
    let end_us = now_us() + 30 * MINUTE_US;
    let reservation = Adjustment::Reservation {
        name: "night".into(),
        owner: "research".into(),
        pool: "train".into(),
        from_gpus: 0,
        to_gpus: 8,
        start_us: now_us() + 60 * MINUTE_US,
        end_us: now_us() + 120 * MINUTE_US,
    };
    let quota =
        Adjustment::Quota { owner: "research".into(), pool: "train".into(), from_gpus: 40, to_gpus: 32 };
    let of_generation = |action: Action| Action { generation: 6, ..action };
    let actions: Vec<Action> = [
        resize("resize_job-1", &shrinks, 16, 8, &[&held], vec![]),
        action("preempt-1", 6, Change::Preempt { job: stops.clone(), frees_gpus: 8 }, vec![]),
        resize("resize_job-2", &grows, 8, 16, &[], vec![]),
        Action { preconditions: vec![], ..lend("lend-1", &["n8"], end_us, None) },
        action("adjust_reservation-1", 6, Change::AdjustReservation(reservation), vec![]),
        action("adjust_reservation-2", 6, Change::AdjustReservation(quota), vec![]),
        drain("drain_node-1", "n4"),
    ]
    .map(of_generation)
    .into();
    let AsNobody { capabilities, answers, .. } = as_nobody(&site, &actions);
    let cannot: Vec<Kind> = Kind::ALL.into_iter().filter(|kind| !capabilities.kinds.contains(kind)).collect();
    assert_eq!(cannot, [Kind::DrainNode, Kind::ReturnNode]);
    let lacking = capabilities.lacking.join("\n");
    for words in ["Invalid user id", "doesn't have privilege", "only permitted by root"] {
        assert!(lacking.contains(words), "{words}: {lacking}");
    }
    for (action, (applied, _)) in actions.iter().zip(&answers).take(6) {
        assert!(applied.as_ref().is_ok_and(|receipt| !receipt.already), "{}: {applied:?}", action.id);
    }
    assert!(matches!(answers[6].0, Err(TargetError::Unsupported { .. })), "{:?}", answers[6]);
    // Slurm itself refuses.
    let mut setpriv = Command::new("setpriv");
    setpriv.args([
        "--reuid=nobody",
        "--regid=nogroup",
        "--clear-groups",
        "scontrol",
        "update",
        "NodeName=n4",
    ]);
    let refused =
        setpriv.args(["State=DRAIN", "Reason=x"]).env("SLURM_CONF", site.cluster.conf()).output().unwrap();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("Invalid user id"), "{refused:?}");

    assert_eq!(site.nodes_of(&shrinks), held);
    let comment = site.cluster.run("squeue", &["--noheader", "--format=%k", "--jobs", &shrinks]);
    assert_eq!(comment, "tidegate:elastic,min=8,max=32,grow=requeue of g7 tidegate:resize_job-1 g6");
    let state = site.observe();
    assert_eq!(state.loans["lend-1"].writer, Writer::Autopilot { generation: 6 }, "root reads its notes");
    assert!(site.is_done(&actions[0]) && site.try_apply(&actions[0]).unwrap().already);
    // Root reads the Operator's notes: its older generation is refused, a newer one is accepted.
    assert_eq!(site.try_apply(&by_root).map(|receipt| receipt.already), Err(stale(3, 6)));
    site.apply(&action("drain_node-2", 8, drain("x", "n4").change, vec![]));
    let late = as_nobody(&site, &[of_generation(drain("resize_job-3", "n4"))]).answers;
    assert!(matches!(late[0].0, Err(TargetError::Unsupported { .. })));
    let late = Action { generation: 7, ..lend("lend-2", &["n7"], end_us, None) };
    let late = as_nobody(&site, &[late]).answers;
    assert_eq!(late[0].0, Err(stale(7, 8)));

    // A limit of a QOS takes an Administrator.
    site.share_train();
    let of_qos = Action { generation: 9, ..crate::limits::lend("lend-3", 8, end_us, None) };
    let refused = as_nobody(&site, &[of_qos]).answers;
    assert!(
        matches!(&refused[0].0, Err(TargetError::Unsupported { why, .. }) if why.contains("only Administrators")),
        "{refused:?}"
    );
}

fn stale(generation: u64, seen: u64) -> TargetError {
    TargetError::StaleGeneration { generation, seen }
}
