//! Loans by QOS: used, extended, given back, and ended by Slurm alone.

use tidegate_autopilot::action::{Action, Adjustment, Change, Precondition};
use tidegate_autopilot::state::Writer;
use tidegate_autopilot::target::{Effect, TargetError};
use tidegate_control::slurm::{LendBy, OwnerConfig, ShareConfig};
use tidegate_testing::slurm::wait_for;

use crate::site::{MINUTE_US, Site, action, names, now_us};

/// A loan of `serving`'s share of `train` to `research`.
pub fn lend(id: &str, gpus: u32, until_us: i64, extends: Option<&str>) -> Action {
    let change = Change::Lend {
        from: "serving".into(),
        to: "research".into(),
        pool: "train".into(),
        gpus,
        nodes: names(&[]),
        extends: extends.map(str::to_owned),
        expires_us: until_us,
        reclaim_within_ms: 120_000,
    };
    action(id, 4, change, vec![])
}

fn reclaim(id: &str, loan: &str, from_gpus: u32, to_gpus: u32) -> Action {
    let facts = vec![Precondition::LoanIs { loan: loan.to_owned(), gpus: from_gpus }];
    let change = Change::Reclaim { loan: loan.to_owned(), from_gpus, to_gpus, nodes: names(&[]) };
    action(id, 4, change, facts)
}

impl Site {
    /// The two teams in one partition: `research` has 16 GPUs of it by its QOS, and `serving` lends
    /// of its 24.
    pub fn share_train(&mut self) {
        let user = self
            .cluster
            .run("sacctmgr", &["-nP", "show", "user", "format=user", "where", "adminlevel=Admin"]);
        let user = format!("name={}", user.lines().find(|name| !name.is_empty()).unwrap());
        self.cluster.run("sacctmgr", &["-i", "add", "qos", "research", "description=Night owls"]);
        self.set_limit(16);
        self.cluster.run("sacctmgr", &["-i", "modify", "user", &user, "set", "qos+=research"]);
        let quota = ShareConfig { quota_qos: Some("research".into()), ..ShareConfig::default() };
        self.config.owners.get_mut("research").unwrap().shares = [("train".to_owned(), quota)].into();
        let lends = ShareConfig {
            quota_gpus: Some(24),
            lendable: true,
            lend_by: LendBy::Qos,
            ..ShareConfig::default()
        };
        let OwnerConfig { shares, .. } = self.config.owners.get_mut("serving").unwrap();
        shares.insert("train".into(), lends);
    }

    /// Sets the limit as a person does.
    fn set_limit(&self, gpus: u32) {
        let limit = format!("GrpTRES=gres/gpu={gpus}");
        self.cluster.run("sacctmgr", &["-i", "modify", "qos", "name=research", "set", &limit]);
    }

    /// Limit and description.
    pub fn limit(&self) -> String {
        self.cluster.run("sacctmgr", &["-nP", "show", "qos", "research", "format=grptres,description"])
    }

    /// Three jobs of `research` that want 24 GPUs; the last one waits for more than it has.
    fn wants_more(&self) -> [String; 3] {
        let jobs = [0, 1, 2].map(|_| {
            let job = self
                .submit("research", &["--qos=research", "--gres=gpu:8", "--comment=tidegate:preemptible"]);
            // The job that started last leaves first: starts a second apart decide the order.
            std::thread::sleep(std::time::Duration::from_millis(1100));
            job
        });
        wait_for("two of three", 60, || {
            jobs.iter().filter(|job| self.cluster.state(job) == "R").count() == 2
        });
        assert_eq!(self.cluster.state(&jobs[2]), "PD");
        jobs
    }
}

#[test]
fn a_limit_is_lent_used_and_taken_back() {
    let Some(mut site) = Site::start() else { return };
    site.share_train();
    let jobs = site.wants_more();
    let own = site.limit();
    assert_eq!(own, "gres/gpu=16|night owls");
    let until_us = now_us() + 30 * MINUTE_US;
    let loan = lend("lend-1", 8, until_us, None);
    site.apply(&loan);
    assert!(site.is_done(&loan));
    site.applies_once(&loan);
    let end_s = until_us / 1_000_000;
    assert_eq!(
        site.limit(),
        format!("gres/gpu=24|night owls tidegate:base:16 tidegate:lend-1:8:8:{end_s}:4")
    );
    site.cluster.wait_state(&jobs[2], &["R"]);
    let state = site.observe();
    let seen = &state.loans["lend-1"];
    assert_eq!((seen.from.as_str(), seen.to.as_str(), seen.pool.as_str()), ("serving", "research", "train"));
    assert_eq!((seen.gpus, seen.expires_us, &seen.jobs), (8, end_s * 1_000_000, &names(&[&jobs[2]])));
    assert_eq!(state.jobs[&jobs[2]].loan.as_deref(), Some("lend-1"));
    assert_eq!(state.jobs[&jobs[0]].loan, None, "it runs on what research has anyway");
    assert_eq!(state.owners["research"].shares["train"].limit_gpus, Some(16), "without what is lent to it");
    let ends = |id: &str| {
        let args = ["--noheader", "--format=%j %T", "--states=PENDING"];
        site.cluster
            .run("squeue", &args)
            .lines()
            .filter(|line| line.contains(&format!("restore.{id}.")))
            .count()
    };
    assert_eq!(ends("lend-1"), 1, "something of Slurm's ends it");

    let longer = lend("lend-2", 8, until_us + 30 * MINUTE_US, Some("lend-1"));
    site.apply(&longer);
    assert!(site.is_done(&longer));
    site.applies_once(&longer);
    let more = lend("lend-3", 16, until_us, None);
    site.apply(&more);
    assert!(site.limit().starts_with("gres/gpu=40|"), "{}", site.limit());
    let quota =
        Adjustment::Quota { owner: "research".into(), pool: "train".into(), from_gpus: 16, to_gpus: 8 };
    let quota = site.try_apply(&action("adjust_reservation-1", 4, Change::AdjustReservation(quota), vec![]));
    assert!(quota.unwrap_err().to_string().contains("loans stand on QOS research"));

    // A limit that a person set is left alone.
    site.set_limit(33);
    assert!(matches!(site.effect(&more), Effect::Overridden { .. }));
    assert_eq!(site.observe().loans["lend-3"].writer, Writer::Other);
    for refused in [reclaim("reclaim-1", "lend-3", 16, 0), lend("lend-4", 8, until_us, None)] {
        assert!(matches!(site.try_apply(&refused), Err(TargetError::Precondition(_))), "{}", refused.id);
    }
    site.set_limit(40);
    let unused = reclaim("reclaim-2", "lend-3", 16, 0);
    site.apply(&unused);
    assert!(site.is_done(&unused) && !site.limit().contains("lend-3"));
    site.applies_once(&unused);

    let back = reclaim("reclaim-3", "lend-1", 8, 0);
    site.apply(&back);
    assert!(site.limit().starts_with("gres/gpu=16|"));
    assert!(matches!(site.effect(&back), Effect::Partial { .. }), "its job goes on");
    let seen = site.observe().loans.remove("lend-1").unwrap();
    assert_eq!((seen.gpus, seen.reclaiming_gpus, seen.jobs), (8, 8, names(&[&jobs[2]])));
    let stop = Change::Preempt { job: jobs[2].clone(), frees_gpus: 8 };
    site.apply(&action("preempt-1", 4, stop, vec![]));
    wait_for("what was lent", 60, || site.is_done(&back));
    site.applies_once(&back);
    assert_eq!((site.limit(), ends("lend-1"), site.observe().loans.len()), (own, 0, 0));
    assert_eq!(site.cluster.state(&jobs[2]), "PD");
}

#[test]
fn a_limit_that_was_lent_is_lowered_with_nobody_there() {
    let Some(mut site) = Site::start() else { return };
    site.share_train();
    let jobs = site.wants_more();
    site.apply(&lend("lend-1", 8, now_us() + 20_000_000, None));
    let longer = lend("lend-2", 4, now_us() + 60 * MINUTE_US, None);
    site.apply(&longer);
    site.cluster.wait_state(&jobs[2], &["R"]);
    // Nothing of ours runs from here on.
    wait_for("the limit", 120, || site.limit().starts_with("gres/gpu=20|"));
    wait_for("its job to stop", 60, || site.cluster.state(&jobs[2]) == "PD");
    assert_eq!([0, 1].map(|at| site.cluster.state(&jobs[at])), ["R", "R"]);
    assert!(site.is_done(&longer), "one that goes on stands");
    assert_eq!(site.observe().loans.keys().collect::<Vec<_>>(), ["lend-2"]);

    // A limit that a person set while it was lent stays, and what we wrote goes.
    let back = reclaim("reclaim-2", "lend-2", 4, 0);
    site.apply(&back);
    assert!(site.is_done(&back));
    site.apply(&lend("lend-3", 8, now_us() + 8_000_000, None));
    site.set_limit(12);
    wait_for("the end of the loan", 120, || site.limit() == "gres/gpu=12|night owls");
    assert!(site.observe().loans.is_empty());
    assert_eq!([0, 1].map(|at| site.cluster.state(&jobs[at])), ["R", "R"], "nobody is stopped for it");
}
