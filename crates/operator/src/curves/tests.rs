use super::*;

/// Jobs of a family whose steps take 0.8 s + 0.1 s for each GPU more: Amdahl's law with a serial share of one in eight.
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
    curves.job(job_id, &family("train"), 0, at_us);
    for step in 0..steps {
        for rank in 0..world {
            curves.step(&report(job_id, world, rank, step), at_us + (step * step_us(world)) as i64);
        }
    }
    curves.ended(job_id);
}

fn points(said: &[Publication]) -> Vec<v1::ScalingCurve> {
    let events = said.last().map(|said| said.events.clone()).unwrap_or_default();
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
    assert!(curves.take().is_empty(), "one size says nothing of how it scales");
    run(&mut curves, "b", 8, 101, 10_000_000_000);
    let said = curves.take();
    assert_eq!(said.len(), 1);
    let points = points(&said);
    assert_eq!(points.iter().map(|point| point.gpus).collect::<Vec<_>>(), [1, 2, 4, 8, 16]);
    assert!(points.iter().all(|point| (point.family.as_str(), point.points) == ("t/-/train/-", 5)));
    assert_eq!(
        (points[0].unit.as_str(), points[0].form.as_str(), points[0].local_batch),
        ("TOKENS", "AMDAHL", 4_096)
    );
    assert_eq!(points.iter().map(|point| point.seen_steps).collect::<Vec<_>>(), [100, 0, 0, 100, 0]);
    assert_eq!(points.iter().map(|point| point.nodes).collect::<Vec<_>>(), [1, 1, 1, 1, 2]);
    // 4,096 tokens in 0.8 s; 8 x 4,096 in 1.5 s. The largest size counts most, and the smaller one is in its interval.
    for (at, rate_milli, off) in [(0, 5_120_000_u64, 0.15), (3, 21_845_333, 0.03)] {
        let point = &points[at];
        assert!((point.rate_milli as f64 / rate_milli as f64 - 1.0).abs() < off, "{point:?}");
        assert!((point.low_milli..point.high_milli).contains(&rate_milli), "{point:?}");
    }
    // Less is known where nobody was.
    let spread = |point: &v1::ScalingCurve| point.high_milli as f64 / point.low_milli as f64;
    assert!(spread(&points[4]) > spread(&points[3]));
}

#[test]
fn the_same_again_is_said_once_and_three_sizes_make_the_form_of_pollux() {
    let mut curves = Curves::new("c");
    run(&mut curves, "a", 1, 101, 0);
    run(&mut curves, "b", 8, 101, 10_000_000_000);
    curves.take();
    for again in 0..6 {
        run(&mut curves, &format!("c{again}"), 8, 101, 20_000_000_000 * (again + 1));
    }
    assert!(curves.take().is_empty(), "nothing new was seen");
    run(&mut curves, "d", 4, 101, 900_000_000_000);
    let said = curves.take();
    assert_eq!(points(&said)[0].form, "POLLUX");
    let sources: BTreeSet<&str> = said.iter().map(|said| said.source.as_str()).collect();
    assert_eq!(sources.len(), said.len());
}

#[test]
fn what_is_no_step_of_training_and_half_a_window_do_not_count() {
    let mut curves = Curves::new("c");
    run(&mut curves, "a", 1, 101, 0);
    // A window needs a step beyond its hundredth; a size that changes begins anew; world unknown or absurd is nothing.
    run(&mut curves, "b", 8, 100, 10_000_000_000);
    curves.job("e", &family("train"), 0, 0);
    for step in 0..300 {
        let world = if step % 90 < 45 { 2 } else { 4 };
        curves.step(&report("e", world, 0, step), 0);
        curves.step(&v1::StepReport { world_size: None, ..report("e", 2, 0, step) }, 0);
        curves.step(&v1::StepReport { world_size: Some(u32::MAX), ..report("e", 2, 0, step) }, 0);
        curves.step(&v1::StepReport { checkpoint_us: Some(u64::MAX), ..report("e", 2, 0, step) }, 0);
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
            curves
                .step(&v1::StepReport { tokens, ..report(job_id, world, 0, step) }, step as i64 * 1_000_000);
        }
    }
    let points = points(&curves.take());
    assert_eq!((points[0].family.as_str(), points[0].job_id.as_deref()), ("job/a", Some("a")));
    // Steps of one GPU: two in 0.9 s.
    assert_eq!((points[0].unit.as_str(), points[0].local_batch), ("STEPS", 1));
    let two = points.iter().find(|point| point.gpus == 2).unwrap();
    assert!((two.rate_milli as f64 / 2_222.2 - 1.0).abs() < 0.03, "{two:?}");
}

#[test]
fn what_is_kept_is_bounded() {
    let mut curves = Curves::new("c");
    for job in 0..MOST_JOBS as u64 + 50 {
        curves.step(&report(&format!("j{job}"), 2, 0, 1), job as i64);
    }
    assert_eq!(curves.runs.len(), MOST_JOBS);
    assert!(!curves.runs.contains_key("j0") && curves.runs.contains_key("j60"));
    for world in 1..60 {
        for step in 0..101 {
            curves.step(&report("many", world, 0, step), 5_000);
        }
    }
    assert_eq!(curves.families[&("job/many".to_owned(), true)].steps.len(), MOST_SIZES);
}

#[test]
fn batches_are_rounded_to_five_bits() {
    assert_eq!([0, 1, 31, 33, 8_192, 8_300, 8_500].map(rounded), [1, 1, 31, 34, 8_192, 8_192, 8_704]);
    assert_eq!(rounded(u128::MAX >> 1), u32::MAX);
}
