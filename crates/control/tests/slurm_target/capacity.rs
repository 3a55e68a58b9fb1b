//! Quotas and reservations.

use tidegate_autopilot::action::{Action, Adjustment, Change, Precondition};
use tidegate_autopilot::state::Writer;
use tidegate_autopilot::target::{Effect, TargetError};
use tidegate_testing::slurm::wait_for;

use crate::site::{MINUTE_US, Site, action, now_us};

fn quota(id: &str, from_gpus: u32, to_gpus: u32) -> Action {
    let (owner, pool) = ("research".to_owned(), "train".to_owned());
    let fact = Precondition::QuotaIs { owner: owner.clone(), pool: pool.clone(), gpus: from_gpus };
    let change = Change::AdjustReservation(Adjustment::Quota { owner, pool, from_gpus, to_gpus });
    action(id, 2, change, vec![fact])
}

fn reservation(id: &str, from_gpus: u32, to_gpus: u32, end_us: i64, facts: Vec<Precondition>) -> Action {
    let change = Change::AdjustReservation(Adjustment::Reservation {
        name: "night".into(),
        owner: "research".into(),
        pool: "train".into(),
        from_gpus,
        to_gpus,
        start_us: now_us(),
        end_us,
    });
    action(id, 2, change, facts)
}

#[test]
fn quotas_and_reservations_change_once_and_a_persons_edit_stands() {
    let Some(site) = Site::start() else { return };
    assert_eq!(site.observe().owners["research"].shares["train"].quota_gpus, 40, "no limit: the whole pool");
    let first = quota("adjust_reservation-1", 40, 16);
    site.apply(&first);
    assert!(site.is_done(&first));
    site.applies_once(&first);
    let limit = ["-nP", "show", "assoc", "account=research", "user=", "format=grptres"];
    assert_eq!(site.cluster.run("sacctmgr", &limit), "gres/gpu=16");
    let share = site.observe().owners["research"].shares["train"].clone();
    assert_eq!((share.quota_gpus, share.limit_gpus, share.demand_gpus), (16, Some(16), Some(0)));
    let stale = quota("adjust_reservation-2", 40, 24);
    assert!(matches!(site.try_apply(&stale), Err(TargetError::Precondition(_))));
    // It holds: of three nodes asked for two start.
    let jobs: Vec<String> = (0..3).map(|_| site.submit("research", &["--gres=gpu:8"])).collect();
    wait_for("two of three", 60, || jobs.iter().filter(|job| site.cluster.state(job) == "R").count() == 2);
    wait_for("the demand of all three", 30, || {
        site.observe().owners["research"].shares["train"].demand_gpus == Some(24)
    });
    let set = ["-i", "modify", "account", "name=research", "cluster=tidegate", "set", "GrpTRES=gres/gpu=24"];
    site.cluster.run("sacctmgr", &set);
    assert!(matches!(site.effect(&first), Effect::Overridden { found } if found.contains("24")));
    assert!(site.try_apply(&first).unwrap().already);
    assert_eq!(site.cluster.run("sacctmgr", &limit), "gres/gpu=24", "a person's stays");
    for job in &jobs {
        site.cluster.run("scancel", &[job]);
    }
    reservations(&site);
    let (pool, from_gpus, to_gpus) = ("train".to_owned(), 0, 8);
    let buy = Change::AdjustReservation(Adjustment::Commitment { pool, from_gpus, to_gpus, term_days: 365 });
    let refused = site.try_apply(&action("adjust_reservation-9", 2, buy, vec![]));
    assert!(matches!(refused, Err(TargetError::Unsupported { .. })), "{refused:?}");
}

fn reservations(site: &Site) {
    let end_us = now_us() + 60 * MINUTE_US;
    let is = |gpus| vec![Precondition::ReservationIs { name: "night".into(), gpus }];
    let made = reservation(
        "adjust_reservation-3",
        0,
        16,
        end_us,
        vec![Precondition::NoReservation { name: "night".into() }],
    );
    wait_for("room for it", 60, || site.observe().jobs.is_empty());
    site.apply(&made);
    assert!(site.is_done(&made));
    site.applies_once(&made);
    assert_eq!(site.show("reservation", "night")["NodeCnt"], "2");
    assert_eq!(site.observe().reservations["night"].writer, Writer::Autopilot { generation: 2 });
    // Of five nodes two are reserved for an hour. Others get three; its owner's job need not name
    // it, and may run for longer.
    let hold = |account: &str| site.submit(account, &["--gres=gpu:8", "--time=180", "--partition=train"]);
    let others: Vec<String> = (0..4).map(|_| hold("serving")).collect();
    wait_for("three of four", 60, || others.iter().filter(|job| site.cluster.state(job) == "R").count() == 3);
    let own = hold("research");
    site.cluster.wait_state(&own, &["R"]);
    assert_eq!(others.iter().filter(|job| site.cluster.state(job) == "PD").count(), 1);
    others.iter().chain([&own]).for_each(|job| drop(site.cluster.run("scancel", &[job])));
    wait_for("the nodes", 60, || site.observe().jobs.is_empty());
    let odd = site.try_apply(&reservation("adjust_reservation-4", 16, 20, end_us, is(16))).unwrap_err();
    assert!(odd.to_string().contains("whole nodes"), "{odd}");
    let later_us = end_us + 10 * MINUTE_US;
    let grown = reservation("adjust_reservation-5", 16, 24, later_us, is(16));
    site.apply(&grown);
    let seen = site.observe().reservations.remove("night").unwrap();
    assert_eq!((seen.gpus, seen.end_us), (24, Some(later_us / 1_000_000 * 1_000_000)));
    assert!(matches!(seen.writer, Writer::Autopilot { .. }) && site.is_done(&grown));
    site.applies_once(&grown);

    site.cluster.run("scontrol", &["update", "ReservationName=night", "NodeCnt=1"]);
    assert!(matches!(site.effect(&grown), Effect::Overridden { .. }));
    assert_eq!(site.observe().reservations["night"].writer, Writer::Other);
    let given_up = reservation("adjust_reservation-6", 8, 0, later_us, is(8));
    assert!(matches!(site.try_apply(&given_up), Err(TargetError::Precondition(_))), "it is a person's now");
    site.cluster.run("scontrol", &["update", "ReservationName=night", "NodeCnt=3"]);
    let given_up = reservation("adjust_reservation-7", 24, 0, later_us, is(24));
    site.apply(&given_up);
    assert!(site.is_done(&given_up) && site.observe().reservations.len() == 1, "the standing one is left");
    site.applies_once(&given_up);
    let standing = &site.observe().reservations["serving"];
    assert_eq!((standing.writer, standing.gpus, standing.owner.as_str()), (Writer::Other, 12, "serving"));
}
