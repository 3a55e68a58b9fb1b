//! Least rights of each kind: every row of the table in `deploy/autopilot/rights.md` is carried out
//! by a user of exactly the level that it names. One level below, the target refuses it with a
//! reason, Slurm itself refuses its command in the words of the table, and the other kinds go on.

use std::process::Command;

use tidegate_autopilot::action::{Action, Adjustment, Change, Kind, Precondition};
use tidegate_autopilot::target::{Effect, TargetError};
use tidegate_testing::needs;
use tidegate_testing::slurm::wait_for;

use crate::jobs::resize;
use crate::loans::lend;
use crate::nodes::drain;
use crate::rights::{AsNobody, as_nobody};
use crate::site::{MINUTE_US, Site, action, names, now_us};

const TABLE: &str = include_str!("../../../../deploy/autopilot/rights.md");
const ELASTIC: &str = "--comment=tidegate:elastic,min=8,max=32,grow=requeue";

/// A row of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Row {
    what: String,
    level: String,
    /// What Slurm says to a user of the level below.
    answer: String,
}

fn table() -> Vec<Row> {
    let lines = TABLE.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| kind"));
    let rows = lines.map(|line| {
        let cells: Vec<String> =
            line.trim_matches('|').split(" | ").map(|cell| cell.trim().replace('`', "")).collect();
        let [what, _, level, answer] = cells.try_into().unwrap_or_else(|cells| panic!("{cells:?}"));
        Row { what, level, answer }
    });
    let mut rows: Vec<Row> = rows.collect();
    for at in 1..rows.len() {
        if rows[at].answer == "the same" {
            let by = rows.iter().find(|row| row.what == "lend, reclaim by reservations").unwrap();
            rows[at].answer = by.answer.clone();
        }
    }
    rows
}

/// What is tried: the row, the action, and a command that asks Slurm for the same.
struct Try {
    row: &'static str,
    action: Action,
    command: Vec<String>,
}

fn attempt(row: &'static str, action: Action, command: &str) -> Try {
    Try { row, action, command: command.split(' ').map(str::to_owned).collect() }
}

fn of_generation(action: Action, generation: u64) -> Action {
    Action { generation, ..action }
}

/// Jobs of root: one of two nodes that shrinks, one that grows, one that stops.
struct Jobs {
    shrinks: String,
    grows: String,
    stops: String,
    /// Node that the first one keeps.
    kept: String,
}

impl Jobs {
    fn submit(site: &Site) -> Self {
        let [shrinks, grows, stops] = [2, 1, 1].map(|nodes| {
            let nodes = format!("--nodes={nodes}");
            let job = site.submit("research", &[&nodes, "--gres=gpu:8", "--time=30", ELASTIC]);
            site.cluster.wait_state(&job, &["R"]);
            job
        });
        let kept = site.observe().jobs[&shrinks].anchor_node.clone().unwrap();
        Self { shrinks, grows, stops, kept }
    }
}

/// What takes an Operator. `round` makes the ids differ: an id is applied once.
fn by_operators(jobs: &Jobs, round: &str) -> Vec<Try> {
    let Jobs { shrinks, grows, stops, kept } = jobs;
    let end_us = now_us() + 30 * MINUTE_US;
    let id = |name: &str| format!("{name}-{round}");
    let reservation = Adjustment::Reservation {
        name: format!("night-{round}"),
        owner: "research".into(),
        pool: "train".into(),
        from_gpus: 0,
        to_gpus: 8,
        start_us: now_us() + 60 * MINUTE_US,
        end_us: now_us() + 120 * MINUTE_US,
    };
    let quota =
        Adjustment::Quota { owner: "research".into(), pool: "train".into(), from_gpus: 40, to_gpus: 32 };
    let loan = id("lend");
    let back = Change::Reclaim { loan: loan.clone(), from_gpus: 4, to_gpus: 0, nodes: names(&["n8"]) };
    let create =
        "scontrol create reservation ReservationName=x Accounts=research Nodes=n8 StartTime=now Duration=9";
    vec![
        attempt(
            "resize_job, smaller",
            resize(&id("resize_job-a"), shrinks, 16, 8, &[kept], vec![]),
            &format!("scontrol update JobId={shrinks} NodeList={kept}"),
        ),
        attempt(
            "preempt",
            action(&id("preempt"), 5, Change::Preempt { job: stops.clone(), frees_gpus: 8 }, vec![]),
            &format!("scontrol requeue {stops}"),
        ),
        attempt(
            "resize_job, larger by grow=requeue",
            resize(&id("resize_job-b"), grows, 8, 16, &[], vec![]),
            &format!("scontrol requeuehold {grows}"),
        ),
        attempt(
            "lend, reclaim by reservations",
            Action { preconditions: vec![], ..lend(&loan, &["n8"], end_us, None) },
            create,
        ),
        attempt("lend, reclaim by reservations", action(&id("reclaim"), 5, back, vec![]), create),
        attempt(
            "adjust_reservation, reservations",
            action(&id("adjust_reservation-a"), 5, Change::AdjustReservation(reservation), vec![]),
            create,
        ),
        attempt(
            "adjust_reservation, limit of an account",
            action(&id("adjust_reservation-b"), 5, Change::AdjustReservation(quota), vec![]),
            "sacctmgr -i modify account name=research set GrpTRES=gres/gpu=1",
        ),
    ]
}

/// What takes an Administrator on nodes.
fn on_nodes(round: &str) -> Vec<Try> {
    let id = |name: &str| format!("{name}-{round}");
    let fact = Precondition::NodeDrainedByUs { node: "n7".into(), action: id("drain_node") };
    let back = Change::ReturnNode { node: "n7".into(), drained_by: id("drain_node") };
    let command = "scontrol update NodeName=n7 State=DRAIN Reason=x";
    let facts = if round == "admin" { vec![fact] } else { vec![] };
    vec![
        attempt("drain_node, return_node", drain(&id("drain_node"), "n7"), command),
        attempt("drain_node, return_node", action(&id("return_node"), 8, back, facts), command),
    ]
}

/// What takes an Administrator on the QOS of [`Site::share_train`], and a loan to take back there.
fn on_qos(round: &str, taken_back: &str) -> Vec<Try> {
    let id = |name: &str| format!("{name}-{round}");
    let loan = id("lend-q");
    let back = Change::Reclaim { loan: taken_back.to_owned(), from_gpus: 8, to_gpus: 0, nodes: names(&[]) };
    let quota =
        Adjustment::Quota { owner: "research".into(), pool: "train".into(), from_gpus: 16, to_gpus: 24 };
    let command = "sacctmgr -i modify qos name=research set GrpTRES=gres/gpu=1";
    let by_qos = r#"lend, reclaim by a QOS (lend_by = "qos")"#;
    vec![
        attempt(by_qos, crate::limits::lend(&loan, 8, now_us() + 30 * MINUTE_US, None), command),
        attempt(by_qos, action(&id("reclaim-q"), 8, back, vec![]), command),
        attempt(
            "adjust_reservation, limit of a QOS",
            action(&id("adjust_reservation-q"), 8, Change::AdjustReservation(quota), vec![]),
            command,
        ),
    ]
}

fn set_level(site: &Site, level: &str) {
    let set = format!("adminlevel={level}");
    site.cluster.run("sacctmgr", &["-i", "modify", "user", "name=nobody", "set", &set]);
}

/// Answers of the target to `nobody`, whose generation rises with each round.
fn tried(site: &Site, tries: &[Try], generation: u64) -> AsNobody {
    let actions: Vec<Action> = tries.iter().map(|it| of_generation(it.action.clone(), generation)).collect();
    as_nobody(site, &actions)
}

fn assert_all_done(answers: &AsNobody, tries: &[Try]) {
    for (attempt, (applied, effect)) in tries.iter().zip(&answers.answers) {
        let Try { row, action, .. } = attempt;
        assert!(applied.as_ref().is_ok_and(|receipt| !receipt.already), "{row}: {}: {applied:?}", action.id);
        // A job that starts again takes its time.
        assert!(!matches!(effect, Ok(Effect::Absent) | Err(_)), "{row}: {}: {effect:?}", action.id);
    }
}

/// The target refuses, and gives a reason that holds one of `words`.
fn assert_all_refused(answers: &AsNobody, tries: &[Try], words: &[&str]) {
    for (attempt, (applied, effect)) in tries.iter().zip(&answers.answers) {
        let Try { row, action, .. } = attempt;
        let Err(TargetError::Unsupported { why, .. }) = applied else {
            panic!("{row}: {}: {applied:?}", action.id)
        };
        assert!(words.iter().any(|words| why.contains(words)), "{row}: {why}");
        assert_eq!(effect, &Ok(Effect::Absent), "{row}");
    }
}

/// Slurm's own answer to `nobody` is the one that the table quotes.
fn assert_slurm_refuses(site: &Site, rows: &[Row], tries: &[Try]) {
    for Try { row, command, .. } in tries {
        let row = rows.iter().find(|it| it.what == *row).unwrap_or_else(|| panic!("no row {row}"));
        let mut asked = Command::new("setpriv");
        asked.args(["--reuid=nobody", "--regid=nogroup", "--clear-groups"]).args(command).current_dir("/");
        let answer = asked.env("SLURM_CONF", site.cluster.conf()).output().unwrap();
        let said = [answer.stdout, answer.stderr].map(|text| String::from_utf8(text).unwrap()).concat();
        // The table has N for the number of a job.
        let quoted = row.answer.trim_end_matches('N').trim_end();
        assert!(said.contains(quoted), "{}: {command:?} says {said:?}, the table {quoted:?}", row.what);
    }
}

fn assert_untouched(site: &Site, before: &tidegate_autopilot::state::ClusterState) {
    let after = site.observe();
    for (id, job) in &before.jobs {
        let now = &after.jobs[id];
        assert_eq!((&job.placement, job.restarts), (&now.placement, now.restarts), "job {id}");
    }
    assert_eq!((&before.loans, &before.reservations), (&after.loans, &after.reservations));
    assert_eq!(before.owners, after.owners);
    let drains = |state: &tidegate_autopilot::state::ClusterState| {
        state.nodes.values().filter(|node| node.drain.is_some()).count()
    };
    assert_eq!(drains(before), drains(&after));
}

#[test]
fn each_kind_takes_the_level_that_the_table_names_and_no_more() {
    let Some(mut site) = Site::start() else { return };
    if !nix::unistd::Uid::effective().is_root() {
        return needs::note("only root can act as another user");
    }
    let rows = table();
    let accounts = "account=research,serving";
    let qos = "qos=normal,loan,urgent";
    site.cluster.run("sacctmgr", &["-i", "add", "user", "nobody", accounts, "cluster=tidegate", qos]);
    let jobs = Jobs::submit(&site);

    // A user without rights looks and plans; nothing that takes an Operator is done.
    let before = site.observe();
    let tries = by_operators(&jobs, "user");
    let answers = tried(&site, &tries, 10);
    assert_eq!(answers.observed, Ok((before.nodes.len(), before.jobs.len())), "observation goes on");
    assert!(answers.capabilities.kinds.is_empty());
    assert!(answers.capabilities.lacking.join("\n").contains("everything but looking"));
    assert_all_refused(&answers, &tries, &["nobody has no rights for it"]);
    assert_slurm_refuses(&site, &rows, &tries);
    assert_untouched(&site, &before);

    // An Operator does all of that, and between it nothing that takes an Administrator.
    set_level(&site, "Operator");
    let tries = by_operators(&jobs, "operator");
    let refused = on_nodes("operator");
    let answers = tried(&site, &refused, 11);
    assert_all_refused(&answers, &refused, &["nobody has no rights for it"]);
    assert_slurm_refuses(&site, &rows, &refused);
    let answers = tried(&site, &tries, 12);
    let cannot: Vec<Kind> =
        Kind::ALL.into_iter().filter(|kind| !answers.capabilities.kinds.contains(kind)).collect();
    assert_eq!(cannot, [Kind::DrainNode, Kind::ReturnNode]);
    assert_all_done(&answers, &tries);
    assert_eq!(site.nodes_of(&jobs.shrinks), jobs.kept, "by Slurm's own account");
    site.wait_started(&jobs.stops, 1);
    site.wait_started(&jobs.grows, 1);
    assert_eq!(site.show("job", &jobs.grows)["NumNodes"], "2");
    site.share_train();
    let until_us = now_us() + 30 * MINUTE_US;
    site.apply(&of_generation(crate::limits::lend("lend-q-root", 8, until_us, None), 13));
    let refused = on_qos("operator", "lend-q-root");
    let limit = site.limit();
    assert_all_refused(&tried(&site, &refused, 13), &refused, &["only Administrators"]);
    assert_slurm_refuses(&site, &rows, &refused);
    assert_eq!(site.limit(), limit);
    let back = Change::Reclaim { loan: "lend-q-root".into(), from_gpus: 8, to_gpus: 0, nodes: names(&[]) };
    let back = action("reclaim-q-root", 13, back, vec![]);
    site.apply(&back);
    assert!(site.is_done(&back));

    // An Administrator does the rest, but is not root.
    set_level(&site, "Administrator");
    let tries = on_nodes("admin");
    assert_all_done(&tried(&site, &tries[..1], 14), &tries[..1]);
    assert!(site.show("node", "n7")["State"].contains("DRAIN"));
    assert_all_done(&tried(&site, &tries[1..], 15), &tries[1..]);
    assert!(!site.show("node", "n7")["State"].contains("DRAIN"));
    let tries = on_qos("admin", "lend-q-admin");
    assert_all_done(&tried(&site, &tries[..1], 16), &tries[..1]);
    assert!(site.limit().starts_with("gres/gpu=24|"), "{}", site.limit());
    assert_all_done(&tried(&site, &tries[1..], 17), &tries[1..]);
    assert!(site.limit().starts_with("gres/gpu=24|"), "16 back, and 24 of its own: {}", site.limit());

    grows_by_satellites(&site, &rows);
    let all: Vec<&str> = rows.iter().map(|row| row.what.as_str()).collect();
    let tested = ["observation, plans, advice", "resize_job, larger by grow=satellites"].into_iter().chain(
        by_operators(&jobs, "").into_iter().chain(on_nodes("")).chain(on_qos("", "")).map(|it| it.row),
    );
    let tested: std::collections::BTreeSet<&str> = tested.collect();
    assert_eq!(all.iter().copied().collect::<std::collections::BTreeSet<_>>(), tested, "each row is tested");
    levels_are_as_tried(&rows);
}

/// Only root submits for others; for jobs of its own user an Operator does.
fn grows_by_satellites(site: &Site, rows: &[Row]) {
    site.cluster.run("scancel", &["--account=research"]);
    wait_for("the nodes", 60, || site.observe().jobs.is_empty());
    // The Operator's reservation begins in an hour. A job that would run into it would not start.
    let short = "--time=30".to_owned();
    let theirs = site.submit_joined(std::slice::from_ref(&short));
    let grown = resize("resize_job-s1", &theirs, 8, 16, &["n1"], vec![]);
    let sbatch = "sbatch --parsable --uid=root --account=research --wrap=true";
    let tries = [attempt("resize_job, larger by grow=satellites", grown, sbatch)];
    assert_all_refused(&tried(site, &tries, 18), &tries, &["--uid only permitted by root user"]);
    assert_slurm_refuses(site, rows, &tries);
    site.cluster.run("scancel", &[&theirs]);
    site.cluster.wait_state(&theirs, &["CA"]);

    set_level(site, "Operator");
    let options = ["--uid=nobody".to_owned(), "--gid=nogroup".to_owned(), short];
    let own = site.submit_joined(&options);
    let path = site.cluster.path().join("join.sh");
    Command::new("chown").args(["nobody", path.to_str().unwrap()]).status().unwrap();
    let grown = resize("resize_job-s2", &own, 8, 16, &["n1"], vec![]);
    let tries = [attempt("resize_job, larger by grow=satellites", grown, sbatch)];
    assert_all_done(&tried(site, &tries, 19), &tries);
}

fn levels_are_as_tried(rows: &[Row]) {
    let level = |what: &str| rows.iter().find(|row| row.what == what).unwrap().level.clone();
    for attempt in by_operators(
        &Jobs { shrinks: "1".into(), grows: "2".into(), stops: "3".into(), kept: "n1".into() },
        "",
    ) {
        assert_eq!(level(attempt.row), "Operator", "{}", attempt.row);
    }
    for attempt in on_nodes("").iter().chain(&on_qos("", "")) {
        assert_eq!(level(attempt.row), "Administrator", "{}", attempt.row);
    }
    assert_eq!(level("observation, plans, advice"), "any user");
    assert_eq!(level("resize_job, larger by grow=satellites"), "root (Operator for jobs of its own user)");
}
