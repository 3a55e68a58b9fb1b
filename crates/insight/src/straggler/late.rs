//! Reports that come after their step was closed. They are put where they belong, and what was
//! confirmed on rows they belong to is tested again; where it no longer holds, a correction takes
//! it back.

use super::event::Event;
use super::input::StepReport;
use super::intake::seconds;
use super::job::{Job, reference};
use super::signal::{Blame, Class, Evidence, Signal, Stage};

/// Classes up to this size get a new reference; of larger ones one rank moves the median next to
/// nothing.
const SMALL_CLASS: usize = 64;

/// Puts a late report in. `false`: it was there already, or its step is no longer kept.
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

/// Renews the reference of each small class the rank is a member of, and with it the values
/// measured against it.
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

/// Tests again what was confirmed on row `seq`.
fn correct(job: &mut Job, seq: u64, rank: u32, moved: bool, transfer_moved: bool, out: &mut Vec<Signal>) {
    use super::event::Kind;
    let settings = job.settings;
    let mut events = std::mem::take(&mut job.events);
    for event in &mut events {
        let Some(decision) = event.decision.filter(|decision| (decision.from..decision.to).contains(&seq))
        else {
            continue;
        };
        let concerned = match event.kind {
            Kind::Compute => moved || event.series.contains(&rank),
            Kind::Node => moved || event.series[0] == job.layout.node_of[rank as usize],
            Kind::Data => event.series.contains(&rank),
            Kind::Transfer => transfer_moved,
            Kind::Drift => false,
        };
        // What holds since the first step was not decided by persistence.
        if !concerned || decision.to - decision.from < 2 {
            continue;
        }
        let tracks = job.tracks(event.kind);
        match event.test(tracks, &settings, decision) {
            None => {
                let excess = tracks.window(&event.series, decision.from, decision.to).median;
                withdraw(job, event, excess, out);
            }
            Some(again) if (again.excess - decision.excess).abs() > 0.5 * tracks.effect() => {
                event.decision = Some(again);
                let evidence = Evidence { rule: "late_reports", value: f64::from(again.excess), weight: 0.0 };
                event.evidence.push(evidence);
                let last = job.history.closed - 1;
                out.push(job.say(event, Stage::Corrected, last, again.excess));
            }
            Some(_) => {}
        }
    }
    events.retain(|event| !event.closed || event.decision.is_some());
    job.events = events;
}

/// Takes a confirmation back: nobody is blamed any more.
fn withdraw(job: &mut Job, event: &mut Event, excess: f32, out: &mut Vec<Signal>) {
    if !event.closed {
        job.hold(event, false);
    }
    event.closed = true;
    event.decision = None;
    event.class = Class::Structural;
    event.blame = Blame::Nobody;
    event.lost_gpu_ms = 0.0;
    event.evidence =
        vec![Evidence { rule: "withdrawn_by_late_reports", value: f64::from(excess), weight: -4.0 }];
    event.posterior = 1.0 - event.posterior;
    let last = job.history.closed - 1;
    out.push(job.say(event, Stage::Corrected, last, excess));
}
