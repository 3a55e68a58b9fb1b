//! Slurm accounting output: its formats, and whole generated files.

use std::collections::{BTreeSet, HashMap};

use crate::support::{Imported, gpu_ms, run, text};
use tidegate_events::v1::{JobEvent, JobEventKind};
use tidegate_import::generate::{Generated, SacctFile, sacct};
use tidegate_import::{ImportError, ImportOptions, Mapping, import};

const HEADER: &str =
    "JobID|Account|User|Submit|Eligible|Start|End|State|ExitCode|ReqTRES|AllocTRES|NodeList|Timelimit|Reason";

fn mapping() -> Mapping {
    Mapping::load("sacct").unwrap()
}

/// Events of rows, none of which may be rejected.
fn events(rows: &[&str]) -> Vec<JobEvent> {
    let content = format!("{HEADER}\n{}\n", rows.join("\n"));
    let (log, summary) = run(text("sacct.txt", content), &mapping()).unwrap();
    assert_eq!(summary.rejected(), 0, "{:?}", log.dead_letters());
    log.jobs()
}

fn time_ms(job: &JobEvent) -> i64 {
    job.envelope.as_ref().unwrap().event_time_ms
}

/// A completed job of 4 GPUs from 10:00 to 11:00 with the given id.
fn completed(id: &str) -> String {
    format!(
        "{id}|teamA|ann|2024-03-01T09:00:00|2024-03-01T09:00:00|2024-03-01T10:00:00|2024-03-01T11:00:00|COMPLETED|0:0|\
         cpu=8,gres/gpu=4|billing=8,cpu=8,gres/gpu:a100=4,gres/gpu=4,mem=32G,node=2|gpu[07-08]|1-02:00:00|None"
    )
}

#[test]
fn a_completed_job_is_submitted_started_and_ended() {
    let jobs = events(&[&completed("77")]);
    let kinds: Vec<_> = jobs.iter().map(JobEvent::kind).collect();
    assert_eq!(kinds, [JobEventKind::Submitted, JobEventKind::Started, JobEventKind::Ended]);
    let [submitted, started, ended] = &jobs[..] else { panic!("three events") };
    assert_eq!(submitted.gpus_milli, Some(4000));
    assert_eq!(submitted.time_limit_ms, Some(26 * 3_600_000));
    assert_eq!(submitted.attempt_id, None);
    assert_eq!((started.team.as_deref(), started.user_name.as_deref()), (Some("teamA"), Some("ann")));
    assert_eq!(started.nodes.as_deref(), Some("gpu07,gpu08"));
    assert_eq!(started.node_count, Some(2));
    assert_eq!(started.gpu_model.as_deref(), Some("a100"));
    assert_eq!(started.attempt_id, Some(time_ms(started)));
    assert_eq!(ended.attempt_id, started.attempt_id);
    assert_eq!(ended.final_state.as_deref(), Some("COMPLETED"));
    assert_eq!((ended.exit_code, ended.exit_signal), (Some(0), None));
    assert_eq!(gpu_ms(&jobs), 4 * 3_600_000);
}

#[test]
fn job_ids_name_arrays_tasks_and_steps() {
    let task = events(&[&completed("123_4")]);
    assert_eq!(
        (task[0].job_id.as_str(), task[0].array_job_id.as_deref(), task[0].array_task_id),
        ("123_4", Some("123"), Some(4))
    );
    assert_eq!(events(&[&completed("123+1")])[0].job_id, "123+1");
    for (id, step) in [("123.batch", "batch"), ("123.extern", "extern"), ("123.0", "0"), ("123_4.12", "12")] {
        let jobs = events(&[&completed(id)]);
        assert_eq!(
            jobs.iter().map(JobEvent::kind).collect::<Vec<_>>(),
            [JobEventKind::Started, JobEventKind::Ended]
        );
        assert!(
            jobs.iter().all(|job| job.step_id.as_deref() == Some(step) && job.gpus_milli.is_none()),
            "{jobs:?}"
        );
    }
}

#[test]
fn a_pending_array_stands_for_all_its_tasks() {
    let pending = "9_[1-3,8-12:4%2]|teamA|ann|2024-03-01T09:00:00|2024-03-01T09:30:00|Unknown|Unknown|PENDING|0:0|gres/gpu=2||\
                   None assigned|Partition_Limit|Priority";
    let jobs = events(&[pending]);
    let submitted: Vec<_> = jobs.iter().filter(|job| job.kind() == JobEventKind::Submitted).collect();
    let ids: BTreeSet<_> = submitted.iter().map(|job| job.job_id.as_str()).collect();
    assert_eq!(ids, BTreeSet::from(["9_1", "9_2", "9_3", "9_8", "9_12"]));
    assert!(submitted.iter().all(|job| job.gpus_milli == Some(2000) && job.reason.is_none()));
    assert_eq!(jobs.iter().filter(|job| job.kind() == JobEventKind::Eligible).count(), 5);
    let waiting: Vec<_> = jobs.iter().filter(|job| job.kind() == JobEventKind::Waiting).collect();
    assert_eq!(waiting.iter().map(|job| job.job_id.as_str()).collect::<BTreeSet<_>>(), ids);
    assert!(waiting.iter().all(|job| job.reason.as_deref() == Some("Priority")));
    assert_eq!(jobs.len(), 15);
}

/// Slurm took it back because another component of the job could not start.
#[test]
fn a_pending_record_with_an_end_is_an_attempt() {
    let undone = "9+0|teamA|ann|2024-03-01T09:00:00|2024-03-01T09:00:00|2024-03-01T10:00:00|2024-03-01T10:00:01|PENDING|0:0|\
                  gres/gpu=8|cpu=1,gres/gpu=8,node=1|n1|1-00:00:00|Resources";
    let jobs = events(&[undone]);
    let kinds: Vec<_> =
        jobs.iter().map(JobEvent::kind).filter(|kind| *kind != JobEventKind::Waiting).collect();
    assert_eq!(kinds, [JobEventKind::Submitted, JobEventKind::Started, JobEventKind::Ended]);
    let ended = jobs.last().unwrap();
    assert_eq!((ended.final_state.as_deref(), gpu_ms(&jobs)), (Some("REQUEUED"), 8 * 1000));
}

/// Minutes after 09:00, reason and priority of the WAITING events of a job that was submitted at
/// 09:00.
fn waits(
    eligible: &str,
    start: &str,
    end: &str,
    state: &str,
    reason: &str,
) -> Vec<(i64, Option<String>, Option<i64>)> {
    let day = |time: &str| if time.contains(':') { format!("2024-03-01T{time}:00") } else { time.to_owned() };
    let (eligible, start, end) = (day(eligible), day(start), day(end));
    let row = format!(
        "7|t|u|2024-03-01T09:00:00|{eligible}|{start}|{end}|{state}|0:0|gres/gpu=1|gres/gpu=1|n1|60|{reason}|4711"
    );
    let (log, summary) = run(text("sacct.txt", format!("{HEADER}|Priority\n{row}\n")), &mapping()).unwrap();
    assert_eq!(summary.rejected(), 0, "{:?}", log.dead_letters());
    let jobs = log.jobs();
    let submitted = jobs.iter().find(|job| job.kind() == JobEventKind::Submitted).unwrap();
    // Otherwise exports from before and after the start would differ.
    assert_eq!((&submitted.reason, submitted.priority), (&None, None));
    let waiting = jobs.iter().filter(|job| job.kind() == JobEventKind::Waiting);
    let minutes = |job: &JobEvent| (time_ms(job) - time_ms(submitted)) / 60_000;
    waiting.map(|job| (minutes(job), job.reason.clone(), job.priority)).collect()
}

#[test]
fn a_jobs_reason_covers_its_wait() {
    let waiting = |minute, reason: &str| (minute, Some(reason.to_owned()), Some(4711));
    let limit = "AssocGrpGRES";
    assert_eq!(waits("09:00", "10:00", "11:00", "COMPLETED", limit), [waiting(0, limit)]);
    assert_eq!(waits("09:20", "10:00", "11:00", "COMPLETED", limit), [waiting(20, limit)]);
    assert_eq!(waits("09:20", "Unknown", "Unknown", "PENDING", limit), [waiting(20, limit)]);
    // Cancelled before it was eligible: it waited for that the whole time.
    assert_eq!(waits("Unknown", "Unknown", "09:30", "CANCELLED", "JobHeldUser"), [waiting(0, "JobHeldUser")]);
    // A reason that keeps a job from being eligible holds until it is; the reason after that is
    // unknown.
    let then_nothing = (20, None, Some(4711));
    assert_eq!(
        waits("09:20", "10:00", "11:00", "COMPLETED", "Dependency"),
        [waiting(0, "Dependency"), then_nothing]
    );
    // None: it waited for priority or resources, if at all.
    assert_eq!(waits("09:00", "10:00", "11:00", "COMPLETED", "None"), [(0, None, Some(4711))]);
    assert_eq!(waits("09:00", "09:00", "11:00", "COMPLETED", limit), []);
}

#[test]
fn states_are_canonical() {
    let cases = [
        ("CANCELLED by 1001", "CANCELLED", Some("1001")),
        ("CANCELLED", "CANCELLED", None),
        ("NODE_FAIL", "NODE_FAIL", None),
        ("BOOT_FAIL", "NODE_FAIL", None),
        ("DEADLINE", "TIMEOUT", None),
        ("OUT_OF_MEMORY", "OUT_OF_MEMORY", None),
        ("PREEMPTED", "PREEMPTED", None),
        ("REQUEUED", "REQUEUED", None),
        ("RESIZING", "RESIZED", None),
    ];
    for (name, canonical, by) in cases {
        let jobs = events(&[&completed("1").replace("COMPLETED|0:0", &format!("{name}|1:9"))]);
        let ended = jobs.last().unwrap();
        assert_eq!(
            (ended.final_state.as_deref(), ended.cancelled_by.as_deref()),
            (Some(canonical), by),
            "{name}"
        );
        assert_eq!((ended.exit_code, ended.exit_signal), (Some(1), Some(9)));
    }
    for name in ["RUNNING", "COMPLETING"] {
        assert_eq!(events(&[&completed("1").replace("COMPLETED", name)]).len(), 2, "{name}");
    }
    let times = "2024-03-01T10:00:00|2024-03-01T11:00:00|COMPLETED";
    assert_eq!(events(&[&completed("1").replace(times, "Unknown|Unknown|PENDING")]).len(), 1);
}

#[test]
fn a_job_cancelled_while_it_waited_never_started() {
    for start in ["Unknown", "None", "2024-03-01T11:00:00"] {
        let row = format!(
            "5|t|u|2024-03-01T09:00:00|Unknown|{start}|2024-03-01T11:00:00|CANCELLED by 7|0:0|gres/gpu=1||None assigned|UNLIMITED|None"
        );
        let jobs = events(&[&row]);
        assert_eq!(jobs.len(), 2, "{start}");
        assert_eq!((jobs[1].kind(), jobs[1].attempt_id), (JobEventKind::Ended, None));
        assert_eq!(jobs[0].time_limit_ms, None);
    }
}

#[test]
fn requeued_records_are_attempts_of_one_job() {
    let first = completed("8").replace("COMPLETED", "REQUEUED");
    let second = completed("8")
        .replace("T09:", "T11:")
        .replace("T10:00", "T12:00")
        .replace("T11:00:00|COMP", "T12:30:00|COMP");
    let jobs = events(&[&first, &second]);
    let attempts: Vec<_> = jobs.iter().filter(|job| job.kind() == JobEventKind::Ended).collect();
    assert_eq!(attempts.len(), 2);
    assert_ne!(attempts[0].attempt_id, attempts[1].attempt_id);
    assert_eq!(
        attempts.iter().map(|job| job.final_state.as_deref()).collect::<Vec<_>>(),
        [Some("REQUEUED"), Some("COMPLETED")]
    );
    assert_eq!(gpu_ms(&jobs), 4 * 5_400_000);
}

#[test]
fn wall_times_are_in_the_time_zone() {
    let row = completed("1").replace("2024-03-01", "2024-07-01");
    let source = || text("sacct.txt", format!("{HEADER}\n{row}\n"));
    let zone =
        |name: &str| ImportOptions { timezone: Some(name.parse().unwrap()), ..ImportOptions::default() };
    let span = |options: &ImportOptions| {
        let log = crate::support::MemoryLog::default();
        import(source(), &mapping(), options, &log, &mut |_| {}).unwrap().clusters["slurm"].0
    };
    let utc = span(&ImportOptions::default());
    assert_eq!(utc - span(&zone("Europe/Berlin")), 2 * 3_600_000);
    assert_eq!(span(&zone("America/New_York")) - utc, 4 * 3_600_000);
}

#[test]
fn epoch_times_need_no_zone() {
    let row =
        "1|t|u|1709283600|1709283600|1709287200|1709290800|COMPLETED|0:0|gres/gpu=1|gres/gpu=1|n1|60|None";
    let jobs = events(&[row]);
    assert_eq!(time_ms(&jobs[0]), 1_709_283_600_000);
    assert_eq!(gpu_ms(&jobs), 3_600_000);
}

#[test]
fn columns_come_in_any_order_and_missing_ones_are_named() {
    let reordered = "End|State|Start|ReqTRES|Submit|JobID\n2024-03-01T11:00:00|COMPLETED|2024-03-01T10:00:00|gres/gpu=3|2024-03-01T09:00:00|5\n";
    let (log, summary) = run(text("x", reordered), &mapping()).unwrap();
    assert_eq!((summary.rows_accepted, gpu_ms(&log.jobs())), (1, 3 * 3_600_000));
    for column in ["JobID", "Submit", "Start", "End", "State"] {
        let header = "JobID|Submit|Start|End|State|AllocTRES".replace(column, "Other");
        let error = run(text("dump.txt", header), &mapping()).unwrap_err();
        let message = error.to_string();
        assert!(
            matches!(&error, ImportError::MissingColumn(missing) if missing.column == column),
            "{message}"
        );
        assert!(message.contains("dump.txt") && message.contains("sacct --allusers"), "{message}");
    }
    let error = run(text("x", "JobID|Submit|Start|End|State"), &mapping()).unwrap_err().to_string();
    assert!(error.contains("AllocTRES or ReqTRES"), "{error}");
}

fn generated(file: &SacctFile) -> (Vec<u8>, Generated) {
    let mut bytes = Vec::new();
    let generated = sacct(&mut bytes, file).unwrap();
    (bytes, generated)
}

#[test]
fn generated_files_import_completely_and_depend_on_the_seed_only() {
    let file = SacctFile { days: 14, steps: true, ..SacctFile::year(7, 3000, 256) };
    let (bytes, account) = generated(&file);
    assert_eq!(generated(&file), (bytes.clone(), account));
    assert_ne!(generated(&SacctFile { seed: 8, ..file }).0, bytes);
    let (log, summary) = run(text("year.txt", bytes), &mapping()).unwrap();
    assert_eq!(summary.rejected(), 0, "{:?}", log.dead_letters().first());
    assert_eq!((summary.rows_read, summary.rows_accepted), (account.rows, account.rows));
    let jobs = log.jobs();
    assert_eq!(gpu_ms(&jobs), i128::from(account.gpu_ms_ended));
    let states: BTreeSet<_> = jobs.iter().filter_map(|job| job.final_state.as_deref()).collect();
    for state in ["CANCELLED", "COMPLETED", "FAILED", "NODE_FAIL", "REQUEUED", "TIMEOUT", "OUT_OF_MEMORY"] {
        assert!(states.contains(state), "{state} is missing from {states:?}");
    }
}

#[test]
fn generated_attempts_never_hold_more_of_a_node_than_it_has() {
    let (bytes, _) = generated(&SacctFile { days: 14, ..SacctFile::year(3, 3000, 256) });
    let (log, _) = run(text("year.txt", bytes), &mapping()).unwrap();
    let jobs = log.jobs();
    let mut held: HashMap<&str, i64> = HashMap::new();
    let mut changes = Vec::new();
    for started in jobs.iter().filter(|job| job.kind() == JobEventKind::Started) {
        let end = jobs.iter().find(|job| {
            job.kind() == JobEventKind::Ended
                && job.job_id == started.job_id
                && job.attempt_id == started.attempt_id
        });
        let nodes: Vec<_> = started.nodes.as_deref().unwrap().split(',').collect();
        let each = i64::try_from(started.gpus_milli.unwrap()).unwrap() / nodes.len() as i64;
        for node in nodes {
            changes.push((time_ms(started), each, node));
            changes.extend(end.map(|end| (time_ms(end), -each, node)));
        }
    }
    // At the same instant, releases come first.
    changes.sort_unstable();
    for (_, change, node) in changes {
        let now = held.entry(node).or_default();
        *now += change;
        assert!((0..=8000).contains(now), "{node} holds {now}");
    }
}
