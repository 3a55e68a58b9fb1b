//! A late event gives the next revision to the closed windows it changes, and to no others.

use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use tidegate_events::Event;
use tidegate_events::v1::{Envelope, JobEvent, JobEventKind};
use tidegate_lake::engine::{self, Limits};
use tidegate_lake::lake::{Lake, Sharing};
use tidegate_lake::pipeline::Plan;
use url::Url;

const HOUR_MS: i64 = 3_600_000;

fn event(job_id: &str, kind: JobEventKind, hour: i64) -> Event {
    let time = hour * HOUR_MS;
    let mut event = Event::Job(JobEvent {
        envelope: Some(Envelope {
            cluster: "c".into(),
            event_time_ms: time,
            observed_time_ms: time,
            ..Envelope::default()
        }),
        job_id: job_id.into(),
        kind: kind.into(),
        attempt_id: matches!(kind, JobEventKind::Started | JobEventKind::Ended).then_some(0),
        gpus_milli: (kind != JobEventKind::Ended).then_some(1_000),
        final_state: (kind == JobEventKind::Ended).then(|| "COMPLETED".into()),
        ..JobEvent::default()
    });
    event.seal();
    event
}

async fn revisions(lake: &Lake) -> Vec<i64> {
    let limits = Limits::default();
    let ctx = engine::session(&engine::runtime(limits).unwrap(), limits);
    lake.catalog().current().register(&ctx).unwrap();
    let sql = "SELECT revision FROM window_revisions WHERE pipeline = 'usage_1h' ORDER BY window_start";
    let rows = ctx.sql(sql).await.unwrap().collect().await.unwrap();
    rows.iter().flat_map(|b| b.column(0).as_primitive::<Int64Type>().values().to_vec()).collect()
}

async fn absorb(lake: &mut Lake, from: u64, events: &[Event]) {
    let mut intake = lake.intake("jobs", 0);
    events.iter().zip(from..).for_each(|(event, offset)| intake.push(offset, event));
    lake.absorb(intake, from + events.len() as u64).unwrap();
}

#[tokio::test]
async fn late_events_revise_the_windows_they_change() {
    let folder = tempfile::tempdir().unwrap();
    let root = Url::from_directory_path(folder.path()).unwrap();
    let plan = Plan::compile(tidegate_lake::pipeline::shipped()).await.unwrap();
    let mut lake = Lake::open(&root, plan, Limits::default(), Sharing::Exclusive).await.unwrap();
    lake.attach("jobs", &[0]).await.unwrap();

    let on_time = [
        event("a", JobEventKind::Started, 10),
        event("a", JobEventKind::Ended, 14),
        event("", JobEventKind::Observed, 30),
    ];
    absorb(&mut lake, 0, &on_time).await;
    lake.flush().await.unwrap();
    assert_eq!(revisions(&lake).await, [0, 0, 0, 0], "hours 10 to 13 were held, on time");

    let late = [event("b", JobEventKind::Started, 12), event("b", JobEventKind::Ended, 16)];
    absorb(&mut lake, 3, &late).await;
    lake.flush().await.unwrap();
    assert_eq!(
        revisions(&lake).await,
        [0, 0, 1, 1, 0, 0],
        "hours 12 and 13 changed after they closed; 14 and 15 are new"
    );
}
