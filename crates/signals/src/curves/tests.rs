use std::collections::BTreeSet;

use super::window::round_batch;
use super::*;

/// A step takes 0.8 s + 0.1 s for each further GPU: Amdahl's law with a serial share of one in
/// eight.
fn step_us(world: u32) -> u64 {
    800_000 + 100_000 * u64::from(world - 1)
}

fn family(name: &str) -> JobFamily {
    JobFamily { team: Some("t".into()), job_name: Some(name.into()), ..JobFamily::default() }
}

fn report(job_id: &str, world: u32, rank: u32, step: u64) -> v1::StepReport {
    v1::StepReport {
        job_id: job_id.into(),
        rank,
        world_size: Some(world),
        step,
        duration_us: step_us(world),
        tokens: Some(4_096),
        node: Some(format!("n{}", rank / 8)),
        ..v1::StepReport::default()
    }
}

/// Runs a job of `world` ranks for `steps` steps from `at_us` on.
fn run(curves: &mut Curves, job_id: &str, world: u32, steps: u64, at_us: i64) {
    curves.observe_job(job_id, &family("train"), 0, at_us);
    for step in 0..steps {
        for rank in 0..world {
            curves.observe_step(&report(job_id, world, rank, step), at_us + (step * step_us(world)) as i64);
        }
    }
    curves.job_ended(job_id, at_us + (steps * step_us(world)) as i64);
}

fn points(output: &[Publication]) -> Vec<v1::ScalingCurve> {
    let events = output.last().map(|output| output.events.clone()).unwrap_or_default();
    events
        .into_iter()
        .map(|event| match event {
            Event::Scaling(point) => point,
            other => panic!("{other:?}"),
        })
        .collect()
}

#[test]
fn a_family_seen_at_two_sizes_has_a_curve() {
    let mut curves = Curves::new("c");
    run(&mut curves, "a", 1, 101, 0);
    assert!(curves.take().is_empty(), "one size shows no scaling");
    run(&mut curves, "b", 8, 101, 10_000_000_000);
    let output = curves.take();
    assert_eq!(output.len(), 1);
    let points = points(&output);
    assert_eq!(points.iter().map(|point| point.gpus).collect::<Vec<_>>(), [1, 2, 4, 8, 16]);
    assert!(points.iter().all(|point| (point.family.as_str(), point.points) == ("t/-/train/-", 5)));
    assert_eq!(
        (points[0].unit.as_str(), points[0].form.as_str(), points[0].local_batch),
        ("TOKENS", "AMDAHL", 4_096)
    );
    assert_eq!(points.iter().map(|point| point.seen_steps).collect::<Vec<_>>(), [100, 0, 0, 100, 0]);
    assert_eq!(points.iter().map(|point| point.nodes).collect::<Vec<_>>(), [1, 1, 1, 1, 2]);
    // 4,096 tokens in 0.8 s; 8 x 4,096 in 1.5 s. The largest size counts most; the smaller one lies
    // within its interval.
    for (at, rate_milli, off) in [(0, 5_120_000_u64, 0.15), (3, 21_845_333, 0.03)] {
        let point = &points[at];
        assert!((point.rate_milli as f64 / rate_milli as f64 - 1.0).abs() < off, "{point:?}");
        assert!((point.low_milli..point.high_milli).contains(&rate_milli), "{point:?}");
    }
    // Sizes never seen are less certain.
    let spread = |point: &v1::ScalingCurve| point.high_milli as f64 / point.low_milli as f64;
    assert!(spread(&points[4]) > spread(&points[3]));
}

#[test]
fn unchanged_curves_are_published_once_and_three_sizes_give_pollux() {
    let mut curves = Curves::new("c");
    run(&mut curves, "a", 1, 101, 0);
    run(&mut curves, "b", 8, 101, 10_000_000_000);
    curves.take();
    for again in 0..6 {
        run(&mut curves, &format!("c{again}"), 8, 101, 20_000_000_000 * (again + 1));
    }
    assert!(curves.take().is_empty(), "nothing new was seen");
    run(&mut curves, "d", 4, 101, 900_000_000_000);
    let output = curves.take();
    assert_eq!(points(&output)[0].form, "POLLUX");
    let sources: BTreeSet<&str> = output.iter().map(|output| output.source.as_str()).collect();
    assert_eq!(sources.len(), output.len());
}

#[test]
fn incomplete_windows_and_absurd_reports_do_not_count() {
    let mut curves = Curves::new("c");
    run(&mut curves, "a", 1, 101, 0);
    // A window needs a step beyond its hundredth. A change of size starts a new one. An unknown or
    // absurd world is ignored.
    run(&mut curves, "b", 8, 100, 10_000_000_000);
    curves.observe_job("e", &family("train"), 0, 0);
    for step in 0..300 {
        let world = if step % 90 < 45 { 2 } else { 4 };
        curves.observe_step(&report("e", world, 0, step), 0);
        curves.observe_step(&v1::StepReport { world_size: None, ..report("e", 2, 0, step) }, 0);
        curves.observe_step(&v1::StepReport { world_size: Some(u32::MAX), ..report("e", 2, 0, step) }, 0);
        curves.observe_step(&v1::StepReport { checkpoint_us: Some(u64::MAX), ..report("e", 2, 0, step) }, 0);
    }
    assert!(curves.take().is_empty());
    assert_eq!(curves.families.len(), 1);
}

#[test]
fn jobs_without_a_name_are_families_of_their_own_and_grow_by_their_sizes() {
    let mut curves = Curves::new("c");
    for (job_id, world, from) in [("a", 2, 0), ("b", 4, 0), ("a", 4, 200)] {
        for step in from..from + 101 {
            let tokens = None;
            curves.observe_step(
                &v1::StepReport { tokens, ..report(job_id, world, 0, step) },
                step as i64 * 1_000_000,
            );
        }
    }
    curves.job_ended("b", 500_000_000);
    curves.job_ended("a", 500_000_000);
    let points = points(&curves.take());
    assert_eq!((points[0].family.as_str(), points[0].job_id.as_deref()), ("job/a", Some("a")));
    // Two GPUs take 0.9 s a step: two local batches in it.
    assert_eq!((points[0].unit.as_str(), points[0].local_batch), ("STEPS", 1));
    let two = points.iter().find(|point| point.gpus == 2).unwrap();
    assert!((two.rate_milli as f64 / 2_222.2 - 1.0).abs() < 0.03, "{two:?}");
}

#[test]
fn memory_is_bounded() {
    let mut curves = Curves::new("c");
    for job in 0..MAX_JOBS as u64 + 50 {
        curves.observe_step(&report(&format!("j{job}"), 2, 0, 1), job as i64);
    }
    assert_eq!(curves.runs.len(), MAX_JOBS);
    assert!(!curves.runs.contains_key("j0") && curves.runs.contains_key("j60"));
    for world in 1..60 {
        for step in 0..101 {
            curves.observe_step(&report("many", world, 0, step), 5_000 + i64::from(world) * SETTLE_US);
        }
    }
    assert_eq!(curves.families[&("job/many".to_owned(), true)].curve.sizes(), 24);
}

#[test]
fn batches_are_rounded_to_five_bits() {
    assert_eq!([0, 1, 31, 33, 8_192, 8_300, 8_500].map(round_batch), [1, 1, 31, 34, 8_192, 8_192, 8_704]);
    assert_eq!(round_batch(u128::MAX >> 1), u32::MAX);
}

fn signal(
    job_id: &str,
    revision: u32,
    state: v1::SignalState,
    onset_s: i64,
    said_s: i64,
) -> v1::StragglerSignal {
    v1::StragglerSignal {
        job_id: job_id.into(),
        episode: 1,
        revision,
        state: state.into(),
        class: "COMPUTE_THERMAL".into(),
        onset_ms: onset_s * 1_000,
        said_ms: said_s * 1_000,
        ..v1::StragglerSignal::default()
    }
}

/// Steps of 1 s on two GPUs, 1.5 s from the 150th to the 250th with `signals` about it; and 1 s on
/// one GPU. Returns the rates of one and two GPUs.
fn with_a_slow_part(signals: &[v1::StragglerSignal]) -> [u64; 2] {
    let mut curves = Curves::new("c");
    for (job_id, world) in [("two", 2), ("one", 1)] {
        curves.observe_job(job_id, &family("train"), 0, 0);
        let mut end_us = 0;
        for step in 0..401 {
            let slow = job_id == "two" && (150..250).contains(&step);
            let duration_us = if slow { 1_500_000 } else { 1_000_000 };
            end_us += duration_us as i64;
            curves.observe_step(
                &v1::StepReport { duration_us, tokens: None, ..report(job_id, world, 0, step) },
                end_us,
            );
            let output = signals.iter().filter(|s| s.job_id == job_id && s.said_ms * 1_000 == end_us);
            output.for_each(|signal| curves.observe_straggler(signal));
        }
        curves.job_ended(job_id, end_us);
    }
    let mut last = [0; 2];
    for point in curves.take().iter().flat_map(|output| points(std::slice::from_ref(output))) {
        if let Some(rate) = last.get_mut(point.gpus as usize - 1) {
            *rate = point.rate_milli;
        }
    }
    last
}

#[test]
fn slow_windows_are_left_out() {
    use v1::SignalState::{Cleared, Confirmed, Suspect};
    // Slow from second 150 to 300. Steps 0 to 99, 100 to 199 and 200 to 299 end at 100, 225 and 350
    // s, the last at 450 s.
    let input = [
        signal("two", 0, Suspect, 150, 165),
        signal("two", 1, Confirmed, 150, 240),
        signal("two", 2, Cleared, 150, 310),
    ];
    // The windows left have steps of 1 s: 1.000 and 2.000 a second.
    let [one, two] = with_a_slow_part(&input);
    assert!(one.abs_diff(1_000) <= 50 && two.abs_diff(2_000) <= 40, "{one} {two}");
    // Without signals the medians of the four windows are 1, 1.5, 1.5 and 1 s: 2 / sqrt 1.5 =
    // 1.633.
    let [_, unsaid] = with_a_slow_part(&[]);
    assert!(unsaid.abs_diff(1_633) <= 100, "{unsaid}");
    // A structural episode is how the job scales.
    let structural = input.map(|signal| v1::StragglerSignal { class: "STRUCTURAL".into(), ..signal });
    assert_eq!(with_a_slow_part(&structural)[1], unsaid);
}

#[test]
fn a_window_overlaps_episodes_known_in_time() {
    use v1::SignalState::{Cleared, Suspect};
    let mut slow = SlowPeriods::default();
    slow.observe(&signal("j", 1, Cleared, 100, 200));
    slow.observe(&signal("j", 0, Suspect, 100, 120));
    let touches = |from_s: i64, to_s: i64| slow.overlaps((from_s * 1_000_000, to_s * 1_000_000));
    assert!(touches(0, 100) && touches(150, 160) && touches(200, 300));
    assert!(!touches(0, 99) && !touches(201, 300));
    // Suspected at 120 s, too late for a window that ended more than HINDSIGHT_US before.
    assert!(slow.overlaps((0, 110_000_000)) && HINDSIGHT_US == 60_000_000);
    let mut late = SlowPeriods::default();
    late.observe(&signal("j", 0, Suspect, 100, 171));
    assert!(late.overlaps((0, 111_000_000)) && !late.overlaps((0, 110_999_999)));
    slow.forget(200_000_000);
    assert!(slow.overlaps((0, 110_000_000)), "an earlier window may still ask");
    slow.forget(200_000_001);
    assert!(!slow.overlaps((0, 110_000_000)));
}

#[test]
fn a_family_that_was_made_faster_is_believed_in_days() {
    const DAY: i64 = 86_400_000_000;
    let mut curves = Curves::new("c");
    // One window an hour at each of two sizes; a step takes 2 s for 40 days, then 1 s.
    let mut rates: Vec<(i64, u64)> = Vec::new();
    for hour in 0..(48 * 24) {
        let at_us = hour * 3_600_000_000;
        let duration_us = if at_us < 40 * DAY { 2_000_000 } else { 1_000_000 };
        for world in [1, 2] {
            let job_id = format!("{world}/{hour}");
            curves.observe_job(&job_id, &family("train"), 0, at_us);
            for step in 0..101 {
                let end_us = at_us + (step as i64 + 1) * duration_us as i64;
                curves.observe_step(
                    &v1::StepReport { duration_us, tokens: None, ..report(&job_id, world, 0, step) },
                    end_us,
                );
            }
            curves.job_ended(&job_id, at_us + 300_000_000);
        }
        for output in curves.take() {
            rates.extend(
                points(&[output]).iter().filter(|p| p.gpus == 2).map(|p| (at_us / DAY, p.rate_milli)),
            );
        }
    }
    // After d days the old windows weigh 2^(-d / 2), so ln of a step is 2^(-d / 2) ln 2 and one GPU
    // does 2^(-2^(-d / 2)) steps a second; two GPUs do twice that.
    let expected = |days: f64| 2_000.0 * 0.5_f64.powf(0.5_f64.powf(days / 2.0));
    let on = |day: i64| {
        rates.iter().filter(|(at, _)| *at <= day).map(|(_, rate)| *rate as f64).next_back().unwrap()
    };
    assert!((on(39) - 1_000.0).abs() < 20.0, "{}", on(39));
    for (day, days) in [(42, 2.0), (44, 4.0), (47, 7.0)] {
        // The curve is refitted at least once a day, at some time of the day.
        let (least, most) = (expected(days) * 0.98, expected(days + 1.0) * 1.02);
        assert!((least..=most).contains(&on(day)), "day {day}: {}, not {least} to {most}", on(day));
    }
    assert!(on(47) > 1_800.0);
}
