//! A morning computed by hand: hours 0 to 4, with jobs from before and jobs that have not ended.

use tidegate_sim::backtest::{Metric, backtest};
use tidegate_sim::{HOUR_US, MINUTE_US, Reports};

use super::*;
use crate::trace::scheduler;

/// 2026-01-05T00:00:00Z.
const FROM_US: i64 = 1_767_571_200_000_000;

fn at(minutes: i64) -> Option<i64> {
    Some(FROM_US + minutes * MINUTE_US)
}

/// An attempt: minutes of its wait and its run, and thousandths of a GPU.
fn stretch(
    job: &str,
    wait: (Option<i64>, Option<i64>),
    run: (Option<i64>, Option<i64>),
    gpus: i64,
) -> Attempt {
    Attempt {
        job_id: job.into(),
        team: Some("vision".into()),
        pool: Some("batch".into()),
        gpus_milli: Some(gpus),
        asked_gpus_milli: Some(gpus),
        submit_us: wait.0,
        queued_from_us: wait.0,
        queued_to_us: wait.1,
        from_us: run.0,
        to_us: run.1,
        as_of_us: at(300),
        ..Attempt::default()
    }
}

fn morning() -> History {
    let none = (None, None);
    let ends = |how: &str, s: Attempt| Attempt { final_state: Some(how.into()), ..s };
    let attempts = vec![
        // Ran before; half an hour of its hour and a half is left.
        stretch("ran", (at(-60), at(-30)), (at(-30), at(60)), 8_000),
        // Waited before; runs an hour.
        Attempt {
            priority: Some(7),
            time_limit_ms: Some(7_200_000),
            ..stretch("waited", (at(-10), at(60)), (at(60), at(120)), 4_000)
        },
        stretch("gave-up", (at(60), at(120)), none, 2_000),
        // Half a GPU for half an hour, preempted, and half an hour again.
        ends("PREEMPTED", stretch("preempted", (at(30), at(60)), (at(60), at(90)), 500)),
        Attempt { submit_us: at(30), ..stretch("preempted", (at(90), at(120)), (at(120), at(150)), 500) },
        stretch("open", (at(120), at(120)), (at(120), None), 8_000),
        stretch("waits", (at(200), None), none, 1_000),
        // One hour with 8 GPUs as requested, and one with 4.
        ends("RESIZED", stretch("resized", (at(0), at(0)), (at(0), at(60)), 8_000)),
        Attempt { asked_gpus_milli: Some(8_000), ..stretch("resized", none, (at(60), at(120)), 4_000) },
        stretch("no-gpu", (at(0), at(0)), (at(0), at(60)), 0),
    ];
    History {
        cluster: "c".into(),
        from_us: FROM_US,
        to_us: FROM_US + 4 * HOUR_US,
        attempts,
        ..History::default()
    }
}

#[test]
fn logged_jobs_are_taken_and_unknowns_drawn() {
    let site = Site::new(&morning(), &SiteOptions::default()).unwrap();
    let about = site.about();
    let of = |what: &str| about.job_rows.of(what);
    assert_eq!((of("used"), of("no GPUs")), (6, 1), "{about:?}");
    assert_eq!(of("left the queue before they started: how long they would run is unknown"), 1);
    assert_eq!((about.ran_before, about.waited_before, about.open), (1, 1, 2));
    // From 0 to 60: 8 + 8; from 60: 4 + 4 + 1 (half a GPU, 60 to 90); from 120: 8 + 1.
    assert_eq!(
        (about.recorded.most_gpus, about.nodes_from, about.train_nodes),
        (16, CapacitySource::Peak, 2)
    );
    // 8 + 4 (waited) + 8 + 4 (resized) + 1 (preempted) GPU-hours, and 8 for two hours of the open
    // one.
    assert_eq!(about.recorded.held_gpu_hours, 8.0 + 4.0 + 12.0 + 1.0 + 16.0);
    // Submitted and started within the period: preempted after 30 minutes, open and resized at
    // once, and the one without a GPU.
    assert_eq!((about.recorded.started, about.recorded.queue_hours), (4, Some(0.125)));

    let setting = site.setting(3);
    let entry: Vec<(i64, u32, i64)> =
        setting.jobs.iter().map(|j| (j.submit_us / MINUTE_US, j.gpus, j.work_us / MINUTE_US)).collect();
    // Running jobs come first, then waiting ones, then submissions. The open job ran 180 minutes by
    // the end of the log, longer than any other, so it runs as long again.
    assert_eq!(entry[..5], [(0, 8, 60), (0, 4, 60), (0, 8, 90), (30, 1, 60), (120, 8, 360)]);
    let drawn = |seed| site.setting(seed).jobs[5].work_us / MINUTE_US;
    // The waiting job gets the length of one whose whole run is known: 60, 60 or 120 minutes.
    let lengths: std::collections::BTreeSet<i64> = (0..20).map(drawn).collect();
    assert_eq!(lengths.into_iter().collect::<Vec<_>>(), [60, 120]);
    assert_eq!((setting.jobs[1].priority, setting.jobs[1].estimate_us), (7, 2 * HOUR_US));
    let elastic = setting.jobs[2].elastic.map(|e| (e.min_gpus, e.max_gpus));
    assert_eq!((elastic, setting.jobs[3].loan), (Some((4, 8)), true));
    assert!(
        setting.faults.is_empty()
            && setting.spec.epoch_us == FROM_US
            && setting.spec.pools[0].name == "batch"
    );
}

#[test]
fn another_policy_comes_to_something_else() {
    // 8 GPUs for 2 hours, then 16 that must wait for them, then 8 for an hour that would fit beside
    // the first.
    let job = |name: &str, submit: i64, hours: i64, gpus: i64| Attempt {
        time_limit_ms: Some(hours * 3_600_000),
        ..stretch(
            name,
            (at(submit), at(180 + submit)),
            (at(180 + submit), at(180 + submit + hours * 60)),
            gpus * 1_000,
        )
    };
    let attempts = vec![job("a", 0, 2, 8), job("b", 1, 1, 16), job("c", 2, 1, 8)];
    let history = History { attempts, ..morning() };
    let site = Site::new(&history, &SiteOptions { train: Some(2), ..SiteOptions::default() }).unwrap();
    let makers = ["static", "backfill"].map(|name| scheduler(name, Reports::All).unwrap());
    let makers: Vec<_> = makers.iter().map(|make| make.as_ref() as _).collect();
    let rows = backtest(&makers, 0..2, &|seed| site.setting(seed)).unwrap();
    let queued = |row: usize| Metric::QueueHours.value(&rows[row].runs[0]).unwrap();
    // First come, first served: 0, 2 h - 1 min and 3 h - 2 min. With backfill the last starts at
    // once. Starts and restarts take seconds.
    assert!((queued(0) - 4.95 / 3.0).abs() < 0.05, "{}", queued(0));
    assert!((queued(1) - (1.0 + 59.0 / 60.0) / 3.0).abs() < 0.05, "{}", queued(1));
}

#[test]
fn pools_that_serve_have_the_demand_that_was_held_and_waited_for_there() {
    let mut history = morning();
    let serving = |s: Attempt| Attempt { pool: Some("serve".into()), team: Some("chat".into()), ..s };
    history.attempts.push(serving(stretch("s1", (at(-100), at(-90)), (at(-90), None), 8_000)));
    // Waits for 20 minutes from 60 on, and runs until 100.
    history.attempts.push(serving(stretch("s2", (at(60), at(80)), (at(80), at(100)), 4_000)));
    let node = |name: &str, pool: &str, model: &str| Node {
        node: name.into(),
        pool: Some(pool.into()),
        gpu_model: Some(model.into()),
        gpus_milli: 8_000,
    };
    history.nodes = vec![
        node("n1", "all,batch", "A"),
        node("n2", "batch", "B"),
        node("n3", "serve,all", "A"),
        node("n4", "batch", "A"),
    ];
    history.quotas = vec![
        Quota { owner: "vision".into(), gpus_milli: 16_000 },
        Quota { owner: "chat".into(), gpus_milli: 8_000 },
    ];
    history.attempts[0].gpu_model = Some("A".into());
    history.attempts[1].gpu_model = Some("B".into());
    let wanted = SiteOptions { serves: vec!["serve".into()], ..SiteOptions::default() };
    let site = Site::new(&history, &wanted).unwrap();
    let about = site.about();
    assert_eq!((about.train_nodes, about.train_gpus, about.nodes_from), (3, 24, CapacitySource::Log));
    let service = &about.services[0];
    assert_eq!((service.gpus, service.peak_gpus, service.demand_from), (8, 12, DemandSource::Jobs));
    assert_eq!((about.quotas, about.exceeded_quotas), (1, 0));
    let setting = site.setting(0);
    let demand = &setting.services[0].demand_gpus;
    assert_eq!((demand.len(), demand[5], &demand[6..10], demand[10]), (24, 8, &[12, 12, 12, 12][..], 8));
    assert_eq!(setting.jobs.len(), 6, "the pool's own jobs are its demand");
    assert_eq!(
        (setting.jobs[0].model, setting.jobs[1].model, setting.jobs[2].model),
        (Some(0), Some(1), None)
    );

    assert_eq!((&setting.past_gpus[..], service.seen_hours), (&[Vec::new()][..], 0));

    // Two hours before: a mean of 4.5 GPUs; the hour after is missing; then 2 GPUs in another pool.
    let hour = |pool: &str, before: i64, gpus_milli| Hour {
        pool: pool.into(),
        at_us: FROM_US - before * HOUR_US,
        gpus_milli,
    };
    history.past = vec![hour("serve", 2, 4_500), hour("batch", 1, 2_000)];
    let seen = Site::new(&history, &wanted).unwrap();
    assert_eq!(seen.setting(0).past_gpus, [[5, 5, 5, 5, 5, 5, 0, 0, 0, 0, 0, 0]]);
    assert_eq!(seen.about().services[0].seen_hours, 2);

    // The same from samples: 40 minutes of 4 GPUs from 60 on, nothing before and after.
    history.attempts.retain(|a| a.pool.as_deref() != Some("serve"));
    history.samples = (0..4)
        .map(|i| Sample {
            pool: "serve".into(),
            at_us: FROM_US + (60 + 10 * i) * MINUTE_US,
            interval_ms: 600_000,
            gpus_milli: 4_000 + 1_000 * i,
        })
        .collect();
    let demand = Site::new(&history, &wanted).unwrap().setting(0).services[0].demand_gpus.clone();
    assert_eq!(demand[..12], [4, 4, 4, 4, 4, 4, 4, 5, 6, 7, 7, 7]);
    history.samples.clear();
    let refused = Site::new(&history, &wanted).unwrap_err().to_string();
    assert!(refused.contains("serve") && refused.contains("neither jobs nor samples"), "{refused}");
}

#[test]
fn missing_input_is_an_error() {
    let refused = |history: &History| Site::new(history, &SiteOptions::default()).unwrap_err().to_string();
    let empty = History { attempts: Vec::new(), ..morning() };
    assert!(refused(&empty).contains("no jobs in this period"), "{}", refused(&empty));
    let mut useless = morning();
    useless.attempts.retain(|a| a.job_id == "no-gpu" || a.job_id == "gave-up");
    assert!(refused(&useless).contains("1 no GPUs"), "{}", refused(&useless));
    // A quota that the team exceeded is none.
    let mut history = morning();
    history.quotas = vec![Quota { owner: "vision".into(), gpus_milli: 15_000 }];
    let site = Site::new(&history, &SiteOptions::default()).unwrap();
    assert_eq!((site.about().quotas, site.about().exceeded_quotas), (0, 1));
    assert_eq!(site.setting(0).spec.teams[0].quota_gpus, None);
}
