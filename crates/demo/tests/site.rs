//! The site is coherent: jobs, devices and times are the same in everything that is observed.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use tidegate_control::PlanArchive;
use tidegate_demo::{Feed, Pilot, Site, Times};
use tidegate_events::v1::JobEventKind as Kind;
use tidegate_events::{Event, SchemaId, v1};
use tidegate_log::{EventLog, TopicConfig, TopicPartition};
use tidegate_testing::MemoryLog;

/// 2026-11-26, 03:20, 20:20 and 11:47 UTC. The autopilot learns by the hour, so the minute counts.
const PRESENTS: [i64; 3] = [1_795_663_200_000, 1_795_724_400_000, 1_795_693_620_000];
const MINUTE_MS: i64 = 60_000;

/// The site up to its present and beyond, and all that was observed, in order.
fn observed(present_ms: i64, with_pilot: bool) -> Vec<Event> {
    let folder = Path::new("../tidegate/demo");
    let log = Arc::new(MemoryLog::default()) as Arc<dyn EventLog>;
    for topic in SchemaId::ALL.map(SchemaId::topic) {
        let config = TopicConfig { partitions: 1, retain_ms: None, retain_bytes: None };
        log.create_topic(topic, config).unwrap();
    }
    let times = Times::until(present_ms);
    let mut site = Site::new(folder, times).unwrap();
    let mut feed = Feed::new(Arc::clone(&log), 1).unwrap();
    let archive = tempfile::tempdir().unwrap();
    let mut pilot = Pilot::new(Arc::clone(&log), PlanArchive::in_data(archive.path())).unwrap();
    while site.now_ms() < present_ms + 10 * MINUTE_MS {
        let observed = site.advance(site.now_ms() + MINUTE_MS).unwrap();
        feed.take(observed).unwrap();
        if with_pilot {
            pilot.follow(&mut site).unwrap();
        }
    }
    feed.take(site.go_live()).unwrap();
    feed.flush().unwrap();
    let topics: BTreeSet<&str> = SchemaId::ALL.map(SchemaId::topic).into_iter().collect();
    let read = |topic: &str| {
        let at = TopicPartition { topic: topic.into(), partition: 0 };
        let stored = log.read(&at, 0, usize::MAX).unwrap();
        stored
            .into_iter()
            .map(|it| Event::decode(it.record.schema, &it.record.payload).unwrap())
            .collect::<Vec<_>>()
    };
    topics.into_iter().flat_map(read).collect()
}

/// A hold of a device that only one job may have.
#[derive(Debug, Clone)]
struct Hold {
    job: String,
    from_ms: i64,
    to_ms: i64,
}

fn job_events(events: &[Event]) -> impl Iterator<Item = &v1::JobEvent> {
    events.iter().filter_map(|event| if let Event::Job(job) = event { Some(job) } else { None })
}

fn time_ms(event: &v1::JobEvent) -> i64 {
    event.envelope.as_ref().map_or(0, |envelope| envelope.event_time_ms)
}

/// By node and index of the GPU: the holds that Slurm reports.
fn holds(events: &[Event]) -> BTreeMap<(String, u32), Vec<Hold>> {
    let mut open: BTreeMap<&str, (&v1::JobEvent, i64)> = BTreeMap::new();
    let mut holds: BTreeMap<(String, u32), Vec<Hold>> = BTreeMap::new();
    let mut add = |held: &v1::JobEvent, from_ms, to_ms| {
        let device = (held.node().to_owned(), held.gpu_index());
        holds.entry(device).or_default().push(Hold { job: held.job_id.clone(), from_ms, to_ms });
    };
    for event in job_events(events).filter(|event| event.hold_evidence() == "slurm") {
        match event.kind() {
            Kind::DeviceHeld => {
                open.insert(event.hold_id(), (event, time_ms(event)));
            }
            _ => {
                let (held, from_ms) = open.remove(event.hold_id()).expect("what is released was held");
                add(held, from_ms, time_ms(event));
            }
        }
    }
    open.into_values().for_each(|(held, from_ms)| add(held, from_ms, i64::MAX));
    holds
}

fn check(events: &[Event]) {
    let mut holds = holds(events);
    for (device, held) in &mut holds {
        held.sort_by_key(|hold| hold.from_ms);
        assert!(
            held.windows(2).all(|two| two[0].to_ms <= two[1].from_ms),
            "{device:?} is held twice: {held:?}"
        );
    }
    let is_held = |node: &str, gpu: u32, job: &str, at_ms: i64| {
        let held = holds.get(&(node.to_owned(), gpu)).map_or(&[][..], Vec::as_slice);
        // The scheduler counts full seconds.
        held.iter()
            .any(|hold| hold.job == job && (hold.from_ms..hold.to_ms.saturating_add(1_000)).contains(&at_ms))
    };
    let prolog: BTreeSet<(&str, &str)> = job_events(events)
        .filter(|event| event.kind() == Kind::DeviceHeld && event.hold_evidence() == "prolog")
        .map(|event| (event.job_id.as_str(), event.gpu_uuid()))
        .collect();
    let mut index: BTreeMap<&str, (&str, u32)> = BTreeMap::new();
    let (mut processes, mut steps) = (0, 0);
    for event in events {
        let Event::GpuSamples(batch) = event else { continue };
        for device in &batch.devices {
            index.insert(&device.uuid, (&batch.node, device.index));
        }
        let mut ticks = vec![batch.first_tick_ms];
        batch.tick_delta_ms.iter().for_each(|delta| ticks.push(ticks[ticks.len() - 1] + delta));
        for process in &batch.processes {
            let device = &batch.devices[process.device as usize];
            let at_ms = ticks[process.first_tick as usize];
            let by_slurm = is_held(&batch.node, device.index, process.job_id(), at_ms);
            let by_prolog = prolog.contains(&(process.job_id(), device.uuid.as_str()));
            assert!(by_slurm || by_prolog, "{} on {} at {at_ms}", process.job_id(), device.uuid);
            processes += 1;
        }
    }
    for event in events {
        let Event::Step(step) = event else { continue };
        let at_ms = step.envelope.as_ref().map_or(0, |envelope| envelope.event_time_ms);
        let (node, gpu) = index[step.gpu_uuid()];
        assert_eq!(node, step.node());
        let by_slurm = is_held(node, gpu, &step.job_id, at_ms);
        assert!(by_slurm || prolog.contains(&(step.job_id.as_str(), step.gpu_uuid())), "{step:?}");
        steps += 1;
    }
    assert!(processes > 1_000 && steps > 10_000, "{processes} processes, {steps} steps");
}

#[test]
fn the_site_is_coherent_and_has_its_story() {
    let events = observed(PRESENTS[0], false);
    check(&events);
    let of_first: Vec<Kind> = job_events(&events)
        .filter(|job| job.job_id == "4711" && job.step_id.is_none())
        .map(|job| job.kind())
        .collect();
    let count = |kind| of_first.iter().filter(|known| **known == kind).count();
    assert_eq!((count(Kind::Started), count(Kind::Ended)), (2, 1), "it lost a node and goes on");
    let waiting: BTreeSet<&str> =
        job_events(&events).filter(|job| job.kind() == Kind::Waiting).map(|job| job.reason()).collect();
    assert!(waiting.is_superset(&BTreeSet::from(["Resources", "AssocGrpGRES"])), "{waiting:?}");
    let xids =
        events.iter().filter(|event| matches!(event, Event::Node(node) if node.xid == Some(79))).count();
    assert_eq!(xids, 2);
}

/// What jobs and the autopilot did, and how long before or after the present, ms.
fn story(events: &[Event], present_ms: i64) -> Vec<(String, i64)> {
    let told = |event: &Event| {
        let (what, envelope) = match event {
            Event::Job(job) => (format!("{} {}", job.job_id, job.kind().as_str_name()), &job.envelope),
            Event::Autopilot(entry) => (entry.kind().as_str_name().to_owned(), &entry.envelope),
            _ => return None,
        };
        Some((what, envelope.as_ref()?.event_time_ms - present_ms))
    };
    events.iter().filter_map(told).collect()
}

#[test]
fn at_every_hour_the_autopilot_lends_and_takes_back_and_the_story_is_the_same() {
    let [night, evening, noon] = PRESENTS.map(|present_ms| {
        let events = observed(present_ms, true);
        check(&events);
        story(&events, present_ms)
    });
    let other = night.iter().zip(&evening).find(|(one, other)| one != other);
    assert!(other.is_none() && night.len() == evening.len(), "{other:?}, {} {}", night.len(), evening.len());
    for story in [&night, &noon] {
        let verified = story.iter().filter(|(what, _)| what.ends_with("VERIFIED")).count();
        assert!(verified >= 2, "{} entries, {verified} verified", story.len());
    }
}
