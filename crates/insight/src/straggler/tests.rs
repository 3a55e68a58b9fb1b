//! The whole detector, on jobs small enough to compute the truth by hand.

use proptest::prelude::*;

use super::*;

/// A job of `ranks` on nodes of eight, numbered from 100. A step is a pure function of its number
/// and the rank.
struct Scene {
    ranks: u32,
    step_us: u64,
}

impl Scene {
    fn shape(&self, attempt: u32) -> JobShape {
        JobShape {
            attempt,
            node: (0..self.ranks).map(|rank| 100 + rank / 8).collect(),
            role: vec![0; self.ranks as usize],
            stages: 1,
            micro_batches: 1,
        }
    }

    /// Deterministic noise of about 0.4 %.
    fn wobble(rank: u32, step: u64) -> f64 {
        let mixed = (u64::from(rank) * 0x9E37_79B9 + step * 0x85EB_CA6B).wrapping_mul(0xC2B2_AE35_27D4_EB4F);
        1.0 + 0.01 * ((mixed >> 40) as f64 / (1_u64 << 24) as f64 - 0.5)
    }

    /// Reports of one step, with factors on computing and transfer, and a wait for input.
    fn step(
        &self,
        step: u64,
        slow: impl Fn(u32) -> f64,
        transfer: f64,
        wait: impl Fn(u32) -> f64,
    ) -> Vec<StepReport> {
        let unit = self.step_us as f64;
        let compute: Vec<f64> =
            (0..self.ranks).map(|rank| 0.7 * unit * slow(rank) * Self::wobble(rank, step)).collect();
        let waits: Vec<f64> = (0..self.ranks).map(|rank| wait(rank) * unit).collect();
        let busy = |rank: usize| compute[rank] + waits[rank];
        let longest = (0..compute.len()).map(busy).fold(0.0, f64::max);
        let moved = 0.2 * unit * transfer * Self::wobble(9999, step);
        (0..self.ranks)
            .map(|rank| StepReport {
                attempt: 1,
                rank,
                step,
                end_us: ((step + 1) * self.step_us) as i64,
                duration_us: (longest + moved) as u64,
                compute_us: Some(compute[rank as usize] as u64),
                communication_us: Some((longest - busy(rank as usize) + moved) as u64),
                data_us: Some(waits[rank as usize] as u64),
                tokens: None,
                squared_tokens: None,
            })
            .collect()
    }
}

/// Runs steps through a detector, with the watermark behind each.
fn run(scene: &Scene, steps: u64, input: impl Fn(u64) -> Vec<StepReport>) -> Vec<Signal> {
    let mut detector = Detector::new(scene.shape(1), Settings::default());
    let mut output = Vec::new();
    for step in 0..steps {
        input(step).iter().for_each(|report| detector.step(report));
        detector.advance(((step + 1) * scene.step_us) as i64 + 1_000_000);
        output.extend(detector.take());
    }
    output
}

const SCENE: Scene = Scene { ranks: 64, step_us: 3_000_000 };
const FROM: u64 = 120;
const TO: u64 = 220;

fn between(step: u64, size: f64) -> f64 {
    if (FROM..TO).contains(&step) { 1.0 + size } else { 1.0 }
}

fn stages(output: &[Signal]) -> Vec<(Stage, Class, Blame)> {
    output.iter().map(|signal| (signal.stage, signal.class, signal.blame.clone())).collect()
}

#[test]
fn a_calm_job_has_no_signal() {
    assert_eq!(run(&SCENE, 400, |step| SCENE.step(step, |_| 1.0, 1.0, |_| 0.0)), vec![]);
}

#[test]
fn one_slow_rank_is_suspected_confirmed_and_closed() {
    let output = run(&SCENE, 300, |step| {
        SCENE.step(step, |rank| if rank == 21 { between(step, 0.15) } else { 1.0 }, 1.0, |_| 0.0)
    });
    let of = |stage| (stage, Class::ComputeSilent, Blame::Rank(21));
    assert_eq!(stages(&output), vec![of(Stage::Suspect), of(Stage::Confirmed), of(Stage::Closed)]);
    let start_us = (FROM * SCENE.step_us) as i64;
    assert!((output[0].since_us - start_us).abs() < 400_000, "{}", output[0].since_us - start_us);
    assert!(output[0].said_us - start_us <= 7 * 3_000_000);
    assert!((90_000_000..=96_000_000).contains(&(output[1].said_us - start_us)));
    assert!((output[1].excess - 0.15).abs() < 0.01);
    // 64 GPUs lose 15 % of 2.1 s in each of 100 steps: 2016 GPU-s.
    assert!((output[2].lost_gpu_ms as f64 / 2_016_000.0 - 1.0).abs() < 0.05, "{}", output[2].lost_gpu_ms);
    assert_eq!(output[2].episode, output[0].episode);
}

#[test]
fn great_slowness_is_confirmed_within_thirty_seconds() {
    let output = run(&SCENE, 150, |step| {
        SCENE.step(step, |rank| if rank == 3 { between(step, 0.5) } else { 1.0 }, 1.0, |_| 0.0)
    });
    let confirmed = output.iter().find(|signal| signal.stage == Stage::Confirmed).unwrap();
    assert!(confirmed.said_us - ((FROM + 1) * SCENE.step_us) as i64 <= 30_000_000);
}

#[test]
fn a_slow_host_is_one_event_of_its_node() {
    let output = run(&SCENE, 300, |step| {
        SCENE.step(step, |rank| if rank / 8 == 2 { between(step, 0.12) } else { 1.0 }, 1.0, |_| 0.0)
    });
    let of = |stage| (stage, Class::Host, Blame::Node(102));
    assert_eq!(stages(&output), vec![of(Stage::Suspect), of(Stage::Confirmed), of(Stage::Closed)]);
}

#[test]
fn waiting_for_input_and_a_slow_network_have_their_class() {
    let data = run(&SCENE, 300, |step| {
        SCENE.step(step, |_| 1.0, 1.0, |rank| if rank / 8 == 5 { between(step, 0.2) - 1.0 } else { 0.0 })
    });
    let of = |stage| (stage, Class::Data, Blame::Node(105));
    assert_eq!(stages(&data), vec![of(Stage::Suspect), of(Stage::Confirmed), of(Stage::Closed)]);
    let network = run(&SCENE, 300, |step| SCENE.step(step, |_| 1.0, between(step, 0.8), |_| 0.0));
    let of = |stage| (stage, Class::Communication, Blame::Fabric);
    assert_eq!(stages(&network), vec![of(Stage::Suspect), of(Stage::Confirmed), of(Stage::Closed)]);
}

#[test]
fn a_job_wide_change_of_work_blames_nobody() {
    let output = run(&SCENE, 300, |step| SCENE.step(step, |_| between(step, 0.25), 1.0, |_| 0.0));
    assert_eq!(output, vec![]);
}

#[test]
fn a_transfer_that_grew_with_the_jobs_work_is_not_asked_about_again() {
    // All ranks compute a quarter longer from step 120 on, and the transfer grows with them.
    let for_good = |step: u64| if step >= FROM { 1.25 } else { 1.0 };
    let output = run(&SCENE, 500, |step| SCENE.step(step, |_| for_good(step), for_good(step), |_| 0.0));
    assert!(output.iter().all(|signal| signal.blame == Blame::Nobody), "{:?}", stages(&output));
    assert!(output.iter().map(|signal| signal.episode).max() <= Some(1), "{:?}", stages(&output));
}

#[test]
fn the_other_of_two_nodes_is_not_blamed_when_the_slow_one_recovers() {
    let scene = Scene { ranks: 16, step_us: 3_000_000 };
    let output = run(&scene, 500, |step| {
        scene.step(step, |rank| if rank < 8 && (120..300).contains(&step) { 1.2 } else { 1.0 }, 1.0, |_| 0.0)
    });
    assert!(!output.is_empty());
    assert!(output.iter().all(|signal| signal.blame == Blame::Node(100)), "{:?}", stages(&output));
}

#[test]
fn late_reports_take_a_confirmation_back() {
    let mut detector = Detector::new(SCENE.shape(1), Settings::default());
    let mut output = Vec::new();
    let mut late = Vec::new();
    for step in 0..FROM + 40 {
        // Two of three steps of rank 9 are slow and arrive in time; its normal ones arrive late.
        let odd = step % 3 != 0;
        let slow = |rank: u32| if rank == 9 && odd { between(step, 0.15) } else { 1.0 };
        for report in SCENE.step(step, slow, 1.0, |_| 0.0) {
            if report.rank == 9 && !odd && step >= FROM { late.push(report) } else { detector.step(&report) }
        }
        detector.advance(((step + 1) * SCENE.step_us) as i64 + 1_000_000);
        output.extend(detector.take());
    }
    assert!(output.iter().any(|signal| signal.stage == Stage::Confirmed));
    late.iter().for_each(|report| detector.step(report));
    let corrected = detector.take();
    assert_eq!(stages(&corrected), vec![(Stage::Corrected, Class::Structural, Blame::Nobody)]);
    // Repeated, they change nothing.
    late.iter().for_each(|report| detector.step(report));
    assert_eq!(detector.take(), vec![]);
    assert_eq!(detector.counts().late, late.len() as u64);
    assert_eq!(detector.counts().repeated, late.len() as u64);
}

#[test]
fn a_restart_closes_what_was_open_and_follows_the_new_map() {
    let mut detector = Detector::new(SCENE.shape(1), Settings::default());
    let feed = |detector: &mut Detector, attempt: u32, steps: std::ops::Range<u64>, slow: u32| {
        let mut output = Vec::new();
        for step in steps {
            for report in SCENE.step(step, |rank| if rank == slow { 1.2 } else { 1.0 }, 1.0, |_| 0.0) {
                detector.step(&StepReport { attempt, ..report });
            }
            detector.advance(((step + 1) * SCENE.step_us) as i64 + 1_000_000);
            output.extend(detector.take());
        }
        output
    };
    assert_eq!(feed(&mut detector, 1, 0..120, 999), vec![]);
    assert!(!feed(&mut detector, 1, 120..160, 5).is_empty());
    detector.restart(SCENE.shape(2));
    assert_eq!(stages(&detector.take())[0].0, Stage::Closed);
    // Reports of the old attempt are counted and dropped.
    feed(&mut detector, 1, 160..170, 5);
    assert_eq!(detector.counts().other_attempt, 640);
    assert_eq!(feed(&mut detector, 2, 170..300, 999), vec![]);
    assert_eq!(feed(&mut detector, 2, 300..360, 40)[0].blame, Blame::Rank(40));
}

#[test]
fn without_steps_only_a_throttled_device_is_named() {
    let mut detector = Detector::new(SCENE.shape(1), Settings::default());
    for start in (0..600).step_by(10) {
        for rank in 0..16 {
            // Rank 4 is throttled; rank 12 has a low clock because it idles.
            let (clock, slowed) = match rank {
                4 if start >= 300 => (1200.0, 0.9),
                12 => (900.0, 0.0),
                _ => (1500.0, 0.0),
            };
            detector.device(&DeviceWindow {
                rank,
                start_us: start * 1_000_000,
                end_us: (start + 10) * 1_000_000,
                sm_clock_mhz: Some(clock),
                slowdown_share: Some(slowed),
                ..DeviceWindow::default()
            });
        }
        detector.advance((start + 10) * 1_000_000);
    }
    let output = detector.take();
    assert_eq!(stages(&output), vec![(Stage::Confirmed, Class::ComputeThermal, Blame::Rank(4))]);
    assert_eq!(output[0].lost_gpu_ms, 0);
}

#[test]
fn the_first_step_ends_episodes_by_counters() {
    let mut detector = Detector::new(SCENE.shape(1), Settings::default());
    for start in (0..200).step_by(10) {
        for rank in 0..16 {
            detector.device(&DeviceWindow {
                rank,
                start_us: start * 1_000_000,
                end_us: (start + 10) * 1_000_000,
                slowdown_share: Some(if rank == 4 { 0.9 } else { 0.0 }),
                ..DeviceWindow::default()
            });
        }
        detector.advance((start + 10) * 1_000_000);
    }
    assert_eq!(stages(&detector.take()), vec![(Stage::Suspect, Class::ComputeThermal, Blame::Rank(4))]);
    for step in 100..102 {
        SCENE.step(step, |_| 1.0, 1.0, |_| 0.0).iter().for_each(|report| detector.step(report));
    }
    detector.advance(400_000_000);
    assert_eq!(stages(&detector.take()), vec![(Stage::Closed, Class::ComputeThermal, Blame::Rank(4))]);
}

#[test]
fn same_input_same_bytes_in_any_order_within_the_watermark() {
    let input =
        |step| SCENE.step(step, |rank| if rank == 21 { between(step, 0.15) } else { 1.0 }, 1.0, |_| 0.0);
    let straight = run(&SCENE, 260, input);
    // Blocks of five steps in reverse order, the watermark behind each block.
    let mut detector = Detector::new(SCENE.shape(1), Settings::default());
    let mut output = Vec::new();
    for block in 0..52 {
        let reports: Vec<StepReport> = (block * 5..block * 5 + 5).flat_map(input).collect();
        reports.iter().rev().chain(&reports[..40]).for_each(|report| detector.step(report));
        detector.advance(((block * 5 + 5) * SCENE.step_us) as i64 + 1_000_000);
        output.extend(detector.take());
    }
    assert_eq!(format!("{straight:?}"), format!("{output:?}"));
}

fn garbage() -> impl Strategy<Value = StepReport> {
    let time = || {
        prop_oneof![Just(None), Just(Some(0)), any::<u64>().prop_map(Some), (0..9_000_000_u64).prop_map(Some)]
    };
    let step = prop_oneof![0..40_u64, any::<u64>()];
    let end = prop_oneof![0..400_000_000_i64, any::<i64>()];
    ((0..3_u32, 0..20_u32, step, end), (any::<u64>(), time(), time(), time(), time(), time())).prop_map(
        |(
            (attempt, rank, step, end_us),
            (duration_us, compute_us, communication_us, data_us, tokens, squared_tokens),
        )| {
            StepReport {
                attempt,
                rank,
                step,
                end_us,
                duration_us,
                compute_us,
                communication_us,
                data_us,
                tokens,
                squared_tokens,
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn garbage_never_panics_and_every_report_is_counted(
        reports in proptest::collection::vec(garbage(), 0..400),
        clocks in proptest::collection::vec((0..20_u32, any::<i64>(), any::<i64>(), any::<f64>()), 0..40),
        marks in proptest::collection::vec(any::<i64>(), 0..9),
    ) {
        let shape = JobShape {
            attempt: 1,
            node: (0..16).map(|rank| rank / 8).collect(),
            role: (0..16).map(|rank| rank % 3).collect(),
            stages: 3,
            micro_batches: 0,
        };
        let mut detector = Detector::new(shape.clone(), Settings::default());
        for (at, report) in reports.iter().enumerate() {
            detector.step(report);
            if let Some((rank, start_us, end_us, value)) = clocks.get(at) {
                detector.device(&DeviceWindow {
                    rank: *rank,
                    start_us: *start_us,
                    end_us: *end_us,
                    sm_clock_mhz: Some(*value),
                    slowdown_share: Some(*value),
                    network_marks: Some(u64::MAX),
                    ..DeviceWindow::default()
                });
                detector.fault(&Fault { rank: *rank, time_us: *start_us, xid: None });
            }
            if let Some(mark) = marks.get(at / 40) {
                detector.advance(*mark);
            }
        }
        detector.restart(JobShape { attempt: 2, ..shape });
        prop_assert_eq!(detector.counts().reports, reports.len() as u64);
        for signal in detector.take() {
            prop_assert!(signal.posterior.is_finite() && signal.excess.is_finite());
        }
    }

    #[test]
    fn any_order_within_the_watermark_gives_the_same(seed in any::<u64>()) {
        let scene = Scene { ranks: 16, step_us: 2_000_000 };
        let input = |step| scene.step(step, |rank| if rank == 7 && step > 90 { 1.3 } else { 1.0 }, 1.0, |_| 0.0);
        let play = |shuffled: bool| {
            let mut detector = Detector::new(scene.shape(1), Settings::default());
            let mut state = seed | 1;
            for block in 0..30_u64 {
                let mut reports: Vec<StepReport> = (block * 6..block * 6 + 6).flat_map(input).collect();
                for at in (1..reports.len()).rev().filter(|_| shuffled) {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    reports.swap(at, (state >> 33) as usize % (at + 1));
                }
                reports.iter().for_each(|report| detector.step(report));
                detector.advance(((block + 1) * 6 * scene.step_us) as i64 + 1_000_000);
            }
            format!("{:?}", detector.take())
        };
        prop_assert_eq!(play(true), play(false));
    }
}
