//! Reports that come after their step was closed. They are inserted where they belong, and
//! confirmations based on those rows are tested again. One that no longer holds is withdrawn by a
//! correction.

use super::episode::Episode;
use super::input::StepReport;
use super::job::{Job, reference};
use super::signal::{Blame, Class, Evidence, Signal, Stage};
use super::step_buffer::seconds;

/// Classes up to this size get a new reference; in larger ones a single rank hardly moves the
/// median.
const SMALL_CLASS: usize = 64;

/// Inserts a late report. `false`: it is a duplicate, or its step is no longer kept.
pub(super) fn take(job: &mut Job, report: &StepReport, out: &mut Vec<Signal>) -> bool {
    let Some(seq) = job.history.find(report.step) else { return false };
    let rank = report.rank as usize;
    let time = seconds(report.compute_us, false);
    let known = job.history.compute.get(seq, rank).is_finite();
    if known || (time.is_nan() && job.data.values.get(seq, rank).is_finite()) {
        return false;
    }
    job.history.compute.row_mut(seq)[rank] = time;
    let tokens = report.tokens.map_or(f32::NAN, |tokens| tokens as f32);
    let squared = report.squared_tokens.map_or(f32::NAN, |squared| squared as f32);
    let log = (time / job.workload.expected(job.layout.role_of[rank], tokens, squared)).ln();
    let own_class = job.layout.class_of[rank] as usize;
    let log = if job.layout.everyone == Some(own_class as u32) { log - job.offset_of(rank) } else { log };
    job.compute.values.row_mut(seq)[rank] = log - job.history.reference.row(seq)[own_class];
    let moved = renew_references(job, seq, report.rank);
    job.measure_nodes(seq);
    let unit = job.history.step(seq).duration;
    let usual = job.history.data_reference.get(seq, 0);
    job.data.values.row_mut(seq)[rank] = (seconds(report.data_us, true) - usual) / unit;
    let transfer = seconds(report.communication_us, false).ln();
    let least = &mut job.transfer.values.row_mut(seq)[0];
    let transfer_moved = transfer < *least;
    *least = least.min(transfer);
    correct(job, seq, report.rank, moved, transfer_moved, out);
    true
}

/// Renews the reference of each small class of the rank, and the values measured against it.
fn renew_references(job: &mut Job, seq: u64, rank: u32) -> bool {
    let mut moved = false;
    let mut logs: Vec<f32> = Vec::new();
    let mut scratch = Vec::new();
    for class in 0..job.layout.classes.len() {
        let members = &job.layout.classes[class];
        let across = job.layout.everyone == Some(class as u32);
        if across || members.len() > SMALL_CLASS || !members.contains(&rank) {
            continue;
        }
        if logs.is_empty() {
            let references = job.history.reference.row(seq);
            let values = job.compute.values.row(seq).iter().zip(&job.layout.class_of);
            logs = values.map(|(value, class)| value + references[*class as usize]).collect();
        }
        let old = job.history.reference.row(seq)[class];
        let new = reference(members, &logs, &mut scratch);
        if !old.is_finite() || !new.is_finite() || old == new {
            continue;
        }
        job.history.reference.row_mut(seq)[class] = new;
        let row = job.compute.values.row_mut(seq);
        for (value, of) in row.iter_mut().zip(&job.layout.class_of) {
            if *of as usize == class {
                *value += old - new;
            }
        }
        moved = true;
    }
    moved
}

/// Repeats the tests of confirmations that include row `seq`.
fn correct(job: &mut Job, seq: u64, rank: u32, moved: bool, transfer_moved: bool, out: &mut Vec<Signal>) {
    use super::episode::Kind;
    let settings = job.settings;
    let mut episodes = std::mem::take(&mut job.episodes);
    for episode in &mut episodes {
        let Some(decision) = episode.decision.filter(|decision| (decision.from..decision.to).contains(&seq))
        else {
            continue;
        };
        let concerned = match episode.kind {
            Kind::Compute => moved || episode.series.contains(&rank),
            Kind::Node => moved || episode.series[0] == job.layout.node_of[rank as usize],
            Kind::Data => episode.series.contains(&rank),
            Kind::Transfer => transfer_moved,
            Kind::Drift => false,
        };
        // Episodes that hold since the first step were not decided by persistence.
        if !concerned || decision.to - decision.from < 2 {
            continue;
        }
        let bank = job.bank(episode.kind);
        match episode.test(bank, &settings, decision) {
            None => {
                let excess = bank.window(&episode.series, decision.from, decision.to).median;
                withdraw(job, episode, excess, out);
            }
            Some(again) if (again.excess - decision.excess).abs() > 0.5 * bank.effect() => {
                episode.decision = Some(again);
                let evidence =
                    Evidence { rule: "late_reports".into(), value: f64::from(again.excess), weight: 0.0 };
                episode.evidence.push(evidence);
                let last = job.history.closed - 1;
                out.push(job.signal(episode, Stage::Corrected, last, again.excess));
            }
            Some(_) => {}
        }
    }
    episodes.retain(|episode| !episode.closed || episode.decision.is_some());
    job.episodes = episodes;
}

/// Withdraws a confirmation, and with it the blame.
fn withdraw(job: &mut Job, episode: &mut Episode, excess: f32, out: &mut Vec<Signal>) {
    if !episode.closed {
        job.hold(episode, false);
    }
    episode.closed = true;
    episode.decision = None;
    episode.class = Class::Structural;
    episode.blame = Blame::Nobody;
    episode.lost_gpu_ms = 0.0;
    episode.evidence =
        vec![Evidence { rule: "withdrawn_by_late_reports".into(), value: f64::from(excess), weight: -4.0 }];
    episode.posterior = 1.0 - episode.posterior;
    let last = job.history.closed - 1;
    out.push(job.signal(episode, Stage::Corrected, last, excess));
}
