use tidegate_insight::straggler::{DeviceWindow, JobShape, StepReport};

use super::*;
use crate::straggler::method::{Alarm, Target};
use crate::straggler::scene::{Message, MessageBody};

const RANKS: usize = 32;

/// A job of 4 nodes and 2 stages in which rank `r` computes `compute(step, r)` seconds in step
/// `step`, and all end after `2 * slowest` seconds; observed without loss.
fn alarms_of(method: &mut dyn Method, steps: u64, compute: impl Fn(u64, usize) -> f64) -> Vec<Alarm> {
    let node = |rank: usize| 100 + rank as u32 / 8;
    let shape = JobShape {
        attempt: 1,
        node: (0..RANKS).map(node).collect(),
        role: (0..RANKS).map(|rank| rank as u32 / 16).collect(),
        stages: 2,
        micro_batches: 4,
    };
    method.observe(&Message { arrival_us: 0, body: MessageBody::Shape(shape) });
    let (mut now_us, mut alarms, mut window_us) = (0_i64, Vec::new(), 0);
    for step in 0..steps {
        // A small difference by rank and step, because no two are equal.
        let own =
            |rank: usize| compute(step, rank) * (1.0 + 1e-3 * ((step * 7 + rank as u64 * 13) % 11) as f64);
        let total_s = 2.0 * (0..RANKS).map(own).fold(0.0, f64::max);
        now_us += (total_s * 1e6) as i64;
        for rank in 0..RANKS {
            let report = StepReport {
                attempt: 1,
                rank: rank as u32,
                step,
                end_us: now_us,
                duration_us: (total_s * 1e6) as u64,
                compute_us: Some((own(rank) * 1e6) as u64),
                communication_us: Some(((total_s - own(rank)) * 1e6) as u64),
                data_us: Some(1000),
                tokens: None,
                squared_tokens: None,
            };
            method.observe(&Message { arrival_us: now_us + 1000, body: MessageBody::Step(report) });
        }
        while window_us + 10_000_000 <= now_us {
            window_us += 10_000_000;
            for rank in 0..RANKS as u32 {
                let window = DeviceWindow {
                    rank,
                    start_us: window_us - 10_000_000,
                    end_us: window_us,
                    sm_clock_mhz: Some(1700.0 + f64::from(rank % 3)),
                    ..DeviceWindow::default()
                };
                method.observe(&Message { arrival_us: now_us + 2000, body: MessageBody::Device(window) });
            }
        }
        method.advance(now_us);
        alarms.extend(method.take());
    }
    alarms
}

const fn healthy(_: u64, _: usize) -> f64 {
    1.0
}

fn slow_later(step: u64, rank: usize, size: f64) -> f64 {
    if rank == 5 && step >= 400 { 1.0 + size } else { 1.0 }
}

fn long_stage(_: u64, rank: usize) -> f64 {
    if rank >= 16 { 1.5 } else { 1.0 }
}

#[test]
fn all_are_quiet_on_a_healthy_job() {
    for mut method in all() {
        // BOCPD may find changes in anything; verified ones it may not.
        let alarms = alarms_of(method.as_mut(), 900, healthy);
        assert!(alarms.is_empty(), "{}: {}", method.name(), alarms.len());
    }
}

#[test]
fn a_slow_rank_of_40_percent_is_found_by_those_that_can() {
    for mut method in all() {
        let alarms = alarms_of(method.as_mut(), 900, |step, rank| slow_later(step, rank, 0.4));
        assert!(!alarms.is_empty(), "{}", method.name());
        let (first, started_us) = (alarms[0], 800_000_000);
        assert!(first.said_us > started_us, "{}", method.name());
        assert!(
            matches!(first.target, Target::Rank(5) | Target::Node(100) | Target::Job),
            "{:?}",
            first.target
        );
        assert_eq!(alarms.len(), 1, "{}", method.name());
    }
}

#[test]
fn nvrx_blames_the_whole_long_stage_without_groups() {
    assert_eq!(alarms_of(&mut Nvrx::new(Against::AllRanks), 400, long_stage).len(), 16);
    assert!(alarms_of(&mut Nvrx::new(Against::Group), 400, long_stage).is_empty());
    assert!(alarms_of(&mut Nvrx::new(Against::OwnBest), 400, long_stage).is_empty());
}

#[test]
fn nvrx_does_not_see_what_is_below_its_threshold() {
    for against in [Against::AllRanks, Against::Group, Against::OwnBest] {
        assert!(alarms_of(&mut Nvrx::new(against), 900, |step, rank| slow_later(step, rank, 0.2)).is_empty());
    }
}

#[test]
fn verification_drops_small_changes() {
    let small = |step, rank| slow_later(step, rank, 0.07);
    assert_eq!(alarms_of(&mut Bocpd::new(false), 700, small).len(), 1);
    assert!(alarms_of(&mut Bocpd::new(true), 700, small).is_empty());
    assert!(alarms_of(&mut Window::new(), 700, small).is_empty());
    assert_eq!(alarms_of(&mut Spread::new(), 700, small).len(), 1);
}

#[test]
fn minder_waits_four_minutes() {
    let short = |step: u64, rank: usize| if rank == 5 && (400..480).contains(&step) { 1.4 } else { 1.0 };
    assert!(alarms_of(&mut Minder::new(), 900, short).is_empty());
    let alarms = alarms_of(&mut Minder::new(), 900, |step, rank| slow_later(step, rank, 0.4));
    let delay_s = (alarms[0].said_us - 800_000_000) / 1_000_000;
    assert!((200..300).contains(&delay_s), "{delay_s}");
}
