use std::collections::HashSet;

use super::*;
use crate::straggler::scene::{Place, Regime, Relevance};

fn small(seed: u64) -> Plan {
    let mut plan =
        (seed..).map(|seed| Plan::draw(seed, Regime::A, Some(1.0))).find(|p| p.ranks() <= 64).unwrap();
    plan.restarts_s.clear();
    plan
}

#[test]
fn arrivals_are_in_order_and_as_unreliable_as_specified() {
    let mut stream = Stream::new(small(40), Vec::new());
    let (mut before, mut seen, mut twice, mut late, mut last) = (0, HashSet::new(), 0_u32, 0_u32, 0);
    for message in &mut stream {
        assert!(message.arrival_us >= before);
        before = message.arrival_us;
        if let MessageBody::Step(report) = message.body {
            twice += u32::from(!seen.insert((report.rank, report.step)));
            late += u32::from(message.arrival_us - report.end_us > 700_000);
            last = last.max(report.step);
        }
    }
    let sent = (last + 1) as f64 * stream.plan.ranks() as f64;
    let lost = 1.0 - seen.len() as f64 / sent;
    assert!((0.006..0.015).contains(&lost), "{lost}");
    let twice = f64::from(twice) / sent;
    assert!((0.003..0.007).contains(&twice), "{twice}");
    // The second copy of a report is late too.
    let late = f64::from(late) / sent;
    assert!((0.010..0.022).contains(&late), "{late}");
}

#[test]
fn the_same_seed_tells_the_same_job() {
    let tell = |seed| {
        let mut stream = Stream::draw(seed, Regime::B, Some(0.5), Noise::Hard);
        let message: Vec<Message> = stream.by_ref().collect();
        (message, stream.into_truth())
    };
    let (first, again, other) = (tell(3), tell(3), tell(4));
    assert!(first == again);
    assert!(first.0 != other.0);
}

#[test]
fn a_fault_follows_its_device_through_a_restart() {
    let mut plan = small(70);
    plan.restarts_s = vec![1800.0];
    let fault = Injected {
        class: Class::ComputeSilent,
        place: Place::Device(3),
        start_s: 900.0,
        end_s: 3500.0,
        size: 0.5,
        evidence: false,
    };
    let mut stream = Stream::new(plan, vec![fault]);
    let mut slow = std::collections::BTreeMap::<(u32, u32), (f64, u32)>::new();
    let mut shapes = 0;
    for message in &mut stream {
        match message.body {
            MessageBody::Shape(_) => shapes += 1,
            MessageBody::Step(report) if report.end_us > at_us(950.0) && report.end_us < at_us(3400.0) => {
                let sum = slow.entry((report.attempt, report.rank)).or_default();
                sum.0 += report.compute_us.map_or(0.0, |us| us as f64);
                sum.1 += u32::from(report.compute_us.is_some());
            }
            _ => {}
        }
    }
    assert_eq!(shapes, 2);
    let slowest = |attempt| {
        slow.iter()
            .filter(|((at, _), _)| *at == attempt)
            .max_by(|a, b| (a.1.0 / f64::from(a.1.1)).total_cmp(&(b.1.0 / f64::from(b.1.1))))
            .map(|((_, rank), _)| *rank)
            .unwrap()
    };
    let (first, second) = (slowest(1), slowest(2));
    let truth = stream.into_truth();
    assert_eq!(truth.ranks_of(Place::Device(3), at_us(1000.0)), Some(first..first + 1));
    // If the node left with the restart, no rank is slow any more.
    if let Some(ranks) = truth.ranks_of(Place::Device(3), at_us(3000.0)) {
        assert_eq!(ranks, second..second + 1);
    }
    assert_eq!(truth.events.len(), 1);
}

#[test]
fn what_a_fault_costs_is_known() {
    let mut plan = small(90);
    plan.stages = 1;
    plan.micro_batches = 1;
    plan.stage_factor = vec![1.0];
    plan.token_bias = vec![1.0; plan.ranks()];
    plan.step_s = 10.0;
    plan.compute_s = 8.0;
    plan.transfer_s = 1.8;
    plan.data_s = 0.2;
    let fault = |class, place, start_s, size| Injected {
        class,
        place,
        start_s,
        end_s: start_s + 600.0,
        size,
        evidence: true,
    };
    let faults = vec![
        fault(Class::ComputeThermal, Place::Device(2), 700.0, 0.25),
        fault(Class::Communication, Place::Node(1), 1500.0, 1.0),
        fault(Class::Data, Place::Node(0), 2300.0, 0.2),
    ];
    let mut stream = Stream::new(plan, faults);
    let marks: Vec<(u32, i64, u64)> = stream
        .by_ref()
        .filter_map(|message| match message.body {
            MessageBody::Device(window) => {
                window.network_marks.map(|marks| (window.rank, window.end_us, marks))
            }
            _ => None,
        })
        .collect();
    let counters = stream.plan.network_counters;
    let truth = stream.into_truth();
    assert!(truth.events.iter().all(|event| event.relevance == Relevance::Counts));
    // 8 s of 10 slower by a quarter, 1.8 s doubled, 2 s more; garbage collection and noise of other
    // ranks hide a little.
    for (event, want) in truth.events.iter().zip([0.2, 0.18, 0.2]) {
        let got = event.slowdown;
        assert!((want - 0.05..want + 0.02).contains(&got), "{:?} {got}", event.class());
    }
    if counters {
        let event = &truth.events[1];
        let mean = |node: u32| {
            let inside = marks
                .iter()
                .filter(|m| m.0 == node * 8 && m.1 > event.start_us + 10_000_000 && m.1 < event.end_us);
            let values: Vec<f64> = inside.map(|m| m.2 as f64).collect();
            values.iter().sum::<f64>() / values.len() as f64
        };
        assert!(mean(1) > 5.0 * mean(0) / 3.0);
    }
}
