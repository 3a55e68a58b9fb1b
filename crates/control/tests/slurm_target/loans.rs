//! Loans by reservation: nodes of serving used by research, given back, and ended by Slurm alone.

use tidegate_autopilot::action::{Action, Change, Precondition};
use tidegate_autopilot::state::Writer;
use tidegate_autopilot::target::{Effect, TargetError};
use tidegate_testing::slurm::wait_for;

use crate::site::{MINUTE_US, Site, action, names, now_us};

pub fn lend(id: &str, nodes: &[&str], until_us: i64, extends: Option<&str>) -> Action {
    let change = Change::Lend {
        from: "serving".into(),
        to: "research".into(),
        pool: "infer".into(),
        gpus: 4 * nodes.len() as u32,
        nodes: names(nodes),
        extends: extends.map(str::to_owned),
        expires_us: until_us,
        reclaim_within_ms: 120_000,
    };
    let facts =
        if extends.is_none() { vec![Precondition::NodesFree { nodes: names(nodes) }] } else { vec![] };
    action(id, 4, change, facts)
}

fn reclaim(id: &str, from: u32, to: u32, nodes: &[&str]) -> Action {
    let loan = "lend-1".to_owned();
    let facts = vec![Precondition::LoanIs { loan: loan.clone(), gpus: from }];
    action(id, 4, Change::Reclaim { loan, from_gpus: from, to_gpus: to, nodes: names(nodes) }, facts)
}

/// A job of research that needs four GPUs of a node of `infer`.
fn borrower(site: &Site) -> String {
    site.submit("research", &["--partition=train,infer", "--gres=gpu:a100:4"])
}

#[test]
fn nodes_are_lent_used_and_taken_back() {
    let Some(site) = Site::start() else { return };
    assert!(site.target_lacks_nothing_for_loans());
    let serving = site.submit("serving", &["--partition=infer", "--gres=gpu:4", "--nodelist=n6"]);
    let jobs = [borrower(&site), borrower(&site)];
    site.cluster.wait_state(&serving, &["R"]);
    jobs.iter().for_each(|job| site.wait_refused(job));
    assert!(jobs.iter().all(|job| site.cluster.state(job) == "PD"), "without a loan they wait");
    let until_us = now_us() + 30 * MINUTE_US;
    let busy = lend("lend-0", &["n6", "n7"], until_us, None);
    assert!(matches!(site.try_apply(&busy), Err(TargetError::Precondition(_))));
    let facts = Vec::new();
    let unchecked = site.try_apply(&Action { preconditions: facts, ..busy }).unwrap_err();
    assert!(unchecked.to_string().contains("jobs hold"), "{unchecked}");

    let loan = lend("lend-1", &["n7", "n8"], until_us, None);
    site.apply(&loan);
    assert!(site.is_done(&loan));
    site.applies_once(&loan);
    for job in &jobs {
        site.cluster.wait_state(job, &["R"]);
    }
    let waits = site.submit("serving", &["--partition=infer", "--gres=gpu:4"]);
    let seen = site.observe().loans.remove("lend-1").unwrap();
    assert_eq!((seen.from.as_str(), seen.to.as_str(), seen.gpus), ("serving", "research", 8));
    assert_eq!((seen.nodes, seen.expires_us), (names(&["n7", "n8"]), until_us / 1_000_000 * 1_000_000));
    assert_eq!((seen.writer, seen.jobs.len()), (Writer::Autopilot { generation: 4 }, 2));

    let longer_us = until_us + 30 * MINUTE_US;
    let longer = lend("lend-2", &["n7", "n8"], longer_us, Some("lend-1"));
    site.apply(&longer);
    assert!(site.is_done(&longer));
    site.applies_once(&longer);
    let end = site.show("reservation", "tidegate-loan.lend-1.g4")["EndTime"].clone();
    assert_eq!(end, (longer_us / 1_000_000).to_string());
    comes_back(&site, &waits);
}

impl Site {
    /// The standing reservation of the lender was found.
    fn target_lacks_nothing_for_loans(&self) -> bool {
        use tidegate_autopilot::target::Target;
        !self.target().capabilities().lacking.iter().any(|what| what.contains("standing reservation"))
    }
}

fn comes_back(site: &Site, waits: &str) {
    let on = |node: &str| {
        site.cluster.run("squeue", &["--noheader", "--format=%i %a", "--nodelist", node]).trim().to_owned()
    };
    let job_on_n8 = on("n8").split(' ').next().unwrap().to_owned();
    let one = reclaim("reclaim-1", 8, 4, &["n8"]);
    site.apply(&one);
    // The job goes on, and the node counts as lent until it has left.
    assert!(matches!(site.effect(&one), Effect::Partial { .. }));
    let seen = site.observe().loans.remove("lend-1").unwrap();
    assert_eq!((seen.gpus, seen.reclaiming_gpus, seen.reclaiming_nodes), (8, 4, names(&["n8"])));
    assert_eq!(seen.writer, Writer::Autopilot { generation: 4 });
    let stop = action("preempt-1", 4, Change::Preempt { job: job_on_n8, frees_gpus: 4 }, vec![]);
    site.apply(&stop);
    wait_for("the node", 60, || site.is_done(&one));
    site.applies_once(&one);
    // The owner's job has it now; the borrower's waits, as n7 is taken.
    site.cluster.wait_state(waits, &["R"]);
    assert_eq!(site.nodes_of(waits), "n8");
    assert_eq!(site.observe().loans["lend-1"].gpus, 4);

    let rest = reclaim("reclaim-2", 4, 0, &["n7"]);
    site.apply(&rest);
    assert!(matches!(site.effect(&rest), Effect::Partial { .. }));
    let closed = site.show("reservation", "tidegate-loan.lend-1.g4");
    assert_eq!((closed["Accounts"].as_str(), closed["Nodes"].as_str()), ("(null)", "n7"));
    assert_eq!(site.observe().loans["lend-1"].reclaiming_gpus, 4);
    let last = on("n7").split(' ').next().unwrap().to_owned();
    site.cluster.run("scancel", &[&last]);
    wait_for("the last node", 60, || site.is_done(&rest));
    assert!(site.observe().loans.is_empty());
    let left = site.cluster.run("scontrol", &["--oneliner", "show", "reservation"]);
    assert!(!left.contains("tidegate-loan"), "{left}");
    site.applies_once(&rest);
}

/// In a pool that several share, a number is lent and Slurm chooses the nodes.
fn by_number(site: &Site) {
    let change = |gpus| Change::Lend {
        from: "research".into(),
        to: "serving".into(),
        pool: "train".into(),
        gpus,
        nodes: names(&[]),
        extends: None,
        expires_us: now_us() + 60 * MINUTE_US,
        reclaim_within_ms: 120_000,
    };
    let refused = site.try_apply(&action("lend-4", 4, change(12), vec![])).unwrap_err();
    assert!(refused.to_string().contains("whole nodes"), "{refused}");
    let loan = action("lend-5", 4, change(16), vec![]);
    site.apply(&loan);
    assert!(site.is_done(&loan));
    site.applies_once(&loan);
    let seen = site.observe().loans.remove("lend-5").unwrap();
    assert_eq!((seen.gpus, seen.nodes.len(), seen.writer), (16, 2, Writer::Autopilot { generation: 4 }));
    let back = Change::Reclaim { loan: "lend-5".into(), from_gpus: 16, to_gpus: 0, nodes: names(&[]) };
    let back = action("reclaim-5", 4, back, vec![Precondition::LoanIs { loan: "lend-5".into(), gpus: 16 }]);
    site.apply(&back);
    assert!(site.is_done(&back) && !site.observe().loans.contains_key("lend-5"));
}

#[test]
fn a_loan_ends_by_itself_and_a_persons_edit_of_it_stands() {
    let Some(site) = Site::start() else { return };
    let job = borrower(&site);
    // Slurm checks once a minute whether a reservation is over.
    let short = lend("lend-1", &["n7"], now_us() + 65_000_000, None);
    site.apply(&short);
    site.cluster.wait_state(&job, &["R"]);

    let edited = lend("lend-3", &["n8"], now_us() + 60 * MINUTE_US, None);
    site.apply(&edited);
    let name = "ReservationName=tidegate-loan.lend-3.g4";
    site.cluster.run("scontrol", &["update", name, "EndTime=now+30minutes"]);
    assert!(matches!(site.effect(&edited), Effect::Overridden { .. }));
    assert_eq!(site.observe().loans["lend-3"].writer, Writer::Other);
    let back = Change::Reclaim { loan: "lend-3".into(), from_gpus: 4, to_gpus: 0, nodes: names(&["n8"]) };
    let back = action("reclaim-3", 4, back, vec![Precondition::LoanIs { loan: "lend-3".into(), gpus: 4 }]);
    assert!(matches!(site.try_apply(&back), Err(TargetError::Precondition(_))));
    assert!(site.try_apply(&edited).unwrap().already, "ours is not written over theirs");
    assert_eq!(site.observe().loans["lend-3"].gpus, 4);

    by_number(&site);
    // Nothing of ours runs from here on.
    wait_for("the end of the loan", 180, || !site.observe().loans.contains_key("lend-1"));
    wait_for("the end of its job", 120, || site.cluster.state(&job) == "TO");
    assert_eq!(site.effect(&short), Effect::Overridden { found: "the loan is over".into() });
    let owners = site.submit("serving", &["--partition=infer", "--gres=gpu:4", "--nodelist=n7"]);
    site.cluster.wait_state(&owners, &["R"]);
}
