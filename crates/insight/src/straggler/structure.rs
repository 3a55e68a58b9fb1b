//! Structural causes, which blame nobody: uneven sequences, a long stage, uneven experts, ranks
//! slower from the first step. Analyzed once per run, when enough steps are known. A rank that was
//! slow from the start, and whose device shows why, is a straggler after all (rule 9).

use super::episode::{Assessment, Decision, Episode, Kind, Subject};
use super::job::Job;
use super::order_statistics;
use super::signal::{Blame, Class, Evidence, Signal, Stage};
use super::whatif::{StepTable, Verdict, what_if};

/// Steps after which a run is analyzed.
const ANALYZED_AFTER: u64 = 200;

/// Analyzes the run at the step due.
pub(super) fn analyze(job: &mut Job, seq: u64, next_episode: &mut u64, out: &mut Vec<Signal>) {
    if seq + 1 != ANALYZED_AFTER {
        return;
    }
    slow_from_the_start(job, seq, next_episode, out);
    let (found, long_stage) = causes(job, seq);
    if found.is_empty() {
        return;
    }
    let strongest = found.iter().map(|evidence| evidence.value).fold(0.0, f64::max);
    out.push(Signal {
        episode: *next_episode,
        stage: Stage::Confirmed,
        class: Class::Structural,
        posterior: 1.0 - 1.0 / (1.0 + found.iter().map(|evidence| evidence.weight).sum::<f64>().exp()),
        blame: Blame::Nobody,
        pipeline_stage: long_stage,
        since_us: job.history.begin_us(job.history.oldest()),
        said_us: job.history.step(seq).end_us,
        excess: strongest,
        lost_gpu_ms: 0,
        evidence: found,
    });
    *next_episode += 1;
}

/// Ranks whose ratio to their peers was large from the start.
fn offsets(job: &mut Job) -> Vec<(u32, f32)> {
    let spread = f64::from(job.compute.effect()) / job.settings.effect_noise;
    let least = (5.0 * spread).max(0.10) as f32;
    (0..job.compute.width())
        .filter(|&rank| !job.compute.is_held(rank))
        .map(|rank| (rank as u32, job.compute.base(rank)))
        .filter(|(_, base)| *base > least)
        .collect()
}

/// Signals ranks that were slow from the first step, where their device explains it.
fn slow_from_the_start(job: &mut Job, seq: u64, next_episode: &mut u64, out: &mut Vec<Signal>) {
    let now_us = job.history.step(seq).end_us;
    let since_us = job.history.begin_us(job.history.oldest());
    for (rank, base) in offsets(job) {
        let shown = job.devices.compare(&job.layout, rank, since_us, now_us);
        let bad = shown.clock_ratio.is_some_and(|ratio| ratio < job.settings.clock_ratio)
            || shown.slowdown.is_some_and(|share| share > 0.2)
            || shown.width.is_some_and(|width| width < 0.9);
        // And the rank still is slow.
        let last = job.compute.window(&[rank], (seq + 1).saturating_sub(20), seq + 1).median;
        if !bad || last < -0.25 * base {
            continue;
        }
        let mut episode = Episode {
            id: *next_episode,
            kind: Kind::Compute,
            subject: Subject::Rank(rank),
            series: vec![rank],
            since: job.history.oldest(),
            since_us,
            decision: Some(Decision { from: seq, to: seq + 1, fast: false, burst: 0, excess: base }),
            closed: false,
            lost_gpu_ms: 0.0,
            class: Class::ComputeThermal,
            posterior: 0.0,
            blame: Blame::Rank(rank),
            evidence: Vec::new(),
            assessment: Assessment::default(),
        };
        *next_episode += 1;
        // Its peers become its baseline, so that the episode ends when it is as fast as they are.
        job.compute.rebase(rank as usize, 0.0);
        job.compute.hold(rank as usize, true);
        job.classify(&mut episode, seq, base);
        // All evidence is known, from the whole run.
        episode.assessment.has_all_evidence = true;
        episode.evidence.push(Evidence {
            rule: "slow_from_the_start".into(),
            value: f64::from(base),
            weight: 0.0,
        });
        out.push(job.signal(&episode, Stage::Confirmed, seq, base));
        job.episodes.push(episode);
    }
}

/// Structural causes with their size as a share of time, and the long stage if it is one of them.
fn causes(job: &mut Job, seq: u64) -> (Vec<Evidence>, Option<u32>) {
    let (mut found, mut long_stage) = (Vec::new(), None);
    let tables = tables(job, seq);
    let answer = what_if(&tables, None);
    let noise = answer.map_or(0.0, |answer| answer.peer_noise);
    let explained = (0..job.layout.roles.len()).map(|role| job.workload.explained(role as u32));
    let explained = explained.fold(0.0, f64::max);
    if let Some(answer) = answer {
        let uneven = noise >= 0.03 && answer.worker_share < 0.2;
        if uneven && (explained >= 0.5 || answer.verdict == Verdict::SequenceImbalance) {
            let weight = if explained >= 0.5 { 4.0 } else { 2.0 };
            found.push(Evidence { rule: "sequence_imbalance".into(), value: noise, weight });
        }
        // A single slow worker makes its stage long too, but the stage is not the cause.
        let is_one = answer.worker_share >= 0.5;
        if job.layout.stages > 1 && answer.stage_share >= 0.5 && answer.slowdown >= 1.05 && !is_one {
            found.push(Evidence { rule: "long_stage".into(), value: answer.slowdown - 1.0, weight: 4.0 });
            long_stage = Some(answer.longest_stage as u32);
        }
    }
    if job.layout.groups > 1 {
        let of_stages = (0..job.layout.stages).map(|stage| spread_of_groups(job, stage, seq));
        let spread = of_stages.fold(0.0, f64::max);
        if spread >= 0.10 {
            found.push(Evidence { rule: "expert_imbalance".into(), value: spread, weight: 3.0 });
        }
    }
    let slower = offsets(job);
    let most = slower.iter().map(|(_, base)| f64::from(base.exp_m1())).fold(0.0, f64::max);
    if !slower.is_empty() {
        found.push(Evidence { rule: "ranks_slower_from_the_start".into(), value: most, weight: 2.0 });
    }
    (found, long_stage)
}

/// The last steps as worker tables.
fn tables(job: &Job, seq: u64) -> Vec<StepTable> {
    let first = (seq + 1).saturating_sub(100).max(job.history.oldest());
    (first..=seq)
        .map(|seq| {
            let row = job.history.compute.row(seq);
            let time = |place| f64::from(row[job.layout.worker_rank(place)]);
            StepTable {
                compute: (0..row.len()).map(time).collect(),
                stages: job.layout.stages,
                micro_batches: job.layout.micro_batches,
                operations: None,
            }
        })
        .collect()
}

/// Largest median time among a stage's expert groups over the median of all of them, less one, over
/// the last steps.
fn spread_of_groups(job: &Job, stage: usize, seq: u64) -> f64 {
    let first = (seq + 1).saturating_sub(100).max(job.history.oldest());
    let mut levels: Vec<f32> = Vec::new();
    for ranks in &job.layout.roles[job.layout.roles_of(stage)] {
        let mut times: Vec<f32> = (first..=seq)
            .flat_map(|seq| ranks.iter().map(move |&rank| (seq, rank)))
            .map(|(seq, rank)| job.history.compute.get(seq, rank as usize))
            .filter(|time| time.is_finite())
            .collect();
        levels.push(order_statistics::median(&mut times));
    }
    levels.retain(|level| level.is_finite());
    let most = levels.iter().copied().fold(f32::NAN, f32::max);
    let spread = f64::from(most / order_statistics::median(&mut levels)) - 1.0;
    if spread.is_finite() { spread } else { 0.0 }
}
