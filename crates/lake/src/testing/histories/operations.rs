//! What schedulers and people configure, and what Tidegate itself writes: capacity, prices, pool
//! samples, signals, forecasts, autopilot actions, dead letters.

use rand::Rng;
use tidegate_events::Event;
use tidegate_events::v1::{
    AuditEvent, AuditEventKind, AutopilotEvent, AutopilotEventKind, CapacityEvent, CapacityEventKind,
    CoverageSignal, CoverageState, DeadLetter, Forecast, ForecastReach, JobEndSignal, NodeHealthState,
    NodeSignal, PoolSample, ScalingCurve, SeriesKind, SignalState, SizingAdvice, StragglerSignal,
};

use super::{HOUR_MS, MINUTE_MS, START_MS, Timeline, envelope};

pub(super) fn emit(timeline: &mut Timeline) {
    capacity(timeline);
    let mut at_ms = START_MS;
    while at_ms < timeline.end_ms {
        pool_sample(timeline, at_ms);
        if (at_ms - START_MS) % (30 * MINUTE_MS) == 0 {
            signals(timeline, at_ms + 1_000);
            forecast(timeline, at_ms);
            autopilot(timeline, at_ms + 2_000);
        }
        at_ms += 10 * MINUTE_MS;
    }
}

fn capacity(timeline: &mut Timeline) {
    let set = |kind: CapacityEventKind, owner: &str, at_ms, gpus: u64| CapacityEvent {
        envelope: envelope("east", at_ms),
        kind: kind.into(),
        owner: owner.into(),
        pool: Some("a".into()),
        gpus_milli: Some(gpus * 1_000),
        ..CapacityEvent::default()
    };
    timeline.emit(Event::Capacity(CapacityEvent {
        nodes: Some("n0,n1,n2".into()),
        state: Some("UP".into()),
        ..set(CapacityEventKind::PartitionSet, "total", START_MS, 10)
    }));
    for owner in ["t0", "t1", "t2"] {
        for _ in 0..2 {
            let (at_ms, gpus) = (timeline.time(), timeline.rng.random_range(0..8));
            timeline.emit(Event::Capacity(set(CapacityEventKind::QuotaSet, owner, at_ms, gpus)));
        }
    }
    timeline.emit(Event::Capacity(set(CapacityEventKind::LimitSet, "t1", START_MS + 70_000, 4)));
    for (number, at_ms) in
        [START_MS + 10 * MINUTE_MS, timeline.end_ms - 70 * MINUTE_MS].into_iter().enumerate()
    {
        let reserved = |kind| CapacityEvent {
            name: Some(format!("r{number}")),
            start_ms: Some(at_ms),
            end_ms: Some(at_ms + 40 * MINUTE_MS),
            nodes: Some("n2".into()),
            accounts: Some("t2".into()),
            state: Some("ACTIVE".into()),
            ..set(kind, "t2", at_ms, 2)
        };
        timeline.emit(Event::Capacity(reserved(CapacityEventKind::ReservationSet)));
        let mut removed = reserved(CapacityEventKind::ReservationRemoved);
        removed.envelope = envelope("east", at_ms + 35 * MINUTE_MS);
        timeline.emit(Event::Capacity(removed));
    }
    for (at_ms, contract, micros) in [
        (START_MS, "reserved", 2_000_000),
        (START_MS + HOUR_MS, "reserved", 2_500_000),
        (START_MS, "on_demand", 4_000_000),
    ] {
        timeline.emit(Event::Capacity(CapacityEvent {
            contract: Some(contract.into()),
            currency: Some("EUR".into()),
            price_micros_per_gpu_hour: Some(micros),
            entered_ms: Some(at_ms),
            gpus_milli: None,
            ..set(CapacityEventKind::PriceSet, "total", at_ms, 0)
        }));
    }
}

fn pool_sample(timeline: &mut Timeline, at_ms: i64) {
    for owner in ["t0", "t1"] {
        let (held, queued) = (timeline.rng.random_range(0..5), timeline.rng.random_range(0..5));
        timeline.emit(Event::PoolSample(PoolSample {
            envelope: envelope("east", at_ms),
            owner: owner.into(),
            pool: Some("a".into()),
            interval_ms: 10 * MINUTE_MS as u64,
            quota_gpus_milli: Some(4_000),
            held_gpus_milli: Some(held * 1_000),
            queued_gpus_milli: Some(queued * 1_000),
            running_jobs: Some(2),
            pending_jobs: Some(1),
        }));
    }
}

/// One signal of each kind.
fn signals(timeline: &mut Timeline, at_ms: i64) {
    let number = ((at_ms - START_MS) / (30 * MINUTE_MS)) as u32;
    let (job, node) = (format!("j{}", number % 4), format!("n{}", number % 3));
    let states = [SignalState::Suspect, SignalState::Confirmed, SignalState::Cleared];
    timeline.emit(Event::Straggler(StragglerSignal {
        envelope: envelope("east", at_ms),
        state: states[number as usize % 3].into(),
        job_id: job.clone(),
        episode: u64::from(number / 3),
        revision: number % 3,
        blame: "node".into(),
        node: Some(node.clone()),
        class: "compute".into(),
        posterior_ppm: 900_000,
        onset_ms: at_ms - 60_000,
        detected_ms: at_ms - 30_000,
        said_ms: at_ms,
        slowdown_ppm: 200_000,
        lost_gpu_ms: 8_000,
        evidence: vec!["steps".into()],
        model: "test".into(),
        ..StragglerSignal::default()
    }));
    let health =
        [NodeHealthState::Healthy, NodeHealthState::Watch, NodeHealthState::Bad][number as usize % 3];
    timeline.emit(Event::NodeHealth(NodeSignal {
        envelope: envelope("east", at_ms),
        state: health.into(),
        node: node.clone(),
        bad_ppm: 1_000 * number,
        model: "test".into(),
        ..NodeSignal::default()
    }));
    timeline.emit(Event::Coverage(CoverageSignal {
        envelope: envelope("east", at_ms),
        kind: SeriesKind::Pool.into(),
        name: "a".into(),
        reach: ForecastReach::NextStep.into(),
        state: [CoverageState::Holds, CoverageState::TooLow][number as usize % 2].into(),
        since_ms: START_MS,
        scores: u64::from(number),
        inside80_ppm: 800_000,
        below95_ppm: 950_000,
        model: "test".into(),
    }));
    timeline.emit(Event::JobEnd(JobEndSignal {
        envelope: envelope("east", at_ms),
        job_id: job,
        attempt_id: Some(0),
        end_ms: at_ms - 1_000,
        final_state: "FAILED".into(),
        cause: "xid".into(),
        node,
        fault_ms: at_ms - 5_000,
        probability_ppm: 700_000,
        model: "test".into(),
        ..JobEndSignal::default()
    }));
    timeline.emit(Event::Scaling(ScalingCurve {
        envelope: envelope("east", at_ms),
        family: format!("train-{}", number % 4),
        unit: "steps".into(),
        form: "amdahl".into(),
        gpus: 2 + number,
        nodes: 1,
        rate_milli: 1_000,
        low_milli: 900,
        high_milli: 1_100,
        seen_steps: 50,
        points: 2,
        model: "test".into(),
        ..ScalingCurve::default()
    }));
    timeline.emit(Event::Sizing(SizingAdvice {
        envelope: envelope("east", at_ms),
        kind: SeriesKind::Pool.into(),
        name: "a".into(),
        term: "month".into(),
        term_hours: 720,
        known_hours: number,
        hours: number,
        mean_gpus_milli: 4_000,
        peak_gpus_milli: 9_000,
        model: "test".into(),
        ..SizingAdvice::default()
    }));
    timeline.emit(Event::Audit(AuditEvent {
        envelope: envelope("", at_ms),
        kind: AuditEventKind::QueryAsked.into(),
        id: format!("query-{number}"),
        principal: Some("ann".into()),
        door: "/v1/sql".into(),
        text: Some("SELECT 1".into()),
        ..AuditEvent::default()
    }));
    timeline.emit(Event::DeadLetter(DeadLetter {
        envelope: envelope("east", at_ms),
        origin: "jobs.csv".into(),
        line: Some(u64::from(number)),
        code: "NO_TIME".into(),
        reason: "no time".into(),
        raw: b"a,b".to_vec(),
        ..DeadLetter::default()
    }));
}

fn forecast(timeline: &mut Timeline, at_ms: i64) {
    for horizon in 1..3 {
        timeline.emit(Event::Forecast(Forecast {
            envelope: envelope("east", at_ms),
            kind: SeriesKind::Pool.into(),
            name: "a".into(),
            target_ms: at_ms + i64::from(horizon) * HOUR_MS,
            step_ms: HOUR_MS as u64,
            horizon,
            level_ppm: vec![100_000, 500_000, 900_000],
            gpus_milli: vec![1_000, 4_000, 9_000],
            model: "test".into(),
        }));
    }
}

/// An action from plan to score, one step every ten seconds.
fn autopilot(timeline: &mut Timeline, at_ms: i64) {
    use AutopilotEventKind as Kind;
    let action = format!("a{at_ms}");
    let way = [
        Kind::Planned,
        Kind::Proposed,
        Kind::Approved,
        Kind::Applying,
        Kind::Applied,
        Kind::Verified,
        Kind::Scored,
    ];
    for (place, kind) in (0..).zip(way) {
        timeline.emit(Event::Autopilot(AutopilotEvent {
            envelope: envelope("east", at_ms + place * 10_000),
            kind: kind.into(),
            generation: 1,
            holder: "pilot".into(),
            plan: Some(format!("p{at_ms}")),
            action: (kind != Kind::Planned).then(|| action.clone()),
            decision_kind: Some("lend".into()),
            object: Some("pool:a".into()),
            mode: Some("auto".into()),
            gpus: Some(2),
            predicted_gpu_ms: Some(60_000),
            realised_gpu_ms: Some(50_000),
            verified: Some(true),
            body: "{}".into(),
            ..AutopilotEvent::default()
        }));
    }
}
