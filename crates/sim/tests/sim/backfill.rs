//! EASY backfill against a calculation of its own: it never delays the head of the queue.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tidegate_sim::{Backfill, ClusterSpec, DAY_US, HOUR_US, JobSpec, JobState, Latency, MINUTE_US, Sim};

/// Nodes of eight GPUs without latencies: jobs end when they said.
fn cluster(nodes: usize) -> ClusterSpec {
    let latency =
        Latency { start_us: 0, notice_us: 0, checkpoint_us: 0, kill_us: 0, handover_us: 0, load_us: 0 };
    let mut spec = ClusterSpec { latency, ..ClusterSpec::uniform(&[nodes], 8) };
    spec.schedule.backfill = Backfill::Easy { depth: 100 };
    spec
}

#[test]
fn a_head_of_whole_nodes_is_not_starved_by_scattered_gpus() {
    // Three nodes have five of eight GPUs taken, until hours 10, 20 and 30. The head wants a whole
    // node, of which there is none though nine GPUs are free.
    let mut jobs: Vec<JobSpec> = (1..=3).map(|end| JobSpec::plain(0, 5, end * 10 * HOUR_US)).collect();
    jobs.push(JobSpec::plain(HOUR_US, 8, HOUR_US));
    jobs.extend((0..3).map(|_| JobSpec::plain(2 * HOUR_US, 3, 100 * HOUR_US)));
    jobs.push(JobSpec::plain(3 * HOUR_US, 3, HOUR_US));
    let mut sim = Sim::new(cluster(3), jobs, vec![]).unwrap();
    assert!(sim.run_to_end(20 * DAY_US));
    let starts: Vec<i64> = sim.jobs().iter().map(|j| j.first_start_us.unwrap() / HOUR_US).collect();
    // The long ones start beside the second and the third job. Beside the first, which ends before
    // the others, only the short one does: the head gets that node.
    assert_eq!(starts, [0, 0, 0, 10, 2, 2, 11, 3]);
}

/// When `head` could start if nothing else did, by the ends of the jobs that run.
fn first_start_us(sim: &Sim, head: u32) -> i64 {
    let mut free: BTreeMap<u32, u32> = (0..).zip(sim.nodes().iter().map(|n| n.free)).collect();
    let fits = |free: &BTreeMap<u32, u32>| {
        let wanted = sim.jobs()[head as usize].spec.gpus;
        let mut by_size: Vec<u32> = free.values().copied().collect();
        by_size.sort_unstable();
        let whole = by_size.iter().filter(|free| **free == 8).count() as u32;
        let rest = wanted % 8;
        whole >= wanted / 8 && {
            by_size.truncate(by_size.len() - (wanted / 8) as usize);
            rest == 0 || by_size.iter().any(|free| *free >= rest)
        }
    };
    let mut ends: Vec<(i64, u32)> = sim
        .running()
        .map(|job| {
            let j = &sim.jobs()[job as usize];
            (j.first_start_us.unwrap() + j.spec.work_us, job)
        })
        .collect();
    ends.sort_unstable();
    for (end_us, job) in ends {
        sim.jobs()[job as usize].held.iter().for_each(|(node, gpus)| *free.get_mut(node).unwrap() += gpus);
        if fits(&free) {
            return end_us;
        }
    }
    panic!("an empty cluster has room for job {head}")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Jobs end when they said, so a job must start by the time that it could when it became the
    /// head of the queue.
    #[test]
    fn the_head_is_never_delayed(
        nodes in 2_usize..6,
        wishes in prop::collection::vec((0_i64..600, 1_u32..20, 1_i64..500), 20..120),
    ) {
        let mut jobs: Vec<JobSpec> = wishes
            .iter()
            .map(|(at, gpus, takes)| {
                JobSpec::plain(at * MINUTE_US, (*gpus).min(nodes as u32 * 8), takes * MINUTE_US)
            })
            .collect();
        jobs.sort_by_key(|job| job.submit_us);
        jobs.iter_mut().for_each(|job| job.estimate_us = job.work_us);
        let mut sim = Sim::new(cluster(nodes), jobs, vec![]).unwrap();
        let (mut promised, mut overtook) = (BTreeMap::new(), 0);
        while let Some(at_us) = sim.next_us() {
            sim.run_until(at_us);
            let mut waiting = (0..).zip(sim.jobs()).filter(|(_, j)| j.state == JobState::Queued);
            let Some((head, _)) = waiting.next() else { continue };
            promised.entry(head).or_insert_with(|| first_start_us(&sim, head));
            overtook += sim.running().filter(|job| *job > head).count();
        }
        for (head, by_us) in &promised {
            let start_us = sim.jobs()[*head as usize].first_start_us.unwrap();
            prop_assert!(start_us <= *by_us, "job {head} starts {} min late", (start_us - by_us) / MINUTE_US);
        }
        prop_assert!(promised.len() < 5 || overtook > 0, "nobody overtakes {} heads", promised.len());
    }
}
