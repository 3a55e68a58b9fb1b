//! Small files with known rows, read and simulated; every number is computed by hand.

use std::{fs::File, path::Path, sync::Arc};

use arrow::{
    array::{ArrayRef, Float64Array, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray},
    datatypes::{Field, Schema},
};
use parquet::arrow::ArrowWriter;
use tidegate_sim::{
    DAY_US, HOUR_US, MINUTE_US, Reports, SECOND_US,
    backtest::{Metric, backtest},
    scenario::Arrival,
};

use super::*;

fn write(folder: &Path, name: &str, columns: Vec<(&str, ArrayRef)>) {
    let fields: Vec<Field> =
        columns.iter().map(|(name, array)| Field::new(*name, array.data_type().clone(), true)).collect();
    let arrays = columns.into_iter().map(|(_, array)| array).collect();
    let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), arrays).unwrap();
    let file = File::create(folder.join(format!("{name}.parquet"))).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

fn whole(values: &[Option<i64>]) -> ArrayRef {
    Arc::new(Int64Array::from(values.to_vec()))
}

fn all_whole(values: impl IntoIterator<Item = i64>) -> ArrayRef {
    Arc::new(Int64Array::from_iter_values(values))
}

fn floats(values: &[Option<f64>]) -> ArrayRef {
    Arc::new(Float64Array::from(values.to_vec()))
}

fn texts(values: &[&str]) -> ArrayRef {
    Arc::new(StringArray::from(values.to_vec()))
}

fn times(seconds: &[Option<i64>]) -> ArrayRef {
    let micros = seconds.iter().map(|s| s.map(|s| s * SECOND_US));
    Arc::new(TimestampMicrosecondArray::from(micros.collect::<Vec<_>>()))
}

fn arrival(submit_s: i64, work_s: i64, gpus: u32, team: &str) -> Arrival {
    let (submit_us, work_us) = (submit_s * SECOND_US, work_s * SECOND_US);
    Arrival { submit_us, work_us, gpus, team: team.into(), ..Arrival::default() }
}

#[test]
fn job_logs_are_read_and_bad_rows_counted() {
    let folder = tempfile::tempdir().unwrap();
    write(
        folder.path(),
        "ms_itp_jobs",
        vec![
            ("cluster", texts(&["b", "a", "a", "a", "a", "a"])),
            ("submission_time", whole(&[Some(60), Some(0), None, Some(5), Some(6), Some(56 * 86_400)])),
            ("duration", whole(&[Some(3_600), Some(120), Some(9), Some(0), Some(9), Some(9)])),
            ("num_gpu", whole(&[Some(8), Some(1), Some(1), Some(1), Some(-2), Some(1)])),
        ],
    );
    let itp = Jobs::Itp.read(folder.path()).unwrap();
    assert_eq!(itp.arrivals, [arrival(0, 120, 1, "a"), arrival(60, 3_600, 8, "b")]);
    let of = |what: &str| itp.rows.of(what);
    assert_eq!((of("used"), of("no time of submission"), of("no run time above 0")), (2, 1, 1));
    assert_eq!((of("no whole number of GPUs"), of("submitted outside the days that are used")), (1, 1));
    // 8 GPUs for an hour and one GPU for 2 minutes, over 56 days.
    assert!((itp.load_gpus() - (8.0 + 1.0 / 30.0) / (56.0 * 24.0)).abs() < 1e-9);

    // 2017-10-01 00:00:07; the row before is of September.
    write(
        folder.path(),
        "philly_jobs",
        vec![
            ("timestamp", times(&[Some(1_506_815_999), Some(1_506_816_007), None])),
            ("duration", floats(&[Some(10.0), Some(90.5), Some(10.0)])),
            ("num_gpus", whole(&[Some(1), Some(4), Some(1)])),
            ("cluster", texts(&["v", "v", "v"])),
        ],
    );
    let philly = Jobs::Philly.read(folder.path()).unwrap();
    assert_eq!(philly.arrivals, [Arrival { work_us: 90_500_000, ..arrival(7, 0, 4, "v") }]);

    // Two attempts of one job, of 30 and 40 s, and a job whose only attempt has no end.
    write(
        folder.path(),
        "philly_multigpu_attempts",
        vec![
            ("id", texts(&["x", "y", "x"])),
            ("num_gpus", whole(&[Some(8), Some(4), Some(8)])),
            ("submitted_time", times(&[Some(1_000), Some(1_100), Some(1_000)])),
            ("start_time", times(&[Some(1_010), Some(1_200), Some(1_100)])),
            ("end_time", times(&[Some(1_040), None, Some(1_140)])),
            ("cluster", texts(&["v", "w", "v"])),
        ],
    );
    let attempts = Jobs::PhillyAttempts.read(folder.path()).unwrap();
    assert_eq!(attempts.arrivals, [arrival(0, 70, 8, "v")]);
    assert_eq!(attempts.rows.of("no run time above 0"), 1);
}

#[test]
fn pods_come_with_the_nodes_they_ran_on() {
    let folder = tempfile::tempdir().unwrap();
    let day = 112 * 86_400;
    write(
        folder.path(),
        "alibaba_openb_pods",
        vec![
            ("num_gpu", whole(&[Some(1), Some(0), Some(2)])),
            ("qos", texts(&["LS", "LS", "BE"])),
            ("creation_time", whole(&[Some(day + 5), Some(day + 5), Some(day)])),
            ("deletion_time", whole(&[Some(day + 100), Some(day + 9), Some(day + 50)])),
            ("scheduled_time", floats(&[Some((day + 10) as f64), Some(day as f64), None])),
        ],
    );
    let missing = Jobs::Openb.read(folder.path()).unwrap_err().to_string();
    assert!(missing.contains("alibaba_openb_nodes.parquet"), "{missing}");
    write(
        folder.path(),
        "alibaba_openb_nodes",
        vec![("gpu", whole(&[Some(8), Some(0), Some(2), Some(2), Some(4)]))],
    );
    let openb = Jobs::Openb.read(folder.path()).unwrap();
    assert_eq!(openb.arrivals, [arrival(5, 90, 1, "LS")]);
    assert_eq!(openb.node_gpus, [8, 2, 2, 4]);
    assert_eq!(openb.rows.of("no run time above 0"), 1, "never scheduled");
    // 1 node of 8 GPUs is needed, half of the 16 listed: every second of the four nodes.
    let shape = Shape { train: Some(1), days: 1, ..Shape::default() };
    let pairing = Pairing::new(openb, None, Vec::new(), shape).unwrap();
    let about = pairing.about();
    assert_eq!((about.train_nodes, about.train_gpus), (2, 10));
}

#[test]
fn a_missing_file_and_one_without_jobs_are_named() {
    let folder = tempfile::tempdir().unwrap();
    for (_, jobs) in Jobs::NAMED {
        let error = jobs.read(folder.path()).unwrap_err().to_string();
        assert!(error.contains(".parquet"), "{error}");
    }
    for (_, demand) in Demand::NAMED {
        assert!(demand.read(folder.path()).unwrap_err().to_string().contains(".parquet"));
    }
    assert!(curves(folder.path(), 8).unwrap_err().to_string().contains("sia_scaling_profiles"));
    let none = whole(&[None]);
    write(
        folder.path(),
        "ms_itp_jobs",
        vec![
            ("cluster", texts(&["a"])),
            ("submission_time", none.clone()),
            ("duration", none.clone()),
            ("num_gpu", none),
        ],
    );
    let error = Jobs::Itp.read(folder.path()).unwrap_err().to_string();
    assert!(error.contains("ms_itp_jobs") && error.contains("1 no time of submission"), "{error}");
}

#[test]
fn demand_is_a_share_of_its_greatest() {
    let folder = tempfile::tempdir().unwrap();
    // Model a: 10, 20, 40 in three steps; b: 6, 3, 0; c is in one step only. a and b count equally:
    // a quarter and all, a half and a half, all and nothing.
    write(
        folder.path(),
        "servegen_load_10min",
        vec![
            ("model", texts(&["a", "a", "a", "b", "b", "b", "c", "a"])),
            ("timestamp_s", all_whole([0, 600, 1_200, 0, 600, 1_200, 0, -5])),
            ("rate_rps", floats(&[10.0, 20.0, 40.0, 6.0, 3.0, 0.0, 9.0, 1.0].map(Some))),
        ],
    );
    let servegen = Demand::Servegen.read(folder.path()).unwrap();
    assert_eq!(servegen.shares, [1.0, 0.8, 0.8]);
    assert_eq!(servegen.rows.of("used"), 6);
    assert_eq!(servegen.rows.of("of a model that covers less than half of the time"), 1);
    assert_eq!(servegen.rows.of("no time within 14 days or no rate"), 1);
    assert_eq!(servegen.window(0, 30 * MINUTE_US, 10), [10, 8, 8]);

    // Two GPUs from before the trace to its end, one more from 700 to 1,300 s; the CPU instance
    // does not count.
    write(
        folder.path(),
        "alibaba_dlrm_instances",
        vec![
            ("role", texts(&["HN", "HN", "HN", "CN", "HN"])),
            ("gpu_request", all_whole([1, 1, 1, 0, 1])),
            ("creation_time", floats(&[None, None, Some(700.0), None, Some(50.0)])),
            ("deletion_time", floats(&[None, None, Some(1_300.0), None, Some(40.0)])),
        ],
    );
    let dlrm = Demand::Dlrm.read(folder.path()).unwrap();
    assert_eq!(dlrm.window(0, 40 * MINUTE_US, 3), [2, 3, 3, 2]);
    assert_eq!((dlrm.rows.of("used"), dlrm.rows.of("instances without a GPU")), (3, 1));
    assert_eq!(dlrm.length_us(), 31 * DAY_US);
}

#[test]
fn what_forecasts_have_seen_is_what_came_before() {
    let jobs = JobTrace::of("no jobs", Vec::new(), 9 * DAY_US, RowCounts::default());
    let steps = 9 * 144;
    let shares = (0..steps).map(|step| f64::from(step) / f64::from(steps - 1)).collect();
    let demand = DemandTrace { file: "counts", shares, step_us: 10 * MINUTE_US, rows: RowCounts::default() };
    let shape = |days, history_days| Shape {
        days,
        history_days,
        train: Some(1),
        serve: Some(1_000),
        peak_ppm: 1_000_000,
        ..Shape::default()
    };
    let pairing = |shape| Pairing::new(jobs.clone(), Some(demand.clone()), Vec::new(), shape);
    let made = pairing(shape(2, 3)).unwrap();
    for seed in 0..10 {
        let setting = made.setting(seed);
        let (past, demand) = (&setting.past_gpus[0], &setting.services[0].demand_gpus);
        assert_eq!((past.len(), demand.len()), (3 * 144, 2 * 144));
        // It grows by 8000 / 1295 GPUs a step, and never wraps around.
        assert!(past.iter().chain(demand).is_sorted_by(|a, b| (6..=7).contains(&(**b - **a))), "seed {seed}");
    }
    let refused = pairing(shape(7, 3)).unwrap_err().to_string();
    assert!(refused.contains("counts has 9.0 days of demand, but 3 days of history before 7"), "{refused}");
    assert!(pairing(shape(7, -1)).is_err());
}

/// Minutes of one virtual cluster: GPUs and jobs that run and wait, large ones only.
fn level(running: u32, waiting: u32, jobs_running: u32, jobs_waiting: u32) -> helios::Level {
    helios::Level { running, waiting, jobs_running, jobs_waiting }
}

#[test]
fn jobs_explain_what_ran_and_waited() {
    let minutes = [
        level(8, 0, 1, 0),  // A (8) is there.
        level(24, 8, 2, 1), // B (16) starts at once, C (8) waits: 24 asked for, 2 jobs.
        level(24, 8, 2, 1),
        level(16, 8, 2, 1), // 8 end: exactly A. And C starts in the next minute,
        level(24, 0, 2, 0),
        level(24, 16, 2, 1), // D (16) waits
        level(8, 0, 1, 0),   // and gives up; B ends.
    ];
    let at = minutes.iter().enumerate().map(|(at, level)| (at as i64, *level));
    let (mut jobs, gave_up) = helios::explain(at, true);
    jobs.sort_by_key(|j| (j.submit_us, j.gpus));
    let minute = |submit: i64, work: i64, gpus| arrival(submit * 60, work * 60, gpus, "");
    assert_eq!(jobs, [minute(0, 3, 8), minute(1, 3, 8), minute(1, 5, 16)]);
    assert_eq!(gave_up, 16);
    let work: i64 = jobs.iter().map(|j| i64::from(j.gpus) * j.work_us / MINUTE_US).sum();
    assert_eq!(work, minutes.iter().map(|l| i64::from(l.running)).sum::<i64>());
}

/// One node for jobs and one for a service; two jobs that need a whole node each, and a demand that
/// goes 7, 6, 6 GPUs.
fn small_pairing(folder: &Path) -> Pairing {
    write(
        folder,
        "ms_itp_jobs",
        vec![
            ("cluster", texts(&["a", "b"])),
            ("submission_time", all_whole([0, 3_600])),
            ("duration", all_whole([36_000, 7_200])),
            ("num_gpu", all_whole([8, 8])),
        ],
    );
    write(
        folder,
        "servegen_load_10min",
        vec![
            ("model", texts(&["a", "a", "a"])),
            ("timestamp_s", all_whole([0, 600, 1_200])),
            ("rate_rps", floats(&[Some(50.0), Some(40.0), Some(40.0)])),
        ],
    );
    let (jobs, demand) = (Jobs::Itp.read(folder).unwrap(), Demand::Servegen.read(folder).unwrap());
    let shape = Shape { days: 56, train: Some(1), price_micros: Some(2_000_000), ..Shape::default() };
    Pairing::new(jobs, Some(demand), Vec::new(), shape).unwrap()
}

#[test]
fn a_backtest_of_two_jobs_by_hand() {
    let folder = tempfile::tempdir().unwrap();
    let pairing = small_pairing(folder.path());
    let quiet = (0..50).find(|seed| pairing.setting(*seed).faults.is_empty()).unwrap();
    let make = scheduler("static", Reports::All).unwrap();
    let rows = backtest(&[&*make], quiet..quiet + 1, &|seed| pairing.setting(seed)).unwrap();
    let of = |metric: Metric| rows[0].values[metric as usize].unwrap().value;
    // 8 GPUs for 10 hours and for 2; the service gets (7 + 6 + 6) / 3 GPUs for 56 days without
    // shortage.
    let (useful, answered, paid) = (96.0, 19.0 / 3.0 * 1_344.0, 16.0 * 1_344.0);
    assert!((of(Metric::UsefulGpuHours) - useful).abs() < 1e-6);
    assert_eq!((of(Metric::UnmetMinutes), of(Metric::LostGpuHours), of(Metric::Done)), (0.0, 0.0, 1.0));
    assert!((of(Metric::WastedMoney) - 2.0 * (paid - useful - answered)).abs() < 1e-3);
    assert!((of(Metric::MoneyPerUsefulGpuHour) - 2.0 * paid / (useful + answered)).abs() < 1e-6);
    // The second job waits 9 hours, and what the first takes beyond its 10: it starts in 35 s, and
    // pauses at most 48 times for 20 s.
    let beyond_h = of(Metric::QueueHours) * 2.0 - 9.0;
    assert!((35.0 / 3_600.0 - 1e-6..995.0 / 3_600.0).contains(&beyond_h), "{beyond_h}");
    assert!((of(Metric::Usage) - of(Metric::Allocation) - answered / paid).abs() < 1e-9);
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_one_others() {
    let folder = tempfile::tempdir().unwrap();
    let report = |seeds: std::ops::Range<u64>| {
        let pairing = small_pairing(folder.path());
        let makers = ["static", "lyra", "clairvoyant"].map(|name| scheduler(name, Reports::All).unwrap());
        let makers: Vec<&dyn Fn(&_) -> _> = makers.iter().map(|make| &**make as _).collect();
        let rows = backtest(&makers, seeds, &|seed| pairing.setting(seed)).unwrap();
        serde_json::to_string(&(pairing.about(), rows)).unwrap()
    };
    assert_eq!(report(0..2), report(0..2));
    assert_ne!(report(0..2), report(2..4));
}

#[test]
fn a_window_begins_with_what_still_runs() {
    let folder = tempfile::tempdir().unwrap();
    // One job that runs for all of the 56 days, and a job of one hour on each day at 01:00.
    let days = 0..56;
    let submits = std::iter::once(0).chain(days.clone().map(|day| day * 86_400 + 3_600));
    write(
        folder.path(),
        "ms_itp_jobs",
        vec![
            ("cluster", texts(&["a"; 57])),
            ("submission_time", all_whole(submits)),
            ("duration", all_whole(std::iter::once(56 * 86_400).chain(days.map(|_| 3_600)))),
            ("num_gpu", all_whole([2; 57])),
        ],
    );
    let jobs = Jobs::Itp.read(folder.path()).unwrap();
    let shape = Shape { days: 2, train: Some(1), serve: Some(1), ..Shape::default() };
    let pairing = Pairing::new(jobs, Some(DemandTrace::made_up()), Vec::new(), shape).unwrap();
    for seed in 0..5 {
        let setting = pairing.setting(seed);
        let submits: Vec<i64> = setting.jobs.iter().map(|j| j.submit_us / HOUR_US).collect();
        assert_eq!(submits, [0, 1, 25], "seed {seed}");
        let left_days = setting.jobs[0].work_us / DAY_US;
        assert!((2..=56).contains(&left_days), "{left_days}");
        assert_eq!(setting.services[0].demand_gpus.len(), 2 * 288);
    }
    let too_long = Shape { days: 57, ..shape };
    let jobs = Jobs::Itp.read(folder.path()).unwrap();
    let error = Pairing::new(jobs, None, Vec::new(), too_long).unwrap_err().to_string();
    assert!(error.contains("ask for 1 to 56 days"), "{error}");
}

#[test]
fn idle_quotas_as_recorded_by_hand() {
    let folder = tempfile::tempdir().unwrap();
    // v has 16 GPUs, w 8. Minute 0: v runs 8 and 8 wait, 16 are idle. Minute 1: 24 wait, 16 idle.
    // Minute 2 is an outage. Minute 1439: nothing waits. So 32 GPU-minutes wait, 8 + 16 of them
    // beside idle quotas.
    let (v_waits, w_waits) = ([8, 24, 0, 0], [0; 4]);
    let (v_runs, w_runs) = ([8, 8, 0, 8], [0; 4]);
    let minutes = [0, 1, 2, 1_439];
    let twice = |v: [i64; 4], w: [i64; 4]| all_whole(v.into_iter().chain(w));
    let jobs = |gpus: [i64; 4]| gpus.map(|gpus| i64::from(gpus > 0));
    write(
        folder.path(),
        "helios_earth_vc_1min",
        vec![
            ("time", times(&[minutes, minutes].concat().iter().map(|m| Some(m * 60)).collect::<Vec<_>>())),
            ("vc", texts(&["v", "v", "v", "v", "w", "w", "w", "w"])),
            ("total_gpu_num", twice([16; 4], [8; 4])),
            ("running_gpu_num_noless_8", twice(v_runs, w_runs)),
            ("pending_gpu_num_noless_8", twice(v_waits, w_waits)),
            ("running_job_num_noless_8", twice(jobs(v_runs), jobs(w_runs))),
            ("pending_job_num_noless_8", twice(jobs(v_waits), jobs(w_waits))),
            ("running_gpu_num_less_8", twice([0; 4], [0; 4])),
            ("pending_gpu_num_less_8", twice([0; 4], [0; 4])),
            ("running_gpujob_num", twice(jobs(v_runs), jobs(w_runs))),
            ("pending_gpujob_num", twice(jobs(v_waits), jobs(w_waits))),
        ],
    );
    let trace = Jobs::Helios.read(folder.path()).unwrap();
    assert_eq!(trace.arrivals, [arrival(0, 86_400, 8, "v")]);
    assert_eq!(trace.rows.of("minutes of an outage, in which nothing ran anywhere"), 2);
    assert_eq!(trace.rows.of("GPUs asked for and given up before a start"), 24);
    let shape = Shape { days: 1, ..Shape::default() };
    let report = lend_quotas(folder.path(), Jobs::Helios, shape, 0..1, 10 * MINUTE_US).unwrap();
    assert_eq!(report.about.train_gpus, 24);
    assert!((report.recorded.waited_gpu_hours - 32.0 / 60.0).abs() < 1e-9);
    assert!((report.recorded.servable_gpu_hours - 24.0 / 60.0).abs() < 1e-9);
    assert_eq!(report.served_share, None);
}
