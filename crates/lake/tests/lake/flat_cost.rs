//! What a minute of the ledger costs does not depend on how much history there is, and a late event
//! costs what it changes. Costs are counted: bytes of data files, and windows.

use std::path::{Path, PathBuf};

use parquet::file::reader::{FileReader, SerializedFileReader};
use tidegate_events::Event;
use tidegate_events::v1::{JobEvent, JobEventKind, NodeEvent, NodeEventKind};
use tidegate_lake::catalog::TableLag;
use tidegate_lake::engine::{self, Limits};
use tidegate_lake::lake::{CommitStats, Lake, Sharing};
use tidegate_lake::maintenance::{self, Maintenance};
use tidegate_lake::pipeline::{Plan, shipped};
use tidegate_lake::testing::with_dependencies;
use url::Url;

use crate::counting_store::{self, Bytes};
use crate::histories::{envelope, job_event, sealed};

/// 2023-11-14 00:00 UTC.
pub const START_MS: i64 = 1_699_920_000_000;
const MINUTE_MS: i64 = 60_000;
const HOUR_MS: i64 = 60 * MINUTE_MS;
const DAY_MS: i64 = 24 * HOUR_MS;
const NODES: [&str; 2] = ["n1", "n2"];

/// A small site on disk.
pub struct Site {
    folder: tempfile::TempDir,
    pub lake: Lake,
    plan: Plan,
    next: u64,
}

impl Site {
    pub async fn open() -> Self {
        Self::with("ledger_1d").await
    }

    /// A site with the tables that this one needs.
    async fn with(table: &str) -> Self {
        counting_store::install();
        let pipelines = with_dependencies(shipped(), vec![table.to_owned()]);
        let plan = Plan::compile(pipelines).await.unwrap();
        Self::start(tempfile::tempdir().unwrap(), plan, 0).await
    }

    async fn start(folder: tempfile::TempDir, plan: Plan, next: u64) -> Self {
        let root = Url::from_directory_path(folder.path()).unwrap();
        let mut lake = Lake::open(&root, plan.clone(), Limits::default(), Sharing::Exclusive).await.unwrap();
        for group in &plan.groups {
            lake.attach(group.raw.schema.topic(), &[0]).await.unwrap();
        }
        Self { folder, lake, plan, next }
    }

    /// As another process does that takes the site over.
    pub async fn reopen(self) -> Self {
        drop(self.lake);
        Self::start(self.folder, self.plan, self.next).await
    }

    /// Commits events to the tables of their groups.
    pub async fn commit(&mut self, events: Vec<Event>) {
        let events = sealed(events);
        for group in &self.plan.groups {
            let topic = group.raw.schema.topic();
            let mut intake = self.lake.intake(topic, 0);
            (self.next..).zip(&events).for_each(|(offset, event)| intake.push(offset, event));
            self.lake.absorb(intake, self.next + events.len() as u64).unwrap();
        }
        self.next += events.len() as u64;
        self.lake.flush().await.unwrap();
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Updates the newest windows of the ledger, and counts.
    async fn update_live(&mut self) -> (CommitStats, Bytes) {
        counting_store::take_bytes(self.folder());
        let stats = self.lake.update_live().await.unwrap();
        (stats, counting_store::take_bytes(self.folder()))
    }

    fn lag(&self, table: &str) -> TableLag {
        let catalog = self.lake.catalog().current();
        catalog.lag.iter().find(|lag| lag.table == table).unwrap().clone()
    }

    async fn number(&self, sql: &str) -> i64 {
        let limits = Limits::default();
        let ctx = engine::session(&engine::runtime(limits).unwrap(), limits);
        self.lake.catalog().current().register(&ctx).unwrap();
        let rows = ctx.sql(sql).await.unwrap().collect().await.unwrap();
        let column = arrow::compute::cast(rows[0].column(0), &arrow::datatypes::DataType::Int64).unwrap();
        arrow::array::AsArray::as_primitive::<arrow::datatypes::Int64Type>(&column).value(0)
    }
}

fn node(kind: NodeEventKind, node: &str, at_ms: i64, state: Option<&str>) -> Event {
    let registers = kind == NodeEventKind::NodeRegistered;
    Event::Node(NodeEvent {
        envelope: envelope("c", at_ms),
        kind: kind.into(),
        node: node.into(),
        pool: registers.then(|| "p".into()),
        gpu_model: registers.then(|| "H100".into()),
        gpus_milli: registers.then_some(4_000),
        state: state.map(str::to_owned),
        ..NodeEvent::default()
    })
}

/// The nodes, and with agents the start of those.
fn nodes(with_agents: bool) -> Vec<Event> {
    let mut events = Vec::new();
    for name in NODES {
        events.push(node(NodeEventKind::NodeRegistered, name, START_MS, None));
        if with_agents {
            events.push(node(NodeEventKind::CollectorStarted, name, START_MS, None));
        }
    }
    events
}

/// A job that waits for ten minutes and then runs for two hours.
fn job(id: &str, at_ms: i64) -> Vec<Event> {
    let event = |kind, after_ms: i64| JobEvent {
        team: Some("t".into()),
        pool: Some("p".into()),
        gpu_model: Some("H100".into()),
        gpus_milli: Some(2_000),
        ..job_event("c", id, kind, at_ms + after_ms)
    };
    let attempt = |kind| JobEvent {
        attempt_id: Some(0),
        nodes: Some(NODES[id.len() % 2].into()),
        node_count: Some(1),
        ..event(kind, if kind == JobEventKind::Started { 10 * MINUTE_MS } else { 130 * MINUTE_MS })
    };
    let events = [
        JobEvent { priority: Some(7), ..event(JobEventKind::Submitted, 0) },
        JobEvent { reason: Some("Resources".into()), ..event(JobEventKind::Waiting, MINUTE_MS) },
        attempt(JobEventKind::Started),
        JobEvent { final_state: Some("COMPLETED".into()), ..attempt(JobEventKind::Ended) },
    ];
    events.into_iter().map(Event::Job).collect()
}

/// What happens in an hour: a job, one that is cancelled while it waits, and changes of state.
fn hour(number: i64) -> Vec<Event> {
    let at_ms = START_MS + number * HOUR_MS;
    let mut events = job(&format!("j{number}"), at_ms);
    let cancelled = format!("x{number}");
    events.push(Event::Job(JobEvent {
        gpus_milli: Some(1_000),
        ..job_event("c", &cancelled, JobEventKind::Submitted, at_ms)
    }));
    events.push(Event::Job(JobEvent {
        final_state: Some("CANCELLED".into()),
        ..job_event("c", &cancelled, JobEventKind::Ended, at_ms + 5 * MINUTE_MS)
    }));
    for (after, state) in [(20, "MIXED"), (40, "IDLE")] {
        events.push(node(NodeEventKind::StateChanged, NODES[0], at_ms + after * MINUTE_MS, Some(state)));
    }
    events
}

/// All events up to a time; those of a job that ends later are left out.
fn until(events: Vec<Event>, end_ms: i64) -> Vec<Event> {
    events.into_iter().filter(|event| event.event_time_ms() <= end_ms).collect()
}

fn observed(at_ms: i64) -> Event {
    Event::Job(job_event("c", "", JobEventKind::Observed, at_ms))
}

/// Bytes that a live minute of a table, with those that it needs, reads and writes after so many
/// days of history. With `restarts` another process took over three minutes before.
async fn live_minutes(table: &str, days: i64, restarts: bool) -> Bytes {
    let mut site = Site::with(table).await;
    let now = START_MS + days * DAY_MS + 10 * HOUR_MS;
    let mut history = nodes(true);
    (0..days * 24 + 10).for_each(|number| history.extend(hour(number)));
    // It still waits for GPUs, so its row is written anew each minute.
    history.extend(job("waits", now - 5 * MINUTE_MS));
    history.sort_by_key(Event::event_time_ms);
    let history = until(history, now);
    // A commit a month: what is measured is how much is read, not how many files it is in.
    for part in history.chunks(30 * 24 * 8) {
        site.commit(part.to_vec()).await;
        site.lake.update_live().await.unwrap();
    }
    let mut sum = Bytes::default();
    if restarts {
        site = site.reopen().await;
    }
    for minute in 1..=6 {
        site.commit(vec![observed(now + minute * MINUTE_MS)]).await;
        let (stats, bytes) = site.update_live().await;
        let live = if table == "pending" { 1 } else { 3 };
        assert!(stats.commits >= live, "every table is live: {stats:?}");
        // The first minutes still recompute the last ones of the history.
        if minute > 3 {
            sum.read += bytes.read;
            sum.written += bytes.written;
        }
    }
    println!("{table}, day {days}: {sum:?} in three live minutes");
    sum
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_minute_of_waits_costs_the_same_on_day_365() {
    let first = live_minutes("pending", 1, false).await;
    assert!(first.read > 0 && first.written > 0, "{first:?}");
    for (days, restarts) in [(30, true), (365, false)] {
        let then = live_minutes("pending", days, restarts).await;
        assert!(then.read * 10 <= first.read * 12, "day {days} reads {then:?}, day 1 {first:?}");
        assert!(then.written * 10 <= first.written * 12, "day {days} writes {then:?}, day 1 {first:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_minute_costs_the_same_on_day_365() {
    let first = live_minutes("ledger_1d", 1, false).await;
    assert!(first.read > 0 && first.written > 0, "{first:?}");
    for days in [30, 365] {
        let then = live_minutes("ledger_1d", days, false).await;
        assert!(then.read * 10 <= first.read * 12, "day {days} reads {then:?}, day 1 {first:?}");
        assert!(then.written * 10 <= first.written * 12, "day {days} writes {then:?}, day 1 {first:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_event_costs_what_it_changes_and_the_present_does_not_wait() {
    let mut site = Site::open().await;
    let now = START_MS + 4 * DAY_MS;
    let mut history = nodes(true);
    (0..4 * 24).for_each(|number| history.extend(hour(number)));
    history.push(observed(now));
    site.commit(until(history, now)).await;
    site.lake.update_joined().await.unwrap();
    maintenance::run_due(&mut site.lake, &Maintenance::default()).await.unwrap();
    let drained = "SELECT coalesce(sum(gpu_ms), 0) FROM ledger_1h WHERE class = 'drained'";
    assert_eq!(site.number(drained).await, 0);

    // Three days ago a node was drained for 20 minutes, until its next report.
    let late = START_MS + DAY_MS + 10 * HOUR_MS + 20 * MINUTE_MS;
    let drains = node(NodeEventKind::StateChanged, NODES[0], late + MINUTE_MS, Some("IDLE+DRAIN"));
    site.commit(vec![drains, observed(now + MINUTE_MS)]).await;
    site.update_live().await;
    let newest = "SELECT arrow_cast(max(window_start), 'Int64') / 1000 FROM device_ledger_1m";
    assert_eq!(site.number(newest).await, now, "the present minute is there");
    let pending = |site: &Site| {
        ["device_ledger_1m", "ledger_1h", "ledger_1d"].map(|table| site.lag(table).pending_windows)
    };
    assert_eq!(pending(&site), [20, 1, 1], "19 minutes, and the one in which the next report came");
    assert_eq!(site.number(drained).await, 0, "not repaired yet");

    let mut slices = 0;
    while site.lake.has_pending().await.unwrap() {
        site.lake.repair_joined(5 * MINUTE_MS * 1_000).await.unwrap();
        slices += 1;
        // Between slices the present goes on.
        site.commit(vec![observed(now + (1 + slices) * MINUTE_MS)]).await;
        site.update_live().await;
        assert_eq!(site.number(newest).await, now + slices * MINUTE_MS);
    }
    assert!((4..=8).contains(&slices), "20 minutes in slices of five: {slices}");
    let lost = site.number(drained).await;
    assert!(lost > 0, "{lost}");
    let by_minute = "SELECT coalesce(sum(gpu_ms), 0) FROM device_ledger_1m WHERE class = 'drained'";
    assert_eq!(site.number(by_minute).await, lost);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_late_report_of_a_node_recomputes_the_day_of_waits_that_it_changes() {
    let mut site = Site::with("pending").await;
    let now = START_MS + 4 * DAY_MS;
    let mut history = nodes(true);
    (0..4 * 24).for_each(|number| history.extend(hour(number)));
    let late = START_MS + DAY_MS + 10 * HOUR_MS;
    let tells = |name, after: i64, state| {
        node(NodeEventKind::StateChanged, name, late + after * MINUTE_MS, Some(state))
    };
    history.extend([tells(NODES[1], 15, "IDLE"), observed(now)]);
    site.commit(until(history, now)).await;
    site.lake.update_joined().await.unwrap();
    let unavailable = "SELECT count(*) FROM pending WHERE constraint = 'nodes_unavailable'";
    assert_eq!(site.number(unavailable).await, 0);
    // Three days ago both nodes were drained while a job waited, until their next reports.
    let drains = NODES.map(|name| tells(name, 2, "IDLE+DRAIN"));
    site.commit([drains.to_vec(), vec![observed(now + MINUTE_MS)]].concat()).await;
    site.update_live().await;
    assert_eq!(site.lag("pending_days").pending_windows, 1);
    while site.lake.has_pending().await.unwrap() {
        site.lake.repair_joined(DAY_MS * 1_000).await.unwrap();
    }
    assert!(site.number(unavailable).await > 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_takes_over_may_begin_with_repairs() {
    let mut site = Site::open().await;
    let now = START_MS + 2 * DAY_MS;
    let mut history = nodes(true);
    (0..2 * 24).for_each(|number| history.extend(hour(number)));
    history.push(observed(now));
    site.commit(until(history, now)).await;
    site.lake.update_joined().await.unwrap();
    let late = START_MS + 10 * HOUR_MS + 20 * MINUTE_MS;
    let drains = node(NodeEventKind::StateChanged, NODES[0], late + MINUTE_MS, Some("IDLE+DRAIN"));
    site.commit(vec![drains, observed(now + MINUTE_MS)]).await;
    site.update_live().await;
    let mut site = site.reopen().await;
    let mut slices = 0;
    while site.lake.has_pending().await.unwrap() && slices < 20 {
        site.lake.repair_joined(DAY_MS * 1_000).await.unwrap();
        slices += 1;
    }
    let lost = site.number("SELECT coalesce(sum(gpu_ms), 0) FROM ledger_1h WHERE class = 'drained'").await;
    assert!(lost > 0, "the pending windows were dropped, after {slices} slices");
}

/// Bytes that one new job adds to the ledger of a site without agents after so many days.
async fn one_more_job(days: i64) -> u64 {
    let mut site = Site::open().await;
    let now = START_MS + days * DAY_MS + 10 * HOUR_MS;
    let mut history = nodes(false);
    (0..days * 24 + 10).for_each(|number| history.extend(hour(number)));
    history.push(observed(now));
    site.commit(until(history, now)).await;
    site.lake.update_joined().await.unwrap();
    let pieces = site.number("SELECT count(DISTINCT window_start) FROM ledger_stretches").await;
    assert_eq!(pieces, days + 1, "a piece per day");
    site.commit(until(job("new", now), now + 5 * MINUTE_MS)).await;
    counting_store::take_bytes(site.folder());
    let stats = site.lake.update_live().await.unwrap();
    assert!(!site.lake.has_pending().await.unwrap(), "one day is live, and no other changed");
    assert!(stats.files_added <= 6, "{stats:?}");
    stats.bytes_added
}

#[tokio::test(flavor = "multi_thread")]
async fn one_more_job_rewrites_one_day_of_stretches() {
    let (few, many) = (one_more_job(5).await, one_more_job(60).await);
    assert!(many * 10 <= few * 12, "{many} bytes after 60 days, {few} after 5");
}

/// Data files below the folder of a table.
pub fn data_files(table: &Path) -> Vec<PathBuf> {
    let (mut files, mut open) = (Vec::new(), vec![table.to_owned()]);
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() && !path.ends_with("_delta_log") {
                open.push(path);
            } else if path.extension().is_some_and(|end| end == "parquet") {
                files.push(path);
            }
        }
    }
    files
}

/// Overwrites the rows of a Parquet file; what it says of itself stays.
pub fn wipe(file: &Path) {
    let mut bytes = std::fs::read(file).unwrap();
    let end = bytes.len() - 8;
    let footer = u32::from_le_bytes(*bytes[end..].first_chunk().unwrap()) as usize;
    bytes[4..end - footer].fill(0);
    std::fs::write(file, bytes).unwrap();
}

/// It would fail if it read rows that are wiped.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_from_saved_keys_reads_no_rows_of_jobs_that_are_long_over() {
    let mut site = Site::with("pending").await;
    let (mut old, days) = (Vec::new(), 10);
    site.commit(nodes(true)).await;
    for day in 0..days {
        let mut events: Vec<Event> = (day * 24..(day + 1) * 24).flat_map(hour).collect();
        events.sort_by_key(Event::event_time_ms);
        if day == days - 3 {
            let tables = ["job_events", "node_events"].map(|table| site.folder().join(table));
            old = tables.iter().flat_map(|table| data_files(table)).collect();
        }
        site.commit(events).await;
        if day == days - 1 {
            site.lake.save_keys().await;
        }
    }
    // Jobs that were open are sealed since, without an event of their own.
    let now = START_MS + days * DAY_MS + 4 * HOUR_MS;
    site.commit(vec![observed(now)]).await;
    assert!(old.len() > 10, "{}", old.len());
    old.iter().for_each(|file| wipe(file));
    let mut site = site.reopen().await;
    site.commit(vec![observed(now + MINUTE_MS)]).await;
    for table in ["job_events", "node_events"] {
        std::fs::remove_dir_all(known_keys(&site, table)).unwrap();
    }
    let (folder, plan) = (site.folder, site.plan);
    drop(site.lake);
    let root = Url::from_directory_path(folder.path()).unwrap();
    let mut lake = Lake::open(&root, plan, Limits::default(), Sharing::Exclusive).await.unwrap();
    assert!(lake.attach("jobs", &[0]).await.is_err(), "without saved keys it reads all rows");
}

/// Overwrites all columns of a Parquet file except `spared`; its footer stays.
fn wipe_columns(file: &Path, spared: &[&str]) {
    let mut bytes = std::fs::read(file).unwrap();
    let reader = SerializedFileReader::new(std::fs::File::open(file).unwrap()).unwrap();
    for group in reader.metadata().row_groups() {
        for column in
            group.columns().iter().filter(|column| !spared.contains(&column.column_path().string().as_str()))
        {
            let (from, length) = column.byte_range();
            bytes[from as usize..(from + length) as usize].fill(0);
        }
    }
    std::fs::write(file, bytes).unwrap();
}

/// Columns that say when and where a job waited and ran.
const TIMES: [&str; 10] = [
    "_key",
    "event_time",
    "cluster",
    "pool",
    "gpu_model",
    "node_count",
    "from_time",
    "to_time",
    "queued_from",
    "queued_to",
];

/// Data files of the tables of jobs, without those of open jobs, which the next commit replaces.
fn files_of_jobs(site: &Site) -> Vec<PathBuf> {
    let tables = ["attempts", "gpu_holds", "job_events"].map(|table| site.folder().join(table));
    let files = tables.iter().filter(|table| table.is_dir()).flat_map(|table| data_files(table));
    files.filter(|file| !file.to_string_lossy().contains("_open=true")).collect()
}

/// Repairs one day after the files of jobs on other days lost all columns but [`TIMES`]. Decoding
/// any other column of them would be an error, as it is once the day's own files lost theirs.
#[tokio::test(flavor = "multi_thread")]
async fn a_repair_decodes_rows_of_its_days_alone() {
    let mut site = Site::open().await;
    // As with so many jobs that history is gone through in spans of days.
    site.lake.set_jobs_at_once(1);
    let (mut known, mut by_day, days) = (Vec::new(), Vec::new(), 8);
    site.commit(nodes(true)).await;
    for day in 0..days {
        let mut events: Vec<Event> = (day * 24..(day + 1) * 24).flat_map(hour).collect();
        events.sort_by_key(Event::event_time_ms);
        site.commit(events).await;
        let mut new = files_of_jobs(&site);
        new.retain(|file| !known.contains(file));
        known.extend(new.clone());
        by_day.push(new);
    }
    let now = START_MS + days * DAY_MS + 4 * HOUR_MS;
    site.commit(vec![observed(now)]).await;
    site.lake.update_joined().await.unwrap();
    let drained = "SELECT coalesce(sum(gpu_ms), 0) FROM ledger_1h WHERE class = 'drained'";
    for (after_ms, fails) in [(0, false), (HOUR_MS, true)] {
        let late = START_MS + 3 * DAY_MS + 10 * HOUR_MS + 20 * MINUTE_MS + after_ms;
        let drains = node(NodeEventKind::StateChanged, NODES[0], late + MINUTE_MS, Some("IDLE+DRAIN"));
        site.commit(vec![drains, observed(now + MINUTE_MS + after_ms)]).await;
        site.lake.update_live().await.unwrap();
        assert!(site.lake.has_pending().await.unwrap());
        let wiped = by_day.iter().enumerate().filter(|(day, _)| fails || !(2..=4).contains(day));
        wiped.flat_map(|(_, files)| files).for_each(|file| wipe_columns(file, &TIMES));
        let mut repaired = Ok(());
        while repaired.is_ok() && site.lake.has_pending().await.unwrap() {
            repaired = site.lake.repair_joined(DAY_MS * 1_000).await.map(|_| ());
        }
        assert_eq!(repaired.is_err(), fails, "{repaired:?}");
        if !fails {
            assert!(site.number(drained).await > 0);
        }
    }
}

/// Restarts after the files of old jobs lost all columns but [`TIMES`]. Decoding any other column
/// of them would be an error, as it is once the times are lost too.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_update_after_a_start_decodes_no_rows_of_jobs_that_are_long_over() {
    let mut site = Site::open().await;
    let (mut old, days) = (Vec::new(), 6);
    site.commit(nodes(true)).await;
    for day in 0..days {
        let mut events: Vec<Event> = (day * 24..(day + 1) * 24).flat_map(hour).collect();
        events.sort_by_key(Event::event_time_ms);
        if day == days - 2 {
            old = files_of_jobs(&site);
        }
        site.commit(events).await;
    }
    let mut now = START_MS + days * DAY_MS + 4 * HOUR_MS;
    site.commit(vec![observed(now)]).await;
    site.lake.update_joined().await.unwrap();
    site.lake.save_keys().await;
    assert!(old.len() >= 4, "{old:?}");
    old.iter().for_each(|file| wipe_columns(file, &TIMES));
    for fails in [false, true] {
        site = site.reopen().await;
        now += MINUTE_MS;
        site.commit(vec![observed(now)]).await;
        let updated = site.lake.update_live().await;
        assert_eq!(updated.is_err(), fails, "{updated:?}");
        if !fails {
            let newest = "SELECT arrow_cast(max(window_start), 'Int64') / 1000 FROM device_ledger_1m";
            assert_eq!(site.number(newest).await, now - MINUTE_MS);
        }
        old.iter().for_each(|file| wipe_columns(file, &TIMES[..5]));
    }
}

/// Where the saved keys of a raw table are.
fn known_keys(site: &Site, table: &str) -> PathBuf {
    let versions = std::fs::read_dir(site.folder().join(table)).unwrap();
    let mut folders = versions.map(|entry| entry.unwrap().path().join("_known_keys"));
    folders.find(|folder| folder.is_dir()).unwrap_or_else(|| site.folder().join(table).join("_known_keys"))
}
