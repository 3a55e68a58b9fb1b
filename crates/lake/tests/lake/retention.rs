//! Retention: dropped rows are gone, and what was computed from them stays unchanged.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use arrow::util::pretty::pretty_format_batches;
use chrono::Duration;
use tidegate_events::Event;
use tidegate_events::v1::gpu_sample_batch::{Column, DeviceInfo};
use tidegate_events::v1::{
    AuditEvent, AuditEventKind, DeadLetter, GpuSampleBatch, JobEvent, JobEventKind, NodeEvent, NodeEventKind,
};
use tidegate_lake::engine::{self, Limits};
use tidegate_lake::lake::{Lake, Sharing};
use tidegate_lake::maintenance::retention::Retention;
use tidegate_lake::maintenance::{self, Maintenance};
use tidegate_lake::pipeline::Plan;
use url::Url;

use crate::histories::{envelope, job_event, sealed};

/// 2023-11-14 00:00 UTC.
const START_MS: i64 = 1_699_920_000_000;
const HOUR_MS: i64 = 3_600_000;
const DAY_MS: i64 = 24 * HOUR_MS;
const DAYS: i64 = 5;

/// One GPU that one job holds for all days, sampled for ten minutes of every hour.
fn history() -> Vec<Event> {
    let node = |kind: NodeEventKind| NodeEvent {
        envelope: envelope("c", START_MS),
        kind: kind.into(),
        node: "n1".into(),
        ..NodeEvent::default()
    };
    let mut events = vec![
        Event::Node(NodeEvent {
            gpus_milli: Some(1_000),
            pool: Some("p".into()),
            ..node(NodeEventKind::NodeRegistered)
        }),
        Event::Node(node(NodeEventKind::CollectorStarted)),
        Event::Job(JobEvent {
            gpus_milli: Some(1_000),
            nodes: Some("n1".into()),
            node_count: Some(1),
            team: Some("before".into()),
            attempt_id: Some(START_MS),
            ..job_event("c", "j", JobEventKind::Started, START_MS)
        }),
    ];
    for hour in 0..DAYS * 24 {
        events.push(batch(START_MS + hour * HOUR_MS));
        events.push(Event::Job(job_event("c", "", JobEventKind::Observed, START_MS + (hour + 1) * HOUR_MS)));
    }
    sealed(events)
}

fn batch(first_ms: i64) -> Event {
    let ticks = 60;
    let column = |name: &str, value: i64| {
        let mut value_delta = vec![0; ticks];
        value_delta[0] = value;
        Column { name: name.into(), value_delta, ..Column::default() }
    };
    Event::GpuSamples(GpuSampleBatch {
        envelope: envelope("c", first_ms + 10_000),
        node: "n1".into(),
        devices: vec![DeviceInfo { uuid: "GPU-1".into(), index: 0, model: "h100".into(), mig_uuid: None }],
        first_tick_ms: first_ms + 10_000,
        tick_delta_ms: vec![10_000; ticks - 1],
        columns: vec![
            column("interval_us", 10_000_000),
            column("gpu_util_ppm", 1_000_000),
            column("process_count", 1),
        ],
        ..GpuSampleBatch::default()
    })
}

struct Kept {
    lake: Lake,
    next: u64,
}

impl Kept {
    async fn open(folder: &Path, plan: &Plan) -> Self {
        let root = Url::from_directory_path(folder).unwrap();
        let mut lake = Lake::open(&root, plan.clone(), Limits::default(), Sharing::Exclusive).await.unwrap();
        for group in &plan.groups {
            lake.attach(group.raw.schema.topic(), &[0]).await.unwrap();
        }
        Self { lake, next: 0 }
    }

    async fn ingest(&mut self, plan: &Plan, events: &[Event]) {
        for group in &plan.groups {
            let topic = group.raw.schema.topic();
            let mut intake = self.lake.intake(topic, 0);
            (self.next..).zip(events).for_each(|(offset, event)| intake.push(offset, event));
            self.lake.absorb(intake, self.next + events.len() as u64).unwrap();
        }
        self.next += events.len() as u64;
        self.lake.flush().await.unwrap();
        self.lake.update_joined().await.unwrap();
    }

    async fn ask(&self, sql: &str) -> String {
        let limits = Limits::default();
        let ctx = engine::session(&engine::runtime(limits).unwrap(), limits);
        self.lake.catalog().current().register(&ctx).unwrap();
        let rows = ctx.sql(sql).await.unwrap().collect().await.unwrap();
        pretty_format_batches(&rows).unwrap().to_string()
    }

    async fn number(&self, sql: &str) -> i64 {
        let text = self.ask(sql).await;
        let cell = text.lines().nth(3).unwrap().trim_matches(['|', ' ']);
        cell.parse().unwrap_or_else(|_| panic!("{text}"))
    }
}

/// Number of Parquet files below the folders whose name starts with the given one.
fn walk(table: &Path) -> usize {
    let is_of = |name: &str| table.file_name().is_some_and(|table| name.starts_with(table.to_str().unwrap()));
    let folders = table.parent().unwrap().read_dir().unwrap().map(|entry| entry.unwrap().path());
    let mut folders: Vec<PathBuf> =
        folders.filter(|f| is_of(f.file_name().unwrap().to_str().unwrap())).collect();
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        for entry in folder.read_dir().unwrap().map(|entry| entry.unwrap().path()) {
            match entry.is_dir() {
                true => folders.push(entry),
                false => files += usize::from(entry.extension().is_some_and(|e| e == "parquet")),
            }
        }
    }
    files
}

fn keep(days: &[(&str, i64)]) -> BTreeMap<String, Duration> {
    days.iter().map(|(table, days)| ((*table).to_owned(), Duration::days(*days))).collect()
}

#[tokio::test]
async fn dropped_rows_are_gone_and_what_was_computed_from_them_stays() {
    let plan = Plan::compile(tidegate_lake::pipeline::shipped()).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut kept = Kept::open(folder.path(), &plan).await;
    for day in history().chunks(48) {
        kept.ingest(&plan, day).await;
    }
    let hours = |from: i64, to: i64| {
        format!(
            "SELECT window_start, class, sum(gpu_ms) AS gpu_ms FROM ledger_1h WHERE unix_ms(window_start) >= {from} AND unix_ms(window_start) < {to} \
             GROUP BY window_start, class ORDER BY window_start, class"
        )
    };
    let border = START_MS + (DAYS - 2) * DAY_MS;
    let (old, new) = (hours(START_MS, border), hours(border, START_MS + DAYS * DAY_MS));
    let (old_before, new_before) = (kept.ask(&old).await, kept.ask(&new).await);
    assert!(old_before.contains("active") && old_before.contains("unknown"), "{old_before}");
    let gpu_hours = "SELECT window_start, samples, active_us FROM gpu_1h ORDER BY window_start";
    let gpu_hours_before = kept.ask(gpu_hours).await;

    let days = keep(&[("gpu_samples", 2), ("gpu_1m", 2), ("device_ledger_1m", 3)]);
    let retention = Retention::new(days, &plan).unwrap();
    maintenance::run_due(
        &mut kept.lake,
        &Maintenance { retention: retention.clone(), ..Maintenance::default() },
    )
    .await
    .unwrap();
    for (table, time) in [("gpu_samples", "event_time"), ("gpu_1m", "window_start")] {
        let first = kept.number(&format!("SELECT unix_ms(min({time})) AS t FROM {table}")).await;
        assert!((border - DAY_MS..=border).contains(&first), "{table} begins at {first}");
    }
    assert!(kept.number("SELECT unix_ms(min(window_start)) AS t FROM device_ledger_1m").await > START_MS);
    assert_eq!(kept.ask(gpu_hours).await, gpu_hours_before);
    assert_eq!(kept.ask(&old).await + &kept.ask(&new).await, old_before.clone() + &new_before);

    // The job turns out to belong to another team, which invalidates its whole life. Windows that
    // can no longer be computed stay.
    let renamed = JobEvent {
        team: Some("later".into()),
        attempt_id: Some(START_MS),
        ..job_event("c", "j", JobEventKind::Started, START_MS)
    };
    let mut late = sealed(vec![Event::Job(renamed), batch(START_MS + 30 * 60_000)]);
    for event in &mut late {
        event.envelope_mut().source = "late".into();
    }
    kept.ingest(&plan, &late).await;
    assert_eq!(kept.ask(&old).await, old_before, "hours whose samples are gone");
    assert_eq!(kept.ask(&new).await, new_before);
    let teams = "SELECT count(DISTINCT team) AS n FROM ledger_1h WHERE job_id = 'j'";
    assert_eq!(
        kept.number(teams).await,
        2,
        "hours that can be recomputed are the new team's, the others stay"
    );
    let first_recomputed =
        kept.number("SELECT unix_ms(min(window_start)) AS t FROM ledger_1h WHERE team = 'later'").await;
    assert!(first_recomputed > START_MS && first_recomputed <= border, "{first_recomputed}");
    // Hours of devices are partial aggregates, so ten more minutes are added.
    assert_ne!(kept.ask(gpu_hours).await, gpu_hours_before);
    // Late rows for dropped times go with the next run, and so do replaced segments if no version
    // is to be kept.
    let segments = || walk(&folder.path().join("ledger_1h"));
    let written = segments();
    let keep_replaced = Duration::zero();
    let all = Maintenance { retention, keep_replaced, ..Maintenance::default() };
    maintenance::run_due(&mut kept.lake, &all).await.unwrap();
    assert!(segments() < written, "{} of {written} files", segments());
    assert_eq!(kept.ask(&new).await, new_before);
    assert!(kept.number("SELECT unix_ms(min(window_start)) AS t FROM gpu_1m").await > START_MS + HOUR_MS);
}

/// Nobody asked for it: audit records go when the log drops them, and nothing else does.
#[tokio::test]
async fn audit_records_stay_as_long_as_the_log_keeps_them() {
    let plan = Plan::compile(tidegate_lake::pipeline::shipped()).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut kept = Kept::open(folder.path(), &plan).await;
    for day in [0, 300, 401] {
        let asked = AuditEvent {
            envelope: envelope("", START_MS + day * DAY_MS),
            kind: AuditEventKind::QueryAsked.into(),
            id: format!("day {day}"),
            door: "/v1/sql".into(),
            ..AuditEvent::default()
        };
        let letter = DeadLetter {
            envelope: envelope("c", START_MS + day * DAY_MS),
            origin: "jobs.csv".into(),
            code: "NO_TIME".into(),
            ..DeadLetter::default()
        };
        kept.ingest(&plan, &sealed(vec![Event::Audit(asked), Event::DeadLetter(letter)])).await;
    }
    maintenance::run_due(&mut kept.lake, &Maintenance::default()).await.unwrap();
    let left = kept.ask("SELECT id FROM audit_events ORDER BY id").await;
    assert!(left.contains("day 300") && left.contains("day 401") && !left.contains("day 0"), "{left}");
    assert_eq!(kept.number("SELECT count(*) AS n FROM dead_letters").await, 3);
}

#[tokio::test]
async fn rows_that_other_tables_need_cannot_be_dropped() {
    let plan = Plan::compile(tidegate_lake::pipeline::shipped()).await.unwrap();
    for (table, may) in [
        ("gpu_samples", true),
        ("gpu_1h", true),
        ("steps", true),
        ("audit_events", true),
        ("ledger_1d", true),
        ("job_events", false),
        ("node_events", false),
        ("capacity_events", false),
        ("dead_letters", false),
        ("attempts", false),
        ("nonesuch", false),
    ] {
        let checked = Retention::new(keep(&[(table, 30)]), &plan);
        assert_eq!(checked.is_ok(), may, "{table}: {checked:?}");
        if let Err(e) = checked {
            assert!(e.to_string().contains("gpu_1m"), "{e} names the tables that can be");
        }
    }
}
