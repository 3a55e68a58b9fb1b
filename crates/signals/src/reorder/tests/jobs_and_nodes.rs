//! Jobs without step reports, faults that end jobs, and lemon nodes.

use super::*;
use crate::publication::ppm;

const HOUR_MS: i64 = 3_600_000;

fn job(kind: v1::JobEventKind, job_id: &str, hosts: &str, gpus: u64, at_ms: i64) -> v1::JobEvent {
    v1::JobEvent {
        envelope: Some(v1::Envelope { event_time_ms: at_ms, ..v1::Envelope::default() }),
        kind: kind.into(),
        job_id: job_id.into(),
        attempt_id: Some(1),
        gpus_milli: Some(gpus * 1_000),
        nodes: Some(hosts.into()),
        ..v1::JobEvent::default()
    }
}

fn sealed_job(job: v1::JobEvent) -> Event {
    let at_ms = job.envelope.as_ref().unwrap().event_time_ms;
    sealed(Event::Job(job), at_ms)
}

fn started(job_id: &str, hosts: &str, gpus: u64, at_ms: i64) -> Event {
    sealed_job(job(v1::JobEventKind::Started, job_id, hosts, gpus, at_ms))
}

fn ended(job_id: &str, final_state: &str, at_ms: i64) -> Event {
    let job = job(v1::JobEventKind::Ended, job_id, "", 8, at_ms);
    sealed_job(v1::JobEvent { final_state: Some(final_state.into()), ..job })
}

fn xid(node: &str, index: u32, code: u32, at_ms: i64) -> Event {
    let event = v1::NodeEvent {
        kind: v1::NodeEventKind::Xid.into(),
        node: node.into(),
        gpu_uuid: Some(format!("GPU-{node}-{index}")),
        gpu_index: Some(index),
        xid: Some(code),
        ..v1::NodeEvent::default()
    };
    sealed(Event::Node(event), at_ms)
}

/// A job on all of n0 without step reports, whose device 5 is throttled in the seconds `slow`.
fn quiet(slow: std::ops::Range<i64>, until_s: i64) -> [Vec<Event>; 2] {
    let at_ms = |second: i64| START_MS + second * 1_000;
    let samples = (0..until_s).step_by(10).map(|s| samples("n0", at_ms(s), slow.contains(&s))).collect();
    let jobs = vec![started("q", "n0", 8, START_MS), ended("q", "COMPLETED", at_ms(until_s))];
    [jobs, samples]
}

fn states(signals: &[&v1::StragglerSignal]) -> Vec<v1::SignalState> {
    let mut signals = signals.to_vec();
    signals.sort_by_key(|signal| (signal.episode, signal.revision));
    signals.iter().map(|signal| signal.state()).collect()
}

#[test]
fn a_throttled_device_of_a_job_without_step_reports_is_named() {
    let output = assert_same_in_any_order(&quiet(600..1_200, 1_800), end_us());
    let signals = stragglers(&output);
    assert_eq!(states(&signals), [v1::SignalState::Confirmed, v1::SignalState::Cleared], "{signals:#?}");
    let confirmed = signals.iter().find(|s| s.state() == v1::SignalState::Confirmed).unwrap();
    assert_eq!((confirmed.node.as_deref(), confirmed.gpu_uuid.as_deref()), (Some("n0"), Some("GPU-n0-5")));
    // No event names the rank of the device.
    assert_eq!((confirmed.blame.as_str(), confirmed.gpu_index, confirmed.rank), ("RANK", Some(5), None));
    assert_eq!((confirmed.class.as_str(), confirmed.attempt_id), ("COMPUTE_THERMAL", Some(1)));
    // Means over 90 s: throttling in 3 windows of 9 exceeds 0.3, in 2 it does not.
    assert_eq!(confirmed.said_ms, START_MS + 630_000);
    assert!(confirmed.evidence.iter().any(|line| line.starts_with("no_step_reports")), "{confirmed:?}");
}

#[test]
fn devices_that_idle_together_or_have_less_to_do_are_not_blamed() {
    let [jobs, _] = quiet(0..0, 1_800);
    let column = |name: &str, value: &dyn Fn(u32) -> i64| {
        let of_device = |device| std::iter::once(value(device)).chain(std::iter::repeat_n(0, 9));
        Column { name: name.into(), value_delta: (0..8).flat_map(of_device).collect(), ..Column::default() }
    };
    let samples = |second: i64| {
        let idles = second >= 600;
        // All devices wait in step. Device 3 waits longest, with a lower clock and less power.
        let clock = |device: u32| match (idles, device) {
            (false, _) => 1_500,
            (true, 3) => 1_000,
            (true, _) => 1_200,
        };
        let power = |device: u32| match (idles, device) {
            (false, _) => 600_000,
            (true, 3) => 150_000,
            (true, _) => 250_000,
        };
        let event = super::samples("n0", START_MS + second * 1_000, false);
        let Event::GpuSamples(mut batch) = event else { panic!("{event:?}") };
        batch.columns = vec![
            column("sm_clock_mhz", &clock),
            column("power_mw", &power),
            column("throttle_reasons_bits", &|_| 0),
        ];
        sealed(Event::GpuSamples(batch), START_MS + second * 1_000)
    };
    let samples: Vec<Event> = (0..1_800).step_by(10).map(samples).collect();
    let (output, counts) = all_at_once(jobs.into_iter().chain(samples));
    assert_eq!((stragglers(&output), counts.late), (vec![], 0));
}

#[test]
fn part_of_a_node_is_watched_where_holds_name_devices() {
    let half = |holds: bool| {
        let [_, samples] = quiet(600..1_200, 1_800);
        let mut jobs = vec![started("q", "n0", 4, START_MS)];
        for index in (4..8).filter(|_| holds) {
            jobs.push(sealed_job(v1::JobEvent {
                hold_id: Some(format!("h{index}")),
                node: Some("n0".into()),
                gpu_uuid: Some(format!("GPU-n0-{index}")),
                gpu_index: Some(index),
                hold_quality: Some("EXACT".into()),
                ..job(v1::JobEventKind::DeviceHeld, "q", "", 1, START_MS + 2_000)
            }));
        }
        let (output, _) = all_at_once(jobs.into_iter().chain(samples));
        stragglers(&output).iter().map(|signal| signal.gpu_index).collect::<BTreeSet<_>>()
    };
    assert_eq!(half(true), [Some(5)].into());
    assert_eq!(half(false), [].into());
}

#[test]
fn the_first_step_ends_watching_by_counters() {
    // Throttled from 600 s on. Steps are reported from 900 s on, with device 5 a quarter slower in
    // all of them.
    let [mut jobs, samples] = quiet(600..9_999, 1_800);
    let mut steps = Vec::new();
    let mut at_ms = START_MS + 900_000;
    for step in 0..400 {
        for rank in 0..8 {
            let compute_us = if rank == SLOW_RANK { 1_875_000 } else { 1_500_000 };
            let report = v1::StepReport {
                job_id: "q".into(),
                attempt_id: Some(1),
                rank,
                world_size: Some(8),
                step,
                duration_us: 2_000_000,
                compute_us: Some(compute_us + u64::from(rank) * 100 + step * 7 % 50 * 100),
                communication_us: Some(2_000_000 - compute_us),
                data_wait_us: Some(0),
                node: Some("n0".into()),
                gpu_uuid: Some(format!("GPU-n0-{rank}")),
                gpu_index: Some(rank),
                ..v1::StepReport::default()
            };
            steps.push(sealed(Event::Step(report), at_ms));
        }
        at_ms += 2_000;
    }
    jobs.truncate(1);
    let output = assert_same_in_any_order(&[jobs, samples, steps], end_us());
    let signals = stragglers(&output);
    let (by_steps, by_counters): (Vec<_>, Vec<_>) = signals.iter().copied().partition(|s| s.rank.is_some());
    assert_eq!(states(&by_counters), [v1::SignalState::Confirmed, v1::SignalState::Cleared]);
    let cleared = by_counters.iter().find(|s| s.state() == v1::SignalState::Cleared).unwrap();
    // Cleared with the end of the first step; the detector's clock stands at the tick before it.
    assert!((900_000..=902_000).contains(&(cleared.said_ms - START_MS)), "{cleared:?}");
    assert!(
        by_steps.iter().all(|s| s.said_ms > cleared.said_ms && s.episode > cleared.episode),
        "{by_steps:#?}"
    );
    let statements: BTreeSet<_> = signals.iter().map(|s| (s.episode, s.revision)).collect();
    assert_eq!(statements.len(), signals.len());
}

/// Twenty nodes in use for nine days. On n07 a device falls off the bus every 18 hours and ends a
/// job.
fn days() -> [Vec<Event>; 2] {
    let hosts: Vec<String> = (0..20).map(|n| format!("n{n:02}")).collect();
    let (mut jobs, mut nodes) = (vec![started("all", &hosts.join(","), 160, START_MS)], Vec::new());
    for n in 0..12 {
        let at_ms = START_MS + n * 18 * HOUR_MS + HOUR_MS;
        jobs.push(started(&format!("f{n}"), "n07", 8, at_ms - HOUR_MS / 2));
        nodes.push(xid("n07", 3, 79, at_ms));
        jobs.push(ended(&format!("f{n}"), "FAILED", at_ms + 30_000));
        // Faults of programs on other nodes make no lemon.
        nodes.push(xid("n02", 1, 31, at_ms));
    }
    jobs.push(ended("all", "COMPLETED", START_MS + 9 * 24 * HOUR_MS));
    [jobs, nodes]
}

fn job_ends(output: &[Publication]) -> Vec<&v1::JobEndSignal> {
    let events = output.iter().flat_map(|publication| &publication.events);
    events.filter_map(|event| if let Event::JobEnd(signal) = event { Some(signal) } else { None }).collect()
}

#[test]
fn ends_are_attributed_and_lemons_found() {
    let output = assert_same_in_any_order(&days(), (START_MS + 12 * 24 * HOUR_MS) * 1_000);
    let ends = job_ends(&output);
    assert_eq!(ends.len(), 12);
    for end in &ends {
        assert_eq!((end.cause.as_str(), end.node.as_str(), end.gpu_index), ("DEVICE_LOST", "n07", Some(3)));
        // exp(4 + 1 - 30 / 300) against 1 for no fault.
        let score = 4.9_f64.exp();
        assert_eq!(end.probability_ppm, ppm(score / (1.0 + score)));
        let envelope = end.envelope.as_ref().unwrap();
        assert_eq!((envelope.event_time_ms - end.end_ms, end.end_ms - end.fault_ms), (60_000, 30_000));
        assert_eq!(end.lost_gpu_ms, None);
    }
    let nodes = output.iter().flat_map(|p| &p.events).filter_map(|event| match event {
        Event::NodeHealth(signal) if signal.lemon_ppm.is_some_and(|ppm| ppm > 950_000) => Some(signal),
        _ => None,
    });
    let lemons: Vec<&v1::NodeSignal> = nodes.collect();
    assert!(lemons.iter().all(|signal| signal.node == "n07" && signal.lemon_least_milli > Some(3_000)));
    assert!(lemons.iter().all(|signal| signal.state() != v1::NodeHealthState::Healthy));
    let midnights = lemons.iter().filter(|signal| {
        let envelope = signal.envelope.as_ref().unwrap();
        envelope.source.starts_with("insight#lemon-1/")
            && envelope.event_time_ms.rem_euclid(24 * HOUR_MS) == 0
    });
    // From the second failure, after one and a half days, once a day up to the twelfth midnight,
    // when all events end.
    assert_eq!(midnights.count(), 11, "{lemons:#?}");
    let last = lemons.iter().max_by_key(|signal| signal.envelope.as_ref().unwrap().event_time_ms).unwrap();
    // Nine days of 24 hours; twelve failures, each in an hour of its own.
    assert_eq!((last.used_hours, last.bad_hours), (Some(9 * 24), Some(12)));
    assert!(last.evidence.iter().any(|line| line.starts_with("lemon ")), "{last:?}");
}

#[test]
fn the_last_checkpoint_tells_what_an_end_cost() {
    let step = |step: u64, checkpoint_us: u64| {
        let report = v1::StepReport {
            job_id: "f".into(),
            attempt_id: Some(1),
            world_size: Some(1),
            step,
            duration_us: 10_000_000,
            checkpoint_us: Some(checkpoint_us),
            ..v1::StepReport::default()
        };
        sealed(Event::Step(report), START_MS + step as i64 * 10_000)
    };
    let mut events = vec![started("f", "n0", 8, START_MS), xid("n0", 0, 48, START_MS + 295_000)];
    events.extend((0..29).map(|n| step(n, if n == 9 { 500_000 } else { 0 })));
    events.push(ended("f", "FAILED", START_MS + 300_000));
    let (output, _) = all_at_once(events);
    let ends = job_ends(&output);
    // The tenth step ended after 100 s: 200 s on 8 GPUs are lost.
    assert_eq!((ends[0].cause.as_str(), ends[0].lost_gpu_ms), ("MEMORY", Some(8 * 200_000)));
}

#[test]
fn an_end_is_attributed_once_despite_late_events() {
    let mut reorder = Reorder::new(i64::MIN);
    let input = [started("f", "n0", 8, START_MS), ended("f", "FAILED", START_MS + HOUR_MS)];
    for event in input.iter().cloned().chain([xid("n0", 0, 79, START_MS + HOUR_MS - 5_000)]) {
        reorder.push(event, NOW_MS);
    }
    reorder.advance((START_MS + 2 * HOUR_MS) * 1_000);
    assert_eq!(job_ends(&reorder.take()).len(), 1);
    for event in input.into_iter().chain([xid("n0", 1, 74, START_MS + HOUR_MS - 9_000)]) {
        reorder.push(event, NOW_MS);
    }
    reorder.advance((START_MS + 3 * HOUR_MS) * 1_000);
    assert_eq!((job_ends(&reorder.take()).len(), reorder.counts().late), (0, 3));
}
