//! Events of a simulation: valid, numbered, and sufficient to recompute the GPU time.

use std::collections::BTreeMap;

use tidegate_events::{Event, v1::JobEventKind};
use tidegate_sim::{
    Class, DAY_US, HOUR_US, Recording, Sim,
    generate::{Arrivals, Load},
    observe::Observer,
    scenario::Scenario,
};

fn observed(seed: u64) -> (Vec<Event>, Sim) {
    let arrivals = Arrivals { span_us: DAY_US, load_gpus: 70, max_gpus: 32, ..Arrivals::default() };
    let s = Scenario::synthetic(
        10,
        5,
        &arrivals,
        &Load { span_us: DAY_US, peak_gpus: 30, ..Load::default() },
        seed,
    );
    let mut sim = Sim::new(s.spec, s.jobs, s.services).unwrap();
    sim.set_recording(Recording::On);
    sim.plan_failure(5 * HOUR_US, 0, HOUR_US);
    let mut observer = Observer::new("sim", 1);
    let mut events = observer.opening(&sim);
    for hour in 1..=24 {
        sim.run_until(hour * HOUR_US);
        events.extend(observer.follow(&mut sim));
        events.extend(observer.sample(&sim, 3_600_000));
        if hour == 2 {
            sim.lend(12, 0).unwrap();
        }
        if hour == 9 {
            sim.clear_and_call_back(12, true).unwrap();
        }
    }
    (events, sim)
}

#[test]
fn events_are_valid_numbered_and_the_same_for_the_same_seed() {
    let (mut events, _) = observed(4);
    for (i, event) in events.iter_mut().enumerate() {
        let record = event.record().unwrap();
        assert_eq!(Event::decode(record.schema, &record.payload).unwrap(), *event);
        assert_eq!(event.envelope().unwrap().seq, i as u64 + 1);
    }
    let bytes = |events: &[Event]| events.iter().flat_map(Event::encode_to_vec).collect::<Vec<u8>>();
    let mut again = observed(4).0;
    again.iter_mut().for_each(|e| e.seal());
    assert_eq!(bytes(&events), bytes(&again));
}

#[test]
fn gpu_time_of_the_events_is_that_of_the_books() {
    let (events, sim) = observed(5);
    let (mut open, mut gpu_ms) = (BTreeMap::new(), 0i64);
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    for event in &events {
        let Event::Job(job) = event else { continue };
        let at_ms = event.event_time_ms();
        let key = (job.job_id.clone(), job.attempt_id);
        match job.kind() {
            JobEventKind::Started => {
                assert!(open.insert(key, (at_ms, job.gpus_milli.unwrap())).is_none());
            }
            JobEventKind::Ended => {
                let (from_ms, gpus_milli) = open.remove(&key).expect("what ends has begun");
                gpu_ms += tidegate_events::gpu_ms(gpus_milli, from_ms, at_ms);
                *kinds.entry(job.final_state.clone().unwrap()).or_default() += 1;
            }
            _ => {}
        }
    }
    for (from_ms, gpus_milli) in open.values() {
        gpu_ms += tidegate_events::gpu_ms(*gpus_milli, *from_ms, 24 * 3_600_000);
    }
    // Event times are truncated to ms, so each hold may differ by 1 ms per GPU.
    let books_ms = (sim.ledger().gpu_us(Class::Allocated) / 1_000) as i64;
    let holds: i64 = sim.jobs().iter().map(|j| i64::from(j.attempts * j.spec.gpus * 2)).sum();
    assert!((books_ms - gpu_ms).abs() <= holds, "{books_ms} {gpu_ms}");
    assert!(kinds["COMPLETED"] > 10 && kinds["NODE_FAIL"] >= 1, "{kinds:?}");
    let mut pools = events.iter().filter_map(|e| match e {
        Event::Node(n) if n.node == "n00012" && n.pool.is_some() => n.pool.clone(),
        _ => None,
    });
    assert_eq!([pools.next(), pools.next(), pools.next()].map(Option::unwrap), ["serve", "train", "serve"]);
}
