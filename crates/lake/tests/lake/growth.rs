//! Growth of memory: what lasts is computed apart from what has ended, and gives the rows of the
//! definition over all history, for random histories and every delivery.

use arrow::array::RecordBatch;
use datafusion::error::DataFusionError;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use tidegate_events::Event;
use tidegate_events::v1::gpu_sample_batch::{Column, DeviceInfo};
use tidegate_events::v1::{GpuSampleBatch, JobEvent, JobEventKind};
use tidegate_lake::engine::{self, Limits};
use tidegate_lake::lake::{Lake, Sharing};
use tidegate_lake::testing::equivalence::Delivery;
use url::Url;

use crate::equivalence::{deliveries, seeds};
use crate::flat_cost::{data_files, wipe};
use crate::histories::{envelope, job_event, sealed};
use crate::pending::{differences, plan, view};

/// 2023-11-14 20:00 UTC.
const START_MS: i64 = 1_699_992_000_000;
const MINUTE_MS: i64 = 60_000;
const HOURS: i64 = 6;

/// Samples once a minute of the two GPUs of a node, up to `minutes`; some minutes are missing.
fn samples(rng: &mut ChaCha8Rng, cluster: &str, node: &str, minutes: i64, events: &mut Vec<Event>) {
    let mut at = 0;
    while at < minutes {
        let ticks = rng.random_range(1..30_usize);
        let devices = [0, 1].map(|index| DeviceInfo {
            uuid: format!("GPU-{node}{index}"),
            index,
            ..DeviceInfo::default()
        });
        let mut column = |name: &str, most: i64| Column {
            name: name.into(),
            value_delta: (0..2 * ticks)
                .map(|place| if place % ticks == 0 { 5 << 30 } else { rng.random_range(-1..most) })
                .collect(),
            ..Column::default()
        };
        events.push(Event::GpuSamples(GpuSampleBatch {
            envelope: envelope(cluster, START_MS + at * MINUTE_MS),
            node: node.into(),
            devices: devices.to_vec(),
            first_tick_ms: START_MS + at * MINUTE_MS,
            tick_delta_ms: vec![MINUTE_MS; ticks - 1],
            columns: vec![column("framebuffer_used_bytes", 1 << 28), column("framebuffer_total_bytes", 0)],
            processes: Vec::new(),
        }));
        at += ticks as i64 + if rng.random_bool(0.2) { rng.random_range(1..40) } else { 0 };
    }
}

/// A job with attempts, or a pod without any. It holds devices at least once, and some of its holds
/// never end.
fn job(rng: &mut ChaCha8Rng, cluster: &str, id: usize, events: &mut Vec<Event>) {
    let name = format!("j{id}");
    let event = |kind, minute: i64| job_event(cluster, &name, kind, START_MS + minute * MINUTE_MS + 7_000);
    let from = rng.random_range(0..HOURS * 60);
    let to = from + rng.random_range(1..200);
    if rng.random_bool(0.8) {
        events.push(Event::Job(JobEvent { attempt_id: Some(0), ..event(JobEventKind::Started, from) }));
        if rng.random_bool(0.6) {
            let final_state = Some("COMPLETED".into());
            events.push(Event::Job(JobEvent {
                attempt_id: Some(0),
                final_state,
                ..event(JobEventKind::Ended, to)
            }));
        }
    }
    for hold in 0..rng.random_range(1..5) {
        let (node, index) = (rng.random_range(0..2), rng.random_range(0..2));
        let by_uuid = rng.random_bool(0.6);
        let held = JobEvent {
            hold_id: Some(format!("h{hold}")),
            attempt_id: rng.random_bool(0.5).then_some(0),
            step_id: rng.random_bool(0.2).then(|| "0".into()),
            node: Some(format!("n{node}")),
            gpu_uuid: by_uuid.then(|| format!("GPU-n{node}{index}")),
            gpu_index: (!by_uuid || rng.random_bool(0.5)).then_some(index),
            hold_quality: Some((*["EXACT", "EXACT", "EXACT", "UNKNOWN"].choose(rng).unwrap()).into()),
            hold_evidence: Some((*["slurm", "cgroup"].choose(rng).unwrap()).into()),
            ..JobEvent::default()
        };
        let begins = from + rng.random_range(-3..60);
        let tell = |kind, minute| {
            let told = event(kind, minute);
            Event::Job(JobEvent {
                envelope: told.envelope,
                job_id: told.job_id,
                kind: told.kind,
                ..held.clone()
            })
        };
        events.push(tell(JobEventKind::DeviceHeld, begins));
        if rng.random_bool(0.5) {
            events.push(tell(JobEventKind::DeviceReleased, begins + rng.random_range(0..150)));
        }
    }
}

/// Two clusters, of which the second stops reporting hours before the end.
fn history(seed: u64) -> Vec<Event> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut events = Vec::new();
    for (cluster, minutes) in [("east", HOURS * 60), ("west", rng.random_range(60..180))] {
        for node in ["n0", "n1"] {
            samples(&mut rng, cluster, node, minutes, &mut events);
        }
        (0..14).for_each(|id| job(&mut rng, cluster, id, &mut events));
        events.retain(|event| {
            let is_here = event.envelope().is_some_and(|envelope| envelope.cluster == cluster);
            !is_here || event.event_time_ms() < START_MS + minutes * MINUTE_MS
        });
    }
    sealed(events)
}

#[tokio::test(flavor = "multi_thread")]
async fn growth_is_that_of_the_view_over_all_history() {
    let plan = plan(&["memory_growth", "memory_growth_before"]).await;
    let (mut ended, mut lasting, mut timed) = (0, 0, 0);
    for seed in 0..seeds() {
        let events = history(seed);
        let expected = view(&plan, &events, Delivery::OneShot, seed, "memory_growth_before").await;
        for delivery in deliveries(seed) {
            let found = view(&plan, &events, delivery, seed, "memory_growth").await;
            assert!(
                found.columns() == expected.columns(),
                "seed {seed}, {delivery:?}: \n{}",
                differences(&found, &expected)
            );
        }
        lasting += expected["to_time"].null_count();
        ended += expected.num_rows() - expected["to_time"].null_count();
        timed += expected["bytes_per_hour"].len() - expected["bytes_per_hour"].null_count();
    }
    assert!(
        ended > 20 && lasting > 10 && timed > 10,
        "{ended} ended, {lasting} lasting, {timed} with a slope"
    );
}

/// Five days: each hour a job of 50 minutes on one GPU of a node, and on the other one that lasts.
fn days(number: i64) -> Vec<Event> {
    let mut events = Vec::new();
    let hold = |job: &str, kind, minute: i64, index| {
        let told = job_event("east", job, kind, START_MS + minute * MINUTE_MS);
        Event::Job(JobEvent {
            hold_id: Some("h".into()),
            node: Some("n0".into()),
            gpu_index: Some(index),
            hold_quality: Some("EXACT".into()),
            hold_evidence: Some("slurm".into()),
            ..told
        })
    };
    let attempt = |job: &str, kind, minute: i64| {
        let final_state = (kind == JobEventKind::Ended).then(|| "COMPLETED".into());
        let told = job_event("east", job, kind, START_MS + minute * MINUTE_MS);
        Event::Job(JobEvent { attempt_id: Some(0), final_state, ..told })
    };
    let first = number * 24 * 60;
    if number == 4 {
        events.push(attempt("lasts", JobEventKind::Started, first));
        events.push(hold("lasts", JobEventKind::DeviceHeld, first, 1));
    }
    for minute in (first..first + 24 * 60).step_by(60) {
        let job = format!("j{minute}");
        events.push(attempt(&job, JobEventKind::Started, minute));
        events.push(hold(&job, JobEventKind::DeviceHeld, minute, 0));
        events.push(hold(&job, JobEventKind::DeviceReleased, minute + 50, 0));
        events.push(attempt(&job, JobEventKind::Ended, minute + 50));
    }
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let mut sampled = Vec::new();
    samples(&mut rng, "east", "n0", 24 * 60, &mut sampled);
    for event in &mut sampled {
        let Event::GpuSamples(batch) = event else { unreachable!("samples") };
        batch.first_tick_ms += first * MINUTE_MS;
        batch.envelope = envelope("east", batch.first_tick_ms);
    }
    events.extend(sampled);
    sealed(events)
}

/// The query would fail if it read rows that are wiped.
#[tokio::test(flavor = "multi_thread")]
async fn what_lasts_is_known_without_the_minutes_of_days_before() {
    let plan = plan(&["memory_growth"]).await;
    let folder = tempfile::tempdir().unwrap();
    let root = Url::from_directory_path(folder.path()).unwrap();
    let mut lake = Lake::open(&root, plan.clone(), Limits::default(), Sharing::Exclusive).await.unwrap();
    for group in &plan.groups {
        lake.attach(group.raw.schema.topic(), &[0]).await.unwrap();
    }
    let (mut next, mut old) = (0, Vec::new());
    for day in 0..5 {
        let events = days(day);
        for group in &plan.groups {
            let mut intake = lake.intake(group.raw.schema.topic(), 0);
            (next..).zip(&events).for_each(|(offset, event)| intake.push(offset, event));
            lake.absorb(intake, next + events.len() as u64).unwrap();
        }
        next += events.len() as u64;
        if day == 4 {
            let tables = ["gpu_1m", "gpu_1h", "gpu_samples", "job_events"];
            old = tables.into_iter().flat_map(|table| data_files(&folder.path().join(table))).collect();
        }
        lake.flush().await.unwrap();
    }
    let growing = |condition: &str| {
        let sql = format!("SELECT job_id FROM memory_growth WHERE minutes > 0 AND {condition}");
        let catalog = lake.catalog().current();
        async move {
            let limits = Limits::default();
            let ctx = engine::session(&engine::runtime(limits).unwrap(), limits);
            catalog.register(&ctx).unwrap();
            let rows = ctx.sql(&sql).await.unwrap().collect().await?;
            Ok::<_, DataFusionError>(rows.iter().map(RecordBatch::num_rows).sum::<usize>())
        }
    };
    assert_eq!(growing("to_time IS NULL").await.unwrap(), 1);
    assert!(old.len() > 10, "{}", old.len());
    old.iter().for_each(|file| wipe(file));
    assert_eq!(growing("to_time IS NULL").await.unwrap(), 1, "of the last day alone");
    assert!(growing("true").await.is_err(), "what has ended is in the minutes of all days");
}
