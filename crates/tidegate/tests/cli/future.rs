//! Events with future times, and of a time long before anything else, are set aside: no windows up
//! to then or since are computed.

use tidegate_events::Event;
use tidegate_events::v1::{
    CapacityEvent, CapacityEventKind, Envelope, JobEvent, JobEventKind, NodeEvent, NodeEventKind, StepReport,
};

use crate::case_data::{case, tables_of};
use crate::program::{import, query, succeed, tidegate};

const DAY: i64 = 1_709_251_200_000;
/// 9999-12-31T23:00:00Z and 2090-01-01T00:00:00Z, ms.
const LAST: i64 = 253_402_297_200_000;
const YEAR_2090: i64 = 3_786_912_000_000;

fn envelope(event_time_ms: i64, observed_time_ms: i64) -> Option<Envelope> {
    Some(Envelope {
        cluster: "test".into(),
        source: "wrong".into(),
        event_time_ms,
        observed_time_ms,
        ..Envelope::default()
    })
}

/// A job of the year 9999, an agent with a wrong clock, and a step of a million years.
fn wrong() -> Vec<Event> {
    vec![
        Event::Job(JobEvent {
            envelope: envelope(LAST, DAY),
            kind: JobEventKind::Started.into(),
            job_id: "9999".into(),
            attempt_id: Some(0),
            gpus_milli: Some(1000),
            ..JobEvent::default()
        }),
        Event::Node(NodeEvent {
            envelope: envelope(YEAR_2090, YEAR_2090),
            kind: NodeEventKind::CollectorStarted.into(),
            node: "n1".into(),
            ..NodeEvent::default()
        }),
        Event::Step(StepReport {
            envelope: envelope(DAY, DAY),
            job_id: "1".into(),
            duration_us: u64::MAX / 4,
            ..StepReport::default()
        }),
        Event::Job(JobEvent {
            envelope: envelope(i64::MAX, i64::MAX),
            kind: JobEventKind::Observed.into(),
            ..JobEvent::default()
        }),
    ]
}

#[test]
fn what_is_of_the_future_is_set_aside() {
    let folder = tempfile::tempdir().unwrap();
    let events = [case("ledger_1m", "test"), wrong()].concat();
    let data = tables_of(folder.path(), events);
    let letters = "SELECT origin, code, count(*) AS events FROM dead_letters GROUP BY 1, 2 ORDER BY 1, 2";
    let expected = "origin,code,events\njobs,TIME_AHEAD,1\njobs,TIME_OUT_OF_RANGE,1\nnodes,TIME_AHEAD,1\nsteps,TIME_OUT_OF_RANGE,1\n";
    assert_eq!(query(&data, letters), expected);
    // Four minutes and a half of two GPUs, as the case says.
    let ledger = "SELECT count(DISTINCT window_start) AS minutes, max(window_start) AS latest, sum(gpu_ms) AS gpu_ms, \
                  sum(cost_micros) AS cost FROM ledger_1m";
    let known = "minutes,latest,gpu_ms,cost\n5,2024-03-01T00:04:00Z,540000,900000\n";
    assert_eq!(query(&data, ledger), known);
    // Rebuilt from the log: the same.
    succeed(tidegate().args(["pipeline", "backfill", "--data"]).arg(&data));
    assert_eq!(query(&data, ledger), known);
    assert_eq!(query(&data, "SELECT count(*) AS jobs FROM jobs"), "jobs\n1\n");
}

/// A job and a quota of the year 1.
fn ancient() -> Vec<Event> {
    const YEAR_1: i64 = -62_135_596_800_000;
    vec![
        Event::Job(JobEvent {
            envelope: envelope(YEAR_1, YEAR_1),
            kind: JobEventKind::Started.into(),
            job_id: "1".into(),
            attempt_id: Some(0),
            gpus_milli: Some(1000),
            ..JobEvent::default()
        }),
        Event::Capacity(CapacityEvent {
            envelope: envelope(YEAR_1, DAY),
            kind: CapacityEventKind::QuotaSet.into(),
            owner: "a".into(),
            gpus_milli: Some(1000),
            ..CapacityEvent::default()
        }),
    ]
}

#[test]
fn what_is_older_than_the_horizon_is_set_aside_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let data = tables_of(folder.path(), [case("ledger_1m", "test"), ancient()].concat());
    let letters = "SELECT origin, code, count(*) AS events FROM dead_letters GROUP BY 1, 2 ORDER BY 1, 2";
    let expected = "origin,code,events\ncapacity,TIME_BEFORE_OLDEST,1\njobs,TIME_BEFORE_OLDEST,1\n";
    assert_eq!(query(&data, letters), expected);
    let days = "SELECT count(DISTINCT window_start) AS days FROM quota_use";
    let days: u64 = query(&data, days).lines().nth(1).unwrap().parse().unwrap();
    assert!(days < 10, "{days} days of two");
}

#[test]
fn the_horizon_can_be_set_for_old_history() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let jobs = folder.path().join("jobs.csv");
    let rows = "job_id,gpus,submit_time,start_time,end_time\n\
                1,1,1999-03-01T00:00:00Z,1999-03-01T00:00:00Z,1999-03-01T01:00:00Z\n";
    std::fs::write(&jobs, rows).unwrap();
    succeed(import(&jobs, "jobs_csv", &data).args(["--oldest", "1990-01-01"]));
    assert_eq!(query(&data, "SELECT count(*) AS jobs FROM jobs"), "jobs\n1\n");
}
