//! Jobs and nodes that are not there take no memory from those that are.

use super::*;

/// The attack: this many jobs, invented by one user of one node, claim this many ranks each.
const INVENTED: usize = 9_901;
const CLAIMED_RANKS: u32 = 1_032;

fn claim(job_id: &str, rank: u32, at_ms: i64) -> Event {
    let report = v1::StepReport {
        job_id: job_id.into(),
        rank,
        world_size: Some(CLAIMED_RANKS),
        duration_us: 1_000_000,
        node: Some("n0".into()),
        ..v1::StepReport::default()
    };
    sealed(Event::Step(report), at_ms)
}

fn start(job_id: &str, at_ms: i64) -> Event {
    let event = v1::JobEvent {
        kind: v1::JobEventKind::Started.into(),
        job_id: job_id.into(),
        gpus_milli: Some(1_000),
        ..v1::JobEvent::default()
    };
    sealed(Event::Job(event), at_ms)
}

#[test]
fn invented_jobs_take_nothing_and_change_no_signal() {
    let honest = input().concat();
    let (expected, _) = all_at_once(honest.clone());
    let mut reorder = Reorder::new(i64::MIN);
    for n in 0..INVENTED {
        reorder.push(claim(&format!("none-{n}"), 0, START_MS + n as i64), NOW_MS);
    }
    for event in honest {
        reorder.push(event, NOW_MS);
    }
    reorder.advance(end_us());
    assert_eq!(sorted(reorder.take()), expected);
    let memory = reorder.memory();
    assert_eq!((memory.unknown_jobs, memory.evicted_jobs), (INVENTED as u64, 0));
    assert!(memory.held_bytes < 1 << 20, "{memory:?}");
}

#[test]
fn memory_is_taken_for_ranks_that_were_heard() {
    let mut reorder = Reorder::new(i64::MIN);
    for n in 0..100 {
        let job = format!("j{n}");
        reorder.push(start(&job, START_MS), NOW_MS);
        reorder.push(claim(&job, 0, START_MS), NOW_MS);
    }
    reorder.advance((START_MS + 120_000) * 1_000);
    let each = reorder.memory().held_bytes / 100;
    assert!((100_000..1_000_000).contains(&each), "{each} bytes for one rank of {CLAIMED_RANKS}");
}

#[test]
fn over_the_limit_the_job_that_began_last_is_forgotten() {
    let honest = input().concat();
    let (expected, _) = all_at_once(honest.clone());
    let mut reorder = Reorder::new(i64::MIN);
    const LIMIT: usize = 64 << 20;
    reorder.limit_memory(LIMIT);
    // A real user's array of real jobs, each with a claim.
    for n in 0..1_000 {
        let (job, at_ms) = (format!("array_{n}"), START_MS + 60_000 + n);
        reorder.push(start(&job, at_ms), NOW_MS);
        reorder.push(claim(&job, 0, at_ms), NOW_MS);
    }
    for event in honest {
        reorder.push(event, NOW_MS);
    }
    let mut output = Vec::new();
    for until_ms in (START_MS..START_MS + 3_600_000).step_by(10_000) {
        reorder.advance(until_ms * 1_000);
        output.extend(reorder.take());
        assert!(reorder.memory().held_bytes < LIMIT as u64, "{:?}", reorder.memory());
    }
    reorder.advance(end_us());
    output.extend(reorder.take());
    let of = |output: &[Publication]| stragglers(output).into_iter().cloned().collect::<Vec<_>>();
    assert_eq!(of(&sorted(output)), of(&expected));
    assert!(reorder.memory().evicted_jobs > 900, "{:?}", reorder.memory());
}

/// A site without agents and step reports: nothing is monitored, and its clock jumps.
#[test]
fn jobs_that_ended_long_ago_are_forgotten_without_ticks() {
    let mut reorder = Reorder::new(i64::MIN);
    let mut most = 0;
    for n in 0..2_000 {
        let (job, at_ms) = (format!("j{n}"), START_MS + n * 600_000);
        reorder.push(start(&job, at_ms), NOW_MS);
        let ended = v1::JobEvent {
            kind: v1::JobEventKind::Ended.into(),
            job_id: job,
            final_state: Some("COMPLETED".into()),
            ..v1::JobEvent::default()
        };
        reorder.push(sealed(Event::Job(ended), at_ms + 300_000), NOW_MS);
        reorder.advance(at_ms * 1_000);
        reorder.take();
        if n == 200 {
            most = reorder.memory().held_bytes;
        }
    }
    let memory = reorder.memory();
    assert!(most > 0 && memory.held_bytes < 2 * most, "{memory:?}, {most} bytes after a day");
    assert_eq!(memory.evicted_jobs, 0);
}

#[test]
fn invented_nodes_and_devices_stay_within_the_limit() {
    const LIMIT: usize = 8 << 20;
    let mut reorder = Reorder::new(i64::MIN);
    reorder.limit_memory(LIMIT);
    for round in 0..40 {
        for n in 0..50 {
            let node = format!("none-{round}-{n}");
            reorder.push(samples(&node, START_MS + round * 10_000, false), NOW_MS);
        }
        reorder.advance((START_MS + round * 10_000) * 1_000);
        assert!(reorder.memory().held_bytes < LIMIT as u64, "{:?}", reorder.memory());
    }
    assert!(reorder.memory().evicted_nodes > 100, "{:?}", reorder.memory());
}

#[test]
fn steps_of_tomorrow_wait_in_bounded_memory() {
    const LIMIT: usize = 4 << 20;
    let mut reorder = Reorder::new(i64::MIN);
    reorder.limit_memory(LIMIT);
    for n in 0..20_000 {
        let at_ms = START_MS + 3_600_000 + i64::from(n);
        let mut event = claim("j", n % CLAIMED_RANKS, at_ms);
        event.envelope_mut().observed_time_ms = START_MS;
        reorder.push(event, NOW_MS);
    }
    let memory = reorder.memory();
    assert!(memory.held_bytes <= LIMIT as u64 / 4 && memory.refused > 10_000, "{memory:?}");
}
