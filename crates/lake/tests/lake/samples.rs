//! Batches of GPU samples become rows: exact values, once each, with unread values named.

use std::sync::Arc;

use arrow::util::pretty::pretty_format_batches;
use tidegate_events::Event;
use tidegate_events::v1::gpu_sample_batch::{Column, DeviceInfo, Missing, MissingReason};
use tidegate_events::v1::{Envelope, GpuSampleBatch};
use tidegate_lake::catalog::{CatalogSource, committed_catalog};
use tidegate_lake::delta::DeltaStore;
use tidegate_lake::engine::{self, Limits};
use tidegate_lake::lake::{Lake, Sharing};
use tidegate_lake::maintenance::{self, Maintenance};
use tidegate_lake::pipeline::Pipeline;
use tidegate_lake::pipeline::Plan;
use tidegate_lake::runner::{Pace, Runner};
use tidegate_lake::state::dedup::REMEMBERED_RECORDS;
use tidegate_lake::table::TableSpec;
use tidegate_lake::testing::equivalence::{ViewSelection, tables_after};
use tidegate_log::{
    Batch, EmbeddedLog, EmbeddedOptions, EventLog, Producer, Record, TopicConfig, TopicPartition,
};
use url::Url;

use crate::equivalence::deliveries;
use crate::histories::{history, samples};

pub const TOPIC: &str = "gpu-samples";

pub fn column(name: &str, value_delta: &[i64], missing: &[(u32, u32, MissingReason)]) -> Column {
    let run = |(first, count, reason): &(u32, u32, MissingReason)| Missing {
        first: *first,
        count: *count,
        reason: (*reason).into(),
    };
    Column {
        name: name.into(),
        value_delta: value_delta.to_vec(),
        missing: missing.iter().map(run).collect(),
        first_growth: Vec::new(),
    }
}

fn device(uuid: &str, index: u32, mig: Option<&str>) -> DeviceInfo {
    DeviceInfo { uuid: uuid.into(), index, model: "H100".into(), mig_uuid: mig.map(str::to_owned) }
}

/// A GPU and a MIG slice of another one, three ticks.
pub fn batch(node: &str, columns: Vec<Column>) -> Event {
    let mut event = Event::GpuSamples(GpuSampleBatch {
        envelope: Some(Envelope {
            cluster: "c".into(),
            source: "agent".into(),
            epoch: 7,
            seq: 3,
            ..Envelope::default()
        }),
        node: node.into(),
        devices: vec![device("GPU-b", 1, None), device("GPU-a", 0, Some("MIG-1"))],
        first_tick_ms: 1_000,
        tick_delta_ms: vec![1_000, 1_002],
        columns,
        processes: Vec::new(),
    });
    event.seal();
    event
}

pub async fn shipped() -> Plan {
    Plan::compile(tidegate_lake::pipeline::shipped()).await.unwrap()
}

pub async fn open(root: &Url) -> Lake {
    Lake::open(root, shipped().await, Limits::default(), Sharing::Exclusive).await.unwrap()
}

pub fn absorb(lake: &mut Lake, from: u64, events: &[Event]) {
    let mut intake = lake.intake(TOPIC, 0);
    events.iter().zip(from..).for_each(|(event, offset)| intake.push(offset, event));
    lake.absorb(intake, from + events.len() as u64).unwrap();
}

pub async fn ask(catalog: &CatalogSource, sql: &str) -> Vec<String> {
    let limits = Limits::default();
    let ctx = engine::session(&engine::runtime(limits).unwrap(), limits);
    catalog.current().register(&ctx).unwrap();
    let rows = ctx.sql(sql).await.unwrap().collect().await.unwrap();
    let table = pretty_format_batches(&rows).unwrap().to_string();
    let cells = |line: &str| line.split('|').map(str::trim).collect::<Vec<_>>().join("|");
    table.lines().skip(3).filter(|line| line.starts_with('|')).map(cells).collect()
}

#[tokio::test]
async fn values_are_exact_before_and_after_the_commit() {
    let folder = tempfile::tempdir().unwrap();
    let root = Url::from_directory_path(folder.path()).unwrap();
    let mut lake = open(&root).await;
    lake.attach(TOPIC, &[0]).await.unwrap();
    let unread = [(1, 1, MissingReason::Stale), (3, 3, MissingReason::NotSupported)];
    let columns = vec![
        column("power_mw", &[70_000, 0, -500, 0, 0, 0], &unread),
        column("energy_mj", &[i64::MAX - 1, 1, 0, -5, 2, 2], &[]),
        column("sm_clock_mhz", &[], &[]),
        column("fan_speed_ppm", &[40, 1, 1, 7, 0, 0], &[(4, 1, MissingReason::NoPermission)]),
        column("a_count", &[0, 0, 0, 0, 0, 9], &[(0, 5, MissingReason::DeviceLost)]),
    ];
    // Each of the two batches lacks a metric that the other has.
    absorb(
        &mut lake,
        0,
        &[batch("n1", columns), batch("n0", vec![column("xid_code", &[0, 79, 0, 0, 0, 0], &[])])],
    );
    lake.refresh().await.unwrap();

    let sql = "SELECT node, gpu_uuid, mig_uuid, gpu_index, epoch_ms(event_time) AS t, power_mw, energy_mj, \
                      sm_clock_mhz, xid_code, other_metrics, missing FROM gpu_samples \
               ORDER BY node DESC, gpu_uuid DESC, event_time";
    let sql = sql.replace("epoch_ms(event_time)", "CAST(date_part('epoch', event_time) * 1000 AS BIGINT)");
    let expected = [
        "|n1|GPU-b||1|1000|70000|9223372036854775806|||{\"fan_speed_ppm\":40}|a_count:DEVICE_LOST|",
        "|n1|GPU-b||1|2000||9223372036854775807|||{\"fan_speed_ppm\":41}|a_count:DEVICE_LOST,power_mw:STALE|",
        "|n1|GPU-b||1|3002|69500|9223372036854775807|||{\"fan_speed_ppm\":42}|a_count:DEVICE_LOST|",
        "|n1|GPU-a|MIG-1|0|1000||-5|||{\"fan_speed_ppm\":7}|a_count:DEVICE_LOST,power_mw:NOT_SUPPORTED|",
        "|n1|GPU-a|MIG-1|0|2000||-3||||a_count:DEVICE_LOST,fan_speed_ppm:NO_PERMISSION,power_mw:NOT_SUPPORTED|",
        "|n1|GPU-a|MIG-1|0|3002||-1|||{\"a_count\":9,\"fan_speed_ppm\":7}|power_mw:NOT_SUPPORTED|",
        "|n0|GPU-b||1|1000||||0|||",
        "|n0|GPU-b||1|2000||||79|||",
        "|n0|GPU-b||1|3002||||79|||",
        "|n0|GPU-a|MIG-1|0|1000||||0|||",
        "|n0|GPU-a|MIG-1|0|2000||||0|||",
        "|n0|GPU-a|MIG-1|0|3002||||0|||",
    ];
    assert_eq!(ask(&lake.catalog(), &sql).await, expected, "before the commit");
    lake.flush().await.unwrap();
    assert_eq!(ask(&lake.catalog(), &sql).await, expected, "after the commit");
    let committed = committed_catalog(&root, &shipped().await, Limits::default()).await.unwrap();
    let committed = CatalogSource::fixed(committed);
    assert_eq!(ask(&committed, &sql).await, expected, "from the files");
    let labels = "SELECT DISTINCT cluster, gpu_model, source, epoch, seq FROM gpu_samples";
    assert_eq!(ask(&committed, labels).await, ["|c|H100|agent|7|3|"]);
}

#[tokio::test]
async fn a_file_is_sorted_by_device_and_time() {
    let folder = tempfile::tempdir().unwrap();
    let root = Url::from_directory_path(folder.path()).unwrap();
    let mut lake = open(&root).await;
    lake.attach(TOPIC, &[0]).await.unwrap();
    let mut events = samples(3, 200);
    events.rotate_left(77);
    absorb(&mut lake, 0, &events);
    lake.flush().await.unwrap();

    let spec = shipped().await.tables().into_iter().find(|t| t.name == "gpu_samples").unwrap();
    let store = DeltaStore::open(&root, Arc::clone(&spec)).await.unwrap().unwrap();
    let files = store.files().unwrap();
    assert_eq!(files.len(), 1);
    let rows = store.read_file(&files[0]).await.unwrap();
    let picked: Vec<_> = rows.iter().map(|b| b.project(&[0, 1, 2, 5, 6]).unwrap()).collect();
    let lines = pretty_format_batches(&picked).unwrap().to_string();
    let lines: Vec<&str> =
        lines.lines().filter(|line| line.starts_with("| e") || line.starts_with("| w")).collect();
    assert!(lines.len() > 1_000 && lines.is_sorted(), "{} rows", lines.len());
    let stats = files[0].stats.as_deref().unwrap();
    assert!(stats.contains("\"_offset\":199") && stats.contains("\"event_time\""), "{stats}");
}

#[tokio::test]
async fn a_batch_counts_once_over_restarts() {
    let folder = tempfile::tempdir().unwrap();
    let root = Url::from_directory_path(folder.path()).unwrap();
    let events = samples(5, 40);
    let count = "SELECT count(*) AS n, count(DISTINCT concat(gpu_uuid, CAST(event_time AS TEXT))) AS d FROM gpu_samples";
    let mut lake = open(&root).await;
    assert_eq!(lake.attach(TOPIC, &[0]).await.unwrap(), [0]);
    absorb(&mut lake, 0, &events[..20]);
    lake.flush().await.unwrap();
    // What was absorbed and not committed is lost with the process, and read again.
    absorb(&mut lake, 20, &events[20..30]);
    drop(lake);

    let mut lake = open(&root).await;
    assert_eq!(lake.attach(TOPIC, &[0]).await.unwrap(), [20]);
    absorb(&mut lake, 20, &events[20..]);
    absorb(&mut lake, 40, &events[..25]);
    lake.flush().await.unwrap();
    let all: u64 = events.iter().map(tidegate_lake::raw::samples::weight).sum();
    assert_eq!(ask(&lake.catalog(), count).await, [format!("|{all}|{all}|")]);
    drop(lake);

    // Beyond the dedup window a repeat counts again, since memory is bounded. The result is the
    // same before and after a restart.
    let mut lake = open(&root).await;
    assert_eq!(lake.attach(TOPIC, &[0]).await.unwrap(), [65]);
    let repeated = |n: usize| tidegate_lake::raw::samples::weight(&events[n]);
    absorb(&mut lake, 30 + REMEMBERED_RECORDS, &events[30..31]);
    absorb(&mut lake, 31 + REMEMBERED_RECORDS, &events[30..31]);
    lake.flush().await.unwrap();
    assert_eq!(
        ask(&lake.catalog(), "SELECT count(*) FROM gpu_samples").await,
        [format!("|{}|", all + repeated(30))]
    );
}

/// Streaming, backfill, restarts and disorder, with a pipeline over samples.
#[tokio::test(flavor = "multi_thread")]
async fn windows_of_samples_are_the_same_for_every_delivery() {
    let minute = r#"--! name    = "power_1h"
--! doc     = "Power by node and hour."
--! sources = ["gpu_samples"]
--! window  = "1h"
--! extent  = { time = "event_time" }
--! key     = ["window_start", "cluster", "node"]
--! [columns]
--! window_start = "Start of the hour."
--! cluster      = "Cluster."
--! node         = "Node."
--! power_mw     = "Sum of the samples, mW."
--! samples      = "Samples that were read."
SELECT window_start, cluster, node, sum(power_mw) AS power_mw, count(power_mw) AS samples
FROM gpu_samples GROUP BY window_start, cluster, node
"#;
    let mut pipelines = tidegate_lake::pipeline::shipped();
    pipelines.push(Pipeline::parse("power_1h.sql", minute).unwrap());
    let plan = Plan::compile(pipelines).await.unwrap();
    let mut events = history(9, 8);
    events.extend(samples(9, 60));
    events.sort_by_key(Event::event_time_ms);
    let mut first = None;
    for delivery in deliveries(1) {
        let folder = tempfile::tempdir().unwrap();
        let root = Url::from_directory_path(folder.path()).unwrap();
        let tables = tables_after(&plan, &root, &events, delivery, 9, ViewSelection::All)
            .await
            .unwrap_or_else(|e| panic!("{delivery:?}: {e:?}"));
        assert!(tables["gpu_samples"].num_rows() > 300 && tables["power_1h"].num_rows() > 5);
        let expected = first.get_or_insert_with(|| tables.clone());
        for (name, rows) in &tables {
            assert_eq!(rows, &expected[name], "table {name}: {delivery:?} differs from one shot");
        }
    }
}

#[tokio::test]
async fn samples_are_not_folded_by_key() {
    let keyed = r#"--! name    = "last_power"
--! doc     = "Last power of a device."
--! sources = ["gpu_samples"]
--! per     = ["cluster", "gpu_uuid", "mig_uuid", "event_time"]
--! key     = ["cluster", "gpu_uuid", "mig_uuid", "event_time"]
--! [columns]
--! cluster    = "Cluster."
--! gpu_uuid   = "GPU."
--! mig_uuid   = "Slice."
--! event_time = "Time."
SELECT cluster, gpu_uuid, mig_uuid, event_time FROM gpu_samples GROUP BY cluster, gpu_uuid, mig_uuid, event_time
"#;
    let keyed = Pipeline::parse("last_power.sql", keyed).unwrap();
    let refused = Plan::compile(vec![keyed]).await.unwrap_err().to_string();
    assert!(refused.contains("use a window of event_time"), "{refused}");
}

#[tokio::test]
async fn undecodable_batches_become_dead_letters() {
    let folder = tempfile::tempdir().unwrap();
    let root = Url::from_directory_path(folder.path().join("lake")).unwrap();
    let log: Arc<dyn EventLog> =
        Arc::new(EmbeddedLog::open(folder.path().join("log"), EmbeddedOptions::default()).unwrap());
    for topic in [TOPIC, "dead-letters"] {
        let config = TopicConfig { partitions: 1, retain_ms: None, retain_bytes: None };
        log.create_topic(topic, config).unwrap();
    }
    let power = |values: &[i64], missing: &[(u32, u32, MissingReason)]| {
        batch("n1", vec![column("power_mw", values, missing)])
    };
    let events = [
        power(&[1; 6], &[]),
        power(&[1; 5], &[]),
        power(&[0; 6], &[(5, 2, MissingReason::Stale)]),
        batch("n1", vec![column("Power, W", &[1; 6], &[])]),
        power(&[2; 6], &[]),
    ];
    let records = events.iter().map(|event| Record {
        key: event.key().into(),
        schema: event.schema().number(),
        event_time_ms: event.event_time_ms(),
        payload: event.encode_to_vec().into(),
    });
    let producer = Producer { source: "test".into(), epoch: 0 };
    let at = TopicPartition { topic: TOPIC.into(), partition: 0 };
    log.append(&at, Batch { producer, first_seq: 0, records: records.collect() }).unwrap();

    // Its batches are of 1970.
    let pace = Pace { oldest_ms: 0, ..Pace::default() };
    let mut runner = Runner::start_exclusive(log, open(&root).await, pace).await.unwrap();
    let progress = runner.catch_up(&mut |_| {}).await.unwrap();
    assert_eq!((progress.undecodable, progress.records), (3, 5 + 3));
    let reasons =
        ask(&runner.catalog(), "SELECT \"offset\", reason FROM dead_letters ORDER BY \"offset\"").await;
    assert!(reasons[0].starts_with("|1|") && reasons[0].contains("5 values instead of 2 devices × 3 ticks"));
    assert!(reasons[1].starts_with("|2|") && reasons[1].contains("5..7 as missing but has only 6"));
    assert!(reasons[2].starts_with("|3|") && reasons[2].contains("is no name of a metric"));
    let power = "SELECT sum(power_mw), count(*) FROM gpu_samples";
    assert_eq!(ask(&runner.catalog(), power).await, ["|36|12|"]);
}

/// Every commit adds partial aggregates. Queries see the same before and after their files are
/// merged.
#[tokio::test]
async fn partial_aggregates_become_few_files() {
    let folder = tempfile::tempdir().unwrap();
    let root = Url::from_directory_path(folder.path()).unwrap();
    let mut lake = open(&root).await;
    lake.attach(TOPIC, &[0]).await.unwrap();
    let events = samples(3, 40);
    for (offset, event) in events.iter().enumerate() {
        absorb(&mut lake, offset as u64, std::slice::from_ref(event));
        lake.flush().await.unwrap();
    }
    let plan = shipped().await;
    let mut before = Vec::new();
    for (table, every) in [("gpu_1m", "minute"), ("gpu_1h", "hour")] {
        let spec = plan.tables().into_iter().find(|spec| spec.name == table).unwrap();
        assert!(!spec.partials.is_empty(), "{table} is kept as partial aggregates");
        let rows = format!("SELECT * FROM {table} ORDER BY window_start, node, gpu_uuid");
        let shown = ask(&lake.catalog(), &rows).await;
        // The raw samples give the same.
        let stale = ["energy_mj", "power_mw", "fan_speed_ppm"]
            .map(|name| format!("sum(CASE WHEN missing LIKE '%{name}:STALE%' THEN 1 ELSE 0 END)"));
        let expected = format!(
            "SELECT count(*), {}, max(power_mw), \
                    count(DISTINCT concat(cluster, gpu_uuid, CAST(date_trunc('{every}', event_time) AS TEXT))) FROM gpu_samples",
            stale.join(" + ")
        );
        let sums = "sum(samples), sum(unread_stale_count), max(power_max_mw), count(*)";
        let summed = ask(&lake.catalog(), &format!("SELECT {sums} FROM {table}")).await;
        assert_eq!(summed, ask(&lake.catalog(), &expected).await, "{table}");
        let files = files_of(&root, &spec).await;
        assert!(files >= 40, "{table}: {files} files");
        before.push((spec, files, rows, shown));
    }
    maintenance::run_due(&mut lake, &Maintenance::default()).await.unwrap();
    for (spec, files, rows, shown) in before {
        let after = files_of(&root, &spec).await;
        assert!(after < 20, "{}: {after} files of {files}", spec.name);
        assert_eq!(ask(&lake.catalog(), &rows).await, shown, "{}", spec.name);
        let committed = committed_catalog(&root, &plan, Limits::default()).await.unwrap();
        assert_eq!(ask(&CatalogSource::fixed(committed), &rows).await, shown, "{}", spec.name);
    }
}

/// A lake that was created with rounded ratios keeps to it, whatever a later process asks for.
#[tokio::test]
async fn ratios_are_rounded_as_the_lake_was_created() {
    let folder = tempfile::tempdir().unwrap();
    let root = Url::from_directory_path(folder.path()).unwrap();
    let event = |node| {
        // 100, 150, 0 and 31, 32, 32 become 128, 128, 0 and 0, 64, 64.
        let ratios = column("sm_active_ppm", &[100, 50, -150, 31, 1, 0], &[]);
        batch(node, vec![ratios, column("power_mw", &[7, 0, 0, 7, 0, 0], &[])])
    };
    let sums = "SELECT sum(sm_active_ppm), sum(power_mw) FROM gpu_samples";
    for (at, plan) in [shipped().await.with_ratio_step(64), shipped().await].into_iter().enumerate() {
        let mut lake = Lake::open(&root, plan, Limits::default(), Sharing::Exclusive).await.unwrap();
        assert_eq!(lake.attach(TOPIC, &[0]).await.unwrap(), [at as u64]);
        absorb(&mut lake, at as u64, &[event(["n1", "n2"][at])]);
        lake.refresh().await.unwrap();
        let expected = ["|384|42|", "|768|84|"][at];
        assert_eq!(ask(&lake.catalog(), sums).await, [expected], "before the commit");
        lake.flush().await.unwrap();
        assert_eq!(ask(&lake.catalog(), sums).await, [expected], "after the commit");
    }
    let other = shipped().await.with_ratio_step(100);
    let refused =
        Lake::open(&root, other, Limits::default(), Sharing::Exclusive).await.unwrap_err().to_string();
    assert!(refused.contains("in steps of 64 millionths, not 100"), "{refused}");
}

/// Every commit leaves a few rows of each device. Merged, the rows of a device are in one place.
#[tokio::test]
async fn samples_of_many_commits_become_one_file_sorted_by_device() {
    let folder = tempfile::tempdir().unwrap();
    let root = Url::from_directory_path(folder.path()).unwrap();
    let mut lake = open(&root).await;
    lake.attach(TOPIC, &[0]).await.unwrap();
    for (offset, event) in samples(3, 40).iter().enumerate() {
        absorb(&mut lake, offset as u64, std::slice::from_ref(event));
        lake.flush().await.unwrap();
    }
    let spec = shipped().await.tables().into_iter().find(|t| t.name == "gpu_samples").unwrap();
    assert_eq!(files_of(&root, &spec).await, 40);
    let rows = "SELECT * FROM gpu_samples ORDER BY cluster, node, gpu_uuid, mig_uuid, event_time, seq";
    let before = ask(&lake.catalog(), rows).await;
    maintenance::run_due(&mut lake, &Maintenance::default()).await.unwrap();
    assert_eq!(ask(&lake.catalog(), rows).await, before);
    let store = DeltaStore::open(&root, Arc::clone(&spec)).await.unwrap().unwrap();
    let files = store.files().unwrap();
    assert_eq!((files.len(), files[0].rows()), (1, Some(before.len() as u64)));
    let sorted_by: Vec<_> = store.read_file(&files[0]).await.unwrap();
    let picked: Vec<_> = sorted_by.iter().map(|b| b.project(&[0, 1, 2, 5, 6]).unwrap()).collect();
    let lines = pretty_format_batches(&picked).unwrap().to_string();
    let lines: Vec<&str> =
        lines.lines().filter(|line| line.starts_with("| e") || line.starts_with("| w")).collect();
    assert!(lines.len() == before.len() && lines.is_sorted(), "{} rows", lines.len());
}

pub async fn files_of(root: &Url, spec: &Arc<TableSpec>) -> usize {
    DeltaStore::open(root, Arc::clone(spec)).await.unwrap().unwrap().files().unwrap().len()
}

/// Growth of counters: from tick to tick, up to the first tick, across unread values, and after a
/// reset.
#[tokio::test]
async fn growth_counts_at_the_sample_that_ends_it_if_known() {
    let folder = tempfile::tempdir().unwrap();
    let root = Url::from_directory_path(folder.path()).unwrap();
    let mut lake = open(&root).await;
    lake.attach(TOPIC, &[0]).await.unwrap();
    // Two devices with three ticks. The first one: 40 before the batch, then one unread value, then
    // 30 in two ticks. The second one: nothing is known of before, the counter is reset, then it
    // counts 5.
    let mut energy = column("energy_mj", &[1_000, 0, 30, 700, -690, 5], &[(1, 1, MissingReason::Stale)]);
    energy.first_growth = vec![40, -1];
    let interval = column("interval_us", &[1_000_000, 0, 2, 999_999, 1, 0], &[]);
    let ratio = column("sm_active_ppm", &[500_000, 0, 0, 1_000_000, 0, -999_999], &[]);
    absorb(&mut lake, 0, &[batch("n1", vec![energy, interval, ratio])]);
    for _ in 0..2 {
        let sql = "SELECT gpu_uuid, energy_mj, energy_known_us, us_sampled, sm_active_us, sm_active_known_us, samples, \
                          tensor_active_us, tensor_active_known_us, unread_stale_count FROM gpu_1m ORDER BY gpu_uuid";
        lake.refresh().await.unwrap();
        let expected = [
            "|GPU-a|5|1000000|2999999|2000000|2999999|3||0|0|",
            "|GPU-b|70|3000002|3000002|1500001|3000002|3||0|1|",
        ];
        assert_eq!(ask(&lake.catalog(), sql).await, expected);
        lake.flush().await.unwrap();
    }
}
